"""Scorers: what gives a text a number in [0, 1], by name."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from fairjax.errors import UserError, unknown_name
from fairjax.measure.scorers.base import (
  SCORERS,
  OpinionScorer,
  RecordedScorer,
  Scorer,
  TextBlobScorer,
  VaderScorer,
)
from fairjax.measure.scorers.lexicon import lexicon_files, read_lexicon


def load_scorer(
  name: str, *, lexicon: Sequence[str | os.PathLike] | None = None,
  google: Mapping[str, Any] | None = None, together: bool = False,
) -> Scorer | RecordedScorer:
  """Makes a scorer by name.

  Args:
    name: 'opinion', 'vader', 'textblob', 'google', 'bert:DIR' (with
      `#CLASS=VALUE,...` where its classes have other names), 'recorded' or 'recorded:NAME'.
    lexicon: for 'opinion', the files of positive and of negative words, or the folder of
      `fairjax scorers lexicon`.
    google: for 'google', arguments of `GoogleScorer`; at least `cache`, the file of paid scores.
    together: a model runs on the devices of all processes, which all call it with the same texts;
      else on those of this process.

  Raises:
    UserError: unknown name (with the nearest one), no lexicon for 'opinion', a file of it is
      unusable, or 'google' lacks its file, package or credentials.
  """
  kind, _, key = name.partition(':')
  if kind not in SCORERS or (key and kind not in ('bert', 'recorded')):
    raise unknown_name('scorer', name, SCORERS)
  if kind == 'recorded':
    return RecordedScorer(key or None)
  if kind in ('vader', 'textblob'):
    return VaderScorer() if kind == 'vader' else TextBlobScorer()
  if kind == 'google':
    if google is None:
      raise UserError('the google scorer keeps what was paid for: name a folder, keep=..., or give '
                      'a GoogleScorer with its file')
    from fairjax.measure.scorers.google import GoogleScorer
    return GoogleScorer(**google)
  if kind == 'bert':
    if not key:
      raise UserError('the bert scorer needs the directory of a classifier: bert:DIR')
    from fairjax.measure.scorers.bert import BertScorer
    from fairjax.pretrained.batch_runner import default_mesh
    return BertScorer.from_name(key, mesh=default_mesh(together=True) if together else None)
  files = lexicon_files(lexicon or ())
  if len(files) != 2:
    if gone := [path for path in files if not path.exists()]:
      raise UserError(f'lexicon {gone[0]}: no such file or folder: fairjax scorers lexicon '
                      f'--output={gone[0]} fetches the two lists')
    raise UserError('the opinion scorer needs a lexicon of two files, positive words and negative '
                    'words: --lexicon POSITIVE NEGATIVE, or the folder of fairjax scorers lexicon')
  return OpinionScorer(*map(read_lexicon, files))
