"""One baseline for several attributes, and scorers that come later: nothing is done twice."""

import hashlib
import itertools
import json
import pathlib
import shutil

import pytest
from tiny_runs import MODEL, command_line

from fairjax.cli.main import main
from fairjax.counterfactual import load_attribute
from fairjax.data.planted import make_planted_documents
from fairjax.run import relearning
from fairjax.run.relearning import Relearning
from fairjax.run.results import open_run

TINY = MODEL | {
  'lm.steps': 4, 'lm.batch_size': 8, 'lm.warmup_steps': 1,
  'sentiment.steps': 4, 'sentiment.batch_size': 8, 'sentiment.warmup_steps': 1,
  'sentiment.max_sentences': 100, 'sentiment.margin': 0.2,
  'debias.steps': 4, 'debias.batch_size': 8,
  'debias.warmup_steps': 1, 'debias.random_projection': False, 'measure.scorers': 'vader',
  'debias.variants': "('embedding:10','sentiment:10')",
  'sample.samples': 2, 'sample.max_new_tokens': 4, 'sample.batch_size': 8,
  'measure.permutations': 20, 'measure.eval_batch_size': 8, 'data.reader': 'numpy',
}
BERT = 'bert:tests/golden/pretrained/bert_classifier'


pytestmark = pytest.mark.usefixtures('no_figures_in_module', 'one_device')


@pytest.fixture(scope='module')
def text(tmp_path_factory, in_repository_in_module, one_device):
  """Files of documents about countries and about occupations, and the config that reads them."""
  folder = tmp_path_factory.mktemp('text')
  for stream, (split, number) in enumerate((('train', 150), ('valid', 20), ('test', 20))):
    both = [make_planted_documents(
      load_attribute(name), num_documents=number, seed=0, strength=0.8, sensitive_share=0.6,
      stream=stream) for name in ('country', 'occupation')]
    (folder / f'{split}.txt').write_text(
      ''.join(f'{line}\n' for line in itertools.chain(*zip(*both, strict=True))))
  return 'configs/text.py:' + ','.join(
    f'{split}={folder}/{split}.txt' for split in ('train', 'valid', 'test')) + ',vocab_size=400'


def arguments(verb, text, workdir, **changes):
  return command_line(verb, text, workdir, TINY, **changes)


def contents(workdir):
  """Path -> time and digest of every file, but those of runs of further attributes."""
  return {str(p.relative_to(workdir)): (p.stat().st_mtime_ns,
                                        hashlib.sha256(p.read_bytes()).hexdigest())
          for p in sorted(workdir.rglob('*'))
          if p.is_file() and 'attributes' not in p.relative_to(workdir).parts}


def read(path):
  return json.loads(path.read_text())


def card(folder):
  return read(folder / 'DONE')


@pytest.fixture(scope='module')
def country(text, tmp_path_factory):
  workdir = tmp_path_factory.mktemp('job') / 'run'
  assert main(arguments('run', text, workdir)) == 0
  return workdir


@pytest.fixture(scope='module')
def occupation(text, country):
  """The workdir of the second attribute, and what the first one's held before."""
  before = contents(country)
  assert main(arguments('run', text, country, attribute='occupation')) == 0
  return country / 'attributes' / 'occupation', before


def test_a_second_attribute_takes_all_that_does_not_depend_on_it(country, occupation):
  second, before = occupation
  assert contents(country) == before  # mtimes too
  assert sorted(p.parent.name for p in second.glob('**/DONE') if p.parent != second) == [
    'occupation-embedding-10', 'occupation-sentiment-10']
  assert not (second / 'lm').exists() and not (second / 'sentiment').exists()
  lm, f_sh = card(country / 'lm')['digest'], card(country / 'sentiment')['digest']
  for method in ('embedding', 'sentiment'):
    found = card(second / f'debias/occupation-{method}-10')['identity']
    assert (found['attribute'], found['parent']) == ('occupation', lm)
    assert found['projection'] == (f_sh if method == 'sentiment' else '')
  names = ('baseline', 'extended-baseline', 'occupation-embedding-10', 'occupation-sentiment-10')
  report = read(second / 'report' / 'report.json')
  assert report['attribute'] == 'occupation' and [r['name'] for r in report['rows']] == list(names)
  digests = [read(second / f'measures/{n}/occupation.json')['identity']['digest'] for n in names]
  assert digests[:2] == [lm, card(country / 'debias/extended-baseline')['digest']]
  # models relearn trains beside it, where ../.. is another folder.
  assert relearning._config(open_run(second), Relearning(steps=2, every=1)).step1_from == ''


def test_perplexities_of_the_baseline_are_those_of_one_text(country, occupation):
  """PPL is of the same model and text; PPL_s is of the documents of each attribute."""
  found = [read(w / f'measures/baseline/{a}.json')['perplexity']
           for w, a in ((country, 'country'), (occupation[0], 'occupation'))]
  assert found[0]['test'] == found[1]['test']
  assert found[0]['test_sensitive'] != found[1]['test_sensitive']


def test_going_back_and_forth_finds_everything_done(text, country, occupation, printed, found):
  second, before = occupation
  kept = contents(second)
  for attribute in ('country', 'occupation', 'country'):
    assert 'nothing to do' in printed(*arguments('run', text, country, attribute=attribute))
  assert found(*arguments('models select', text, country, attribute='occupation'),
               '--relevance=next_token_divergence')['scorers']
  assert main(arguments('run', text, second, attribute='occupation')) == 0  # by its own name
  assert contents(country) == before and contents(second) == kept


def test_a_run_elsewhere_takes_step_1_and_the_stores(text, country, tmp_path, refused):
  third = tmp_path / 'third'
  changes = {'step1_from': country, 'debias__variants': "('embedding:3',)"}
  assert main(arguments('step train', text, third, **changes)) == 0
  assert sorted(p.name for p in third.iterdir() if not p.name.startswith('.')) == [
    'config.json', 'debias']
  assert [p.name for p in (third / 'debias').iterdir()] == ['country-embedding-3']
  assert card(third / 'debias/country-embedding-3')['identity']['parent'] == (
    card(country / 'lm')['digest'])
  out = tmp_path / 'out'
  assert main([*arguments('models export', text, third, **changes),
               '--model=country-embedding-3', f'--output={out}']) == 0
  assert json.loads((out / 'config.json').read_text())['config']['step1_from'] == ''  # it has all
  run = open_run(third)
  assert run.metadata(run.find_model('baseline'))['digest'] == card(country / 'lm')['digest']
  for wrong, words in (
      ({'seed': 3}, 'seed: 0 -> 3'), ({'lm__steps': 5}, 'lm.steps: 4 -> 5'),
      ({'step1_from': tmp_path / 'none'}, 'is no workdir of a run')):
    refused(arguments('step train', text, tmp_path / 'x', **(changes | wrong)), words)
    assert not (tmp_path / 'x').exists()


def test_a_run_goes_on_bit_for_bit_where_its_corpus_has_moved(text, country, tmp_path):
  old = pathlib.Path(text.partition('train=')[2].partition('/train.txt')[0])
  shutil.copytree(old, tmp_path / 'text')
  moved = text.replace(str(old), str(tmp_path / 'text'))
  run, name = tmp_path / 'run', 'debias/country-embedding-10'
  shutil.copytree(country, run, ignore=shutil.ignore_patterns('attributes', 'measures'))
  shutil.rmtree(run / name)
  assert main(arguments('step train', moved, run)) == 0
  for file in ('metrics.jsonl', 'DONE'):  # with the identity
    assert (run / name / file).read_bytes() == (country / name / file).read_bytes()
  assert read(run / 'config.json')['config']['data']['train'] == [f'{tmp_path}/text/train.txt']
  # Another run finds its models under the new names.
  changes = {'step1_from': run, 'debias__variants': '()'}
  assert main(arguments('step train', moved, tmp_path / 'third', **changes)) == 0
  assert not (tmp_path / 'third' / 'debias').exists()
  assert main(arguments('step train', text, run)) == 0  # and back


def test_a_finished_run_takes_a_further_scorer_and_measures_only_that(
    text, country, occupation, tmp_path, monkeypatch, printed):
  """Nothing is trained, sampled, or asked again; the measures are those of a run with both."""
  from fairjax.measure.scorers import base as scorers
  from fairjax.run import job as main_job
  run, fresh = tmp_path / 'run', tmp_path / 'fresh'
  shutil.copytree(country, run, ignore=shutil.ignore_patterns('attributes'))
  shutil.copytree(run, fresh)
  for folder in ('scores', 'measures', 'report'):
    shutil.rmtree(fresh / folder)
  (fresh / 'DONE').unlink()
  both = {'measure__scorers': f"('vader','{BERT}')"}
  assert main(arguments('run', text, fresh, **both)) == 0

  before = contents(run)
  def never(*_, **__):
    raise AssertionError('this was done before')
  monkeypatch.setattr(scorers.VaderScorer, 'score', never)
  monkeypatch.setattr(main_job.Job, 'params', never)  # no model is read
  monkeypatch.setattr(main_job.Job, 'perplexity', never)
  assert main(arguments('measure', text, run, measure__scorers=f"('{BERT}',)")) == 0
  after = contents(run)
  kept = [name for name in before if name.split('/')[0] not in ('measures', 'config.json', 'DONE')]
  assert len(kept) > 50 and all(after[name] == before[name] for name in kept)
  found = sorted(p.relative_to(run) for p in run.glob('measures/**/*.json'))
  assert len(found) == 5
  for name in found:
    assert read(run / name) == read(fresh / name), name
  monkeypatch.undo()
  # The report follows; the command without the scorer finds it in the run. What a run leaves that
  # is killed when the measures are there is removed.
  (left := run / 'measures/baseline/country.parts.jsonl').write_text('half')
  assert main(arguments('run', text, run)) == 0 and not left.exists()
  assert read(run / 'report/report.json')['rows'] == read(fresh / 'report/report.json')['rows']
  assert 'nothing to do' in printed(*arguments('run', text, run))
  assert list(read(run / 'config.json')['config']['measure']['scorers']) == [
    'vader', BERT]
