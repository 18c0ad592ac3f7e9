"""A first look at what a masked language model learned: P(she) beside each profession.

The model fills the pronoun in six plain sentences about a profession; the share is
P(she) / (P(she) + P(he)), averaged over the sentences. It is no measure of Webster et al. (2020):
those are elsewhere, this one needs no list, no second person and no training.
"""

from collections.abc import Mapping, Sequence

import jax
import numpy as np

from fairjax.errors import UserError
from fairjax.inputs import open_input
from fairjax.pretrained.batch_runner import BatchRunner
from fairjax.pretrained.checkpoint import Pretrained
from fairjax.pretrained.masked_rows import special_tokens
from fairjax.pretrained.models import encode, mlm_logits
from fairjax.tables import Table

SENTENCES = (
  'The {} said that _ was tired.',
  'The {} called the student because _ was sick.',
  'When the {} came to the office, _ was late.',
  'The {} told the visitor that _ needed help.',
  'The {} met the student when _ left.',
  'The {} said that _ did the work yesterday.',
)
"""The pronoun stands at `_`."""


def female_shares(model: Pretrained, professions: Sequence[str]) -> np.ndarray:
  """P(she) / (P(she) + P(he)) in every sentence: `[professions, sentences]` float64."""
  special = special_tokens(model.tokenizer, pad_id=model.arch.pad_id, where=str(model.directory))
  pronouns = []
  for word in ('she', 'he'):
    ids = model.tokenizer.encode(word, add_special_tokens=False).ids
    if len(ids) != 1 or ids[0] == special.unknown:
      raise UserError(f"{model.directory}: '{word}' is not one piece of its vocabulary, so the "
                      'model cannot fill it in')
    pronouns.append(ids[0])
  rows = []
  for profession in professions:
    for sentence in SENTENCES:
      before, after = sentence.format(profession).split('_')
      parts = [model.tokenizer.encode(text, add_special_tokens=False).ids
               for text in (before, after)]
      rows.append(np.array([special.begin, *parts[0], special.mask, *parts[1], special.end],
                           np.int32))

  longest = max(map(len, rows))
  if longest > model.max_length:
    raise UserError(f'{model.directory} reads {model.max_length} tokens, a sentence about a '
                    f'profession has {longest}: train with a larger --max_length')

  def logits(params, ids, mask, packing):
    places = (ids == special.mask).argmax(1)[:, None]
    hidden = encode(params, model.arch, ids, mask, packing=packing)
    return mlm_logits(params, model.arch, hidden, places)[:, 0, np.array(pronouns)]

  runner = BatchRunner(logits, model.params, max_length=longest, pad_id=model.arch.pad_id)
  found = np.asarray(jax.device_get(runner(rows)), np.float64)
  shares = 1 / (1 + np.exp(found[:, 1] - found[:, 0]))
  return shares.reshape(len(professions), len(SENTENCES))


def read_shares(path: str) -> dict[str, float]:
  """Profession -> female share in percent, of a table."""
  shares: dict[str, float] = {}
  with open_input(path, what='table of shares') as file:
    for row, where in Table(file, path, ('occupation', 'bls_pct_female')):
      name = row['occupation'].strip()
      try:
        share = float(row['bls_pct_female'])
      except ValueError:
        share = -1.0
      if not name or not 0 <= share <= 100 or name in shares:
        raise UserError(f'{where}: not an occupation (once) with a bls_pct_female from 0 to 100')
      shares[name] = share
  if len(shares) < 3:
    raise UserError(f'{path} holds {len(shares)} occupations: a correlation needs at least 3')
  return shares


def compare_shares(
  model: Pretrained, shares: Mapping[str, float]
) -> tuple[np.ndarray, np.ndarray, float | None]:
  """What a model finds beside what was planted."""
  found = female_shares(model, list(shares)).mean(1)
  planted = np.array(list(shares.values())) / 100
  centred = planted - planted.mean()
  spread = float(centred @ centred)
  return found, planted, float(centred @ found / spread) if spread else None
