"""Identity cards: what a checkpoint is, so that nothing is loaded in its place.

A card names the stage, the method, lambda, attribute, the digest of the parent's parameters and the
fingerprints of configuration and vocabulary. It travels in the checkpoint and in every record file.
"""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from fairjax.errors import UserError
from fairjax.train.sharding import to_host


@dataclasses.dataclass(frozen=True)
class Identity:
  """The card; fields that a stage does not have are empty."""

  stage: str  # lm | sentiment | debias
  vocabulary: str  # fingerprint
  config: str  # fingerprint of the fields that this stage depends on
  method: str = ''  # embedding | sentiment | random_projection | none (extended baseline)
  fairness_weight: float = 0.0  # lambda
  attribute: str = ''
  attribute_fingerprint: str = ''
  parent: str = ''  # digest of the parameters that the stage started from
  projection: str = ''  # digest of f_sh (sentiment regularisation and its control)

  def to_dict(self) -> dict[str, Any]:
    """Plain values for JSON."""
    return dataclasses.asdict(self)


def fingerprint(value: Any) -> str:
  """SHA-256 of the canonical JSON of plain values."""
  text = json.dumps(value, sort_keys=True, allow_nan=False)
  return hashlib.sha256(text.encode()).hexdigest()


def params_digest(params: Any) -> str:
  """SHA-256 over names, dtypes, shapes and bytes of every leaf.

  Equal parameters have equal digests on any mesh; processes that share them call it together.
  """
  digest = hashlib.sha256()
  for path, leaf in jax.tree_util.tree_leaves_with_path(params):
    array = to_host(leaf)
    digest.update(f'{jax.tree_util.keystr(path)} {array.dtype} {array.shape}\n'.encode())
    digest.update(np.ascontiguousarray(array).tobytes())
  return digest.hexdigest()


def check_identity(saved: Mapping[str, Any], expected: Identity, *, where: str) -> None:
  """Raises `UserError` naming every field in which a saved card differs."""
  wanted = expected.to_dict()
  wrong = [
    f'{name} is {_short(saved.get(name))}, expected {_short(value)}'
    for name, value in wanted.items() if saved.get(name) != value
  ]
  if wrong:
    raise UserError(
      f'{where} belongs to another run: {"; ".join(wrong)}. Use another --workdir, or restore the '
      'configuration, vocabulary and parent that it was made with')


def _short(value: Any) -> str:
  text = str(value)
  return text[:12] + '...' if len(text) == 64 else repr(value)
