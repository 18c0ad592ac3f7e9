"""Model folders: their variants are read, everything that does not fit is named in one line."""

import json
import re
import shutil

import numpy as np
import pytest
from golden_models import GOLDEN, MODELS, same, unloadable
from safetensors.numpy import load_file

from fairjax.pretrained import SentenceEncoder, folder_name, load_pretrained, mlm_logits
from fairjax.pretrained.checkpoint import to_tensors

pytestmark = pytest.mark.usefixtures('one_device')

BERT, ALBERT, GPT2 = ('bert_mlm', 'mlm'), ('albert_mlm', 'mlm'), ('gpt2', 'lm')
EMBEDDING = 'bert.embeddings.word_embeddings.weight'


def old_norms(tensors):
  return {k.replace('Norm.weight', 'Norm.gamma').replace('Norm.bias', 'Norm.beta'): v
          for k, v in tensors.items()}


def renamed(prefix, without=''):
  return lambda tensors: {prefix + k.removeprefix(without): v for k, v in tensors.items()}


def drop(*names):
  return lambda tensors: {k: v for k, v in tensors.items() if k not in names}


@pytest.mark.parametrize(('model', 'change', 'ignored'), [
  (BERT, old_norms, ()),
  (BERT, renamed('', 'bert.'), ()),
  (ALBERT, renamed('', 'albert.'), ()),
  (BERT, lambda t: t | {'cls.predictions.decoder.weight': t[EMBEDDING],
                        'cls.predictions.decoder.bias': t['cls.predictions.bias']}, ()),
  (BERT, lambda t: drop('cls.predictions.bias')(
    t | {'cls.predictions.decoder.bias': t['cls.predictions.bias']}), ()),
  (BERT, lambda t: t | {'bert.embeddings.position_ids': np.arange(32)[None]},
   ('embeddings.position_ids',)),
  (BERT, lambda t: t | {'bert.pooler.dense.weight': np.ones((16, 16), np.float32),
                        'cls.seq_relationship.bias': np.ones(2, np.float32)},
   ('cls.seq_relationship.bias', 'pooler.dense.weight')),
])
def test_usual_variants_give_the_same_parameters(copy, model, change, ignored):
  name, head = model
  plain = load_pretrained(GOLDEN / name, head)
  assert plain.ignored == ()
  other = load_pretrained(copy(name, change), head)
  same(plain.params, other.params)
  assert other.ignored == ignored and other.fingerprint != plain.fingerprint


def test_untied_decoder_is_a_table_of_its_own(copy):
  table = np.random.default_rng(0).normal(size=(90, 16)).astype(np.float32)
  model = load_pretrained(copy('bert_mlm', lambda t: t | {'cls.predictions.decoder.weight': table},
                               tie_word_embeddings=False), 'mlm')
  np.testing.assert_array_equal(model.params['output']['table'], table)
  hidden = np.random.default_rng(1).normal(size=(1, 2, 16)).astype(np.float32)
  tied = load_pretrained(GOLDEN / 'bert_mlm', 'mlm').params
  assert np.abs(mlm_logits(model.params, model.arch, hidden)
                - mlm_logits(tied, model.arch, hidden)).max() > 0.1


def test_an_index_names_files_beside_it(copy):
  folder = copy('bert_classifier')
  (folder / 'model.safetensors').rename(folder / 'part-1.safetensors')
  place = folder / 'model.safetensors.index.json'
  for content, message in (({'x': 'missing.safetensors'}, 'missing.safetensors.*not in'),
                           ({'x': '../part-1.safetensors'}, r'\.\./part-1\.safetensors.*not in'),
                           ({'x': 3}, 'is no index of weights'), ({}, 'is no index of weights')):
    place.write_text(json.dumps({'weight_map': content}))
    unloadable(folder, 'classifier', message)


@pytest.mark.parametrize(('name', 'head'), MODELS[1:])  # a folder of test_decoders is written, too
def test_written_tensors_are_those_that_were_read(name, head):
  model = load_pretrained(GOLDEN / name, head)
  same(to_tensors(model.params, model.arch, head), load_file(GOLDEN / name / 'model.safetensors'))


@pytest.mark.parametrize(('model', 'config', 'change', 'message'), [
  (BERT, {}, drop('bert.encoder.layer.1.output.dense.bias'),
   r'lacks tensor encoder\.layer\.1\.output\.dense\.bias: .*bert, 3 layers\)'),
  (BERT, {'num_hidden_layers': 4}, dict, 'lacks tensors encoder.layer.3.* and 12 more'),
  (BERT, {'num_hidden_layers': 2}, dict, 'holds tensors encoder.layer.2.* which bert'),
  (BERT, {'intermediate_size': 48}, dict, r'intermediate.* has shape .*40.* needs .*48'),
  (BERT, {}, lambda t: t | {'bert.embeddings.new': np.ones(2, np.float32)},
   r'holds tensor embeddings\.new, which'),
  (BERT, {}, lambda t: t | {EMBEDDING: t[EMBEDDING].astype(np.int8)},
   r'embeddings\.word_embeddings\.weight is int8'),
  (BERT, {}, lambda t: t | {EMBEDDING: t[EMBEDDING] * np.float32('nan')}, 'not finite'),
  (BERT, {}, lambda t: t | {'cls.predictions.decoder.weight': t[EMBEDDING] + 1},
   'decoder.weight differs from embeddings.word_embeddings.weight'),
  (BERT, {'tie_word_embeddings': False}, dict, 'has no mlm head: tensor cls.predictions.decoder'),
  (BERT, {}, lambda t: t | {EMBEDDING.removeprefix('bert.'): t[EMBEDDING]}, 'holds .* twice'),
  (BERT, {}, lambda t: {k.replace('dense.weight', 'dense.qweight'): v for k, v in t.items()},
   'qweight.*quantised'),
  (BERT, {'hidden_act': 'swish'}, dict, "unknown activation 'swish'"),
  (BERT, {'position_embedding_type': 'relative_key'}, dict, "'relative_key' is not supported"),
  (BERT, {'is_decoder': True}, dict, 'is_decoder'),
  (BERT, {'num_attention_heads': 3}, dict, 'not divisible by 3 heads'),
  (BERT, {'hidden_size': 'wide'}, dict, "hidden_size is 'wide'"),
  (BERT, {'hidden_size': None}, dict, 'hidden_size is None'),
  (BERT, {'id2label': {'1': 'a'}}, dict, 'id2label must name'),
  (GPT2, {'scale_attn_by_inverse_layer_idx': True}, dict, 'scale_attn_by_inverse_layer_idx=True'),
  (GPT2, {'n_inner': 32}, dict, r'mlp\.c_fc\.weight has shape \(16, 64\).*\(16, 32\)'),
  (ALBERT, {'num_hidden_groups': 1}, dict, 'holds tensors encoder.albert_layer_groups.1'),
  (ALBERT, {'num_hidden_groups': 99}, dict, 'num_hidden_groups=99 is above'),
])
def test_what_does_not_fit_is_named(copy, model, config, change, message):
  name, head = model
  unloadable(copy(name, change, **config), head, message)


@pytest.mark.parametrize(('name', 'head', 'message'), [
  ('bert_mlm', 'classifier', 'has no classifier head: .*pooler.*classifier.*never made up.*: '
   'fairjax models classifier --init=DIR makes'),
  ('bert_classifier', 'mlm', r'has no mlm head: .*cls.predictions.*never made up'),
  ('bert_mlm', 'pooled', 'has no pooled head: .*pooler'),
  ('gpt2', 'mlm', "gpt2, which has no head 'mlm', only lm: .* need a BERT or ALBERT"),
  ('bert_mlm', 'lm', "bert, which has no head 'lm'.*: 'lm' needs a decoder"),
])
def test_a_missing_head_is_never_made_up(name, head, message):
  unloadable(GOLDEN / name, head, message)


@pytest.mark.parametrize(('name', 'head', 'prefix'), [
  ('gpt2', 'lm', '_orig_mod.'), ('bert_mlm', 'mlm', 'module.'), ('albert_mlm', 'mlm', 'model.'),
  ('gpt2', 'lm', 'module._orig_mod.'), ('bert_classifier', 'classifier', 'base_model.model.'),
  ('albert_classifier', 'classifier', 'bert.'), ('bert_mlm', 'mlm', '_forward_module.model.')])
def test_prefixes_of_wrappers_are_taken_off_and_said(copy, name, head, prefix, capsys):
  plain = load_pretrained(GOLDEN / name, head)
  folder = copy(name, renamed(prefix))
  model = load_pretrained(folder, head)
  same(model.params, plain.params)
  line = capsys.readouterr().err
  assert re.search(rf'{re.escape(str(folder))}: the prefix {re.escape(prefix)}', line)


def test_a_wrapper_inside_a_name_and_two_models_in_one_file(copy, capsys):
  plain = load_pretrained(GOLDEN / 'gpt2', 'lm')
  assert capsys.readouterr().err == ''  # the model's own prefix is no wrapper
  folder = copy('gpt2', lambda t: {k.replace('.attn.', '._orig_mod.attn.'): v
                                   for k, v in t.items()})
  same(load_pretrained(folder, 'lm').params, plain.params)
  assert '_orig_mod' in capsys.readouterr().err
  unloadable(copy('gpt2', lambda t: t | renamed('module.')(t)), 'lm', 'twice, below different')


@pytest.mark.parametrize(('name', 'head'), [GPT2, BERT, ALBERT])
def test_a_config_without_model_type_is_recognised(copy, name, head, capsys):
  folder = copy(name, model_type=None)
  model, plain = load_pretrained(folder, head), load_pretrained(GOLDEN / name, head)
  same(model.params, plain.params)
  kind = plain.config['model_type']
  assert model.arch == plain.arch and model.config['model_type'] == kind
  assert f'has no model_type: it is read as {kind}, by the names' in capsys.readouterr().err


@pytest.mark.parametrize(('fields', 'message'), [
  ({'model_type': 'opt'}, "unknown model_type 'opt': fairjax reads the kinds albert, bert, gpt2"),
  ({'model_type': None, 'hidden_size': None}, 'not the fields and architectures of any kind'),
  ({'model_type': None, 'hidden_size': None, 'export': {}}, 'fairjax models import --from'),
  ({'model_type': None, 'architectures': ['RobertaModel']}, 'not the fields and architectures'),
  ({'quantization_config': {'quant_method': 'awq'}}, r'quantization_config \(awq\): quantised'),
])
def test_other_kinds_are_named_and_nothing_is_guessed(copy, fields, message):
  unloadable(copy('bert_mlm', **fields), 'mlm', message)


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
  assert folder_name(folder / 'snapshots' / '0abc') == 'gpt'
  for given in (folder, folder / 'snapshots', folder / 'snapshots' / '0abc', tmp_path / 'hub',
                tmp_path):
    model = load_pretrained(given, 'lm')
    same(model.params, plain.params)
    assert model.name == 'gpt' and model.fingerprint == plain.fingerprint
    said = capsys.readouterr().err
    assert ('is a folder of a cache: its snapshot' in said) == (given.name != '0abc')
  encoders = cache(tmp_path / 'e', 'minilm', 'bert_mlm')
  np.testing.assert_array_equal(SentenceEncoder(encoders).encode(['the town']),
                                SentenceEncoder(GOLDEN / 'bert_mlm').encode(['the town']))


def test_a_cache_folder_with_several_snapshots_names_them(tmp_path):
  two = cache(tmp_path / 'a', 'two', 'gpt2', 'gpt2_inner')
  unloadable(two, 'lm', 'holds 2 snapshots: name the folder of one, like .*0abc')
  main = cache(tmp_path / 'b', 'two', 'gpt2', 'gpt2_inner', main='1abc\n')
  same(load_pretrained(main, 'lm').params, load_pretrained(GOLDEN / 'gpt2_inner', 'lm').params)
  cache(tmp_path / 'b', 'another', 'gpt2')
  unloadable(tmp_path / 'b', 'lm', 'is a cache of 2 models: name the folder of one')
  none = cache(tmp_path / 'c', 'none')
  (none / 'snapshots').mkdir()
  unloadable(none, 'lm', 'holds no snapshot with a config.json')


@pytest.mark.parametrize(('files', 'message'), [
  ({'adapter_config.json': '{"peft_type": "LORA", "base_model_name_or_path": "gpt2", "r": 8}',
    'adapter_model.safetensors': ''}, r'is an adapter \(LORA\) of gpt2, .*: merge it'),
  ({'adapter_config.json': '{"peft_type": "LORA", "lora_alpha": 8}', 'adapter_model.bin': ''},
   'holds no adapter_model.safetensors: .*pickle'),
  ({'model-q4.gguf': ''}, 'model-q4.gguf is a GGUF file: give the file itself, '),
  ({'checkpoint-5/config.json': '{}'}, 'checkpoint-5 holds one: give the folder of the model'),
  ({'README.md': ''}, 'config.json: No such file or directory: a model directory holds'),
])
def test_a_folder_without_config_is_named_as_what_it_is(tmp_path, files, message):
  for name, text in files.items():
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(text)
  unloadable(tmp_path, 'lm', message)


@pytest.mark.parametrize(('name', 'message'), [
  ('pytorch_model.bin', 'pytorch_model.bin is a pickle and is not read: convert it'),
  ('model.ckpt', 'is a pickle'), ('tf_model.h5', 'tf_model.h5 is of TensorFlow'),
  ('model.gguf', 'GGUF'), ('adapter_model.safetensors', 'is an adapter'),
  ('weights.safetensors', 'rename weights.safetensors to model.safetensors'),
  ('other', 'holds neither model.safetensors nor'),
])
def test_weights_in_another_form_are_named(copy, name, message):
  folder = copy('bert_mlm')
  (folder / 'model.safetensors').rename(folder / name)
  unloadable(folder, 'mlm', message)


def test_types_that_numpy_lacks_are_refused_by_name(copy):
  folder = copy('gpt2')
  header, content = {}, b''
  for name, tensor in load_file(folder / 'model.safetensors').items():
    header[name] = {'dtype': 'F8_E4M3', 'shape': list(tensor.shape),
                    'data_offsets': [len(content), len(content) + tensor.size]}
    content += bytes(tensor.size)
  text = json.dumps(header).encode()
  (folder / 'model.safetensors').write_bytes(len(text).to_bytes(8, 'little') + text + content)
  unloadable(folder, 'lm', 'stored as F8_E4M3: quantised weights are not read')


def test_damaged_files_are_named(copy, tmp_path):
  unloadable(tmp_path / 'none', 'mlm', 'none is no directory')
  folder = copy('bert_mlm')
  unloadable(folder / 'model.safetensors', 'lm', 'is a file: give the folder of config.json')
  content = (folder / 'model.safetensors').read_bytes()
  for damaged in (content[:-9], b'', b'no tensors here'):
    (folder / 'model.safetensors').write_bytes(damaged)
    unloadable(folder, 'mlm', 'cannot be read as safetensors')
  for file in ('config.json', 'tokenizer.json', 'model.safetensors', 'vocab.txt'):
    whole = (folder / file).read_bytes()
    (folder / file).write_text('version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n')
    unloadable(folder, 'mlm', f'{file} is a Git LFS pointer.*git lfs pull')
    (folder / file).write_bytes(whole)
  (folder / 'config.json').write_text('[]')
  unloadable(folder, 'mlm', 'holds no JSON object')


def test_a_byte_order_mark_is_no_damage_and_an_adapter_beside_a_model_is_said(copy, capsys):
  folder = copy('gpt2')
  config = folder / 'config.json'
  config.write_bytes(b'\xef\xbb\xbf' + config.read_bytes())
  (folder / 'adapter_config.json').write_text('{}')
  folder = folder.rename(folder.with_suffix('.gguf'))  # a folder all the same
  same(load_pretrained(folder, 'lm').params, load_pretrained(GOLDEN / 'gpt2', 'lm').params)
  assert 'holds an adapter besides the model, which is not added' in capsys.readouterr().err


def test_fingerprint_covers_what_decides(copy):
  base = load_pretrained(GOLDEN / 'bert_classifier', 'classifier')
  prints = {load_pretrained(GOLDEN / 'bert_classifier', 'encoder').fingerprint,
            load_pretrained(GOLDEN / 'bert_classifier', 'classifier', dtype='bfloat16').fingerprint,
            load_pretrained(copy('bert_classifier', lambda t: t | {
              'classifier.bias': t['classifier.bias'] + 1}), 'classifier').fingerprint}
  for file in ('config.json', 'tokenizer.json', 'tokenizer_config.json'):
    folder = copy('bert_classifier')
    shutil.copy(GOLDEN / 'bert_classifier' / 'config.json', folder)
    assert load_pretrained(folder, 'classifier').fingerprint == base.fingerprint
    (folder / file).write_text((folder / file).read_text() + '\n')
    prints.add(load_pretrained(folder, 'classifier').fingerprint)
  assert len(prints | {base.fingerprint}) == 7
