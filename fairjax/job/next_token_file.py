"""The divergence of the next token, kept beside the generations of the model it was read from.

Records hold texts only, and a later `fairjax measure --records` has no model: who samples writes
`x.next_token.json` beside `x.jsonl.gz`, with the SHA-256 of the records and the identity of their
sampling (model, vocabulary, prefixes), which are compared when it is read.
"""

import os
import pathlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fairjax import processes
from fairjax.config_files import config_differences
from fairjax.counterfactual import Attribute, Prefix
from fairjax.errors import Damaged, UserError
from fairjax.files import read_sealed_json, write_sealed_json
from fairjax.generate.manifests import file_sha256, manifest_of, read_manifest
from fairjax.measure.next_token import next_token_divergence


def next_token_file(records: str | os.PathLike) -> pathlib.Path:
  """Path of the divergence beside a records file.

  >>> next_token_file('a/country.jsonl.gz').as_posix()
  'a/country.next_token.json'
  """
  path = pathlib.Path(records)
  return path.with_name(re.sub(r'(\.jsonl)?(\.gz)?$', '', path.name) + '.next_token.json')


def model_divergence(
  params: Any, decoder: Any, vocabulary: Any, attribute: Attribute, prefixes: Sequence[Prefix], *,
  mesh: Any = None,
) -> dict[str, Any]:
  """How far the next token of a model tells the values apart (`next_token_divergence`).

  Every process that shares the mesh calls it.

  Args:
    params: of the model.
    decoder: the model.
    vocabulary: of the model.
    attribute: names the values.
    prefixes: every template with all values.
    mesh: of the parameters; None: one device.
  """
  from fairjax.generate import next_token_log_probs
  log_probs = next_token_log_probs(params, decoder, vocabulary, prefixes, mesh=mesh)
  return next_token_divergence(
    log_probs, attribute.value_texts, list(dict.fromkeys(p.template for p in prefixes)))


def write_next_token(
  records: str | os.PathLike, params: Any, decoder: Any, vocabulary: Any, attribute: Attribute, *,
  prefixes: Sequence[Prefix] | None = None, mesh: Any = None, log: Callable[[str], None] = print,
) -> None:
  """Writes the divergence beside records that `generate` has completed; one that fits them stays.

  In a group of processes all call it; the first one writes.

  Args:
    records: file with its manifest.
    params: of the model that wrote them, as the rest of the arguments for `generate`.
    decoder: the model.
    vocabulary: of the model.
    attribute: of the records.
    prefixes: those that were continued; None: of the attribute.
    mesh: of the parameters; None: one device.
    log: called with a line if there is something to say.
  """
  path = next_token_file(records)
  if processes.share(processes.is_first() and _fits(path, records, log)):
    return
  found = model_divergence(
    params, decoder, vocabulary, attribute,
    list(attribute.prefixes() if prefixes is None else prefixes), mesh=mesh)
  if processes.is_first():
    manifest = read_manifest(records)
    write_sealed_json(path, {'identity': manifest['identity'], 'records': manifest['sha256'],
                             'next_token_divergence': found})
    log(f"{path}: KL of the next token {found['kl']:.4f} nats between values")
  processes.share()


def read_next_token(records: str | os.PathLike, attribute: Attribute) -> dict[str, Any] | None:
  """The divergence beside records (`next_token_divergence`), None where there is none.

  Args:
    records: file of generations.
    attribute: that is measured; None is returned for another one than that of the file.

  Raises:
    UserError: as `saved_next_token`; or it was read with other content of the attribute.
  """
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
  """All that the file beside records holds, for `carry_next_token`; None where there is none.

  Raises:
    UserError: it is damaged, or belongs to other records or another sampling.
  """
  path, name = next_token_file(records), pathlib.Path(records).name
  if not path.is_file():
    return None
  saved = _read(path)
  again = f'repeat the command that sampled {name}, or delete {path.name}'
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
  again = 'repeat the command that sampled the records, or delete it'
  saved = read_sealed_json(path, again=again)
  if set(saved) != {'identity', 'records', 'next_token_divergence'}:
    raise Damaged(f'{path} is damaged (fields {", ".join(saved)}): {again}')
  return saved


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
  if saved['records'] == manifest['sha256'] and saved['identity'] == manifest['identity']:
    return True
  log(f'{path}: is of other records, made again')
  return False
