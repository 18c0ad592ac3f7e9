"""A debiased model of a run goes on with the run's own, biased text: how soon is the bias back?

The workdir is only read. The training has its own folder, from which the same call continues it,
and I.F. of a few samples is one of its validation metrics: how it is measured is kept beside it, as
points that are there are not measured again.
"""

import dataclasses
import os
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

from fairjax.errors import UserError
from fairjax.files import FolderLock, read_sealed_json, write_json, write_sealed_json
from fairjax.job.checkpoint import Checkpoint, open_checkpoint
from fairjax.job.feed import PreparedFeed
from fairjax.job.model_measures import content_options, run_encoder
from fairjax.job.run_models import BASELINE
from fairjax.job.run_scorers import load_run_scorer

LEAST_SAMPLES = 20
"""Of a prefix, for a standard error of I.F."""

_PERMUTATIONS = 200  # floors are shown, not tested
_MEASURES = 2  # raised when a look shows other things


@dataclasses.dataclass(frozen=True)
class Relearning:
  """How to train and look.

  Attributes:
    steps: of training on the run's training text.
    every: steps between two looks.
    samples: per template and value, at each look.
    learning_rate: constant; None: that of the run's debiasing.
    scorer: of I.F.; None: the first one of the run.
    max_new_tokens: of a continuation; None: the run's.
  """

  steps: int
  every: int
  samples: int = 50
  learning_rate: float | None = None
  scorer: str | None = None
  max_new_tokens: int | None = None


def relearn(
  workdir: str | os.PathLike, name: str, output: str | os.PathLike, *, settings: Relearning,
  log: Callable[[str], None],
) -> dict[str, Any]:
  """Trains a debiased model on its run's own text and measures I.F. on the way (W-18).

  Args:
    workdir: of a run, with its `data`.
    name: of a debiased model of the run.
    output: folder of this training; it cannot be the workdir.
    settings: see `Relearning`.
    log: called with lines of progress.

  Returns:
    What `relearning.json` in the folder holds: `baseline` (its I.F.), `curve` (per step `loss`,
    `perplexity`, I.F. and what stands beside it, see `_Look`), `half_life` (see
    `measure.half_life`), and how it was made.

  Raises:
    UserError: settings or folders that cannot be, or a folder of another curve.
    Preempted: a signal came; what was done is saved.
  """
  from fairjax.measure import estimate_words
  from fairjax.measure.half_life import half_life
  from fairjax.train import Curriculum, Identity, StopSignal, Trained, read_metrics
  _check(settings, name)
  workdir, output = pathlib.Path(workdir), pathlib.Path(output)
  inside = output.resolve()
  if workdir.resolve() in (inside, *inside.parents):
    raise UserError(f'--output={output} lies in the workdir, which is only read: name a folder of '
                    'its own')
  model, baseline = (open_checkpoint(workdir, n, log=log) for n in (name, BASELINE))
  if not model.has_corpus:
    raise UserError(f'{workdir} holds no token stores (data), on which the model would be trained')
  look = _Look(model, output, settings, log)
  with FolderLock(output, log):
    _keep_looks(output / 'looks.json', look.identity)
    base = look(baseline.params)
    first = look(model.params)
    for who, found in (('the baseline', base), (name, first)):
      words = estimate_words(found | {'value': found['individual_fairness']})
      log(f'[relearn] I.F. of {who} {words}')
    config = _config(model, settings)
    card = {f.name: model.card[f.name] for f in dataclasses.fields(Identity)}
    start = Trained(model.params, Identity(**card), model.card['digest'], output)
    with StopSignal().installed() as stop:
      Curriculum(
        config=config, workdir=output, mesh=model.mesh, stop=stop, log=log, more_metrics=look,
        feed=PreparedFeed(model.prepared, config.model, config, log),
      ).train_on(start, name='relearn')
    lines = [line for line in read_metrics(output / 'relearn' / 'metrics.jsonl')
             if line.get('kind') == 'valid']
    curve = [{'step': 0, **first}] + [
      {key: line.get(key) for key in ('step', 'loss', 'perplexity', *base)} for line in lines]
    result = {
      'workdir': str(workdir), 'model': name, 'attribute': model.attribute.name,
      'scorer': look.scorer.name, 'settings': dataclasses.asdict(settings),
      'learning_rate': config.debias.learning_rate, 'batch_size': config.debias.batch_size,
      'digest': model.card['digest'], 'baseline': base, 'curve': curve,
      'half_life': half_life(
        [p['step'] for p in curve], [p['individual_fairness'] for p in curve],
        [p['std_error'] for p in curve], baseline=base['individual_fairness'],
        baseline_error=base['std_error'])}
    write_json(output / 'relearning.json', result)
  return result


class _Look:
  """I.F. of parameters: sampled into a file of their own, scored, measured.

  Beside it, since a model can be fair by ignoring the value: S.S.c, bits that words tell about it,
  KL of the next token, and S.S. where the run names a sentence encoder. The baseline comes first.
  """

  def __init__(self, model: Checkpoint, output: pathlib.Path, settings: Relearning,
               log: Callable[[str], None]):
    config = model.config
    self._model, self._output, self._log = model, output, log
    self.scorer = load_run_scorer(
      settings.scorer or config.measure.scorers[0], config, output, log)
    self._encoder, self._threshold = run_encoder(config), None
    self._sample = dataclasses.replace(
      config.sample, samples=settings.samples, heldout_prefixes=False,
      batch_size=min(config.sample.batch_size, settings.samples),
      max_new_tokens=settings.max_new_tokens or config.sample.max_new_tokens)

  @property
  def identity(self) -> dict[str, Any]:
    """What decides a look, besides the parameters."""
    return {'model': self._model.card['digest'], 'scorer': self.scorer.name,
            'content of the scorer': self.scorer.fingerprint, 'samples': self._sample.samples,
            'measures': _MEASURES, 'encoder': self._model.config.measure.encoder,
            'max_new_tokens': self._sample.max_new_tokens}

  def __call__(self, params: Any) -> dict[str, float]:
    """I.F. with its error and floor; of texts that were sampled earlier, from their file."""
    from fairjax.generate import generate, read_records
    from fairjax.job.next_token_file import model_divergence
    from fairjax.measure import measure_records
    from fairjax.model.decoding import TransformerXLDecoder
    from fairjax.train import params_digest
    model, digest = self._model, params_digest(params)
    path = self._output / 'generations' / f'{digest[:16]}.jsonl.gz'
    decoder = TransformerXLDecoder(model.model_config)
    mesh = model.mesh if model.mesh.size > 1 else None
    generate(params, decoder, model.vocabulary, model.attribute, path=path, model=model.name,
             sample=self._sample, card={'digest': digest}, mesh=mesh, log=lambda line: None)
    next_token = model_divergence(
      params, decoder, model.vocabulary, model.attribute, list(model.attribute.prefixes()),
      mesh=mesh)
    threshold = self._threshold
    content = content_options(
      model.config.measure, self._encoder, next_token,
      baseline_threshold=None if threshold is None else lambda: threshold)
    measures = measure_records(
      read_records(path, repair=True), model.attribute, [self.scorer], permutations=_PERMUTATIONS,
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
  changed = [key for key in identity if saved.get(key) != identity[key]]
  if changed:
    raise UserError(f"{path}: the curve was measured with other {', '.join(changed)}: name another "
                    '--output, or give the same options')


def _config(model: Checkpoint, settings: Relearning):
  """The run's configuration with a debiasing stage of this length, at a constant rate."""
  stage = model.config.debias
  rate = settings.learning_rate or stage.learning_rate
  stage = dataclasses.replace(
    stage, steps=settings.steps, schedule='constant', warmup_steps=0, learning_rate=rate,
    eval_every=settings.every, checkpoint_every=settings.every,
    log_every=min(stage.log_every, settings.every))
  return dataclasses.replace(model.config, model=model.model_config, debias=stage)


def _check(settings: Relearning, name: str) -> None:
  if name == BASELINE:
    raise UserError(f'--name={BASELINE} has no reduction that it could lose: name a debiased model '
                    'of the run')
  if settings.steps < 1 or not 1 <= settings.every <= settings.steps:
    raise UserError(f'--steps={settings.steps} and --every={settings.every}: at least one step, '
                    'and a look every 1 to --steps of them')
  if settings.samples < LEAST_SAMPLES:
    raise UserError(f'--samples={settings.samples}: a standard error needs {LEAST_SAMPLES} at '
                    'least')
  rate = settings.learning_rate
  if rate is not None and not 0 < rate < 1:
    raise UserError(f'--learning_rate={rate} must lie in (0, 1)')
