"""Reference checkpoints in and out of a workdir."""

import dataclasses
import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from fairjax.cli.main import main
from fairjax.config import MeshConfig, ModelConfig
from fairjax.config_io import load_config
from fairjax.counterfactual import load_attribute
from fairjax.data.planted import make_planted_documents
from fairjax.errors import UserError
from fairjax.model import TransformerXL, init_memory, language_model
from fairjax.model.reference import model_config_of_reference, params_from_reference
from fairjax.model.softmax import vocabulary_clusters
from fairjax.run.export import check_fields, order_words, reorder
from fairjax.train import load_params, make_mesh, params_template

GOLDEN = pathlib.Path(__file__).parents[1] / 'golden' / 'transformer_xl'
REFERENCE = json.loads((GOLDEN / 'adaptive_softmax.json').read_text(encoding='utf-8'))
FIELDS = {
  'data.planted_documents': 300, 'data.planted_heldout_documents': 20, 'data.vocabulary': 'word',
  'model.num_layers': 3, 'model.model_dim': 32, 'model.num_heads': 4, 'model.head_dim': 8,
  'model.ff_dim': 64, 'model.segment_len': 12, 'model.memory_len': 16, 'model.vocab_multiple': 8,
  'model.cutoffs': '(51,121,301)', 'model.div_val': 2,
  'lm.batch_size': 8, 'until': 'lm'}


def _arguments(verb, workdir, *more, **changes):
  fields = FIELDS | {name.replace('__', '.'): value for name, value in changes.items()}
  return [verb, '--config=configs/quickstart.py', f'--workdir={workdir}', *more,
          *(f'--config.{name}={value}' for name, value in fields.items())]


@pytest.fixture
def words(tmp_path, monkeypatch, repository):
  """500 words of the planted corpus and others, `<eos>` first as the reference has it."""
  monkeypatch.chdir(repository)
  texts = make_planted_documents(
    load_attribute('country'), num_documents=300, seed=0, strength=0.9, sensitive_share=0.8)
  found = sorted({word for text in texts for word in text.split()})[:450]
  found += [f'other{i}' for i in range(498 - len(found))]
  path = tmp_path / 'words.txt'
  path.write_text('\n'.join(['<eos>', *found[:30], '<unk>', *found[30:], '']), encoding='utf-8')
  return path


def test_words_of_the_head_move_and_pad_is_never_predicted():
  model = ModelConfig(vocab_size=6, model_dim=4, num_heads=1, head_dim=4, cutoffs=(4,))
  vocabulary, order = order_words(['a', '<eos>', 'b', '<unk>', 'c', 'd'], model, where='w')
  assert list(vocabulary.words) == ['<pad>', '<eos>', '<unk>', 'a', 'b', 'c', 'd']
  assert order.tolist() == [-1, 1, 3, 0, 2, 4, 5]
  table, bias = np.arange(16.0).reshape(4, 4), np.arange(4.0)
  config, params = reorder(
    model, {'embedding_0': table, 'softmax_bias_0': bias, 'embedding_1': 7}, order)
  assert (config.vocab_size, config.cutoffs) == (7, (5,))
  np.testing.assert_array_equal(params['embedding_0'][1:], table[[1, 3, 0, 2]])
  assert params['softmax_bias_0'].tolist() == [-1e4, 1, 3, 0, 2] and params['embedding_1'] == 7


@pytest.mark.tf
def test_an_imported_model_stands_for_step_1_and_comes_out_again(words, tmp_path, capsys):
  workdir = tmp_path / 'run'
  options = (f'--weights={GOLDEN / "adaptive_softmax.safetensors"}',
             f'--arguments={GOLDEN / "adaptive_softmax.json"}', f'--words={words}')
  assert main(_arguments('import', workdir, *options)) == 0, capsys.readouterr().err
  assert 'validation perplexity' in capsys.readouterr().out
  assert main(_arguments('train', workdir)) == 0
  assert '[lm] finished earlier' in capsys.readouterr().out
  assert main(_arguments('import', workdir, *options)) == 2
  assert 'has none yet' in capsys.readouterr().err
  out = tmp_path / 'out.safetensors'
  assert main(_arguments('export', workdir, f'--output={out}', '--prefix')) == 0
  arguments = json.loads(out.with_suffix('.json').read_text())
  assert (arguments['n_token'], arguments['cutoffs']) == (501, [51, 121, 301])
  listed = out.with_suffix('.words.txt').read_text().split('\n')[:-1]
  found = load_file(out)
  original = load_file(GOLDEN / 'adaptive_softmax.safetensors')
  for name, value in original.items():
    full = name if name.startswith('crit.') else f'transformer.{name}'
    if name not in ('word_emb.emb_layers.0.weight', 'crit.out_layers.0.weight',
                    'crit.out_layers.0.bias'):  # the head has one word more
      np.testing.assert_array_equal(found[full], value)
  # The same words have the same probabilities as in the original.
  old_words = words.read_text().split('\n')[:-1]
  old_config, old_params = params_from_reference(original, REFERENCE)
  config, params = params_from_reference(found, arguments)
  text = [old_words[i] for i in (3, 44, 31, 200, 499, 0, 7)]
  logits = []
  for c, p, all_words in ((old_config, old_params, old_words), (config, params, listed)):
    tokens = jnp.asarray([[all_words.index(w) for w in text]], jnp.int32)
    model = TransformerXL(c)
    hidden = model.apply({'params': p}, tokens, init_memory(c, 1)).hidden
    scores = jax.nn.log_softmax(language_model(model.config).logits(p, hidden))
    logits.append(np.asarray(scores)[0][:, [all_words.index(w) for w in old_words]])
  np.testing.assert_allclose(*logits, atol=2e-5)


@pytest.mark.parametrize(('changes', 'message'), [
  ({'model__cutoffs': '(50,120,300)'}, 'model.cutoffs=(50, 120, 300) but the checkpoint has (51,'),
  ({'model__num_layers': 4}, 'model.num_layers=4 but the checkpoint has 3'),
  ({'model__norm': 'pre'}, "model.norm='pre' but the checkpoint has 'post'"),
])
def test_another_architecture_is_refused_by_field(words, tmp_path, capsys, changes, message):
  assert main(_arguments(
    'import', tmp_path / 'run', f'--weights={GOLDEN / "adaptive_softmax.safetensors"}',
    f'--arguments={GOLDEN / "adaptive_softmax.json"}', f'--words={words}', **changes)) == 2
  error = capsys.readouterr().err
  assert message in error and error.count('\n') == 1
  assert not (tmp_path / 'run').exists()  # it belongs to no configuration yet


@pytest.mark.parametrize(('change', 'message'), [
  (lambda w: w[:-1], '499 lines'),
  (lambda w: [*w[:-1], w[5]], '499 different'),
  (lambda w: [w[499], *w[1:499], '<eos>'], '<eos> among its first 50'),
])
def test_words_that_are_not_those_of_the_checkpoint_are_refused(
    words, tmp_path, capsys, change, message):
  changed = change(words.read_text().split('\n')[:-1])
  words.write_text('\n'.join([*changed, '']))
  assert main(_arguments(
    'import', tmp_path / 'run', f'--weights={GOLDEN / "adaptive_softmax.safetensors"}',
    f'--arguments={GOLDEN / "adaptive_softmax.json"}', f'--words={words}')) == 2
  assert message in capsys.readouterr().err


# What the published config.json of transfo-xl-wt103 says.
PUBLISHED = {
  'adaptive': True, 'architectures': ['TransfoXLLMHeadModel'], 'attn_type': 0, 'clamp_len': 1000,
  'cutoffs': [20000, 40000, 200000], 'd_embed': 1024, 'd_head': 64, 'd_inner': 4096,
  'd_model': 1024, 'div_val': 4, 'dropatt': 0.0, 'dropout': 0.1, 'eos_token_id': 0, 'ext_len': 0,
  'init': 'normal', 'init_range': 0.01, 'init_std': 0.02, 'layer_norm_epsilon': 1e-05,
  'mem_len': 1600, 'model_type': 'transfo-xl', 'n_head': 16, 'n_layer': 18, 'pre_lnorm': False,
  'proj_init_std': 0.01, 'same_length': True, 'sample_softmax': -1, 'tgt_len': 128,
  'tie_projs': [False, True, True, True], 'tie_weight': True, 'untie_r': True,
  'vocab_size': 267735}
NARROW = {'d_model': 64, 'd_embed': 64, 'n_layer': 2, 'd_inner': 8, 'n_head': 2, 'd_head': 4}


def test_the_published_model_is_that_of_the_config(repository, monkeypatch):
  monkeypatch.chdir(repository)
  published = model_config_of_reference(PUBLISHED)
  with_pad = dataclasses.replace(
    published, vocab_size=267736, cutoffs=tuple(c + 1 for c in published.cutoffs))
  check_fields(load_config('configs/wikitext103.py:reference=True').model, with_pad)
  with pytest.raises(UserError, match=r'cutoffs.*num_heads|num_heads.*cutoffs'):
    check_fields(load_config('configs/wikitext103.py').model, with_pad)


def _published_tensors(arguments):
  """Small random tensors under the published names, by the shapes that their code gives them."""
  rng, found = np.random.default_rng(0), {}
  d, heads, width = arguments['d_model'], arguments['n_head'], arguments['d_head']
  shapes = {'crit.cluster_weight': (3, d), 'crit.cluster_bias': (3,)}
  ends = [0, *arguments['cutoffs'], arguments['vocab_size']]
  for i in range(4):
    size, own = ends[i + 1] - ends[i], d // 4 ** i
    shapes |= {f'transformer.word_emb.emb_layers.{i}.weight': (size, own),
               f'transformer.word_emb.emb_projs.{i}': (d, own),
               f'crit.out_layers.{i}.bias': (size,)}
  for i in range(arguments['n_layer']):
    layer = f'transformer.layers.{i}.'
    shapes |= {
      layer + 'dec_attn.qkv_net.weight': (3 * heads * width, d),
      layer + 'dec_attn.r_net.weight': (heads * width, d),
      layer + 'dec_attn.o_net.weight': (d, heads * width),
      layer + 'dec_attn.r_w_bias': (heads, width), layer + 'dec_attn.r_r_bias': (heads, width),
      layer + 'pos_ff.CoreNet.0.weight': (arguments['d_inner'], d),
      layer + 'pos_ff.CoreNet.0.bias': (arguments['d_inner'],),
      layer + 'pos_ff.CoreNet.3.weight': (d, arguments['d_inner']),
      layer + 'pos_ff.CoreNet.3.bias': (d,)} | {
      f'{layer}{part}.layer_norm.{kind}': (d,)
      for part in ('dec_attn', 'pos_ff') for kind in ('weight', 'bias')}
  found = {name: 0.1 * rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
  for i in range(4):  # the softmax shares the tables, and all projections but the head's
    found[f'crit.out_layers.{i}.weight'] = found[f'transformer.word_emb.emb_layers.{i}.weight']
    tied = found[f'transformer.word_emb.emb_projs.{i}']
    found[f'crit.out_projs.{i}'] = tied if i else rng.normal(size=tied.shape).astype(np.float32)
  return {name: np.array(value) for name, value in found.items()}


@pytest.mark.tf
def test_a_checkpoint_of_the_published_form_is_imported(tmp_path, monkeypatch, repository, capsys):
  """Its real vocabulary, cutoffs and arguments; narrow, so that it is quick."""
  monkeypatch.chdir(repository)
  arguments = PUBLISHED | NARROW
  tensors = _published_tensors(arguments)
  save_file(tensors, tmp_path / 'w.safetensors')
  (tmp_path / 'a.json').write_text(json.dumps(arguments))
  words = ['<eos>', *(f'w{i}' for i in range(23)), '<unk>']
  words += [value.text for value in load_attribute('country').values]
  words += [f'w{i}' for i in range(23, 267735 - len(words) + 23)]
  (tmp_path / 'words.txt').write_text('\n'.join([*words, '']))
  fields = {
    'model.num_layers': 2, 'model.model_dim': 64, 'model.num_heads': 2, 'model.head_dim': 4,
    'model.ff_dim': 8, 'model.segment_len': 16, 'model.memory_len': 8, 'data.source': 'planted',
    'data.planted_documents': 20, 'data.planted_heldout_documents': 4, 'lm.batch_size': 8,
    'lm.eval_batches': 1, 'model.dtype': 'float32'}
  assert main(['import', '--config=configs/wikitext103.py:variant=lm,reference=True',
               f'--workdir={tmp_path}/run', f'--weights={tmp_path}/w.safetensors',
               f'--arguments={tmp_path}/a.json', f'--words={tmp_path}/words.txt',
               *(f'--config.{name}={value}' for name, value in fields.items())]) == 0, (
                 capsys.readouterr().err)
  out = capsys.readouterr().out
  assert '[lm] same_length=true of its arguments is left out' in out
  assert '[lm] imported from' in out
  config = load_config(f'{tmp_path}/run/config.json')
  config = dataclasses.replace(config.model, vocab_size=267736)
  assert [c.size for c in vocabulary_clusters(config)] == [20001, 20000, 160000, 67735]
  params = load_params(tmp_path / 'run' / 'lm', params_template(config, make_mesh(MeshConfig())))
  for i in range(1, 4):
    table = tensors[f'transformer.word_emb.emb_layers.{i}.weight']
    np.testing.assert_array_equal(params[f'embedding_{i}'][:len(table)], table)
  head = tensors['transformer.word_emb.emb_layers.0.weight']
  # <pad>, <eos>, <unk>, and the first of the other words.
  np.testing.assert_array_equal(
    params['embedding_0'][:4], [0 * head[0], head[0], head[24], head[1]])
  np.testing.assert_array_equal(params['cluster_weight'], tensors['crit.cluster_weight'])
