"""Model folders as people publish them: padded tables, added tokens, wrappers, caches, adapters."""

import json
import pathlib
import re
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from fairjax.cli import main as cli
from fairjax.errors import UserError, unknown_name
from fairjax.gender.scored_models import open_language_model
from fairjax.generate.sampler import sample_continuations
from fairjax.model.decoding import continuation_logits
from fairjax.pretrained import (
  GPT2Decoder,
  SentenceEncoder,
  TokenizerVocabulary,
  encode_texts,
  folder_name,
  lm_logits,
  load_pretrained,
)
from fairjax.pretrained.checkpoint import to_tensors
from fairjax.pretrained.masked_rows import special_tokens

GOLDEN = pathlib.Path(__file__).parents[1] / 'golden' / 'pretrained'
MODELS = [('gpt2', 'lm'), ('bert_mlm', 'mlm'), ('bert_classifier', 'classifier'),
          ('albert_mlm', 'mlm'), ('albert_classifier', 'classifier')]
MORE = 14


@pytest.fixture
def copy(tmp_path):
  """Copies a golden model, changes its config (None: without the field) and its tensors."""
  def copy(name, change=dict, **config):
    folder = tmp_path / f'copy-{name}'
    shutil.copytree(GOLDEN / name, folder, dirs_exist_ok=True)
    values = json.loads((folder / 'config.json').read_text()) | config
    (folder / 'config.json').write_text(
      json.dumps({k: v for k, v in values.items() if v is not None}))
    write_tensors(folder / 'model.safetensors', change(load_file(folder / 'model.safetensors')))
    return folder
  return copy


def write_tensors(path, tensors):
  save_file({k: np.ascontiguousarray(v) for k, v in tensors.items()}, path)


def vocab_size(name):
  return json.loads((GOLDEN / name / 'config.json').read_text())['vocab_size']


def padded(tensors, size):
  """Tensors whose table has `MORE` more rows, so large that they would win wherever they may."""
  grown = {}
  for name, tensor in tensors.items():
    if tensor.shape[:1] == (size,):
      tensor = np.concatenate([tensor, np.full((MORE, *tensor.shape[1:]), 30, tensor.dtype)])
    grown[name] = tensor
  return grown


def add_token(folder, size, content='[NEW]'):
  """An added token that the model has no embedding of."""
  path = folder / 'tokenizer.json'
  values = json.loads(path.read_text(encoding='utf-8'))
  values['added_tokens'].append({
    'id': size, 'content': content, 'special': True, 'normalized': False, 'single_word': False,
    'lstrip': False, 'rstrip': False})
  path.write_text(json.dumps(values), encoding='utf-8')


def same(ours, other):
  assert jax.tree.structure(ours) == jax.tree.structure(other)
  jax.tree.map(np.testing.assert_array_equal, ours, other)


# ------------------------------------------------------------------- padded tables, added tokens

@pytest.mark.parametrize(('name', 'head'), MODELS)
def test_a_padded_table_loads_with_a_line(copy, name, head, capsys):
  size = vocab_size(name)
  folder = copy(name, lambda t: padded(t, size), vocab_size=size + MORE)
  model, plain = load_pretrained(folder, head), load_pretrained(GOLDEN / name, head)
  assert model.params['embeddings']['word'].shape[0] == size + MORE
  np.testing.assert_array_equal(model.params['embeddings']['word'][:size],
                                plain.params['embeddings']['word'])
  assert model.unused_ids == tuple(range(size, size + MORE)) and plain.unused_ids == ()
  line = capsys.readouterr().err
  assert f'has {size} tokens, the model {size + MORE} embeddings: {MORE} of them' in line
  assert line.count('\n') == 1
  same(model.tokenizer.encode('the town').ids, plain.tokenizer.encode('the town').ids)


@pytest.mark.parametrize('coupled', [True, False])
def test_rows_of_no_token_are_never_sampled_and_the_others_as_before(copy, coupled):
  size = vocab_size('gpt2')
  model = load_pretrained(copy('gpt2', lambda t: padded(t, size), vocab_size=size + MORE), 'lm')
  plain = load_pretrained(GOLDEN / 'gpt2', 'lm')
  prefixes, rest = jnp.array([[5, 6, 7]]), jnp.arange(8, 14)[None, None]
  decoder = GPT2Decoder(model.arch, 'float32', model.unused_ids)
  params = jax.tree.map(jnp.asarray, model.params)
  found = np.asarray(
    continuation_logits(decoder, params, prefixes, jnp.array([3]), rest))
  assert np.isneginf(found[..., size:]).all()
  text = np.concatenate([prefixes, rest[0]], axis=1)
  expected = np.asarray(lm_logits(plain.params, plain.arch, text))[:, 2:-1]
  np.testing.assert_allclose(found[0, :, :, :size], expected, atol=1e-5)
  # As the reference library has them: the likelihood of a text counts what the table holds.
  whole = np.asarray(lm_logits(model.params, model.arch, text))
  assert np.isfinite(whole).all() and np.abs(whole[..., size:]).max() > np.abs(expected).max()
  for temperature in (1.0, 100.0):
    tokens, _ = sample_continuations(
      model.params, decoder, [[5, 6], [7, 8]], template=0, samples=range(40), seed=1,
      max_new_tokens=6, temperature=temperature, eos_id=0, coupled=coupled, batch_size=40)
    assert tokens.max() < size
  tokens, _ = sample_continuations(
    model.params, GPT2Decoder(model.arch), [[5, 6], [7, 8]], template=0, samples=range(40), seed=1,
    max_new_tokens=6, temperature=100.0, eos_id=0, coupled=coupled, batch_size=40)
  assert tokens.max() >= size  # what the mask keeps out


def test_a_padded_gpt2_is_sampled_by_the_verb(copy, tmp_path, capsys):
  size = vocab_size('gpt2')
  folder = copy('gpt2', lambda t: padded(t, size), vocab_size=size + MORE, eos_token_id=0)
  (tmp_path / 'a.yaml').write_text('name: c\nvalues: [Bob, Ann]\ntemplates: ["{value} is"]\n')
  assert cli.main(['sample', f'--pretrained={folder}', f'--attribute={tmp_path}/a.yaml',
                   f'--output={tmp_path}/o.jsonl', '--samples=3', '--max-new-tokens=4']) == 0
  assert 'KL of the next token' in capsys.readouterr().out
  plain = copy('gpt2', eos_token_id=0)  # KL is that of the table without its padding
  shutil.copytree(plain, tmp_path / 'plain')
  assert cli.main(['sample', f'--pretrained={tmp_path}/plain', f'--attribute={tmp_path}/a.yaml',
                   f'--output={tmp_path}/p.jsonl', '--samples=3', '--max-new-tokens=4']) == 0
  kl = [json.loads((tmp_path / f'{n}.next_token.json').read_text())['next_token_divergence']['kl']
        for n in 'op']
  assert kl[0] == pytest.approx(kl[1], rel=1e-5) and kl[0] > 0


def test_a_padded_row_fills_no_blank_and_replaces_no_piece(copy):
  size = vocab_size('bert_mlm')
  folder = copy('bert_mlm', lambda t: padded(t, size), vocab_size=size + MORE)
  fills = open_language_model(folder).fill(['the [BLANK] was happy .'], top=5)
  plain = open_language_model(GOLDEN / 'bert_mlm').fill(['the [BLANK] was happy .'], top=5)
  assert [f.word for f in fills[0]] == [f.word for f in plain[0]]
  model = load_pretrained(folder, 'mlm')
  special = special_tokens(model.tokenizer, pad_id=0, where='x', vocab_size=size + MORE)
  assert set(range(size, size + MORE)) <= special.all


@pytest.mark.parametrize(('name', 'head'), MODELS)
def test_added_tokens_without_an_embedding_load_and_are_refused_where_a_text_has_them(
    copy, name, head, capsys):
  size = vocab_size(name)
  folder = copy(name, pad_token_id=size)
  add_token(folder, size)
  model, plain = load_pretrained(folder, head), load_pretrained(GOLDEN / name, head)
  line = capsys.readouterr().err
  assert "1 added tokens have none ('[NEW]'): a text that holds one is refused" in line
  same(model.params, plain.params)
  assert model.arch.pad_id < size
  text = 'the town was happy .'
  same(encode_texts(model.tokenizer, [text], max_length=20).ids,
       encode_texts(plain.tokenizer, [text], max_length=20).ids)
  refused = rf"text 2 of 2 holds '\[NEW\]', token {size} .* has {size} embeddings"
  with pytest.raises(UserError, match=refused):
    encode_texts(model.tokenizer, [text, 'the [NEW] town'], max_length=20)
  assert model.tokenizer.token_to_id('[NEW]') is None
  assert size not in model.tokenizer.get_added_tokens_decoder()


def test_every_way_into_a_model_refuses_a_token_without_an_embedding(copy):
  size = vocab_size('gpt2')
  folder = copy('gpt2', eos_token_id=0)
  add_token(folder, size, '[PAD]')
  vocabulary = TokenizerVocabulary(load_pretrained(folder, 'lm'))
  for call in (lambda: vocabulary.encode('a [PAD] b'),
               lambda: open_language_model(folder).log_probs(['a [PAD] b']),
               lambda: open_language_model(folder).token_features(['a [PAD] b'])):
    with pytest.raises(UserError, match=r"holds '\[PAD\]'"):
      call()
  assert len(vocabulary.surfaces) == size
  folder = copy('bert_mlm')
  add_token(folder, vocab_size('bert_mlm'))
  for call in (lambda: open_language_model(folder).fill(['the [BLANK] [NEW] .'], top=2),
               lambda: SentenceEncoder(folder).encode(['[NEW]'])):
    with pytest.raises(UserError, match=r"holds '\[NEW\]'"):
      call()


# ---------------------------------------------------------------------------- prefixes, configs

def renamed(prefix, *, without=''):
  return lambda t: {prefix + k.removeprefix(without): v for k, v in t.items()}


@pytest.mark.parametrize(('name', 'head'), MODELS)
@pytest.mark.parametrize('prefix', ['_orig_mod.', 'module.', 'model.', 'module._orig_mod.',
                                    '_orig_mod.module.', 'transformer.', 'bert.',
                                    'base_model.model.', '_forward_module.model.'])
def test_prefixes_of_wrappers_are_taken_off_and_said(copy, name, head, prefix, capsys):
  plain = load_pretrained(GOLDEN / name, head)
  folder = copy(name, renamed(prefix))
  same(load_pretrained(folder, head).params, plain.params)
  line = capsys.readouterr().err
  assert re.search(rf'{re.escape(str(folder))}: the prefix {re.escape(prefix)}', line)


def test_a_wrapper_inside_a_name_and_two_models_in_one_file(copy, capsys):
  plain = load_pretrained(GOLDEN / 'gpt2', 'lm')
  folder = copy('gpt2', lambda t: {k.replace('.attn.', '._orig_mod.attn.'): v
                                   for k, v in t.items()})
  same(load_pretrained(folder, 'lm').params, plain.params)
  assert '_orig_mod' in capsys.readouterr().err
  folder = copy('gpt2', lambda t: t | renamed('module.')(t))
  with pytest.raises(UserError, match='twice, below different prefixes'):
    load_pretrained(folder, 'lm')
  load_pretrained(GOLDEN / 'gpt2', 'lm')
  assert capsys.readouterr().err == ''  # the model's own prefix is no wrapper


@pytest.mark.parametrize(('name', 'head'), MODELS)
@pytest.mark.parametrize('architectures', [True, False])
def test_a_config_without_model_type_is_recognised(copy, name, head, architectures, capsys):
  fields = {'model_type': None} | ({} if architectures else {'architectures': None})
  folder = copy(name, **fields)
  model, plain = load_pretrained(folder, head), load_pretrained(GOLDEN / name, head)
  same(model.params, plain.params)
  assert model.arch == plain.arch and model.config['model_type'] == plain.arch.kind
  by = 'its architecture' if architectures else 'the names of its fields'
  assert f'has no model_type: it is read as {plain.arch.kind}, by {by}' in capsys.readouterr().err


def test_verbs_recognise_a_config_without_model_type(copy, tmp_path, capsys):
  folder = copy('bert_mlm', model_type=None)
  assert open_language_model(folder).kind == 'masked'
  assert open_language_model(copy('gpt2', model_type=None, eos_token_id=0)).kind == 'causal'
  (tmp_path / 't.txt').write_text('the town was happy .\n' * 40)
  assert cli.main(['masked-lm', 'train', f'--data={tmp_path}/t.txt', f'--workdir={tmp_path}/w',
                   f'--init={folder}', '--steps=1', '--batch_size=8', '--eval_every=1']) == 0
  assert json.loads((tmp_path / 'w' / 'config.json').read_text())['model_type'] == 'bert'
  (tmp_path / 'w' / 'data' / 'vocabulary').mkdir(parents=True, exist_ok=True)  # of its own data
  assert open_language_model(tmp_path / 'w').kind == 'masked'


@pytest.mark.parametrize(('fields', 'message'), [
  ({'model_type': 'opt'}, "unknown model_type 'opt': fairjax reads the kinds albert, bert, gpt2"),
  ({'model_type': 'gptj'}, "unknown model_type 'gptj'"),
  ({'model_type': None, 'architectures': ['RobertaForMaskedLM']}, "'RobertaForMaskedLM' is not"),
  ({'model_type': None, 'architectures': ['BertweetModel', 'x']}, None),
  ({'model_type': None, 'architectures': None, 'hidden_size': None}, 'not the fields of any kind'),
  ({'quantization_config': {'quant_method': 'bitsandbytes', 'load_in_4bit': True}},
   r'quantization_config \(bitsandbytes, load_in_4bit=True\): quantised weights are not read'),
  ({'quantization_config': {'quant_method': 'awq', 'bits': 4}}, r'\(awq, bits=4\)'),
])
def test_other_kinds_are_named_and_nothing_is_guessed(copy, fields, message):
  folder = copy('bert_mlm', **fields)
  if message is None:
    return
  with pytest.raises(UserError, match=message) as e:
    load_pretrained(folder, 'mlm')
  assert 'did you mean' not in str(e.value) and '\n' not in str(e.value)


# ------------------------------------------------------------------------ folders, other formats

def cache(root, name, *models, main=None):
  """A folder as the Hub's client keeps it: blobs, snapshots of links, refs."""
  folder = root / f'models--org--{name}'
  (folder / 'blobs').mkdir(parents=True)
  for number, model in enumerate(models):
    snapshot = folder / 'snapshots' / f'{number}abc'
    snapshot.mkdir(parents=True)
    for path in (GOLDEN / model).iterdir():
      blob = folder / 'blobs' / f'{number}-{path.name}'
      shutil.copy(path, blob)
      (snapshot / path.name).symlink_to(f'../../blobs/{blob.name}')
  if main is not None:
    (folder / 'refs').mkdir()
    (folder / 'refs' / 'main').write_text(main)
  return folder


def test_a_cache_folder_with_one_snapshot_is_read(tmp_path, capsys):
  folder = cache(tmp_path / 'hub', 'gpt', 'gpt2')
  plain = load_pretrained(GOLDEN / 'gpt2', 'lm')
  for given in (folder, folder / 'snapshots', folder / 'snapshots' / '0abc', tmp_path / 'hub',
                tmp_path):
    model = load_pretrained(given, 'lm')
    same(model.params, plain.params)
    assert model.name == folder_name(given) if 'models--' in str(given) else 'gpt'
    assert model.name == 'gpt' and model.fingerprint == plain.fingerprint
    said = capsys.readouterr().err
    assert ('is a folder of a cache: its snapshot' in said) == (given.name != '0abc')
  encoders = cache(tmp_path / 'e', 'minilm', 'bert_mlm')
  np.testing.assert_array_equal(SentenceEncoder(encoders).encode(['the town']),
                                SentenceEncoder(GOLDEN / 'bert_mlm').encode(['the town']))
  assert open_language_model(encoders).name == 'minilm'


def test_a_cache_folder_with_several_snapshots_names_them(tmp_path):
  two = cache(tmp_path / 'a', 'two', 'gpt2', 'gpt2_inner')
  with pytest.raises(UserError, match='holds 2 snapshots: name the folder of one, like .*0abc'):
    load_pretrained(two, 'lm')
  main = cache(tmp_path / 'b', 'two', 'gpt2', 'gpt2_inner', main='1abc\n')
  same(load_pretrained(main, 'lm').params, load_pretrained(GOLDEN / 'gpt2_inner', 'lm').params)
  cache(tmp_path / 'b', 'another', 'gpt2')
  with pytest.raises(UserError, match='is a cache of 2 models: name the folder of one'):
    load_pretrained(tmp_path / 'b', 'lm')
  none = cache(tmp_path / 'c', 'none')
  (none / 'snapshots').mkdir()
  with pytest.raises(UserError, match='holds no snapshot with a config.json: download'):
    load_pretrained(none, 'lm')


ADAPTER = '{"peft_type": "LORA", "base_model_name_or_path": "gpt2", "r": 8}'


@pytest.mark.parametrize(('files', 'message'), [
  ({'adapter_config.json': ADAPTER, 'adapter_model.safetensors': ''},
   r'is an adapter \(LORA\) of gpt2, not a whole model: merge it .*merge_and_unload'),
  ({'model-q4.gguf': ''}, 'model-q4.gguf is in the format GGUF, which is not read'),
  ({'checkpoint-5/config.json': '{}'}, 'checkpoint-5 holds one: give the folder of the model'),
  ({'README.md': ''}, 'a model directory holds config.json, model.safetensors and its tokenizer'),
])
def test_a_folder_without_config_is_named_as_what_it_is(tmp_path, files, message):
  for name, text in files.items():
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(text)
  for call in (lambda: load_pretrained(tmp_path, 'lm'), lambda: open_language_model(tmp_path)):
    with pytest.raises(UserError, match=message) as e:
      call()
    assert '\n' not in str(e.value)


@pytest.mark.parametrize(('name', 'message'), [
  ('pytorch_model.bin', 'pytorch_model.bin is a pickle and is not read: convert it'),
  ('pytorch_model-00001-of-00002.bin', 'is a pickle and is not read'),
  ('model.ckpt', 'is a pickle'), ('tf_model.h5', 'tf_model.h5 is of TensorFlow'),
  ('flax_model.msgpack', 'of Flax'), ('model.gguf', 'GGUF'), ('model.onnx', 'ONNX'),
  ('adapter_model.safetensors', 'is an adapter'),
  ('weights.safetensors', 'rename weights.safetensors to model.safetensors'),
  ('model-00001-of-00002.safetensors', r'holds 1 shards of 2, without \[2\]: download'),
])
def test_weights_in_another_form_are_named(copy, name, message):
  folder = copy('bert_mlm')
  (folder / 'model.safetensors').rename(folder / name)
  with pytest.raises(UserError, match=message):
    load_pretrained(folder, 'mlm')


def test_shards_without_an_index_are_read(copy):
  folder = copy('bert_mlm')
  tensors = load_file(folder / 'model.safetensors')
  (folder / 'model.safetensors').unlink()
  names = sorted(tensors)
  for number, part in enumerate((names[::2], names[1::2]), 1):
    write_tensors(folder / f'model-{number:05d}-of-00002.safetensors',
                  {k: tensors[k] for k in part})
  same(load_pretrained(folder, 'mlm').params, load_pretrained(GOLDEN / 'bert_mlm', 'mlm').params)


@pytest.mark.parametrize('kind', ['F8_E4M3', 'F8_E5M2'])
def test_types_that_numpy_lacks_are_refused_by_name(copy, kind):
  folder = copy('gpt2')
  tensors = load_file(folder / 'model.safetensors')
  header, content = {}, b''
  for name, tensor in tensors.items():
    header[name] = {'dtype': kind, 'shape': list(tensor.shape),
                    'data_offsets': [len(content), len(content) + tensor.size]}
    content += bytes(tensor.size)
  text = json.dumps(header).encode()
  (folder / 'model.safetensors').write_bytes(len(text).to_bytes(8, 'little') + text + content)
  with pytest.raises(UserError, match=f'stored as {kind}: quantised weights are not read: take'):
    load_pretrained(folder, 'lm')


def test_packed_weights_are_refused_by_name(copy):
  folder = copy('bert_mlm', lambda t: {
    k.replace('dense.weight', 'dense.qweight'): (
      v.astype(np.int32) if 'dense.weight' in k else v) for k, v in t.items()})
  with pytest.raises(UserError, match='quantised'):
    load_pretrained(folder, 'mlm')


@pytest.mark.parametrize('file', [
  'config.json', 'tokenizer.json', 'model.safetensors', 'vocab.txt'])
def test_a_pointer_of_git_lfs_is_named_in_every_file(copy, file):
  folder = copy('bert_mlm')
  (folder / file).write_text('version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n')
  with pytest.raises(UserError, match=f'{file} is a Git LFS pointer.*git lfs pull'):
    load_pretrained(folder, 'mlm')


def test_a_file_in_the_place_of_a_folder_and_a_byte_order_mark(copy):
  folder = copy('gpt2')
  with pytest.raises(UserError, match='is a file: give the folder of config.json'):
    load_pretrained(folder / 'model.safetensors', 'lm')
  config = folder / 'config.json'
  config.write_bytes(b'\xef\xbb\xbf' + config.read_bytes())
  same(load_pretrained(folder, 'lm').params, load_pretrained(GOLDEN / 'gpt2', 'lm').params)


def test_what_was_read_is_written_without_wrappers(copy):
  model = load_pretrained(copy('gpt2', renamed('module._orig_mod.')), 'lm')
  assert to_tensors(model.params, model.arch, 'lm').keys() == load_file(
    GOLDEN / 'gpt2' / 'model.safetensors').keys()


# ------------------------------------------------------------------------------- did you mean

@pytest.mark.parametrize(('name', 'known', 'offered'), [
  ('vadr', ['opinion', 'vader'], "did you mean 'vader'?"),
  ('trian', ['train', 'run'], "did you mean 'train'?"), ('txt', ['text'], "did you mean 'text'?"),
  ('opt', ['albert', 'bert', 'gpt2'], None), ('color', ['country', 'name'], None),
  ('xyz', ['lm', 'sentiment'], None),
  ('Co\u0302te', ['C\u00f4te', 'Mali'], "it looks like 'C\u00f4te', written with U+0302."),
  ('Ma\u200bli', ['C\u00f4te', 'Mali'], "it looks like 'Mali', written with U+200B."),
  ('Sy\u00a0ria', ['Sy ria'], "it looks like 'Sy ria', written with U+00A0."),
  ('c\u043euntry', ['country'], "it looks like 'country', written with U+043E."),
  ('Malm\u00f8', ['Malm\u00f6'], "did you mean 'Malm\u00f6'?")])
def test_only_near_names_are_offered_and_never_one_that_looks_the_same(name, known, offered):
  text = str(unknown_name('value', name, known))
  assert (offered in text) if offered else ('did you mean' not in text)
  assert ('did you mean' in text) == bool(offered and offered.startswith('did'))
  if offered and offered.startswith('it looks'):
    assert text.split(':')[0].isascii()
