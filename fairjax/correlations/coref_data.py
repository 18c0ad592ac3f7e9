"""Pairs of mentions that corefer or do not: from WinoBias, and from files in OntoNotes's format."""

import os
import pathlib
import re
from collections.abc import Iterator
from typing import NamedTuple

from fairjax.correlations.winogender import Span
from fairjax.errors import UserError
from fairjax.inputs import read_text_lines

_NUMBERED = re.compile(r'\d+ ')
_BRACKETS = re.compile(r'\[([^\]]*)\]')
_PRONOUNS = {'he', 'him', 'his', 'himself', 'she', 'her', 'hers', 'herself', 'they', 'them',
             'their', 'theirs', 'themselves'}
_MOST_MENTIONS = 20  # of a sentence: its pairs grow with the square


class MentionPair(NamedTuple):
  """Two mentions of a sentence and whether they mean the same."""

  text: str
  first: Span
  second: Span
  same: bool


def read_pairs(path: str | os.PathLike, split: str) -> list[MentionPair]:
  """Pairs of one split of a folder.

  Args:
    path: a folder with WinoBias's files (`*.txt.dev`, `*.txt.test`), or with `train`, `dev` and
      `test` folders of `*conll` files; where some are named `*gold_conll`, as beside the
      `*auto_conll` of CoNLL 2012, only those are read. Of a sentence of more than 20 mentions the
      pairs of the first 20 are taken.
    split: 'train' (of WinoBias its dev files) or 'test'.

  Raises:
    UserError: neither kind of file is there, or one cannot be read.
  """
  path = pathlib.Path(path)
  wino = sorted(path.glob(f"*stereotyped*.txt.{'dev' if split == 'train' else 'test'}"))
  conll = sorted((path / split).rglob('*gold_conll')) or sorted((path / split).rglob('*conll'))
  if wino:
    pairs = _winobias(wino, sorted(path.glob('*stereotyped*.txt.*')))
  elif conll:
    pairs = [pair for file in conll for pair in _conll(file)]
  else:
    raise UserError(f'{path} holds neither files of WinoBias (*stereotyped*.txt.dev and .test) nor '
                    f'{split}/*conll in the format of OntoNotes (CoNLL 2012)')
  if len({pair.same for pair in pairs}) < 2:
    raise UserError(f'{path}: {split} holds {len(pairs)} pairs, all of one kind: some that corefer '
                    'and some that do not are needed')
  return pairs


def _winobias(files: list[pathlib.Path], all_files: list[pathlib.Path]) -> list[MentionPair]:
  """The pronoun of every sentence with the marked person, and with the other one.

  Only the antecedent is marked; the other person is one of those that are marked elsewhere.
  """
  people = set()
  for file in all_files:
    for line in read_text_lines(file):
      people |= {m[1].lower() for m in _BRACKETS.finditer(line)} - _PRONOUNS
  known = re.compile(
    r'\b(?:' + '|'.join(map(re.escape, sorted(people, key=len, reverse=True))) + r')\b', re.I)
  pairs = []
  for file in files:
    for number, line in enumerate(read_text_lines(file), 1):
      if not line.strip():
        continue
      text, marked = _without_brackets(_NUMBERED.sub('', line, count=1))
      pronouns = [s for s in marked if text[s.start:s.end].lower() in _PRONOUNS]
      named = [s for s in marked if s not in pronouns]
      if not pronouns or not named:
        raise UserError(f'{file}:{number}: a [person] and a [pronoun] must be marked')
      others = [Span(*m.span()) for m in known.finditer(text)
                if not any(m.start() < s.end and m.end() > s.start for s in marked)]
      pairs += [MentionPair(text, pronouns[0], s, True) for s in named]
      pairs += [MentionPair(text, pronouns[0], s, False) for s in others]
  return pairs


def _without_brackets(line: str) -> tuple[str, list[Span]]:
  """The line without its brackets, and what stood in them."""
  text, spans, end = '', [], 0
  for mark in _BRACKETS.finditer(line):
    text += line[end:mark.start()]
    spans.append(Span(len(text), len(text) + len(mark[1])))
    text, end = text + mark[1], mark.end()
  return text + line[end:], spans


def _conll(path: pathlib.Path) -> Iterator[MentionPair]:
  """All pairs of mentions within each sentence; those of one chain corefer (Tenney et al. 2019)."""
  words: list[str] = []
  marks: list[str] = []
  for number, line in enumerate([*read_text_lines(path), ''], 1):
    if line.startswith('#'):
      continue
    cells = line.split()
    if cells:
      if len(cells) < 5:
        raise UserError(f'{path}:{number}: {len(cells)} columns: the word is the fourth, the last '
                        'holds the chains')
      words.append(cells[3])
      marks.append(cells[-1])
    elif words:
      yield from _sentence_pairs(words, marks, f'{path}:{number}')
      words, marks = [], []


def _sentence_pairs(words: list[str], marks: list[str], where: str) -> Iterator[MentionPair]:
  """Pairs of the mentions that the marks of a sentence open and close."""
  starts, at = [], 0
  for word in words:
    starts.append(at)
    at += len(word) + 1
  text, mentions, opened = ' '.join(words), [], {}
  for i, mark in enumerate(marks):
    for part in mark.split('|'):
      chain = part.strip('()')
      if part.startswith('('):
        opened.setdefault(chain, []).append(i)
      if part.endswith(')'):
        if not opened.get(chain):
          raise UserError(f'{where}: chain {chain} ends in the sentence before, but begins nowhere')
        first = opened[chain].pop()
        mentions.append((Span(starts[first], starts[i] + len(words[i])), chain))
  if any(opened.values()):
    raise UserError(f'{where}: a chain of the sentence before is never closed')
  mentions = sorted(mentions)[:_MOST_MENTIONS]
  for i, (first, chain) in enumerate(mentions):
    for second, other in mentions[i + 1:]:
      yield MentionPair(text, first, second, chain == other)
