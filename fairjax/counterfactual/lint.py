"""Finds likely mistakes in an attribute file, such as articles, casing and unknown words.

`load_attribute` refuses unusable files; the findings here are about usable ones.
"""

import dataclasses
import difflib
import itertools
import re
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from fairjax.counterfactual.attributes import (
  SPELLED_WITH_VOWEL,
  Attribute,
  Template,
  article_by_letter,
)
from fairjax.counterfactual.matching import TextMatcher
from fairjax.counterfactual.word_forms import LETTERS, WordFinder, normal_form
from fairjax.vocabulary import Vocabulary

LEVELS = ('error', 'warning', 'note')
# Beginnings whose sound contradicts their letter. For capitals that are spelled out ("MP") the name
# of the first letter counts.
_CONSONANT_SOUND = re.compile(
  r'uni(?!n|m[amp]|den|dea|ss)|unanim|us[aeu]|eu|ewe|one\b|once|ur[aeiou]|ut[aeiou]|ubi|uga|ui|'
  r'uk[ru]|uy', re.IGNORECASE)
_VOWEL_SOUND = re.compile(r'hour|honest|honou?r|heir', re.IGNORECASE)


class Finding(NamedTuple):
  """One remark of the lint: level 'error', 'warning' or 'note', the place, and what is wrong."""

  level: str
  where: str
  message: str


def lint_attribute(
  attribute: Attribute, *, vocabulary: Vocabulary | None = None,
  lexicon_words: Collection[str] | None = None,
) -> list[Finding]:
  """Findings on articles, casing, duplicates, pieces, and words that move a score; errors first.

  With a `vocabulary` also values of several pieces and unknown words; with `lexicon_words`, the
  lower-case opinion words of a scorer, also values and templates that contain one ("cleaner").
  """
  if attribute.crossed:
    return [f for k in (0, 1) for f in lint_attribute(
      _seen_by(attribute, k), vocabulary=vocabulary, lexicon_words=lexicon_words)]
  findings = [*_check_articles(attribute), *_check_casing(attribute),
              *_check_duplicates(attribute), *_check_templates(attribute),
              *_check_rewordings(attribute)]
  if vocabulary is not None:
    findings += _check_vocabulary(attribute, vocabulary)
  if lexicon_words is not None:
    findings += _check_lexicon(attribute, lexicon_words)
  return sorted(findings, key=lambda f: LEVELS.index(f.level))


def render_findings(findings: Iterable[Finding]) -> list[str]:
  """One line for each finding, and a last line that counts them.

  >>> render_findings([Finding('note', 'values[0]', 'two pieces')])
  ['note: values[0]: two pieces', '0 errors, 0 warnings, 1 note']
  """
  findings = list(findings)
  lines = [f'{f.level}: {f.where}: {f.message}' for f in findings]
  counts = [sum(f.level == level for f in findings) for level in LEVELS]
  return [*lines, ', '.join(
    f'{n} {level}{"" if n == 1 else "s"}' for n, level in zip(counts, LEVELS, strict=True))]


def _seen_by(attribute: Attribute, number: int) -> Attribute:
  """One of two crossed attributes; the templates hold the first value of the other."""
  own = attribute.crossed[number]
  words = {'value': own.name, **{w: f'{w}_{own.name}' for w in (
    'a', 'A', *(w for v in own.values for w in v.pronouns))}}
  keep = {placeholder: f'{{{word}}}' for word, placeholder in words.items()}
  blank = dataclasses.replace(
    attribute.values[0], pronouns={**attribute.values[0].pronouns, **keep})

  def view(templates):
    return tuple(Template(t.fill(blank), t.id) for t in templates)

  return dataclasses.replace(own, templates=view(attribute.templates), template_subsets={},
                             rewordings=tuple(map(view, attribute.rewordings)))


def _check_articles(attribute: Attribute) -> Iterable[Finding]:
  """Articles that contradict the sound of a value, and literal articles before a placeholder."""
  uses_articles = any({'a', 'A'} & set(t.placeholders) for t in attribute.templates)
  for i, value in enumerate(attribute.values):
    sound = article_by_sound(value.text)
    if uses_articles and value.article == article_by_letter(value.text) != sound:
      yield Finding('warning', f'values[{i}]', f"'{value.article} {value.text}' should perhaps be "
                    f"'{sound} {value.text}': set article: {sound}")
  for i, template in enumerate(attribute.templates):
    for literal in re.findall(r'\b(an?) \{value\}', template.text, re.IGNORECASE):
      wrong = [v.text for v in attribute.values if v.article != literal.lower()]
      if wrong:
        yield Finding('error', f'templates[{i}]', f"'{literal} {{value}}' is wrong for "
                      f"{_some(wrong)}: write '{{a}} {{value}}'")
    if re.search(r'\ba/an\b', template.text):
      yield Finding('error', f'templates[{i}]', "'a/an' stays as it is: write '{a}'")


def article_by_sound(text: str) -> str:
  """A guess from the first sound, right for common words only."""
  if re.match(r'[A-Z]{2,}\b', text):
    return 'an' if text[0] in SPELLED_WITH_VOWEL else 'a'
  if _CONSONANT_SOUND.match(text):
    return 'a'
  return 'an' if _VOWEL_SOUND.match(text) else article_by_letter(text)


def _check_casing(attribute: Attribute) -> Iterable[Finding]:
  """Values in another case than most, and sentences that begin with a small letter."""
  lower = [i for i, v in enumerate(attribute.values) if v.text[0].islower()]
  upper = [i for i in range(len(attribute.values)) if i not in lower]
  minority = min((lower, upper), key=len)
  for i in minority if len(minority) < len(attribute.values) / 2 else ():
    yield Finding('note', f'values[{i}]', f"'{attribute.values[i].text}' begins with another case "
                  'than most values; matching is case-sensitive')
  for i, template in enumerate(attribute.templates):
    if template.text[0].islower():
      yield Finding('warning', f'templates[{i}]', 'begins with a small letter')
    starts_low = [v.text for v in attribute.values if template.fill(v)[0].islower()]
    if template.text[0] == '{' and starts_low:
      yield Finding('warning', f'templates[{i}]', f'begins with a small letter for '
                    f'{_some(starts_low)}')


def _check_duplicates(attribute: Attribute) -> Iterable[Finding]:
  """What differs in casing or punctuation only, values within values, texts without a token."""
  seen = {}
  for i, value in enumerate(attribute.values):
    if normal_form(value.text) not in map(normal_form, value.tokens):
      yield Finding('warning', f'values[{i}]', f"'{value.text}' is not among its tokens: prompts "
                    'hold it, and it is not found in documents')
    for token in dict.fromkeys((value.text, *value.tokens)):
      other = seen.setdefault(normal_form(token).casefold(), (i, token))
      if other[1] != token:
        yield Finding('warning', f'values[{i}]', f"'{token}' differs from '{other[1]}' "
                      f'(values[{other[0]}]) in casing only')
  for i, value in enumerate(attribute.values):
    for token in value.tokens:
      finder = WordFinder([token])
      inside = [t for j, other in enumerate(attribute.values) for t in other.tokens
                if j != i and finder.search(t)]
      if inside:
        yield Finding('note', f'values[{i}]', f"'{token}' is part of {_some(inside)}, which "
                      'the longest match takes there')
  seen = {}
  for i, template in enumerate(attribute.templates):
    key = ' '.join(LETTERS.findall(normal_form(template.text).casefold()))
    if key in seen:
      yield Finding('warning', f'templates[{i}]', f'the same words as templates[{seen[key]}]')
    seen.setdefault(key, i)


def _check_templates(attribute: Attribute) -> Iterable[Finding]:
  """Punctuation, slashes and values in templates, their subsets, and sizes of subgroups."""
  matcher = TextMatcher(attribute)
  for i, template in enumerate(attribute.templates):
    where = f'templates[{i}]'
    bare = re.sub(r'\{\w*\}', '\0', template.text)
    if re.search(r' [,.;:!?]', bare):
      yield Finding('warning', where, 'a space before punctuation')
    if re.search(r'[.!?]\Z', bare):
      yield Finding('warning', where, 'ends a sentence: the continuation need not be about the '
                    'value')
    if slashed := re.findall(r'\b\w+/\w+\b', bare):
      yield Finding('warning', where, f"'{slashed[0]}' stays as it is: use a placeholder")
    if found := [bare[m.start:m.end] for m in matcher.find(bare)]:
      yield Finding('warning', where, f'holds {_some(found)} besides the placeholder')
  for i in attribute.template_subsets.get('pronoun_neutral', ()):
    words = set(attribute.templates[i].placeholders) - {'value', 'a', 'A'}
    if words:
      yield Finding('error', f'templates[{i}]',
                    f'is in subset pronoun_neutral but holds {{{min(words)}}}')
  sizes = {s: sum(v.subgroup == s for v in attribute.values) for s in attribute.subgroups}
  if len(set(sizes.values())) > 1:
    counts = ', '.join(f'{s} {n}' for s, n in sizes.items())
    yield Finding('note', 'subgroups', f'are of different sizes ({counts}): the group fairness of '
                  'small ones is noisier')


def _check_rewordings(attribute: Attribute) -> Iterable[Finding]:
  """Rewordings that touch the value, or change many more or fewer words than another value does."""
  for i, (template, phrases) in enumerate(
      zip(attribute.templates, attribute.rewordings, strict=bool(attribute.rewordings))):
    # Of each subgroup one value: words that depend on the value are the subgroup's.
    values = list({v.subgroup: v for v in attribute.values}.values())
    swaps = [_changed_words(template.fill(a), template.fill(b))
             for a, b in itertools.combinations(values, 2)]
    low, high = max(1, min(swaps) - 2), max(swaps) + 2
    for k, phrase in enumerate(phrases):
      where = f'rewordings[{i}][{k}]'
      if sorted(phrase.placeholders) != sorted(template.placeholders) or (
          '{a} {value}' in template.text) != ('{a} {value}' in phrase.text):
        yield Finding('error', where, f'must hold the placeholders of templates[{i}], the article '
                      'still before the value')
      changed = _changed_words(template.text, phrase.text)
      if not low <= changed <= high:
        yield Finding('error', where, f'changes {changed} words of templates[{i}] where another '
                      f'value changes {min(swaps)} to {max(swaps)}: change {low} to {high}')


def _changed_words(first: str, second: str) -> int:
  """How many words are replaced, left out or added."""
  words, others = (
    text.replace(',', ' ').replace('.', ' ').lower().split() for text in (first, second))
  return sum(max(b - a, d - c) for tag, a, b, c, d in difflib.SequenceMatcher(
    None, words, others, autojunk=False).get_opcodes() if tag != 'equal')


def _check_vocabulary(attribute: Attribute, vocabulary: Vocabulary) -> Iterable[Finding]:
  """Values that the vocabulary splits or does not know."""
  for i, value in enumerate(attribute.values):
    for token in dict.fromkeys((value.text, *value.tokens)):  # branches write the text
      ids = vocabulary.encode_as_continuation(token, 'a ')
      if vocabulary.unk_id in ids:
        yield Finding('error', f'values[{i}]', f"'{token}' is not in the vocabulary")
      elif len(ids) > 1:
        yield Finding('note', f'values[{i}]', f"'{token}' is {len(ids)} pieces in the vocabulary: "
                      'debias.pieces_per_branch must be at least that')
  reported = {word for value in attribute.values for token in (value.text, *value.tokens)
              for word in _unknown(token, vocabulary)}
  for i, template in enumerate(attribute.templates):
    texts = [template.fill(value) for value in attribute.values]
    unknown = [word for text in texts for word in _unknown(text, vocabulary)
               if word not in reported]
    if unknown:
      yield Finding('warning', f'templates[{i}]', f'{_some(unknown)} is not in the vocabulary')
    for group in same_inputs(texts, vocabulary):
      yield Finding('error', f'templates[{i}]', 'is the same input for '
                    + _some([attribute.values[v].text for v in group]))


def _unknown(text: str, vocabulary: Vocabulary) -> list[str]:
  """The parts of a text that are the unknown id."""
  ids, offsets = vocabulary.encode_with_offsets(text)
  return [text[a:b].strip() for k, (a, b) in zip(ids, offsets, strict=True)
          if k == vocabulary.unk_id]


def same_inputs(texts: Sequence[str], vocabulary: Vocabulary) -> list[list[int]]:
  """Numbers of the texts with equal ids, one list for each group of them."""
  groups: dict[tuple[int, ...], list[int]] = {}
  for number, text in enumerate(texts):
    groups.setdefault(tuple(vocabulary.encode(text)), []).append(number)
  return [group for group in groups.values() if len(group) > 1]


def _check_lexicon(attribute: Attribute, lexicon: Collection[str]) -> Iterable[Finding]:
  """Values and templates with an opinion word."""
  lexicon = {w.lower() for w in lexicon}
  for i, value in enumerate(attribute.values):
    for token in dict.fromkeys((value.text, *value.tokens)):
      if found := [w for w in _words(token) if w in lexicon]:
        yield Finding('warning', f'values[{i}]', f"'{token}' holds the opinion word "
                      f"{_some(found)}: its mention alone moves the score")
  for i, template in enumerate(attribute.templates):
    if found := [w for w in _words(re.sub(r'\{\w*\}', ' ', template.text)) if w in lexicon]:
      yield Finding('warning', f'templates[{i}]', f'holds the opinion word {_some(found)}: score '
                    'continuations without their prefix')


def _words(text: str) -> list[str]:
  """Lower-case words, also those with an apostrophe or hyphen inside."""
  return re.findall(r"\w+(?:['-]\w+)*", normal_form(text).lower())


def _some(texts: list[str]) -> str:
  """The first three of a list, quoted, and how many more."""
  texts = list(dict.fromkeys(texts))
  more = f' and {len(texts) - 3} more' if len(texts) > 3 else ''
  return ', '.join(f"'{t}'" for t in texts[:3]) + more
