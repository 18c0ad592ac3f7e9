"""Tensors in published files: their names, shapes and types first, then the parts that are needed.

A tensor is read by slices, so that a process of several reads its own part of each file only.
Written files are streamed: one tensor is in memory at a time.
"""

import json
import math
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from fairjax.errors import UserError
from fairjax.inputs import refuse_pointer

WEIGHTS, INDEX = 'model.safetensors', 'model.safetensors.index.json'
_RELOAD = 'download it again with all files of the model'
# Types of safetensors that NumPy has; whole numbers are buffers, or refused where they are weights.
_STORED = {
  'F64': 'float64', 'F32': 'float32', 'F16': 'float16', 'BF16': 'bfloat16', 'I64': 'int64',
  'I32': 'int32', 'I16': 'int16', 'I8': 'int8', 'U64': 'uint64', 'U32': 'uint32', 'U16': 'uint16',
  'U8': 'uint8', 'BOOL': 'bool'}
SHARD_BYTES = 5_000_000_000
"""Most bytes of tensors in a file that is written, unless one tensor has more."""
_PICKLE = 'a pickle and is not read: convert it with safetensors.torch.save_file'
_PYTORCH = 'save the model of PyTorch with save_pretrained(DIR)'
OTHERS = {  # ends of files of weights in other formats
  '.bin': _PICKLE, '.pt': _PICKLE, '.pth': _PICKLE, '.ckpt': _PICKLE,
  '.gguf': 'a GGUF file, which is read alone: give the file itself, not its folder',
  '.h5': f'of TensorFlow: {_PYTORCH}', '.msgpack': f'of Flax: {_PYTORCH}',
  '.onnx': 'of ONNX: take the safetensors of the same model'}
QUANTISED = 'quantised weights are not read: take the checkpoint before quantisation'


class Stored(NamedTuple):
  """A tensor in a file."""

  shape: tuple[int, ...]
  dtype: str  # NumPy's name; in quantised files that of the values
  read: Callable[[tuple[slice, ...]], np.ndarray]  # values in a slice of every axis

  def whole(self) -> np.ndarray:
    """All values."""
    return self.read(tuple(slice(0, n) for n in self.shape))


def weight_files(directory: pathlib.Path) -> list[pathlib.Path]:
  """Files that hold the weights of a directory."""
  index = directory / INDEX
  if (directory / WEIGHTS).is_file():
    return [directory / WEIGHTS]
  if not index.is_file():
    raise UserError(f'{directory} holds neither {WEIGHTS} nor {INDEX}: {_instead(directory)}')
  refuse_pointer(index)
  try:
    named = list(json.loads(index.read_text(encoding='utf-8'))['weight_map'].values())
    if not named or not all(isinstance(name, str) for name in named):
      raise TypeError('weight_map must give each tensor the name of a file')
    names = sorted(set(named))
  except (ValueError, KeyError, TypeError, AttributeError) as e:
    raise UserError(f'{index} is no index of weights ({type(e).__name__}: {e}): {_RELOAD}'
                    ) from None
  for name in names:
    if pathlib.PurePath(name).name != name or not (directory / name).is_file():
      raise UserError(f'{index} names the file {name!r}, which is not in {directory}: {_RELOAD}')
  return [directory / name for name in names]


def _instead(directory: pathlib.Path) -> str:
  """What a directory without weights by the usual name holds, and what to do."""
  found = sorted(directory.glob('*.safetensors'))
  others = sorted(p for p in directory.iterdir() if p.suffix in OTHERS)
  if (directory / 'adapter_model.safetensors').is_file():
    return ('adapter_model.safetensors is an adapter (LoRA), not a whole model: give a folder that '
            'holds it with adapter_config.json, without config.json')
  if len(found) == 1:
    return f'rename {found[0].name} to {WEIGHTS} if it holds the whole model'
  if others:
    return f'{others[0].name} is {OTHERS[others[0].suffix]}'
  return ('download the whole directory, or write it with save_pretrained(DIR, '
          'safe_serialization=True)')


def open_tensors(files: Iterable[pathlib.Path]) -> dict[str, Stored]:
  """All tensors of several safetensors files; no value is read yet."""
  from safetensors import SafetensorError, safe_open
  tensors: dict[str, Stored] = {}
  for file in files:
    refuse_pointer(file)
    found = {}
    try:
      with safe_open(file, framework='numpy') as opened:
        for name in opened.keys():
          there = opened.get_slice(name)
          found[name] = there.get_dtype(), tuple(there.get_shape())
    except (OSError, SafetensorError) as e:
      raise damaged(file, 'safetensors', e) from None
    foreign = [name for name, (kind, _) in found.items() if kind not in _STORED]
    if foreign:
      raise UserError(f'{file}: {listed(foreign)} stored as {found[foreign[0]][0]}: {QUANTISED}, '
                      'in float16, bfloat16, float32 or float64')
    double = sorted(tensors.keys() & found)
    if double:
      raise UserError(f'{file}: tensor {double[0]} is in another file too: {_RELOAD}')
    tensors |= {name: Stored(shape, _STORED[kind], _reader(file, name))
                for name, (kind, shape) in found.items()}
  return tensors


def _reader(file: pathlib.Path, name: str) -> Callable[[tuple[slice, ...]], np.ndarray]:
  """Reads slices of one tensor; the file is mapped only meanwhile, so that its pages are freed."""
  from safetensors import SafetensorError, safe_open

  def read(index):
    try:
      with safe_open(file, framework='numpy') as opened:
        return opened.get_slice(name)[index] if index else opened.get_tensor(name)
    except (OSError, SafetensorError) as e:
      raise damaged(file, 'safetensors', e) from None

  return read


Forms = Mapping[str, tuple[str, tuple[int, ...]]]
"""NumPy's name of its dtype and the shape of every tensor."""


def shard_names(forms: Forms, *, most: int = SHARD_BYTES) -> dict[str, list[str]]:
  """The names of tensors by the files of at most `most` bytes; wide types first, to be aligned."""
  groups, left = [[]], most
  for name, form in sorted(forms.items(), key=lambda item: -np.dtype(item[1][0]).itemsize):
    size = _bytes(*form)
    if size > left and groups[-1]:
      groups, left = [*groups, []], most
    groups[-1].append(name)
    left -= size
  if len(groups) == 1:
    return {WEIGHTS: groups[0]}
  return {f'model-{i:05}-of-{len(groups):05}.safetensors': names
          for i, names in enumerate(groups, 1)}


def write_index(directory: pathlib.Path, shards: Mapping[str, Iterable[str]], forms: Forms) -> None:
  """Writes which file has which tensor, as `weight_files` reads it."""
  (directory / INDEX).write_text(json.dumps({
    'metadata': {'total_size': sum(_bytes(*form) for form in forms.values())},
    'weight_map': {name: file for file, names in shards.items() for name in names}}, indent=2)
    + '\n', encoding='utf-8')


def write_tensors(
  path: pathlib.Path, forms: Forms, values: Iterator[np.ndarray], *,
  metadata: Mapping[str, str] | None = None,
) -> None:
  """Writes a safetensors file whose values come one after the other, in the order of `forms`.

  The package safetensors writes only what is in memory as a whole.
  """
  header: dict[str, dict] = {'__metadata__': {'format': 'pt', **(metadata or {})}}
  end, codes = 0, {dtype: code for code, dtype in _STORED.items()}
  for name, (dtype, shape) in forms.items():
    begin, end = end, end + _bytes(dtype, shape)
    header[name] = {'dtype': codes[dtype], 'shape': shape, 'data_offsets': [begin, end]}
  content = json.dumps(header).encode('utf-8')
  content += b' ' * (-len(content) % 8)
  with path.open('wb') as file:
    file.write(len(content).to_bytes(8, 'little') + content)
    for (name, (dtype, shape)), value in zip(forms.items(), values, strict=True):
      if value.shape != shape:
        raise ValueError(f'{name} has shape {value.shape} instead of {shape}')
      file.write(np.ascontiguousarray(value, np.dtype(dtype)).reshape(-1).view(np.uint8).data)


def _bytes(dtype: str, shape: tuple[int, ...]) -> int:
  return np.dtype(dtype).itemsize * math.prod(shape)


def damaged(file: pathlib.Path, form: str, error: Exception) -> UserError:
  """The error of a file that is not what its name says."""
  return UserError(f'{file} cannot be read as {form} ({error}): it is damaged, encrypted, or a '
                   'part of a download: download it again')


def listed(names: Iterable[str]) -> str:
  """Names of tensors for messages."""
  names = list(names)
  rest = f' and {len(names) - 4} more' if len(names) > 4 else ''
  return ('tensor ' if len(names) == 1 else 'tensors ') + ', '.join(names[:4]) + rest
