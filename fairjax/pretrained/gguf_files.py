"""GGUF files of llama.cpp as the published form: content of config.json, tensors, tokenizer.json.

Values are those of the file; a quantised one is not the model that was published. What llama.cpp
stores otherwise is turned back: the rows of queries and keys of `llama` are permuted for rotary
embeddings of neighbours, norms of Gemma have 1 added, products of GPT-2 are turned over, and the
scaling of Llama 3's frequencies is a tensor.
"""

import dataclasses
import functools
import json
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from fairjax.errors import UserError
from fairjax.inputs import refuse_pointer
from fairjax.model.decoder import DecoderConfig, rotary_frequencies
from fairjax.pretrained.decoder_files import read_decoder_config, tensor_shapes
from fairjax.pretrained.tensor_files import Stored, damaged

_KINDS = {'gpt2': 'gpt2', 'llama': 'llama', 'qwen2': 'qwen2', 'qwen3': 'qwen3', 'gemma2': 'gemma2',
          'gemma3': 'gemma3_text'}  # general.architecture -> model_type
_SCALINGS = ((8.0, 1.0, 4.0, 8192.0), (32.0, 1.0, 4.0, 8192.0))  # of Llama 3.1 and of Llama 3.2


@dataclasses.dataclass(frozen=True)
class GGUF:
  """What a file holds."""

  config: dict[str, Any]  # content of a config.json
  tensors: dict[str, Stored]  # by published name
  tokenizer: str  # content of a tokenizer.json
  tokenizer_config: dict[str, Any]  # content of a tokenizer_config.json
  types: tuple[str, ...]  # of the tensors


def open_gguf(path: pathlib.Path) -> GGUF:
  """Opens a file without reading a weight; the last one is kept: its vocabulary takes seconds."""
  refuse_pointer(path)
  return _open(path, path.stat().st_mtime_ns)


@functools.lru_cache(maxsize=1)
def _open(path: pathlib.Path, modified: int) -> GGUF:
  try:
    import gguf
  except ModuleNotFoundError:
    raise UserError(f"{path}: GGUF is read by the package gguf: pip install -e '.[gguf]' in "
                    "fairjax's folder") from None
  try:
    reader = gguf.GGUFReader(path)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    found = {t.name: t for t in reader.tensors}
    if reader.byte_order == 'S':
      raise UserError(f'{path} is for machines of the other byte order (big-endian), whose numbers '
                      'are not read: take the usual file of the same model')
    return _converted(path, gguf, fields, found)
  except UserError:  # a ValueError too
    raise
  except (OSError, ValueError, IndexError, KeyError, TypeError, OverflowError) as e:
    raise damaged(path, 'GGUF', e) from None


def _converted(path, gguf, fields, found) -> GGUF:
  kind, what = fields['general.architecture'], fields.get('general.type', 'model')
  if what != 'model':
    raise UserError(f'{path} is no model but of the type {what}: give the file of the model')
  if kind not in _KINDS:
    raise UserError(f"{path}: the architecture '{kind}' is not supported, only "
                    f"{', '.join(_KINDS)}")
  if (parts := fields.get('split.count', 1)) > 1:
    raise UserError(f'{path} is one of {parts} parts: join them with llama-gguf-split --merge')
  config = _config(path, fields, kind, found)
  types, readable = {t.tensor_type.name: t.name for t in found.values()}, list(_types(gguf))
  for of_type in types.keys() - readable:
    raise UserError(f'{path}: {types[of_type]} has the type {of_type}, which is not supported, '
                    f'only {", ".join(readable)}')
  scaling = found.pop('rope_freqs.weight', None)
  if scaling is not None:
    config['rope_scaling'] = _llama3_scaling(path, config, np.asarray(scaling.data).reshape(-1))
  decoder = read_decoder_config(config, where=str(path))
  tensors, missing = {}, []
  names = gguf.get_tensor_name_map(
    next(a for a, name in gguf.MODEL_ARCH_NAMES.items() if name == kind), decoder.num_layers)
  for plain in tensor_shapes(decoder):
    name = f'transformer.{plain}' if kind == 'gpt2' and not plain.startswith('lm_head.') else plain
    theirs = names.get_name(name, try_suffixes=('.weight', '.bias'))
    if theirs not in found:
      missing.append(theirs)
    else:
      tensors[name] = _stored(gguf, found.pop(theirs), name, kind, decoder)
  if decoder.tied:
    found.pop('output.weight', None)  # the table once more
  if missing or found:
    raise UserError(
      f"{path}: the tensors are not those of its {kind}: "
      + '; '.join([f'{name} is missing' for name in missing[:4]]
                  + [f'{name} is unknown' for name in list(found)[:4]]))
  return GGUF(config, tensors, json.dumps(_tokenizer(path, fields), ensure_ascii=False),
              _tokenizer_config(fields), tuple(sorted(types)))


def _ties(found, kind) -> bool:
  """Whether the output is the table of words; GPT-2's files have it twice, perhaps in two types."""
  words, output = found['token_embd.weight'], found.get('output.weight')
  return output is None or (kind == 'gpt2' and output.tensor_type == words.tensor_type
                            and np.array_equal(output.data, words.data))


def _config(path, fields, kind, found) -> dict[str, Any]:
  """Content of a config.json."""
  def get(name, default=None):
    return fields.get(f'{kind}.{name}', default)

  def need(name):
    return fields[f'{kind}.{name}']

  if get('expert_count'):
    raise UserError(f'{path}: {kind} with experts is not supported')
  heads, width, layers = need('attention.head_count'), need('embedding_length'), need('block_count')
  common = {
    'model_type': _KINDS[kind], 'vocab_size': int(found['token_embd.weight'].shape[-1]),
    'tie_word_embeddings': _ties(found, kind),
    'bos_token_id': fields.get('tokenizer.ggml.bos_token_id'),
    'eos_token_id': _ends(fields)}
  if kind == 'gpt2':
    return common | {
      'n_embd': width, 'n_head': heads, 'n_layer': layers, 'n_inner': need('feed_forward_length'),
      'n_positions': need('context_length'), 'activation_function': 'gelu_new',
      'layer_norm_epsilon': _plain(need('attention.layer_norm_epsilon'))}
  head_dim = get('attention.key_length') or width // heads
  for name, only in (('rope.dimension_count', head_dim), ('attention.value_length', head_dim),
                     ('attention.causal', True)):
    if get(name, only) != only:
      raise UserError(f'{path}: {kind}.{name}={get(name)!r} is not supported, only {only!r}')
  factor = _plain(get('rope.scaling.factor') or get('rope.scale_linear') or 1.0)
  scaling = get('rope.scaling.type', 'linear' if factor != 1 else 'none')
  if scaling not in ('none', 'linear'):
    raise UserError(f'{path}: {kind}.rope.scaling.type={scaling!r} is not supported, only none and '
                    'linear')
  config = common | {
    'hidden_size': width, 'intermediate_size': need('feed_forward_length'),
    'num_hidden_layers': layers, 'num_attention_heads': heads,
    'num_key_value_heads': get('attention.head_count_kv', heads), 'head_dim': head_dim,
    'max_position_embeddings': need('context_length'),
    'rms_norm_eps': _plain(need('attention.layer_norm_rms_epsilon')),
    'rope_theta': _plain(get('rope.freq_base', 10000.0)), 'hidden_act': 'silu',
    'rope_scaling': None if scaling == 'none' else {'rope_type': scaling, 'factor': factor}}
  if kind.startswith('gemma'):
    # What files leave out is in llama.cpp: the largest models scale by width, all others by head.
    largest, window, period, attention_cap, logit_cap = {
      'gemma2': (46, 4096, 2, 50.0, 30.0), 'gemma3': (62, 0, 6, 0.0, 0.0)}[kind]
    window = get('attention.sliding_window', window) or None
    period = get('attention.sliding_window_pattern', period)
    near = period if isinstance(period, list) else [
      not period or (i + 1) % period for i in range(layers)]
    config |= {
      'hidden_activation': 'gelu_pytorch_tanh', 'sliding_window': window,
      'layer_types': ['sliding_attention' if window and is_near else 'full_attention'
                      for is_near in near],
      'query_pre_attn_scalar': width // heads if largest == layers else head_dim,
      'attn_logit_softcapping': _plain(get('attn_logit_softcapping', attention_cap)) or None,
      'final_logit_softcapping': _plain(get('final_logit_softcapping', logit_cap)) or None}
  if kind == 'gemma3':
    config['rope_local_base_freq'] = _plain(get('rope.freq_base_swa', 10000.0))
  return config


def _ends(fields) -> list[int]:
  """Ids that end a text."""
  named = (fields.get(f'tokenizer.ggml.{role}_token_id') for role in ('eos', 'eot'))
  return list(dict.fromkeys(int(i) for i in named if i is not None))


def _plain(value: float) -> float:
  """The decimal number that was rounded to this one of 32 bits."""
  return float(str(np.float32(value)))


def _llama3_scaling(path, config, factors) -> dict[str, Any]:
  """The scaling of Llama 3 whose factors these are; they are stored without its numbers."""
  plain = read_decoder_config(config, where=str(path))
  for scaling in _SCALINGS:
    scaled = dataclasses.replace(plain, rope_scaling=scaling)
    expected = rotary_frequencies(plain, False)[0] / rotary_frequencies(scaled, False)[0]
    if factors.shape == expected.shape and np.allclose(factors, expected, rtol=1e-5):
      return {'rope_type': 'llama3', **dict(zip(
        ('factor', 'low_freq_factor', 'high_freq_factor', 'original_max_position_embeddings'),
        scaling, strict=True))}
  raise UserError(f'{path}: rope_freqs.weight is not the rope scaling of Llama 3.1 or 3.2, the '
                  'only ones that are supported')


def _stored(gguf, tensor, name: str, kind: str, config: DecoderConfig) -> Stored:
  """A tensor in the published form."""
  norm = kind.startswith('gemma') and name.endswith('norm.weight')
  turned = kind == 'gpt2' and '.h.' in name and len(tensor.shape) == 2
  permuted = kind == 'llama' and '_proj' in name and name.split('.')[-2][:1] in 'qk'
  shape = tuple(int(n) for n in reversed(tensor.shape))

  def read(index):
    rows, *rest = reversed(index) if turned else index
    data = tensor.data[rows] if rest else tensor.data  # of one axis: bytes, perhaps
    values = np.asarray(
      gguf.quants.dequantize(np.asarray(data), tensor.tensor_type), np.float32)
    values = values[(slice(None), *rest)] if rest else values[rows]
    if permuted:
      values = _unpermuted(values, config.head_dim)
    if norm:
      values = values - 1
    return values.T if turned else values

  return Stored(shape[::-1] if turned else shape, 'float32', read)


def _unpermuted(rows: np.ndarray, head_dim: int) -> np.ndarray:
  """Rows of whole heads, (pair, half) in the file, as (half, pair)."""
  pairs = rows.reshape(-1, head_dim // 2, 2, *rows.shape[1:])
  return pairs.swapaxes(1, 2).reshape(rows.shape)


def _types(gguf) -> Iterator[str]:
  """Names of the types that the package can read."""
  for kind, (_, size) in gguf.GGML_QUANT_SIZES.items():
    try:
      gguf.quants.dequantize(np.zeros((1, size), np.uint8), kind)
    except (NotImplementedError, KeyError):
      continue
    yield kind.name


# Tokenizers: the package `tokenizers` reads the JSON that this makes of a file's vocabulary.

_SPACE = '\u2581'
_BYTES = {'type': 'ByteLevel', 'add_prefix_space': False, 'trim_offsets': True, 'use_regex': True}


def _regex(pattern: str) -> dict[str, Any]:
  """Splits by a pattern, then into bytes."""
  return {'type': 'Sequence', 'pretokenizers': [
    {'type': 'Split', 'pattern': {'Regex': pattern}, 'behavior': 'Isolated', 'invert': False},
    _BYTES | {'use_regex': False}]}


_WORDS = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r'|\s*[\r\n]+|\s+(?!\S)|\s+')
_BYTE_LEVEL = {  # tokenizer.ggml.pre -> pre-tokenizer, normalizer, whole words need no merge
  'gpt-2': (_BYTES, None, False),
  'smollm': ({'type': 'Sequence', 'pretokenizers': [
    {'type': 'Digits', 'individual_digits': True}, _BYTES]}, None, False),
  'llama-bpe': (_regex(_WORDS % '{1,3}'), None, True),
  'qwen2': (_regex(_WORDS % ''), {'type': 'NFC'}, False)}
_ORDINARY, _UNKNOWN, _CONTROL, _OWN = 1, 2, 3, 4  # tokenizer.ggml.token_type


def _tokenizer(path, fields) -> dict[str, Any]:
  """Content of a tokenizer.json."""
  readers = {'gpt2': _byte_level, 'llama': _sentence_piece}
  kind, tokens = fields['tokenizer.ggml.model'], fields['tokenizer.ggml.tokens']
  if kind not in readers:
    raise UserError(f"{path}: the tokenizer '{kind}' is not supported, only {', '.join(readers)}")
  types = fields.get('tokenizer.ggml.token_type', [_ORDINARY] * len(tokens))
  # The rows of a padded table have names, which are no tokens.
  ids = {token: i for i, token in enumerate(tokens) if token != f'[PAD{i}]'}
  content: dict[str, Any] = {
    'version': '1.0', 'truncation': None, 'padding': None, 'normalizer': None,
    'post_processor': None, 'added_tokens': [
      {'id': i, 'content': token, 'single_word': False, 'lstrip': False, 'rstrip': False,
       'normalized': False, 'special': of_type != _OWN}
      for i, (token, of_type) in enumerate(zip(tokens, types, strict=True))
      if of_type in (_UNKNOWN, _CONTROL, _OWN)]}
  model = {'type': 'BPE', 'vocab': ids, 'dropout': None, 'unk_token': None, 'fuse_unk': False,
           'continuing_subword_prefix': None, 'end_of_word_suffix': None, 'byte_fallback': False,
           'ignore_merges': False}
  content |= readers[kind](path, fields, ids, types, model)
  begins = kind == 'llama' or fields.get('tokenizer.ggml.pre') == 'llama-bpe'
  if fields.get('tokenizer.ggml.add_bos_token', begins):
    first = fields['tokenizer.ggml.bos_token_id']
    text, begin = {'Sequence': {'id': 'A', 'type_id': 0}}, {
      'SpecialToken': {'id': tokens[first], 'type_id': 0}}
    content['post_processor'] = {
      'type': 'TemplateProcessing', 'single': [begin, text], 'pair': [begin, text, {
        'Sequence': {'id': 'B', 'type_id': 1}}], 'special_tokens': {tokens[first]: {
          'id': tokens[first], 'ids': [first], 'tokens': [tokens[first]]}}}
  return content


def _tokenizer_config(fields) -> dict[str, Any]:
  """Content of a tokenizer_config.json."""
  tokens, found = fields['tokenizer.ggml.tokens'], {'tokenizer_class': 'PreTrainedTokenizerFast'}
  for role, theirs in (('bos', 'bos'), ('eos', 'eos'), ('unk', 'unknown'), ('pad', 'padding')):
    i = fields.get(f'tokenizer.ggml.{theirs}_token_id')
    if i is not None and i < len(tokens):
      found[f'{role}_token'] = tokens[i]
  template = fields.get('tokenizer.chat_template')
  return found if template is None else found | {'chat_template': template}


def _byte_level(path, fields, ids, types, model):
  """Merges are in the file, the separation into words is a name."""
  # Files without the name are older than the names.
  words = fields.get('tokenizer.ggml.pre', {'gpt2': 'gpt-2'}.get(
    fields['general.architecture'], 'default'))
  if words not in _BYTE_LEVEL:
    raise UserError(f"{path}: the separation of words '{words}' (tokenizer.ggml.pre) is not "
                    f"supported, only {', '.join(_BYTE_LEVEL)}")
  before, normalizer, whole = _BYTE_LEVEL[words]
  merges = [merge.split(' ') for merge in fields['tokenizer.ggml.merges']]
  return {'pre_tokenizer': before, 'normalizer': normalizer, 'decoder': _BYTES,
          'model': model | {'merges': merges, 'ignore_merges': whole}}


def _sentence_piece(path, fields, ids: Mapping[str, int], types, model):
  """The file has scores for merges: each cut of a piece into two is one, by the piece's score."""
  scores = fields['tokenizer.ggml.scores']
  merges = [(-scores[i], ids[token[:cut]], ids[token[cut:]], token[:cut], token[cut:])
            for token, i in ids.items() if types[i] == _ORDINARY for cut in range(1, len(token))
            if token[:cut] in ids and token[cut:] in ids]
  merges.sort(key=lambda merge: merge[:3])
  unknown = fields.get('tokenizer.ggml.unknown_token_id')
  if unknown is None:
    unknown = types.index(_UNKNOWN)
  begins = bool(fields.get('tokenizer.ggml.add_space_prefix', True))  # every text, by a space
  replace = {'type': 'Replace', 'pattern': {'String': ' '}, 'content': _SPACE}
  return {
    'normalizer': {'type': 'Sequence', 'normalizers': [
      *[{'type': 'Prepend', 'prepend': _SPACE}] * begins, replace]},
    'pre_tokenizer': None,
    'decoder': {'type': 'Sequence', 'decoders': [
      {'type': 'Replace', 'pattern': {'String': _SPACE}, 'content': ' '}, {'type': 'ByteFallback'},
      {'type': 'Fuse'}, *[{'type': 'Strip', 'content': ' ', 'start': 1, 'stop': 0}] * begins]},
    'model': model | {
      'merges': [list(merge[3:]) for merge in merges],
      'byte_fallback': True, 'fuse_unk': True,
      'unk_token': fields['tokenizer.ggml.tokens'][unknown]}}
