"""Draws docs/pretrained.png: I.F. of each model against its perplexity and its mentions.

  python -m tests.benchmarks.tradeoff \
    tests/benchmarks/results/pretrained_wikipedia_h200_2026-11-27.json docs/pretrained.png
"""

import json
import pathlib
import sys

from fairjax.report.figures import plot_tradeoff

COSTS = {'perplexity a token (lower is better)': lambda row: row['perplexity_token']['test'],
         'texts that mention the value (%)': lambda row: 100 * row['mentions_of_value']}


def point(row, cost):
  method, _, weight = row['model'].partition('-')
  if not weight.isdigit():
    method, weight = row['model'], None
  found = row['scorers']['vader']['individual_fairness']
  return {'name': row['model'], 'method': method, 'weight': weight and int(weight),
          'cost': {'value': cost, 'low': cost, 'high': cost},
          'individual_fairness': found | {'within_floor': found['value'] <= found['null_p95']}}


def main() -> None:
  rows = json.loads(pathlib.Path(sys.argv[1]).read_text())['rows']
  plot_tradeoff(sys.argv[2], scorer='vader', panels=[
    (attribute, label, [point(row, cost(row)) for row in rows if row['attribute'] == attribute])
    for attribute in dict.fromkeys(row['attribute'] for row in rows)
    for label, cost in COSTS.items()])


if __name__ == '__main__':
  main()
