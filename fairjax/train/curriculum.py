"""The three-step curriculum of Huang et al. 2020, section 4 and appendix B.

1. `train_lm`: the language model (H-18).
2. `train_sentiment`: the sentiment projection f_sh on its frozen hidden states (H-19).
3. `train_debias`: L_LM + lambda L_fairness on documents with a sensitive token (H-20..H-24), once
   per variant; with method `none` the control of footnote 6, the baseline trained on (H-26), with
   `random_projection` that of the sentiment variants, an f_sh that was never trained.
   `train_mitigation` does that with dropout or on counterfactual text (Webster et al. 2020).
"""

import dataclasses
import functools
import hashlib
import math
import pathlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import jax
import numpy as np
from jax.sharding import Mesh

from fairjax.config import MACHINE_FIELDS, Config, Variant
from fairjax.config_io import step1_run, to_dict
from fairjax.errors import UserError
from fairjax.processes import StopSignal
from fairjax.train import steps
from fairjax.train.checkpoints import (
  CheckpointStore,
  Identity,
  fingerprint,
  load_params,
  params_digest,
  write_done,
)
from fairjax.train.evaluation import evaluate_nll
from fairjax.train.loop import Stage, run_stage
from fairjax.train.optimizer import Adam
from fairjax.train.sentiment_examples import (
  LabelledSentences,
  classification_report,
  sentence_states,
  split_sentences_set,
  state_batches,
)
from fairjax.train.steps import FairnessTerm, Projection

Log = Callable[[str], None]


class Feed(Protocol):
  """Where the batches come from: iterators of NumPy dicts, made by the data room or by arrays."""

  vocabulary_fingerprint: str
  attribute_fingerprint: str

  def train(self, split: str, *, batch_size: int, start_step: int, branches: bool
            ) -> Iterator[Mapping[str, np.ndarray]]:
    """This process's rows of `train` or `train_sensitive`, from a step on."""

  def valid(self, *, batch_size: int) -> Iterator[Mapping[str, np.ndarray]]:
    """This process's rows of the whole validation split, once."""

  def batch_name(self, split: str, step: int, *, batch_size: int) -> str:
    """Words that find a batch again: split, epoch, segment."""


@dataclasses.dataclass(frozen=True)
class Trained:
  """Parameters with the card and digest that later stages name as their parent."""

  params: Any
  identity: Identity
  digest: str
  directory: pathlib.Path


@dataclasses.dataclass(frozen=True)
class Curriculum:
  """What all stages of one run share."""

  config: Config  # with model.vocab_size set
  workdir: pathlib.Path
  feed: Feed
  mesh: Mesh
  stop: StopSignal
  log: Log
  # Further validation metrics of language models, beside loss and perplexity.
  more_metrics: Callable[[Any], Mapping[str, float]] | None = None

  def train_lm(self) -> Trained:
    """Step 1: next-token cross-entropy on the whole training stream."""
    stage, identity = self.config.lm, self._lm_identity()
    seed = derive_seed(self.config.seed, 'lm')
    update = steps.make_lm_step(self.config.model, Adam.of(stage), self.mesh, stage.parts)
    return self._run_lm(
      'lm', stage_folder(self.config, self.workdir, 'lm'), identity, stage, 'train', branches=False,
      init=lambda: steps.init_lm_state(self.config.model, stage, self.mesh, seed=seed),
      step=steps.bind(update, seed))

  def import_lm(self, params: Any, *, source: Mapping[str, Any]) -> dict[str, float]:
    """Puts given parameters in the place of step 1 and returns their validation metrics.

    Args:
      params: of the language model.
      source: where they come from, JSON types; kept in the stage's DONE.

    Raises:
      UserError: the workdir has a language model already.
    """
    directory, identity = self.workdir / 'lm', self._lm_identity()
    if directory.exists():
      raise UserError(f'{directory} exists: a model is imported into a workdir that has none yet')
    state = steps.init_lm_state(self.config.model, self.config.lm, self.mesh, seed=0, params=params)
    found = self._evaluate_lm(state.params, self.config.lm)
    store = CheckpointStore(directory, keep=1, log=self.log)
    try:
      store.finish(0, state, identity, final=True)
    finally:
      store.close()
    write_done(directory, step=0, digest=params_digest(state.params), identity=identity,
               summary=found | {'imported': dict(source)})
    return found

  def _lm_identity(self) -> Identity:
    return Identity(stage='lm', vocabulary=self.feed.vocabulary_fingerprint,
                    config=self._config_fingerprint('lm'))

  def train_sentiment(self, lm: Trained, sentences: Callable[[], LabelledSentences]) -> Trained:
    """Step 2: f_sh on h-bar of the frozen language model.

    `sentences` is called once, when the stage starts.
    """
    stage, data = self.config.sentiment, None
    identity = Identity(
      stage='sentiment', vocabulary=self.feed.vocabulary_fingerprint,
      config=self._config_fingerprint('sentiment'), parent=lm.digest)
    seed = derive_seed(self.config.seed, 'sentiment')
    model = dataclasses.replace(self.config.model, memory_len=0, segment_len=stage.sentence_tokens)
    features = functools.partial(steps.make_features(model, self.mesh), lm.params)
    shape = Projection.of(stage)
    update = steps.make_sentiment_step(Adam.of(stage), shape, self.mesh)
    predict = steps.make_sentiment_predict(shape)

    def states():
      """States of the training and the held-out sentences."""
      nonlocal data
      if data is None:
        data = [
          sentence_states(part, features, batch_size=stage.batch_size, prefixes=stage.prefixes,
                          seed=seed)
          for part in split_sentences_set(sentences(), valid_share=stage.valid_share,
                                          batch_size=stage.batch_size, seed=seed)]
      return data

    def batches(start):
      return state_batches(
        states()[0], batch_size=stage.batch_size, prefix_share=stage.prefix_share, seed=seed,
        start_step=start, shard=process_shard())

    def evaluate(params):
      held_out = states()[1]
      positive = np.asarray(predict(params, held_out.h_bar)) > 0
      found = classification_report(positive[:, 0], held_out.label)
      if stage.prefixes:  # step 3 reads in mid-sentence
        label = np.repeat(held_out.label, stage.prefixes)
        found |= {f'prefix_{name}': value for name, value in classification_report(
          positive[:, 1:].ravel(), label).items() if name in ('accuracy', 'f1')}
      return found

    return self._run(Stage(
      name='sentiment', directory=stage_folder(self.config, self.workdir, 'sentiment'),
      identity=identity, config=stage, mesh=self.mesh, batches=batches, evaluate=evaluate,
      init_state=lambda: steps.init_sentiment_state(
        self.config.model.model_dim, stage, self.mesh, seed=seed),
      params_template=lambda: steps.sentiment_template(
        self.config.model.model_dim, stage, self.mesh),
      state_template=lambda: steps.sentiment_state_template(
        self.config.model.model_dim, stage, self.mesh),
      step=steps.bind(update, seed),
      batch_name=lambda step: f'sentences of step {step}, seed {seed}',
      work_per_step=stage.batch_size, work_unit='sentences'))

  def random_projection(self) -> Trained:
    """f_sh as step 2 finds it before its first step: a control reads it in place of the trained."""
    seed = derive_seed(self.config.seed, 'sentiment')
    params = steps.init_sentiment_state(
      self.config.model.model_dim, self.config.sentiment, self.mesh, seed=seed).params
    identity = Identity(stage='sentiment', vocabulary=self.feed.vocabulary_fingerprint,
                        config=self._config_fingerprint('sentiment'), method='random_projection')
    return Trained(params, identity, params_digest(params), self.workdir / 'sentiment')

  def train_debias(
    self, lm: Trained, *, method: str, weight: float = 0.0, projection: Trained | None = None
  ) -> Trained:
    """Step 3 for one variant.

    Args:
      lm: of step 1.
      method: `embedding`, `sentiment`, `random_projection` (control: the step of `sentiment` with
        the f_sh of `random_projection()`) or `none` (control: plain loss on the whole stream).
      weight: lambda.
      projection: of step 2, for `sentiment`.
    """
    if method == 'none':
      name = debias_name('', 'none', 0.0)
      return self._train_plain(lm, name=name, method='none',
                               directory=stage_folder(self.config, self.workdir, f'debias/{name}'))
    stage, attribute = self.config.debias, pathlib.Path(self.config.attribute).stem
    name = debias_name(attribute, method, weight)
    term = 'embedding' if method == 'embedding' else 'sentiment'
    if method == 'random_projection':
      projection = self.random_projection()
    identity = Identity(
      stage='debias', vocabulary=self.feed.vocabulary_fingerprint,
      config=self._config_fingerprint('debias'), method=method, fairness_weight=weight,
      attribute=attribute, attribute_fingerprint=self.feed.attribute_fingerprint,
      parent=lm.digest, projection=projection.digest if term == 'sentiment' else '')
    # One seed for all variants: they see the same data and dropout, and differ in the loss only.
    seed = derive_seed(self.config.seed, 'debias')
    update = steps.make_debias_step(
      self.config.model, Adam.of(stage), FairnessTerm.of(stage, self.config.sentiment), self.mesh,
      stage.parts)
    weights = {name: np.float32(weight if name == term else 0.0)
               for name in ('embedding', 'sentiment')}
    # Handed over for `embedding` too, with weight 0: then both methods share one program.
    extra = (weights, None if projection is None else projection.params)
    return self._run_lm(
      f'debias/{name}', self.workdir / 'debias' / name, identity, stage, 'train_sensitive',
      branches=True, step=steps.bind(update, seed, *extra),
      init=lambda: steps.init_lm_state(
        self.config.model, stage, self.mesh, seed=seed, params=lm.params))

  def train_mitigation(self, lm: Trained, variant: Variant, *, feed: Feed | None = None) -> Trained:
    """Goes on as the control of step 3 does, but with dropout or on counterfactual text (W-13..15).

    Args:
      lm: of step 1.
      variant: its method is `dropout` or `cda`.
      feed: of `cda`: the augmented text in the vocabulary of step 1.
    """
    config = variant_config(self.config, variant)
    phase, name = dataclasses.replace(self, config=config, feed=feed or self.feed), variant_name(
      '', variant)
    return phase._train_plain(lm, name=name, method=variant.method,
                              directory=stage_folder(self.config, self.workdir, f'debias/{name}'))

  def _train_plain(
    self, lm: Trained, *, name: str, method: str, directory: pathlib.Path) -> Trained:
    """The plain loss on the whole stream, from the model of step 1, for the steps of step 3."""
    stage, seed = self.config.debias, derive_seed(self.config.seed, 'debias')
    identity = Identity(
      stage='debias', vocabulary=self.feed.vocabulary_fingerprint,
      config=self._config_fingerprint('debias'), method=method, parent=lm.digest)
    update = steps.make_lm_step(self.config.model, Adam.of(stage), self.mesh, stage.parts)
    return self._run_lm(
      f'debias/{name}', directory, identity, stage, 'train', branches=False,
      step=steps.bind(update, seed),
      init=lambda: steps.init_lm_state(
        self.config.model, stage, self.mesh, seed=seed, params=lm.params))

  def train_on(self, lm: Trained, *, name: str) -> Trained:
    """Goes on with the plain loss on the whole stream, as the control of step 3, from any model.

    Args:
      lm: what to start from, a debiased model for example.
      name: folder of the stage in the workdir.
    """
    stage, seed = self.config.debias, derive_seed(self.config.seed, name)
    identity = Identity(
      stage='debias', vocabulary=self.feed.vocabulary_fingerprint,
      config=self._config_fingerprint('debias'), method='none', parent=lm.digest)
    update = steps.make_lm_step(self.config.model, Adam.of(stage), self.mesh, stage.parts)
    return self._run_lm(
      name, self.workdir / name, identity, stage, 'train', branches=False,
      step=steps.bind(update, seed),
      init=lambda: steps.init_lm_state(
        self.config.model, stage, self.mesh, seed=seed, params=lm.params))

  def _run_lm(self, name, directory, identity, stage, split, *, branches, init, step) -> Trained:
    """Runs a stage that trains the language model on a token stream."""
    return self._run(Stage(
      name=name, directory=directory, identity=identity, config=stage, mesh=self.mesh,
      init_state=init, step=step,
      evaluate=lambda params: self._evaluate_lm(params, stage),
      params_template=lambda: steps.params_template(self.config.model, self.mesh),
      state_template=lambda: steps.lm_state_template(self.config.model, stage, self.mesh),
      batches=lambda start: self.feed.train(
        split, batch_size=stage.batch_size, start_step=start, branches=branches),
      batch_name=lambda step: self.feed.batch_name(split, step, batch_size=stage.batch_size),
      work_per_step=stage.batch_size * self.config.model.segment_len))

  def _evaluate_lm(self, params, stage) -> dict[str, float]:
    """Validation loss and perplexity."""
    batches = self.feed.valid(batch_size=stage.batch_size)
    if stage.eval_batches:
      batches = (batch for _, batch in zip(range(stage.eval_batches), batches, strict=False))
    total, tokens = evaluate_nll(self.config.model, params, batches, self.mesh)
    more = {} if self.more_metrics is None else self.more_metrics(params)
    return {'loss': total / tokens, 'perplexity': math.exp(total / tokens), **more}

  def _run(self, stage: Stage) -> Trained:
    if stage.directory.is_relative_to(self.workdir):
      params = run_stage(stage, stop=self.stop, log=self.log)
    else:  # of the run that step1_from names, which is only read
      params = load_params(stage.directory, stage.params_template(), stage.identity)
      self.log(f'[{stage.name}] that of {stage.directory}: nothing to do')
    return Trained(params, stage.identity, params_digest(params), stage.directory)

  def _config_fingerprint(self, stage: str) -> str:
    return fingerprint(stage_fields(self.config, stage))


def stage_fields(config: Config, stage: str) -> dict[str, Any]:
  """The fields that the result of `lm`, `sentiment` or `debias` depends on, besides its parents."""
  values = to_dict(config)
  own = dict(values[stage])
  for field in ('variants', 'extended_baseline', 'random_projection', 'log_every',
                'keep_checkpoints', 'max_skipped'):
    own.pop(field, None)
  augmented = values['data']['cda']  # without it, these fields change nothing
  data = {k: v for k, v in values['data'].items()
          if f'data.{k}' not in MACHINE_FIELDS and (augmented or not k.startswith('cda'))
          and (v or k != 'planted_one_mood')}  # which earlier runs lack
  return {'seed': values['seed'], 'model': values['model'], 'data': data, stage: own}


def stage_folder(config: Config, workdir: pathlib.Path, name: str) -> pathlib.Path:
  """Folder of a stage whose result no attribute changes: in the workdir, or in another run's.

  With `step1_from` step 1 is always the other run's; the others are where it has finished them with
  equal fields, unless the workdir has begun its own.

  Args:
    config: of the run.
    workdir: of the run.
    name: `lm`, `sentiment`, or `debias/NAME` of a variant without a fairness term.
  """
  own, other = workdir / name, step1_run(config, workdir)
  if other is None or (name != 'lm' and own.exists()):
    return own
  found, stage = stage_folder(*other, name), name.partition('/')[0]
  equal = (found / 'DONE').exists() and stage_fields(config, stage) == stage_fields(
    dataclasses.replace(other[0], model=config.model), stage)
  return found if equal or name == 'lm' else own


def debias_name(attribute: str, method: str, weight: float) -> str:
  """Folder and model name of a variant, e.g. `country-random-projection-1`; `extended-baseline`."""
  if method == 'none':
    return 'extended-baseline'
  return f"{attribute}-{method.replace('_', '-')}-{weight:g}"


def variant_name(attribute: str, variant: Variant) -> str:
  """Folder and model name of a variant: `country-sentiment-10`, `dropout-0.15-0.2`, `cda-two`."""
  if variant.method == 'dropout':
    return f'dropout-{variant.rates[0]:g}-{variant.rates[1]:g}'
  if variant.method == 'cda':
    return f'cda-{variant.sided}'
  return debias_name(attribute, variant.method, variant.weight)


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
