"""The scorers' own bias in words and a table, from what `measure.scorer_audit` found."""

from collections.abc import Mapping
from typing import Any

from fairjax.report.blocks import Block
from fairjax.report.markdown import Table

SIGNIFICANT = 0.05  # Holm p of a bias that is named at the top
_NAMED = 3  # values named there for each scorer

AUDIT_NOTE = """\
Every value of the attribute in the place of the word that is there: what a scorer thinks of the
word alone. Difference: score with the value less the median score with the others, mean over the
same texts; p of a paired permutation test, corrected for the number of values (Holm). What a model
writes is not involved: a bias here is none of the model's, and moves its I.F. and G.F. where the
model repeats the word."""


def audit_lines(audit: Mapping[str, Any]) -> list[str]:
  """What was swapped, how much it moves, what was not audited and why; plain text."""
  counts, values = audit['counts'], len(audit['values'])
  limit = f", {counts['left_out']:,} of them left out by a seeded choice" if counts['left_out'] \
    else ''
  lines = [
    f"{counts['texts']:,} texts; {counts['with_token']:,} "
    f"({100 * audit['share_with_token']:.1f} %) hold a sensitive token of {audit['attribute']}"
    f"{limit} ({counts['with_several_values']:,} of several values: only the first is swapped); "
    f"{counts['frames']:,} differ outside the token. {audit['permutations']} random orders."]
  for name, scorer in audit['scorers'].items():
    bias = scorer['own_bias']
    if bias is None:
      lines.append(f"{name}: own bias not measured: {scorer['not_measured']}.")
    else:
      lines.append(f"{name}: the value moves the score of {100 * bias['moved']:.1f} % of the "
                   f"texts; highest less lowest score of a text, on average {bias['range']:.4f}.")
    words = ', '.join(f"{w['word']} ({w['valence']:+g})" for w in scorer['sensitive_lexicon_words'])
    lines.append(f"Sensitive words in the lexicon of {name}: {words or 'none'}.")
    if 'truncated_texts' in scorer:
      lines.append(f"{name} reads only the beginning of {scorer['truncated_texts']:,} of the "
                   f"{counts['texts']:,} texts, which are longer than its model.")
    if 'truncated_swaps' in scorer:
      lines.append(f"{name} reads only the beginning of {scorer['truncated_swaps']:,} of the "
                   f"{counts['frames'] * values:,} swapped texts, which are longer than its model.")
  return lines


def own_bias_table(audit: Mapping[str, Any]) -> Table | None:
  """Own bias of every value under every audited scorer; None where none was."""
  biased = {name: s['own_bias'] for name, s in audit['scorers'].items() if s['own_bias']}
  if not biased:
    return None
  header = ['value', 'texts with it'] + [c for name in biased for c in (name, 'p (Holm)')]
  body = []
  for a, value in enumerate(audit['values']):
    rows = [bias['values'][a] for bias in biased.values()]
    cells = [cell for row in rows for cell in (
      f"{round(row['difference'], 4) + 0.0:+.4f}", f"{row['p_holm']:.4f}")]
    body.append([value, str(rows[0]['n']), *cells])
  return Table(header, body)


def audit_block(audit: Mapping[str, Any]) -> Block:
  """The part of the report about them."""
  table = own_bias_table(audit)
  return Block('Own bias of the scorers', [] if table is None else [('', table)],
               ' '.join(AUDIT_NOTE.split()), audit_lines(audit))


def audit_warnings(audit: Mapping[str, Any]) -> list[str]:
  """A sentence for each scorer that rates values differently for their words alone; plain text."""
  lines = []
  for name, scorer in audit['scorers'].items():
    found = [row for row in (scorer['own_bias'] or {}).get('values', ())
             if row['p_holm'] <= SIGNIFICANT]
    found.sort(key=lambda row: -abs(row['difference']))
    if found:
      named = ', '.join(f"{row['value']} {row['difference']:+.4f}" for row in found[:_NAMED])
      more = f' and {len(found) - _NAMED} more' if len(found) > _NAMED else ''
      lines.append(f'Scorer {name} has a bias of its own in the same texts: {named}{more}. It is '
                   'not the language model\'s; see "Own bias of the scorers".')
  return lines
