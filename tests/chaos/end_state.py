"""What a workdir holds, for a comparison bit by bit.

Every file counts by its bytes, but for checkpoints: their newest step counts by the arrays in it
(names, types, shapes and values as TensorStore reads them, without Orbax, JAX and fairjax), because
Orbax gives its files random names; the list of files in `DONE` counts without them. Left out:
TensorBoard files (host name and times), times, locks, stacks of a hang, and what a run moved aside
as damaged.
"""

import hashlib
import json
import pathlib
import re

_LEFT_OUT = re.compile(
  r'(^|/)(tensorboard/|\.[^/]*$|[^/]*\.lock$|times\.jsonl$|hang-process-\d+\.txt$)|corrupt')


def read_end(workdir: pathlib.Path) -> dict[str, str]:
  """Name -> SHA-256 of every file and array of the newest checkpoints; starts threads."""
  found = {}
  for path in sorted(workdir.rglob('*')):
    name = path.relative_to(workdir).as_posix()
    if path.is_file() and '/checkpoints/' not in name and not _LEFT_OUT.search(name):
      content = _run_marker(path.read_bytes()) if name == 'DONE' else path.read_bytes()
      found[name] = hashlib.sha256(content).hexdigest()
  for folder in sorted(workdir.glob('**/checkpoints')):
    steps = [p for p in folder.iterdir() if p.name.isdigit()]
    if steps:
      newest = max(steps, key=lambda p: int(p.name))
      name = newest.relative_to(workdir).as_posix()
      for key, value in _arrays(newest / 'state').items():
        found[f'{name}:{key}'] = value
  return found


def _run_marker(content: bytes) -> bytes:
  """`DONE` of the run without the checkpoints' files, whose names and bytes Orbax makes anew."""
  card = json.loads(content)
  card.pop('sha256')
  card['files'] = {k: v for k, v in card['files'].items() if '/checkpoints/' not in k}
  return json.dumps(card, sort_keys=True).encode()


def _arrays(state: pathlib.Path) -> dict[str, str]:
  """SHA-256 of name, type, shape and values of every array of a checkpoint."""
  import tensorstore as ts
  store = {'driver': 'ocdbt', 'base': f'file://{state.resolve()}/'}
  found = {}
  for key in ts.KvStore.open(store).result().list().result():
    name = key.decode()
    if not name.endswith('.zarray'):
      continue
    name = name.removesuffix('.zarray').rstrip('/')
    array = ts.open({'driver': 'zarr', 'kvstore': store | {'path': f'{name}/'}}).result()
    values = array.read().result()
    digest = hashlib.sha256(f'{values.dtype} {values.shape}\n'.encode())
    digest.update(values.tobytes())
    found[name] = digest.hexdigest()
  return found


def differences(expected: dict[str, str], found: dict[str, str]) -> list[str]:
  lines = []
  for name in sorted(expected.keys() | found.keys()):
    if name not in found:
      lines.append(f'{name} is missing')
    elif name not in expected:
      lines.append(f'{name} should not be there')
    elif expected[name] != found[name]:
      lines.append(f'{name} differs')
  return lines
