"""The folder of a run: who may go on in it, the sizes that its devices refuse, its inventory."""

import dataclasses
import json
import re
from hashlib import sha256
from types import SimpleNamespace

import jax
import pytest
from groups import run_group

from fairjax.config import Config, DataConfig, MeshConfig, ModelConfig
from fairjax.counterfactual import load_attribute
from fairjax.counterfactual.attributes import ASSETS
from fairjax.data.corpus import SPLITS, describe_files_of
from fairjax.errors import UserError
from fairjax.files import FolderLock, write_json, write_sealed_json
from fairjax.model import language_model
from fairjax.report.differences import SCHEMA
from fairjax.run.workdir import (
  check_devices,
  check_inputs_kept,
  check_sources,
  file_digests,
  is_finished,
  locate,
  open_workdir,
  refresh_report,
  stages_left,
  write_inventory,
)
from fairjax.train import make_mesh, model_problems, steps
from fairjax.train.sharding import tree_shardings

CONFIG = Config()


def claimed(folder, config=CONFIG):
  """Lines of a claim."""
  lines = []
  open_workdir(folder, config, FolderLock(folder, lines.append), lines.append)
  return lines


def test_a_second_start_changes_nothing(tmp_path):
  folder = tmp_path / 'run'
  assert claimed(folder) == []
  before = (folder / 'config.json').read_bytes(), (folder / 'config.json').stat().st_mtime_ns
  assert claimed(folder) == []
  assert before == (
    (folder / 'config.json').read_bytes(), (folder / 'config.json').stat().st_mtime_ns)


def test_damaged_versions_are_reported_and_written_again(tmp_path):
  assert claimed(tmp_path) == []
  path = tmp_path / 'config.json'
  whole = path.read_bytes()
  at = whole.index(b'"numpy": "') + 11
  path.write_bytes(whole[:at] + bytes([whole[at] ^ 8]) + whole[at + 1:])
  (line,) = claimed(tmp_path)
  assert line.startswith('WARNING: ') and 'config.json is damaged' in line
  assert path.read_bytes() == whole


def test_another_configuration_is_refused_by_its_fields(tmp_path):
  claimed(tmp_path, dataclasses.replace(CONFIG, seed=5))  # made nothing, so it claims nothing
  claimed(tmp_path)
  (tmp_path / 'data').mkdir()
  (tmp_path / 'data' / '.lock').touch()  # of a preparation that failed at its first line
  (tmp_path / 'data' / 'inputs.json').touch()
  claimed(tmp_path, dataclasses.replace(CONFIG, seed=5))
  claimed(tmp_path)
  (tmp_path / 'data' / 'vocabulary').mkdir()
  before = (tmp_path / 'config.json').read_bytes()
  with pytest.raises(UserError, match='seed: 0 -> 3'):
    claimed(tmp_path, dataclasses.replace(CONFIG, seed=3))
  assert (tmp_path / 'config.json').read_bytes() == before


def test_data_on_which_nothing_was_trained_may_be_made_anew(tmp_path):
  config = dataclasses.replace(CONFIG, data=DataConfig('lines', ('a',), ('a',), ('a',)))
  other = dataclasses.replace(config, attribute='occupation')
  claimed(tmp_path, config)
  (tmp_path / 'data' / 'vocabulary').mkdir(parents=True)
  assert locate(other, tmp_path)[1] == tmp_path
  with pytest.raises(UserError, match=f'occupation. Delete {tmp_path}/data, on which no stage'):
    claimed(tmp_path, other)
  (tmp_path / 'lm').mkdir()  # its step 1 is taken from here on
  with pytest.raises(UserError, match='has not finished step 1'):
    locate(other, tmp_path)


def test_a_damaged_holdout_is_noticed_at_the_end(finished):
  folder = finished / 'data' / 'holdout'
  folder.mkdir()
  digests = []
  for split in ('valid', 'test'):
    (folder / f'{split}.jsonl').write_text(f'"{split}"\n')
    digests.append(file_digests(finished, [f'data/holdout/{split}.jsonl']).popitem()[1])
  write(finished, holdout=digests)
  (folder / 'valid.jsonl').write_text('')
  with pytest.raises(UserError, match='data/holdout/valid.jsonl has changed'):
    write(finished, holdout=digests)


def test_reading_and_what_cannot_be_loaded_change_nothing(tmp_path):
  claimed(tmp_path)
  for name in ('lm', 'measures'):
    (tmp_path / name).mkdir()
    (tmp_path / name / 'x.json').touch()
  (tmp_path / 'DONE').touch()
  before = {p: p.stat().st_mtime_ns for p in tmp_path.rglob('*')}
  other = dataclasses.replace(CONFIG, measure=dataclasses.replace(
    CONFIG.measure, permutations=7, scorers=('vader', 'bert:typo')))
  lock, lines = FolderLock(tmp_path, print), []
  open_workdir(tmp_path, other, lock, lines.append, only_read=True)
  assert lines == []

  def fail(changed):
    assert changed == {'measure.permutations', 'measure.scorers'}
    raise UserError('no such scorer')

  with pytest.raises(UserError, match='no such scorer'):
    open_workdir(tmp_path, other, lock, print, check=fail)
  assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob('*')} == before
  claimed(tmp_path, other)
  assert not list((tmp_path / 'measures').iterdir()) and not (tmp_path / 'DONE').exists()


def test_files_of_the_corpus_may_move_but_not_change(tmp_path):
  def config(folder, content):
    (tmp_path / folder).mkdir()
    (tmp_path / folder / 'text').write_text(content)
    names = (str(tmp_path / folder / 'text'),)
    return dataclasses.replace(CONFIG, data=DataConfig('lines', names, names, names))

  old = config('old', 'a')
  claimed(tmp_path / 'w', old)
  write_sealed_json(tmp_path / 'w' / 'data' / 'inputs.json', {
    'files': describe_files_of({split: old.data.train for split in SPLITS}, {})})
  (tmp_path / 'w' / 'data' / 'vocabulary').mkdir()
  (line,) = claimed(tmp_path / 'w', config('new', 'a'))
  assert 'goes on with data.t' in line
  # Where the run is finished too.
  check_inputs_kept(old, tmp_path / 'w', print)
  (tmp_path / 'old' / 'text').write_text('b')
  with pytest.raises(UserError, match='files of .*data.train.* have changed'):
    check_inputs_kept(old, tmp_path / 'w', print)
  (tmp_path / 'old' / 'text').unlink()
  lines = []
  check_inputs_kept(old, tmp_path / 'w', lines.append)
  assert 'cannot be compared' in lines[0]
  with pytest.raises(UserError, match='another configuration: data.t'):
    claimed(tmp_path / 'w', config('other', 'b'))
  wikitext = [dataclasses.replace(CONFIG, data=DataConfig('wikitext2', manual_dir=x)) for x in 'ab']
  claimed(tmp_path / 'v', wikitext[0])
  write_sealed_json(tmp_path / 'v' / 'data' / 'inputs.json', {'files': {}})
  (tmp_path / 'v' / 'data' / 'vocabulary').mkdir()
  assert 'goes on with data.manual_dir: a -> b' in claimed(tmp_path / 'v', wikitext[1])[0]


def test_an_attribute_file_may_move_but_not_change(tmp_path):
  text = ASSETS.joinpath('country.yaml').read_text(encoding='utf-8')
  paths = [tmp_path / name / 'country.yaml' for name in ('old', 'new', 'other')]
  for path in paths:
    path.parent.mkdir()
    path.write_text(text.replace('Chile', 'Peru') if path == paths[2] else text, encoding='utf-8')
  old, new, other = (dataclasses.replace(CONFIG, attribute=str(path)) for path in paths)
  claimed(tmp_path / 'w', old)
  write_sealed_json(tmp_path / 'w' / 'data' / 'inputs.json', {
    'attribute': {'fingerprint': load_attribute('country').fingerprint}})
  (tmp_path / 'w' / 'data' / 'vocabulary').mkdir()
  (line,) = claimed(tmp_path / 'w', new)
  assert 'goes on with attribute: ' in line
  with pytest.raises(UserError, match='another configuration: attribute: '):
    claimed(tmp_path / 'w', other)


def test_a_run_from_before_the_field_of_one_mood_goes_on(tmp_path):
  claimed(tmp_path)
  (tmp_path / 'data' / 'vocabulary').mkdir(parents=True)
  saved = json.loads((tmp_path / 'config.json').read_text())
  del saved['config']['data']['planted_one_mood']
  (tmp_path / 'config.json').write_text(json.dumps(saved))
  assert not any('goes on' in line for line in claimed(tmp_path))
  (tmp_path / 'config.json').write_text(json.dumps(saved))
  with pytest.raises(UserError, match='planted_one_mood: .missing. -> True'):
    claimed(tmp_path, dataclasses.replace(CONFIG, data=dataclasses.replace(
      CONFIG.data, planted_one_mood=True)))


def test_a_workdir_of_a_newer_format_is_refused_by_number(tmp_path):
  claimed(tmp_path)
  saved = json.loads((tmp_path / 'config.json').read_text())
  assert saved['workdir_format'] == 1
  (tmp_path / 'config.json').write_text(json.dumps(saved | {'workdir_format': 2}))
  with pytest.raises(UserError, match='a workdir of format 2, and this fairjax reads 1'):
    claimed(tmp_path)


def test_more_stages_go_on_and_the_run_is_not_done(tmp_path):
  claimed(tmp_path, dataclasses.replace(CONFIG, until='lm'))
  (tmp_path / 'DONE').write_text('x')
  (line,) = claimed(tmp_path, dataclasses.replace(CONFIG, until='debias', name='new'))
  assert 'goes on with name: run -> new; until' in line
  assert not (tmp_path / 'DONE').exists()
  assert json.loads((tmp_path / 'config.json').read_text())['config']['until'] == 'debias'


@pytest.mark.parametrize(('folders', 'changes', 'kept'), [
  (['lm'], {'sample.samples': 4, 'sample.batch_size': 7}, False),  # all is measured again
  (['lm'], {'sample.rewordings': True}, False),
  (['lm'], {'measure.permutations': 7}, False),
  (['lm'], {'lm.log_every': 3, 'lm.grad_accum_steps': 2, 'model.remat': 'full'}, True),
  (['lm'], {'debias.learning_rate': 1.0}, True),  # a stage that has not begun
  ([], {'lm.learning_rate': 1.0, 'model.num_layers': 6}, True),
  (['lm'], {'sample.temperature': 2.0}, False),
  (['lm', 'generations'], {'sample.samples': 2}, None),  # refused
  (['lm', 'generations'], {'sample.temperature': 2.0}, None),
  (['lm/metrics', 'lm/checkpoints'], {'lm.learning_rate': 1.0}, True),  # no step is kept
  (['lm/checkpoints/4'], {'lm.learning_rate': 1.0}, None),
  (['debias/x/checkpoints/4'], {'model.num_layers': 6}, None),
  (['lm/DONE', 'debias/x/checkpoints/4'], {'debias.learning_rate': 1.0}, None)])
def test_a_run_goes_on_with_what_needs_no_other_model(tmp_path, folders, changes, kept):
  def with_fields(config, fields):
    for name, value in fields.items():
      section, field = name.split('.')
      part = dataclasses.replace(getattr(config, section), **{field: value})
      config = dataclasses.replace(config, **{section: part})
    return config

  begun = with_fields(CONFIG, {'sample.samples': 3})
  claimed(tmp_path, begun)
  for name in (*folders, 'measures/baseline', 'measures/human.json'):
    (tmp_path / name).mkdir(parents=True)
  if kept is None:
    name = next(iter(changes))
    advice = {'sample': 'fairjax sample', 'debias': f'step1_from={tmp_path.resolve()}'}.get(
      name.partition('.')[0], '')
    with pytest.raises(UserError, match=f'another configuration: {name}: .*{re.escape(advice)}'):
      claimed(tmp_path, with_fields(begun, changes))
  else:
    (tmp_path / 'DONE').touch()
    with FolderLock(tmp_path, print), pytest.raises(UserError, match='in use'):
      claimed(tmp_path, with_fields(begun, changes))
    assert (tmp_path / 'DONE').exists()
    (line,) = claimed(tmp_path, with_fields(begun, changes))
    assert all(f'{name}: ' in line for name in changes)
    assert ('all is measured again' in line) != kept
  assert (tmp_path / 'measures' / 'baseline').exists() == (kept is not False)
  assert (tmp_path / 'measures' / 'human.json').exists()


def test_what_is_no_workdir_is_left_alone_but_not_what_an_interrupted_start_left(tmp_path):
  (tmp_path / 'setup.py').write_text('')
  with pytest.raises(UserError, match="holds setup.py but no config.json, so it is no run's"):
    claimed(tmp_path)
  with pytest.raises(UserError, match='is a file: name a folder'):
    claimed(tmp_path / 'setup.py')
  with pytest.raises(UserError, match=r'with \[ in its path'):  # before the data are prepared
    claimed(tmp_path / 'run[3]')
  with pytest.raises(UserError, match=r'with \[ in its path'):
    claimed(tmp_path / 'w', dataclasses.replace(CONFIG, attribute='own[1].yaml'))
  assert [p.name for p in tmp_path.iterdir()] == ['setup.py']
  (tmp_path / 'run').mkdir()
  for name in ('.lock', '.config.json.abc'):
    (tmp_path / 'run' / name).write_bytes(b'\xf3 process 1')
  assert claimed(tmp_path / 'run') == []


# Sizes that the devices do not divide are refused before anything is prepared or written.


@pytest.mark.parametrize('verb', ['step train', 'run'])
def test_everything_is_named_at_once_and_the_workdir_stays_free(
    verb, tmp_path, refused, in_repository):
  fields = {'lm.batch_size': 20, 'debias.batch_size': 12, 'debias.grad_accum_steps': 2,
            'mesh.fsdp': 2, 'mesh.model': 2, 'model.num_heads': 3}
  line = refused(
    [*verb.split(), '--config=configs/quickstart.py', f'--workdir={tmp_path}/run',
     *(f'--config.{name}={value}' for name, value in fields.items())],
    'debias.batch_size=12 is not divisible by the 4 devices', '--config.debias.batch_size=8',
    'mesh.model=2 does not divide model.num_heads=3', '--config.model.vocab_multiple=2')
  assert 'lm.batch_size=20' not in line  # four devices share rows
  assert list(tmp_path.iterdir()) == []


def test_a_run_that_has_begun_keeps_its_sizes(tmp_path):
  config = dataclasses.replace(Config(until='lm'), lm=dataclasses.replace(
    Config().lm, batch_size=12))
  with pytest.raises(UserError, match='lm.batch_size=12') as error:
    check_devices(config, tmp_path)
  assert 'stay' not in str(error.value)
  (tmp_path / 'lm' / 'checkpoints' / '1').mkdir(parents=True)
  with pytest.raises(UserError, match='choose another mesh'):
    check_devices(config, tmp_path)
  (tmp_path / 'lm' / 'DONE').touch()
  check_devices(config, tmp_path)  # nothing is left that would need them


def test_only_stages_that_are_left_are_checked(tmp_path):
  config = Config()
  assert stages_left(config, tmp_path, 'debias') == ['lm', 'sentiment', 'debias']
  assert stages_left(config, tmp_path, 'lm') == ['lm']
  assert stages_left(config, tmp_path, 'sentiment') == ['lm', 'sentiment']
  few = dataclasses.replace(config, debias=dataclasses.replace(
    config.debias, variants=('embedding:1',), extended_baseline=False))
  assert stages_left(few, tmp_path, 'debias') == ['lm', 'debias']
  for folder in ('lm', 'debias/country-embedding-1'):
    (tmp_path / folder).mkdir(parents=True)
    (tmp_path / folder / 'DONE').touch()
  assert stages_left(few, tmp_path, 'debias') == []
  assert stages_left(config, tmp_path, 'debias') == ['sentiment', 'debias']


def test_it_refuses_the_models_that_no_sharding_holds():
  """Compared with the axes of every parameter."""
  base = ModelConfig(vocab_size=40, num_layers=2, model_dim=16, num_heads=4, head_dim=4, ff_dim=32)
  adaptive = dict(cutoffs=(16, 24), div_val=2)
  seen = []
  for mesh in (MeshConfig(fsdp=2, model=4), MeshConfig(fsdp=8), MeshConfig(model=8)):
    for change in ({}, {'num_heads': 2}, {'num_heads': 8}, {'ff_dim': 34}, {'model_dim': 20},
                   {'vocab_size': 37}, {'vocab_size': 37, 'vocab_multiple': 8}, adaptive,
                   adaptive | {'vocab_size': 50}, {'num_heads': 8, **adaptive, 'cutoffs': (16, 28)},
                   {'num_heads': 8, 'vocab_size': 36, 'vocab_multiple': 4}):
      config = dataclasses.replace(base, **change)
      where = make_mesh(mesh)
      abstract = jax.eval_shape(language_model(config).init, jax.random.key(0))
      try:
        tree_shardings(abstract, where)
        holds = True
      except UserError:
        holds = False
      assert (model_problems(config, where) == []) == holds, (mesh, change)
      seen.append(holds)
  assert 5 < sum(seen) < len(seen) - 5


@pytest.mark.parametrize('change', [{}, {'segment_len': 100_000}])
def test_the_kernel_where_it_does_not_run_is_named_before_anything_is_prepared(tmp_path, change):
  config = Config(until='lm', model=ModelConfig(attention='kernel', **change))
  with pytest.raises(UserError, match=r"^model\.attention='kernel' does not run on cpu with "
                     r'model\.segment_len=\d+ .*: set --config\.model\.attention=auto'):
    check_devices(config, tmp_path)
  with pytest.raises(UserError, match="'kernel' does not run on cpu"):
    steps.params_template(
      language_model(dataclasses.replace(config.model, vocab_size=64)), make_mesh(config.mesh))
  auto = dataclasses.replace(config, model=dataclasses.replace(config.model, attention='auto'))
  check_devices(auto, tmp_path)


def test_every_process_of_a_group_refuses_them(tmp_path, repository):
  found = run_group(['-m', 'fairjax', 'step', 'train', '--config=configs/quickstart.py',
                     f'--workdir={tmp_path}/run', '--config.lm.batch_size=3'], repository)
  assert [code for code, _, _ in found] == [2, 2], found
  assert any('lm.batch_size=3 is not divisible by the 2 devices' in error for _, _, error in found)
  assert list(tmp_path.iterdir()) == []


# The inventory of a finished workdir: damage is noticed, and later files are no damage.


FILES = (
  'config.json', 'lm/DONE', 'lm/metrics.jsonl', 'lm/checkpoints/4/state/d/a',
  'lm/checkpoints/6/state/d/a', 'lm/checkpoints/10/state/d/a', 'lm/checkpoints/4.corrupt/x',
  'lm/tensorboard/events', 'data/train/tokens.bin', 'scores/baseline/country.vader.jsonl',
  'measures/baseline/country.json', 'report/report.md', 'report/report.json',
  'report/figures/a.svg', '.lock')
NOT_KEPT = (
  'config.json', 'lm/checkpoints/4/state/d/a', 'lm/checkpoints/6/state/d/a',
  'lm/checkpoints/4.corrupt/x', 'lm/tensorboard/events', '.lock')


@pytest.fixture
def finished(tmp_path):
  for name in FILES:
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'content of {name}')
  write_sealed_json(tmp_path / 'lm' / 'DONE', {
    'metrics': sha256(b'content of lm/metrics.jsonl').hexdigest()})
  write_json(tmp_path / 'report/report.json', {'schema': SCHEMA, 'attribute': 'a', 'rows': []})
  write(tmp_path)
  return tmp_path


def write(workdir, *, tokens='content of data/train/tokens.bin', sources=None, holdout=()):
  """Writes DONE for a run whose store of `train` has these tokens."""
  store = SimpleNamespace(files={'tokens.bin': {'sha256': sha256(tokens.encode()).hexdigest()}})
  prepared = SimpleNamespace(directory=workdir / 'data', manifest={'splits': {'train': {}}},
                             store={'train': store}.__getitem__,
                             config=DataConfig(holdout=(1, 1) if holdout else ()),
                             corpus=SimpleNamespace(holdout=lambda: SimpleNamespace(
                               digests=holdout)))
  write_inventory(workdir, '1.2.3', prepared, [{'sources': sources or {}}])


def test_damage_that_no_stage_has_read_is_noticed_at_the_end(finished):
  before = (finished / 'DONE').read_bytes()
  with pytest.raises(UserError, match='data/train/tokens.bin has changed'):
    write(finished, tokens='other')
  name = 'scores/baseline/country.vader.jsonl'
  good = file_digests(finished, [name])
  write(finished, sources=good)
  change(finished / name, 'flip')
  with pytest.raises(UserError, match='country.vader.jsonl has changed'):
    write(finished, sources=good)
  with pytest.raises(UserError, match='metrics.jsonl has changed.*delete .*lm/DONE, which keeps'):
    change(finished / 'lm' / 'metrics.jsonl', 'flip')
    write(finished)
  assert (finished / 'DONE').read_bytes() == before


def test_an_untouched_workdir_is_finished_and_left_alone(finished):
  lines, before = [], (finished / 'DONE').read_bytes()
  assert is_finished(finished, lines.append)
  assert lines == [f'{finished} is finished, its {len(FILES) - len(NOT_KEPT)} files are as '
                   f'the run left them: nothing to do. Report: {finished}/report/index.html']
  assert (finished / 'DONE').read_bytes() == before


def change(path, how):
  if how == 'delete':
    path.unlink()
  else:
    content = bytearray(path.read_bytes())
    content[3] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize('how', ['delete', 'flip'])
@pytest.mark.parametrize('name', [
  n for n in FILES if n not in NOT_KEPT and not n.startswith('report/')])
def test_every_other_file_that_changed_is_named(finished, name, how):
  change(finished / name, how)
  with pytest.raises(UserError, match='1 of its files') as error:
    is_finished(finished, print)
  assert str(finished / name) in str(error.value)
  assert (finished / 'DONE').exists()


def test_files_that_may_change_and_those_that_came_later_do_not_count(finished):
  for name in NOT_KEPT:
    change(finished / name, 'delete')
    assert is_finished(finished, lambda line: None), name
  (finished / 'measures' / 'human.json').write_text('{}')
  assert is_finished(finished, lambda line: None)


@pytest.mark.parametrize('how', ['delete', 'flip'])
def test_a_changed_report_is_written_again(finished, how):
  lines = []
  change(finished / 'report/figures/a.svg', how)
  assert not is_finished(finished, lines.append)
  assert lines == [f'WARNING: {finished}/report/figures/a.svg is not what the run left']
  assert not (finished / 'DONE').exists()


def test_a_report_of_another_version_is_written_again(finished):
  lines, report = [], finished / 'report' / 'report.json'
  write_json(report, json.loads(report.read_text()) | {'schema': SCHEMA - 1})
  refresh_report(finished)
  assert not is_finished(finished, lines.append)
  assert lines[0].startswith(f'WARNING: {report}: a report of another version')


def test_a_changed_report_does_not_hide_another_change(finished):
  change(finished / 'report/report.md', 'flip')
  change(finished / 'scores/baseline/country.vader.jsonl', 'flip')
  with pytest.raises(UserError, match='2 of its files.*country.vader.jsonl'):
    is_finished(finished, print)


@pytest.mark.parametrize('content', ['', '{"fairjax": "0.1"}', 'flip'])
def test_a_damaged_done_makes_the_run_check_every_part(finished, content):
  lines, whole = [], (finished / 'DONE').read_text()
  (finished / 'DONE').write_text(content.replace('flip', whole.replace('"lm/', '"lM/', 1)))
  assert not is_finished(finished, lines.append)
  assert len(lines) == 1 and 'DONE is damaged' in lines[0] and 'every part' in lines[0]
  assert not (finished / 'DONE').exists()
  refresh_report(finished)  # which makes none
  (finished / 'DONE').write_text('{}')
  refresh_report(finished)
  assert not (finished / 'DONE').exists()


def test_a_new_report_is_taken_over_and_nothing_else(finished):
  (finished / 'report/report.md').write_text('new')
  (finished / 'report/figures/b.svg').write_text('new')
  (finished / 'report/figures/a.svg').unlink()
  refresh_report(finished)
  assert is_finished(finished, lambda line: None)
  change(finished / 'lm/metrics.jsonl', 'flip')
  refresh_report(finished)
  with pytest.raises(UserError, match='lm/metrics.jsonl'):
    is_finished(finished, print)


def test_sources(finished):
  names = ['scores/baseline/country.vader.jsonl', 'lm/metrics.jsonl']
  sources = file_digests(finished, names)
  check_sources(finished, sources, 'measures/x.json')
  change(finished / names[0], 'flip')
  with pytest.raises(UserError, match=r'country.vader.jsonl has changed since.*measures/x.json'):
    check_sources(finished, sources, 'measures/x.json')
  (finished / names[0]).unlink()
  with pytest.raises(UserError, match=r'country.vader.jsonl is gone'):
    check_sources(finished, sources, 'measures/x.json')
