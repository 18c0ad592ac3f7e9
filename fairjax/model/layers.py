"""One layer of the Transformer-XL (Dai et al. 2019, section 3.3), on a segment and its branches."""

import functools
from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from fairjax.config import ModelConfig
from fairjax.model import partitioning
from fairjax.model.attention import branch_attention, drop
from fairjax.model.attention_paths import (
  all_but_halves,
  as_kept,
  halves,
  main_attention,
  takes_branches,
)

# Layer normalisation whose backward pass keeps x in its own dtype and two numbers a row;
# differentiating the formula would keep four arrays like x in float32.

_EPSILON = 1e-5


@jax.custom_vjp
def layer_norm(
  x: Float[Array, '*S D'], scale: Float[Array, 'D'], bias: Float[Array, 'D']
) -> Float[Array, '*S D']:
  """Layer normalisation (Ba et al. 2016) over the last axis; statistics in float32 or wider."""
  mean, rstd = _statistics(x)
  return _normalise(x, mean, rstd, scale, bias)


def _statistics(x):
  """Mean and reciprocal standard deviation [..., 1] of each row."""
  wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
  mean = wide.mean(-1, keepdims=True)
  variance = jnp.square(wide - mean).mean(-1, keepdims=True)
  return mean, 1 / jnp.sqrt(variance + _EPSILON)


def _normalise(x, mean, rate, scale, bias):
  normal, lead = (x.astype(mean.dtype) - mean) * rate, (None,) * (x.ndim - 1)
  return (normal * scale[lead] + bias[lead]).astype(x.dtype)


def _forward(x, scale, bias):
  mean, rate = _statistics(x)
  return _normalise(x, mean, rate, scale, bias), (x, mean, rate, scale, bias)


def _backward(saved, gradient):
  """Gradients of x, scale and bias, each in its dtype."""
  # With n the normalised row and g = gradient * scale, the gradient of x is the part of g that is
  # orthogonal to 1 and to n, over the standard deviation.
  x, mean, rate, scale, bias = saved
  gradient, rows = gradient.astype(mean.dtype), tuple(range(x.ndim - 1))
  normal = (x.astype(mean.dtype) - mean) * rate
  d_normal = gradient * scale[(None,) * len(rows)]
  d_x = rate * (d_normal - d_normal.mean(-1, keepdims=True)
                - normal * (d_normal * normal).mean(-1, keepdims=True))
  d_scale, d_bias = (gradient * normal).sum(rows), gradient.sum(rows)
  return d_x.astype(x.dtype), d_scale.astype(scale.dtype), d_bias.astype(bias.dtype)


layer_norm.defvjp(_forward, _backward)


@flax.struct.dataclass
class States:
  """Input and output of a layer: positions of the segment, then the pieces of its branches."""

  # One array, so that every product with a weight, and its gradient, is one product.
  now: Any  # [B, T + Q, D]
  before: Any = None  # output of the previous layer; None unless h-bar is read


@flax.struct.dataclass
class Context:
  """Inputs that all layers share."""

  memory_length: Any  # [B] int32, newest slots of the memory that a token sees
  distances: Any  # [R, D] embedded distances R - 1 down to 0 (P = 0 without branches)
  start: Any = None  # [B, K] int32, first position of each branch; None without branches
  replaced: Any = None  # [B, K, P] int32, the position whose dropout masks each piece uses


def keep_mask(
  key: Array | None, shape: tuple[int, ...], *, rate: float
) -> Bool[Array, '...'] | None:
  """Draws a dropout mask: each entry is true with probability 1 - rate; None if nothing drops."""
  if key is None or rate == 0:
    return None
  # Without the barrier the compiler draws the mask again at every use.
  return jax.lax.optimization_barrier(jax.random.bernoulli(key, 1.0 - rate, shape))


def relu_and_drop(
  x: Float[Array, '*S'], keep: Bool[Array, '*S'] | None, *, rate: float
) -> Float[Array, '*S']:
  """`drop` of the positive part of x; without `keep` nothing is dropped."""
  return _relu_and_drop(0.0 if keep is None else rate, x, keep)


# An output of 0 has no gradient, whether it was negative or dropped. So the backward pass needs the
# output only, which the next product keeps anyway, and no mask.
@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _relu_and_drop(rate, x, keep):
  return drop(jax.nn.relu(x), keep, rate=rate)


def _relu_and_drop_forward(rate, x, keep):
  y = _relu_and_drop(rate, x, keep)
  return y, y


def _relu_and_drop_backward(rate, y, gradient):
  return jnp.where(y > 0, gradient / (1.0 - rate), 0).astype(y.dtype), None


_relu_and_drop.defvjp(_relu_and_drop_forward, _relu_and_drop_backward)


def at_positions(
  mask: Bool[Array, 'B T X'] | None, positions: Int[Array, 'B K P']
) -> Bool[Array, 'B K P X'] | None:
  """Reads a segment's dropout mask at the positions that branch pieces replace."""
  if mask is None:
    return None
  rows = jnp.take_along_axis(mask, positions.reshape(positions.shape[0], -1)[:, :, None], axis=1)
  return rows.reshape(*positions.shape, mask.shape[-1])


def extend(mask: Array | None, replaced: Int[Array, 'B K P'] | None) -> Array | None:
  """A segment's dropout mask [B, T, X] for its positions and the pieces of its branches."""
  if mask is None or replaced is None:
    return mask
  rows = at_positions(mask, replaced)
  return jnp.concatenate([mask, rows.reshape(mask.shape[0], -1, mask.shape[2])], axis=1)


class Block(nn.Module):
  """Attention and feed-forward with residuals, post-norm (Dai et al.) or pre-norm."""

  config: ModelConfig

  @nn.compact
  def __call__(
    self, states: States,
    memory: Any,  # [B, M, D] inputs of this layer, or [2, N, B, M, H] keys and values
    key: Array | None,  # of the layer's dropout; None: no dropout
    biases: Any,  # (u, v), [N, H] each; empty if the layer has its own
    context: Context,
  ) -> tuple[States, Any]:
    """Runs one layer; returns its outputs, and its memory for the next segment without gradient."""
    weights = self._weights()
    biases = biases or (weights['content_bias'], weights['position_bias'])
    x = states.now
    num_pieces = 0 if context.start is None else context.replaced[0].size
    segment_len = x.shape[1] - num_pieces
    keeps = self._keeps(key, (x.shape[0], segment_len, x.shape[2]))
    attended, key_value = _attend(
      self.config, weights, biases, x, segment_len, memory, context, keeps)
    hidden_keeps = {name: extend(mask, context.replaced)
                    for name, mask in keeps.items() if name != 'attention'}
    new = _finish(self.config, weights, x, attended, hidden_keeps)
    if memory.ndim == 5:
      read = key_value[..., segment_len:, :]
    else:
      read = jnp.concatenate([memory, x[:, :segment_len]], axis=1)[:, segment_len:]
    before = None if states.before is None else x
    new = partitioning.constrain(new, 'rows')
    return States(now=new, before=before), jax.lax.stop_gradient(read)

  def _weights(self) -> dict[str, Array]:
    """Declares the parameters; scanned layers get them in the compute dtype, others are cast."""
    c = self.config
    dtype = jnp.dtype(c.dtype)
    param_dtype = jnp.promote_types(dtype, jnp.float32)
    normal = nn.initializers.normal(c.init_std)
    ones, zeros = nn.initializers.ones, nn.initializers.zeros
    width, heads = (c.model_dim,), (c.num_heads, c.head_dim)
    table: dict[str, tuple[Any, tuple[int, ...], tuple]] = {
      'query': (normal, width + heads, ('embed', 'heads', 'head_dim')),
      'key_value': (normal, width + (2,) + heads, ('embed', None, 'heads', 'head_dim')),
      'relative': (normal, width + heads, ('embed', 'heads', 'head_dim')),
      'output': (normal, heads + width, ('heads', 'head_dim', 'embed')),
      'attention_norm_scale': (ones, width, (None,)),
      'attention_norm_bias': (zeros, width, (None,)),
      'ff_in': (normal, width + (c.ff_dim,), ('embed', 'mlp')),
      'ff_in_bias': (zeros, (c.ff_dim,), ('mlp',)),
      'ff_out': (normal, (c.ff_dim,) + width, ('mlp', 'embed')),
      'ff_out_bias': (zeros, width, (None,)),
      'ff_norm_scale': (ones, width, (None,)),
      'ff_norm_bias': (zeros, width, (None,)),
    }
    if not c.tie_position_biases:
      table['content_bias'] = table['position_bias'] = (normal, heads, ('heads', 'head_dim'))
    boxed: Any = nn.with_logical_partitioning
    return {
      name: self.param(name, boxed(init, axes), shape, param_dtype).astype(dtype)
      for name, (init, shape, axes) in table.items()
    }

  def _keeps(self, key, shape) -> dict[str, Array | None]:
    """Draws the layer's dropout masks, and the seed of those of the attention weights."""
    c = self.config
    batch_size, segment_len, _ = shape
    keys = (None,) * 4 if key is None else tuple(jax.random.split(key, 4))
    hidden, drops = c.hidden_dropout, key is not None and c.attention_dropout > 0
    return {
      'attention': jax.random.bits(keys[0], (2,), 'uint32') if drops else None,
      'output': keep_mask(keys[1], shape, rate=hidden),
      'ff_in': keep_mask(keys[2], (batch_size, segment_len, c.ff_dim), rate=hidden),
      'ff_out': keep_mask(keys[3], shape, rate=hidden),
    }


def _attend(c, w, biases, x, segment_len, memory, context, keeps):
  """Attention sublayer up to its output projection, without the residual; keys and values."""
  def read(x):
    if c.norm == 'pre':
      x = layer_norm(x, w['attention_norm_scale'], w['attention_norm_bias'])
    return x

  x = read(x)
  cached = memory.ndim == 5
  joint = context.start is not None and not cached and takes_branches(
    c, segment_len, memory.shape[1], context.replaced.shape[1:])
  if cached:
    key_value = jnp.concatenate(
      [memory, _keys_and_values(w['key_value'], x[:, :segment_len])], axis=3)
  else:
    # The residual stream and the memory hold the states; the checkpoint avoids a third copy.
    def of_row(weight, memory, x):
      return _keys_and_values(weight, memory, x if joint else x[:, :segment_len])

    key_value = jax.checkpoint(of_row, prevent_cse=False)(w['key_value'], read(memory), x)
  relative = jnp.tensordot(context.distances, w['relative'], 1).swapaxes(0, 1)
  query = jnp.tensordot(x, w['query'], 1).transpose(2, 0, 1, 3)
  project_back = jax.checkpoint(_project_back, prevent_cse=False)
  u, v = biases
  if joint:
    attended = main_attention(
      c, query, key_value, relative, u, v, context.memory_length, start=context.start,
      segment_len=segment_len)
    return project_back(w['output'], attended), key_value
  seed = keeps['attention']
  kept = as_kept(c, key_value)
  relative_tail, near = jnp.split(relative, [relative.shape[1] - key_value.shape[3]], axis=1)
  attended = [main_attention(
    c, query[:, :, :segment_len], kept, near, u, v, context.memory_length, seed,
    segment_len=segment_len)]
  if context.start is not None:
    def of_branches(kept, query, weight, x, near, relative_tail, u, v):
      return branch_attention(
        query, *halves(kept), *halves(_keys_and_values(weight, x[:, segment_len:])), near,
        relative_tail, u, v, context.start, context.memory_length, context.replaced, seed,
        segment_len=segment_len, rate=c.attention_dropout)

    if kept is key_value:  # the array is kept, so its halves need not be
      of_branches = jax.checkpoint(of_branches, prevent_cse=False, policy=all_but_halves)
    attended.append(
      of_branches(kept, query[:, :, segment_len:], w['key_value'], x, near, relative_tail, u, v))
  return project_back(w['output'], *attended), key_value


def _project_back(weight, *attended):
  """Output projection [B, ., D] of attended values [N, B, ., H] that follow each other."""
  rows = jnp.concatenate([x.transpose(1, 2, 0, 3) for x in attended], axis=1)
  return jnp.tensordot(rows, weight, 2)


def _keys_and_values(weight, *states):
  """Keys and values [2, N, B, S, H] of states [B, ., D] that follow each other."""
  # `einsum` would put the weights on the left, and XLA on CPU would copy the states once and the
  # result twice to reorder them.
  rows = jnp.concatenate(states, axis=1)
  return jnp.tensordot(rows, weight, 1).transpose(2, 3, 0, 1, 4)


def _finish(c, w, x, attended, keeps):
  """Residual and norm of the attention sublayer, then the feed-forward sublayer."""
  rate = c.hidden_dropout
  lead = (None,) * (x.ndim - 1)
  x = x + drop(attended, keeps['output'], rate=rate)
  if c.norm == 'post':
    x = layer_norm(x, w['attention_norm_scale'], w['attention_norm_bias'])
  inner = x
  if c.norm == 'pre':
    inner = layer_norm(x, w['ff_norm_scale'], w['ff_norm_bias'])
  inner = jnp.einsum('...d,df->...f', inner, w['ff_in']) + w['ff_in_bias'][lead]
  inner = relu_and_drop(inner, keeps['ff_in'], rate=rate)
  inner = jnp.einsum('...f,fd->...d', inner, w['ff_out']) + w['ff_out_bias'][lead]
  x = x + drop(inner, keeps['ff_out'], rate=rate)
  return layer_norm(x, w['ff_norm_scale'], w['ff_norm_bias']) if c.norm == 'post' else x
