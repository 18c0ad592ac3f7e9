"""Labelled sentences: the Stanford Sentiment Treebank (Socher et al. 2013) and the like."""

import hashlib
import io
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from fairjax.errors import UserError
from fairjax.inputs import decode, open_input
from fairjax.tables import read_rows

NAMES = {2: ('negative', 'positive'),
         5: ('very negative', 'negative', 'neutral', 'positive', 'very positive')}
"""Number of classes -> their names, from bad to good."""

_NODE = re.compile(r'\(|\)|[^() ]+')  # a no-break space belongs to a word
_TEXT = ('sentence', 'text')
_HEADER = re.compile(rb'[^\r\n]*\b(label["\']?[\t,;]|[\t,;]["\']?label\b)')
_UNDO = {'-LRB-': '(', '-RRB-': ')', '-LSB-': '[', '-RSB-': ']', '\\/': '/', '\\*': '*'}


class Examples(NamedTuple):
  """What a file holds.

  Attributes:
    texts: R texts.
    labels: `[R]` int32, 0 to classes - 1.
    neutral: texts of two-class data that were left out because they are neutral.
    doubles: phrases that were left out because the same text and label was there already.
    digest: SHA-256 (hex) of texts and labels.
  """

  texts: list[str]
  labels: np.ndarray
  neutral: int
  doubles: int
  digest: str


def read_examples(path: str | os.PathLike, *, classes: int, phrases: bool = False) -> Examples:
  """Reads a file of labelled sentences, plain or compressed.

  Forms, told apart by the first line: trees (`(3 (2 It) (4 ...))`, labels 0 to 4 at every node);
  `label<TAB>binary<TAB>text` with label 0 to 4 and binary 0, 1 or empty for neutral;
  `label<TAB>text` with labels 0 to classes - 1; a table whose header names `label` and `sentence`
  or `text` (GLUE's SST-2); JSON objects with these names.

  Args:
    path: the file.
    classes: 2 (neutral texts are left out, counted) or 5.
    phrases: of trees, take every phrase and not only the whole sentence.

  Raises:
    UserError: unreadable file or line (with its number), unknown label, empty text, or a form that
      cannot give what was asked for.
  """
  if classes not in NAMES:
    raise UserError(f'{classes} classes: only 2 and 5 are known')
  with open_input(path, what='labelled sentences') as file:
    begin = file.peek().lstrip()
    if phrases and not begin.startswith(b'('):
      raise UserError(f'{path}: phrases need trees, as in (3 (2 It) (4 works))')
    if begin.startswith((b'{', b'[')) or _HEADER.match(begin):
      found = ([_named(row, where, classes)] for row, where in read_rows(
        file, path, ('label',), unquoted_tabs=True))
    elif begin.startswith(b'('):
      found = (_tree(line, where, phrases=phrases) for line, where in _lines(file, path))
    else:
      found = ([_columns(line, where, classes)] for line, where in _lines(file, path))
    return _collect(found, path, classes=classes, phrases=phrases)


def _lines(file: io.BufferedReader, path: str | os.PathLike) -> Iterator[tuple[str, str]]:
  """Lines that are not empty, with their places."""
  for number, line in enumerate(file, 1):
    text = decode(line, path, number).rstrip('\r\n')
    if '\0' in text:
      raise UserError(f'{path}:{number}: the line holds a NUL character: remove it')
    if text.strip():
      yield text, f'{path}:{number}'


def _collect(found: Iterable[Iterable[tuple[int, str]]], path: str | os.PathLike, *, classes: int,
             phrases: bool) -> Examples:
  """The examples of all lines."""
  texts, labels, neutral, seen, doubles = [], [], 0, set(), 0
  for line in found:
    for label, words in line:
      if classes == 2 and label == 2:
        neutral += 1
        continue
      label = int(label > 2) if classes == 2 else label
      if phrases:
        doubles += (label, words) in seen
        if (label, words) in seen:
          continue
        seen.add((label, words))
      texts.append(words)
      labels.append(label)
  if not texts:
    raise UserError(f'{path} holds no labelled sentence')
  array = np.array(labels, np.int32)
  digest = hashlib.sha256('\0'.join([*texts, str(labels)]).encode('utf-8')).hexdigest()
  return Examples(texts, array, neutral, doubles, digest)


def _named(row: Any, where: str, classes: int) -> tuple[int, str]:
  """Label from 0 to 4 and text of a row with names."""
  text = next((row[n] for n in _TEXT if n in row), None) if isinstance(row, Mapping) else None
  if not isinstance(text, str) or 'label' not in row:
    raise UserError(f"{where}: a row names 'label' and {' or '.join(map(repr, _TEXT))}")
  label = str(row['label'])
  _check_label(label, where, five=classes == 5)
  if not text.strip():
    raise UserError(f'{where}: the text is empty')
  return int(label) if classes == 5 else 4 * int(label), text.strip()


def _check_label(label: str, where: str, *, five: bool) -> None:
  allowed = '01234' if five else '01'
  if len(label) != 1 or label not in allowed:
    raise UserError(f"{where}: label '{label}' is not one of {', '.join(allowed)}: write "
                    'each label as one of these numbers')


def _columns(line: str, where: str, classes: int) -> tuple[int, str]:
  """Label from 0 to 4 and text of a line with tabs."""
  columns = line.split('\t')
  if len(columns) not in (2, 3):
    raise UserError(f'{where}: {len(columns)} columns, not label<TAB>text or '
                    'label<TAB>binary<TAB>text')
  label, text = columns[0], columns[-1].strip()
  five = len(columns) == 3 or classes == 5
  _check_label(label, where, five=five)
  if len(columns) == 3 and columns[1] != {'0': '0', '1': '0', '2': ''}.get(label, '1'):
    raise UserError(f"{where}: binary label '{columns[1]}' does not fit label {label} (0 for 0 and "
                    '1, empty for 2, 1 for 3 and 4)')
  if not text:
    raise UserError(f'{where}: the text is empty')
  return (int(label) if five else 4 * int(label)), text


def _tree(line: str, where: str, *, phrases: bool) -> list[tuple[int, str]]:
  """Label and text of the whole sentence, or of every phrase."""
  found: list[tuple[int, str]] = []
  open_: list[tuple[int, int]] = []  # label, number of words before the phrase
  words: list[str] = []
  expects_label = False
  for token in _NODE.findall(line):
    if expects_label:
      if token not in ('0', '1', '2', '3', '4'):
        raise UserError(f"{where}: label '{token}' of a phrase is not one of 0 to 4")
      open_.append((int(token), len(words)))
      expects_label = False
    elif token == '(':
      expects_label = True
    elif token == ')':
      if not open_ or open_[-1][1] == len(words):
        raise UserError(f'{where}: brackets do not match, or a phrase has no words')
      label, start = open_.pop()
      if phrases or not open_:
        found.append((label, ' '.join(words[start:])))
    else:
      if not open_:
        raise UserError(f"{where}: '{token}' stands outside the tree")
      for written, meant in _UNDO.items():
        token = token.replace(written, meant)
      words.append(token)
  if open_ or expects_label or not found:
    raise UserError(f'{where}: brackets do not match')
  return found
