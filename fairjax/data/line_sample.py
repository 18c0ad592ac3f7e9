"""A random sample of the lines of a corpus that is too large to keep."""

from collections.abc import Iterable

import numpy as np

from fairjax.errors import UserError


def sample_lines(texts: Iterable[str], limit: int, seed: int) -> tuple[list[str], dict[str, int]]:
  """Draws lines uniformly, without replacement, in one pass that holds only the sample.

  Reservoir sampling with skips (Li 1994, "Algorithm L").

  Args:
    texts: read once.
    limit: the most lines.
    seed: of the sample.

  Returns:
    The lines with their line ends, in the order of the texts; and counts: texts, characters and
    lines (not blank) that were read, lines_used, characters_used.

  Raises:
    UserError: no line that is not blank.
  """
  rng = np.random.default_rng(seed)
  kept, places = [], []
  characters = read = number = 0
  weight, following = 1.0, 0  # following: index of the next line that enters a full reservoir
  for text in texts:
    number += 1
    characters += len(text)
    for line in text.splitlines(keepends=True):
      if line.isspace():
        continue
      if read < limit:
        kept.append(line)
        places.append(read)
      elif read == following:
        place = int(rng.integers(limit))
        kept[place], places[place] = line, read
      read += 1
      if read >= limit and following < read:
        weight *= float(np.exp(np.log(1.0 - rng.random()) / limit))
        following = read + int(np.log(1.0 - rng.random()) / np.log1p(-weight))
  if not kept:
    raise UserError('no text to train a vocabulary from: the training texts are empty')
  kept = [kept[i] for i in np.argsort(places)]
  return kept, {'texts': number, 'characters': characters, 'lines': read, 'lines_used': len(kept),
                'characters_used': sum(map(len, kept))}
