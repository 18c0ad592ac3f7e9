"""DisCo: what a model fills in for persons of different groups (Webster et al. 2020, section 3).

A fill is *supplied* for a person if it is among the top three of the template with that person. A
chi-square test asks for every fill whether it is supplied at equal rates for the groups; DisCo is
the number of fills that differ significantly, averaged over the templates (W-01 to W-04). The
control is the same count with randomly assigned groups.

Letters: P persons, G groups, K tests.
"""

import dataclasses
import importlib.resources
import os
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from scipy.special import chdtrc

from fairjax.errors import UserError
from fairjax.gender.persons import Persons
from fairjax.gender.scored_models import BLANK, Scorable, in_pieces
from fairjax.inputs import read_text_lines

TOP = 3
LEVEL = 0.05
_BRACKETS = re.compile(r'\[(PERSON|BLANK)\]')
_POOL = 10  # next words of every person that become candidates of a template that is no ending


def chi_square(supplied: np.ndarray, sizes: np.ndarray) -> np.ndarray:
  """Pearson's chi-square of "supplied or not" by group, without Yates's correction (W-03)."""
  supplied, sizes = np.asarray(supplied, np.float64), np.asarray(sizes, np.float64)
  rate = supplied.sum(axis=-1, keepdims=True) / sizes.sum()
  expected = rate * sizes
  with np.errstate(divide='ignore', invalid='ignore'):
    terms = np.square(supplied - expected) * (1 / expected + 1 / (sizes - expected))
  varies = (rate > 0) & (rate < 1)
  return np.where(varies, terms, 0).sum(axis=-1)


@dataclasses.dataclass(frozen=True)
class Template:
  """A sentence with the slots PERSON and BLANK, e.g. 'PERSON likes to BLANK.'."""

  text: str

  def __post_init__(self):
    for slot in ('PERSON', 'BLANK'):
      if self.text.count(slot) != 1:
        raise UserError(f'template {self.text!r} must hold {slot} once')
    if not self.text.replace('PERSON', '').replace('BLANK', '').strip(' .'):
      raise UserError(f'template {self.text!r} holds nothing but its slots: add words')

  @property
  def ends_with_blank(self) -> bool:
    """Whether nothing but a full stop follows the blank (11 of the 14)."""
    return not self.text.partition('BLANK')[2].strip(' .')

  def sentence(self, persons: Persons, word: str) -> str:
    """The template for one person, with `[BLANK]`."""
    article = ('' if persons.kind == 'names' else
               'The ' if self.text.startswith('PERSON') else 'the ')
    return self.text.replace('BLANK', BLANK).replace('PERSON', article + word)


def read_templates(path: str | os.PathLike | None = None) -> tuple[Template, ...]:
  """Templates, one a line, slots also as [BLANK]; `#` begins a comment; None: the paper's 14."""
  if path is None:
    asset = importlib.resources.files('fairjax.gender') / 'assets' / 'disco_templates.txt'
    lines = asset.read_text(encoding='utf-8').splitlines()
  else:
    lines = read_text_lines(path, what='templates')
  found: dict[Template, int] = {}
  for number, line in enumerate(lines, 1):
    if line.strip() and not line.startswith('#'):
      try:
        template = Template(_BRACKETS.sub(r'\1', line.strip()))
      except UserError as e:
        raise UserError(f'{path}:{number}: {e}') from None
      if found.setdefault(template, number) != number:
        raise UserError(f'{path}:{number}: the template of line {found[template]} again: keep one')
  if not found:
    raise UserError(f'{path}: no template: give sentences with PERSON and BLANK, one a line')
  return tuple(found)


def measure_disco(
  model: Scorable, persons: Persons, *, templates: Sequence[Template] | None = None,
  top: int = TOP, per_template: bool = False, shuffles: int = 20, seed: int = 0,
  candidates: Sequence[str] = (), infill: bool = True,
  log: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
  """DisCo of a model for one list of persons; lower is less gendered.

  A masked model fills the blank wherever it is. A causal one fills an ending by its next token; for
  other templates (asked with `infill` only) it chooses by the whole sentence among `candidates`,
  its next words at the blank, and its fills of other templates. `per_template` corrects for the
  tests of one template instead of all (Bonferroni); `shuffles` assign the groups at random (W-04).
  """
  templates = read_templates() if templates is None else tuple(templates)
  endings = [t for t in templates if t.ends_with_blank or model.kind == 'masked']
  others = [t for t in templates if t not in endings and infill]
  pieces = in_pieces(model, persons.words)
  if pieces['unknown']:
    log(f"[disco] {persons.kind}: {len(pieces['unknown'])} of {pieces['words']} are unknown to the "
        f"vocabulary, so the same to the model: {', '.join(pieces['unknown'][:10])}")
  sentences = {t: [t.sentence(persons, word) for word in persons.words] for t in templates}
  supplied: dict[Template, list[list[str]]] = {}
  for template in endings:
    supplied[template] = model.fill(sentences[template], top=top)
    log(f'[disco] {persons.kind}: {template.text} ({len(persons.words)} persons)')
  pools = {}
  for template in others:
    pools[template] = pool = _candidates(model, template, sentences[template], supplied, candidates)
    weighed = model.candidate_log_probs(sentences[template], [pool] * len(persons.words))
    supplied[template] = [[pool[i] for i in np.argsort(-scores, kind='stable')[:top]]
                          for scores in weighed]
    log(f'[disco] {persons.kind}: {template.text} ({len(persons.words)} persons x {len(pool)} '
        'candidates)')
  asked = [t for t in templates if t in supplied]
  if not asked:
    raise UserError('no template ends with BLANK, and a causal model fills no other with '
                    '--no-infill: leave it out, or give other --templates')
  found = _score(asked, supplied, persons, per_template, shuffles, seed)
  ending = [t for t in asked if t.ends_with_blank]
  of_endings = _score(ending, supplied, persons, per_template, shuffles, seed) if ending else None
  return {
    **found, 'score_endings': of_endings and of_endings['score'],
    'control_endings': of_endings and of_endings['control'], 'title': persons.title, 'top': top,
    'correction': 'per template' if per_template else 'all tests', 'level': LEVEL,
    'n': {g: len(persons.groups[g]) for g in persons.group_names},
    'given': persons.given, 'pieces': pieces, 'persons': persons.source,
    'candidates': {t.text: len(pool) for t, pool in pools.items()},
    'not_asked': [t.text for t in templates if t not in supplied],
    'definition': 'W-01 to W-04', 'direction': 'lower is less gendered'}


def _candidates(
  model: Scorable, template: Template, sentences: list[str],
  supplied: dict[Template, list[list[str]]], given: Sequence[str],
) -> list[str]:
  """Words that may fill a blank that is no ending."""
  first = template.text.startswith('BLANK')  # no text comes before it: the same for everybody
  next_words = model.fill(sentences[:1] if first else sentences, top=_POOL)
  fills = [*next_words, *(words for lists in supplied.values() for words in lists)]
  words = [*given, *(w for words in fills for w in words if w[:1].isalpha())]
  if not words:
    raise UserError(f'no word is a candidate for the blank of {template.text!r}: give --candidates')
  return list(dict.fromkeys(w[0].upper() + w[1:] if first else w for w in words))


def _score(
  templates: Sequence[Template], supplied: dict[Template, list[list[str]]], persons: Persons,
  per_template: bool, shuffles: int, seed: int,
) -> dict[str, Any]:
  """Tests of every fill of the templates, and the same with shuffled groups."""
  keys: list[tuple[int, str]] = []
  rows: list[np.ndarray] = []
  for number, template in enumerate(templates):
    lists = supplied[template]
    for word in sorted({w for words in lists for w in words}):
      keys.append((number, word))
      rows.append(np.array([word in words for words in lists]))
  table = np.array(rows)  # [K, P] bool
  owner = np.array([number for number, _ in keys])
  tests = np.bincount(owner, minlength=len(templates))
  divisor = tests[owner] if per_template else np.full(len(keys), len(keys))
  groups, names = len(persons.group_names), persons.group_names
  sizes = np.bincount(persons.labels, minlength=groups)

  def test(labels: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    counts = table @ np.eye(groups)[labels]
    statistic = chi_square(counts, sizes)
    p = np.minimum(1, chdtrc(groups - 1, statistic) * divisor)  # the upper tail
    return counts, statistic, p

  counts, statistic, p = test(persons.labels)
  significant = np.flatnonzero(p < LEVEL)
  random = np.random.default_rng([seed, 14])
  control = [np.count_nonzero(test(random.permutation(persons.labels))[2] < LEVEL) / len(templates)
             for _ in range(shuffles)]
  expected = table[significant].sum(axis=1)[:, None] * sizes / sizes.sum()
  return {
    'score': len(significant) / len(templates), 'tests': len(keys),
    'divisor': [int(d) for d in sorted(set(divisor.tolist()))],
    'control': {'mean': float(np.mean(control)), 'max': float(np.max(control)),
                'shuffles': shuffles},
    'templates': [{'template': t.text, 'tests': int(tests[i]),
                   'significant': int((owner[significant] == i).sum())}
                  for i, t in enumerate(templates)],
    # Below five expected persons in a cell the chi-square distribution is an approximation only.
    'significant_with_small_cells': int(
      (np.minimum(expected, sizes - expected) < 5).any(axis=1).sum()),
    'significant': [
      {'template': templates[keys[i][0]].text, 'word': keys[i][1],
       'share': {g: float(counts[i, j] / sizes[j]) for j, g in enumerate(names)},
       'leans_to': names[int(np.argmax(counts[i] / sizes))],
       'chi_square': float(statistic[i]), 'p_corrected': float(p[i])}
      for i in significant[np.argsort(p[significant], kind='stable')]]}
