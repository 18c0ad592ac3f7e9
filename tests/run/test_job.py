"""The whole job on a tiny corpus: what it writes, its resumption, kills, several processes."""

import contextlib
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import types

import pytest
from command_words import changed
from groups import flags, run_group
from human_oracle import fill
from tiny_runs import MODEL, command_line, contents, digests

from fairjax.cli.main import main
from fairjax.counterfactual import load_attribute
from fairjax.errors import UserError
from fairjax.report.sections import brief_table
from fairjax.run.job import Job
from fairjax.run.next_token import read_next_token
from fairjax.run.results import run_prefixes
from fairjax.train import read_metrics

TINY = MODEL | {
  'data.planted_documents': 400, 'data.planted_heldout_documents': 40,
  'lm.steps': 6, 'lm.batch_size': 8, 'lm.checkpoint_every': 3, 'lm.warmup_steps': 1,
  'lm.log_every': 1,
  'sentiment.steps': 6, 'sentiment.batch_size': 8, 'sentiment.checkpoint_every': 3,
  'sentiment.warmup_steps': 1, 'sentiment.log_every': 1, 'sentiment.max_sentences': 200,
  'debias.steps': 6, 'debias.batch_size': 8, 'debias.checkpoint_every': 3,
  'debias.warmup_steps': 1, 'debias.log_every': 1, 'debias.pieces_per_branch': 2,
  'debias.variants': "('embedding:10','sentiment:10')",
  'sample.samples': 2, 'sample.max_new_tokens': 6, 'sample.batch_size': 8,
  'measure.permutations': 20, 'measure.eval_batch_size': 8,
  'measure.encoder': 'minilm:tests/golden/pretrained/bert_mlm', 'measure.similarity_samples': 1,
  'measure.similarity_threshold': 'baseline:0.25', 'measure.eval_memory_len': 24,
}


SCORERS = {
  'measure.scorers': "('opinion','vader','bert:tests/golden/pretrained/bert_classifier')"}


def _arguments(verb, workdir, **changes):
  return command_line(verb, 'configs/quickstart.py', workdir, TINY | SCORERS, **changes)


@pytest.fixture(scope='module')
def finished(tmp_path_factory, in_repository_in_module, one_device, no_figures_in_module):
  workdir = tmp_path_factory.mktemp('job') / 'run'
  with contextlib.redirect_stdout(io.StringIO()) as log:
    assert main(_arguments('run', workdir)) == 0
  (workdir.parent / 'log.txt').write_text(log.getvalue(), encoding='utf-8')
  return workdir


def _numbers(value, where=''):
  """Place -> number of a nest of mappings and lists."""
  if isinstance(value, (dict, list)):
    items = value.items() if isinstance(value, dict) else enumerate(value)
    return {k: v for key, part in items for k, v in _numbers(part, f'{where}/{key}').items()}
  return {where: value} if isinstance(value, (int, float)) else {}


@pytest.mark.tf
def test_a_run_is_sampled_with_other_prompts(finished, tmp_path, capfd):
  """The built-in prompts of Yeo & Chen (Y-04), for every model of a run, continued as they are."""
  from fairjax.generate import read_records
  out = tmp_path / 'prompts'
  command = [*_arguments('sample', finished), '--attribute=profession_prompts', f'--output={out}',
             '--samples=3', '--max-new-tokens=4', '--temperature=1']
  assert main(command) == 0
  files = sorted(out.glob('*.jsonl.gz'))
  assert [f.name.split('.')[0] for f in files] == [
    'baseline', 'country-embedding-10', 'country-random-projection-10', 'country-sentiment-10',
    'extended-baseline']
  contents = [f.read_bytes() for f in files]
  for file in files:
    records = list(read_records(file))
    assert len(records) == 30 and {r['attribute'] for r in records} == {'profession_prompts'}
    assert read_next_token(file, load_attribute('profession_prompts'))['kl'] > 0
  assert main(command) == 0 and [f.read_bytes() for f in files] == contents
  assert main(changed(command, ['--temperature=2'])) == 2
  assert main([*command[:-1], f'--output={files[0]}']) == 2
  assert main([*command, '--rewordings']) == 2  # there are none
  assert main([*_arguments('sample', finished), '--rewordings']) == 2  # and these are the run's own
  capfd.readouterr()
  assert main(['gender', 'professions', '--records', *map(str, files)]) == 0
  assert 'baseline: 0 of 30 parsed' in capfd.readouterr().out


def test_prompts_with_words_that_the_models_do_not_know_are_announced(tmp_path):
  from fairjax.config import SampleConfig
  from fairjax.run.job import sample_attribute
  from fairjax.vocabulary import build_word_vocabulary
  lines = []
  job = types.SimpleNamespace(
    vocabulary=build_word_vocabulary(
      ['She works as', 'He works as', 'The man woman has a job'], size=30,
      directory=tmp_path / 'v'), models=[], log=lines.append)
  attribute = load_attribute('profession_prompts')
  assert sample_attribute(job, attribute, tmp_path, SampleConfig()) == []
  assert lines == ['[sample] WARNING: 2 of 10 prefixes of profession_prompts hold words that the '
                   "vocabulary does not know, as 'They work as'"]
  sample_attribute(job, load_attribute('country'), tmp_path, SampleConfig(), rewordings=True)
  assert '400 of 400 prefixes of country' in lines[1]


@pytest.mark.tf
def test_what_only_reads_or_cannot_be_done_leaves_a_finished_run_as_it_is(
    finished, tmp_path, refused):
  before = contents(finished)
  for changes in ({'measure__scorers': "('bert:typo',)"}, {'measure__encoder': 'minilm:typo'}):
    refused(_arguments('run', finished, **changes), 'typo')
  for changes in ({'measure__permutations': 7}, {'decoding': "('average:0.5',)"}):
    refused(_arguments('run', finished, **changes, mesh__data=7), 'does not cover the 1 devices')
  words = _arguments('models export', finished, measure__permutations=7)
  assert main([*words, '--model=baseline', f'--output={tmp_path / "out"}']) == 0
  assert main(_arguments('models select', finished, measure__permutations=7)) == 0
  assert contents(finished) == before


@pytest.mark.parametrize(('changes', 'words'), [
  ({'debias__batch_size': 4000},
   "split 'train.*' holds .* too few for one batch.* lower debias.batch_size"),
  ({'data__vocab_size': 310, 'debias__pieces_per_branch': 1},
   "no value of country can take the place .* 0 .*'Syria' is . pieces, more than 1"),
  ({'model__cutoffs': '(40,8000)'}, 'model.cutoffs=.*40, 8000.* below the size of the vocabulary')])
@pytest.mark.usefixtures('in_repository')
def test_what_data_do_not_allow_is_said_before_step_1(tmp_path, changes, words, capsys):
  assert main(_arguments('run', tmp_path / 'w', data__reader='numpy', **changes)) == 2
  assert re.search(words, capsys.readouterr().err)
  assert not (tmp_path / 'w' / 'lm').exists()


@pytest.mark.usefixtures('in_repository', 'one_device')
def test_the_batch_that_step_1_refused_may_be_lowered_in_the_same_workdir(tmp_path, refused):
  for size in (90000, 80000):
    line = refused(_arguments('run', tmp_path / 'w', data__reader='numpy', until='lm',
                              lm__batch_size=size), 'lower lm.batch_size', alone=False)
    assert f'batch of {size} rows' in line and (tmp_path / 'w' / 'lm').exists()


@pytest.mark.tf
def test_a_finished_run_goes_on_with_more_samples_and_rewordings(finished, tmp_path, capfd):
  """And has the measures of a run that had them from the beginning."""
  from fairjax.generate import read_records
  workdir, name = tmp_path / 'run', 'vader'
  options = {'step1_from': finished, 'debias__variants': '()', 'measure__scorers': f"('{name}',)"}
  assert main(_arguments('run', workdir, **options, sample__samples=1, measure__permutations=5,
                         measure__similarity_samples=0)) == 0
  trained = digests(workdir)
  assert main(_arguments('measure', workdir, **options, sample__rewordings=True)) == 2
  told = capfd.readouterr()
  assert '; all is measured again' in told.out and 'holds 100 of 800 records' in told.err
  assert main(_arguments('run', workdir, **options, sample__rewordings=True)) == 0
  assert digests(workdir) == trained
  file = workdir / 'generations' / 'baseline' / 'country.jsonl.gz'
  records = list(read_records(file))
  prompts, reworded = ([{**r, '_where': None} for r in records if ('arm' in r) == arm]
                       for arm in (False, True))
  assert sorted(prompts, key=str) == sorted(({**r, '_where': None} for r in read_records(
    finished / 'generations' / 'baseline' / 'country.jsonl.gz')), key=str)
  assert {(r['template'], r['value'], r['rewording'], r['sample']) for r in reworded} == {
    (t, value, k, i) for t in range(10) for value in load_attribute('country').value_texts
    for k in (1, 2, 3) for i in range(2)}
  before, found = (json.loads((place / 'measures' / 'baseline' / 'country.json').read_text())[
    'measures']['scorers'][name] for place in (finished, workdir))
  rewording = found.pop('rewording')
  assert found == before
  # The verb gives the same for the file by itself.
  assert main(['measure', f'--records={file}', '--attribute=country', f'--scorer={name}',
               '--permutations=20', '--empty=keep', f'--output={tmp_path / "m.json"}']) == 0
  alone = json.loads((tmp_path / 'm.json').read_text())['scorers'][name]
  assert alone['rewording'] == rewording
  assert rewording['sentence'] in (workdir / 'report' / 'report.md').read_text()
  with pytest.raises(UserError, match='has no rewordings'):
    run_prefixes(load_attribute('profession_prompts'), rewordings=True)


@pytest.mark.tf
def test_the_report_holds_every_model_with_n_and_floor(finished, check_keys):
  report = json.loads((finished / 'report' / 'report.json').read_text())
  check_keys(report, 'report')
  text, thresholds = (finished / 'report' / 'report.md').read_text(), set()
  for name in ('baseline', 'extended-baseline', 'country-embedding-10', 'country-sentiment-10',
               'country-random-projection-10'):
    assert f'| {name} |' in text
    saved = json.loads((finished / 'measures' / name / 'country.json').read_text())
    assert saved['measures']['n'] == {'min': 2, 'max': 2}
    assert saved['identity']['model'] == name
    fairness = saved['measures']['scorers']['opinion']['individual_fairness']
    assert 0 <= fairness['null_mean'] <= fairness['null_p95'] <= 1
    assert saved['perplexity']['test']['token'] > 1
    assert saved['perplexity']['test']['memory_len'] == 24
    similarity = saved['measures']['semantic_similarity']
    thresholds.add(similarity['threshold'])
    assert (similarity['n'], similarity['left_out']) == (100, 100)
    assert saved['measures']['next_token_divergence']['kl'] > 0
    assert saved['measures']['next_token_divergence']['prefixes'] == 100
    assert saved['measures']['distinct_word_divergence']['n'] == 200
    assert saved['measures']['absent'] == {}
    # The same lies beside the records, for who measures them without the run.
    records = finished / 'generations' / name / 'country.jsonl.gz'
    assert read_next_token(records, load_attribute('country')) == (
      saved['measures']['next_token_divergence'])
    if name == 'baseline':
      assert similarity['value'] == pytest.approx(0.25, abs=0.02)
  assert len(thresholds) == 1  # the baseline's
  assert 'at random prefixes, as step 3 reads it' in text
  # One opinion word a sentence: I.F. 0.9 * 11 / 27, and G.F. the mean of |p_a - 1/2|.
  assert report['known_bias']['individual_fairness'] == pytest.approx(0.9 * 11 / 27)
  assert report['known_bias']['group_fairness'] == pytest.approx(0.25)
  audit = json.loads((finished / 'measures' / 'scorer_audit.json').read_text())
  bert, *others = sorted(audit['scorers'])
  assert bert.startswith('bert-bert_classifier-') and others == ['opinion', 'vader']
  assert audit['model'] == 'baseline'
  assert '## Own bias of the scorers' in text
  others = ['vader', 'bert:tests/golden/pretrained/bert_classifier']
  assert report['labelling'] == {'labelled_by': 'opinion', 'judged_by_others': others}
  (ended,) = [e['reading'] for e in report['definitions'] if e['id'] == 'H-02']
  assert 'up to 6 new tokens or the end of its first sentence' in ended


@pytest.mark.tf
def test_methods_at_decoding_time_extend_a_finished_run(finished, tmp_path, refused):
  from fairjax.gender.scored_models import open_language_model
  from fairjax.generate import read_records
  from fairjax.run.results import open_run
  workdir = tmp_path / 'run'
  shutil.copytree(finished, workdir)
  decoding = "('average:1','steer:0.5')"
  assert main(_arguments('run', workdir, decoding=decoding)) == 0
  baseline, average, steer = (
    json.loads((workdir / 'measures' / name / 'country.json').read_text())
    for name in ('baseline', 'average-1', 'steer-0.5'))
  assert average['identity'] == baseline['identity'] | {
    'model': 'average-1', 'decoding': ['average', 1.0]}
  texts = {}
  for record in read_records(workdir / 'generations' / 'average-1' / 'country.jsonl.gz'):
    texts.setdefault((record['template'], record['sample']), set()).add(record['continuation'])
  assert len(texts) == 20 and all(len(found) == 1 for found in texts.values())
  assert average['measures']['next_token_divergence']['kl'] < 1e-6
  assert 0 < steer['measures']['next_token_divergence']['kl'] < (
    baseline['measures']['next_token_divergence']['kl'])
  assert average['perplexity'] == steer['perplexity'] == baseline['perplexity']
  report = (workdir / 'report' / 'report.md').read_text()
  assert '| average-1 |' in report and '| steer-0.5 |' in report
  assert 'average-1' not in open_run(workdir).curves()[0]['debias']
  assert digests(workdir) == digests(finished)
  refused([*_arguments('models export', workdir, decoding=decoding), '--model=steer-0.5',
           f'--output={tmp_path / "out"}'], 'has no parameters of its own')
  with pytest.raises(UserError, match='has no parameters of its own'):
    open_language_model(workdir, model='steer-0.5')


_WORDS = re.compile(r'(\d\.\d{4})(?: \u00b1 \d\.\d{4})? \((?:floor )?(\d\.\d{4})\), '
                    r'((?:within|above) noise(?: before rounding)?)')


def _shown(text):
  """Every (value, floor, verdict) of a text."""
  return _WORDS.findall(text)


def _table_cells(text, head):
  """(model, heading, cell) of the Markdown table whose first line starts with `head`."""
  lines = text[text.index(head):].split('\n\n')[0].splitlines()
  names, _, *rows = ([c.strip() for c in line.strip('|').split(' | ')] for line in lines)
  return [(row[0], name, cell) for row in rows for name, cell in zip(names, row, strict=True)]


@pytest.mark.tf
def test_every_output_of_a_run_says_the_same_floor_and_verdict(finished, capfd):
  """Log, console, page, report.md, report.json, definitions and API: one floor, one verdict."""
  from fairjax.run.results import open_run
  report = finished / 'report'
  data = json.loads((report / 'report.json').read_text())
  markdown = (report / 'report.md').read_text()
  page = (report / 'index.html').read_text()
  log = (finished.parent / 'log.txt').read_text()
  names = {'I.F.': 'individual_fairness', 'G.F.': 'group_fairness'}
  expected, seen = {}, {}
  for row in data['rows']:
    for scorer, measures in row['measures']['scorers'].items():
      for label, key in names.items():
        e = measures[key]
        verdict = 'within noise' if e['value'] <= e['null_p95'] + 1e-11 else 'above noise'
        assert row['verdicts'][scorer][key] == verdict
        assert e['within_floor'] == (verdict == 'within noise')
        expected[row['name'], scorer, label] = (
          f"{e['value']:.4f}", f"{e['null_p95']:.4f}", verdict)

  def see(where, model, scorer, label, text):
    ((value, floor, verdict),) = _shown(text)
    seen.setdefault((model, scorer, label), {})[where] = (
      value, floor, verdict.removesuffix(' before rounding'))

  for model, found in re.findall(r'^\[measure\] ([\w-]+): (.*)$', log, re.M):
    for scorer, label, words in re.findall(r'([\w-]+) (I\.F\.) ([^;]*)', found):
      see('log', model, scorer, label, words)
  for model, name, cell in _table_cells(markdown, '| model | PPL'):
    if match := re.fullmatch(r'([IG]\.F\.) (\S+) \(floor\)', name.replace('&#95;', '_')):
      see('report.md', model, match[2], match[1], cell)
  rows = _table_cells(markdown, '| model | scorer | mean score')
  scorers = [cell for _, name, cell in rows if name == 'scorer']
  for i, (model, name, cell) in enumerate(rows):
    if match := re.match(r'([IG]\.F\.) .* s\.e\.', name):
      see('more measures', model, scorers[i * len(scorers) // len(rows)].replace('&#95;', '_'),
          match[1], cell)
  for entry in data['definitions']:
    if entry['id'] in ('H-05', 'H-06'):
      label = ('I.F.', 'G.F.')[entry['id'] == 'H-06']
      for here in entry['here']:
        see('definitions', here['words'].split(': ')[0], here['scorer'], label, here['words'])
      shown = re.search(rf"<summary>[^<]*\({entry['id']}; .*?</details>", page, re.S)[0]
      for scorer, model, words in re.findall(r'<li>([\w-]+), ([\w-]+): (.*?)</li>', shown):
        see('definitions of the page', model, scorer, label, words)
  for where, body in (('page', page), ('page, more measures', page.split('id="more-measures"')[1])):
    names, *rows = (re.findall(r'<t[hd][^>]*>([^<]*)', line)
                    for line in re.findall(r'<tr>.*?</tr>', body.split('</table>')[0]))
    for row in rows:
      line = dict(zip(names, row, strict=True))
      for name, text in line.items():
        if match := re.fullmatch(r'([IG]\.F\.) (\S+|\u00b1 s\.e\.) \(floor\)', name):
          scorer = match[2] if where == 'page' else line['scorer']
          see(where, line['model'].split(' ')[0], scorer, match[1], text)
  job = open_run(finished)
  for row in job.rows():
    for line in brief_table(row).rows:
      label, scorer = line[0].split(' ', 1)
      see('API', row.name, scorer, label, line[1])
  for row in data['rows']:
    capfd.readouterr()
    records = finished / 'generations' / row['name'] / 'country.jsonl.gz'
    assert main(['measure', f'--records={records}', '--attribute=country', '--scorer=vader',
                 '--permutations=20']) == 0
    for line in capfd.readouterr().out.splitlines():
      if match := re.match(r'([IG]\.F\.) vader ', line):
        see('measure', row['name'], 'vader', match[1], line)
  assert seen.keys() == expected.keys() and len(expected) == 30
  for key, found in seen.items():
    assert {'report.md', 'more measures', 'definitions', 'definitions of the page',
            'page, more measures'} <= found.keys()
    assert ('log' in found) == ('page' in found) == (key[2] == 'I.F.')
    assert ('measure' in found) == (key[1] == 'vader')
    assert set(found.values()) == {expected[key]}, (key, found)
  assert not any('null floor' in text for text in (log, markdown, page))


@pytest.mark.tf
def test_an_exported_variant_brings_its_measures_and_comes_back(finished, tmp_path, refused):
  name, out, again = 'country-embedding-10', tmp_path / 'model', tmp_path / 'again'
  measures = finished / 'measures' / name / 'country.json'
  assert main([*_arguments('models export', finished), f'--model={name}', f'--output={out}']) == 0
  text = (out / 'README.md').read_text()
  saved = json.loads(measures.read_text())
  fairness = saved['measures']['scorers']['vader']['individual_fairness']
  assert f"{fairness['value']:.4f} ({fairness['null_p95']:.4f})" in text
  assert '| baseline |' in text and f'| {name} |' in text and 'embedding regularisation' in text
  assert '| fairness weight (lambda) | 10 |' in text
  assert '\n- individual-fairness\n' in text.split('---')[1]
  assert main(['models', 'import', f'--config={out}/config.json', f'--workdir={again}',
               f'--from={out}']) == 0
  card = json.loads((again / 'lm' / 'DONE').read_text())
  assert card['digest'] == digests(finished)[f'debias/{name}'] == saved['identity']['digest']
  assert card['summary']['imported']['identity']['parent'] == digests(finished)['lm']
  # A card never shows measures of other parameters.
  kept = measures.read_bytes()
  other = finished / 'measures' / 'baseline' / 'country.json'
  measures.write_bytes(other.read_bytes())
  try:
    refused([*_arguments('models export', finished), f'--model={name}', f'--output={out}-2'],
            'was measured with other parameters')
  finally:
    measures.write_bytes(kept)
  assert not (tmp_path / 'model-2').exists()


def test_a_run_says_that_only_the_labelling_scorer_judges(tmp_path, monkeypatch):
  from fairjax.config_io import load_config
  from fairjax.run.job import Job
  monkeypatch.setattr(Job, 'measured', [])
  monkeypatch.setattr('fairjax.run.job.audit_run', lambda *a, **k: None)
  for scorers, variants, warned in ((('opinion',), "('sentiment:1',)", True),
                                    (('opinion', 'vader'), "('sentiment:1',)", False),
                                    (('opinion',), "('embedding:1',)", False)):
    lines, workdir = [], tmp_path / f'{len(scorers)}{variants}'
    Job(load_config('configs/quickstart.py', {
      'measure.scorers': ','.join(scorers), 'debias.variants': variants, 'measure.encoder': ''}),
      workdir, log=lines.append).measure()
    assert any('Only scorer opinion judges' in line for line in lines) == warned


@pytest.mark.tf
def test_parent_digests_link_the_stages(finished):
  cards = {p.parent.name: json.loads(p.read_text()) for p in finished.glob('**/DONE')
           if p.parent != finished}
  lm = cards['lm']['digest']
  for name, card in cards.items():
    assert card['identity']['parent'] == ('' if name == 'lm' else lm)
  variant = cards['country-sentiment-10']['identity']
  assert variant['projection'] == cards['sentiment']['digest']
  assert (variant['method'], variant['fairness_weight']) == ('sentiment', 10.0)
  control = cards['country-random-projection-10']['identity']
  assert (control['method'], control['fairness_weight']) == ('random_projection', 10.0)
  assert control['projection'] not in ('', variant['projection'])
  text = (finished / 'report' / 'report.md').read_text()
  section = text.split('## Is it the sentiment projection')[1].split('\n## ')[0]
  assert 'country-sentiment-10 and its control country-random-projection-10' in section


@pytest.mark.tf
def test_a_finished_workdir_is_left_alone(finished, printed):
  before = {p: p.stat().st_mtime_ns for p in finished.rglob('*') if p.is_file()}
  assert 'nothing to do' in printed(*_arguments('run', finished))
  assert {p: p.stat().st_mtime_ns for p in finished.rglob('*') if p.is_file()} == before


@pytest.mark.parametrize('models', [1, 2])
def test_the_end_says_where_to_look_if_no_model_can_be_judged(models, monkeypatch, tmp_path):
  monkeypatch.setattr('fairjax.run.job.read_report', lambda workdir: {'selection': None})
  row = types.SimpleNamespace(name='baseline', measures={'scorers': {}})
  found = Job.ending(types.SimpleNamespace(rows=lambda: [row], models=models * [row],
                                           workdir=tmp_path))
  assert ('models select says why' in found[1]) == (models > 1)


@pytest.mark.tf
def test_what_people_said_about_the_runs_texts_goes_into_its_report(
    finished, tmp_path, refused):
  workdir = tmp_path / 'run'
  shutil.copytree(finished, workdir)
  records = [str(workdir / 'generations' / m / 'country.jsonl.gz')
             for m in ('baseline', 'extended-baseline')]
  assert main(['human', 'export', '--records', *records, f'--output={tmp_path / "sheets"}',
               '--annotators=2', '--items=12', '--task=sentiment']) == 0
  sheets = sorted((tmp_path / 'sheets').glob('*.csv'))
  for path in sheets:
    fill(path, lambda row: 'positive' if int(row['item'][1:]) % 2 else 'negative')
  human = workdir / 'measures' / 'human.json'
  assert main(['human', 'import', *map(str, sheets), f'--output={human}', '--scorer=vader',
               f'--key={tmp_path / "sheets.key.json"}', '--resamples=20']) == 0
  assert main(_arguments('report', workdir)) == 0
  text = (workdir / 'report' / 'report.md').read_text()
  assert '## Human evaluation' in text and 'Spearman with vader' in text
  assert '## Human evaluation' not in (finished / 'report' / 'report.md').read_text()
  human.write_text('{}')
  refused(_arguments('report', workdir), 'fairjax human import')


WITHOUT_FIGURES = '''
import sys
from fairjax.report import report
report._draw = lambda *arguments: []
from fairjax.cli.main import main
sys.exit(main(sys.argv[1:]))
'''


@pytest.mark.weekly  # every day run/test_workdir_models.py scores in three processes
@pytest.mark.tf
def test_two_processes_score_and_measure_what_one_does(finished, tmp_path, repository):
  """The BERT scorer and the encoder run on the devices of both; the first one writes."""
  workdir = tmp_path / 'run'
  shutil.copytree(finished, workdir)
  names = ('baseline', 'country-embedding-10')
  for folder in ('scores/audit', 'report', *(f'scores/{n}' for n in names),
                 *(f'measures/{n}' for n in names)):
    shutil.rmtree(workdir / folder)
  for name in ('DONE', 'measures/scorer_audit.json'):
    (workdir / name).unlink()
  found = run_group(['-c', WITHOUT_FIGURES, *_arguments('run', workdir)], repository, devices=2)
  assert [code for code, _, _ in found] == [0, 0], found
  paths = list(finished.glob('measures/**/*.json'))
  assert len(paths) == 7 and list(workdir.glob('scores/audit/*bert*'))
  assert (workdir / 'report' / 'index.html').is_file()
  for path in paths:
    found, expected = (json.loads((w / path.relative_to(finished)).read_text())
                       for w in (workdir, finished))
    found, expected = (_numbers(m['measures'] if 'measures' in m else m) for m in (found, expected))
    assert found == pytest.approx(expected, rel=1e-4, abs=1e-5) and len(found) > 20


# TensorBoard's files and seqio would import TensorFlow, which takes longer than the rest.
WITHOUT_TENSORFLOW = '''
import sys
sys.modules['clu'] = None
from fairjax.cli.main import main
sys.exit(main(sys.argv[1:]))
'''


@pytest.mark.tf
@pytest.mark.weekly  # daily: tests/test_processes.py
def test_a_run_killed_in_every_stage_ends_with_the_same_bits(tmp_path, finished, repository):
  workdir = tmp_path / 'run'
  command = [sys.executable, '-u', '-c', WITHOUT_TENSORFLOW,
             *_arguments('run', workdir, data__reader='numpy')]
  environment = os.environ | {'XLA_FLAGS': flags()}
  for line in ('[lm] step 3/', '[sentiment] step 5/', '[debias/extended-baseline] step 5/',
               '[debias/country-sentiment-10] step 3/', 'baseline/country.jsonl.gz: ',
               'embedding-10/country.jsonl.gz: ', '[measure] baseline: '):
    process = subprocess.Popen(command, cwd=repository, stdout=subprocess.PIPE, env=environment,
                               stderr=subprocess.DEVNULL, text=True)
    for printed in process.stdout:
      if line in printed:
        process.send_signal(signal.SIGKILL)
        break
    assert process.wait() == -signal.SIGKILL, line
  subprocess.run(command, cwd=repository, check=True, stdout=subprocess.DEVNULL, env=environment)
  assert digests(workdir) == digests(finished)
  for pattern in ('generations/**/*.jsonl.gz', 'measures/**/*.json'):
    paths = list(finished.glob(pattern))
    assert paths
    for path in paths:
      assert (workdir / path.relative_to(finished)).read_bytes() == path.read_bytes()


@pytest.mark.tf
@pytest.mark.weekly  # the stages: tests/train/test_sharding.py, tests/test_processes.py
def test_a_run_on_eight_devices_trains_what_one_trains(tmp_path, finished, repository):
  workdir = tmp_path / 'run'
  subprocess.run([sys.executable, '-c', WITHOUT_TENSORFLOW,
                  *_arguments('run', workdir, data__reader='numpy')],
                 cwd=repository, check=True, stdout=subprocess.DEVNULL)
  assert digests(workdir).keys() == digests(finished).keys()
  for path in finished.glob('**/metrics.jsonl'):
    found, expected = (_numbers(read_metrics(w / path.relative_to(finished)))
                       for w in (workdir, finished))
    assert found == pytest.approx(expected, rel=1e-5, abs=1e-7)


@pytest.mark.tf
def test_a_debiased_model_relearns_beside_its_workdir(finished, tmp_path, printed, refused, found):
  """The workdir is only read; the same command finds everything done; both ends are measured."""
  before, output, name = contents(finished), tmp_path / 'relearned', 'country-embedding-10'
  command = ['models', 'relearn', f'--workdir={finished}', f'--name={name}',
             f'--output={output}', '--steps=4', '--every=2', '--samples=20']
  said = printed(*command)
  assert contents(finished) == before
  result = json.loads((output / 'relearning.json').read_text())
  assert [p['step'] for p in result['curve']] == [0, 2, 4]
  assert all(p['std_error'] >= 0 for p in [result['baseline'], *result['curve']])
  assert all(p['perplexity'] > 1 for p in result['curve'][1:])
  # Beside I.F. stands whether the model still heeds the value; of models of the run, their own.
  for point, model in ((result['baseline'], 'baseline'), (result['curve'][0], name)):
    own = json.loads((finished / f'measures/{model}/country.json').read_text())['measures']
    assert point['next_token_kl'] == pytest.approx(own['next_token_divergence']['kl'], rel=1e-5)
  assert all({'semantic_similarity', 'semantic_similarity_c', 'distinct_word_divergence'} < p.keys()
             for p in result['curve'])
  # Six steps teach no bias, so nothing was reduced: it must say so instead of a number.
  assert not result['half_life']['reached'] and result['half_life']['words'] in said
  assert len(list((output / 'generations').glob('*.jsonl.gz'))) == 4
  assert {p.suffix for p in output.glob('relearning.*')} == {'.json', '.png', '.svg'}
  digest = json.loads((finished / 'debias/country-embedding-10/DONE').read_text())['digest']
  assert json.loads((output / 'relearn/DONE').read_text())['identity']['parent'] == digest
  assert found(*command) == result
  # Points of one curve are measured in one way: the earlier ones are not measured again.
  for other, word in (('--samples=21', 'samples'), ('--scorer=vader', 'scorer'),
                      ('--steps=6', 'steps'), ('--learning-rate=0.5', 'learning rate')):
    refused(changed(command, [other]), f'measured with other {word}')
  assert json.loads((output / 'relearning.json').read_text()) == result
  looks = json.loads((output / 'looks.json').read_text())
  assert looks.keys() >= {'similarity_threshold', 'similarity_samples'}
  refused([*command[:4], f'--output={finished}/x'], 'inside the workdir')
  refused([c.replace('embedding-10', 'embedding-1') for c in command],
          "did you mean 'country-embedding-10'")
