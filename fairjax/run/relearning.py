"""How soon a debiased model relearns the bias when it is trained on the run's own text again.

The workdir is only read. The training has a folder of its own, in which the same call continues it.
I.F. of a few samples is one of its validation metrics; its settings are kept in `looks.json`, since
points that are measured are not measured again.
"""

import dataclasses
import math
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fairjax.config import BASELINE, Config
from fairjax.config_io import as_begun
from fairjax.errors import UserError
from fairjax.files import FolderLock, read_sealed_json, write_json, write_sealed_json
from fairjax.measure.content import content_options
from fairjax.measure.estimates import Z
from fairjax.processes import StopSignal
from fairjax.run.job import PreparedBatches, load_run_scorer
from fairjax.run.results import Run, open_run
from fairjax.run.workdir import Model

if TYPE_CHECKING:
  from fairjax.model import Params

# The half-life of a reduction of bias.
#
# The reduction is the bias of the baseline less that of the model. Its half-life is the step at
# which half of the reduction at step 0 is left. Webster et al. 2020, section 6, ask how well
# mitigations resist re-learning; this is the same question of a language model on biased text.


def half_life(
  steps: Sequence[int], values: Sequence[float], errors: Sequence[float], *, baseline: float,
  baseline_error: float, draws: int = 2000,
) -> dict[str, Any]:
  """The step at which half of the reduction is lost, from K steps that rise from 0."""
  # The share that is left is made monotone first (isotonic regression, so that noise cannot end it
  # early) and read off by straight lines between the points. The interval comes from draws of all
  # values from normal distributions with the given standard errors.
  steps_, values_, errors_ = (np.asarray(x, np.float64) for x in (steps, values, errors))
  half = Z * math.hypot(errors_[0], baseline_error)
  reduction = float(baseline - values_[0])
  rng = np.random.default_rng([0, 0x4A1F])
  drawn = values_ + errors_ * rng.standard_normal((draws, len(values_)))
  base = baseline + baseline_error * rng.standard_normal(draws)
  kept = base - drawn[:, 0] > 0
  left = (base[kept, None] - drawn[kept]) / (base[kept] - drawn[kept, 0])[:, None]
  found: dict[str, Any] = {
    'reduction': {'value': reduction, 'low': reduction - half, 'high': reduction + half},
    'last_step': int(steps_[-1]), 'undefined_share': float(1 - kept.mean()),
    'value': None, 'low': None, 'high': None, 'reached': False, 'reached_share': None,
    'retained': []}
  if reduction - half <= 0:
    return found | {'words': 'no clear reduction at step 0, so none can be lost: '
                    f'{reduction:.4f} ({reduction - half:.4f} to {reduction + half:.4f})'}
  measured = (baseline - values_) / reduction
  low, high = np.percentile(left, [2.5, 97.5], axis=0)
  found['retained'] = [
    {'step': int(s), 'value': float(v), 'low': float(a), 'high': float(b)}
    for s, v, a, b in zip(steps_, measured, low, high, strict=True)]
  value = _crossing(steps_, measured)
  crossings = np.sort([_crossing(steps_, row) for row in left])
  ends = [crossings[min(len(crossings) - 1, int(q * len(crossings)))] for q in (0.025, 0.975)]
  found |= {'value': _finite(value), 'low': _finite(ends[0]), 'high': _finite(ends[1]),
            'reached': math.isfinite(value),
            'reached_share': float(np.isfinite(crossings).mean())}
  return found | {'words': _format(found)}


def _crossing(steps: np.ndarray, left: np.ndarray) -> float:
  """First step at which a half is left; infinite if it is never so little."""
  from scipy.optimize import isotonic_regression
  smooth = isotonic_regression(left, increasing=False).x
  below = np.flatnonzero(smooth <= 0.5)
  if not below.size:
    return math.inf
  k = int(below[0])  # above 0: at step 0 all is left
  share = (smooth[k - 1] - 0.5) / (smooth[k - 1] - smooth[k])
  return float(steps[k - 1] + share * (steps[k] - steps[k - 1]))


def _finite(value: float) -> float | None:
  return float(value) if math.isfinite(value) else None


def _format(found: dict[str, Any]) -> str:
  high = f"beyond {found['last_step']}" if found['high'] is None else f"{found['high']:.0f}"
  low = f"beyond {found['last_step']}" if found['low'] is None else f"{found['low']:.0f}"
  if found['reached']:
    return (f"half of the reduction is lost after {found['value']:.0f} steps (95 %: {low} to "
            f'{high})')
  left = found['retained'][-1]
  return (f"not reached: after {found['last_step']} steps {100 * left['value']:.0f} % of the "
          f"reduction is left ({100 * left['low']:.0f} to {100 * left['high']:.0f} %)")


CONTROL = 'control'  # a published model after the same training without a fairness term
LEAST_SAMPLES = 20  # of a prefix, for a standard error of I.F.

_PERMUTATIONS = 200  # floors are shown, not tested
_MEASURES = 2  # raised when a look shows other things


@dataclasses.dataclass(frozen=True)
class Relearning:
  """How to train and look."""

  steps: int  # of training on the run's training text
  every: int  # steps between two looks
  samples: int = 50  # per template and value, at each look
  learning_rate: float | None = None  # constant; None: that of the run's debiasing
  scorer: str | None = None  # of I.F.; None: the first one of the run


def relearn(
  workdir: str | os.PathLike, name: str, output: str | os.PathLike, *, settings: Relearning,
  log: Callable[[str], None],
) -> dict[str, Any]:
  """Trains a debiased model on its run's own text and measures I.F. on the way (W-18)."""
  from fairjax.measure import format_estimate
  from fairjax.train import Curriculum, Identity, StageResult, StageSpec, read_metrics
  _check(settings, name)
  workdir, output = pathlib.Path(workdir), pathlib.Path(output)
  inside = output.resolve()
  if workdir.resolve() in (inside, *inside.parents):
    raise UserError(f'--output={output} is inside the workdir, which is only read: name another '
                    'folder')
  run = open_run(workdir, log=log)
  model, baseline = run.find_model(name, trained=True), baseline_of(run)
  if not run.has_data:
    raise UserError(f'{workdir} holds no token stores (data), on which the model would be trained')
  look, params = _Look(run, model, output, settings), run.params(model)
  config, metadata = _config(run, settings), run.metadata(model)
  with FolderLock(output, log):
    _keep_looks(output / 'looks.json', look.identity | {
      'steps': settings.steps, 'every': settings.every,
      'learning rate': config.debias.learning_rate})
    base = look(run.params(baseline))
    first = look(params)
    for who, found in ((f'the baseline ({baseline.name})', base), (name, first)):
      words = format_estimate(found | {'value': found['individual_fairness']})
      log(f'[relearn] I.F. of {who} {words}')
    identity = {f.name: metadata[f.name] for f in dataclasses.fields(Identity)}
    start = StageResult(params, Identity(**identity), metadata['digest'], output)
    with StopSignal().installed() as stop:
      Curriculum(
        config=dataclasses.replace(config, data=as_begun(run.config, run.workdir).data),
        model=run.language_model, workdir=output, mesh=run.mesh, stop=stop, log=log,
        more_metrics=look,
        batches=PreparedBatches(run.prepared, config.model, config, log, stage='debias'),
      ).run(StageSpec('relearn', 'debias', parent=name, seed='relearn'), {name: start})
    lines = [line for line in read_metrics(output / 'relearn' / 'metrics.jsonl')
             if line.get('kind') == 'valid']
    curve = [{'step': 0, **first}] + [
      {key: line.get(key) for key in ('step', 'loss', 'perplexity', *base)} for line in lines]
    result = {
      'workdir': str(workdir), 'model': name, 'attribute': run.attribute.name,
      'scorer': look.scorer.name, 'settings': dataclasses.asdict(settings),
      'learning_rate': config.debias.learning_rate, 'batch_size': config.debias.batch_size,
      'digest': metadata['digest'], 'baseline': base, 'curve': curve,
      'half_life': half_life(
        [p['step'] for p in curve], [p['individual_fairness'] for p in curve],
        [p['std_error'] for p in curve], baseline=base['individual_fairness'],
        baseline_error=base['std_error'])}
    write_json(output / 'relearning.json', result)
  return result


def baseline_of(run: Run) -> Model:
  """What a reduction is of: the report's baseline, of a published model its trained control."""
  return run.find_model(CONTROL if run.config.pretrained.model else BASELINE)


class _Look:
  """I.F. of parameters: sampled into a file of their own, scored, measured."""

  def __init__(self, run: Run, model: Model, output: pathlib.Path, settings: Relearning):
    from fairjax.measure.similarity import load_encoder
    config = run.config
    self._run, self._model, self._output = run, model, output
    self.scorer = load_run_scorer(
      settings.scorer or config.measure.scorers[0], config, output, run.log)
    self._encoder = load_encoder(config.measure.encoder) if config.measure.encoder else None
    self._threshold = None
    self._sample = dataclasses.replace(
      config.sample, samples=settings.samples, heldout_prefixes=False, rewordings=False,
      batch_size=min(config.sample.batch_size, settings.samples))

  @property
  def identity(self) -> dict[str, Any]:
    """What decides a look, besides the parameters."""
    measure = self._run.config.measure
    return {'model': self._run.metadata(self._model)['digest'], 'scorer': self.scorer.name,
            'content of the scorer': self.scorer.fingerprint, 'samples': self._sample.samples,
            'measures': _MEASURES, 'encoder': measure.encoder,
            'similarity_threshold': measure.similarity_threshold,
            'similarity_samples': measure.similarity_samples,
            'max_new_tokens': self._sample.max_new_tokens}

  def __call__(self, params: 'Params') -> dict[str, float]:
    """I.F. with its error and floor; of texts that were sampled earlier, from their file."""
    from fairjax.generate import read_records
    from fairjax.measure import measure_records
    from fairjax.run.next_token import read_next_token
    from fairjax.train import params_digest
    run, digest = self._run, params_digest(params)
    path = self._output / 'generations' / f'{digest[:16]}.jsonl.gz'
    run.generate_with(params, path, name=self._model.name, metadata={'digest': digest},
                      sample=self._sample, log=lambda line: None)
    next_token = read_next_token(path, run.attribute)
    assert next_token is not None  # written with the records
    threshold = self._threshold
    content = content_options(
      run.config.measure, self._encoder, next_token,
      baseline_threshold=None if threshold is None else lambda: threshold)
    measures = measure_records(
      read_records(path, repair=True), run.attribute, [self.scorer], permutations=_PERMUTATIONS,
      seed=self._sample.seed, content=content, empty='keep')
    similarity = measures['semantic_similarity']
    if similarity is not None:
      self._threshold = similarity['threshold']
    found: Mapping[str, Any] = measures['scorers'][self.scorer.name]['individual_fairness']
    beside = {
      'semantic_similarity': None if similarity is None else similarity['value'],
      'semantic_similarity_c': measures['semantic_similarity_c']['conditioned']['value'],
      'distinct_word_divergence': measures['distinct_word_divergence']['value'],
      'next_token_kl': next_token['kl']}
    return {'individual_fairness': found['value'], 'std_error': found['std_error'],
            'null_mean': found['null_mean'], 'null_p95': found['null_p95'],
            **{name: value for name, value in beside.items() if value is not None}}


def _keep_looks(path: pathlib.Path, identity: dict[str, Any]) -> None:
  """Writes how the points of a curve are measured, or refuses a curve of other looks."""
  if not path.exists():
    write_sealed_json(path, identity)
    return
  saved = read_sealed_json(path, again='name another --output')
  # Curves of 0.1.0 do not say which similarity they had.
  changed = [key for key in identity if saved.get(key, identity[key]) != identity[key]]
  if changed:
    raise UserError(f"{path}: the curve was measured with other {', '.join(changed)}: name another "
                    '--output, or give the same options')


def _config(run: Run, settings: Relearning) -> Config:
  """The run's configuration with a debiasing stage of this length, at a constant rate."""
  stage = run.config.debias
  rate = settings.learning_rate or stage.learning_rate
  stage = dataclasses.replace(
    stage, steps=settings.steps, schedule='constant', warmup_steps=0, learning_rate=rate,
    eval_every=settings.every, checkpoint_every=settings.every,
    log_every=min(stage.log_every, settings.every))
  # The parameters are given: no other workdir is asked, whose relative path is not from --output.
  return dataclasses.replace(run.config, model=run.model_config, debias=stage, step1_from='')


def _check(settings: Relearning, name: str) -> None:
  if name in (BASELINE, CONTROL):
    raise UserError(f'--name={name} has no reduction that it could lose: name a debiased model '
                    'of the run')
  if settings.steps < 1 or not 1 <= settings.every <= settings.steps:
    raise UserError(f'--steps={settings.steps} and --every={settings.every}: at least one step, '
                    'and a look every 1 to --steps of them')
  if settings.samples < LEAST_SAMPLES:
    raise UserError(f'--samples={settings.samples}: a standard error needs {LEAST_SAMPLES} at '
                    'least')
