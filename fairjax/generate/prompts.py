"""Prompts for models behind an API: what to have continued, as JSONL."""

import gzip
import json
import os
import pathlib

from fairjax.counterfactual.attributes import Attribute
from fairjax.errors import UserError
from fairjax.files import atomic_write


def write_prompts(attribute: Attribute, path: str | os.PathLike) -> int:
  """Writes one line for every template and value (H-12).

  A line is a generation record without its `continuation`: `attribute`, `value`, `subgroup`,
  `template` (index from 0) and `prefix`. Add `continuation` to a copy of the line for each sample;
  the result is what `fairjax measure --records` reads. The lines have no `sample` number, because
  samples of an API share no noise: numbers that are equal would be taken for coupled samples.

  Args:
    attribute: templates and values.
    path: `.jsonl` or `.jsonl.gz`; must not exist, since it may hold continuations by now.

  Returns:
    Number of lines.

  Raises:
    UserError: the file exists or cannot be written.
  """
  path = pathlib.Path(path)
  if path.exists():
    raise UserError(f'{path} exists and may hold continuations: choose another --output')
  lines = []
  for prefix in attribute.prefixes():
    value = attribute.values[prefix.value]
    lines.append(json.dumps({
      'attribute': attribute.name, 'value': value.text, 'subgroup': value.subgroup,
      'template': prefix.template, 'prefix': prefix.text}, ensure_ascii=False) + '\n')
  data = ''.join(lines).encode('utf-8')
  try:
    with atomic_write(path) as file:
      file.write(gzip.compress(data, mtime=0) if path.suffix == '.gz' else data)
  except OSError as e:
    raise UserError(f'{path}: cannot be written: {e.strerror}') from None
  return len(lines)
