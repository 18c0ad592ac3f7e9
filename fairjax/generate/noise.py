r"""Gumbel noise that is a pure function of what it is for.

A token is `argmax(logits / temperature + gumbel)`, which draws it with its softmax probability. The
noise depends on (seed, template, sample index, position, vocabulary entry) and on nothing else: not
on the attribute value, the batch size, the number of devices or the samples already drawn. Sharing
it among the values couples counterfactual pairs (H-13): distributions that are nearly equal nearly
always yield the same token, and equal ones always do.

The random bits are those of `fairjax.model.attention`, integers that are identical on every
backend; keys are folded as `jax.random.fold_in` folds them and bits are those of `jax.random.bits`
for the default generator. The logarithms may differ between backends in their last bits, which can
matter only between two tokens whose scores tie to about 1e-6.

Samples that need no partner are drawn with two numbers instead of V: see `choose`.

Letters: R samples, V vocabulary.
"""

import math

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, UInt32

from fairjax.model.attention import threefry

# Streams of random numbers of one seed; the numbers themselves are arbitrary.
_COUPLED, _INDEPENDENT = 0x67656E31, 0x67656E32


def fold_in(key: tuple[Array, Array], data: Array) -> tuple[Array, Array]:
  """A new key from a key and uint32 data, element by element."""
  return threefry(key, (jnp.zeros_like(data), data))


def stream_key(
  seed: UInt32[Array, '2'], template: UInt32[Array, ''], *, coupled: bool
) -> tuple[Array, Array]:
  """Key of a template's samples, coupled or independent; `seed` is that of `seed_words`."""
  purpose = jnp.uint32(_COUPLED if coupled else _INDEPENDENT)
  return fold_in(fold_in((seed[0], seed[1]), purpose), template)


def seed_words(seed: int) -> np.ndarray:
  """High and low word, `[2]` uint32, of a seed in [0, 2**64)."""
  return np.array([seed >> 32, seed & 0xFFFFFFFF], np.uint32)


def gumbel(keys: tuple[Array, Array], *, size: int) -> Float[Array, '*R V']:
  """Standard Gumbel noise `[..., V]` float32, one independent draw for each key and entry."""
  # -log(-log1p(-w)) with w of 32 bits resolves the side that wins an argmax (small w) to 2**-33,
  # against 2**-24 for -log(-log(u)): tokens far less likely than 1e-7 are drawn at their rate too.
  entry = jnp.arange(size, dtype=jnp.uint32)
  shape = (*keys[0].shape, size)
  wide = [jnp.broadcast_to(k[..., None], shape) for k in keys]
  entry = jnp.broadcast_to(entry, shape)
  first, second = threefry((wide[0], wide[1]), (jnp.zeros_like(entry), entry))
  w = ((first ^ second).astype(jnp.float32) + np.float32(0.5)) * np.float32(2 ** -32)
  w = jnp.minimum(w, np.float32(1 - 2 ** -24))
  return -jnp.log(-jnp.log1p(-w))


def choose(keys: tuple[Array, Array], logits: Float[Array, '*R V']) -> Int[Array, '*R']:
  """Draws from softmax(logits) with two uniform numbers for each key; int32 `[...]`."""
  # First one of about sqrt(V) blocks of the vocabulary, by its share, then a word within it. For
  # independent samples this costs a thirtieth of Gumbel noise on CPU; it couples badly, since a
  # small shift of early words moves all later borders. Shares below about 2**-24 of their block are
  # drawn at a rate that is off by as much.
  size = logits.shape[-1]
  width = math.isqrt(size - 1) + 1
  blocks = -(-size // width)
  words = threefry(keys, (jnp.zeros_like(keys[0]), jnp.zeros_like(keys[0])))
  to_block, to_word = (((w >> np.uint32(8)).astype(jnp.float32) + np.float32(0.5))
                       * np.float32(2 ** -24) for w in words)
  shares = jnp.exp(logits - logits.max(-1, keepdims=True)).astype(jnp.float32)
  shares = jnp.pad(shares, [(0, 0)] * (shares.ndim - 1) + [(0, blocks * width - size)])
  shares = shares.reshape(*shares.shape[:-1], blocks, width)
  shares = jnp.broadcast_to(shares, (*keys[0].shape, blocks, width))
  block = _invert(shares.sum(-1), to_block)
  within = jnp.take_along_axis(shares, block[..., None, None], axis=-2)[..., 0, :]
  return block * width + _invert(within, to_word)


def _invert(shares: Array, uniform: Array) -> Array:
  """First index whose cumulated share exceeds `uniform` of the whole; one whose share is not 0."""
  below = jnp.cumsum(shares, axis=-1)
  found = (below <= uniform[..., None] * below[..., -1:]).sum(-1, dtype=jnp.int32)
  last = jnp.where(shares > 0, jnp.arange(shares.shape[-1], dtype=jnp.int32), 0).max(-1)
  return jnp.minimum(found, last)
