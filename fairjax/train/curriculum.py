"""The three-step curriculum of Huang et al. 2020, section 4 and appendix B, as a list of stages.

1. `lm`: the language model (H-18).
2. `sentiment`: the sentiment projection f_sh on its frozen hidden states (H-19).
3. `debias/NAME`: further training of the language model, once per variant. `embedding` and
   `sentiment` minimise L_LM + lambda L_fairness on documents with a sensitive token (H-20..H-24);
   `random_projection` is the control of `sentiment`, with an f_sh that was never trained. `none` is
   the control of footnote 6, the plain loss for as many steps (H-26); `dropout` and `cda` do the
   same with dropout or on counterfactual text (Webster et al. 2020, W-13..W-15).

`curriculum_stages` makes the list from the configuration; `Curriculum.train` runs it.
"""

import dataclasses
import functools
import hashlib
import itertools
import math
import pathlib
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh

from fairjax import processes
from fairjax.config import (
  BASELINE,
  MACHINE_FIELDS,
  Config,
  DebiasConfig,
  TrainConfig,
  Variant,
  debias_variants,
  model_identity,
)
from fairjax.config_io import as_begun, step1_run, to_dict
from fairjax.errors import UserError
from fairjax.files import json_sha256
from fairjax.model import CausalLM, Documents, language_model
from fairjax.model.decoder import DecoderModel, LoraDecoder, with_adapters
from fairjax.processes import StopSignal
from fairjax.train import steps
from fairjax.train.checkpoints import Identity, load_params, params_digest, save_untrained
from fairjax.train.evaluation import evaluate_nll
from fairjax.train.loop import Stage, load_finished, run_stage
from fairjax.train.optimizer import Adam
from fairjax.train.sentiment_examples import (
  LabelledSentences,
  classification_report,
  sentence_states,
  split_sentences_set,
  state_batches,
)
from fairjax.train.sharding import own_rows
from fairjax.train.steps import FairnessTerm, Params

Log = Callable[[str], None]
PLAIN = Variant('none')
_MOST_NATS = 700.0  # exp of more overflows


class StageSpec(NamedTuple):
  """One stage of the curriculum as a value. It is done when its folder holds `DONE`."""

  name: str  # its folder in the workdir: lm, sentiment, debias/MODEL
  section: str  # of the configuration, with its steps and optimizer: lm, sentiment, debias
  parent: str = ''  # the stage whose language model it starts from, or reads
  variant: Variant = PLAIN  # what a stage of section debias does
  seed: str = ''  # purpose of its random numbers; '': the section's, so that variants see one data

  @property
  def model(self) -> str:
    """Name of the language model that it trains; '' for f_sh."""
    return {'lm': BASELINE, 'sentiment': ''}.get(self.name, self.name.rpartition('/')[2])

  @property
  def method(self) -> str:
    """Name of its model: baseline, extended_baseline, or the variant's."""
    if self.section != 'debias':
      return BASELINE
    return 'extended_baseline' if self.variant.method == 'none' else self.variant.method

  @property
  def weight(self) -> float | None:
    """Lambda; None of a model without a fairness term."""
    regularised = self.variant.regularised and self.variant.method != 'control'
    return self.variant.weight if regularised else None


LM, SENTIMENT = StageSpec('lm', 'lm'), StageSpec('sentiment', 'sentiment', 'lm')


def variant_stage(attribute: str, variant: Variant) -> StageSpec:
  """The stage of a variant of step 3; `attribute` is the stem of its file."""
  name = {
    'none': 'extended-baseline', 'control': 'control', 'cda': f'cda-{variant.sided}',
    'dropout': 'dropout-{:g}-{:g}'.format(*variant.rates),
  }.get(variant.method, f"{attribute}-{variant.method.replace('_', '-')}-{variant.weight:g}")
  return StageSpec(f'debias/{name}', 'debias', 'lm', variant)


def curriculum_stages(config: Config, until: str | None = None) -> list[StageSpec]:
  """The stages of a run in their order, up to step `until`: lm, sentiment, debias; None: config's.

  Step 2 is left out where no variant reads f_sh.
  """
  until = until or config.until
  variants = debias_variants(config) if until == 'debias' else []
  found = [LM]
  if until == 'sentiment' or any(variant.method == 'sentiment' for variant in variants):
    found.append(SENTIMENT)
  if until == 'debias' and config.debias.extended_baseline:
    found.append(variant_stage('', PLAIN))
  attribute = pathlib.Path(config.attribute).stem
  return found + [variant_stage(attribute, variant) for variant in variants]


class BatchSource(Protocol):
  """Iterators of NumPy batches for the stages that train a language model."""

  vocabulary_fingerprint: str
  attribute_fingerprint: str

  def train(self, split: str, *, batch_size: int, start_step: int, branches: bool
            ) -> Iterator[Mapping[str, np.ndarray]]:
    """This process's rows of `train` or `train_sensitive`, from a step on."""

  def valid(self, *, batch_size: int) -> Iterator[Mapping[str, np.ndarray]]:
    """This process's rows of the whole validation split, once."""

  def batch_name(self, split: str, step: int, *, batch_size: int) -> str:
    """Where a batch is in the data: split, epoch, segment."""


class Published(Protocol):
  """A published model in the place of step 1."""

  @property
  def digest(self) -> str:
    """Of its files."""

  def load(self, template: Params) -> Params:
    """Its parameters, in the shapes, dtypes and shardings of `template`."""


@dataclasses.dataclass(frozen=True)
class StageResult:
  """Parameters with the identity and digest that later stages name as their parent."""

  params: Params
  identity: Identity
  digest: str
  directory: pathlib.Path


@dataclasses.dataclass(frozen=True)
class Curriculum:
  """What all stages of one run share."""

  config: Config  # with model.vocab_size set
  model: CausalLM
  workdir: pathlib.Path
  batches: BatchSource
  mesh: Mesh
  stop: StopSignal
  log: Log
  # Called when step 2 starts.
  sentences: Callable[[], LabelledSentences] | None = None
  # Counterfactual text of a variant `cda`; None: the run of `step1_from` has trained it.
  augmented: Callable[[StageSpec], BatchSource | None] = lambda spec: None
  # Further validation metrics of language models, beside loss and perplexity.
  more_metrics: Callable[[Params], Mapping[str, float]] | None = None
  published: Published | None = None  # its `model` is then that one

  def train(self, stages: Sequence[StageSpec]) -> dict[str, StageResult]:
    """Trains the stages that are not done yet, in their order; errors: see `loop.run_stage`.

    Returns, by name, the results that a later stage reads, and the last one. Parameters of others
    are dropped before the next stage, so that the devices hold no more models than a stage needs.
    """
    read, done = {SENTIMENT.name, *(spec.parent for spec in stages)}, dict[str, StageResult]()
    for spec in stages:
      done = {name: result for name, result in done.items() if name in read}
      done[spec.name] = self.run(spec, done)
    return done

  def run(self, spec: StageSpec, done: Mapping[str, StageResult]) -> StageResult:
    """Trains one stage from the results of earlier ones, or loads it if it is done."""
    if spec.section == 'sentiment':
      stage = self._sentiment_stage(spec, done[spec.parent])
    else:
      stage = self._lm_stage(spec, done)
    if stage.directory.is_relative_to(self.workdir):
      params = self._published_lm(self.published, stage) if spec == LM and self.published else (
        run_stage(stage, stop=self.stop, log=self.log))
    else:  # of the run that step1_from names, which is only read
      params = load_params(stage.directory, stage.state_template().params, stage.identity)
      self.log(f'[{stage.name}] that of {stage.directory}: nothing to do')
    return StageResult(params, stage.identity, params_digest(params), stage.directory)

  def _lm_stage(self, spec: StageSpec, done: Mapping[str, StageResult]) -> Stage:
    """Trains the language model on a token stream, with a fairness term or without."""
    config, variant, model = variant_config(self.config, spec.variant), spec.variant, self.model
    if variant.method == 'dropout':
      model = language_model(config.model)
    train: TrainConfig = getattr(config, spec.section)
    seed = derive_seed(config.seed, spec.seed or spec.section)
    source = (self.augmented(spec) if variant.method == 'cda' else None) or self.batches
    parent = done[spec.parent] if spec.parent else None
    origin = self.published.digest if self.published else ''
    identity = Identity(
      stage=spec.section, vocabulary=source.vocabulary_fingerprint,
      config=json_sha256(stage_fields(config, spec.section)),
      method=variant.method if parent else '', parent=parent.digest if parent else origin)
    start, whole, rank = parent and parent.params, model, config.pretrained.lora
    base: tuple[Params, ...] = ()
    if parent and rank:
      assert isinstance(model, DecoderModel)
      model, start, base = LoraDecoder(model.config, rank), None, (parent.params,)
    if variant.regularised:
      assert isinstance(train, DebiasConfig)
      split, extra, term = 'train_sensitive', *self._fairness(variant, done)
      identity = dataclasses.replace(identity, **term)
      update = steps.make_debias_step(
        model, Adam.of(train), FairnessTerm.of(train, config.sentiment), self.mesh,
        train.grad_accum_steps)
    else:
      split, extra = 'train', ()
      update = steps.make_lm_step(model, Adam.of(train), self.mesh, train.grad_accum_steps)
    return Stage(
      name=spec.name, directory=stage_folder(self.config, self.workdir, spec), identity=identity,
      config=train, mesh=self.mesh, step=steps.BoundStep(update, seed, *extra, *base),
      init_state=lambda: steps.init_lm_state(
        model, train, self.mesh, seed=seed, params=start),
      state_template=lambda: steps.lm_state_template(model, train, self.mesh),
      batches=lambda start: source.train(
        split, batch_size=train.batch_size, start_step=start, branches=variant.regularised),
      batch_name=lambda step: source.batch_name(split, step, batch_size=train.batch_size),
      evaluate=lambda params: self._evaluate_lm(
        with_adapters(base[0], params) if base else params, whole, train, source),
      work_per_step=train.batch_size * config.model.segment_len, log_config=config.log,
      flops_per_step=0.0 if config.model.cutoffs else model_flops(  # of tails few rows are read
        steps.params_template(whole, self.mesh), train.batch_size * config.model.segment_len,
        adapters=bool(base)))

  def _fairness(self, variant: Variant, done: Mapping[str, StageResult]
                ) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """(weights and f_sh for the step, fields of the identity) of lambda L_fairness."""
    if variant.method == 'random_projection':
      f_sh = self.random_projection()
    else:  # for `embedding` too, with weight 0: then both methods share one program
      f_sh = done.get('sentiment')
    term = 'embedding' if variant.method in ('embedding', 'control') else 'sentiment'
    weights = {name: np.float32(variant.weight if name == term else 0.0)
               for name in ('embedding', 'sentiment')}
    return (weights, None if f_sh is None else f_sh.params), {
      'fairness_weight': variant.weight, 'attribute': pathlib.Path(self.config.attribute).stem,
      'attribute_fingerprint': self.batches.attribute_fingerprint,
      'projection': f_sh.digest if term == 'sentiment' else ''}

  def _sentiment_stage(self, spec: StageSpec, lm: StageResult) -> Stage:
    """f_sh on h-bar of the frozen language model."""
    stage = self.config.sentiment
    seed = derive_seed(self.config.seed, 'sentiment')
    model = self.model.reading(segment_len=stage.sentence_tokens, memory_len=0)
    features = functools.partial(steps.make_features(model, self.mesh), lm.params)
    shape = steps.projection_of(stage)
    predict = jax.jit(lambda params, h_bar: shape.apply({'params': params}, h_bar)[0])
    width = self.model.config.model_dim

    @functools.cache
    def states():
      """States of the training and the held-out sentences, made once."""
      return [
        sentence_states(part, features, batch_size=stage.batch_size, prefixes=stage.prefixes,
                        seed=seed)
        for part in split_sentences_set(self.sentences(), valid_share=stage.valid_share,
                                        batch_size=stage.batch_size, seed=seed)]

    def batches(start):
      return own_rows(state_batches(
        states()[0], batch_size=stage.batch_size, prefix_share=stage.prefix_share, seed=seed,
        start_step=start))

    def evaluate(params):
      held_out = states()[1]
      positive = np.asarray(predict(params, held_out.h_bar)) > 0
      found = classification_report(positive[:, 0], held_out.label)
      if stage.prefixes:  # step 3 reads in mid-sentence
        label = np.repeat(held_out.label, stage.prefixes)
        found |= {f'prefix_{name}': value for name, value in classification_report(
          positive[:, 1:].ravel(), label).items() if name in ('accuracy', 'f1')}
      return found

    return Stage(
      name=spec.name, directory=stage_folder(self.config, self.workdir, spec),
      identity=self._sentiment_identity(parent=lm.digest), config=stage, mesh=self.mesh,
      batches=batches, evaluate=evaluate,
      init_state=lambda: steps.init_sentiment_state(width, stage, self.mesh, seed=seed),
      state_template=lambda: steps.sentiment_state_template(width, stage, self.mesh),
      step=steps.BoundStep(
        steps.make_sentiment_step(Adam.of(stage), shape, self.mesh), seed),
      batch_name=lambda step: f'sentences of step {step}, seed {seed}',
      work_per_step=stage.batch_size, work_unit='sentences', log_config=self.config.log)

  def _sentiment_identity(self, **fields: Any) -> Identity:
    return Identity(
      stage='sentiment', vocabulary=self.batches.vocabulary_fingerprint,
      config=json_sha256(stage_fields(self.config, 'sentiment')), **fields)

  def random_projection(self) -> StageResult:
    """f_sh as it is before the first step of step 2, for the control of sentiment variants."""
    seed = derive_seed(self.config.seed, 'sentiment')
    params = steps.init_sentiment_state(
      self.model.config.model_dim, self.config.sentiment, self.mesh, seed=seed).params
    return StageResult(params, self._sentiment_identity(method='random_projection'),
                       params_digest(params), self.workdir / 'sentiment')

  def _published_lm(self, published: Published, stage: Stage) -> Params:
    """The published model in the place of step 1, imported where it is not there whole."""
    if (params := load_finished(stage, self.log)) is not None:
      return params
    if processes.is_first():
      shutil.rmtree(stage.directory, ignore_errors=True)  # of an interrupted import
    processes.share()
    params = published.load(stage.state_template().params)
    summary = stage.evaluate(params) | {'unrelated_cosine': self._unrelated_cosine(params)}
    save_untrained(
      stage.directory, {'params': params}, stage.identity, digest=params_digest(params),
      summary=summary | {'imported': {'published': published.digest}}, log=self.log)
    self.log(f'[lm] the published model: perplexity {summary["perplexity"]:.2f} of a token of the '
             f'validation text; h-bar of unrelated places has cosine '
             f'{summary["unrelated_cosine"]:.3f}')
    if summary['unrelated_cosine'] > 0.85:
      self.log('[lm] WARNING: h-bar is nearly the same everywhere (cosine above 0.85), so lambda '
               'means less than elsewhere: set --config.pretrained.h_bar=normed')
    return params

  def _unrelated_cosine(self, params: Params) -> float:
    """Mean cosine of h-bar at random places of different validation rows."""
    batch = next(iter(self.batches.valid(batch_size=8 * jax.process_count())))
    batch = {name: multihost_utils.process_allgather(batch[name], tiled=True)
             for name in ('inputs', 'weights', 'segment_ids', 'positions')}
    # The first 8, however many processes there are.
    batch = {name: rows[batch['weights'].any(axis=1)][:8] for name, rows in batch.items()}
    rng = np.random.default_rng(derive_seed(self.config.seed, 'unrelated'))
    places = np.stack([
      rng.choice(np.flatnonzero(row), 4).astype(np.int32) for row in batch['weights']])
    h = np.asarray(steps.make_features(self.model, self.mesh)(
      params, batch['inputs'], places, Documents.from_batch(batch)), np.float64)
    h = (h / np.linalg.norm(h, axis=-1, keepdims=True)).swapaxes(0, 1)
    cosine, different = h @ h.swapaxes(1, 2), ~np.eye(len(places), dtype=bool)
    return float(cosine[:, different].mean()) if len(places) > 1 else 0.0

  def import_lm(self, params: Params, *, source: Mapping[str, Any]) -> dict[str, float]:
    """Puts given parameters in the place of step 1 and returns their validation metrics.

    `source` (JSON types) says where they come from and is kept in the stage's DONE. `UserError`:
    the workdir has a language model already.
    """
    if (self.workdir / LM.name).exists():
      raise UserError(f'{self.workdir / LM.name} exists: a model is imported into a workdir that '
                      'has none yet')
    stage = self._lm_stage(LM, {})
    state = steps.init_lm_state(
      self.model, self.config.lm, self.mesh, seed=0, params=params)
    found = stage.evaluate(state.params)
    save_untrained(
      stage.directory, state, stage.identity, digest=params_digest(state.params),
      summary=found | {'imported': dict(source)}, log=self.log)
    return found

  def _evaluate_lm(
    self, params: Params, model: CausalLM, stage: TrainConfig, source: BatchSource
  ) -> dict[str, float]:
    """Validation loss and perplexity."""
    batches = source.valid(batch_size=stage.batch_size)
    if stage.eval_batches:
      batches = itertools.islice(batches, stage.eval_batches)
    total, tokens = evaluate_nll(model, params, batches, self.mesh)
    more = {} if self.more_metrics is None else self.more_metrics(params)
    loss = total / tokens
    return {'loss': loss, 'perplexity': math.inf if loss > _MOST_NATS else math.exp(loss), **more}


def stage_fields(config: Config, stage: str) -> dict[str, Any]:
  """The fields that the result of `lm`, `sentiment` or `debias` depends on, besides its parents."""
  values = to_dict(config)
  own = {k: v for k, v in values[stage].items() if f'{stage}.{k}' not in MACHINE_FIELDS
         and k not in ('variants', 'extended_baseline', 'random_projection')}
  own['grad_accum_steps'] = 1  # which earlier runs have
  if not own.get('branch_tokens', True):
    del own['branch_tokens']  # which earlier runs lack
  augmented = values['data']['cda']  # without it, these fields change nothing
  data = {k: v for k, v in values['data'].items()
          if f'data.{k}' not in MACHINE_FIELDS and (augmented or not k.startswith('cda'))
          and (v or k != 'planted_one_mood')}  # which earlier runs lack
  model = model_identity(values['model'])
  found = {'seed': values['seed'], 'model': model, 'data': data, stage: own}
  if config.pretrained.model:
    kept = {k: v for k, v in values['pretrained'].items() if k != 'model'}
    found['pretrained'] = kept if stage == 'debias' else kept | {'lora': 0}
    if stage == 'lm':
      found['lm'] = {}  # it is not trained
  return found


def model_flops(params: Params, tokens: int, *, adapters: bool) -> float:
  """FLOPs of a training step of so many tokens by the weights: 6 a parameter and token."""
  # Products of queries and keys are left out, and branches; frozen weights have no gradient (4).
  count = sum(leaf.size for leaf in jax.tree.leaves(params))
  return float((4 if adapters else 6) * count * tokens)


def stage_folder(config: Config, workdir: pathlib.Path, spec: StageSpec) -> pathlib.Path:
  """Folder of a stage: in the workdir, or in that of the run that `step1_from` names.

  Step 1 is then always the other run's. A further stage whose result no attribute changes is the
  other run's if it is done there with equal fields and the workdir has not begun its own.
  """
  own, other = workdir / spec.name, step1_run(config, workdir)
  if other is None or spec.variant.regularised or (spec.name != LM.name and own.exists()):
    return own
  def result(run, folder):  # fields on which the result of the stage depends
    opinion = spec == SENTIMENT and run.sentiment.scorer == 'opinion'
    return (stage_fields(as_begun(run, folder), spec.section),
            run.measure.lexicon if opinion else ())

  found = stage_folder(*other, spec)
  equal = (found / 'DONE').exists() and (
    result(config, workdir) == result(
      dataclasses.replace(other[0], model=config.model), other[1]))
  return found if equal or spec.name == LM.name else own


def variant_config(config: Config, variant: Variant) -> Config:
  """The configuration that a variant trains with: its dropout, or its counterfactual text."""
  if variant.method == 'dropout':
    attention, hidden = variant.rates
    return dataclasses.replace(config, model=dataclasses.replace(
      config.model, attention_dropout=attention, hidden_dropout=hidden))
  if variant.method == 'cda':
    return dataclasses.replace(config, data=dataclasses.replace(config.data, cda=variant.sided))
  return config


def derive_seed(seed: int, purpose: str) -> int:
  """A 31-bit seed for one purpose, unrelated to those of other purposes."""
  return int.from_bytes(hashlib.sha256(f'{seed}/{purpose}'.encode()).digest()[:4], 'big') >> 1


def process_shard() -> tuple[int, int]:
  """(index, count) of this process."""
  return jax.process_index(), jax.process_count()
