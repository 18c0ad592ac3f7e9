"""Train state and the jitted steps of the curriculum.

The learning rate, lambda, the seed and the frozen sentiment projection are arguments of the
programs, so that all stages and variants of one shape share them.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, cast

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh
from jaxtyping import Array, Float

from fairjax.config import DebiasConfig, SentimentConfig, TrainConfig
from fairjax.counterfactual import COUNT_NAMES
from fairjax.errors import UserError
from fairjax.model import Branches, CausalLM, Documents, Params, SentimentProjection, State
from fairjax.model.causal_lm import join_rows, split_rows, wide
from fairjax.model.decoder import with_adapters
from fairjax.train.metrics import Metrics
from fairjax.train.optimizer import Adam
from fairjax.train.sharding import (
  axes_sharding,
  model_problems,
  on_mesh,
  replicated,
  sharded_shapes,
  tree_shardings,
)

# Losses of the curriculum: fairness, sentiment, and the divergence monitor, in float32 (float64
# where the inputs are), also for a model in bfloat16. Letters as in `fairjax.model`.

def weighted_mean(
  values: Float[Array, '*S'], weights: Float[Array, '*S'],
  total: Float[Array, ''] | None = None,
) -> Float[Array, '']:
  """Mean of `values` under `weights` >= 0; 0.0 when every weight is 0."""
  # Values under a zero weight never reach the result, NaN included. `total` replaces the sum of the
  # weights.
  total = weights.sum() if total is None else total
  used = jnp.where(weights > 0, values, 0.0)
  return jnp.where(total > 0, (used * weights).sum() / jnp.where(total > 0, total, 1.0), 0.0)


def cosine_fairness_loss(
  hidden: Float[Array, 'B K D'], hidden_cf: Float[Array, 'B K D'], weights: Float[Array, 'B K'],
  *, total: Float[Array, ''] | None = None,
) -> Float[Array, '']:
  r"""Distance between the hidden states of a prefix and its counterfactual.

  Huang et al. 2020 (arXiv:1911.03064), section 4 (H-21; H-22 on the sentiment projection):

  .. math:: R = 1 - \cos\bigl(h(x_{1:i}), h(\tilde x_{1:i})\bigr)

  as a weighted mean over pairs.

  A weight of 0 marks padding. `total` (default: the sum of the weights) divides the weighted sum,
  so that microbatches give their share of the whole batch's mean. 1e-6 is the floor of the squared
  norms: zero vectors give loss 1 and finite gradients. In [0, 2]; 0.0 if every weight is 0.

  >>> h = jnp.array([[[3.0, 0.0], [1.0, 0.0]]])
  >>> cf = jnp.array([[[0.0, 5.0], [2.0, 0.0]]])
  >>> float(cosine_fairness_loss(h, cf, jnp.ones((1, 2))))
  0.5
  """
  # Padding is replaced before the quotient: a NaN there would reach the gradient as 0 * NaN.
  a, b = (jnp.where(weights[..., None] > 0, wide(x), 1.0) for x in (hidden, hidden_cf))
  squared_norms = (jnp.maximum(jnp.square(v).sum(-1), 1e-6) for v in (a, b))
  norm_a, norm_b = (jnp.sqrt(s) for s in squared_norms)
  cosine = (a * b).sum(-1) / (norm_a * norm_b)
  return weighted_mean(1.0 - cosine, weights, total)


def next_token_divergences(
  logits: Float[Array, 'B K V'], logits_cf: Float[Array, 'B K V'], weights: Float[Array, 'B K']
) -> dict[str, Float[Array, '']]:
  """How far the next-token distributions of a pair are apart, without sampling."""
  # `kl`: mean KL(original || counterfactual), nats, >= 0; `js`: mean Jensen-Shannon divergence,
  # nats, in [0, ln 2]. A weight of 0 marks padding.
  log_p, log_q = (jax.nn.log_softmax(wide(x), axis=-1) for x in (logits, logits_cf))
  log_m = jnp.logaddexp(log_p, log_q) - jnp.log(2.0).astype(log_p.dtype)

  def kl(log_a, log_b):
    return jnp.sum(jnp.exp(log_a) * (log_a - log_b), axis=-1)

  js = 0.5 * (kl(log_p, log_m) + kl(log_q, log_m))
  return {'kl': weighted_mean(kl(log_p, log_q), weights), 'js': weighted_mean(js, weights)}


def binary_cross_entropy(
  logits: Float[Array, 'B'], labels: Float[Array, 'B']
) -> Float[Array, '']:
  """Mean logistic loss, nats; `labels` are 1 (positive) or 0 (negative)."""
  logits = wide(logits)
  return jnp.mean(jax.nn.softplus(logits) - labels * logits)


# From a loss to a training step: gradients, accumulated if wanted, and the optimizer.

@flax.struct.dataclass
class Guard:
  """Decides whether an update is made, and counts skipped ones."""
  # It is part of the state, because a resumed run must decide as an uninterrupted one does.

  in_a_row: jax.Array  # [] int32, updates skipped since the last one that was made
  total: jax.Array  # [] int32, updates skipped at all
  made: jax.Array  # [] int32, losses that went into `losses`
  losses: jax.Array | None  # [spike_window] float32, of the last updates; None without spikes

  @classmethod
  def fresh(cls, adam: Adam) -> 'Guard':
    """A guard that has skipped nothing and seen no loss."""
    zero = jnp.zeros((), jnp.int32)
    losses = jnp.zeros((adam.spike_window,), jnp.float32) if adam.spike_sigmas else None
    return cls(zero, zero, zero, losses)

  def allows(self, adam: Adam, loss: jax.Array, norm: jax.Array) -> jax.Array:
    """Whether the update is made, `[]` bool."""
    # No update if loss or gradient norm is not finite; if the loss is `spike_sigmas` standard
    # deviations above the mean of a full window; or after `max_skipped` skipped ones in a row: the
    # state then stays until the loop, which reads the counts at intervals, stops the run.
    ok = jnp.isfinite(loss) & jnp.isfinite(norm) & (self.in_a_row < adam.max_skipped)
    if adam.spike_sigmas:
      limit = self.losses.mean() + adam.spike_sigmas * self.losses.std()
      ok &= (self.made < adam.spike_window) | (loss.astype(jnp.float32) <= limit)
    return ok

  def after(self, adam: Adam, ok: jax.Array, loss: jax.Array) -> 'Guard':
    """The guard of the next step."""
    losses = self.losses
    if adam.spike_sigmas:
      entered = losses.at[self.made % adam.spike_window].set(loss.astype(jnp.float32))
      losses = jnp.where(ok, entered, losses)
    skipped = (~ok).astype(jnp.int32)
    return Guard(in_a_row=skipped * (self.in_a_row + 1), total=self.total + skipped,
                 made=self.made + (1 - skipped), losses=losses)


@flax.struct.dataclass
class TrainState:
  """Arrays only, so that it can be donated, sharded and saved as it is."""

  step: jax.Array  # [] int32, steps done, with those whose update was skipped
  params: Any
  opt_state: Any
  memory: State | None  # of the language model; None for the sentiment projection
  guard: Guard

  @classmethod
  def fresh(cls, params: Any, adam: Adam, memory: State | None = None) -> 'TrainState':
    """The state before the first step."""
    return cls(step=jnp.zeros((), jnp.int32), params=params,
               opt_state=adam.transformation().init(params), memory=memory,
               guard=Guard.fresh(adam))


class Jitted(Protocol):
  """A jitted function."""

  def __call__(self, *arguments: Any) -> Any:
    """Runs it."""

  def lower(self, *arguments: Any) -> jax.stages.Lowered:
    """The program for arguments that exist, or abstract ones."""


def make_update(
  loss_fn: Callable, adam: Adam, *, grad_accum_steps: int = 1,
  prepare: Callable[[dict[str, Any]], dict[str, Any]] = lambda batch: batch,
) -> Callable:
  """Turns `loss_fn(params, memory, batch, key, *extra) -> (loss, (memory, metrics))` to a step."""
  # The step is `step(state, batch, seed, learning_rate, *extra) -> (state, metrics)`. The loss is a
  # mean over the rows of the batch that it gets, which also holds `step` and what `prepare` adds:
  # scalars of the whole batch. The key is a function of (seed, step). Gradients of
  # `grad_accum_steps` microbatches are averaged: the result is that of the whole batch up to
  # rounding, except that dropout draws other masks. Where the guard of the state does not allow the
  # update, parameters, optimizer and memory stay as they were, and the metric `skipped` is 1.
  def step(state: TrainState, batch, seed, learning_rate, *extra) -> tuple[TrainState, Metrics]:
    key = jax.random.fold_in(jax.random.key(seed), state.step)
    batch = prepare(dict(batch) | {'step': state.step})
    gradient = jax.grad(loss_fn, has_aux=True)
    if grad_accum_steps == 1:
      gradients, (memory, metrics) = gradient(state.params, state.memory, batch, key, *extra)
    else:
      gradients, memory, metrics = _accumulate(
        gradient, state, batch, key, extra, grad_accum_steps)
    params, opt_state = adam.update(gradients, state.opt_state, state.params, learning_rate)
    one, norm = jnp.ones(()), optax.tree.norm(adam.trained(gradients))
    loss = metrics.get('total_loss', metrics['loss'])[0]
    ok = state.guard.allows(adam, loss, norm)
    params, opt_state, memory = jax.tree.map(
      lambda new, old: jnp.where(ok, new, old), (params, opt_state, memory),
      (state.params, state.opt_state, state.memory))
    metrics = metrics | {'grad_norm': (norm, one), 'learning_rate': (learning_rate, one),
                         'skipped': (1.0 - ok, one)}
    guard = state.guard.after(adam, ok, loss)
    return TrainState(state.step + 1, params, opt_state, memory, guard), metrics

  return step


def _accumulate(gradient, state, batch, key, extra, count):
  """Means of the gradients and metrics over the microbatches, and the memory of all rows."""
  rows = {name: split_rows(x, count) for name, x in batch.items() if x.ndim}
  scalars = {name: x for name, x in batch.items() if not x.ndim}
  memory = jax.tree.map(
    lambda x: split_rows(x, count, axis=int(x.ndim > 1)), state.memory)

  def body(total, xs):
    number, own_rows, own_memory = xs
    found, (new_memory, metrics) = gradient(
      state.params, own_memory, own_rows | scalars, jax.random.fold_in(key, number), *extra)
    return jax.tree.map(jnp.add, total, found), (new_memory, metrics)

  total, (memory, metrics) = jax.lax.scan(
    body, jax.tree.map(jnp.zeros_like, state.params), (jnp.arange(count), rows, memory))
  means = {name: (jnp.where(w.sum() > 0, (v * w).sum() / jnp.maximum(w.sum(), 1e-30), 0), w.sum())
           for name, (v, w) in metrics.items()}
  memory = jax.tree.map(lambda x: join_rows(x, axis=int(x.ndim > 2)), memory)
  return jax.tree.map(lambda g: g / count, total), memory, means


def projection_of(stage: SentimentConfig) -> SentimentProjection:
  """f_sh as a configuration says."""
  return SentimentProjection(num_layers=stage.num_layers, hidden_dim=stage.hidden_dim)


class FairnessTerm(NamedTuple):
  """Fields of the debiasing configuration that a compiled step depends on."""

  gradient: str
  sentiment_layer: str
  monitor_every: int
  projection: SentimentProjection

  @classmethod
  def of(cls, stage: DebiasConfig, sentiment: SentimentConfig) -> 'FairnessTerm':
    """Takes the settings of a configuration."""
    return cls(stage.gradient, stage.sentiment_layer, stage.monitor_every, projection_of(sentiment))


def state_sharding(model: CausalLM, mesh: Mesh, *, cached: bool = False) -> State:
  """Shardings of a model's state: its rows are on the devices of the batch's rows."""
  axes = model.state_axes(cached=cached)
  return jax.tree.map(
    lambda names: axes_sharding(names, mesh), axes, is_leaf=lambda x: isinstance(x, tuple))


@functools.lru_cache
def params_template(model: CausalLM, mesh: Mesh) -> Params:
  """Abstract parameters (`jax.ShapeDtypeStruct` with shardings) of the language model."""
  _check_model(model, mesh)
  abstract = jax.eval_shape(model.init, jax.random.key(0))
  shardings = tree_shardings(abstract, mesh)
  return sharded_shapes(nn.unbox(abstract), shardings)


def init_lm_state(
  model: CausalLM, stage: TrainConfig, mesh: Mesh, *, seed: int,
  params: Params | None = None,
) -> TrainState:
  """Fresh train state with empty memory, from a copy of `params` or random ones of the seed."""
  init, _ = _make_init(model, Adam.of(stage), stage.batch_size, mesh)
  return init(jax.random.key(seed), params)


def lm_state_template(
  model: CausalLM, stage: TrainConfig, mesh: Mesh
) -> TrainState:
  """What `init_lm_state` makes, as `jax.ShapeDtypeStruct` with shardings; allocates nothing."""
  return _make_init(model, Adam.of(stage), stage.batch_size, mesh)[1]


@functools.lru_cache
def _make_init(
  model: CausalLM, adam: Adam, batch_size: int, mesh: Mesh
) -> tuple[Callable, TrainState]:
  """Jitted `init(key, params or None) -> TrainState`, and its abstract result."""
  def init(key, given):
    boxed = model.init(key)
    if given is not None:
      boxed = nn.meta.replace_boxed(boxed, jax.tree.map(jnp.copy, given))
    return TrainState.fresh(boxed, adam, memory=model.init_state(batch_size))

  _check_model(model, mesh)
  abstract = jax.eval_shape(init, jax.random.key(0), None)
  shardings = tree_shardings(abstract, mesh).replace(memory=state_sharding(model, mesh))
  template = sharded_shapes(nn.unbox(abstract), shardings)
  return jax.jit(lambda key, given: nn.unbox(init(key, given)), out_shardings=shardings), template


@functools.lru_cache
def make_lm_step(
  model: CausalLM, adam: Adam, mesh: Mesh, grad_accum_steps: int = 1
) -> Jitted:
  """Step 1 of the curriculum, and its continuation as the control of footnote 6 (H-18, H-26).

  Returns:
    `step(state, batch, seed, learning_rate) -> (state, metrics)`; batch holds `inputs`, `targets`
    [B, T] int32 and `reset` [B] bool; for decoders also `segment_ids`, `positions` and `weights`.
    The state is donated. Where it holds adapters, a last argument is the base: the parameters that
    do not move.
  """
  def loss_fn(params, memory, batch, key, base=None):
    whole = params if base is None else with_adapters(base, params)
    output = model.apply(whole, batch['inputs'], memory.reset(batch['reset']), dropout_key=key,
                         documents=Documents.from_batch(batch))
    nll = _mean_nll(model, whole, output, batch, grad_accum_steps)
    return nll, (output.state, {'loss': (nll, jnp.ones(()))})

  return _JittedStep(make_update(
    loss_fn, adam, grad_accum_steps=grad_accum_steps, prepare=_with_totals), mesh)


def _with_totals(batch: dict[str, Any]) -> dict[str, Any]:
  """Adds the numbers of pairs and of predicted tokens of the whole batch, where it weighs them."""
  sources = {'pairs': 'branch_weight', 'predicted': 'weights'}
  return batch | {
    name: batch[source].sum() for name, source in sources.items() if source in batch}


def _mean_nll(model, params, output, batch, grad_accum_steps) -> Float[Array, '']:
  """Mean over the tokens that a batch predicts: all, or those with a weight."""
  if 'weights' not in batch:
    return model.mean_nll(params, output.hidden, batch['targets'])
  nll = model.nll(params, output.hidden, batch['targets'])
  return weighted_mean(nll, batch['weights'], batch['predicted'] / grad_accum_steps)


@functools.lru_cache
def make_debias_step(
  model: CausalLM, adam: Adam, term: FairnessTerm, mesh: Mesh,
  grad_accum_steps: int = 1,
) -> Jitted:
  r"""Step 3 (H-20..H-23): one forward pass for the originals and their counterfactual branches.

  .. math:: L = L_{LM}(x) + \lambda L_{fairness}(h(x_{1:i}), h(\tilde x_{1:i}))

  Returns:
    `step(state, batch, seed, learning_rate, weights, projection) -> (state, metrics)`, with the
    base of adapters as in `make_lm_step`; batch also holds the `branch_*` arrays. `weights` maps
    `embedding` and `sentiment` to lambda (one of them is 0 in the paper). `projection`: frozen
    parameters of f_sh, or None where its weight is 0.
    The fairness loss is the mean over the pairs of the whole batch.
  """
  def loss_fn(params, memory, batch, key, weights, projection, base=None):
    branches = Branches.from_batch(batch)
    params = params if base is None else with_adapters(base, params)
    output = model.apply(
      params, batch['inputs'], memory.reset(batch['reset']), branches, dropout_key=key,
      documents=Documents.from_batch(batch))
    nll = _mean_nll(model, params, output, batch, grad_accum_steps)
    pairs, (_, _, used) = output.pairs, branches.compared()
    h, h_cf = pairs.h_bar, pairs.h_bar_branch
    if term.gradient == 'branch':
      h = jax.lax.stop_gradient(h)
    count, one = batch['pairs'], jnp.ones(())
    mean = functools.partial(
      cosine_fairness_loss, weights=used, total=count / grad_accum_steps)
    losses = {'embedding': mean(h, h_cf)}
    if projection is not None:
      losses['sentiment'] = mean(*(_project(term, projection, x) for x in (h, h_cf)))
    weighted = sum(weights[name] * loss for name, loss in losses.items())
    metrics = {'loss': (nll, one), 'total_loss': (nll + weighted, one),
               'cosine': (1.0 - losses['embedding'], count), 'pairs_per_batch': (count, one)}
    metrics |= {f'fairness_loss/{name}': (loss, count) for name, loss in losses.items()}
    for name, total in zip(COUNT_NAMES, batch['branch_counts'].sum(0), strict=True):
      metrics[f'branches/{name}'] = (grad_accum_steps * total.astype(jnp.float32), one)
    if term.monitor_every:
      metrics |= _monitor(params, pairs, branches.weight, batch['step'])
    return nll + weighted, (output.state, metrics)

  def _monitor(params, pairs, weight, step):
    def divergences(hidden):
      # Both sides in one product: the table of all words is read once.
      logits = model.logits(params, jnp.concatenate(hidden, axis=1))
      found = next_token_divergences(*jnp.split(logits, 2, axis=1), weight)
      return found['kl'], found['js'], weight.sum()

    hidden = jax.lax.stop_gradient((pairs.hidden, pairs.hidden_branch))
    params = jax.lax.stop_gradient(params)
    if term.monitor_every == 1:
      kl, js, count = divergences(hidden)
    else:
      none = jax.tree.map(
        lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(divergences, hidden))
      kl, js, count = jax.lax.cond(
        step % term.monitor_every == 0, divergences, lambda _: none, hidden)
    return {'kl': (kl, count), 'js': (js, count)}

  return _JittedStep(make_update(
    loss_fn, adam, grad_accum_steps=grad_accum_steps, prepare=_with_totals), mesh)


def init_sentiment_state(
  model_dim: int, stage: SentimentConfig, mesh: Mesh, *, seed: int
) -> TrainState:
  """Fresh state of f_sh (H-19), replicated on every device."""
  init = functools.partial(_init_sentiment_state, model_dim, stage)
  return jax.jit(init, out_shardings=replicated(mesh))(jax.random.key(seed))


def sentiment_state_template(model_dim: int, stage: SentimentConfig, mesh: Mesh) -> TrainState:
  """What `init_sentiment_state` makes, as `jax.ShapeDtypeStruct` with shardings."""
  init = functools.partial(_init_sentiment_state, model_dim, stage)
  return sharded_shapes(jax.eval_shape(init, jax.random.key(0)), replicated(mesh))


@functools.lru_cache
def make_sentiment_step(adam: Adam, projection: SentimentProjection, mesh: Mesh) -> Jitted:
  """Step 2 (H-19): f_sh on h-bar of the frozen language model.

  Returns:
    `step(state, batch, seed, learning_rate) -> (state, metrics)`; batch holds `h_bar` [B, D]
    float32 and `label` [B] float32 (1 positive).
  """
  def loss_fn(params, memory, batch, key):
    logit, _ = projection.apply({'params': params}, batch['h_bar'])
    loss = binary_cross_entropy(logit, batch['label'])
    accuracy = jnp.mean((logit > 0) == (batch['label'] > 0.5))
    return loss, (memory, {'loss': (loss, jnp.ones(())), 'accuracy': (accuracy, jnp.ones(()))})

  return _JittedStep(make_update(loss_fn, adam), mesh)


@functools.lru_cache
def make_features(model: CausalLM, mesh: Mesh) -> Callable:
  """Jitted `features(lm_params, tokens [B, T], positions [B, P]) -> h-bar [B, P, D]` (H-20)."""
  # Every row is read from its beginning, without memory. A last argument may be its `Documents`.
  def features(lm_params, tokens, positions, documents=None):
    state = model.init_state(tokens.shape[0])
    return model.apply(
      lm_params, tokens, state, positions=positions, documents=documents).h_bar_at

  jitted = jax.jit(features, out_shardings=replicated(mesh))

  def call(*arguments):
    with on_mesh(mesh):
      return jitted(*arguments)

  return call


def _check_model(model: CausalLM, mesh: Mesh) -> None:
  problems = model_problems(model.config, mesh)
  if problems:
    raise UserError('; '.join(problems))


def _init_sentiment_state(model_dim: int, stage: SentimentConfig, key: jax.Array) -> TrainState:
  params = projection_of(stage).init(key, jnp.zeros((1, model_dim)))['params']
  return TrainState.fresh(nn.unbox(params), Adam.of(stage))


class BoundStep:
  """`step(state, batch, learning rate)` of a jitted update."""

  def __init__(self, update: Jitted, seed: int, *extra: Any):
    self._update, self._seed, self._extra = update, seed, extra

  def __call__(self, state: TrainState, batch: Mapping[str, jax.Array], rate: np.float32
               ) -> tuple[TrainState, Metrics]:
    """The state after one update, and its metrics."""
    return self._update(state, batch, self._seed, rate, *self._extra)

  def lower(self, state: TrainState, batch: Mapping[str, jax.Array], rate: np.float32
            ) -> jax.stages.Lowered:
    """The program for arguments that exist, or abstract ones."""
    return self._update.lower(state, batch, self._seed, rate, *self._extra)


def _project(term: FairnessTerm, projection: Params, h: jax.Array) -> jax.Array:
  """The output of the frozen f_sh on h (H-22): its last hidden layer, or (1 - p, p)."""
  logit, hidden = cast(tuple, term.projection.apply({'params': projection}, h))
  if term.sentiment_layer == 'hidden':
    return hidden
  # The cosine of two single logits is only their sign; the pair of probabilities has an angle.
  return jnp.stack([jax.nn.sigmoid(-logit), jax.nn.sigmoid(logit)], axis=-1)


class _JittedStep:
  """Jits with the state donated and its shardings kept, so that no later step compiles again."""

  def __init__(self, step: Callable, mesh: Mesh):
    self._step, self._mesh = step, mesh
    self._compiled: Any = None

  def _jitted(self, state: TrainState) -> Any:
    if self._compiled is None:
      shardings = jax.tree.map(lambda x: x.sharding, state)
      self._compiled = jax.jit(
        self._step, donate_argnums=0, out_shardings=(shardings, replicated(self._mesh)))
    return self._compiled

  def __call__(self, state: TrainState, *arguments: Any) -> Any:
    with on_mesh(self._mesh):
      return self._jitted(state)(state, *arguments)

  def lower(self, state: TrainState, *arguments: Any) -> jax.stages.Lowered:
    """The program for a state that exists, or an abstract one."""
    with on_mesh(self._mesh):
      return self._jitted(state).lower(state, *arguments)
