"""Train state and the jitted steps of the curriculum.

What is compiled depends on little: the learning rate, lambda, the seed and the frozen sentiment
projection are arguments, so that all stages and variants of one shape share their programs.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fairjax.config import DebiasConfig, ModelConfig, SentimentConfig, TrainConfig
from fairjax.errors import UserError
from fairjax.model import (
  Branches,
  Memory,
  SentimentProjection,
  TransformerXL,
  init_memory,
)
from fairjax.train.losses import (
  binary_cross_entropy,
  cosine_fairness_loss,
  next_token_divergences,
)
from fairjax.train.optimizer import Adam
from fairjax.train.sharding import ROWS, model_problems, on_mesh, replicated, tree_shardings
from fairjax.train.update import Guard, TrainState, make_update

Params = Any
BRANCH_COUNTS = ('hits', 'used', 'dropped_over_k', 'cut_by_border', 'too_long')
"""What the batch builder counts in each row (`branch_counts` [B, 5])."""


class Projection(NamedTuple):
  """Shape of f_sh."""

  num_layers: int
  hidden_dim: int

  @classmethod
  def of(cls, stage: SentimentConfig) -> 'Projection':
    """That of a configuration."""
    return cls(stage.num_layers, stage.hidden_dim)

  def module(self) -> SentimentProjection:
    """The Linen module."""
    return SentimentProjection(num_layers=self.num_layers, hidden_dim=self.hidden_dim)


class FairnessTerm(NamedTuple):
  """What of the debiasing configuration a compiled step depends on."""

  gradient: str
  sentiment_layer: str
  monitor_every: int
  projection: Projection

  @classmethod
  def of(cls, stage: DebiasConfig, sentiment: SentimentConfig) -> 'FairnessTerm':
    """That of a configuration."""
    return cls(stage.gradient, stage.sentiment_layer, stage.monitor_every, Projection.of(sentiment))


def memory_sharding(mesh: Mesh, *, cached: bool = False) -> Memory:
  """Rows of the memory live where the rows of the batch do; cached keys with their heads."""
  spec = PartitionSpec(None, None, 'model', ROWS) if cached else PartitionSpec(None, ROWS)
  return Memory(hidden=NamedSharding(mesh, spec), length=NamedSharding(mesh, PartitionSpec(ROWS)))


@functools.lru_cache
def params_template(model_config: ModelConfig, mesh: Mesh) -> Params:
  """Abstract parameters (`jax.ShapeDtypeStruct` with shardings) of the language model."""
  _check_model(model_config, mesh)
  abstract = jax.eval_shape(functools.partial(_init_params, model_config), jax.random.key(0))
  shardings = tree_shardings(abstract, mesh)
  return jax.tree.map(lambda leaf, sharding: jax.ShapeDtypeStruct(
    leaf.shape, leaf.dtype, sharding=sharding), nn.unbox(abstract), shardings)


def init_lm_state(
  model_config: ModelConfig, stage: TrainConfig, mesh: Mesh, *, seed: int,
  params: Params | None = None,
) -> TrainState:
  """Fresh train state with empty memory.

  Args:
    model_config: with its vocabulary size.
    stage: batch size and optimizer.
    mesh: of `make_mesh`.
    seed: of the initial parameters.
    params: start from a copy of these (debiasing) instead of random ones.
  """
  init, _ = _make_init(model_config, Adam.of(stage), stage.batch_size, mesh)
  return init(jax.random.key(seed), params)


def lm_state_template(
  model_config: ModelConfig, stage: TrainConfig, mesh: Mesh
) -> TrainState:
  """What `init_lm_state` makes, as `jax.ShapeDtypeStruct` with shardings; allocates nothing."""
  return _make_init(model_config, Adam.of(stage), stage.batch_size, mesh)[1]


@functools.lru_cache
def _make_init(
  model_config: ModelConfig, adam: Adam, batch_size: int, mesh: Mesh
) -> tuple[Callable, TrainState]:
  """Jitted `init(key, params or None) -> TrainState`, and its abstract result."""
  def init(key, given):
    boxed = _init_params(model_config, key)
    if given is not None:
      boxed = nn.meta.replace_boxed(boxed, jax.tree.map(jnp.copy, given))
    return TrainState(
      step=jnp.zeros((), jnp.int32), params=boxed, opt_state=adam.transformation().init(boxed),
      memory=init_memory(model_config, batch_size), guard=Guard.fresh(adam))

  _check_model(model_config, mesh)
  abstract = jax.eval_shape(init, jax.random.key(0), None)
  shardings = tree_shardings(abstract, mesh).replace(memory=memory_sharding(mesh))
  template = jax.tree.map(lambda leaf, sharding: jax.ShapeDtypeStruct(
    leaf.shape, leaf.dtype, sharding=sharding), nn.unbox(abstract), shardings)
  return jax.jit(lambda key, given: nn.unbox(init(key, given)), out_shardings=shardings), template


@functools.lru_cache
def make_lm_step(
  model_config: ModelConfig, adam: Adam, mesh: Mesh, parts: int = 1
) -> Callable:
  """Step 1 of the curriculum, and its continuation as the control of footnote 6 (H-18, H-26).

  Returns:
    `step(state, batch, seed, learning_rate) -> (state, metrics)`; batch holds `inputs`, `targets`
    [B, T] int32 and `reset` [B] bool. The state is donated. `parts`: see `make_update`.
  """
  model = TransformerXL(model_config)

  def loss_fn(params, memory, batch, key):
    output = model.apply({'params': params}, batch['inputs'], memory.reset(batch['reset']),
                         train=True, rngs={'dropout': key})
    nll = _nll(model, params, output.hidden, batch['targets'])
    return nll, (output.memory, {'loss': (nll, jnp.ones(()))})

  return _jit_step(make_update(loss_fn, adam, parts=parts), mesh)


@functools.lru_cache
def make_debias_step(
  model_config: ModelConfig, adam: Adam, term: FairnessTerm, mesh: Mesh, parts: int = 1
) -> Callable:
  r"""Step 3 (H-20..H-23): one forward pass for the originals and their counterfactual branches.

  .. math:: L = L_{LM}(x) + \lambda L_{fairness}(h(x_{1:i}), h(\tilde x_{1:i}))

  Returns:
    `step(state, batch, seed, learning_rate, weights, projection) -> (state, metrics)`; batch also
    holds the `branch_*` arrays. `weights` maps `embedding` and `sentiment` to lambda (one of them
    is 0 in the paper). `projection`: frozen parameters of f_sh, or None where its weight is 0.
    `parts`: see `make_update`; the fairness loss is the mean over the pairs of the whole batch.
  """
  model = TransformerXL(model_config)

  def loss_fn(params, memory, batch, key, weights, projection):
    branches = Branches.from_batch(batch)
    output = model.apply({'params': params}, batch['inputs'], memory.reset(batch['reset']),
                         branches, train=True, rngs={'dropout': key})
    nll = _nll(model, params, output.hidden, batch['targets'])
    pairs, used = output.pairs, branches.weight
    h, h_cf = pairs.h_bar, pairs.h_bar_branch
    if term.gradient == 'branch':
      h = jax.lax.stop_gradient(h)
    count, one = batch['pairs'], jnp.ones(())
    mean = functools.partial(cosine_fairness_loss, weights=used, total=count / parts)
    losses = {'embedding': mean(h, h_cf)}
    if projection is not None:
      losses['sentiment'] = mean(*(_project(term, projection, x) for x in (h, h_cf)))
    weighted = sum(weights[name] * loss for name, loss in losses.items())
    metrics = {'loss': (nll, one), 'total_loss': (nll + weighted, one),
               'cosine': (1.0 - losses['embedding'], count), 'pairs_per_batch': (count, one)}
    metrics |= {f'fairness_loss/{name}': (loss, count) for name, loss in losses.items()}
    for name, total in zip(BRANCH_COUNTS, batch['branch_counts'].sum(0), strict=True):
      metrics[f'branches/{name}'] = (parts * total.astype(jnp.float32), one)
    if term.monitor_every:
      metrics |= _monitor(model, params, pairs, used, batch['step'])
    return nll + weighted, (output.memory, metrics)

  def _monitor(model, params, pairs, weight, step):
    def divergences(hidden):
      # Both sides in one product: the table of all words is read once.
      logits = model.apply({'params': params}, jnp.concatenate(hidden, axis=1), method='logits')
      found = next_token_divergences(*jnp.split(logits, 2, axis=1), weight)
      return found['kl'], found['js'], weight.sum()

    hidden = jax.lax.stop_gradient((pairs.hidden, pairs.hidden_branch))
    params = jax.lax.stop_gradient(params)
    zero = jnp.zeros(())
    if term.monitor_every == 1:
      kl, js, count = divergences(hidden)
    else:
      kl, js, count = jax.lax.cond(
        step % term.monitor_every == 0, divergences, lambda _: (zero, zero, zero), hidden)
    return {'kl': (kl, count), 'js': (js, count)}

  return _jit_step(make_update(loss_fn, adam, parts=parts, prepare=lambda batch: (
    batch | {'pairs': batch['branch_weight'].sum()})), mesh)


def init_sentiment_state(
  model_dim: int, stage: SentimentConfig, mesh: Mesh, *, seed: int
) -> TrainState:
  """Fresh state of f_sh (H-19), replicated on every device."""
  init = functools.partial(_init_sentiment_state, model_dim, stage)
  return jax.jit(init, out_shardings=replicated(mesh))(jax.random.key(seed))


def sentiment_state_template(model_dim: int, stage: SentimentConfig, mesh: Mesh) -> TrainState:
  """What `init_sentiment_state` makes, as `jax.ShapeDtypeStruct` with shardings."""
  abstract = jax.eval_shape(
    functools.partial(_init_sentiment_state, model_dim, stage), jax.random.key(0))
  return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(
    leaf.shape, leaf.dtype, sharding=replicated(mesh)), abstract)


def sentiment_template(model_dim: int, stage: SentimentConfig, mesh: Mesh) -> Params:
  """Abstract parameters (`jax.ShapeDtypeStruct` with shardings) of f_sh."""
  abstract = jax.eval_shape(
    functools.partial(_init_projection, model_dim, stage), jax.random.key(0))
  return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(
    leaf.shape, leaf.dtype, sharding=replicated(mesh)), abstract)


@functools.lru_cache
def make_sentiment_step(adam: Adam, projection: Projection, mesh: Mesh) -> Callable:
  """Step 2 (H-19): f_sh on h-bar of the frozen language model.

  Returns:
    `step(state, batch, seed, learning_rate) -> (state, metrics)`; batch holds `h_bar` [B, D]
    float32 and `label` [B] float32 (1 positive).
  """
  module = projection.module()

  def loss_fn(params, memory, batch, key):
    logit, _ = module.apply({'params': params}, batch['h_bar'])
    loss = binary_cross_entropy(logit, batch['label'])
    accuracy = jnp.mean((logit > 0) == (batch['label'] > 0.5))
    return loss, (memory, {'loss': (loss, jnp.ones(())), 'accuracy': (accuracy, jnp.ones(()))})

  return _jit_step(make_update(loss_fn, adam), mesh)


@functools.lru_cache
def make_features(model_config: ModelConfig, mesh: Mesh) -> Callable:
  """Jitted `features(lm_params, tokens [B, T], positions [B, P]) -> h-bar [B, P, D]` (H-20).

  Every row is read from its beginning, without memory.
  """
  model = TransformerXL(model_config)

  def features(lm_params, tokens, positions):
    memory = init_memory(model_config, tokens.shape[0])
    return model.apply({'params': lm_params}, tokens, memory, positions=positions).h_bar_at

  jitted = jax.jit(features, out_shardings=replicated(mesh))

  def call(*arguments):
    with on_mesh(mesh):
      return jitted(*arguments)

  return call


@functools.lru_cache
def make_sentiment_predict(projection: Projection) -> Callable:
  """Jitted `predict(params, h_bar [..., D]) -> logit [...]`."""
  module = projection.module()
  return jax.jit(lambda params, h_bar: module.apply({'params': params}, h_bar)[0])


def _check_model(model_config: ModelConfig, mesh: Mesh) -> None:
  problems = model_problems(model_config, mesh)
  if problems:
    raise UserError('; '.join(problems))


def _init_params(model_config: ModelConfig, key: jax.Array) -> Params:
  # Parameters depend neither on lengths nor on how attention is computed.
  shortest = dataclasses.replace(model_config, memory_len=1, attention='shift')
  tokens = jnp.zeros((1, 1), jnp.int32)
  return TransformerXL(shortest).init(key, tokens, init_memory(shortest, 1))['params']


def _init_sentiment_state(model_dim: int, stage: SentimentConfig, key: jax.Array) -> TrainState:
  params, adam = _init_projection(model_dim, stage, key), Adam.of(stage)
  return TrainState(step=jnp.zeros((), jnp.int32), params=params, memory=None,
                    opt_state=adam.transformation().init(params), guard=Guard.fresh(adam))


def _init_projection(model_dim: int, stage: SentimentConfig, key: jax.Array) -> Params:
  module = Projection.of(stage).module()
  return nn.unbox(module.init(key, jnp.zeros((1, model_dim)))['params'])


def bind(update: Callable, seed: int, *extra: Any) -> Callable:
  """`step(state, batch, learning rate)` of a jitted update, with its `lower(...)`."""
  def step(state, batch, rate):
    return update(state, batch, seed, rate, *extra)

  step.lower = lambda state, batch, rate: update.lower(state, batch, seed, rate, *extra)
  return step


def _project(term: FairnessTerm, projection: Params, h: jax.Array) -> jax.Array:
  """What the frozen f_sh makes of h (H-22): its last hidden layer, or (1 - p, p)."""
  logit, hidden = term.projection.module().apply({'params': projection}, h)
  if term.sentiment_layer == 'hidden':
    return hidden
  # The cosine of two single logits is only their sign; the pair of probabilities has an angle.
  return jnp.stack([jax.nn.sigmoid(-logit), jax.nn.sigmoid(logit)], axis=-1)


def _nll(model: TransformerXL, params: Params, hidden: jax.Array, targets: jax.Array) -> jax.Array:
  return model.apply({'params': params}, hidden, targets, method='mean_nll')


def _jit_step(step: Callable, mesh: Mesh) -> Callable:
  """Jits with the state donated and kept where it lives, so that no later step compiles again.

  The result also has `lower(...)`, as jitted functions do, for states that exist or abstract ones.
  """
  compiled = None

  def jitted(state):
    nonlocal compiled
    if compiled is None:
      shardings = jax.tree.map(lambda x: x.sharding, state)
      compiled = jax.jit(
        step, donate_argnums=0, out_shardings=(shardings, replicated(mesh)))
    return compiled

  def call(state, *arguments):
    with on_mesh(mesh):
      return jitted(state)(state, *arguments)

  def lower(state, *arguments):
    with on_mesh(mesh):
      return jitted(state).lower(state, *arguments)

  call.cache_size = lambda: 0 if compiled is None else compiled._cache_size()
  call.lower = lower
  return call
