"""Adapters (LoRA) as the package peft keeps them: written for a base, and read onto it.

An adapter that is read is a view of its base's tensors: W + s B A stands for W.
"""

import dataclasses
import pathlib
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from scipy.linalg import block_diag

from fairjax.errors import UserError
from fairjax.files import write_json
from fairjax.model.decoder import DecoderConfig
from fairjax.pretrained.decoder_files import is_gpt2, tensor_parts
from fairjax.pretrained.hub import is_hub_name
from fairjax.pretrained.tensor_files import Stored, damaged, open_tensors, write_tensors
from fairjax.vocabulary import read_json

CONFIG, WEIGHTS = 'adapter_config.json', 'adapter_model.safetensors'
_PREFIX, _LORA = 'base_model.model.', re.compile(r'(.*)\.lora_([AB])\.(?:default\.)?weight')
_DIGEST = 'fairjax.base_weights'  # in the file's metadata
# Variants that compute something else with the same tensors, and beginnings that leave the base as
# it was (PiSSA, OLoRA, CorDA, LoftQ change it).
_OTHERS = ('alora_invocation_tokens', 'arrow_config', 'monteclora_config', 'layer_replication',
           'use_dora', 'lora_bias', 'modules_to_save', 'trainable_token_indices', 'kasa_config')
_FROZEN = '.base_layer.weight'  # which PEFT saves of an output that it adapts
_PLAIN_BEGINNINGS = (True, False, None, 'gaussian', 'eva', 'orthogonal', 'mica')


def adapter_tensors(
  adapters: Mapping[str, Any], config: DecoderConfig, *,
  to_host: Callable[[Any], np.ndarray] = np.asarray,
) -> dict[str, np.ndarray]:
  """The parameters of a `LoraDecoder` as tensors under PEFT's names.

  GPT-2 and GPT-NeoX have one product for queries, keys and values, so the adapters of the three are
  one of three times the rank, whose B is block-diagonal.
  """
  found = {}
  for name, parts in tensor_parts(config).items():
    pairs = []
    for entry, layer in parts:
      if f'{entry.ours}_lora_a' in adapters['layers']:
        a, b = (to_host(adapters['layers'][f'{entry.ours}_lora_{x}'][layer]) for x in 'ab')
        pairs.append((a.reshape(-1, a.shape[-1]).T, b.reshape(a.shape[-1], -1).T))
    if pairs:
      module = f'{_PREFIX}{"transformer." if is_gpt2(config) else ""}{name[:-len(".weight")]}'
      found[f'{module}.lora_A.weight'] = np.concatenate([a for a, _ in pairs])
      rows = block_diag(*(b for _, b in pairs))
      if len(pairs) > 1 and not is_gpt2(config):  # GPT-NeoX has all three of a head side by side
        heads = rows.reshape(3, config.num_heads, config.head_dim, -1)
        rows = heads.swapaxes(0, 1).reshape(rows.shape)
      found[f'{module}.lora_B.weight'] = rows
  return found


def write_adapter(
  folder: pathlib.Path, tensors: Mapping[str, np.ndarray], *, rank: int, base: str,
  base_digest: str,
) -> None:
  """Writes both files of an adapter; `base` is a folder or `hf:ORG/NAME[@REVISION]`."""
  modules = {match[1].rpartition('.')[2]: len(value) for name, value in tensors.items()
             if (match := _LORA.fullmatch(name)) and match[2] == 'A'}
  more = {name: size for name, size in modules.items() if size != rank}
  name, revision = base, ''
  if is_hub_name(base):
    name, _, revision = base.removeprefix('hf:').partition('@')
  write_json(folder / CONFIG, {
    'peft_type': 'LORA', 'task_type': 'CAUSAL_LM', 'base_model_name_or_path': name,
    'revision': revision or None, 'r': rank, 'lora_alpha': rank, 'rank_pattern': more,
    'alpha_pattern': more, 'target_modules': sorted(modules), 'lora_dropout': 0.0, 'bias': 'none',
    'fan_in_fan_out': 'c_attn' in modules, 'inference_mode': True})
  write_tensors(folder / WEIGHTS, {name: (x.dtype.name, x.shape) for name, x in tensors.items()},
                iter(tensors.values()), metadata={_DIGEST: base_digest})


@dataclasses.dataclass(frozen=True)
class Adapter:
  """An adapter in a folder; no number of it is read yet."""

  directory: pathlib.Path
  config: Mapping[str, Any]  # content of adapter_config.json
  base: str  # its model: a folder, or a name of the Hub

  @property
  def files(self) -> list[pathlib.Path]:
    """What decides its values."""
    return [self.directory / CONFIG, self.directory / WEIGHTS]

  @property
  def base_digest(self) -> str | None:
    """Of the weights that it was trained on; None if another program wrote it."""
    from safetensors import SafetensorError, safe_open
    try:
      with safe_open(self.directory / WEIGHTS, framework='numpy') as file:
        return (file.metadata() or {}).get(_DIGEST)
    except (OSError, SafetensorError) as e:
      raise damaged(self.directory / WEIGHTS, 'safetensors', e) from None

  def onto(self, tensors: Mapping[str, Stored], names: Mapping[str, str | None], *, turned: bool
           ) -> dict[str, Stored]:
    """The tensors of a base with this adapter; `UserError` if it has others than its base.

    `names`: of each tensor the published name, without the prefix of GPT-2. `turned`: products are
    stored [in, out].
    """
    pairs: dict[str, dict[str, np.ndarray]] = {}
    modules = {}  # as PEFT names them: the base's files may lack the prefix of GPT-2, or be GGUF
    known = {published: name for name, published in names.items()}
    for name, tensor in open_tensors([self.directory / WEIGHTS]).items():
      plain = name.removeprefix(_PREFIX)
      match, frozen = _LORA.fullmatch(plain), plain.endswith(_FROZEN)
      of = match[1] if match else plain.removesuffix(_FROZEN) if frozen else ''
      module = f'{of.removeprefix("transformer.")}.weight'
      if module == 'lm_head.weight' and 'embed_out.weight' in names.values():
        module = 'embed_out.weight'  # of a GPT-NeoX in transformers 5
      if module not in known:
        raise UserError(f'{self.directory} changes {name}, which is no product of its base '
                        f'{self.base}: it is of another base, or of another kind than LoRA; merge '
                        'it with peft')
      if match is None:
        if not np.array_equal(tensor.whole(), tensors[known[module]].whole()):
          raise UserError(f'{self.directory} changes {name} of its base {self.base} too: merge it '
                          'with peft (merge_and_unload)')
        continue
      pairs.setdefault(module, {})[match[2]] = tensor.whole().astype(np.float32)
      modules[module] = match[1]
    if not pairs:
      raise UserError(f'{self.directory} has no adapter in {WEIGHTS}: save it again')
    found = dict(tensors)
    for name, ours in names.items():
      if pair := pairs.get(ours or ''):
        found[name] = self._added(tensors[name], pair, name, modules[ours], turned)
    return found

  def _added(self, tensor: Stored, pair: Mapping[str, np.ndarray], name: str, module: str,
             turned: bool) -> Stored:
    """One tensor with its pair."""
    if sorted((which, x.ndim) for which, x in pair.items()) != [('A', 2), ('B', 2)]:
      raise UserError(f'{self.directory} has half an adapter of {name}: copy the folder again')
    a, b = pair['A'], pair['B']
    left, right = (a.T, b.T) if turned else (b, a)
    if (len(left), right.shape[1]) != tensor.shape or left.shape[1] != len(right):
      raise UserError(f'{self.directory} is of another base than {self.base}: {name} has shape '
                      f'{tensor.shape} there, {(len(left), right.shape[1])} here')
    try:
      alpha = next((value for key, value in (self.config.get('alpha_pattern') or {}).items()
                    if re.match(rf'(.*\.)?({key})$', module)),
                   self.config['lora_alpha'])
      scale = alpha / (len(a) ** 0.5 if self.config.get('use_rslora') else len(a))
    except (AttributeError, TypeError, re.error) as e:
      raise UserError(f'{self.directory / CONFIG}: alpha_pattern gives {module} no number ({e})'
                      ) from None

    def read(index):
      rows, columns = index
      return tensor.read(index).astype(np.float32) + np.float32(scale) * (
        left[rows] @ right[:, columns])

    return tensor._replace(read=read)


def read_adapter(directory: pathlib.Path) -> Adapter:
  """Reads what an adapter is for; `UserError` if it is no LoRA, or its base is not there."""
  config = read_json(directory / CONFIG)
  kind, name = config.get('peft_type'), str(config.get('base_model_name_or_path'))
  head = f'{directory} is an adapter ({kind}) of {name}'
  if kind != 'LORA' or not isinstance(config.get('lora_alpha'), int | float):
    raise UserError(f'{head}, and no LoRA: merge it with peft (merge_and_unload)')
  others = [field for field in _OTHERS if config.get(field)] + ['init_lora_weights'] * (
    config.get('init_lora_weights') not in _PLAIN_BEGINNINGS)
  if others:
    raise UserError(f'{head} with {others[0]}={config[others[0]]!r}, which is not W + s B A: merge '
                    'it with peft (merge_and_unload)')
  if not (directory / WEIGHTS).is_file():
    raise UserError(f'{head}, and holds no {WEIGHTS}: download it again, or save it with '
                    'safe_serialization=True (a pickle, adapter_model.bin, is not read)')
  there = next((p for p in (pathlib.Path(name), directory / name)
                if name and p.exists() and not p.samefile(directory)), None)
  if there is None and not re.fullmatch(r'\w[\w.-]*/[\w.-]+', name):
    raise UserError(f'{head}, which is not here: merge it with peft (merge_and_unload), or name '
                    f'the folder of its base as base_model_name_or_path in {CONFIG}')
  revision = f'@{config["revision"]}' if config.get('revision') else ''
  return Adapter(directory, config, f'hf:{name}{revision}' if there is None else str(there))
