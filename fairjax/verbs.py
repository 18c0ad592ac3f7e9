"""Verbs of the command line that need no run: measure any file, check an attribute, doctor."""

import importlib.metadata
import json
import os
import pathlib
import platform
import shutil
from collections.abc import Mapping, Sequence
from typing import Any

from fairjax.counterfactual import lint_attribute, load_attribute, render_findings
from fairjax.errors import UserError
from fairjax.vocabulary import load_vocabulary

PACKAGES = ('fairjax', 'jax', 'jaxlib', 'libtpu', 'flax', 'optax', 'orbax-checkpoint', 'numpy',
            'scipy', 'sentencepiece', 'tensorflow', 'tensorflow-text', 'seqio')
"""What decides results; `doctor` and every report state their versions."""


def measure_file(
  path: str, *, attribute: str, scorers: Sequence[str], lexicon: Sequence[str] | None,
  google: Mapping[str, Any], permutations: int, coupled: bool, as_json: bool,
) -> None:
  """Measures a JSONL file of generations of any model and prints the result.

  Raises:
    UserError: unknown attribute or scorer, or a record that cannot be used (file and line).
  """
  from fairjax.generate import read_records
  from fairjax.measure import load_scorer, measure_records
  loaded = load_attribute(attribute)
  measures = measure_records(
    read_records(path), loaded,
    [load_scorer(name, lexicon=lexicon, google=google) for name in scorers],
    permutations=permutations, coupled=coupled)
  if as_json:
    print(json.dumps(measures, indent=2, allow_nan=False))
    return
  n = measures['n']
  print(f"{measures['records']} records of {loaded.name}, {len(loaded.values)} values, "
        f"{len(measures['templates'])} templates, n = {n['min']}"
        + (f"-{n['max']}" if n['max'] != n['min'] else '') + ' per prefix, '
        + ('coupled samples' if measures['coupled'] else 'independent samples'))
  for scorer, values in measures['scorers'].items():
    for name, words in (('individual_fairness', 'I.F. (H-05)'), ('group_fairness', 'G.F. (H-06)')):
      found = values[name]
      print(f"{scorer:10s} {words} {found['value']:.4f}  null floor {found['null_mean']:.4f} "
            f"(95 %: {found['null_p95']:.4f})"
            + ('  within the floor' if found['value'] <= found['null_p95'] else ''))
    if values.get('truncated_texts'):
      print(f"{scorer:10s} {values['truncated_texts']} texts are longer than the model reads: only "
            'their beginning was scored')
  for pair in measures['scorer_agreement']:
    rho = 'undefined' if pair['spearman'] is None else f"{pair['spearman']:.3f}"
    print(f"{' and '.join(pair['scorers'])}: Spearman {rho}, equal signs "
          f"{100 * pair['equal_signs']:.1f} % of {pair['n']}")
  if len(measures['scorers']) == 1:
    print('One scorer only: its own bias cannot be told from the model\'s; give a second --scorer')
  share = measures['semantic_similarity_c']['conditioned']
  print(f"S.S.c (H-28) {100 * share['value']:.1f} %")


def check_attribute(file: str, *, vocabulary: str | None, lexicon: Sequence[str]) -> int:
  """Prints the lint of an attribute file; returns 2 if it found an error, else 0."""
  from fairjax.measure.lexicons import lexicon_files
  from fairjax.measure.scorers import read_lexicon
  files = lexicon_files(lexicon)
  words = {word.lower() for path in files for word in read_lexicon(path)} if files else None
  findings = lint_attribute(
    load_attribute(file), vocabulary=load_vocabulary(vocabulary) if vocabulary else None,
    lexicon_words=words)
  print('\n'.join(render_findings(findings)))
  return 2 if any(f.level == 'error' for f in findings) else 0


def versions() -> dict[str, str]:
  """Installed versions of what decides results, by package name; absent ones are left out."""
  found = {'python': platform.python_version()}
  for name in PACKAGES:
    try:
      found[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
      continue
  return found


def doctor() -> None:
  """Prints versions, devices and free space, and what a missing package would give."""
  import jax
  found = versions()
  for name, version in found.items():
    print(f'{name:18s} {version}')
  for name in ('tensorflow', 'tensorflow-text', 'seqio'):
    if name not in found:
      print(f"{name:18s} missing: training needs it: pip install 'fairjax[train]'")
  devices = jax.devices()
  print(f'{"devices":18s} {len(devices)} x {devices[0].device_kind} ({jax.default_backend()}), '
        f'process {jax.process_index()} of {jax.process_count()}')
  free = shutil.disk_usage(pathlib.Path.cwd()).free
  print(f'{"cores, free disk":18s} {os.cpu_count()}, {free / 2**30:.0f} GiB')


def require_file(path: str | os.PathLike, *, made_by: str) -> pathlib.Path:
  """Returns the path of a file that an earlier verb makes.

  Raises:
    UserError: it does not exist; the line names the verb.
  """
  found = pathlib.Path(path)
  if not found.exists():
    raise UserError(f'{found} does not exist: run fairjax {made_by} with the same --config and '
                    '--workdir first')
  return found
