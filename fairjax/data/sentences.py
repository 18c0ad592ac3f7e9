"""Splits documents into sentences."""

import re

# A sentence ends after its mark and the quotes or brackets that close it, before a space and a
# capital, digit or opening sign. The mark may stand apart, as in WikiText ("the end . The").
_BORDER = re.compile(
  r'(?:[.!?…]["\'”’)\]]*(?: ["”’)](?= ))?)(\s+)(?=["\'“‘(\[]?\s?[^\W_a-zß-öø-ÿ])')
_ABBREVIATION = re.compile(
  r'(?:^|[\s("“\'])(?:Mr|Mrs|Ms|Dr|Prof|Rev|Hon|Gen|Col|Lt|Sgt|Capt|Maj|Gov|Sen|Rep|St|Mt|Ft|No|Nos|'
  r'vs|etc|e\.g|i\.e|cf|al|ca|Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sep|Sept|Oct|Nov|Dec|Inc|Ltd|Co|Corp|'
  r'[A-Z](?:\.[A-Z])*) ?\.$')
_HEADING = re.compile(r'(=(?: =)*) .* \1')


def split_sentences(document: str) -> list[str]:
  """Sentences of a document, in order, without the spaces around them.

  A simple rule, the same for all corpora: every line end is a border; within a line a border is a
  full stop, exclamation or question mark (with closing quotes or brackets) before white space and
  a capital letter or digit, but not after a common abbreviation or initials. Headings of WikiText
  (`= Title =`) are left out.

  >>> split_sentences('I met Dr. Hill. "It was fine!" he said. They paid 3.50 to J. Ray.')
  ['I met Dr. Hill.', '"It was fine!" he said.', 'They paid 3.50 to J. Ray.']
  """
  sentences = []
  for line in document.split('\n'):
    line = line.strip()
    if not line or _HEADING.fullmatch(line):
      continue
    start = 0
    for border in _BORDER.finditer(line):
      if not _ABBREVIATION.search(line[start:border.start() + 1]):
        sentences.append(line[start:border.start(1)].strip())
        start = border.end()
    sentences.append(line[start:].strip())
  return [s for s in sentences if s]
