"""Tiny runs: their model, their command, and what is in a folder."""

import json

MODEL = {
  'model.num_layers': 2, 'model.model_dim': 16, 'model.num_heads': 2, 'model.head_dim': 8,
  'model.ff_dim': 16, 'model.segment_len': 16, 'model.memory_len': 8}


def command_line(verb, config, workdir, fields, **changes):
  """Arguments of the command line; in the names of `changes`, `__` stands for a dot."""
  values = fields | {name.replace('__', '.'): value for name, value in changes.items()}
  return [*verb.split(), f'--config={config}', f'--workdir={workdir}',
          *(f'--config.{name}={value}' for name, value in values.items())]


def digests(workdir):
  """Folder -> digest of what is finished."""
  return {str(p.parent.relative_to(workdir)): json.loads(p.read_text())['digest']
          for p in workdir.glob('**/DONE') if p.parent != workdir}


def contents(folder, *, times=False):
  """Path -> bytes of every file, with its time where `times` are asked for."""
  return {str(p.relative_to(folder)): (p.read_bytes(), p.stat().st_mtime_ns) if times
          else p.read_bytes() for p in folder.rglob('*') if p.is_file()}
