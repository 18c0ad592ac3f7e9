"""Ancestral sampling from a Transformer-XL for all values of a template at once (H-12, H-13).

One jitted function reads the prefixes once, then draws tokens with cached keys and values until all
samples have ended. The noise of a step is drawn once, [R, V], and shared by the A values: that is
what couples counterfactual pairs (`fairjax.generate.noise`), and it costs 1/A of separate draws.

A sample is a function of (parameters, prefix, seed, template, sample index) up to rounding: a batch
of another size may multiply matrices in another order, which changes a token only where two
perturbed logits tie to about 1e-6. Batches of one size are bit-identical whatever else was sampled.

Letters: A prefixes (values of an attribute), R samples of each, Q padded prefix length, V
vocabulary, D model width.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Int

from fairjax.counterfactual import Prefix
from fairjax.generate import noise
from fairjax.model.decoding import Decoder, run_decoding
from fairjax.vocabulary import Vocabulary

PAD_ID = 0
PREFIX_BUCKET = 16  # prefixes are padded to a multiple of it, so that most share one program
_FOLDS = 32
# Bytes of logits that exist at a time, by platform, and of those that tokens are drawn from at a
# time: on CPU the latter stay in the cache of a core.
_SCORED_BYTES = {'cpu': 2 ** 24, 'tpu': 2 ** 28, 'gpu': 2 ** 28}
_DRAWN_BYTES = {'cpu': 2 ** 21, 'tpu': 2 ** 28, 'gpu': 2 ** 28}
# Scoring reads the whole table of the softmax: with fewer rows that takes longer than the products.
_SCORED_ROWS = 512
# XLA's own vectors on CPU, which are half of what the CPU has otherwise.
_CPU_OPTIONS = {'xla_cpu_prefer_vector_width': 512}


def sample_continuations(
  params: Any,
  decoder: Decoder,
  prefixes: Sequence[Sequence[int]],
  *,
  template: int,
  samples: Sequence[int],
  seed: int,
  max_new_tokens: int,
  temperature: float,
  eos_id: int,
  end_ids: Sequence[int] = (),
  stop_ids: Sequence[int] = (),
  values: Sequence[int] | None = None,
  coupled: bool = True,
  batch_size: int = 0,
  prefix_len: int = 0,
  mesh: Mesh | None = None,
) -> tuple[np.ndarray, np.ndarray]:
  """Samples continuations of the prefixes (A lists of ids, none empty) of one template."""
  # Compiles once for each combination of decoder, number of prefixes, batch size, padded length of
  # the prefixes and the keyword options; parameters, prefixes, template, samples, seed and
  # temperature may change. `template` and `samples` in [0, 2**32) and `seed` in [0, 2**64) select
  # the noise, without `coupled` also `values`: the value index of each prefix (default: its
  # position). `batch_size`: samples at a time for all prefixes (0: all), split over all devices of
  # `mesh`. `prefix_len`: prefixes are padded to it at least. A text ends at `eos_id` or an id of
  # `end_ids`, or with one of `stop_ids`, which is part of it.
  #
  # Returns `[A, R, max_new_tokens]` int32, the id that ended a text followed by 0, and `[A, R]`
  # int32, the tokens of each text without the id of its end.
  count, batch_size = len(samples), batch_size or len(samples)
  devices = 1 if mesh is None else mesh.size
  batch_size = -(-batch_size // devices) * devices
  longest = max(prefix_len, *map(len, prefixes))
  padded, lengths = _left_padded(prefixes, longest, eos_id)
  rows = np.array(range(len(prefixes)) if values is None else values, np.uint32)
  results = []
  for start in range(0, count, batch_size):
    batch = np.array(samples[start:start + batch_size], np.uint32)
    needed = len(batch)
    batch = np.pad(batch, (0, batch_size - needed), mode='edge')
    tokens, sizes = make_sampler(platform_of(mesh))(
      params, padded, lengths, rows, batch, noise.seed_words(seed), np.uint32(template),
      np.float32(temperature), decoder=decoder, max_new_tokens=max_new_tokens,
      end_ids=(eos_id, *sorted(set(end_ids) - {eos_id})), stop_ids=tuple(sorted(set(stop_ids))),
      coupled=coupled, mesh=mesh)
    results.append((np.asarray(tokens)[:, :needed], np.asarray(sizes)[:, :needed]))
  tokens, sizes = (np.concatenate(parts, axis=1) for parts in zip(*results, strict=True))
  return tokens, sizes


def _left_padded(
  prefixes: Sequence[Sequence[int]], longest: int, pad_id: int
) -> tuple[np.ndarray, np.ndarray]:
  """Prefixes `[A, Q]` int32, Q a multiple of `PREFIX_BUCKET`, and their lengths `[A]`."""
  padded = np.full((len(prefixes), -(-longest // PREFIX_BUCKET) * PREFIX_BUCKET), pad_id, np.int32)
  for row, prefix in zip(padded, prefixes, strict=True):
    row[-len(prefix):] = prefix
  return padded, np.array([len(p) for p in prefixes], np.int32)


@functools.cache
def make_sampler(platform: str) -> Any:
  """The jitted `_sample` for 'cpu', 'gpu' or 'tpu'; compiled programs are kept by it."""
  return jax.jit(
    _sample, compiler_options=_CPU_OPTIONS if platform == 'cpu' else None,
    static_argnames=('decoder', 'max_new_tokens', 'end_ids', 'stop_ids', 'coupled', 'mesh'))


def _sample(
  params, prefixes, prefix_lengths, values, samples, seed, template, temperature, *,
  decoder, max_new_tokens, end_ids, stop_ids, coupled, mesh,
):
  """Tokens [A, R, max_new_tokens] and lengths [A, R] of one batch."""
  weights = decoder.prepare(params, num_positions=prefixes.shape[1] + max_new_tokens)
  sample = functools.partial(
    _sample_on_device, decoder=decoder, max_new_tokens=max_new_tokens, end_ids=end_ids,
    stop_ids=stop_ids, coupled=coupled, platform=platform_of(mesh))
  arguments = weights, prefixes, prefix_lengths, values, seed, template, temperature
  if mesh is None:
    return sample(samples, *arguments)
  # Each device draws its samples by itself: their number of steps may differ, and none waits.
  whole, split = PartitionSpec(), PartitionSpec(None, mesh.axis_names)
  tokens, lengths = jax.shard_map(
    lambda samples, arguments: sample(samples, *arguments), mesh=mesh, check_vma=False,
    in_specs=(PartitionSpec(mesh.axis_names), whole), out_specs=split)(samples, arguments)
  # For all processes to read.
  return jax.lax.with_sharding_constraint((tokens, lengths), NamedSharding(mesh, whole))


def _sample_on_device(
  samples, weights, prefixes, prefix_lengths, values, seed, template, temperature, *,
  decoder, max_new_tokens, end_ids, stop_ids, coupled, platform,
):
  """`_sample` for the samples of one device, with the weights of `decoder.prepare`."""
  prefix, last = decoder.prefill(weights, prefixes, prefix_lengths)
  num_values, num_samples = prefixes.shape[0], samples.shape[0]

  # [1, R] keys for all values, or [A, R].
  keys = noise.fold_in(noise.stream_key(seed, template, coupled=coupled), samples[None])
  if not coupled:
    keys = [jnp.broadcast_to(k, (num_values, num_samples)) for k in keys]
    keys = noise.fold_in(tuple(keys), jnp.broadcast_to(values[:, None], keys[0].shape))

  def choose(bias, logits, *position_keys):
    """Next tokens [A, r] from logits [A, r or 1, V], bias [V] and keys [A or 1, r]."""
    logits = (logits if bias is None else logits + bias[None, None]) / temperature
    if not coupled:
      return noise.choose(position_keys, logits)
    gumbel = noise.gumbel(position_keys, size=decoder.config.vocab_size)
    shape = (num_values, *gumbel.shape[1:])
    return argmax(jnp.broadcast_to(logits, shape) + jnp.broadcast_to(gumbel, shape))

  scored, drawn = count_blocks(num_samples, num_values, decoder.config.vocab_size, platform)

  def find_and_choose(hidden, *position_keys):
    """Next tokens [A, r] of hidden states [A, r or 1, D]."""
    logits, bias = decoder.logits_and_bias(weights, hidden)
    return _by_blocks(functools.partial(choose, bias), drawn, logits, *position_keys)

  def draw(tokens, lengths, done, hidden, position):
    """Draws the token at `position` for rows that have not ended."""
    position_keys = noise.fold_in(keys, jnp.full(keys[0].shape, position, jnp.uint32))
    token = jnp.where(done, PAD_ID, _by_blocks(find_and_choose, scored, hidden, *position_keys))
    tokens = jax.lax.dynamic_update_slice_in_dim(tokens, token[..., None], position, axis=2)
    for end in end_ids:
      done |= token == end
    lengths = jnp.where(done, lengths, position + 1)
    for stop in stop_ids:
      done |= token == stop
    return tokens, lengths, done, token

  def consume(carry, hidden, index):
    *carry, token = draw(*carry, hidden, index + 1)
    return tuple(carry), token, ~carry[2].all()

  shape = (num_values, num_samples)
  start = (jnp.full((*shape, max_new_tokens), PAD_ID, jnp.int32), jnp.zeros(shape, jnp.int32),
           jnp.zeros(shape, bool))
  *carry, token = draw(*start, last[:, None], jnp.int32(0))
  tokens, lengths, _ = run_decoding(
    decoder, weights, prefix, token, tuple(carry), consume, num_steps=max_new_tokens - 1,
    platform=platform)
  return tokens, lengths


def count_blocks(
  num_samples: int, num_values: int, vocab_size: int, platform: str
) -> tuple[int, int]:
  """Numbers of equal blocks: of the samples, for their logits, and of each block, for the draw.

  >>> count_blocks(1000, 1, 8192, 'cpu')
  (2, 10)
  """
  most = [limits.get(platform, limits['tpu']) // (4 * vocab_size * num_values)
          for limits in (_SCORED_BYTES, _DRAWN_BYTES)]
  scored = _divisor(num_samples, max(most[0], _SCORED_ROWS // num_values))
  return scored, _divisor(num_samples // scored, most[1])


def next_token_log_probs(
  params: Any, decoder: Decoder, vocabulary: Vocabulary, prefixes: Sequence[Prefix], *,
  mesh: Mesh | None = None,
) -> list[np.ndarray]:
  """Log-probabilities of the token after each prefix: `[A, V]` float64 for each template.

  Padding of the model's table and ids that are never drawn are left out.
  """
  encoded = [vocabulary.prompt_ids(p.text) for p in prefixes]
  longest = max(map(len, encoded))
  templates: dict[int, list[list[int]]] = {}
  for prefix, ids in zip(prefixes, encoded, strict=True):
    templates.setdefault(prefix.template, []).append(ids)
  found = []
  for rows in templates.values():
    padded, lengths = _left_padded(rows, longest, vocabulary.eos_id)
    logits = np.asarray(_logits(params, padded, lengths, decoder=decoder, mesh=mesh), np.float64)
    logits = logits[:, :vocabulary.size]
    logits = logits[:, ~np.isneginf(logits).all(axis=0)]  # ids that no decoder draws
    # A mixture of probabilities in float32 may be 0 for one value alone.
    logits[np.isneginf(logits)] = np.log(np.finfo(np.float32).tiny)
    top = logits.max(axis=1, keepdims=True)
    found.append(logits - top - np.log(np.exp(logits - top).sum(axis=1, keepdims=True)))
  return found


@functools.partial(jax.jit, static_argnames=('decoder', 'mesh'))
def _logits(params, prefixes, lengths, *, decoder, mesh):
  """Logits [A, V] after padded prefixes [A, Q]."""
  weights = decoder.prepare(params, num_positions=prefixes.shape[1] + 1)
  _, last = decoder.prefill(weights, prefixes, lengths)
  logits = decoder.logits(weights, last)
  if mesh is not None:  # for all processes to read
    logits = jax.lax.with_sharding_constraint(logits, NamedSharding(mesh, PartitionSpec()))
  return logits


def platform_of(mesh: Mesh | None) -> str:
  """'cpu', 'gpu' or 'tpu': of the devices that will run, which may not be there yet."""
  return jax.default_backend() if mesh is None else mesh.devices.flat[0].platform


def _divisor(count, most):
  """The least number of equal parts of at most `most`, or of 1."""
  return next(n for n in range(1, count + 1) if count % n == 0 and count // n <= max(most, 1))


def _by_blocks(function, blocks, *arrays):
  """`function` of arrays [., R, ...], block by block; an axis 1 of size 1 goes to every block."""
  if blocks == 1:
    return function(*arrays)
  size = max(a.shape[1] for a in arrays)

  def part(a, i):
    if a.shape[1] == 1:
      return a
    return jax.lax.dynamic_slice_in_dim(a, i * (size // blocks), size // blocks, axis=1)

  out = jax.lax.map(lambda i: function(*(part(a, i) for a in arrays)), jnp.arange(blocks))
  return out.swapaxes(0, 1).reshape(-1, size)


def argmax(values: Float[Array, '*S V']) -> Int[Array, '*S']:
  """First index of the maximum over the last axis, int32."""
  return jax.lax.platform_dependent(
    values, cpu=_argmax_by_folds,
    default=lambda values: jax.lax.argmax(values, values.ndim - 1, jnp.int32))


def _argmax_by_folds(values):
  """`argmax` in vector instructions, which XLA's own does not use on CPU."""
  size = values.shape[-1]
  width = -(-size // _FOLDS)
  pad = [(0, 0)] * (values.ndim - 1) + [(0, width * -(-size // width) - size)]
  values = jnp.pad(values, pad, constant_values=-jnp.inf)
  best = values[..., :width]
  fold = jnp.zeros(best.shape, jnp.int32)
  for start in range(width, values.shape[-1], width):
    new = values[..., start:start + width]
    fold = jnp.where(new > best, start, fold)
    best = jnp.maximum(new, best)
  index = fold + jnp.broadcast_to(jnp.arange(width, dtype=jnp.int32), fold.shape)
  top = best.max(axis=-1, keepdims=True)
  return jnp.where(best == top, index, size).min(axis=-1)
