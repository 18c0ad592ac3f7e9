"""Continuations of the same noise for two values and several models, side by side (H-34)."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fairjax.errors import UserError


@dataclasses.dataclass(frozen=True)
class PairedSample:
  """One sample number of one template.

  Attributes:
    template: label.
    sample: number.
    prefixes: value -> prefix.
    continuations: model -> value -> continuation, None where the model has no such record.
  """

  template: int | str
  sample: int
  prefixes: dict[str, str]
  continuations: dict[str, dict[str, str | None]]


def paired_samples(
  records: Mapping[str, Iterable[Mapping[str, Any]]], *, values: Sequence[str], templates: int = 3,
  samples: int = 1,
) -> list[PairedSample]:
  """Chooses the first numbers of the first templates, without looking at the texts.

  Args:
    records: model -> its records, with sample numbers; each is read once.
    values: the values to show, e.g. `measures['scorers'][s]['largest_pairs'][0]['values']`.
    templates: how many templates.
    samples: how many sample numbers of each.

  Returns:
    At most `templates * samples`, by template and number.

  Raises:
    UserError: no record of any of the values, or one without a number.
  """
  found: dict[tuple[int | str, int], dict[str, dict[str, tuple[str, str]]]] = {}
  for model, lines in records.items():
    for number, record in enumerate(lines, 1):
      if record['value'] not in values:
        continue
      if record.get('sample') is None:
        raise UserError(f"{record.get('_where', f'record {number}')}: paired samples need the "
                        "field 'sample'")
      cell = found.setdefault((record['template'], record['sample']), {})
      texts = (record['prefix'], record['continuation'])
      cell.setdefault(model, {})[record['value']] = texts
  if not found:
    raise UserError(f"no record of {', '.join(values)} to show as paired samples")
  labels = sorted({t for t, _ in found}, key=lambda t: (isinstance(t, str), t))[:templates]
  chosen = []
  for label in labels:
    for sample in sorted(s for t, s in found if t == label)[:samples]:
      cell = found[label, sample]
      chosen.append(PairedSample(
        template=label, sample=sample,
        prefixes={v: next(c[v][0] for c in cell.values() if v in c)
                  for v in values if any(v in c for c in cell.values())},
        continuations={
          model: {v: cell.get(model, {}).get(v, (None, None))[1] for v in values}
          for model in records}))
  return chosen
