"""Model directories: their variants are read, everything that does not fit is named."""

import json
import pathlib
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from fairjax.errors import UserError
from fairjax.pretrained import SentenceEncoder, load_pretrained
from fairjax.pretrained.checkpoint import to_tensors

GOLDEN = pathlib.Path(__file__).parents[1] / 'golden' / 'pretrained'


class Folder:
  """A copy of a golden directory that tests change."""

  def __init__(self, path, name):
    self.path = path / 'model'
    shutil.copytree(GOLDEN / name, self.path)

  def config(self, **changes):
    path = self.path / 'config.json'
    values = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({k: v for k, v in values.items() if v is not None}))
    return self

  def tensors(self, change):
    tensors = load_file(self.path / 'model.safetensors')
    save_file({k: np.ascontiguousarray(v) for k, v in change(tensors).items()},
              self.path / 'model.safetensors')
    return self


@pytest.fixture
def folder(tmp_path):
  return lambda name: Folder(tmp_path, name)


def same(ours, other):
  assert ours.keys() == other.keys()
  for group in ours:
    assert ours[group].keys() == other[group].keys()
    for name, array in ours[group].items():
      np.testing.assert_array_equal(array, other[group][name], err_msg=f'{group} {name}')


BERT, ALBERT, GPT2 = ('bert_mlm', 'mlm'), ('albert_mlm', 'mlm'), ('gpt2', 'lm')
EMBEDDING = 'bert.embeddings.word_embeddings.weight'


def old_norms(tensors):
  return {k.replace('Norm.weight', 'Norm.gamma').replace('Norm.bias', 'Norm.beta'): v
          for k, v in tensors.items()}


def no_prefix(tensors):
  return {k.removeprefix('bert.').removeprefix('albert.').removeprefix('transformer.'): v
          for k, v in tensors.items()}


@pytest.mark.parametrize(('model', 'change', 'ignored'), [
  (BERT, old_norms, ()),
  (BERT, no_prefix, ()),
  (ALBERT, no_prefix, ()),
  (GPT2, no_prefix, ()),
  (BERT, lambda t: t | {'cls.predictions.decoder.weight': t[EMBEDDING],
                        'cls.predictions.decoder.bias': t['cls.predictions.bias']}, ()),
  (BERT, lambda t: t | {'bert.embeddings.position_ids': np.arange(32)[None]},
   ('embeddings.position_ids',)),
  (BERT, lambda t: t | {'bert.pooler.dense.weight': np.ones((16, 16), np.float32),
                        'cls.seq_relationship.bias': np.ones(2, np.float32)},
   ('cls.seq_relationship.bias', 'pooler.dense.weight')),
  (GPT2, lambda t: t | {'lm_head.weight': t['transformer.wte.weight'],
                        'transformer.h.0.attn.bias': np.ones((1, 1, 32, 32), np.uint8)},
   ('h.0.attn.bias',)),
])
def test_usual_variants_give_the_same_parameters(folder, model, change, ignored):
  name, head = model
  plain = load_pretrained(GOLDEN / name, head)
  assert plain.ignored == ()
  other = load_pretrained(folder(name).tensors(change).path, head)
  same(plain.params, other.params)
  assert other.ignored == ignored and other.fingerprint != plain.fingerprint


def test_bias_may_stand_in_the_decoder_only(folder):
  def moved(t):
    t['cls.predictions.decoder.bias'] = t.pop('cls.predictions.bias')
    return t

  same(load_pretrained(folder('bert_mlm').tensors(moved).path, 'mlm').params,
       load_pretrained(GOLDEN / 'bert_mlm', 'mlm').params)


def test_untied_decoder_is_a_table_of_its_own(folder):
  table = np.random.default_rng(0).normal(size=(90, 16)).astype(np.float32)
  changed = folder('bert_mlm').config(tie_word_embeddings=False).tensors(
    lambda t: t | {'cls.predictions.decoder.weight': table})
  params = load_pretrained(changed.path, 'mlm').params
  np.testing.assert_array_equal(params['output']['table'], table)
  from fairjax.pretrained import mlm_logits
  arch = load_pretrained(changed.path, 'mlm').arch
  hidden = np.random.default_rng(1).normal(size=(1, 2, 16)).astype(np.float32)
  tied = load_pretrained(GOLDEN / 'bert_mlm', 'mlm').params
  assert np.abs(mlm_logits(params, arch, hidden) - mlm_logits(tied, arch, hidden)).max() > 0.1


def test_shards(folder):
  changed = folder('bert_classifier')
  whole = load_file(changed.path / 'model.safetensors')
  names, index = sorted(whole), {}
  for i, part in enumerate((names[::2], names[1::2])):
    save_file({k: whole[k] for k in part}, changed.path / f'model-{i}.safetensors')
    index |= dict.fromkeys(part, f'model-{i}.safetensors')
  (changed.path / 'model.safetensors').unlink()
  (changed.path / 'model.safetensors.index.json').write_text(json.dumps({'weight_map': index}))
  same(load_pretrained(changed.path, 'classifier').params,
       load_pretrained(GOLDEN / 'bert_classifier', 'classifier').params)
  for bad, message in (('missing.safetensors', 'missing.safetensors.*not in'),
                       ('../model-0.safetensors', r'\.\./model-0\.safetensors.*not in')):
    (changed.path / 'model.safetensors.index.json').write_text(
      json.dumps({'weight_map': index | {'x': bad}}))
    with pytest.raises(UserError, match=message):
      load_pretrained(changed.path, 'classifier')


@pytest.mark.parametrize(('name', 'head'), [
  BERT, ('bert_classifier', 'classifier'), ALBERT, GPT2, ('gpt2_inner', 'lm')])
def test_written_tensors_are_those_that_were_read(name, head):
  model = load_pretrained(GOLDEN / name, head)
  written = to_tensors(model.params, model.arch, head)
  stored = load_file(GOLDEN / name / 'model.safetensors')
  assert written.keys() == stored.keys()
  for key, tensor in stored.items():
    np.testing.assert_array_equal(written[key], tensor, err_msg=key)


def drop(*names):
  return lambda t: {k: v for k, v in t.items() if k not in names}


@pytest.mark.parametrize(('model', 'config', 'change', 'message'), [
  (BERT, {}, drop('bert.encoder.layer.1.output.dense.bias'),
   r'lacks tensor encoder\.layer\.1\.output\.dense\.bias: .*bert, 3 layers\): take config.json'),
  (BERT, {'num_hidden_layers': 4}, dict, 'lacks tensors encoder.layer.3.* and 12 more'),
  (BERT, {'num_hidden_layers': 2}, dict, 'holds tensors encoder.layer.2.* which bert'),
  (BERT, {'intermediate_size': 48}, dict,
   r'intermediate.* has shape .*40.* needs .*48.*: take config.json and weights of one'),
  (BERT, {}, lambda t: t | {'bert.embeddings.new': np.ones(2, np.float32)},
   r'holds tensor embeddings\.new, which'),
  (BERT, {}, lambda t: t | {EMBEDDING: t[EMBEDDING].astype(np.int8)},
   r'embeddings\.word_embeddings\.weight is int8'),
  (BERT, {}, lambda t: t | {EMBEDDING: t[EMBEDDING] * np.float32('nan')}, 'not finite'),
  (BERT, {}, lambda t: t | {'cls.predictions.decoder.weight': t[EMBEDDING] + 1},
   'decoder.weight differs from embeddings.word_embeddings.weight'),
  (BERT, {'tie_word_embeddings': False}, dict, 'has no mlm head: tensor cls.predictions.decoder'),
  (BERT, {}, lambda t: t | {EMBEDDING.removeprefix('bert.'): t[EMBEDDING]}, 'holds .* twice'),
  (BERT, {'hidden_act': 'swish'}, dict, "unknown activation 'swish'"),
  (BERT, {'position_embedding_type': 'relative_key'}, dict, "'relative_key' is not supported"),
  (BERT, {'is_decoder': True}, dict, 'is_decoder'),
  (BERT, {'model_type': 'roberta'}, dict, "unknown model_type 'roberta'"),
  (BERT, {'num_attention_heads': 3}, dict, 'not divisible by 3 heads'),
  (BERT, {'hidden_size': 'wide'}, dict, "hidden_size is 'wide'"),
  (BERT, {'hidden_size': None}, dict, 'hidden_size is None'),
  (BERT, {'id2label': {'1': 'a'}}, dict, 'id2label must name'),
  (GPT2, {'scale_attn_by_inverse_layer_idx': True}, dict, 'scale_attn_by_inverse_layer_idx=True'),
  (GPT2, {'scale_attn_weights': False}, dict, 'scale_attn_weights=False'),
  (GPT2, {'add_cross_attention': True}, dict, 'add_cross_attention'),
  (GPT2, {'n_inner': 32}, dict, r'mlp\.c_fc\.weight has shape \(16, 64\).*\(16, 32\)'),
  (ALBERT, {'num_hidden_groups': 1}, dict, 'holds tensors encoder.albert_layer_groups.1'),
  (ALBERT, {'embedding_size': 16}, dict, 'has shape'),
])
def test_what_does_not_fit_is_named(folder, model, config, change, message):
  name, head = model
  with pytest.raises(UserError, match=message) as caught:
    load_pretrained(folder(name).config(**config).tensors(change).path, head)
  assert '\n' not in str(caught.value)


@pytest.mark.parametrize(('name', 'head', 'message'), [
  ('bert_mlm', 'classifier', 'has no classifier head: .*pooler.*classifier.*never made up.*: '
   'fairjax sentiment-classifier train --init=DIR makes'),
  ('bert_classifier', 'mlm', r'has no mlm head: .*cls.predictions.*never made up.*: give a '
   'checkpoint that .*BertForMaskedLM.* or train one from scratch with fairjax masked-lm train'),
  ('bert_mlm', 'pooled', 'has no pooled head: .*pooler.*: save it again with its pooler'),
  ('gpt2', 'mlm', "gpt2, which has no head 'mlm', only lm: .* need a BERT or ALBERT"),
  ('bert_mlm', 'lm', "bert, which has no head 'lm'.*: 'lm' needs a GPT-2"),
])
def test_a_missing_head_is_never_made_up(name, head, message):
  with pytest.raises(UserError, match=message) as caught:
    load_pretrained(GOLDEN / name, head)
  assert ('sentiment-classifier' in str(caught.value)) == (head == 'classifier')


def test_pooler_is_needed_by_the_classifier_only(folder):
  changed = folder('bert_classifier').tensors(
    drop('bert.pooler.dense.weight', 'bert.pooler.dense.bias'))
  assert 'pooler' not in load_pretrained(changed.path, 'encoder').params
  with pytest.raises(UserError, match='no classifier head: tensors pooler'):
    load_pretrained(changed.path, 'classifier')


def test_tokenizers_that_do_not_fit(folder):
  changed = folder('bert_mlm')
  shutil.copy(GOLDEN / 'albert_mlm' / 'tokenizer.json', changed.path)
  with pytest.raises(UserError, match=r"txt has '\[PAD\]' as token 0, tokenizer.json '<pad>'"):
    load_pretrained(changed.path, 'mlm')
  shutil.copy(GOLDEN / 'bert_mlm' / 'tokenizer.json', changed.path)
  content = json.loads((changed.path / 'tokenizer.json').read_text(encoding='utf-8'))
  content['model']['vocab']['the'] = 300  # as many tokens, but one beyond the embeddings
  (changed.path / 'tokenizer.json').write_text(json.dumps(content), encoding='utf-8')
  with pytest.raises(UserError, match="has 90 tokens with ids up to 300, the model 90 .*'the'"):
    load_pretrained(changed.path, 'mlm')
  (changed.path / 'tokenizer.json').write_text('{"version"')
  with pytest.raises(UserError, match='tokenizer.json cannot be read'):
    load_pretrained(changed.path, 'mlm')
  (changed.path / 'tokenizer.json').unlink()
  words = (changed.path / 'vocab.txt').read_text()
  for content, message in ((words + 'more\n', "has 91 tokens .*, the model 90 .*'more'"),
                           (words + 'the\n', 'holds a token twice: 91 lines, 90 tokens'),
                           (words.replace('[SEP]', 'sep'), r"no sep token '\[SEP\]'")):
    (changed.path / 'vocab.txt').write_text(content)
    with pytest.raises(UserError, match=message):
      load_pretrained(changed.path, 'mlm')
  (changed.path / 'tokenizer_config.json').unlink()
  with pytest.raises(UserError, match='without tokenizer_config.json'):
    load_pretrained(changed.path, 'mlm')
  (changed.path / 'vocab.txt').unlink()
  with pytest.raises(UserError, match='no tokenizer.json nor vocab.txt: download the whole'):
    load_pretrained(changed.path, 'mlm')


@pytest.mark.parametrize(('name', 'value'), [
  ('do_lower_case', False), ('strip_accents', False), ('tokenize_chinese_chars', False)])
def test_two_files_that_treat_text_otherwise_are_refused(folder, name, value):
  changed = folder('bert_mlm')
  path = changed.path / 'tokenizer_config.json'
  options = json.loads(path.read_text())
  path.write_text(json.dumps(options | {name: value}))
  with pytest.raises(UserError, match=f'tokenizer_config.json says {name}=False, tokenizer.json'):
    load_pretrained(changed.path, 'mlm')
  options.pop(name, None)
  path.write_text(json.dumps(options))
  assert load_pretrained(changed.path, 'mlm').tokenizer.encode('GOOD').tokens[1:-1]


def test_word_list_treats_case_as_its_config_says(folder):
  changed = folder('bert_mlm')
  (changed.path / 'tokenizer.json').unlink()
  options = json.loads((changed.path / 'tokenizer_config.json').read_text())
  ids = {}
  for lower in (True, False):
    (changed.path / 'tokenizer_config.json').write_text(
      json.dumps(options | {'do_lower_case': lower}))
    ids[lower] = load_pretrained(changed.path, 'mlm').tokenizer.encode('GOOD').tokens
  assert ids[False] == ['[CLS]', '[UNK]', '[SEP]']
  assert '[UNK]' not in ids[True] and ''.join(ids[True][1:-1]).replace('##', '') == 'good'


def test_directories_without_the_files(tmp_path, folder):
  with pytest.raises(UserError, match='none is no directory'):
    load_pretrained(tmp_path / 'none', 'mlm')
  with pytest.raises(UserError, match='config.json: No such file.*: download the whole of it, or '):
    load_pretrained(tmp_path, 'mlm')
  changed = folder('bert_mlm')
  content = (changed.path / 'model.safetensors').read_bytes()
  for damaged in (content[:-9], b'', b'no tensors here'):
    (changed.path / 'model.safetensors').write_bytes(damaged)
    with pytest.raises(UserError, match='cannot be read as safetensors.*: download it'):
      load_pretrained(changed.path, 'mlm')
  (changed.path / 'model.safetensors').rename(changed.path / 'pytorch_model.bin')
  with pytest.raises(UserError, match='pytorch_model.bin is a pickle and is not read: convert'):
    load_pretrained(changed.path, 'mlm')
  (changed.path / 'pytorch_model.bin').unlink()
  with pytest.raises(UserError, match='holds neither .*: download the whole directory, or write'):
    load_pretrained(changed.path, 'mlm')
  (changed.path / 'config.json').write_text('[]')
  with pytest.raises(UserError, match='holds no JSON object'):
    load_pretrained(changed.path, 'mlm')


def test_fingerprint_covers_what_decides(folder):
  base = load_pretrained(GOLDEN / 'bert_classifier', 'classifier')
  assert base.fingerprint == load_pretrained(folder('bert_classifier').path,
                                             'classifier').fingerprint
  prints = {base.fingerprint,
            load_pretrained(GOLDEN / 'bert_classifier', 'encoder').fingerprint,
            load_pretrained(GOLDEN / 'bert_classifier', 'classifier',
                            dtype='bfloat16').fingerprint}
  assert len(prints) == 3


@pytest.mark.parametrize('file', ['config.json', 'model.safetensors', 'tokenizer.json',
                                  'tokenizer_config.json'])
def test_fingerprint_changes_with(folder, file):
  changed = folder('bert_classifier')
  path = changed.path / file
  if file == 'model.safetensors':
    changed.tensors(lambda t: t | {'classifier.bias': t['classifier.bias'] + 1})
  else:
    path.write_text(path.read_text() + '\n')
  assert (load_pretrained(changed.path, 'classifier').fingerprint
          != load_pretrained(GOLDEN / 'bert_classifier', 'classifier').fingerprint)


@pytest.fixture
def sentences(folder):
  """A sentence encoder with module files."""
  made = folder('bert_mlm')
  (made.path / '1_Pooling').mkdir()
  made.modules = lambda *types: (made.path / 'modules.json').write_text(json.dumps([
    {'type': f'sentence_transformers.models.{t}', 'path': '1_Pooling' if t == 'Pooling' else ''}
    for t in types]))
  made.pooling = lambda mode: (made.path / '1_Pooling' / 'config.json').write_text(
    json.dumps({'word_embedding_dimension': 16, f'pooling_mode_{mode}': True}))
  made.modules('Transformer', 'Pooling', 'Normalize')
  made.pooling('mean_tokens')
  return made


def test_sentence_modules_are_followed(sentences):
  texts = ['The baker.', 'A happy, happy farmer was glad', 'x']
  make = lambda: SentenceEncoder(sentences.path, batch_tokens=24)
  mean = make()
  vectors = mean.encode(texts)
  np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
  sentences.modules('Transformer', 'Pooling')
  plain = make()
  np.testing.assert_allclose(
    plain.encode(texts) / np.linalg.norm(plain.encode(texts), axis=1, keepdims=True), vectors,
    atol=1e-6)
  assert np.abs(np.linalg.norm(plain.encode(texts), axis=1) - 1).min() > 1e-3
  sentences.pooling('cls_token')
  first = make()
  assert np.abs(first.encode(texts) - plain.encode(texts)).max() > 1e-3
  assert len({e.fingerprint for e in (mean, plain, first)}) == 3
  assert first.encode([]).shape == (0, 16)


def test_sentence_length_and_case_are_those_of_the_file(sentences):
  path = sentences.path / 'sentence_bert_config.json'
  path.write_text(json.dumps({'max_seq_length': 5, 'do_lower_case': True}))
  encoder = SentenceEncoder(sentences.path, batch_tokens=24)
  assert encoder.max_length == 5
  vectors = encoder.encode(['the the the the the', 'the the the'])
  assert encoder.truncated == 1
  np.testing.assert_array_equal(vectors[0], vectors[1])
  path.write_text(json.dumps({'max_seq_length': 'long'}))
  with pytest.raises(UserError, match="max_seq_length is 'long'"):
    SentenceEncoder(sentences.path)


def test_sentence_modules_that_are_not_known(sentences):
  sentences.modules('Transformer', 'Pooling', 'Dense')
  with pytest.raises(UserError, match='modules Transformer, Pooling, Dense are not supported'):
    SentenceEncoder(sentences.path)
  sentences.modules('Transformer', 'Pooling')
  sentences.pooling('max_tokens')
  with pytest.raises(UserError, match='pooling pooling_mode_max_tokens is not supported'):
    SentenceEncoder(sentences.path)
  (sentences.path / 'modules.json').write_text('[{"type": "a.Transformer", "path": "../x"}]')
  with pytest.raises(UserError, match='modules'):
    SentenceEncoder(sentences.path)
