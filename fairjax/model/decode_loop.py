"""The loop that reads new tokens one by one, for any decoder that caches keys and values.

Keys and values of the new tokens lie in chunks. Each stage is a loop that fills one chunk, the only
one in its state; the chunks before it are constants of the loop and are never copied, and few
places that are still empty are read.

Letters: A prefixes (values of an attribute), R samples of each, Q padded prefix length, C places of
a chunk, N heads, H head width, D model width, V vocabulary.
"""

import abc
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

# A stage compiles all layers again: 30 layers of it are as much as a program should hold.
_STAGE_STEPS, _MAX_STAGES, _MAX_LAYERS = 10, 5, 30


class Chunk(NamedTuple):
  """Keys and values of C new tokens, [A, R, N, C, H] by layer."""

  keys: tuple[Array, ...]
  values: tuple[Array, ...]


class Decoder(abc.ABC):
  """What sampling needs of a language model.

  A decoder is hashable and equal to every other of the same model: compiled programs are kept by
  it. Parameters and what is made of them are arguments of its methods.

  Attributes:
    num_layers, num_heads, head_dim: of the model.
    vocab_size: V.
    dtype: of the computation.
    max_positions: most tokens of prefix and continuation together; None: no limit.
  """

  num_layers: int
  num_heads: int
  head_dim: int
  vocab_size: int
  dtype: str
  max_positions: int | None = None

  @abc.abstractmethod
  def describe(self) -> dict[str, Any]:
    """What decides the logits besides the parameters; JSON values."""

  @abc.abstractmethod
  def prepare(self, params: Any, *, num_positions: int) -> Any:
    """Weights for texts of at most so many tokens, prefix padding included."""

  @abc.abstractmethod
  def prefill(
    self, weights: Any, tokens: Int[Array, 'A Q'], lengths: Int[Array, 'A']
  ) -> tuple[Any, Float[Array, 'A D']]:
    """Reads prefixes that are padded on the left: their caches, and the input of `logits`."""

  @abc.abstractmethod
  def step(
    self, weights: Any, prefix: Any, filled: Sequence[Chunk], chunk: Chunk,
    tokens: Int[Array, 'A R'], index: Int[Array, ''],
  ) -> tuple[Float[Array, 'A R D'], Chunk]:
    """Reads one new token of every sample.

    Args:
      weights: of `prepare`.
      prefix: of `prefill`.
      filled: chunks of the first new tokens, without an empty place.
      chunk: of those behind them and before this one; later places hold anything finite.
      tokens: `[A, R]` int.
      index: number of new tokens before this one, among the places of `chunk`.

    Returns:
      The input of `logits`, and a chunk of one place with this token.
    """

  @abc.abstractmethod
  def logits(self, weights: Any, hidden: Float[Array, '*S D']) -> Float[Array, '*S V']:
    """Logits, float32 or wider."""


def cache_dtype(dtype: str, platform: str) -> jnp.dtype:
  """Of keys and values: `dtype`, but float32 for bfloat16 on CPU.

  Numbers of bfloat16 fit into float32 as they are, and XLA's products on CPU would make these of
  all keys and values in every step.

  Args:
    dtype: of the computation.
    platform: that runs it: 'cpu', 'gpu' or 'tpu'.

  >>> cache_dtype('bfloat16', 'cpu'), cache_dtype('bfloat16', 'tpu')
  (dtype('float32'), dtype(bfloat16))
  """
  dtype = jnp.dtype(dtype)
  return jnp.dtype(jnp.float32) if platform == 'cpu' and dtype == jnp.bfloat16 else dtype


def write_place(chunk: Chunk, new: Chunk, place: Int[Array, ''] | int) -> Chunk:
  """The chunk with the one token of `new` in a place."""
  return jax.tree.map(
    lambda c, n: jax.lax.dynamic_update_slice_in_dim(c, n, place, axis=3), chunk, new)


def run_decoding(
  decoder: Decoder, weights: Any, prefix: Any, first: Int[Array, 'A R'], carry: Any,
  consume: Callable[[Any, Array, Array], tuple[Any, Array, Array]], *,
  num_steps: int, stages: int | None = None, constrain: Callable[[Array], Array] = lambda x: x,
  platform: str | None = None,
) -> Any:
  """Reads up to `num_steps` new tokens; call it under `jax.jit`.

  Args:
    decoder: the model.
    weights: of `decoder.prepare`, for Q + num_steps positions.
    prefix: of `decoder.prefill`.
    first: `[A, R]` int, the first token to read.
    carry: any pytree of arrays.
    consume: `(carry, hidden [A, R, D], index) -> (carry, next tokens [A, R], go_on)`; `go_on` is a
      bool scalar, False ends the decoding.
    num_steps: most tokens to read.
    stages: number of chunks; more read fewer empty places and compile longer. None: one for each 10
      steps, at most 5, and fewer for models of more than 6 layers. Results do not depend on it
      beyond rounding.
    constrain: applied to the empty chunks, e.g. a sharding constraint on [A, R, N, C, H].
    platform: that runs it, 'cpu' or another; None: JAX's default.

  Returns:
    The last carry.
  """
  if stages is None:
    most = max(1, min(_MAX_STAGES, _MAX_LAYERS // decoder.num_layers))
    stages = min(-(-num_steps // _STAGE_STEPS), most)
  ends = sorted({-(-num_steps * (i + 1) // stages) for i in range(stages)} - {0})
  dtype = cache_dtype(decoder.dtype, platform or jax.default_backend())
  begin, state, filled = 0, (jnp.int32(0), first, jnp.bool_(True), carry), ()

  def body(begin, filled, loop):
    (index, tokens, _, carry), chunk = loop
    hidden, new = decoder.step(weights, prefix, filled, chunk, tokens, index)
    carry, tokens, go_on = consume(carry, hidden, index)
    # No token is below 0, which XLA does not know: so the chunk is written after all that reads it,
    # and therefore in place. Without this XLA copies it twice a step.
    chunk = write_place(chunk, new, index - begin + (tokens.min() < 0))
    return (index + 1, tokens, go_on, carry), chunk

  for end in ends:
    shape = (*first.shape, decoder.num_heads, end - begin, decoder.head_dim)
    empty = constrain(jnp.zeros(shape, dtype))
    chunk = Chunk(*[(empty,) * decoder.num_layers] * 2)
    state, chunk = jax.lax.while_loop(
      lambda loop, end=end: (loop[0][0] < end) & loop[0][2],
      functools.partial(body, begin, filled), (state, chunk))
    begin, filled = end, (*filled, chunk)
  return state[3]


def continuation_logits(
  decoder: Decoder, params: Mapping[str, Any], prefixes: Int[Array, 'A Q'],
  lengths: Int[Array, 'A'], continuations: Int[Array, 'A R T'], *, stages: int | None = None,
) -> Float[Array, 'A R T V']:
  """Logits for every token of given continuations, by the path that sampling takes.

  Args:
    decoder: the model.
    params: of it.
    prefixes: `[A, Q]` int, padded on the left.
    lengths: `[A]` int in [1, Q].
    continuations: `[A, R, T]` int, T >= 1.
    stages: as for `run_decoding`.

  Returns:
    `[A, R, T, V]`: entry t predicts `continuations[:, :, t]` from the prefix and the tokens before.
  """
  size, steps = prefixes.shape[1], continuations.shape[2] - 1
  weights = decoder.prepare(params, num_positions=size + steps + 1)
  prefix, hidden = decoder.prefill(weights, prefixes, lengths)
  first = decoder.logits(weights, hidden)[:, None, None]
  shape = (*continuations.shape, first.shape[-1])
  logits = jnp.zeros(shape, first.dtype).at[:, :, :1].set(first)

  def consume(logits, hidden, index):
    new = decoder.logits(weights, hidden)[:, :, None]
    logits = jax.lax.dynamic_update_slice_in_dim(logits, new, index + 1, axis=2)
    # The last token has no successor to read; its index is clipped and never used.
    following = jax.lax.dynamic_index_in_dim(continuations, index + 1, axis=2, keepdims=False)
    return logits, following, jnp.bool_(True)

  return run_decoding(
    decoder, weights, prefix, continuations[:, :, 0], logits, consume, num_steps=steps,
    stages=stages)
