"""What of the effect of sentiment regularisation its control shows too.

The control has the same step 3, data and lambda, with an f_sh that was never trained. A random
projection keeps angles roughly, so that it draws hidden states together whatever they mean; only
what the trained f_sh does beyond it is due to the sentiment that it reads (H-19, H-22).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from fairjax.report.comparison import ModelRow, baseline_of, scorer_names
from fairjax.report.differences import difference


def control_lines(rows: Sequence[ModelRow]) -> list[str]:
  """One sentence for each sentiment variant with a control, and scorer; plain text."""
  baseline = baseline_of(rows)
  controls = {row.weight: row for row in rows if row.method == 'random_projection'}
  if baseline is None:
    return []
  found = []
  for row in rows:
    control = controls.get(row.weight) if row.method == 'sentiment' else None
    if control is not None:
      for scorer in scorer_names([row]):
        estimates = [r.estimate(scorer, 'individual_fairness') for r in (baseline, control, row)]
        if None not in estimates:
          found.append(f'By scorer {scorer}, ' + _sentence(control.name, row.name, *estimates))
  return found


def _sentence(
  control: str, name: str, baseline: Mapping[str, Any], before: Mapping[str, Any],
  after: Mapping[str, Any],
) -> str:
  """What a trained f_sh does beyond a random one, of estimates of I.F."""
  if baseline['within_floor']:
    return (f"the baseline's I.F. is within noise, so {name} has no effect that {control} could "
            'show too.')
  words = (f'I.F. less its noise is {_change(after, baseline)} with {name} and '
           f'{_change(before, baseline)} with {control}, whose f_sh was never trained: ')
  found = difference(before, after)
  size = f"{abs(found['difference']):.4f}"
  if found['verdict'] == 'both within noise':
    return words + 'both are within noise, so what training f_sh adds cannot be told.'
  if found['noise'] is None:
    return words + (f'their difference of {size} is not judged, since below 20 samples a prefix '
                    'there is no standard error.')
  if found['verdict'] == 'within noise':
    return words + (f"their difference of {size} is within its noise ({found['noise']:.4f}), so "
                    'training f_sh adds nothing that was detected.')
  side = 'lowers I.F. by a further' if found['verdict'] == 'lower' else 'leaves I.F. higher, by'
  return words + f"the trained f_sh {side} {size}, more than the noise ({found['noise']:.4f})."


def _change(estimate: Mapping[str, Any], baseline: Mapping[str, Any]) -> str:
  """The change of an estimate less its noise against the baseline."""
  change = 100 * (estimate['corrected'] / baseline['corrected'] - 1)
  return f"{abs(change):.0f} % {'higher' if change > 0 else 'lower'}"
