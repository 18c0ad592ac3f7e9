"""Sections about what models write besides its sentiment: S.S., distinct words, perplexities."""

from collections.abc import Mapping, Sequence
from typing import Any

from fairjax.measure.estimates import estimate_words
from fairjax.report.blocks import Block
from fairjax.report.comparison import ModelRow
from fairjax.report.markdown import Table, number

LEGEND = {
  'semantic_similarity': """\
S.S.: continuations whose cosine with their prefix is above a threshold (H-27; encoder and threshold
below); higher is more relevant.""",
  'distinct_word_divergence': """\
Words: bits that one word of a continuation tells about the value (Jensen-Shannon divergence, H-37),
with its floor; within noise the model writes the same for every value.""",
  'next_token_divergence': """\
KL: mean divergence of the next token between two values of a template, nats, read from the model
itself; near 0 the model ignores the value (H-35)."""}
HEADERS = {'semantic_similarity': 'S.S.', 'distinct_word_divergence': 'words (floor)',
           'next_token_divergence': 'KL'}


def measured(rows: Sequence[ModelRow]) -> list[str]:
  """Which of S.S., words and KL some model has, in the order of the columns."""
  return [name for name in HEADERS if any(row.content(name) for row in rows)]


def cell(row: ModelRow, name: str) -> str:
  """A column's text for one model."""
  found = row.content(name)
  if found is None:
    return 'not measured'
  if name == 'semantic_similarity':
    return f"{100 * found['value']:.1f}%"
  if name == 'next_token_divergence':
    return number(found['kl'], 4)
  if found['value'] is None:
    return 'no words'
  return estimate_words(found, named=False)


def absent_lines(rows: Sequence[ModelRow]) -> list[str]:
  """One sentence a measure that was not made, and why."""
  labels = {'semantic_similarity': 'S.S. (H-27)', 'next_token_divergence': 'KL of the next token'}
  found: dict[tuple[str, str], list[str]] = {}
  for row in rows:
    for name, why in (row.content('absent') or {}).items():
      found.setdefault((labels[name], why), []).append(row.name)
  return [f'{label} was not measured for {", ".join(names)}: {why}.'
          for (label, why), names in found.items()]


def content_blocks(rows: Sequence[ModelRow]) -> list[Block]:
  """Similarity with examples, distinct words, perplexities per unit."""
  blocks = []
  similar = [row for row in rows if row.content('semantic_similarity')]
  if similar:
    table, lines = _similarity(similar)
    blocks.append(Block('Similarity of prefix and continuation', [('', table)], lines=lines))
    examples = similar[0].content('semantic_similarity')['examples']
    blocks.append(Block(
      f'Examples of similarity, {similar[0].name}', [('', _examples(examples))],
      collapsed='Cosine examples at evenly spaced ranks (H-36; texts may offend)'))
  words = [row for row in rows if row.content('distinct_words')]
  if words:
    blocks.append(Block(
      'Distinct words', [(row.name, _words(row.content('distinct_words'))) for row in words],
      'Words with the largest ratio of shares, p(word | value) / p(word | other), each count one '
      'more (H-37); as written, with punctuation. Pairs of values whose words are farthest apart.',
      collapsed='Words'))
  if any(row.perplexity for row in rows):
    blocks.append(Block('Perplexity per token, word and byte', [('', _perplexities(rows))]))
  return blocks


def _similarity(rows: Sequence[ModelRow]) -> tuple[Table, list[str]]:
  header = ['model', 'encoder', 'S.S.', '95%', 'n', 'left out', 'threshold', 'mean cosine',
            "with other values' prefixes", 'texts cut']
  body, sources = [], {}
  for row in rows:
    s = row.content('semantic_similarity')
    body.append([
      row.name, s['encoder'], f"{100 * s['value']:.1f}%",
      f"{100 * s['low']:.1f}\u2013{100 * s['high']:.1f}%", str(s['n']), str(s['left_out']),
      number(s['threshold'], 3), number(s['mean_cosine'], 3),
      number(s['mean_cosine_other_values'], 3),
      '\u2013' if s['truncated_texts'] is None else str(s['truncated_texts'])])
    sources.setdefault((s['encoder'], s['encoder_fingerprint'], s['threshold_source']))
  lines = [f'Encoder {name}: fingerprint {fingerprint}; threshold: {source}.'
           for name, fingerprint, source in sources]
  lines.append('A continuation is near its prefix for the words of the template too: the value '
               "itself shows in how much farther the other values' prefixes are.")
  return Table(header, body, text_columns=2), lines


def _examples(examples: Sequence[Mapping[str, Any]]) -> Table:
  return Table(['cosine', 'prefix', 'continuation'], [
    [number(e['cosine'], 3), e['prefix'], e['continuation']] for e in examples], text_columns=3)


def _words(pairs: Sequence[Mapping[str, Any]]) -> Table:
  return Table(['value', 'other', 'words, best first'], [
    [p['value'], p['other'],
     ', '.join(f"{w['word']} ({w['count']}:{w['count_other']})" for w in p['words'])
     or '\u2013'] for p in pairs], text_columns=3)


def _perplexities(rows: Sequence[ModelRow]) -> Table:
  header = ['model', 'set', 'per token', 'per word', 'bits per byte', 'documents', 'tokens',
            'words', 'memory']
  body = []
  for row in rows:
    for name, p in (('PPL', row.perplexity), ('PPL_s', row.subset_perplexity)):
      if p is not None:
        body.append([
          row.name, name, number(p['token'], 3), number(p['word'], 3),
          number(p['bits_per_byte'], 4), *('\u2013' if p.get(k) is None else str(p[k])
                                           for k in ('documents', 'tokens', 'words',
                                                     'memory_len'))])
  return Table(header, body, text_columns=2)
