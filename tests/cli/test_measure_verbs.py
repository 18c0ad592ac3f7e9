"""Scorers on the command line: BERT (counts what it cuts) and Google (key, quota, resumption)."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import google_server
import grpc
import pytest
from human_oracle import fill
from record_cases import records_of, write_lines

from fairjax import pretrained
from fairjax.cli.main import main
from fairjax.config import SentimentConfig
from fairjax.config_io import load_config
from fairjax.counterfactual import load_attribute
from fairjax.data.planted import NEGATIVE, POSITIVE
from fairjax.errors import UserError
from fairjax.measure import load_scorer
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
  names = load_attribute('country').value_texts
  return write_lines(tmp_path_factory.mktemp('records') / 'r.jsonl', records_of(
    load_attribute('country'), 1, lambda p, i: f'a happy farmer in {names[p.value]}' if (
      p.value or p.template) else f'{LONG}{names[0]}', 3, model='m'))


def fairjax(*arguments):
  assert main([*map(str, arguments)]) == 0


def test_measures_say_what_was_cut_and_how_scorers_agree(records, name, printed, found):
  arguments = ('measure', f'--records={records}', '--attribute=country', f'--scorer={BERT}',
               '--scorer=vader', '--permutations=5')
  shown = printed(*arguments)
  assert f'scorer {name} read only the beginning of 1 of' in shown
  assert f'\n{name} and vader ' in shown
  result = found(*arguments)
  assert result['scorers'][name]['truncated_texts'] == 1
  assert 'truncated_texts' not in result['scorers']['vader']
  assert [pair['scorers'] for pair in result['scorer_agreement']] == [[name, 'vader']]


def test_scores_are_kept_beside_the_records(records, name, tmp_path, capsys, printed, monkeypatch):
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
    assert printed(*measure) == first.out
  found = printed(*audit)
  scorers = json.loads(found)['scorers']
  assert scorers[name]['truncated_texts'] == 1
  # The long frame, with every value.
  assert scorers[name]['truncated_swaps'] == len(load_attribute('country').values)
  assert 'truncated_texts' not in scorers['vader']
  with monkeypatch.context() as patch:
    patch.setattr(BertScorer, 'score', lambda *_: pytest.fail('scored again'))
    assert printed(*audit) == found
  kept.unlink()
  monkeypatch.setattr('os.access', lambda *_: False)
  fairjax(*measure)
  assert f'{tmp_path} cannot be written: no score is kept' in capsys.readouterr().err
  assert not kept.exists()


def test_every_text_becomes_tokens_once(records, tmp_path, found, monkeypatch):
  own, seen = tmp_path / 'own.jsonl', []
  shutil.copy(records, own)
  encode = pretrained.encode_texts

  def counted(tokenizer, texts, **options):
    seen.extend(texts)
    return encode(tokenizer, texts, **options)

  monkeypatch.setattr(pretrained, 'encode_texts', counted)
  monkeypatch.setattr('fairjax.pretrained.sentence_encoder.encode_texts', counted)
  (scorer,) = found('measure', f'--records={own}', '--attribute=country', f'--scorer={BERT}',
                    '--permutations=5')['scorers'].values()
  texts = {json.loads(line)['continuation'] for line in own.read_text().splitlines()}
  assert sorted(seen) == sorted(texts) and scorer['truncated_texts'] == 1
  encoder = load_encoder(f'minilm:{GOLDEN.parent / "bert_mlm"}')
  seen.clear()
  encoder.encode(['good', LONG, 'sad'])
  assert encoder.count_truncated([LONG, 'good', LONG, LONG + 'bad']) == 3
  assert seen == ['good', LONG, 'sad', LONG + 'bad']


def test_one_classifier_under_two_names_is_one_scorer(records, name, tmp_path, printed, refused):
  shutil.copytree(GOLDEN, tmp_path / 'copy')
  arguments = ['measure', f'--records={records}', '--attribute=country', f'--scorer={BERT}',
               '--permutations=5']
  audit = ['scorers', 'audit', *arguments[1:]]
  for verb in (arguments, audit):
    refused([*verb, f'--scorer=bert:{tmp_path / "copy"}'], f'scorers {name} and bert-copy-',
            'are one and the same')
    out = printed(*verb, f'--scorer={BERT}#dtype=bfloat16').lower()
    assert 'one scorer' in out and 'all have the same weights' in out
  fairjax('report', *arguments[1:], f'--scorer={BERT}#dtype=bfloat16',
          f'--output={tmp_path / "report"}')
  text = (tmp_path / 'report' / 'report.md').read_text()
  assert 'Only one scorer (' in text and 'all have the same weights' in text
  assert text.index('Only one scorer') < text.index('| model')


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
  assert f'{name} read only the beginning of 1 ' in capsys.readouterr().out
  assert 'read only the beginning of 1 of these texts' in human_section(found).body()


def test_lists_and_sheets_on_one_line(tmp_path, sheets, refused):
  key, files = sheets
  lists = [tmp_path / 'positive-words.txt', tmp_path / 'negative-words.txt']
  for path, word in zip(lists, ('happy', 'sad'), strict=True):
    path.write_text(f'{word}\n')
  base = ('human', 'import', f'--key={key}', f'--output={tmp_path / "h.json"}')
  for lexicon in ([f'--lexicon={tmp_path}'], ['--lexicon', *lists, '--seed=0']):
    fairjax(*base, '--scorer=opinion', *lexicon, *files)
    assert json.loads((tmp_path / 'h.json').read_text())['tasks']['sentiment'][
      'correlations'].keys() == {'opinion'}
  first, second = files
  for arguments, words in (
      (['--scorer=opinion', '--lexicon', *lists, *files], 'required: FILE.csv'),
      ([first, '--scorer=opinion', '--lexicon', tmp_path, second], 'a lexicon of two files'),
      ([first, '--scorer=vader', '--lexicon', tmp_path, second], 'it belongs to --scorer=opinion')):
    refused([*base, *arguments], words)


def test_sentences_for_step_2_that_were_cut_are_counted():
  vocabulary = WordVocabulary(b'<pad>\n<eos>\n<unk>\ngood\n')
  lines = []
  label_sentences([LONG, 'good', LONG + 'good', 'sad'], load_scorer(BERT), vocabulary,
                  SentimentConfig(), seed=0, log=lines.append)
  assert lines[-1].endswith('read only the beginning of 2 long ones')


@pytest.mark.parametrize(('overrides', 'words'), [
  ({'measure.scorers': f'("{BERT}","{BERT}/")'}, 'is named twice'),
  ({'sentiment.scorer': 'bert:none'}, 'none is no directory'),
  ({'measure.scorers': '("opinion","vader","google")'}, 'set FAIRJAX_GOOGLE_API_KEY'),
])
def test_a_run_whose_scorer_is_wrong_stops_before_it_trains(
    tmp_path, in_repository, monkeypatch, refused, overrides, words):
  monkeypatch.delenv('FAIRJAX_GOOGLE_API_KEY', raising=False)
  monkeypatch.setenv('GOOGLE_APPLICATION_CREDENTIALS', str(tmp_path / 'none.json'))
  monkeypatch.setattr(Job, 'curriculum', lambda *_: pytest.fail('it trains'))
  refused(['run', '--config=configs/quickstart.py', f'--workdir={tmp_path / "run"}',
           '--config.measure.encoder=',
           *(f'--config.{field}={value}' for field, value in overrides.items())], words)


CANARY = 'AIzaCanary0123456789abcdefghijklmnopqrs'


@pytest.fixture
def answers(tmp_path):
  path = tmp_path / 'mine' / 'answers.jsonl'
  path.parent.mkdir()
  return write_lines(path, records_of(
    load_attribute('country'), 1, lambda p, i: f' is answer {p.value % 4} of {p.template}.', 3,
    scores=lambda p, i: {'human': (p.value % 3) / 2}))


def test_quota_key_and_resumption_on_the_command_line(tmp_path, answers, repository):
  secure, certificate = google_server.self_signed(tmp_path)
  environment = os.environ | {
    'FAIRJAX_GOOGLE_API_KEY': CANARY, 'NO_GCE_CHECK': 'true', 'no_proxy': '127.0.0.1',
    'GRPC_DEFAULT_SSL_ROOTS_FILE_PATH': str(certificate)}
  shown = ''

  def measure(*more):
    nonlocal shown
    done = subprocess.run(
      [sys.executable, '-m', 'fairjax', 'measure', f'--records={answers}', '--attribute=country',
       '--scorer=google', '--scorer=vader', '--scorer=recorded:human',
       f'--google-endpoint=127.0.0.1:{server.port}', '--google-rate=6000', '--permutations=5',
       *more], cwd=repository, env=environment, capture_output=True, text=True)
    shown += done.stdout + done.stderr
    return done.returncode, done.stdout, done.stderr

  with google_server.running(secure=secure) as server:
    texts = sorted({json.loads(line)['continuation'] for line in answers.read_text().splitlines()})
    for text in texts[6:]:
      server.script[text] = [grpc.StatusCode.UNAVAILABLE,
                             google_server.quota_status('RequestsPerDayPerProject')]
    code, output, error = measure()
    assert code == 2 and output == ''
    error = error.splitlines()[-1]
    assert 'quota used up' in error and '6 of 12 different texts are scored' in error
    kept = answers.parent / 'answers.google-scores.jsonl'
    assert len(kept.read_text().splitlines()) == 7
    server.script.clear()
    code, output, error = measure('--json')
    assert code == 0, error
    assert '6 kept from earlier, 6 scored now in 6 requests' in error
    assert sorted(server.answered) == texts  # nothing paid twice
    found = json.loads(output)
    assert set(found['scorers']) == {'google', 'vader', 'recorded:human'}
    assert len(found['scorer_agreement']) == 3
    server.always = (grpc.StatusCode.INVALID_ARGUMENT, f'API key {CANARY} not valid')
    kept.unlink()
    code, output, error = measure('--debug')
    assert code == 1 and 'API key *** not valid' in error and 'Traceback' in error
    assert server.keys == {CANARY}  # the key did travel
  files = [p for p in tmp_path.rglob('*') if p.is_file()]
  assert len(files) >= 2
  assert CANARY not in shown and not any(CANARY.encode() in p.read_bytes() for p in files)


def test_the_scorers_of_a_run(tmp_path, in_repository, monkeypatch):
  monkeypatch.setenv('FAIRJAX_GOOGLE_API_KEY', CANARY)
  config = load_config('configs/quickstart.py', {
    'measure.scorers': '("opinion","vader","google")', 'sentiment.scorer': 'google',
    'measure.google_requests_per_minute': '120'})
  google = load_run_scorer('google', config, tmp_path, print)
  assert google.cache == tmp_path / 'scores' / 'google.jsonl'
  assert google._interval == 0.5
  opinion = load_run_scorer('opinion', config, tmp_path, print)
  assert opinion.score([POSITIVE[0], NEGATIVE[0]]).tolist() == [1, 0]  # the grammar's own words
  for name, word in (('positive', 'splendid'), ('negative', 'poor')):
    (tmp_path / f'{name}-words.txt').write_text(word)
  config = load_config('configs/quickstart.py', {'measure.lexicon': f'("{tmp_path}",)'})
  assert load_run_scorer('opinion', config, tmp_path / 'run', print).lexicon == {
    'splendid': 1, 'poor': -1}
  for overrides, words in (
      ({'measure.scorers': '("vader","vader")'}, 'names a scorer twice'),
      ({'measure.scorers': '("vader","recorded")'}, "'recorded' is not one of opinion, vader"),
      ({'measure.google_requests_per_minute': '0'}, 'google_requests_per_minute=0')):
    with pytest.raises(UserError, match=words):
      load_config('configs/quickstart.py', overrides)
