"""The curriculum on arrays, without TensorFlow: resume, identity, divergence, devices."""

import dataclasses
import json
import math
import os
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import sharding_cases
from process_cases import CONFIG, STAGES, ArrayFeed, K, sentences
from tiny_runs import contents

from fairjax.config import (
  Config,
  DataConfig,
  DebiasConfig,
  MeasureConfig,
  MeshConfig,
  ModelConfig,
  SentimentConfig,
  TrainConfig,
  Variant,
  parse_variant,
)
from fairjax.config_checks import validate
from fairjax.config_io import to_dict
from fairjax.errors import Damaged, Fault, Preempted, UserError
from fairjax.files import read_json_lines
from fairjax.model import Branches, TransformerXLModel, language_model
from fairjax.processes import StopSignal
from fairjax.train import (
  LM,
  PLAIN,
  SENTIMENT,
  Curriculum,
  read_done,
  read_metrics,
  stage_folder,
  steps,
  variant_config,
  variant_stage,
)
from fairjax.train.curriculum import stage_fields
from fairjax.train.optimizer import Adam
from fairjax.train.sharding import make_mesh
from fairjax.train.steps import Guard


def _mesh(devices):
  return make_mesh(MeshConfig(), jax.devices()[:devices])


def _curriculum(workdir, *, config=CONFIG, devices=1, stop=None, log=None, feed=None):
  return Curriculum(
    config, language_model(config.model), workdir, feed or ArrayFeed(), _mesh(devices),
    stop or StopSignal(), log or (lambda line: None), sentences=sentences)


def _variant(method, weight):
  return variant_stage('country', Variant(method, weight))


def _train(curriculum, last):
  stages = list(STAGES.values())
  return list(curriculum.train(stages[:list(STAGES).index(last) + 1]).values())[-1]


@pytest.fixture(scope='module')
def uninterrupted(tmp_path_factory):
  workdir = tmp_path_factory.mktemp('straight')
  return {stage: _train(_curriculum(workdir), stage) for stage in ('lm', 'sentiment', 'debias')}


@pytest.fixture
def finished(tmp_path, uninterrupted):
  """A workdir in which step 1 is done."""
  shutil.copytree(uninterrupted['lm'].directory, tmp_path / 'lm')
  return tmp_path


class DelayedStop(StopSignal):
  """A signal that comes `steps` steps after it was announced."""

  steps = None

  def here(self):
    if self.steps is None:
      return False
    self.steps -= 1
    return self.steps < 0


@pytest.mark.tf
@pytest.mark.parametrize('stage', ['lm', 'sentiment', 'debias'])
@pytest.mark.parametrize(('after', 'logged'), [
  pytest.param(2, 2, marks=pytest.mark.weekly), (5, 4)])  # 5: within an interval
def test_interrupted_run_continues_bit_for_bit(tmp_path, uninterrupted, stage, after, logged):
  stop, prefix = DelayedStop(), 'debias/' if stage == 'debias' else stage
  for earlier in list(STAGES)[:list(STAGES).index(stage)]:
    shutil.copytree(uninterrupted[earlier].directory, tmp_path / earlier)

  def interrupt(line):
    if f'[{prefix}' in line and f'step {logged}/' in line:
      stop.steps = after - logged

  with pytest.raises(Preempted, match=f'saved after step {after} of 7'):
    _train(_curriculum(tmp_path, stop=stop, log=interrupt), stage)
  lines = []
  found = _train(_curriculum(tmp_path, log=lines.append), stage)
  own = [line for line in lines if line.startswith(f'[{prefix}')]
  assert f'resumes after step {after}' in own[0]
  assert 'device memory: ' in own[1] and ' step ' in own[2]
  assert sum('device memory' in line for line in own) == 1
  assert found.digest == uninterrupted[stage].digest
  lines, expected = (read_metrics(t.directory / 'metrics.jsonl')
                     for t in (found, uninterrupted[stage]))
  assert lines == expected
  assert [x['step'] for x in lines if x['kind'] == 'valid'] == [3, 6, 7]


@pytest.mark.tf
def test_the_control_of_a_sentiment_variant_differs_in_f_sh_alone(tmp_path, uninterrupted):
  """Its f_sh is that of step 2 before its first step; term, lambda, seed and data are the same."""
  still = dataclasses.replace(CONFIG, sentiment=dataclasses.replace(
    CONFIG.sentiment, steps=1, warmup_steps=0, learning_rate=1e-30))
  done = {'lm': uninterrupted['lm']}
  untrained = _curriculum(tmp_path / 'still', config=still).run(SENTIMENT, done)
  curriculum = _curriculum(tmp_path)
  random = curriculum.random_projection()
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-29),
               random.params, untrained.params)
  assert random.digest == _curriculum(tmp_path, devices=2).random_projection().digest
  found = curriculum.run(_variant('random_projection', 5.0), done)
  assert found.directory.name.endswith('-random-projection-5')
  expected = _curriculum(tmp_path / 'still').run(STAGES['debias'], done | {'sentiment': random})
  assert found.digest == expected.digest != uninterrupted['debias'].digest
  control, own = (t.identity.to_dict() for t in (found, uninterrupted['debias']))
  assert {k for k in control if control[k] != own[k]} == {'method', 'projection'}
  assert control['projection'] == random.digest


@pytest.mark.tf
@pytest.mark.parametrize(('change', 'vocabulary', 'message'), [
  ({'seed': 5}, 'v', 'belongs to another run: config is'),
  ({'model': dataclasses.replace(CONFIG.model, ff_dim=64)}, 'v', 'config is'),
  ({}, 'w', 'vocabulary is vvvvvvvvvvvv..., expected wwwwwwwwwwww...')])
def test_a_checkpoint_of_another_run_is_refused(finished, change, vocabulary, message):
  other, feed = dataclasses.replace(CONFIG, **change), ArrayFeed()
  feed.vocabulary_fingerprint = vocabulary * 64
  with pytest.raises(UserError, match=message):
    _train(_curriculum(finished, config=other, feed=feed), 'lm')


def _damage(folder, step):
  """Cuts every file of a step's arrays (some are read by nobody); returns the step's folder."""
  folder = folder / 'checkpoints' / str(step)
  paths = list((folder / 'state').rglob('d/*'))
  assert paths
  for path in paths:
    os.truncate(path, 10)
  return folder


@pytest.mark.tf
def test_a_finished_stage_counts_for_a_run_of_other_memory_speed_and_log(finished, uninterrupted):
  lines, other = [], dataclasses.replace(
    CONFIG, model=dataclasses.replace(CONFIG.model, remat='full', attention='blocks'),
    lm=dataclasses.replace(CONFIG.lm, grad_accum_steps=2, log_every=7))
  found = _train(_curriculum(finished, config=other, log=lines.append), 'lm')
  assert found.digest == uninterrupted['lm'].digest and len(lines) == 1
  with pytest.raises(UserError, match='config'):
    _train(_curriculum(finished, config=dataclasses.replace(
      CONFIG, lm=dataclasses.replace(CONFIG.lm, clip_norm=1.0))), 'lm')


@pytest.mark.tf
def test_a_finished_stage_with_a_damaged_checkpoint_is_trained_again_from_an_older_one(
    finished, uninterrupted):
  folder, lines = _damage(finished / 'lm', 7), []
  found = _train(_curriculum(finished, log=lines.append), 'lm')
  assert found.digest == uninterrupted['lm'].digest
  assert 'is damaged' in lines[0] and 'DAMAGED CHECKPOINT: step 7' in lines[1]
  assert 'resumes after step 6' in lines[2]
  assert folder.with_name('7.corrupt').is_dir() and folder.is_dir()
  lines.clear()
  _train(_curriculum(finished, log=lines.append), 'lm')
  assert lines == ['[lm] finished earlier: nothing to do']


@pytest.mark.tf
@pytest.mark.parametrize('done', [True, False])
def test_a_stage_with_no_good_checkpoint_is_refused_and_left_as_it_is(finished, done):
  for step in (6, 7):
    _damage(finished / 'lm', step)
  if not done:
    (finished / 'lm' / 'DONE').unlink()
  before = contents(finished)
  with pytest.raises(UserError, match='holds 2 checkpoints and none can be used'):
    _train(_curriculum(finished), 'lm')
  assert contents(finished) == before


@pytest.mark.tf
@pytest.mark.parametrize('damage', [None, b'', b'{"digest": "0"}'])
def test_a_lost_or_damaged_done_marker_is_made_again(finished, damage):
  path = finished / 'lm' / 'DONE'
  whole = path.read_bytes()
  if damage is None:
    path.unlink()
  else:
    path.write_bytes(damage)
  _train(_curriculum(finished), 'lm')
  assert path.read_bytes() == whole


@pytest.fixture(scope='module')
def interrupted(tmp_path_factory):
  stop, workdir = DelayedStop(), tmp_path_factory.mktemp('interrupted')

  def interrupt(line):
    if '[lm] step 4/' in line:
      stop.steps = 1

  with pytest.raises(Preempted):
    _train(_curriculum(workdir, stop=stop, log=interrupt), 'lm')
  return workdir


@pytest.mark.tf
@pytest.mark.parametrize('damage', ['lost', 'first line', 'last line'])
def test_metrics_that_are_lost_come_back_from_the_checkpoint(
    tmp_path, interrupted, uninterrupted, damage):
  shutil.copytree(interrupted / 'lm', tmp_path / 'lm')
  path, lines = tmp_path / 'lm' / 'metrics.jsonl', []
  whole = path.read_bytes().splitlines(keepends=True)
  assert len(whole) == 4  # steps 2, 3 and 4, and the evaluation at 3
  if damage == 'lost':
    path.unlink()
  else:
    path.write_bytes({'first line': b''.join(whole[1:]),
                      'last line': b''.join(whole[:-1]) + whole[-1].replace(b'4', b'5')}[damage])
  found = _train(_curriculum(tmp_path, log=lines.append), 'lm')
  assert sum('not what was written: its 4 lines up to step 5' in line for line in lines) == 1
  expected = uninterrupted['lm'].directory / 'metrics.jsonl'
  assert path.read_bytes() == expected.read_bytes()
  assert found.digest == uninterrupted['lm'].digest


@pytest.mark.tf
def test_an_imported_model_is_not_trained_when_its_done_marker_is_lost(tmp_path, uninterrupted):
  curriculum = _curriculum(tmp_path)
  curriculum.import_lm(uninterrupted['lm'].params, source={'by': 'a test'})
  (tmp_path / 'lm' / 'DONE').unlink()
  assert _train(curriculum, 'lm').digest == uninterrupted['lm'].digest


@pytest.mark.tf
def test_an_imported_model_that_is_lost_is_never_replaced_by_a_trained_one(
    tmp_path, uninterrupted, monkeypatch):
  curriculum = _curriculum(tmp_path)
  monkeypatch.setattr('fairjax.train.curriculum.evaluate_nll', lambda *_: (800.0, 1))
  found = curriculum.import_lm(uninterrupted['lm'].params, source={'by': 'a test'})
  assert found == {'loss': 800.0, 'perplexity': math.inf}  # exp(800) overflows
  assert read_done(tmp_path / 'lm')['summary']['perplexity'] == 'inf'
  shutil.rmtree(tmp_path / 'lm' / 'checkpoints')
  with pytest.raises(Damaged, match='restore it from a copy, or import the model into another'):
    _train(curriculum, 'lm')
  assert not (tmp_path / 'lm' / 'checkpoints').exists()


@pytest.mark.tf
@pytest.mark.parametrize('step', [6, 7])
def test_an_evaluation_due_at_a_checkpoint_runs_after_a_kill_between_the_two(
    tmp_path, uninterrupted, step, monkeypatch):
  class Killed(Exception):
    pass

  def evaluate(*_):
    raise Killed

  def kill(line):  # the checkpoint is being written, the evaluation has not begun
    if f'[lm] step {step}/' in line:
      monkeypatch.setattr('fairjax.train.curriculum.evaluate_nll', evaluate)

  with pytest.raises(Killed):
    _train(_curriculum(tmp_path, log=kill), 'lm')
  monkeypatch.undo()
  valid = [x['step'] for x in read_metrics(tmp_path / 'lm' / 'metrics.jsonl')
           if x['kind'] == 'valid']
  assert step not in valid
  found = _train(_curriculum(tmp_path), 'lm')
  lines, expected = ([x for x in read_metrics(t.directory / 'metrics.jsonl')
                      if x['kind'] == 'valid'] for t in (found, uninterrupted['lm']))
  assert lines == expected and [x['step'] for x in lines] == [3, 6, 7]
  assert read_done(found.directory) == read_done(uninterrupted['lm'].directory)
  # At the end the data are laid out for it, which may take any time.
  times = read_json_lines(found.directory / 'times.jsonl').entries
  assert ('evaluate' in times[-1]['seconds']) == (step != 7)


class FaultyFeed(ArrayFeed):
  """At some steps every target is token 2, which no other batch holds."""

  def __init__(self, bad):
    self._bad = bad

  def train(self, split, *, batch_size, start_step, branches):
    for step, batch in enumerate(super().train(
        split, batch_size=batch_size, start_step=start_step, branches=branches), start_step):
      yield batch | (
        {'targets': np.full_like(batch['targets'], 2)} if step in self._bad else {})


@pytest.fixture(scope='class')
def poison():
  """Loss and gradient are NaN where a target is token 2."""
  nll = TransformerXLModel.mean_nll

  def poisoned(model, params, hidden, targets):
    return nll(model, params, hidden, targets) * jnp.where((targets == 2).any(), jnp.nan, 1.0)

  steps.make_lm_step.cache_clear()
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(TransformerXLModel, 'mean_nll', poisoned)
    yield
  steps.make_lm_step.cache_clear()


def test_a_stage_whose_model_is_not_finite_at_the_end_is_not_done(tmp_path, monkeypatch):
  monkeypatch.setattr(Curriculum, '_evaluate_lm', lambda *_, **__: {'loss': math.nan})
  with pytest.raises(Fault, match=f'validation loss after step {CONFIG.lm.steps} is not finite'):
    _train(_curriculum(tmp_path), 'lm')
  assert not (tmp_path / 'lm' / 'DONE').exists()


@pytest.mark.tf
@pytest.mark.usefixtures('poison')
class TestSkippedUpdates:
  def test_updates_with_a_non_finite_loss_are_skipped_and_counted(self, tmp_path):
    lines = []
    found = _train(_curriculum(tmp_path, feed=FaultyFeed({1, 4, 5}), log=lines.append), 'lm')
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(found.params))
    assert read_done(found.directory)['summary']['skipped_updates'] == 3
    warnings = [line for line in lines if line.startswith('WARNING')]
    assert 'the first at step 1, batch: train segment 1' in warnings[0]
    counted = [x.get('skipped_updates', 0) for x in read_metrics(found.directory / 'metrics.jsonl')]
    assert sum(counted) == 3
    # Interrupted between two of them, within an interval: the same bits.
    stop = DelayedStop()

    def interrupt(line):
      if 'step 4/' in line:
        stop.steps = 1

    other = _curriculum(tmp_path / 'b', feed=FaultyFeed({1, 4, 5}), stop=stop, log=interrupt)
    with pytest.raises(Preempted, match='after step 5'):
      _train(other, 'lm')
    again = _train(_curriculum(tmp_path / 'b', feed=FaultyFeed({1, 4, 5})), 'lm')
    assert again.digest == found.digest
    assert read_done(again.directory)['summary'] == read_done(found.directory)['summary']

  @pytest.mark.parametrize(('first', 'every', 'saved'), [
    (0, 12, 0), (4, 12, 4), (4, 6, 6)])  # the last: saved between two of them
  def test_too_many_in_a_row_stop_with_the_last_good_state_and_the_batches(
      self, tmp_path, first, every, saved):
    config = dataclasses.replace(CONFIG, lm=dataclasses.replace(
      CONFIG.lm, steps=12, max_skipped=3, log_every=12, checkpoint_every=every, keep_checkpoints=1))
    feed = FaultyFeed(set(range(first, first + 4)))  # those after them are never reached
    words = f'saved as step {saved}' if first else 'no step before was good'
    with pytest.raises(Fault, match=rf'first at step {first}, .*{words}'):
      _train(_curriculum(tmp_path, config=config, feed=feed), 'lm')
    found = json.loads((tmp_path / 'lm' / 'diverged.json').read_text())
    assert found['last_good_step'] == first
    assert found['skipped'][0] == {'step': first, 'batch': f'train segment {first}'}
    assert read_done(tmp_path / 'lm') is None
    if first == saved > 0:  # what is saved is the state of an undisturbed run at that step
      straight = dataclasses.replace(config, lm=dataclasses.replace(
        config.lm, log_every=4, checkpoint_every=4, keep_checkpoints=9))
      _train(_curriculum(tmp_path / 'b', config=straight), 'lm')
      saved = [json.loads((tmp_path / d / 'checkpoints' / '4' / 'card' / 'metadata').read_text())
               for d in ('lm', 'b/lm')]
      assert saved[0]['leaves'] == saved[1]['leaves']


def test_a_guard_skips_spikes_by_mean_and_deviation():
  adam = Adam.of(TrainConfig(spike_sigmas=3.0, spike_window=8, max_skipped=2))
  guard, rng = Guard.fresh(adam), np.random.default_rng(0)
  history = []
  for step in range(60):
    loss = np.float32(2 + 0.1 * rng.normal() + (5 if step in (3, 20, 41, 43, 44) else 0))
    ok = bool(guard.allows(adam, loss, np.float32(1)))
    window = np.array(history[-8:], np.float64)
    expected = guard.in_a_row < 2 and (
      len(history) < 8 or loss <= window.mean() + 3 * window.std() + 1e-6)
    assert ok == expected, step
    if ok:
      history.append(loss)
    guard = guard.after(adam, np.bool_(ok), loss)
    if step == 50:
      break
  assert 3 < max(history)  # before the window is full nothing is known
  assert int(guard.in_a_row) == 0 or int(guard.in_a_row) >= 2
  for bad in (np.nan, np.inf, -np.inf):
    assert not Guard.fresh(adam).allows(adam, np.float32(bad), np.float32(1))
    assert not Guard.fresh(adam).allows(adam, np.float32(1), np.float32(bad))


@pytest.mark.tf
def test_f_sh_on_eight_devices_is_that_of_one(finished, uninterrupted):
  found = _train(_curriculum(finished, devices=8), 'sentiment')
  assert found.identity == uninterrupted['sentiment'].identity
  for a, b in zip(*(jax.tree.leaves(t.params) for t in (found, uninterrupted['sentiment'])),
                  strict=True):
    np.testing.assert_allclose(a, b, atol=1e-5)


@pytest.mark.tf
def test_debias_lowers_the_fairness_loss_and_logs_the_monitor(finished):
  config = dataclasses.replace(CONFIG, debias=dataclasses.replace(
    CONFIG.debias, steps=60, log_every=20, eval_every=60, checkpoint_every=60))
  curriculum = _curriculum(finished, config=config)
  lm, trained = curriculum.train([LM, _variant('embedding', 100.0)]).values()
  lines = [x for x in read_metrics(trained.directory / 'metrics.jsonl') if x['kind'] == 'train']
  assert lines[-1]['fairness_loss/embedding'] < 0.5 * lines[0]['fairness_loss/embedding']
  assert lines[-1]['kl'] < lines[0]['kl'] and lines[-1]['js'] <= np.log(2)
  for line in lines:
    assert line['pairs_per_batch'] == line['branches/used'] == 8 * K
    assert line['branches/dropped_over_k'] == 8
    assert line['cosine'] == pytest.approx(1 - line['fairness_loss/embedding'], abs=1e-6)
  assert trained.identity.parent == lm.digest


def test_lambda_zero_is_the_plain_step_and_programs_compile_once():
  mesh, model, adam = _mesh(1), language_model(CONFIG.model), Adam.of(CONFIG.lm)
  plain = steps.make_lm_step(model, adam, mesh)
  assert plain is steps.make_lm_step(language_model(CONFIG.model), adam, mesh)
  debias = steps.make_debias_step(
    model, adam, steps.FairnessTerm.of(CONFIG.debias, CONFIG.sentiment), mesh)
  states = [steps.init_lm_state(model, CONFIG.lm, mesh, seed=1) for _ in range(3)]
  feed, sizes = ArrayFeed().train('train', batch_size=8, start_step=0, branches=True), []
  for step in range(3):
    batch, rate = next(feed), np.float32(0.001 * step)
    tokens = {name: batch[name] for name in ('inputs', 'targets', 'reset')}
    states[0], a = plain(states[0], tokens, 3, rate)
    states[1], b = debias(states[1], batch, 3, rate, {'embedding': np.float32(0.0)}, None)
    np.testing.assert_allclose(a['loss'][0], b['loss'][0], rtol=1e-6)
    if step == 0:  # another seed draws another dropout
      assert plain(states.pop(), tokens, 4, rate)[1]['loss'][0] != a['loss'][0]
    sizes.append([step._compiled._cache_size() for step in (plain, debias)])
  for x, y in zip(*(jax.tree.leaves(s.params) for s in states), strict=True):
    np.testing.assert_allclose(x, y, atol=1e-6)
  # Other tests share the programs and hand over arrays on devices: only new ones count.
  assert sizes[0] == sizes[1] == sizes[2]


@jax.enable_x64()
def test_the_monitor_is_the_divergence_of_the_swapped_from_the_original_prefix():
  config, mesh = sharding_cases.MODELS['plain'], _mesh(1)
  stage, batch = TrainConfig(batch_size=sharding_cases.B), sharding_cases.make_batch(0, 37)
  model = language_model(config)
  state = steps.init_lm_state(model, stage, mesh, seed=0)
  arrays = {name: jnp.asarray(x) for name, x in batch.items()}
  # Copies, since the step takes the state away.
  params, memory = jax.tree.map(lambda x: jnp.asarray(np.array(x)), (state.params, state.memory))

  @jax.jit
  def logits(params, memory, batch):
    pairs = model.apply(params, batch['inputs'], memory.reset(batch['reset']),
                        Branches.from_batch(batch)).pairs
    return [model.logits(params, hidden) for hidden in (pairs.hidden, pairs.hidden_branch)]

  log_p, log_q = (np.log(scipy.special.softmax(np.asarray(x), axis=-1))
                  for x in logits(params, memory, arrays))
  kl, weight = (np.exp(log_p) * (log_p - log_q)).sum(-1), batch['branch_weight']
  step = steps.make_debias_step(
    model, Adam.of(stage), steps.FairnessTerm.of(DebiasConfig(), SentimentConfig()), mesh)
  _, found = step(state, batch, 0, np.float32(0), {'embedding': np.float32(1)}, None)
  value, count = found['kl']
  assert count == weight.sum()
  np.testing.assert_allclose(value, (kl * weight).sum() / weight.sum(), rtol=1e-9)


# Variants of step 3.

@pytest.mark.parametrize(('text', 'name', 'change'), [
  ('embedding:10', 'country-embedding-10', {}), ('sentiment:0.5', 'country-sentiment-0.5', {}),
  ('dropout:0.15/0.2', 'dropout-0.15-0.2',
   {'model.attention_dropout': 0.15, 'model.hidden_dropout': 0.2}),
  ('dropout:0.05', 'dropout-0.05-0.05',
   {'model.attention_dropout': 0.05, 'model.hidden_dropout': 0.05}),
  ('cda:one', 'cda-one', {'data.cda': 'one'}), ('cda:two', 'cda-two', {'data.cda': 'two'}),
])
def test_variants(text, name, change):
  variant = parse_variant(text)
  assert variant_stage('country', variant).model == name
  before, after = (dataclasses.asdict(c) for c in (Config(), variant_config(Config(), variant)))
  found = {f'{group}.{field}': after[group][field] for group in ('data', 'model')
           for field in after[group] if after[group][field] != before[group][field]}
  assert found == change
  assert variant.regularised == (not change)


@pytest.mark.parametrize('text', [
  'dropout', 'dropout:', 'dropout:1', 'dropout:-0.1', 'dropout:0.1/0.2/0.3', 'dropout:nan', 'cda',
  'cda:both', 'cda:1', 'embedding:1/2', 'embeding:1', 'none', 'dropout:0.1/x'])
def test_bad_variants(text):
  with pytest.raises(UserError):
    parse_variant(text)


@pytest.mark.parametrize(('change', 'words'), [
  ({'debias': DebiasConfig(variants=('cda:two',)), 'data': DataConfig(cda='two')}, 'no baseline'),
  ({'debias': DebiasConfig(variants=('embedding:1', 'embedding:1.0000001'))}, 'twice'),
  ({'decoding': ('average:0.5', 'average:.50')}, 'twice'),
  ({'data': DataConfig(source='planted_gender', planted_one_mood=True)},
   'planted_one_mood is for data.source=planted'),
  ({'debias': DebiasConfig(variants=('dropout:0.1/0',)),
    'model': ModelConfig(attention='kernel')}, 'cannot drop attention weights'),
  ({'data': DataConfig(cda_names=('n',))}, 'need data.cda'),
  ({'data': DataConfig(source='planted_gender', planted_sensitive_share=1.0)}, 'below 1'),
])
def test_variants_that_do_not_fit(change, words):
  with pytest.raises(UserError, match=words):
    validate(Config(**change))
  validate(Config(data=DataConfig(cda_names=('n',)), debias=DebiasConfig(variants=('cda:two',))))


class OtherFeed(ArrayFeed):
  """Counterfactual text: other tokens in the same vocabulary."""

  def _batch(self, step, rows, branches):
    return super()._batch(step + 500, rows, branches)


def test_phases_start_at_step_1_and_train_with_what_they_are_named_for(tmp_path):
  """Dropout is on, counterfactual batches arrive, and the rest is that of the control."""
  plain = dataclasses.replace(CONFIG, model=dataclasses.replace(
    CONFIG.model, hidden_dropout=0.0, attention_dropout=0.0))
  lines = []
  curriculum = dataclasses.replace(
    _curriculum(tmp_path, config=plain, log=lines.append), augmented=lambda stage: OtherFeed())
  stages = [LM, *(variant_stage('', variant) for variant in (
    PLAIN, parse_variant('dropout:0.3/0.2'), parse_variant('cda:two')))]
  results = {}
  for stage in stages:
    results[stage.name] = curriculum.run(stage, results)
  lm, control, dropout, cda = results.values()
  assert len({x.digest for x in (control, dropout, cda)}) == 3
  assert len({x.identity.config for x in (control, dropout, cda)}) == 3
  assert [x.identity.method for x in (control, dropout, cda)] == ['none', 'dropout', 'cda']
  assert {x.identity.parent for x in (control, dropout, cda)} == {lm.digest}
  assert dropout.directory == tmp_path / 'debias' / 'dropout-0.3-0.2'
  # One budget: the same steps; on the same batches the loss is higher where dropout is on.
  losses = [[m['loss'] for m in read_metrics(x.directory / 'metrics.jsonl') if 'loss' in m]
            for x in (control, dropout, cda)]
  assert len({len(found) for found in losses}) == 1
  assert losses[1][0] > losses[0][0]
  # Finished: the same call trains nothing.
  lines.clear()
  again = curriculum.train(stages)
  assert not any('step 2/' in line for line in lines)
  # No model is held that no later stage reads.
  assert {name: x.digest for name, x in again.items()} == {
    'lm': lm.digest, 'debias/cda-two': cda.digest}


@pytest.mark.parametrize('scorer', ['opinion', 'vader'])
def test_step_2_of_another_run_is_taken_where_the_same_words_labelled_it(tmp_path, scorer):
  other = dataclasses.replace(
    CONFIG, sentiment=dataclasses.replace(CONFIG.sentiment, scorer=scorer),
    measure=MeasureConfig(lexicon=('words',)))
  (tmp_path / 'other' / 'sentiment').mkdir(parents=True)
  (tmp_path / 'other' / 'sentiment' / 'DONE').touch()
  (tmp_path / 'other' / 'config.json').write_text(json.dumps(to_dict(other)))
  taken = [stage_folder(
    dataclasses.replace(other, step1_from='../other', measure=MeasureConfig(lexicon=(words,))),
    tmp_path / 'own', SENTIMENT).parent.name for words in ('words', 'other words')]
  assert taken == ['other', 'own' if scorer == 'opinion' else 'other']


def test_long_branches_are_part_of_a_stage_only_where_they_are_used():
  short, long = (stage_fields(Config(debias=DebiasConfig(branch_tokens=n)), 'debias')['debias']
                 for n in (0, 3))
  assert long == short | {'branch_tokens': 3} and 'branch_tokens' not in short
