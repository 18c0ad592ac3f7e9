"""What a reader of the measures must know about the input, in sentences."""

import collections
from collections.abc import Mapping
from typing import Any

import numpy as np

from fairjax.measure.estimates import LEVEL
from fairjax.measure.generations import Generations

_NAMED = 5  # words that are listed before the rest is counted


def notes(generations: Generations, measures: Mapping[str, Any]) -> list[str]:
  """Sentences about one result of `measure_generations`; empty where nothing is unusual.

  Args:
    generations: what was measured.
    measures: the result, complete but for `notes`.
  """
  empty = generations.empty_texts
  found = [empty and empty.sentence(LEVEL), _unequal(generations),
           _uncoupled(generations, measures), _repeated(generations)]
  found += [_lexicon(name, m) for name, m in measures['scorers'].items()]
  found.append(_resolution(measures))
  return [sentence for sentence in found if sentence]


def _unequal(generations: Generations) -> str | None:
  """Prefixes of unequal n, with the one that has fewest."""
  attribute = generations.attribute
  cell = generations.template_index * len(attribute.values) + generations.value_index
  counts = np.bincount(cell)
  if counts.min() == counts.max():
    return None
  template, value = divmod(int(counts.argmin()), len(attribute.values))
  fewer = np.count_nonzero(counts < counts.max())
  return (f'n differs: {fewer} of {counts.size} prefixes have fewer than {counts.max()} samples, '
          f'fewest {counts.min()} (template {generations.templates[template]!r}, value '
          f"'{attribute.values[value].text}'); each floor is that of its own n")


def _uncoupled(generations: Generations, measures: Mapping[str, Any]) -> str | None:
  """Numbered samples that were not measured as coupled."""
  if generations.sample is None or measures['coupled']:
    return None
  cell = (generations.template_index * len(generations.attribute.values)
          + generations.value_index)
  order = np.lexsort((generations.sample, cell))
  rows = np.split(generations.sample[order], np.cumsum(np.bincount(cell))[:-1])
  values = len(generations.attribute.values)
  if all(np.array_equal(rows[i - i % values], row) for i, row in enumerate(rows)):
    return None  # asked for
  return ('samples are numbered, but not all values of a template have the same numbers: they were '
          'measured as independent, and if they share noise all the same, floors and p-values are '
          'too large')


def _repeated(generations: Generations) -> str | None:
  """Records without sample numbers that hold the same text for the same prefix."""
  if generations.sample is not None:
    return None  # a number that occurs twice was refused
  counts = collections.Counter(zip(
    generations.template_index.tolist(), generations.value_index.tolist(),
    generations.continuations, strict=True))
  repeated = len(generations) - len(counts)
  if not repeated:
    return None
  return (f'{repeated} of {len(generations)} records repeat the continuation of another record of '
          'the same prefix; without sample numbers nobody can tell equal samples from records that '
          'stand in the file twice')


def _lexicon(name: str, measures: Mapping[str, Any]) -> str | None:
  """Words that stand in both lists."""
  words = measures['lexicon_words_in_both']
  if not words:
    return None
  more = f' and {len(words) - _NAMED} more' if len(words) > _NAMED else ''
  return (f"scorer {name}: {len(words)} of its words stand in both lists and count in neither: "
          f"{', '.join(words[:_NAMED])}{more}")


def _resolution(measures: Mapping[str, Any]) -> str | None:
  """Tables whose smallest corrected p-value cannot reach the level with so few permutations."""
  least = 1 / (measures['permutations'] + 1)
  any_scorer = next(iter(measures['scorers'].values()))
  sizes = {'values or subgroups': len(any_scorer['subgroups']['subgroup']),
           'templates': len(any_scorer['by_template']['template'])}
  short = [f'{size} {what}' for what, size in sizes.items() if size * least > LEVEL]
  if not short:
    return None
  return (f"{measures['permutations']} permutations are too few for a corrected p-value of "
          f"{LEVEL} over {' and over '.join(short)}: use more than "
          f'{int(max(sizes.values()) / LEVEL)}')
