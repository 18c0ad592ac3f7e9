"""Tensors of safetensors files to parameters and back; nothing is guessed."""

import collections
import fnmatch
import json
import pathlib
import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from fairjax.errors import UserError
from fairjax.inputs import refuse_pointer
from fairjax.pretrained.architecture import Architecture
from fairjax.pretrained.names import (
  HEADS,
  aliases,
  bare_name,
  entries,
  full_name,
  not_needed,
  plain_name,
)

WEIGHTS, INDEX = 'model.safetensors', 'model.safetensors.index.json'
_RELOAD = 'download it again with all files of the model'
# Types of safetensors that NumPy has; whole numbers are buffers, or refused where they are weights.
_STORED = {'F64', 'F32', 'F16', 'BF16', 'I64', 'I32', 'I16', 'I8', 'U64', 'U32', 'U16', 'U8',
           'BOOL'}
_OTHERS = {  # files of weights in other formats, and what to do
  '*.bin': '{} is a pickle and is not read: convert it with safetensors.torch.save_file',
  '*.pt': '{} is a pickle and is not read: convert it with safetensors.torch.save_file',
  '*.pth': '{} is a pickle and is not read: convert it with safetensors.torch.save_file',
  '*.ckpt': '{} is a pickle and is not read: convert it with safetensors.torch.save_file',
  '*.gguf': '{} is in the format GGUF, which is not read: take the safetensors of the same model',
  '*.h5': '{} is of TensorFlow: save the model of PyTorch with save_pretrained(DIR)',
  '*.msgpack': '{} is of Flax: save the model of PyTorch with save_pretrained(DIR)',
  '*.onnx': '{} is of ONNX: take the safetensors of the same model'}
_PACKED = re.compile(r'[._](qweight|qzeros|absmax|quant_map|weight_packed|weight_scale|SCB)\b')
_QUANTISED = 'quantised weights are not read: take the checkpoint before quantisation'
_FLOATS = ('float16', 'bfloat16', 'float32', 'float64')
Params = dict[str, dict[str, Any]]
_TOGETHER = 'take config.json and weights of one and the same model'
_KINDS = {  # what to do with a model that has another head than is asked for
  'bert': "'lm' needs a GPT-2; a BERT with its mlm head serves correlations and masked-lm",
  'albert': "'lm' needs a GPT-2; an ALBERT with its mlm head serves correlations and masked-lm",
  'gpt2': 'it writes texts (sample --pretrained=DIR); scorers, encoders and masks need a BERT or '
          'ALBERT',
}
_HEADLESS = {
  'classifier': 'fairjax sentiment-classifier train --init=DIR makes a classifier of it',
  'mlm': 'give a checkpoint that was saved with it, as BertForMaskedLM or AlbertForMaskedLM does, '
         'or train one from scratch with fairjax masked-lm train without --init',
  'pooled': 'save it again with its pooler (add_pooling_layer=True)',
  'lm': 'save it as GPT2LMHeadModel does, or set tie_word_embeddings to true in config.json if the '
        'output is the table of words',
}


def weight_files(directory: pathlib.Path) -> list[pathlib.Path]:
  """Files that hold the weights of a directory.

  Raises:
    UserError: there are none (files of pickles are named), or the index names one that is not
      there.
  """
  index = directory / INDEX
  if (directory / WEIGHTS).is_file():
    return [directory / WEIGHTS]
  if not index.is_file():
    return _shards(directory)
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


def _shards(directory: pathlib.Path) -> list[pathlib.Path]:
  """The shards of a directory without an index, whose names count them.

  Raises:
    UserError: some are missing, or there are none: what there is instead is named.
  """
  found = sorted(directory.glob('*.safetensors'))
  counted = {p: re.fullmatch(r'.*-(\d{5})-of-(\d{5})\.safetensors', p.name) for p in found}
  shards = [p for p, count in counted.items() if count]
  if shards:
    most = int(counted[shards[0]][2])
    there = {int(counted[p][1]) for p in shards if int(counted[p][2]) == most}
    missing = sorted(set(range(1, most + 1)) - there)
    if missing or len(shards) != most:
      raise UserError(f'{directory} holds {len(shards)} shards of {most}, without '
                      f'{missing[:1] or "one index"}: {_RELOAD}')
    return shards
  others = sorted(p.name for pattern in _OTHERS for p in directory.glob(pattern))
  if (directory / 'adapter_model.safetensors').is_file():
    hint = ('adapter_model.safetensors is an adapter (LoRA), not a whole model: merge it '
            '(PeftModel.merge_and_unload), save the result, and give its folder')
  elif found:
    hint = f'rename {found[0].name} to {WEIGHTS} if it holds the whole model'
  elif others:
    hint = _OTHERS[next(k for k in _OTHERS if fnmatch.fnmatch(others[0], k))].format(others[0])
  else:
    hint = ('download the whole directory, or write it with save_pretrained(DIR, '
            'safe_serialization=True)')
  raise UserError(f'{directory} holds neither {WEIGHTS} nor {INDEX}: {hint}')


def read_tensors(files: Iterable[pathlib.Path]) -> dict[str, np.ndarray]:
  """All tensors of several safetensors files.

  Raises:
    UserError: a file is damaged or a pointer, a tensor has a type that is not read, or two files
      hold a tensor of the same name.
  """
  from safetensors import SafetensorError, safe_open
  from safetensors.numpy import load_file
  tensors: dict[str, np.ndarray] = {}
  for file in files:
    refuse_pointer(file)
    try:
      with safe_open(file, framework='numpy') as opened:
        kinds = {name: opened.get_slice(name).get_dtype() for name in opened.keys()}
      foreign = [name for name, kind in kinds.items() if kind not in _STORED]
      if foreign:
        raise UserError(f'{file}: {_listed(foreign)} stored as {kinds[foreign[0]]}: '
                        f'{_QUANTISED}')
      found = load_file(file)
    except (OSError, SafetensorError, KeyError, TypeError) as e:
      raise UserError(f'{file} cannot be read as safetensors ({e}): it is damaged or a part of a '
                      'download: download it again') from None
    double = sorted(tensors.keys() & found)
    if double:
      raise UserError(f'{file}: tensor {double[0]} is in another file too: {_RELOAD}')
    tensors |= found
  return tensors


def without_wrappers(tensors: Mapping[str, np.ndarray], kind: str, *, where: str
                     ) -> tuple[dict[str, np.ndarray], list[str]]:
  """Tensors by the names that they have without what compilers, trainers and wrappers put before.

  Returns:
    The tensors (names of the kind's own body prefix stay), and a line on each prefix taken off.

  Raises:
    UserError: two tensors have one name then.
  """
  plain: dict[str, np.ndarray] = {}
  taken: collections.Counter[str] = collections.Counter()
  for name, tensor in tensors.items():
    short = bare_name(name, kind)
    if short != name:
      taken[name.removesuffix(short) if name.endswith(short) else name] += 1
    if short in plain:
      raise UserError(f'{where} holds {short} twice, below different prefixes: save one model '
                      'alone')
    plain[short] = tensor
  lines = [f'{where}: the prefix {prefix} is taken off {count} tensors'
           for prefix, count in taken.most_common(4)]
  return plain, lines


def to_params(
  tensors: Mapping[str, np.ndarray], arch: Architecture, head: str, *, where: str,
  dtype: Any = np.float32,
) -> tuple[Params, list[str]]:
  """Puts published tensors into the places that `names` gives them.

  Args:
    tensors: by published name, with or without the body's prefix.
    arch: the model.
    head: one of `HEADS[arch.kind]`.
    where: the directory, for messages.
    dtype: of the parameters, a NumPy dtype (bfloat16 of ml_dtypes too).

  Returns:
    NumPy parameters, and the names of tensors that were there and are not needed.

  Raises:
    UserError: tensors are missing, of another shape, no floating-point numbers, not finite, not
      known, or copies that differ from what they copy; the line names them.
  """
  if head not in HEADS[arch.kind]:
    raise UserError(f"{where} is {arch.kind}, which has no head '{head}', only "
                    f"{', '.join(HEADS[arch.kind])}: {_KINDS[arch.kind]}")
  plain: dict[str, np.ndarray] = {}
  for name, tensor in tensors.items():
    known = plain_name(name, arch.kind)
    if known in plain:
      raise UserError(f'{where} holds {known} twice, with and without prefix or in two spellings')
    plain[known] = tensor
  copies = {copy: of for copy, of in aliases(arch, head).items() if copy in plain}
  for copy, of in copies.items():
    plain.setdefault(of, plain[copy])
  wanted = entries(arch, head)
  needed = {name: e for e in wanted for names in e.tensors for name in names}
  _check_present(plain, needed, arch, head, where)
  unknown = [n for n in plain if n not in needed and n not in copies
             and not not_needed(n, arch.kind)]
  if unknown:
    raise UserError(f'{where} holds {_listed(unknown)}, which {arch.kind} with this config.json '
                    'does not have: it is another architecture, or another number of layers: '
                    f'{_TOGETHER}')
  for name, entry in needed.items():
    _check_tensor(plain[name], name, entry.shape, where)
  for copy, of in copies.items():
    if plain[copy].shape != plain[of].shape or not np.array_equal(plain[copy], plain[of]):
      raise UserError(f'{where}: {copy} differs from {of}, although config.json ties them: set '
                      'tie_word_embeddings to false if it is meant')
  params: Params = {}
  for entry in wanted:
    layers = [np.concatenate([_turned(plain[name], entry.transposed) for name in names], axis=-1)
              for names in entry.tensors]
    array = np.stack(layers) if entry.stacked else layers[0]
    params.setdefault(entry.group, {})[entry.name] = np.ascontiguousarray(array).astype(dtype)
  return params, sorted(n for n in plain if n not in needed and n not in copies)


def to_tensors(params: Mapping[str, Mapping[str, Any]], arch: Architecture, head: str
               ) -> dict[str, np.ndarray]:
  """The opposite of `to_params`: tensors under published names, with prefix, without copies."""
  tensors = {}
  for entry in entries(arch, head):
    array = np.asarray(params[entry.group][entry.name])
    for names, layer in zip(entry.tensors, array if entry.stacked else array[None], strict=True):
      for name, part in zip(names, np.split(layer, len(names), axis=-1), strict=True):
        turned = np.ascontiguousarray(_turned(part, entry.transposed))
        tensors[full_name(name, arch.kind)] = turned
  return tensors


def _check_present(plain, needed, arch: Architecture, head: str, where: str) -> None:
  """Names what is missing; says so if it is the head."""
  missing = [name for name in needed if name not in plain]
  if not missing:
    return
  packed = [name for name in plain if _PACKED.search(name)]
  if packed:
    raise UserError(f'{where} holds {_listed(packed)}: {_QUANTISED}')
  if all(needed[name].head or needed[name].group == 'pooler' for name in missing):
    raise UserError(f'{where} has no {head} head: {_listed(missing)} missing (weights are never '
                    f'made up): {_HEADLESS[head]}')
  raise UserError(f'{where} lacks {_listed(missing)}: it is another architecture than config.json '
                  f'says ({arch.kind}, {arch.num_layers} layers): {_TOGETHER}')


def _check_tensor(tensor: np.ndarray, name: str, shape: tuple[int, ...], where: str) -> None:
  if tensor.shape != shape:
    raise UserError(f'{where}: {name} has shape {tensor.shape}, config.json needs {shape}: '
                    f'{_TOGETHER}')
  if tensor.dtype.name not in _FLOATS:
    raise UserError(f"{where}: {name} is {tensor.dtype.name}, not one of {', '.join(_FLOATS)}: "
                    f'{_QUANTISED}')
  if not np.isfinite(tensor.astype(np.float32) if tensor.dtype.name == 'bfloat16' else tensor
                     ).all():
    raise UserError(f'{where}: {name} holds values that are not finite: the file is damaged, '
                    'or its training diverged: take another copy')


def _turned(array: np.ndarray, transposed: bool) -> np.ndarray:
  return array.T if transposed else array


def _listed(names: Iterable[str], most: int = 4) -> str:
  names = list(names)
  rest = f' and {len(names) - most} more' if len(names) > most else ''
  return ('tensor ' if len(names) == 1 else 'tensors ') + ', '.join(names[:most]) + rest
