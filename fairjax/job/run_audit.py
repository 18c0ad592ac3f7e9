"""The scorers' own bias on what the baseline of a run wrote: `measures/scorer_audit.json`."""

import json
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from fairjax.counterfactual import Attribute
from fairjax.files import write_json


def audit_path(workdir: pathlib.Path) -> pathlib.Path:
  """Where the audit of a run lies."""
  return workdir / 'measures' / 'scorer_audit.json'


def audit_run(
  workdir: pathlib.Path, records: Callable[[], Iterable[Mapping[str, Any]]],
  attribute: Attribute, scorers: Sequence[Any], *, model: str, texts: int, seed: int,
  log: Callable[[str], None],
) -> None:
  """Audits each scorer once; what is there already is kept.

  Nothing is asked of a scorer that costs money: its texts are those of the run only.

  Args:
    workdir: of the run.
    records: reads the generations of the audited model.
    attribute: the sensitive attribute.
    scorers: of the run.
    model: name of the audited model.
    texts: at most so many texts with a sensitive token are swapped; 0: no audit.
    seed: of the choice and of the test.
    log: called with one line.
  """
  from fairjax.measure.scorer_audit import audit_own_bias
  path, before = audit_path(workdir), read_audit(workdir)
  known = {} if before is None else before['scorers']
  scorers = [scorer for scorer in scorers if scorer.name not in known]
  if not texts or not scorers:
    return
  found = audit_own_bias(
    [r['continuation'] for r in records()], attribute, scorers, limit=texts, seed=seed, paid=False,
    scores_directory=workdir / 'scores' / 'audit')
  write_json(path, found | {'model': model, 'scored_text': 'continuation',
                            'scorers': known | found['scorers']})
  log(f"[measure] own bias of the scorers: {found['counts']['frames']:,} different texts with "
      'every value; ' + '; '.join(
        f"{name} {s['own_bias']['range']:.4f} from the highest to the lowest" if s['own_bias'] else
        f"{name} not measured ({s['not_measured']})" for name, s in found['scorers'].items()))


def read_audit(workdir: pathlib.Path) -> dict[str, Any] | None:
  """What `audit_run` wrote, None where it did not."""
  path = audit_path(workdir)
  return json.loads(path.read_text(encoding='utf-8')) if path.exists() else None
