"""Next-token distributions of the evaluation prefixes, without sampling."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fairjax.counterfactual import Prefix
from fairjax.generate.sampler import PREFIX_BUCKET
from fairjax.model.decode_loop import Decoder
from fairjax.vocabulary import Vocabulary


def next_token_log_probs(
  params: Any, decoder: Decoder, vocabulary: Vocabulary, prefixes: Sequence[Prefix], *,
  mesh: Mesh | None = None,
) -> list[np.ndarray]:
  """Log-probabilities of the token behind each prefix, at temperature 1.

  Args:
    params: of the model.
    decoder: the model.
    vocabulary: of the model.
    prefixes: of `Attribute.prefixes()`, every template with the same number of values.
    mesh: of the parameters; every process that shares it gets everything. None: one device.

  Returns:
    One `[A, V]` float64 array for each template in the order of its first prefix, in nats; rows in
    the order of the prefixes, V the vocabulary's size (padding of the model's table is left out,
    and so are ids that are never drawn).

  Raises:
    ValueError: a prefix is longer than the model reads.
  """
  encoded = [[*vocabulary.start_ids, *vocabulary.encode(p.text)] for p in prefixes]
  longest = max(map(len, encoded))
  if decoder.max_positions is not None and longest > decoder.max_positions:
    raise ValueError(f'a prefix of {longest} tokens, but the model has {decoder.max_positions} '
                     'positions')
  width = -(-longest // PREFIX_BUCKET) * PREFIX_BUCKET
  templates: dict[int, list[list[int]]] = {}
  for prefix, ids in zip(prefixes, encoded, strict=True):
    templates.setdefault(prefix.template, []).append(ids)
  found = []
  for rows in templates.values():
    padded = np.full((len(rows), width), vocabulary.eos_id, np.int32)
    for row, ids in zip(padded, rows, strict=True):
      row[-len(ids):] = ids
    lengths = np.array([len(ids) for ids in rows], np.int32)
    logits = np.asarray(_logits(params, padded, lengths, decoder=decoder, mesh=mesh), np.float64)
    logits = logits[:, :vocabulary.size]
    logits = logits[:, ~np.isneginf(logits).all(axis=0)]  # ids that no decoder draws
    top = logits.max(axis=1, keepdims=True)
    found.append(logits - top - np.log(np.exp(logits - top).sum(axis=1, keepdims=True)))
  return found


@functools.partial(jax.jit, static_argnames=('decoder', 'mesh'))
def _logits(params, prefixes, lengths, *, decoder, mesh):
  """Logits [A, V] behind padded prefixes [A, Q]."""
  weights = decoder.prepare(params, num_positions=prefixes.shape[1] + 1)
  _, last = decoder.prefill(weights, prefixes, lengths)
  logits = decoder.logits(weights, last)
  if mesh is not None:  # for all processes to read
    logits = jax.lax.with_sharding_constraint(logits, NamedSharding(mesh, PartitionSpec()))
  return logits
