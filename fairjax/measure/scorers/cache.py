"""Scores of texts, kept in a file that an interrupted run continues.

The file (see `fairjax.files`) maps a digest of the scored text to its score, for one scorer.
Equal texts are scored once: coupled sampling yields many. Texts are scored in chunks of neighbours
that do not depend on what is known already, and one chunk is appended at a time: a scorer whose
last digits depend on the texts beside one (BERT, by 1e-7) gives the same in a run that was
interrupted.
"""

import contextlib
import hashlib
import os
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from fairjax.errors import UserError
from fairjax.files import JsonLines, describe_header, read_entries
from fairjax.measure.columns import Generations, scored_text
from fairjax.measure.scorers.base import RecordedScorer, Scorer, count_rewritten
from fairjax.progress import Progress

CHUNK = 4000  # texts scored and appended at a time; changing it changes BERT's last digits
_DIGEST_BYTES = 16
_AGAIN = 'delete the file to score again'


def score_records(
  records: Iterable[Mapping[str, Any]], scorer: Scorer | RecordedScorer,
  path: str | os.PathLike | None = None, *, scored: str = 'continuation',
  log: Callable[[str], None] | None = None,
) -> np.ndarray:
  """Scores R records (mappings): `[R]` float64 in [0, 1]; see `score_texts`.

  `scored`: 'continuation' or 'prefix+continuation' (H-02).
  """
  if isinstance(scorer, RecordedScorer):
    records = list(records)
    return scorer.score_columns(
      [r.get('scores') for r in records],
      [str(r.get('_where', f'record {i}')) for i, r in enumerate(records, 1)])
  return score_texts([scored_text(r, scored) for r in records], scorer, path, log=log)


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
  texts: Sequence[str], scorer: Scorer, path: 'str | os.PathLike | ScoreFile | None' = None, *,
  log: Callable[[str], None] | None = None, chunk: int | None = None,
) -> np.ndarray:
  """Scores R texts: `[R]` float64 in [0, 1], from the file where it has them.

  Args:
    texts: R texts.
    scorer: text scorer.
    path: score file, or its `ScoreFile`; each chunk is appended to it. None: the scorer's
      `score_file`, if it has one.
    log: gets lines of progress, and one at the end.
    chunk: texts scored at a time; None: 4,000 for each of the scorer's `busy_devices`.

  Raises:
    UserError: the file is damaged or of another scorer, or the scorer left [0, 1].
  """
  path = getattr(scorer, 'score_file', None) if path is None else path
  chunk = chunk or CHUNK * getattr(scorer, 'busy_devices', 1)
  digests = [text_digest(text) for text in texts]
  if isinstance(path, ScoreFile):
    file, known = path, path.known
  else:
    file, known = None, {} if path is None else _known(path, scorer)
  distinct = list(dict(zip(digests, texts, strict=True)).items())
  chunks = [distinct[start:start + chunk] for start in range(0, len(distinct), chunk)]
  chunks = [part for part in chunks if any(d not in known for d, _ in part)]
  todo = [text for part in chunks for _, text in part]
  with contextlib.ExitStack() as stack:
    progress = stack.enter_context(Progress(
      f'{scorer.name}: scored', len(distinct), unit='texts', log=log if todo else None,
      done=len(distinct) - len(todo)))
    if not isinstance(path, ScoreFile) and path is not None and chunks:
      file = stack.enter_context(ScoreFile(path, scorer))
      if file.torn_bytes and log:
        log(f'{path}: removed {file.torn_bytes} bytes of an interrupted append')
    for part in chunks:
      scores = dict(zip([d for d, _ in part], _checked(scorer, [t for _, t in part]), strict=True))
      new = {digest: score for digest, score in scores.items() if digest not in known}
      if file is not None:
        file.keep(new)
      known |= new
      progress.add(len(part))
  if log and todo:
    _log_scored(scorer, todo, log)
  return np.array([known[d] for d in digests], np.float64)


def score_file(
  directory: str | os.PathLike, attribute: str, scorer: Scorer | RecordedScorer
) -> pathlib.Path:
  """Score file of one attribute and scorer in a folder."""
  name = scorer.name.replace(':', '-').replace('/', '-')
  return pathlib.Path(directory) / f'{attribute}.{name}.jsonl'


def text_digest(text: str) -> bytes:
  """Digest by which a score file knows a text: 16 bytes of BLAKE2b of its UTF-8."""
  return hashlib.blake2b(text.encode('utf-8', 'surrogatepass'), digest_size=_DIGEST_BYTES).digest()


def _checked(scorer: Scorer, texts: list[str]) -> list[float]:
  """Scores of the texts; they must be one a text, in [0, 1]."""
  given = scorer.score(texts)
  try:
    scores = np.asarray(given, np.float64)
  except (TypeError, ValueError):
    raise UserError(f'scorer {scorer.name} returned {str(given)[:60]} for {len(texts)} texts: give '
                    'a list of numbers in [0, 1]') from None
  if scores.shape != (len(texts),):
    raise UserError(f'scorer {scorer.name} returned shape {scores.shape} for {len(texts)} texts')
  wrong = np.flatnonzero(~((scores >= 0) & (scores <= 1)))
  if wrong.size:
    raise UserError(f'scorer {scorer.name} gave {scores[wrong[0]]}, outside [0, 1], for the text '
                    f'{texts[wrong[0]][:60]!r}')
  return scores.tolist()


def _log_scored(scorer: Scorer, texts: list[str], log: Callable[[str], None]) -> None:
  """Logs how many texts were scored, and how many of them the scorer read otherwise."""
  log(f'{scorer.name}: scored {len(texts)} texts')
  counts = count_rewritten(scorer, texts)
  for name, how in (
      ('truncated_texts', 'are longer than the {} tokens it reads; their end is not scored'),
      ('changed_texts', 'have typographic apostrophes, quotes or dots; it got plain ones')):
    if name == 'truncated_texts' and name in counts or counts.get(name):
      log(f'{scorer.name}: {counts[name]} of {len(texts)} texts '
          + how.format(getattr(scorer, 'max_length', '')))


class ScoreFile(JsonLines):
  """Scores of texts under one scorer: digest of a text -> score in [0, 1]. Threads may share it."""

  def __init__(self, path: str | os.PathLike, scorer: Scorer, *, again: str = _AGAIN,
               sync_seconds: float = 0.0):
    super().__init__(path, {'scorer': scorer.name, 'fingerprint': scorer.fingerprint},
                     again=again, sync_seconds=sync_seconds)
    self.known = _scores(self.entries)

  def keep(self, scores: Mapping[bytes, float]) -> None:
    """Appends scores; they are in the file when this returns."""
    self.append({'texts': b''.join(scores).hex(), 'scores': list(scores.values())})
    self.known.update(scores)


def read_score_file(path: str | os.PathLike) -> tuple[dict[str, str], dict[bytes, float]]:
  """`scorer` and `fingerprint` of a score file ({}: no file), and text digest -> score."""
  header, entries = read_entries(path, again=_AGAIN)
  if header and 'scorer' not in header:
    raise UserError(f'{path} belongs to {describe_header(header)}: it holds no scores of texts')
  return header or {}, _scores(entries)


def _scores(entries: Iterable[Mapping[str, Any]]) -> dict[bytes, float]:
  """Text digest -> score."""
  known: dict[bytes, float] = {}
  for entry in entries:
    texts = bytes.fromhex(entry['texts'])
    rows = [texts[i:i + _DIGEST_BYTES] for i in range(0, len(texts), _DIGEST_BYTES)]
    known |= zip(rows, entry['scores'], strict=True)
  return known


def _known(path: str | os.PathLike, scorer: Scorer) -> dict[bytes, float]:
  """Scores of the file, empty where there is none."""
  header, known = read_score_file(path)
  if header not in ({}, {'scorer': scorer.name, 'fingerprint': scorer.fingerprint}):
    raise UserError(
      f"{path}: scores of scorer {header.get('scorer')} ({header.get('fingerprint', '')[:12]}), "
      f'not of {scorer.name} ({scorer.fingerprint[:12]}): {_AGAIN}, or use another folder')
  return known
