"""Distances d(u, v) between prompts, each in [0, 1] (Y-03; Yeo & Chen 2020, section 2.1).

The definition of fairness compares a gap of biases with d, so the scale of d decides what is
demanded: `scale` of each distance says it in words.
"""

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from fairjax.counterfactual.word_forms import LETTER, WordFinder, normal_form
from fairjax.errors import unknown_name
from fairjax.fair_generation.completions import Prompt

DISTANCES = ('masked', 'jaccard', 'edit', 'cosine')
_WORD = re.compile(f"{LETTER}+(?:['-]{LETTER}+)*")


class Distance(NamedTuple):
  """A distance between prompts.

  Attributes:
    name: as given on the command line.
    scale: what its numbers mean.
    matrix: P prompts to `[P, P]` float64 in [0, 1], symmetric, 0 on the diagonal.
  """

  name: str
  scale: str
  matrix: Callable[[Sequence[Prompt]], np.ndarray]


def load_distance(name: str) -> Distance:
  """Makes a distance by name: 'masked', 'jaccard', 'edit', or 'cosine:ENCODER'.

  Args:
    name: ENCODER is what `fairjax measure --encoder` takes, minilm if left out.

  Raises:
    UserError: an unknown name, or an encoder that cannot be used.
  """
  kind, _, argument = name.partition(':')
  if kind not in DISTANCES or (argument and kind != 'cosine'):
    raise unknown_name('distance', name, DISTANCES)
  if kind == 'cosine':
    from fairjax.measure.encoders import load_encoder
    encoder = load_encoder(argument or 'minilm')
    return Distance(
      name, f'(1 - cosine of {encoder.name}) / 2: 0 the same direction, 1/2 unrelated, 1 opposite',
      lambda prompts: cosine_matrix(encoder.encode([p.text for p in prompts])))
  scale, distance = {
    'masked': ('0 if the prompts are identical but for the demographic, else 1, where nothing is '
               'demanded (a gap of biases in [0, 1] is never larger)', masked_distance),
    'jaccard': ('share of the different words of both prompts that only one of them has',
                jaccard_distance),
    'edit': ('words to insert, delete or replace, over the words of the longer prompt',
             edit_distance)}[kind]
  return Distance(name, scale, lambda prompts: _matrix(prompts, distance))


def _matrix(prompts: Sequence[Prompt], distance: Callable[[Prompt, Prompt], float]) -> np.ndarray:
  """All pairs."""
  found = np.zeros((len(prompts), len(prompts)))
  for i, first in enumerate(prompts):
    for j in range(i):
      found[i, j] = found[j, i] = distance(first, prompts[j])
  return found


def masked_distance(first: Prompt, second: Prompt) -> float:
  """0 if both are the same text with the demographic masked, or fill one template; else 1.

  A template brings its own agreement ("They work as", "She works as"), which is no difference of
  what is asked. The demographic is masked where it stands as a whole word, in any case.
  """
  if (first.attribute, first.template) == (second.attribute, second.template):
    return 0.0
  return float(_masked(first) != _masked(second))


def _masked(prompt: Prompt) -> str:
  text, _ = WordFinder([prompt.value], ignore_case=True).replace(prompt.text, '\0')
  return normal_form(text).lower()


def words_of(text: str) -> list[str]:
  """Words in lower case, without punctuation.

  >>> words_of("The man's part-time job, as")
  ['the', "man's", 'part-time', 'job', 'as']
  """
  return _WORD.findall(normal_form(text).lower())


def jaccard_distance(first: Prompt, second: Prompt) -> float:
  """1 - |A and B| / |A or B| of the sets of words; 0 for two prompts without words."""
  a, b = set(words_of(first.text)), set(words_of(second.text))
  return 1 - len(a & b) / len(a | b) if a | b else 0.0


def edit_distance(first: Prompt, second: Prompt) -> float:
  """Levenshtein distance of the words over the number of words of the longer prompt."""
  a, b = words_of(first.text), words_of(second.text)
  return count_edits(a, b) / max(len(a), len(b), 1)


def count_edits(first: Sequence[str], second: Sequence[str]) -> int:
  """Fewest insertions, deletions and replacements that turn one sequence into the other.

  >>> count_edits('the man works as'.split(), 'she works as'.split())
  2
  """
  row = list(range(len(second) + 1))
  for i, a in enumerate(first, 1):
    last, row = row, [i]
    for j, b in enumerate(second, 1):
      row.append(min(last[j] + 1, row[-1] + 1, last[j - 1] + (a != b)))
  return row[-1]


def cosine_matrix(vectors: np.ndarray) -> np.ndarray:
  """(1 - cosine) / 2 of vectors `[P, D]`: `[P, P]` float64 in [0, 1]."""
  vectors = np.asarray(vectors, np.float64)
  norms = np.linalg.norm(vectors, axis=1, keepdims=True)
  units = vectors / np.where(norms > 0, norms, 1)
  found = (1 - np.clip(units @ units.T, -1, 1)) / 2
  np.fill_diagonal(found, 0)
  return found
