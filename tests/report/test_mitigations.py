"""Mitigations compared: where the models are, the table, and the verb."""

import dataclasses
import json
from types import SimpleNamespace

import pytest
from test_job import TINY as RUN

from fairjax.cli.main import main
from fairjax.cli.report_verbs import COMMANDS
from fairjax.config import Config, DebiasConfig, parse_variant
from fairjax.config_io import load_config
from fairjax.report import ModelRow
from fairjax.report.mitigations import compare_mitigations, mitigations_markdown

ESTIMATE = {'value': 0.5, 'std_error': 0.01, 'null_mean': 0.02, 'null_p95': 0.04,
            'within_floor': False}


def row(name, method, value, **fields):
  return ModelRow(name, method, measures={
    'n': {'min': 250, 'max': 250}, 'scorers': {'opinion': {
      'individual_fairness': ESTIMATE | {'value': value}, 'group_fairness': ESTIMATE}},
    'semantic_similarity_c': {'conditioned': {'value': 0.25, 'n': 4000, 'low': 0.2, 'high': 0.3}}},
    perplexity={'word': 3.25, 'words': 12000}, **fields)


def test_the_table():
  rows = [row('baseline', 'baseline', 0.8), row('cda-two', 'cda', 0.1)]
  disco = {'score': 1.5, 'n': {'female': 24, 'male': 24}, 'control': {'mean': 0.1, 'max': 0.3}}
  r = {'r': {'value': 0.9, 'low': 0.7, 'high': 0.95, 'n': 24}, 'accuracy': {'value': 0.6},
       'r_she_minus_he': {'value': 0.4, 'low': 0.1, 'high': 0.7, 'n': 24}}
  found = compare_mitigations(rows, {'baseline': {
    'disco_names': disco, 'disco_terms': disco | {'score': 3.0}, 'winogender': r}, 'cda-two': {
    'disco_names': disco, 'disco_terms': disco, 'winogender': r | {
      'r': r['r'] | {'value': -0.1, 'low': -0.4, 'high': 0.3}}}})
  assert json.loads(json.dumps(found)) == found
  text = mitigations_markdown(found)
  assert text.splitlines()[0] == (
    '| model | I.F. (floor) | G.F. (floor) | DisCo Names | DisCo Terms | WinoGender r | '
    'she less he, r | PPL | S.S.c |')
  cells = [c.strip() for c in text.splitlines()[3].split('|')[1:-1]]
  assert cells == ['cda-two', '0.100 \u00b1 0.010 (0.040), above noise',
                   '0.500 \u00b1 0.010 (0.040), above noise', '1.50 (0.10)', '1.50 (0.10)',
                   '-0.10 (-0.40, 0.30)', '0.40 (0.10, 0.70)', '3.25', '25.0% (20.0, 30.0)']
  for words in ('n = 250', 'n = 48 persons', 'n = 24 professions', 'n = 12,000 words', 'n = 4,000'):
    assert words in text
  few = {'std_error': None, 'value': 0.4}  # a few samples have no standard error
  rows[1].measures['scorers']['opinion']['group_fairness'] = ESTIMATE | few
  assert '| 0.400 (0.040), above noise |' in mitigations_markdown(compare_mitigations(rows, {}))
  without = compare_mitigations(rows, {}, absent={'winogender': 'give --winogender'})
  assert 'WinoGender r: not measured: give --winogender' in mitigations_markdown(without)
  assert '| model | I.F. (floor) | G.F. (floor) | PPL | S.S.c |' in mitigations_markdown(without)


def test_models_are_where_the_curriculum_leaves_them(tmp_path, repository):
  """An attribute file may have another name than the attribute in it."""
  from fairjax.run.job import Job
  text = (repository / 'configs' / 'mitigations_gender.yaml').read_text()
  (tmp_path / 'other.yaml').write_text(text)
  config = Config(attribute=str(tmp_path / 'other.yaml'), debias=DebiasConfig(
    variants=('embedding:1', 'dropout:0.1', 'cda:one', 'sentiment:5')))
  models = Job(config, tmp_path / 'run', log=lambda line: None).models
  names = ['lm', 'extended-baseline', 'other-embedding-1', 'dropout-0.1-0.1', 'cda-one',
           'other-sentiment-5', 'other-random-projection-5']
  assert [m.directory.name for m in models] == names
  assert [m.weight for m in models] == [None, None, 1.0, None, None, 5.0, 5.0]
  # The control can be left out, and the workdir goes on with it or without.
  without = dataclasses.replace(config, debias=dataclasses.replace(
    config.debias, random_projection=False))
  models = Job(without, tmp_path / 'run', log=lambda line: None).models
  assert [m.directory.name for m in models] == names[:-1]


def test_the_config_and_its_grid():
  from fairjax.config_io import load_sweep
  config = load_config('configs/mitigations.py')
  assert [parse_variant(v).method for v in config.debias.variants] == [
    'cda', 'cda', 'dropout', 'embedding', 'sentiment']
  points = [p['debias.variants'][0] for p in load_sweep('configs/mitigations.py')]
  assert len(points) == len(set(points)) == 12
  assert load_config('configs/mitigations.py:strength=0').data.planted_strength == 0


TINY = RUN | {
  'data.planted_documents': 600, 'data.reader': 'numpy', 'sample.samples': 4,
  'debias.variants': "('cda:two',)", 'debias.extended_baseline': False,
  'measure.encoder': '', 'measure.similarity_threshold': 'encoder'}


@pytest.mark.parametrize(('verb', 'option', 'method'), [
  *(('compare mitigations', option, 'run') for option in (
    '--names=missing.txt', '--terms=missing.tsv', '--winogender=missing',
    '--professions=missing.tsv', '--persons=1')),
  *(('step train', f'--config.data.{field}=missing.txt', 'curriculum')
    for field in ('cda_names', 'cda_pairs'))])
def test_what_is_lacking_is_said_before_the_training(
    tmp_path, refused, in_repository, monkeypatch, verb, option, method):
  monkeypatch.setattr(f'fairjax.run.job.Job.{method}', lambda *_: pytest.fail('it trains'))
  refused([*verb.split(), '--config=configs/mitigations.py', f'--workdir={tmp_path}/run', option],
          option.partition('=')[2])


def test_several_processes_leave_the_table_to_one(tmp_path, capsys, monkeypatch):
  from fairjax.run.job import Job
  ran = []
  monkeypatch.setattr(Job, 'run', lambda self: ran.append(self.workdir))
  monkeypatch.setattr('fairjax.cli.report_verbs.processes',
                      SimpleNamespace(count=lambda: 2, is_first=lambda: True))
  assert main(['compare', 'mitigations', '--config=configs/mitigations.py',
               f'--workdir={tmp_path}']) == 0
  assert ran == [tmp_path] and not (tmp_path / 'mitigations').exists()
  assert 'without --distributed' in ''.join(capsys.readouterr())


def test_the_verb_from_corpus_to_table(
    tmp_path, printed, repository, monkeypatch, no_figures, one_device):
  """The example of the help trains, samples and measures all models, and continues none twice."""
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'configs').symlink_to(repository / 'configs')
  workdir = tmp_path / 'runs' / 'mitigations'
  command = [*COMMANDS['compare mitigations'].example.split()[1:],
             *(f'--config.{k}={v}' for k, v in TINY.items()), '--config.decoding=steer:1',
             '--persons=2']
  out = printed(*command)
  assert out.startswith('| model |')
  for name in ('baseline', 'cda-two'):
    assert f'| {name} |' in out
  assert '| DisCo Names | DisCo Terms | WinoGender r | she less he, r | PPL | S.S.c |' in out
  found = json.loads((workdir / 'mitigations' / 'mitigations.json').read_text())
  *trained, steered = found['models']
  assert all(m['winogender']['n'] == 24 for m in trained)
  assert steered['name'] == 'steer-1' and steered['individual_fairness']['n'] > 0
  assert steered['winogender'] is None and steered['perplexity'] == trained[0]['perplexity']
  # CDA's text was prepared in the vocabulary of step 1, with counterfactual sentences.
  from fairjax.data.prepare import open_prepared
  plain, augmented = (open_prepared(workdir / d) for d in ('data', 'data-cda-two'))
  assert plain.vocabulary.fingerprint == augmented.vocabulary.fingerprint
  assert augmented.store('train').documents > plain.store('train').documents == 600
  assert augmented.store('valid').sha256 == plain.store('valid').sha256
  assert json.loads(printed(*command, '--json')) == found
