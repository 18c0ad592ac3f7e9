"""Published files of decoder-only models: their config.json, and the names of their tensors.

GPT-2, GPT-NeoX (Pythia), Llama (2, 3 and 3.1's scaling, SmolLM2), SmolLM3, Mistral, Qwen 2 and 3,
OLMo 2 and 3, Gemma 2, and Gemma 3's text models. What would change a number and is not supported is
refused by name.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from fairjax.errors import UserError
from fairjax.model.decoder import (
  ACTIVATIONS,
  DecoderConfig,
  layer_parameters,
  other_parameters,
  rotary_frequencies,
)
from fairjax.pretrained.tensor_files import Stored

DECODERS = {
  'gpt2': 'GPT2LMHeadModel', 'gpt_neox': 'GPTNeoXForCausalLM', 'llama': 'LlamaForCausalLM',
  'smollm3': 'SmolLM3ForCausalLM', 'mistral': 'MistralForCausalLM', 'qwen2': 'Qwen2ForCausalLM',
  'qwen3': 'Qwen3ForCausalLM', 'olmo2': 'Olmo2ForCausalLM', 'olmo3': 'Olmo3ForCausalLM',
  'gemma2': 'Gemma2ForCausalLM', 'gemma3_text': 'Gemma3ForCausalLM'}
"""Values of `model_type`, with the class of transformers that writes texts."""
# Fields that change values, and the only value of them that is supported.
_REQUIRED = {
  'mlp_bias': False, 'quantization_config': None,
  'num_local_experts': None, 'scale_attn_by_inverse_layer_idx': False,
  'scale_attn_weights': True, 'reorder_and_upcast_attn': False, 'add_cross_attention': False,
  'use_bidirectional_attention': False}


# What the text_config of a Gemma 3 with images leaves out has the default of transformers' class.
_GEMMA3 = {
  'vocab_size': 262208, 'num_attention_heads': 8, 'num_key_value_heads': 4, 'head_dim': 256,
  'max_position_embeddings': 131072, 'rms_norm_eps': 1e-6, 'query_pre_attn_scalar': 256,
  'hidden_activation': 'gelu_pytorch_tanh'}
IMAGES = r'(vision_tower|multi_modal_projector)\..*'
"""Pattern of the tensors of a Gemma 3 that only images need."""


def text_config(content: dict[str, Any], *, where: str) -> dict[str, Any]:
  """Of a Gemma 3 with images the config of its text decoder; any other config as it is."""
  if content.get('model_type') != 'gemma3':
    return content
  text = content.get('text_config')
  if not isinstance(text, dict):
    raise UserError(f'{where} has no text_config: take the config.json of the model')
  own = {name: value for name, value in content.items() if value is not None}
  return _GEMMA3 | text | own | {'model_type': 'gemma3_text'}


def read_decoder_config(content: Mapping[str, Any], *, where: str = 'config.json') -> DecoderConfig:
  """Turns a published config.json, of transformers 4 or 5, into the switches of the model."""
  family = content.get('model_type')
  if family not in DECODERS:
    raise UserError(f'{where}: model_type {family!r} is no decoder that fairjax computes: take one '
                    f'of {", ".join(DECODERS)}, gemma3')
  for field, value in _REQUIRED.items():
    if content.get(field, value) not in (value, None):
      raise UserError(f'{where}: {field}={content[field]!r} is not supported, only {value!r}')
  try:
    config = (_gpt2(content) if family == 'gpt2' else _neox(content, where)
              if family == 'gpt_neox' else _rotary(family, content, where))
    rotated = 2 * rotary_frequencies(config, False)[0].size if config.rope_theta else 0
  except UserError:  # a ValueError too
    raise
  except KeyError as e:
    raise UserError(f'{where}: the field {e} of a {family} is missing') from None
  except (TypeError, ValueError, AttributeError, ArithmeticError) as e:
    raise UserError(f'{where}: a size of the {family} is no number ({e})') from None
  for entry in dataclasses.fields(config):
    found, size = getattr(config, entry.name), entry.type is int
    kinds = (int,) if size or entry.name in ('windows', 'rotated') else (int, float)
    if entry.type in (bool, str):
      continue
    for number in found if isinstance(found, tuple) else (found,):
      if type(number) not in kinds or not size <= number < math.inf:
        raise UserError(f'{where}: {entry.name} of the {family} would be {number!r}, a positive '
                        f'{"whole " * size}number is needed')
  if config.num_heads % config.num_kv_heads or (
      config.layer_norm and config.model_dim % config.num_heads):
    raise UserError(f'{where}: {config.num_heads} heads fit neither width {config.model_dim} nor '
                    f'{config.num_kv_heads} heads of keys')
  if rotated > config.head_dim:
    raise UserError(f'{where}: more dimensions of a head would be rotated than its '
                    f'{config.head_dim}: a share of at most 1, and even sizes, are needed')
  if config.activation not in ACTIVATIONS:
    raise UserError(f'{where}: the activation {config.activation!r} is not supported: take one of '
                    f'{", ".join(ACTIVATIONS)}')
  return config


def _gpt2(c):
  heads, width = c['n_head'], c['n_embd']
  return DecoderConfig(
    vocab_size=c['vocab_size'], model_dim=width, num_layers=c['n_layer'], num_heads=heads,
    num_kv_heads=heads, head_dim=width // heads, ff_dim=c.get('n_inner') or 4 * width,
    max_positions=c['n_positions'], norm_eps=c.get('layer_norm_epsilon', 1e-5),
    activation=c.get('activation_function', 'gelu_new'),
    tied=c.get('tie_word_embeddings', True), layer_norm=True, gated=False, rope_theta=0.0,
    qkv_bias=True, other_bias=True, query_scale=(width // heads) ** -0.5)


def _neox(c, where):
  heads, width = c['num_attention_heads'], c['hidden_size']
  if c.get('attention_bias') not in (True, None):
    raise UserError(f'{where}: attention_bias=False is not supported for a gpt_neox')
  rope = c.get('rope_scaling') or c.get('rope_parameters') or {}
  share = rope.get('partial_rotary_factor', c.get('rotary_pct', 0.25))
  return DecoderConfig(
    vocab_size=c['vocab_size'], model_dim=width, num_layers=c['num_hidden_layers'],
    num_heads=heads, num_kv_heads=heads, head_dim=width // heads, ff_dim=c['intermediate_size'],
    max_positions=c['max_position_embeddings'], norm_eps=c.get('layer_norm_eps', 1e-5),
    activation=c.get('hidden_act', 'gelu'), tied=c.get('tie_word_embeddings', False),
    layer_norm=True, gated=False, rotary_share=share,
    rope_theta=float(rope.get('rope_theta') or c.get('rotary_emb_base') or 1e4),
    rope_scaling=_rope_scaling(rope, c, where), qkv_bias=True, other_bias=True,
    parallel=c.get('use_parallel_residual', True),
    query_scale=(width // heads) ** -0.5)


def _rotary(family, c, where):
  """Llama and what came from it."""
  gemma, olmo = family.startswith('gemma'), family.startswith('olmo')
  if family == 'gemma2':
    c = {'attn_logit_softcapping': 50.0, 'final_logit_softcapping': 30.0} | c
  heads, width = c['num_attention_heads'], c['hidden_size']
  head_dim = c.get('head_dim') or width // heads
  # transformers 5 puts all of it into `rope_parameters`, by kind of layer where there are two. A
  # field that is missing has the default of transformers' class.
  rope = c.get('rope_parameters') or {}
  local = rope.get('sliding_attention') or {}
  rope = c.get('rope_scaling') or rope.get('full_attention', rope) or {}
  default = {'gemma3_text': 1e6, 'olmo3': 5e5, 'smollm3': 2e6}.get(family, 1e4)
  theta = rope.get('rope_theta') or c.get('rope_theta') or default
  local_theta = local.get('rope_theta') or c.get('rope_local_base_freq') or (
    theta if olmo else 1e4)
  for place in (c, rope, local):
    if place.get('partial_rotary_factor') not in (1.0, None):
      raise UserError(f"{where}: partial_rotary_factor={place['partial_rotary_factor']!r} is not "
                      f'supported for a {family}, only 1.0')
  if _rope_scaling(local, c, where):
    raise UserError(f'{where}: rope scaling of sliding_attention is not supported, only of '
                    'full_attention')
  attention_bias = bool(c.get('attention_bias', False))
  if attention_bias and family != 'qwen2':
    raise UserError(f'{where}: attention_bias=True is not supported for a {family}')
  return DecoderConfig(
    vocab_size=c['vocab_size'], model_dim=width, num_layers=c['num_hidden_layers'],
    num_heads=heads, num_kv_heads=c.get('num_key_value_heads') or heads, head_dim=head_dim,
    ff_dim=c['intermediate_size'], max_positions=c['max_position_embeddings'],
    norm_eps=c['rms_norm_eps'], activation=c.get('hidden_activation') or c['hidden_act'],
    tied=c.get('tie_word_embeddings', gemma or family == 'smollm3'), norm_plus_one=gemma,
    rope_theta=float(theta),
    rope_scaling=_rope_scaling(rope, c, where),
    local_rope_theta=float(local_theta) if family in ('gemma3_text', 'olmo3') else 0.0,
    windows=_windows(family, c, where),
    rotated=_rotated(c, where) if family == 'smollm3' else (),
    qkv_bias=family == 'qwen2', qk_norm=olmo or family in ('qwen3', 'gemma3_text'),
    joint_qk_norm=olmo,
    pre_norms=not olmo, post_norms=gemma or olmo,
    query_scale=(c['query_pre_attn_scalar'] if gemma else head_dim) ** -0.5,
    embedding_scale=math.sqrt(width) if gemma else 1.0,
    # Gemma 3 has the field too, and its attention no cap.
    attention_cap=c.get('attn_logit_softcapping') or 0.0 if family == 'gemma2' else 0.0,
    logit_cap=c.get('final_logit_softcapping') or 0.0 if gemma else 0.0)


def _rope_scaling(rope, c, where):
  name = rope.get('rope_type', rope.get('type', 'default'))
  if name in ('default', 'dynamic'):  # dynamic stretches only texts that no position is left for
    return ()
  if name == 'linear':
    return (float(rope['factor']),)
  positions = rope.get('original_max_position_embeddings') or c['max_position_embeddings']
  if name == 'llama3':
    return (*(float(rope[key]) for key in ('factor', 'low_freq_factor', 'high_freq_factor')),
            float(positions))
  if name == 'yarn' and rope.get('truncate', True):
    factor = float(rope.get('factor') or c['max_position_embeddings'] / positions)

    def stretch(weight):
      return 0.1 * weight * math.log(factor) + 1 if factor > 1 else 1.0

    above, below = rope.get('mscale') or 0, rope.get('mscale_all_dim') or 0
    found = rope.get('attention_factor')
    if found is None:
      found = stretch(above) / stretch(below) if above and below else stretch(1)
    return (factor, float(rope.get('beta_fast') or 32), float(rope.get('beta_slow') or 1),
            float(positions), float(found))
  raise UserError(f'{where}: rope scaling {name!r} is not supported, only default, dynamic, '
                  'linear, llama3, yarn (truncated)')


def _rotated(c, where):
  """By layer of a SmolLM3: 0 where positions do not count."""
  layers, every = c['num_hidden_layers'], c.get('no_rope_layer_interval', 4)
  found = c.get('no_rope_layers')  # whose 1 means that they do
  if found is None:
    found = [(i + 1) % every for i in range(layers)]
  if len(found) < layers:
    raise UserError(f'{where}: {len(found)} no_rope_layers, but num_hidden_layers is {layers}')
  return tuple(int(bool(x)) for x in found[:layers])


def _windows(family, c, where):
  """Tokens that each layer sees; 0: all."""
  if family in ('llama', 'olmo2'):
    return ()
  size = c.get('sliding_window', 0 if family == 'smollm3' else 4096) or 0
  layers = c['num_hidden_layers']
  kinds, used = c.get('layer_types'), c.get('use_sliding_window')
  if family.startswith('qwen') and not used:
    size = 0
  if kinds is None:
    if family == 'smollm3':
      whole = _rotated(c, where) if used else (1,) * layers
    elif family.startswith('qwen'):
      whole = tuple(i < c.get('max_window_layers', 28) for i in range(layers))
    else:  # each so manieth layer sees all
      every = {'gemma2': 2, 'gemma3_text': c.get('sliding_window_pattern') or 6, 'olmo3': 4}.get(
        family, layers + 1)
      whole = tuple((i + 1) % every == 0 for i in range(layers))
    kinds = ['full_attention' if w else 'sliding_attention' for w in whole]
  if unknown := set(kinds) - {'full_attention', 'sliding_attention'}:
    raise UserError(f'{where}: layers of type {unknown.pop()!r} are not supported')
  if len(kinds) != layers:
    raise UserError(f'{where}: {len(kinds)} layer_types, but num_hidden_layers is {layers}')
  windows = tuple(size if kind == 'sliding_attention' else 0 for kind in kinds)
  return windows if any(windows) else ()


Index = tuple[slice, ...]


class Tensor(NamedTuple):
  """One parameter in the published files."""

  ours: str
  theirs: str  # with {} for the number of the layer
  of_layer: bool
  axes: tuple[tuple[int, ...], ...]  # sizes (of one layer) that each axis of theirs joins
  turned: bool  # the file has the axes of products as [out, in]
  part: int | None  # 0 to 2: queries, keys or values of a tensor that joins all three
  part_axis: int  # the axis of the three among ours, which lack it

  @property
  def shape(self) -> tuple[int, ...]:
    """In the file."""
    found = tuple(math.prod(sizes) for sizes in self.axes)
    return found[::-1] if self.turned else found

  def place(self, index: Index) -> Index:
    """Where the file has a slice of our axes; the block holds other parts too if heads lead."""
    if self.part is not None:
      block = slice(self.part, self.part + 1) if self._parts_lead else slice(None)
      index = (*index[:self.part_axis], block, *index[self.part_axis:])
    joined = []
    for sizes in self.axes:
      own, index = index[:len(sizes)], index[len(sizes):]
      begin, end = 0, 1
      for i, n in zip(own, sizes, strict=True):
        start, stop, _ = i.indices(n)
        if end - begin > 1 and (start, stop) != (0, n):
          raise ValueError(f'{self.ours}: only the first axis of {sizes} can be split')
        begin, end = begin * n + start, (end - 1) * n + stop
      joined.append((begin, end))
    return tuple(slice(*i) for i in (reversed(joined) if self.turned else joined))

  @property
  def _parts_lead(self) -> bool:
    """Whether the three parts follow each other (GPT-2); else each head has its three."""
    return self.part_axis == len(self.axes) - 1

  def take(self, block: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Ours of a shape, from the block of `place`."""
    block = block.T if self.turned else block
    if self.part is None:
      return block.reshape(shape)
    block = block.reshape(*shape[:self.part_axis], -1, *shape[self.part_axis:])
    return block.take(0 if self._parts_lead else self.part, self.part_axis)

  def give(self, parts: list[Any]) -> Any:
    """One layer of ours, or of all that the tensor joins, as the file has it."""
    x = parts[0] if self.part is None else np.stack(parts, self.part_axis)
    return x.reshape(self.shape[::-1]).T if self.turned else x.reshape(self.shape)


_LLAMA = {
  'embedding': 'model.embed_tokens.weight', 'output': 'lm_head.weight',
  'final_norm_scale': 'model.norm.weight', 'query': 'self_attn.q_proj.weight',
  'key': 'self_attn.k_proj.weight', 'value': 'self_attn.v_proj.weight',
  'query_bias': 'self_attn.q_proj.bias', 'key_bias': 'self_attn.k_proj.bias',
  'value_bias': 'self_attn.v_proj.bias', 'attention_output': 'self_attn.o_proj.weight',
  'query_norm_scale': 'self_attn.q_norm.weight', 'key_norm_scale': 'self_attn.k_norm.weight',
  'ff_gate': 'mlp.gate_proj.weight', 'ff_up': 'mlp.up_proj.weight',
  'ff_down': 'mlp.down_proj.weight', 'attention_norm_scale': 'input_layernorm.weight',
  'ff_norm_scale': 'post_attention_layernorm.weight'}
_GEMMA = _LLAMA | {  # whose norm after attention has the name of Llama's norm before feed-forward
  'attention_post_norm_scale': 'post_attention_layernorm.weight',
  'ff_norm_scale': 'pre_feedforward_layernorm.weight',
  'ff_post_norm_scale': 'post_feedforward_layernorm.weight'}
_OLMO = _LLAMA | {
  'attention_post_norm_scale': 'post_attention_layernorm.weight',
  'ff_post_norm_scale': 'post_feedforward_layernorm.weight'}
_GPT2 = {
  'embedding': 'wte.weight', 'positions': 'wpe.weight', 'output': 'lm_head.weight',
  'final_norm_scale': 'ln_f.weight', 'final_norm_bias': 'ln_f.bias',
  'attention_norm_scale': 'ln_1.weight', 'attention_norm_bias': 'ln_1.bias',
  'ff_norm_scale': 'ln_2.weight', 'ff_norm_bias': 'ln_2.bias',
  'query': 'attn.c_attn.weight', 'key': 'attn.c_attn.weight', 'value': 'attn.c_attn.weight',
  'query_bias': 'attn.c_attn.bias', 'key_bias': 'attn.c_attn.bias',
  'value_bias': 'attn.c_attn.bias', 'attention_output': 'attn.c_proj.weight',
  'attention_output_bias': 'attn.c_proj.bias', 'ff_up': 'mlp.c_fc.weight',
  'ff_up_bias': 'mlp.c_fc.bias', 'ff_down': 'mlp.c_proj.weight', 'ff_down_bias': 'mlp.c_proj.bias'}
_NEOX = {
  'embedding': 'gpt_neox.embed_in.weight', 'output': 'embed_out.weight',
  'final_norm_scale': 'gpt_neox.final_layer_norm.weight',
  'final_norm_bias': 'gpt_neox.final_layer_norm.bias',
  **{f'{ours}{end}': f'{theirs}.{end[1:] or "weight"}' for ours, theirs in (
    ('query', 'attention.query_key_value'), ('key', 'attention.query_key_value'),
    ('value', 'attention.query_key_value'), ('attention_output', 'attention.dense'),
    ('ff_up', 'mlp.dense_h_to_4h'), ('ff_down', 'mlp.dense_4h_to_h')) for end in ('', '_bias')},
  'attention_norm_scale': 'input_layernorm.weight', 'attention_norm_bias': 'input_layernorm.bias',
  'ff_norm_scale': 'post_attention_layernorm.weight',
  'ff_norm_bias': 'post_attention_layernorm.bias'}
_PARTS = ('query', 'key', 'value')  # of a tensor that joins them, in its order


def is_gpt2(config: DecoderConfig) -> bool:
  """Whether the files are GPT-2's: products as [in, out], and names that often lack a prefix."""
  return not config.rope_theta


def tensor_table(config: DecoderConfig) -> Iterator[Tensor]:
  """Every parameter of a model with its published name, and how the arrays turn into each other."""
  gpt2, neox = is_gpt2(config), config.layer_norm and not is_gpt2(config)
  names = (_GPT2 if gpt2 else _NEOX if neox else _OLMO if not config.pre_norms
           else _GEMMA if config.post_norms else _LLAMA)
  layer = 'h.{}.' if gpt2 else 'gpt_neox.layers.{}.' if neox else 'model.layers.{}.'
  for of_layer, parameters in ((False, other_parameters(config)), (True, layer_parameters(config))):
    for ours, parameter in parameters.items():
      shape = parameter.shape
      # Weights of products are stored [in, out] by GPT-2 and [out, in] by all others.
      product = of_layer and not ours.endswith(('_bias', '_scale'))
      cut = 2 if ours == 'attention_output' else 1
      axes: tuple[tuple[int, ...], ...] = (
        (shape[:cut], shape[cut:]) if product else (shape,) if of_layer
        else tuple((n,) for n in shape))
      part, part_axis = None, len(axes) - 1 + neox  # GPT-NeoX has all three of a head side by side
      if config.layer_norm and ours.startswith(_PARTS):
        part, (heads, size) = _PARTS.index(ours.removesuffix('_bias')), shape[-2:]
        axes = (*axes[:-1], (heads, 3, size) if neox else (3, heads, size))
      yield Tensor(ours, (layer if of_layer else '') + names[ours], of_layer, axes,
                   product and not gpt2, part, part_axis)


def to_decoder_params(
  tensors: Mapping[str, Stored], config: DecoderConfig, *, dtype: Any = np.float32,
  shardings: Any = None,
) -> dict[str, Any]:
  """Parameters of `tensor_shapes`; `shardings`: one, or a tree like theirs; None: NumPy arrays."""
  params: dict[str, Any] = {'layers': {}}
  layers, others = layer_parameters(config), other_parameters(config)
  for entry in tensor_table(config):
    parameter = (layers if entry.of_layer else others)[entry.ours]
    shape = (*(config.num_layers,) * entry.of_layer, *parameter.shape)
    read = functools.partial(_read, tensors, entry, shape, np.dtype(dtype))
    group = params['layers'] if entry.of_layer else params
    if shardings is None:
      group[entry.ours] = read((slice(None),) * len(shape))
    else:
      sharding = shardings if isinstance(shardings, jax.sharding.Sharding) else (
        shardings['layers'] if entry.of_layer else shardings)[entry.ours]
      group[entry.ours] = jax.make_array_from_callback(shape, sharding, read)
  return params


def _read(tensors, entry, shape, dtype, index):
  """A slice of one of our arrays; only its own bytes are read, of GPT-NeoX all of its heads."""
  sizes = [len(range(*i.indices(n))) for i, n in zip(index, shape, strict=True)]
  found = np.empty(sizes, dtype)
  place = entry.place(index[1:] if entry.of_layer else index)
  layers = range(*index[0].indices(shape[0])) if entry.of_layer else (0,)
  for layer, out in zip(layers, found if entry.of_layer else [found], strict=True):
    out[...] = entry.take(tensors[entry.theirs.format(layer)].read(place), out.shape)
  return found


def tensor_parts(config: DecoderConfig) -> dict[str, list[tuple[Tensor, int | None]]]:
  """By published name the parameters that it joins, each with the number of its layer."""
  parts: dict[str, list[tuple[Tensor, int | None]]] = {}
  for entry in tensor_table(config):
    for i in range(config.num_layers) if entry.of_layer else (None,):
      parts.setdefault(entry.theirs.format(i), []).append((entry, i))
  return parts


def tensor_shapes(config: DecoderConfig) -> dict[str, tuple[int, ...]]:
  """Shapes of the published tensors of a model; names of GPT-2 without `transformer.`."""
  return {name: parts[0][0].shape for name, parts in tensor_parts(config).items()}


def to_decoder_tensor(
  params: Mapping[str, Any], parts: list[tuple[Tensor, int | None]], *,
  to_host: Callable[[Any], np.ndarray] = np.asarray,
) -> np.ndarray:
  """One published tensor, of the parameters that `tensor_parts` names."""
  return parts[0][0].give([to_host(params[entry.ours] if i is None else
                                   params['layers'][entry.ours][i]) for entry, i in parts])
