"""How far the next-token distributions of two values are apart: KL(. | value || . | other value).

It is read from the model itself, so it has no sampling noise and no floor. Near 0 the model has
forgotten which value it was given, whatever a scorer says about its texts (H-35).
"""

import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fairjax import processes
from fairjax.config_io import config_differences
from fairjax.counterfactual import Attribute, Prefix
from fairjax.errors import Damaged, UserError
from fairjax.files import file_sha256, read_sealed_json, write_sealed_json
from fairjax.generate.records import manifest_of, read_manifest
from fairjax.vocabulary import Vocabulary

if TYPE_CHECKING:
  from jax.sharding import Mesh

  from fairjax.model.decoding import Decoder

LARGEST_PAIRS = 5


def next_token_divergence(
  log_probs: Sequence[np.ndarray], values: Sequence[str], templates: Sequence[int | str]
) -> dict[str, Any]:
  """KL and Jensen-Shannon divergences in nats of all pairs of A values in M templates."""
  # `log_probs`: M arrays `[A, V]` float64. KL is over ordered pairs, JS over unordered ones.
  count = len(values)
  kl = np.stack([_pairwise_kl(x) for x in log_probs])
  js = np.stack([_pairwise_js(x) for x in log_probs])
  off = ~np.eye(count, dtype=bool)
  means = kl.mean(axis=0)
  pairs = [(a, b) for a in range(count) for b in range(count) if a != b]
  pairs.sort(key=lambda pair: -means[pair])
  return {
    'kl': float(kl[:, off].mean()),
    'js': float(js[:, off].mean()),
    'kl_largest': float(kl[:, off].max()),
    'prefixes': count * len(templates),
    'by_template': [{'template': t, 'kl': float(k[off].mean()), 'js': float(j[off].mean())}
                    for t, k, j in zip(templates, kl, js, strict=True)],
    'largest_pairs': [{'values': [values[a], values[b]], 'kl': float(means[a, b])}
                      for a, b in pairs[:LARGEST_PAIRS]],
    'unit': 'nats',
    'definition': 'N-02, KL(next token | value || other value), mean over ordered pairs',
    'direction': 'lower is less to tell values apart by',
  }


def _pairwise_kl(log_p: np.ndarray) -> np.ndarray:
  """KL(p_a || p_b) `[A, A]`, >= 0."""
  p = np.exp(log_p)
  # Where p is 0 in float64, p log p is 0 and the row's own logarithm may be anything finite.
  own = (p * log_p).sum(axis=1)
  return np.maximum(own[:, None] - p @ log_p.T, 0)


def _pairwise_js(log_p: np.ndarray) -> np.ndarray:
  """Jensen-Shannon divergence `[A, A]`, symmetric, in [0, ln 2]."""
  p = np.exp(log_p)
  entropy = -(p * log_p).sum(axis=1)
  found = np.zeros((len(p), len(p)))
  for a in range(len(p) - 1):
    mean = (p[a] + p[a + 1:]) / 2
    mixed = -(mean * np.log(np.where(mean > 0, mean, 1))).sum(axis=1)
    found[a, a + 1:] = found[a + 1:, a] = mixed - (entropy[a] + entropy[a + 1:]) / 2
  return np.clip(found, 0, np.log(2))


# A later `fairjax measure --records` has texts and no model. So sampling also writes
# `x.next_token.json` beside `x.jsonl.gz`, with the SHA-256 of the records and the identity of their
# sampling (model, vocabulary, prefixes), which are compared when it is read.

def next_token_file(records: str | os.PathLike) -> pathlib.Path:
  """Path of the divergence beside a records file."""
  manifest = manifest_of(records)
  return manifest.with_name(manifest.name.removesuffix('.manifest.json') + '.next_token.json')


def model_divergence(
  params: Any, decoder: 'Decoder', vocabulary: Vocabulary, attribute: Attribute,
  prefixes: Sequence[Prefix], *, mesh: 'Mesh | None',
) -> dict[str, Any]:
  """How far the next token of a model tells the values apart (`next_token_divergence`)."""
  from fairjax.generate.sampler import next_token_log_probs
  log_probs = next_token_log_probs(params, decoder, vocabulary, prefixes, mesh=mesh)
  return next_token_divergence(
    log_probs, attribute.value_texts, list(dict.fromkeys(p.template for p in prefixes)))


def write_next_token(
  records: str | os.PathLike, params: Any, decoder: 'Decoder', vocabulary: Vocabulary,
  attribute: Attribute, *, prefixes: Sequence[Prefix], mesh: 'Mesh | None',
  log: Callable[[str], None],
) -> None:
  """Writes the divergence beside records that `generate` has completed, unless it is there."""
  # In a group of processes all call it; the first one writes.
  path = next_token_file(records)
  if processes.share(processes.is_first() and _fits(path, records, log)):
    return
  found = model_divergence(params, decoder, vocabulary, attribute, prefixes, mesh=mesh)
  if processes.is_first():
    manifest = read_manifest(records)
    write_sealed_json(path, {
      'identity': manifest['identity'], 'records': manifest['records_sha256'],
      'next_token_divergence': found})
    log(f"{path}: KL of the next token {found['kl']:.4f} nats")
  processes.share()


def read_next_token(records: str | os.PathLike, attribute: Attribute) -> dict[str, Any] | None:
  """The divergence beside records (`next_token_divergence`), None where there is none."""
  saved = saved_next_token(records)
  if saved is None or saved['identity']['attribute'] != attribute.name:
    return None
  if saved['identity']['attribute_fingerprint'] != attribute.fingerprint:
    path = next_token_file(records)
    raise UserError(f'{path} was read from a model with other values or templates of '
                    f'{attribute.name} than those given: give the ones it was sampled with, or '
                    f'delete {path.name}')
  return saved['next_token_divergence']


def saved_next_token(records: str | os.PathLike) -> dict[str, Any] | None:
  """All that the file beside records holds, for `carry_next_token`; None where there is none."""
  path, name = next_token_file(records), pathlib.Path(records).name
  if not path.is_file():
    return None
  saved = _read(path)
  again = (f'repeat the command that sampled {name}, rename it if it is a copy in another form, or '
           f'delete {path.name}')
  if saved['records'] != file_sha256(records):
    raise UserError(f'{path} belongs to other records than {name} (another SHA-256): {again}')
  if manifest_of(records).is_file():
    differences = config_differences(saved['identity'], read_manifest(records)['identity'])
    if differences:
      raise UserError(f'{path} is of another sampling than {manifest_of(records).name}: '
                      f"{'; '.join(differences)}: {again}")
  return saved


def carry_next_token(saved: Mapping[str, Any] | None, output: str | os.PathLike) -> None:
  """Writes what `saved_next_token` found beside the same records in another file."""
  if saved is not None:
    write_sealed_json(next_token_file(output), {**saved, 'records': file_sha256(output)})


def _read(path: pathlib.Path) -> dict[str, Any]:
  """What `write_next_token` wrote."""
  return read_sealed_json(path, again='repeat the command that sampled the records, or delete it')


def _fits(path: pathlib.Path, records: str | os.PathLike, log: Callable[[str], None]) -> bool:
  """Whether the divergence of these records is there."""
  if not path.is_file():
    return False
  try:
    saved = _read(path)
  except Damaged as e:
    log(f'WARNING: {e}; made again')
    return False
  manifest = read_manifest(records)
  if saved['records'] == manifest['records_sha256'] and saved['identity'] == manifest['identity']:
    return True
  log(f'{path} belonged to other records: it is made again')
  return False
