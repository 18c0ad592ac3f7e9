"""The loop that reads new tokens one by one, for any decoder that caches keys and values.

Keys and values of the new tokens lie in chunks. Each stage is a loop whose state holds the chunks
that it fills; those before them are constants of the loop and are never copied. A chunk is read
only once something is in it.

Letters: A prefixes (values of an attribute), R samples of each, Q padded prefix length, C places of
a chunk, N heads, H head width, D model width, V vocabulary.
"""

import abc
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

# A stage compiles all layers again: 30 layers of it are as much as a program should hold.
_STAGE_STEPS, _MAX_STAGES, _MAX_LAYERS = 10, 5, 30
_CHUNK_PLACES = 5  # of a chunk on CPU, which reads its caches at the speed of main memory


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
    self, weights: Any, prefix: Any, filled: Sequence[Chunk], unfilled: Sequence[Chunk],
    tokens: Int[Array, 'A R'], index: Int[Array, ''],
  ) -> tuple[Float[Array, 'A R D'], Chunk]:
    """Reads one new token of every sample.

    Args:
      weights: of `prepare`.
      prefix: of `prefill`.
      filled: chunks of the first new tokens, without an empty place.
      unfilled: of those behind them and before this one; later places hold anything finite.
      tokens: `[A, R]` int.
      index: number of new tokens before this one, among the places of `unfilled`.

    Returns:
      The input of `logits`, and a chunk of one place with this token.
    """

  @abc.abstractmethod
  def scores(
    self, weights: Any, hidden: Float[Array, '*S D']
  ) -> tuple[Float[Array, '*S V'], Float[Array, 'V'] | None]:
    """Logits, float32 or wider, but for what is still to be added to each word: no copy for it."""

  def logits(self, weights: Any, hidden: Float[Array, '*S D']) -> Float[Array, '*S V']:
    """Logits, float32 or wider."""
    scores, bias = self.scores(weights, hidden)
    return scores if bias is None else scores + bias[(None,) * (scores.ndim - 1)]


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


def in_order(
  filled: Sequence[Chunk], unfilled: Sequence[Chunk], index: Int[Array, ''] | int
) -> list[tuple[Bool[Array, ''] | None, Chunk]]:
  """All chunks, each with whether something is in it, for `unless_empty`.

  Args:
    filled: as `Decoder.step`, and so are the others.
    unfilled: the first of them is read at every step: it is empty at one of them only.
    index: number of new tokens in the chunks.

  Returns:
    Pairs; None instead of a flag: it is read in any case.
  """
  found: list[tuple[Bool[Array, ''] | None, Chunk]] = [(None, chunk) for chunk in filled]
  begin = num_places(filled)
  for number, chunk in enumerate(unfilled):
    found.append((jnp.asarray(index) > begin if number else None, chunk))
    begin += num_places([chunk])
  return found


def num_places(chunks: Sequence[Chunk]) -> int:
  """Places of all chunks together."""
  return sum(chunk.keys[0].shape[3] for chunk in chunks)


def unless_empty(
  used: Bool[Array, ''] | None, function: Callable[..., Array], *arrays: Array,
  onto: Array | None = None,
) -> Array:
  """`function(*arrays)`; where `used` is false, zeros, and nothing is read; added to `onto`."""
  if used is None:
    return function(*arrays) if onto is None else onto + function(*arrays)
  if onto is not None:
    return jax.lax.cond(
      used, lambda onto, *arrays: onto + function(*arrays), lambda onto, *_: onto, onto, *arrays)
  out = jax.eval_shape(function, *arrays)
  return jax.lax.cond(used, function, lambda *_: jnp.zeros(out.shape, out.dtype), *arrays)


def write_place(
  chunks: Sequence[Chunk], new: Chunk, place: Int[Array, ''] | int
) -> tuple[Chunk, ...]:
  """The chunks with the one token of `new` in a place, counted over all of theirs."""
  written = []
  for chunk in chunks:
    size = num_places([chunk])
    at, inside = jnp.clip(place, 0, size - 1), (0 <= place) & (place < size)

    def write(cache, token, at=at, inside=inside):
      if len(chunks) > 1:  # every chunk is written, all but one with what is there
        token = jnp.where(inside, token, jax.lax.dynamic_slice_in_dim(cache, at, 1, axis=3))
      return jax.lax.dynamic_update_slice_in_dim(cache, token, at, axis=3)

    written.append(jax.tree.map(write, chunk, new))
    place = place - size
  return tuple(written)


def run_decoding(
  decoder: Decoder, weights: Any, prefix: Any, first: Int[Array, 'A R'], carry: Any,
  consume: Callable[[Any, Array, Array], tuple[Any, Array, Array]], *,
  num_steps: int, stages: int | None = None, platform: str | None = None,
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
    stages: number of loops; more read fewer empty places and compile longer. None: one for each 10
      steps, at most 5, and fewer for models of more than 6 layers. Results do not depend on it
      beyond rounding.
    platform: that runs it, 'cpu' or another; None: JAX's default.

  Returns:
    The last carry.
  """
  if stages is None:
    most = max(1, min(_MAX_STAGES, _MAX_LAYERS // decoder.num_layers))
    stages = min(-(-num_steps // _STAGE_STEPS), most)
  ends = sorted({-(-num_steps * (i + 1) // stages) for i in range(stages)} - {0})
  platform = platform or jax.default_backend()
  dtype = cache_dtype(decoder.dtype, platform)
  begin, state, filled = 0, (jnp.int32(0), first, jnp.bool_(True), carry), ()

  def body(begin, filled, loop):
    (index, tokens, _, carry), chunks = loop
    hidden, new = decoder.step(weights, prefix, filled, chunks, tokens, index)
    carry, tokens, go_on = consume(carry, hidden, index)
    # No token is below 0, which XLA does not know: so a chunk is written after all that reads it,
    # and therefore in place. Without this XLA copies it twice a step.
    chunks = write_place(chunks, new, index - begin + (tokens.min() < 0))
    return (index + 1, tokens, go_on, carry), chunks

  def empty(places):
    shape = (*first.shape, decoder.num_heads, places, decoder.head_dim)
    return Chunk(*[(jnp.zeros(shape, dtype),) * decoder.num_layers] * 2)

  for end in ends:
    most = _CHUNK_PLACES if platform == 'cpu' else end - begin
    chunks = tuple(empty(min(most, end - at)) for at in range(begin, end, most))
    state, chunks = jax.lax.while_loop(
      lambda loop, end=end: (loop[0][0] < end) & loop[0][2],
      functools.partial(body, begin, filled), (state, chunks))
    begin, filled = end, (*filled, *chunks)
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
