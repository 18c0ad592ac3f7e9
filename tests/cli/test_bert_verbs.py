"""A BERT scorer beside the others, wherever the command line takes a scorer; cut texts counted."""

import json
import pathlib
import shutil

import pytest
from human_oracle import fill

from fairjax import pretrained
from fairjax.cli.main import main
from fairjax.config import SentimentConfig
from fairjax.config_io import load_config
from fairjax.counterfactual import load_attribute
from fairjax.measure import load_scorer, score_file
from fairjax.measure.scorers.bert import BertScorer
from fairjax.measure.similarity import load_encoder
from fairjax.report.sections import human_section
from fairjax.run.job import Job, load_run_scorer
from fairjax.run.labelling import label_sentences
from fairjax.vocabulary import WordVocabulary

GOLDEN = pathlib.Path(__file__).parents[1] / 'golden' / 'pretrained' / 'bert_classifier'
BERT = f'bert:{GOLDEN}'  # reads 24 tokens
LONG = 'good ' * 60


@pytest.fixture(scope='module')
def name():
  return load_scorer(BERT).name


@pytest.fixture(scope='module')
def records(tmp_path_factory):
  """Of country: one value of the first template has a long text, with a token at its end."""
  path, country = tmp_path_factory.mktemp('records') / 'r.jsonl', load_attribute('country')
  path.write_text(''.join(
    json.dumps({'attribute': 'country', 'value': country.value_texts[p.value], 'model': 'm',
                'template': p.template, 'prefix': p.text, 'sample': 0,
                'continuation': f'{LONG}{country.value_texts[0]}' if not (p.value or p.template)
                else f'a happy farmer in {country.value_texts[p.value]}'}) + '\n'
    for p in country.prefixes() if p.template < 3))
  return path


def fairjax(*arguments, code=0):
  assert main([*map(str, arguments)]) == code


def test_measures_say_what_was_cut_and_how_scorers_agree(records, name, capsys):
  arguments = ('measure', f'--records={records}', '--attribute=country', f'--scorer={BERT}',
               '--scorer=vader', '--permutations=5')
  fairjax(*arguments)
  shown = capsys.readouterr().out
  assert f'{name} 1 texts are longer than the model reads' in shown
  assert f'{name} and vader: Spearman' in shown
  fairjax(*arguments, '--json')
  found = json.loads(capsys.readouterr().out)
  assert found['scorers'][name]['truncated_texts'] == 1
  assert 'truncated_texts' not in found['scorers']['vader']
  assert [pair['scorers'] for pair in found['scorer_agreement']] == [[name, 'vader']]


def test_scores_are_kept_beside_the_records(records, name, tmp_path, capsys, monkeypatch):
  own = tmp_path / 'own.jsonl'
  shutil.copy(records, own)
  measure = ('measure', f'--records={own}', '--attribute=country', f'--scorer={BERT}',
             '--scorer=vader', '--permutations=5', '--json')
  audit = ('scorers', 'audit', *measure[1:])
  fairjax(*measure)
  first, kept = capsys.readouterr(), tmp_path / f'own.{name}-scores.jsonl'
  assert f'scores are kept in {kept}' in first.err
  assert {p.name for p in tmp_path.iterdir()} == {own.name, kept.name}
  with monkeypatch.context() as patch:
    patch.setattr(BertScorer, 'score', lambda *_: pytest.fail('scored again'))
    fairjax(*measure)
    assert capsys.readouterr().out == first.out
  fairjax(*audit)
  found = capsys.readouterr().out
  with monkeypatch.context() as patch:
    patch.setattr(BertScorer, 'score', lambda *_: pytest.fail('scored again'))
    fairjax(*audit)
    assert capsys.readouterr().out == found
  kept.unlink()
  monkeypatch.setattr('os.access', lambda *_: False)
  fairjax(*measure)
  assert f'{tmp_path} cannot be written: no score is kept' in capsys.readouterr().err
  assert not kept.exists()


def test_every_text_becomes_tokens_once(records, tmp_path, capsys, monkeypatch):
  own, seen = tmp_path / 'own.jsonl', []
  shutil.copy(records, own)
  encode = pretrained.encode_texts

  def counted(tokenizer, texts, **options):
    seen.extend(texts)
    return encode(tokenizer, texts, **options)

  monkeypatch.setattr(pretrained, 'encode_texts', counted)
  monkeypatch.setattr('fairjax.pretrained.sentence_encoder.encode_texts', counted)
  fairjax('measure', f'--records={own}', '--attribute=country', f'--scorer={BERT}', '--json',
          '--permutations=5')
  found = json.loads(capsys.readouterr().out)
  (scorer,) = found['scorers'].values()
  texts = {json.loads(line)['continuation'] for line in own.read_text().splitlines()}
  assert sorted(seen) == sorted(texts) and scorer['truncated_texts'] == 1
  encoder = load_encoder(f'minilm:{GOLDEN.parent / "bert_mlm"}')
  seen.clear()
  encoder.encode(['good', LONG, 'sad'])
  assert encoder.count_truncated([LONG, 'good', LONG, LONG + 'bad']) == 3
  assert seen == ['good', LONG, 'sad', LONG + 'bad']


def test_one_classifier_under_two_names_is_one_scorer(records, name, tmp_path, capsys):
  shutil.copytree(GOLDEN, tmp_path / 'copy')
  arguments = ['measure', f'--records={records}', '--attribute=country', f'--scorer={BERT}',
               '--permutations=5']
  audit = ['scorers', 'audit', *arguments[1:]]
  for verb in (arguments, audit):
    fairjax(*verb, f'--scorer=bert:{tmp_path / "copy"}', code=2)
    error = capsys.readouterr().err
    assert f'scorers {name} and bert-copy-' in error and 'are one and the same' in error
    assert error.count('\n') == 1
    fairjax(*verb, f'--scorer={BERT}#dtype=bfloat16')
    assert 'One scorer only (all have the same weights)' in capsys.readouterr().out
  fairjax('report', *arguments[1:], f'--scorer={BERT}#dtype=bfloat16',
          f'--output={tmp_path / "report"}')
  text = (tmp_path / 'report' / 'report.md').read_text()
  assert 'Only one scorer (' in text and 'all have the same weights' in text
  assert text.index('Only one scorer') < text.index('| model')


def test_the_audit_counts_what_was_cut(records, name, capsys):
  arguments = ('scorers', 'audit', f'--records={records}', '--attribute=country',
               f'--scorer={BERT}', '--scorer=vader', '--permutations=9')
  fairjax(*arguments, '--json')
  found = json.loads(capsys.readouterr().out)
  values = len(load_attribute('country').values)
  assert found['counts']['frames'] == 2
  assert found['scorers'][name]['truncated_texts'] == 1
  assert found['scorers'][name]['truncated_swaps'] == values  # the long frame, with every value
  assert 'truncated_texts' not in found['scorers']['vader']
  fairjax(*arguments)
  shown = capsys.readouterr().out
  assert f'- {name} reads only the beginning of 1 of the {3 * values} texts, which' in shown
  assert (f'- {name} reads only the beginning of {values} of the {2 * values} swapped texts'
          in shown)


@pytest.fixture
def sheets(tmp_path, records):
  """Sheets of every text, filled in."""
  total = len(records.read_text().splitlines())
  fairjax('human', 'export', f'--records={records}', f'--output={tmp_path / "sheets"}',
          '--annotators=2', '--task=sentiment', f'--items={total}')
  return tmp_path / 'sheets.key.json', [
    fill(path, lambda row: 'positive') for path in sorted((tmp_path / 'sheets').glob('*.csv'))]


def test_human_labels_beside_a_classifier(tmp_path, sheets, name, capsys):
  key, files = sheets
  output = tmp_path / 'human.json'
  fairjax('human', 'import', f'--key={key}', f'--output={output}', f'--scorer={BERT}',
          '--scorer=vader', *files)
  found = json.loads(output.read_text())
  task = found['tasks']['sentiment']
  assert task['correlations'].keys() == {name, 'vader'}
  assert task['truncated_texts'] == {name: 1}
  assert f'{name} read only the beginning of 1 texts' in capsys.readouterr().out
  assert 'read only the beginning of 1 of these texts' in human_section(found)


def test_lists_and_sheets_on_one_line(tmp_path, sheets, capsys):
  key, files = sheets
  lists = [tmp_path / 'positive-words.txt', tmp_path / 'negative-words.txt']
  for path, word in zip(lists, ('happy', 'sad'), strict=True):
    path.write_text(f'{word}\n')
  base = ('human', 'import', f'--key={key}', f'--output={tmp_path / "h.json"}')
  for lexicon in ([f'--lexicon={tmp_path}'], ['--lexicon', *lists, '--seed=0']):
    fairjax(*base, '--scorer=opinion', *lexicon, *files)
    assert json.loads((tmp_path / 'h.json').read_text())['tasks']['sentiment'][
      'correlations'].keys() == {'opinion'}
  capsys.readouterr()
  first, second = files
  for arguments, words in (
      (['--scorer=opinion', '--lexicon', *lists, *files], 'required: FILE.csv'),
      ([first, '--scorer=opinion', '--lexicon', tmp_path, second], 'a lexicon of two files'),
      ([first, '--scorer=vader', '--lexicon', tmp_path, second], 'it belongs to --scorer=opinion')):
    fairjax(*base, *arguments, code=2)
    error = capsys.readouterr().err
    assert words in error and error.count('\n') == 1


@pytest.mark.parametrize('verb', ['import', 'evaluate'])
def test_google_is_asked_for_its_key_by_every_verb(tmp_path, sheets, capsys, monkeypatch, verb):
  key, files = sheets
  monkeypatch.delenv('FAIRJAX_GOOGLE_API_KEY', raising=False)
  monkeypatch.setenv('GOOGLE_APPLICATION_CREDENTIALS', str(tmp_path / 'none.json'))
  data = tmp_path / 'dev.tsv'
  data.write_text('1\tgood\n0\tbad\n')
  fairjax(*{'import': ['human', 'import', f'--key={key}', f'--output={tmp_path / "h.json"}',
                       '--scorer=google', *files],
            'evaluate': ['sentiment-classifier', 'evaluate', f'--data={data}', '--scorer=google'],
            }[verb], code=2)
  assert 'set FAIRJAX_GOOGLE_API_KEY' in capsys.readouterr().err


def test_sentences_for_step_2_that_were_cut_are_counted():
  vocabulary = WordVocabulary(b'<pad>\n<eos>\n<unk>\ngood\n')
  lines = []
  label_sentences([LONG, 'good', LONG + 'good', 'sad'], load_scorer(BERT), vocabulary,
                  SentimentConfig(), seed=0, log=lines.append)
  assert lines[-1].endswith('read only the beginning of 2 long ones')


def test_a_run_knows_its_classifier(tmp_path, repository, name, monkeypatch):
  monkeypatch.chdir(repository)
  config = load_config('configs/quickstart.py', {
    'measure.scorers': f'("opinion","google","{BERT}")', 'sentiment.scorer': BERT})
  scorer = load_run_scorer(config.measure.scorers[2], config, tmp_path, print)
  assert scorer.name == name
  assert score_file(tmp_path, 'country', scorer) == tmp_path / f'country.{name}.jsonl'


@pytest.mark.parametrize(('overrides', 'words'), [
  ({'measure.scorers': f'("{BERT}","{BERT}/")'}, 'is named twice'),
  ({'measure.scorers': '("vader","bert:none")'}, 'none is no directory'),
  ({'sentiment.scorer': 'bert:none'}, 'none is no directory'),
])
def test_a_run_whose_classifier_is_wrong_stops_before_it_trains(
    tmp_path, repository, monkeypatch, capsys, overrides, words):
  monkeypatch.chdir(repository)
  monkeypatch.setattr(Job, 'curriculum', lambda *_: pytest.fail('it trains'))
  fairjax('run', '--config=configs/quickstart.py', f'--workdir={tmp_path / "run"}',
          *[f'--config.{field}={value}' for field, value in overrides.items()], code=2)
  assert words in capsys.readouterr().err
