"""Scores of texts, kept in a file that an interrupted run continues.

The file (`.npz`, no pickle) maps a digest of the scored text to its score, for one scorer. Equal
texts are scored once: coupled sampling yields many.
"""

import hashlib
import json
import os
import pathlib
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from fairjax.errors import UserError
from fairjax.files import atomic_write
from fairjax.measure.generations import Generations, join_text
from fairjax.measure.scorers import RecordedScorer, Scorer

CHUNK = 20000  # texts between two writes of the file
_DIGEST_BYTES = 16


def score_records(
  records: Iterable[Mapping[str, Any]], scorer: Scorer | RecordedScorer,
  path: str | os.PathLike | None = None, *, scored: str = 'continuation',
  log: Callable[[str], None] | None = None,
) -> np.ndarray:
  """Scores R records, from the file where it has them.

  Args:
    records: mappings with `prefix` and `continuation` (for recorded scores, `scores`).
    scorer: text scorer, or scores of the records themselves (these are not written to the file).
    path: score file; None keeps nothing.
    scored: 'continuation' or 'prefix+continuation' (H-02).
    log: called with a line of progress after each chunk.

  Returns:
    `[R]` float64 in [0, 1].

  Raises:
    UserError: the file is damaged or of another scorer, or the scorer left [0, 1].
  """
  if isinstance(scorer, RecordedScorer):
    return scorer.score_records(records)
  if scored == 'continuation':
    texts = [r['continuation'] for r in records]
  else:
    texts = [join_text(r['prefix'], r['continuation']) for r in records]
  return score_texts(texts, scorer, path, log=log)


def score_generations(
  generations: Generations, scorer: Scorer | RecordedScorer,
  path: str | os.PathLike | None = None, *, scored: str = 'continuation',
  log: Callable[[str], None] | None = None,
) -> np.ndarray:
  """As `score_records`, for records that were read already."""
  if isinstance(scorer, RecordedScorer):
    return scorer.score_columns(generations.recorded, generations.where)
  return score_texts(generations.texts(scored), scorer, path, log=log)


def score_texts(
  texts: Sequence[str], scorer: Scorer, path: str | os.PathLike | None = None, *,
  log: Callable[[str], None] | None = None, chunk: int = CHUNK,
) -> np.ndarray:
  """Scores R texts; see `score_records`.

  Args:
    texts: R texts.
    scorer: text scorer.
    path: score file; written after every `chunk` texts and on an interruption.
    log: called with a line of progress after each chunk.
    chunk: texts scored at a time.

  Returns:
    `[R]` float64 in [0, 1].
  """
  digests = [text_digest(text) for text in texts]
  known = {} if path is None else _load(pathlib.Path(path), scorer)
  todo = {d: t for d, t in zip(digests, texts, strict=True) if d not in known}
  pending, saved = list(todo.items()), len(known)
  try:
    for start in range(0, len(pending), chunk):
      part = pending[start:start + chunk]
      known.update(zip([d for d, _ in part], _checked(scorer, [t for _, t in part]), strict=True))
      if path is not None:
        _save(pathlib.Path(path), scorer, known)
        saved = len(known)
      if log:
        log(f'{scorer.name}: scored {min(start + chunk, len(pending))} of {len(pending)} texts')
    if log and pending and hasattr(scorer, 'count_truncated'):
      longer = scorer.count_truncated(list(todo.values()))
      log(f'{scorer.name}: {longer} of {len(pending)} texts are longer than the '
          f'{scorer.max_length} tokens it reads; their end is not scored')
  finally:
    if path is not None and saved < len(known):
      _save(pathlib.Path(path), scorer, known)
  return np.array([known[d] for d in digests], np.float64)


def score_file(
  directory: str | os.PathLike, attribute: str, scorer: Scorer | RecordedScorer
) -> pathlib.Path:
  """Score file of one attribute and scorer in a folder."""
  name = scorer.name.replace(':', '-').replace('/', '-')
  return pathlib.Path(directory) / f'{attribute}.{name}.npz'


def text_digest(text: str) -> bytes:
  """Digest by which a score file knows a text: 16 bytes of BLAKE2b of its UTF-8."""
  return hashlib.blake2b(text.encode('utf-8', 'surrogatepass'), digest_size=_DIGEST_BYTES).digest()


def _checked(scorer: Scorer, texts: list[str]) -> list[float]:
  """Scores of the texts; they must be one a text, in [0, 1]."""
  scores = np.asarray(scorer.score(texts), np.float64)
  if scores.shape != (len(texts),):
    raise UserError(f'scorer {scorer.name} returned shape {scores.shape} for {len(texts)} texts')
  wrong = np.flatnonzero(~((scores >= 0) & (scores <= 1)))
  if wrong.size:
    raise UserError(f'scorer {scorer.name} gave {scores[wrong[0]]}, outside [0, 1], for the text '
                    f'{texts[wrong[0]][:60]!r}')
  return scores.tolist()


def _load(path: pathlib.Path, scorer: Scorer) -> dict[bytes, float]:
  """Scores of the file, empty where there is none."""
  if not path.exists():
    return {}
  try:
    with np.load(path, allow_pickle=False) as file:
      card = json.loads(str(file['card']))
      digests, scores = file['digests'], file['scores']
    name, fingerprint = card['scorer'], card['fingerprint']
    rows = [row.tobytes() for row in digests.astype(np.uint8)]
    known = dict(zip(rows, scores.astype(np.float64).tolist(), strict=True))
  except (OSError, EOFError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as e:
    raise UserError(f'{path}: damaged score file ({e}): delete it to score again') from None
  if (name, fingerprint) != (scorer.name, scorer.fingerprint):
    raise UserError(
      f'{path}: scores of scorer {name} ({fingerprint[:12]}), not of {scorer.name} '
      f'({scorer.fingerprint[:12]}): delete the file to score again, or use another folder')
  return known


def _save(path: pathlib.Path, scorer: Scorer, known: Mapping[bytes, float]) -> None:
  """Writes the file atomically."""
  card = json.dumps({'scorer': scorer.name, 'fingerprint': scorer.fingerprint})
  digests = np.frombuffer(b''.join(known), np.uint8).reshape(-1, _DIGEST_BYTES)
  with atomic_write(path) as file:
    np.savez(file, card=np.array(card), digests=digests,
             scores=np.fromiter(known.values(), np.float64, len(known)))
