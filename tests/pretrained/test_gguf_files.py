"""GGUF files, written by llama.cpp's package from golden folders, beside those folders."""

import json
import pathlib
import shutil

import jax
import numpy as np
import pytest
import tokenizers
from golden_models import rewrite, same, unloadable, vocab_size
from safetensors.numpy import load_file, save_file

from fairjax.pretrained import load_pretrained
from fairjax.pretrained.checkpoint import open_model
from fairjax.pretrained.gguf_files import open_gguf
from fairjax.pretrained.tensor_files import weight_files

gguf = pytest.importorskip('gguf')

GOLDEN = pathlib.Path(__file__).parents[1] / 'golden'
ARCHITECTURES = ('gpt2', 'llama', 'qwen2', 'qwen3', 'gemma2', 'gemma3')
KINDS = gguf.GGMLQuantizationType
TEXTS = ["The town isn't 3 miles away.", ' two  spaces', 'Æther, 東京!', '']


def permuted(rows, heads):
  """As llama.cpp's converter turns queries and keys."""
  halves = rows.reshape(heads, 2, -1, *rows.shape[1:])
  return halves.swapaxes(1, 2).reshape(rows.shape)


def write(folder, path, *, change=lambda tensors: tensors, kind=KINDS.F32, spm=False,
          more=lambda writer: None):
  """The file of a golden folder, as llama.cpp's converter makes it."""
  c = json.loads((folder / 'config.json').read_text())
  name = c['model_type'].removesuffix('_text')
  writer = gguf.GGUFWriter(path, name)
  more(writer)
  gpt2, gemma = name == 'gpt2', name.startswith('gemma')
  heads = c['n_head' if gpt2 else 'num_attention_heads']
  layers = c['n_layer' if gpt2 else 'num_hidden_layers']
  writer.add_context_length(c['n_positions' if gpt2 else 'max_position_embeddings'])
  writer.add_embedding_length(c['n_embd' if gpt2 else 'hidden_size'])
  writer.add_block_count(layers)
  writer.add_feed_forward_length(
    (c.get('n_inner') or 4 * c['n_embd']) if gpt2 else c['intermediate_size'])
  writer.add_head_count(heads)
  if gpt2:
    writer.add_layer_norm_eps(c['layer_norm_epsilon'])
  else:
    rope = c['rope_parameters']
    writer.add_head_count_kv(c['num_key_value_heads'])
    if 'head_dim' in c:
      writer.add_key_length(c['head_dim'])
    writer.add_layer_norm_rms_eps(c['rms_norm_eps'])
    writer.add_rope_freq_base(rope.get('full_attention', rope)['rope_theta'])
  if gemma:
    writer.add_sliding_window(c['sliding_window'])
  if name == 'gemma2':
    writer.add_attn_logit_softcapping(c['attn_logit_softcapping'])
    writer.add_final_logit_softcapping(c['final_logit_softcapping'])
  (write_sentence_piece if spm else write_bytes)(writer, folder)
  names = gguf.get_tensor_name_map(
    {v: k for k, v in gguf.MODEL_ARCH_NAMES.items()}[name], layers)
  found = {}
  for theirs, value in load_file(folder / 'model.safetensors').items():
    if gemma and theirs.endswith('norm.weight'):
      value = value + 1
    if name == 'llama' and ('q_proj' in theirs or 'k_proj' in theirs):
      value = permuted(value, heads if 'q_proj' in theirs else c['num_key_value_heads'])
    if gpt2 and '.h.' in theirs and value.ndim == 2:
      value = value.T
    found[names.get_name(theirs, try_suffixes=('.weight', '.bias'))] = value
  for ours, value in change(found).items():
    of_kind = kind if value.ndim > 1 or kind == KINDS.BF16 else KINDS.F32
    writer.add_tensor(ours, gguf.quants.quantize(
      np.ascontiguousarray(value, np.float32), of_kind), raw_dtype=of_kind)
  writer.write_header_to_file()
  writer.write_kv_data_to_file()
  writer.write_tensors_to_file()
  writer.close()
  return path


def write_bytes(writer, folder):
  """The vocabulary of tokenizer.json, byte-level BPE."""
  content = json.loads((folder / 'tokenizer.json').read_text(encoding='utf-8'))
  vocabulary, special = content['model']['vocab'], {a['id'] for a in content['added_tokens']}
  tokens = sorted(vocabulary, key=vocabulary.get)
  writer.add_tokenizer_model('gpt2')
  writer.add_tokenizer_pre('gpt-2')
  writer.add_token_list(tokens)
  writer.add_token_types([3 if i in special else 1 for i in range(len(tokens))])
  writer.add_token_merges([m if isinstance(m, str) else ' '.join(m)
                           for m in content['model']['merges']])
  writer.add_eos_token_id(0)


PIECES = ['<unk>', '<s>', '</s>', *(f'<0x{i:02X}>' for i in range(256)), '\u2581', 't', 'o', 'n',
          'w', 'T', 'h', 'e', '\u2581t', 'to', 'wn', '\u2581to', '\u2581town', '\u2581T', 'he',
          '\u2581The']


def write_sentence_piece(writer, folder):
  """Pieces with scores; every text begins with <s> and a space."""
  writer.add_tokenizer_model('llama')
  writer.add_token_list(PIECES)
  writer.add_token_types([2, 3, 3, *[6] * 256, *[1] * (len(PIECES) - 259)])
  writer.add_token_scores([0.0] * 259 + [-float(i) for i in range(len(PIECES) - 259)])
  writer.add_bos_token_id(1)
  writer.add_eos_token_id(2)
  writer.add_unk_token_id(0)


def stored_names(folder):
  return {name for path in weight_files(folder) for name in load_file(path)}


def byte_folder(name, found):
  """A golden folder with a tokenizer of bytes; its tables get the rows that this needs."""
  shutil.copytree(GOLDEN / 'decoders' / name, found)
  shutil.copy(GOLDEN / 'pretrained' / 'gpt2' / 'tokenizer.json', found)
  size = vocab_size('gpt2')
  rewrite(found / 'config.json', lambda c: c.update(eos_token_id=0, vocab_size=size) or (
    c.get('query_pre_attn_scalar') and c.update(query_pre_attn_scalar=c['head_dim'])) or (
    name == 'gemma3' and c.update(layer_types=['sliding_attention'] * 4)) or None)
  save_file({k: np.resize(v, (size, *v.shape[1:])) if len(v) == 61 else v for k, v in load_file(
    found / 'model.safetensors').items()}, found / 'model.safetensors')
  return found


@pytest.fixture
def make(tmp_path):
  return lambda name: byte_folder(name, tmp_path / name)


@pytest.mark.parametrize('name', ARCHITECTURES)
def test_a_file_is_the_folder_that_it_was_made_of(name, make, tmp_path):
  folder = make(name)
  wanted, found = (load_pretrained(path, 'lm') for path in (
    folder, write(folder, tmp_path / f'{name}.gguf')))
  assert found.arch == wanted.arch and found.name == name
  close = 1e-7 if name.startswith('gemma') else 0  # 1 + w - 1 is rounded
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=close),
               found.params, wanted.params)
  # The folder that is written of the file is the model of the file.
  out = tmp_path / 'out'
  out.mkdir()
  open_model(tmp_path / f'{name}.gguf').write(found.params, out, most=30_000)
  again = load_pretrained(out, 'lm')
  same(again.params, found.params)
  assert again.arch == found.arch
  assert again.files.vocabulary().end_ids == found.files.vocabulary().end_ids
  assert stored_names(out) == stored_names(folder)
  # A cap of 0, for none, would be divided by in transformers.
  caps = json.loads((out / 'config.json').read_text())
  assert caps.get('attn_logit_softcapping') != 0 != caps.get('final_logit_softcapping')
  ids = [m.tokenizer.encode_batch(TEXTS) for m in (found, wanted, again)]
  assert [e.ids for e in ids[0]] == [e.ids for e in ids[1]] == [e.ids for e in ids[2]]


@pytest.mark.parametrize('kind', ['F16', 'BF16', 'Q8_0', 'Q4_1'])
def test_slices_of_quantised_tensors_are_those_of_the_whole(kind, make, tmp_path):
  kind, rng = KINDS[kind], np.random.default_rng(0)
  folder = make('llama')

  def wider(tensors):  # blocks hold 32 numbers
    held.update({name: rng.normal(size=(x.shape[0], 32)) if x.ndim == 2 else x
                 for name, x in tensors.items()})
    return held

  held = {}
  path = write(folder, tmp_path / 'x.gguf', kind=kind, change=wider)
  for name in ('embed_tokens', 'layers.1.self_attn.v_proj', 'layers.1.self_attn.q_proj'):
    tensor = open_gguf(path).tensors[f'model.{name}.weight']
    whole = tensor.whole()
    np.testing.assert_array_equal(tensor.read((slice(6, 12), slice(3, 9))), whole[6:12, 3:9])
  norm = open_gguf(path).tensors['model.norm.weight'].read((slice(6, 12),))
  np.testing.assert_allclose(norm, held['output_norm.weight'][6:12], rtol=2 ** -8)
  value = held['token_embd.weight'].astype(np.float32)
  np.testing.assert_array_equal(
    open_gguf(path).tensors['model.embed_tokens.weight'].whole(),
    gguf.quants.dequantize(gguf.quants.quantize(value, kind), kind))


def test_sentence_piece_joins_by_scores_and_begins_texts(make, tmp_path):
  path = write(make('llama'), tmp_path / 'x.gguf', spm=True, change=lambda t: t | {
    'token_embd.weight': np.zeros((len(PIECES), 16), np.float32)})
  tokenizer = load_pretrained(path, 'lm').tokenizer
  encoded = tokenizer.encode('The town é')
  assert encoded.tokens == ['<s>', '\u2581The', '\u2581town', '\u2581', '<0xC3>', '<0xA9>']
  assert tokenizer.decode(encoded.ids) == 'The town é'
  assert isinstance(tokenizer, tokenizers.Tokenizer)
  vocabulary = load_pretrained(path, 'lm').files.vocabulary()
  assert vocabulary.encode('<unk>')[0] == 0 and vocabulary.silent_ids == (0,)


def test_the_rows_of_a_padded_table_are_no_tokens(make, tmp_path, monkeypatch):
  size = vocab_size('gpt2')
  for method, more in (('add_token_list', f'[PAD{size}]'), ('add_token_types', 5)):  # as llama.cpp
    add = getattr(gguf.GGUFWriter, method)
    monkeypatch.setattr(gguf.GGUFWriter, method, lambda writer, found, add=add, more=more: add(
      writer, [*found, more]))
  path = write(make('qwen2'), tmp_path / 'x.gguf', change=lambda tensors: {
    k: np.resize(v, (size + 1, *v.shape[1:])) if len(v) == size else v for k, v in tensors.items()})
  model = load_pretrained(path, 'lm')
  assert model.arch.vocab_size == size + 1 and model.files.vocabulary().silent_ids == (size,)


@pytest.mark.parametrize(('name', 'left_out', 'more', 'expected'), [
  ('gemma2', ('sliding_window', 'attn_logit_softcapping', 'final_logit_softcapping'), None,
   {'windows': (4096, 0) * 2, 'attention_cap': 50.0, 'logit_cap': 30.0}),
  ('gemma3', ('sliding_window',), None, {'windows': ()}),
  ('gemma3', (), lambda w: w.add_uint32('gemma3.attention.sliding_window_pattern', 2),
   {'windows': (5, 0, 5, 0)}),
  ('gemma2', (), lambda w: w.add_array(
    'gemma2.attention.sliding_window_pattern', [False, False, True, True]),
   {'windows': (0, 0, 5, 5)}),
  ('llama', (), lambda w: w.add_float32('llama.rope.scale_linear', 4.0), {'rope_scaling': (4.0,)})])
def test_what_a_file_leaves_out_is_as_in_llama_cpp(
    name, left_out, more, expected, make, tmp_path, monkeypatch):
  for key in left_out:
    monkeypatch.setattr(gguf.GGUFWriter, f'add_{key}', lambda *_: None)
  path = write(make(name), tmp_path / 'x.gguf', more=more or (lambda writer: None))
  model, out = load_pretrained(path, 'lm'), tmp_path / 'out'
  out.mkdir()
  model.files.write(model.params, out)
  for arch in (model.arch, load_pretrained(out, 'lm').arch):
    assert {field: getattr(arch, field) for field in expected} == expected


def test_an_output_of_gpt2_that_is_not_its_table_is_the_output(make, tmp_path):
  folder = make('gpt2')
  tied, other = (load_pretrained(write(
    folder, tmp_path / f'{times}.gguf', change=lambda t, times=times: t | {
      'output.weight': times * t['token_embd.weight']}), 'lm') for times in (1, 2))
  assert tied.arch.tied and not other.arch.tied
  np.testing.assert_array_equal(other.params['output'], 2 * other.params['embedding'])


def test_the_scaling_of_llama_3_is_found_by_its_factors(make, tmp_path):
  folder = make('llama')
  low, high, positions, factor = 1.0, 4.0, 8192, 8.0
  waves = 2 * np.pi * 10000.0 ** (np.arange(3) / 3)  # of 6 dimensions
  smooth = (positions / waves - low) / (high - low)
  factors = np.where(waves < positions / high, 1.0, np.where(
    waves > positions / low, factor, 1 / ((1 - smooth) / factor + smooth)))
  freqs = {'rope_freqs.weight': factors.astype(np.float32)}
  path = write(folder, tmp_path / 'x.gguf', change=lambda t: t | freqs)
  assert load_pretrained(path, 'lm').arch.rope_scaling == (factor, low, high, positions)
  freqs['rope_freqs.weight'] = factors.astype(np.float32) * 3
  path = write(folder, tmp_path / 'y.gguf', change=lambda t: t | freqs)
  unloadable(path, 'lm', 'not the rope scaling of Llama 3.1 or 3.2')


@pytest.mark.parametrize(('damage', 'words'), [
  (lambda f: f[:len(f) // 2], 'cannot be read as GGUF'),
  (lambda f: bytes(b ^ 0x5A for b in f), 'cannot be read as GGUF'),
  (lambda f: f.replace(b'general.architecture\x08\0\0\0\x05\0\0\0\0\0\0\0llama',
                       b'general.architecture\x08\0\0\0\x05\0\0\0\0\0\0\0mamba'),
   "architecture 'mamba' is not supported, only gpt2, llama"),
  (lambda f: f.replace(b'gpt-2', b'gpt-9'), r"words 'gpt-9' \(tokenizer.ggml.pre\)"),
  (lambda f: f.replace(b'blk.3.attn_q.weight', b'blk.3.attn_x.weight'),
   'blk.3.attn_q.weight is missing; blk.3.attn_x.weight is unknown')])
def test_what_cannot_be_read_is_named(damage, words, make, tmp_path):
  path = write(make('llama'), tmp_path / 'x.gguf')
  whole = path.read_bytes()
  path.write_bytes(damage(whole))
  assert path.read_bytes() != whole
  unloadable(path, 'lm', words)


@pytest.mark.parametrize(('more', 'words'), [
  (lambda w: w.add_uint16('split.count', 3), 'is one of 3 parts'),
  (lambda w: w.add_type('adapter'), 'is no model but of the type adapter'),
  (lambda w: w.add_rope_dimension_count(2), 'llama.rope.dimension_count=2 is not .*, only 6$'),
  (lambda w: w.add_rope_scaling_type(gguf.RopeScalingType.YARN), "'yarn' is .* none and linear$"),
  (lambda w: setattr(w, 'add_tokenizer_pre', lambda name: None), "words 'default'.* qwen2$"),
  (lambda w: setattr(w, 'endianess', gguf.GGUFEndian.BIG), 'big-endian')])
def test_what_would_be_read_wrongly_is_refused_and_is_no_damage(more, words, make, tmp_path):
  unloadable(write(make('llama'), tmp_path / 'x.gguf', more=more), 'lm', words)


def test_a_type_that_cannot_be_turned_into_numbers_is_refused(make, tmp_path):
  path = write(make('llama'), tmp_path / 'x.gguf')
  reader = gguf.GGUFReader(path, 'r+')
  field = next(t for t in reader.tensors if t.name == 'token_embd.weight').field
  field.parts[4][0] = KINDS.I8  # the parts of a tensor: length, name, axes, shape, type, offset
  reader.data.flush()
  unloadable(path, 'lm', 'has the type I8, which is not supported, only F32, F16')
