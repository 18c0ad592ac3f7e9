"""Trained models in and out of a workdir: reference checkpoints, and folders of our own."""

import dataclasses
import json
import pathlib
import shutil

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import yaml
from groups import run_group
from safetensors.numpy import load_file, save_file
from tiny_runs import MODEL, command_line

from fairjax.cli.main import main
from fairjax.config import MeshConfig, ModelConfig
from fairjax.config_io import load_config
from fairjax.counterfactual import load_attribute
from fairjax.data.planted import make_planted_documents
from fairjax.errors import UserError
from fairjax.model import TransformerXL, init_memory, language_model
from fairjax.model.reference import model_config_of_reference, params_from_reference
from fairjax.model.softmax import vocabulary_clusters
from fairjax.processes import StopSignal
from fairjax.report.document import escape
from fairjax.run.export import (
  check_fields,
  order_words,
  read_folder,
  read_tensors,
  reorder,
  to_params,
  to_tensors,
)
from fairjax.run.job import Job
from fairjax.run.results import open_run
from fairjax.run.workdir import is_begun
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
  return [*command_line(verb, 'configs/quickstart.py', workdir, FIELDS, **changes), *more]


def write_words(path):
  """500 words of the planted corpus and others, `<eos>` first as the reference has it."""
  texts = make_planted_documents(
    load_attribute('country'), num_documents=300, seed=0, strength=0.9, sensitive_share=0.8)
  found = sorted({word for text in texts for word in text.split()})[:450]
  found += [f'other{i}' for i in range(498 - len(found))]
  path.write_text('\n'.join(['<eos>', *found[:30], '<unk>', *found[30:], '']), encoding='utf-8')
  return path


@pytest.fixture
def words(tmp_path, in_repository, one_device):
  return write_words(tmp_path / 'words.txt')


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
def test_an_imported_model_stands_for_step_1_and_comes_out_again(
    words, tmp_path, capsys, printed, refused):
  workdir = tmp_path / 'run'
  options = (f'--weights={GOLDEN / "adaptive_softmax.safetensors"}',
             f'--arguments={GOLDEN / "adaptive_softmax.json"}', f'--words={words}')
  assert main(_arguments('models import', workdir, *options)) == 0, capsys.readouterr().err
  assert 'validation perplexity' in capsys.readouterr().out
  assert '[lm] finished earlier' in printed(*_arguments('step train', workdir))
  refused(_arguments('models import', workdir, *options), 'has none yet')
  out = tmp_path / 'out.safetensors'
  assert main(_arguments('models export', workdir, f'--output={out}', '--prefix')) == 0
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
    scores = jax.jit(lambda p, tokens, c=c: jax.nn.log_softmax(language_model(c).logits(
      p, TransformerXL(c).apply({'params': p}, tokens, init_memory(c, 1)).hidden)))(p, tokens)
    logits.append(np.asarray(scores)[0][:, [all_words.index(w) for w in old_words]])
  np.testing.assert_allclose(*logits, atol=2e-5)


@pytest.mark.parametrize(('words_of', 'changes', 'message'), [
  (None, {'model__cutoffs': '(50,120,300)'},
   'model.cutoffs=(50, 120, 300) but the checkpoint has (51,'),
  (None, {'model__num_layers': 4}, 'model.num_layers=4 but the checkpoint has 3'),
  (None, {'model__norm': 'pre'}, "model.norm='pre' but the checkpoint has 'post'"),
  (lambda w: w[:-1], {}, '499 lines'),
  (lambda w: [*w[:-1], w[5]], {}, '499 different'),
  (lambda w: [w[499], *w[1:499], '<eos>'], {}, '<eos> among its first 50'),
])
def test_another_architecture_or_other_words_are_refused(
    words, tmp_path, refused, words_of, changes, message):
  if words_of:
    words.write_text('\n'.join([*words_of(words.read_text().split('\n')[:-1]), '']))
  refused(_arguments(
    'models import', tmp_path / 'run', f'--weights={GOLDEN / "adaptive_softmax.safetensors"}',
    f'--arguments={GOLDEN / "adaptive_softmax.json"}', f'--words={words}', **changes), message)
  assert not (tmp_path / 'run').exists()  # it belongs to no configuration yet


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


def test_the_published_model_is_that_of_the_config(in_repository):
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
def test_a_checkpoint_of_the_published_form_is_imported(tmp_path, in_repository, capsys):
  """Its real vocabulary, cutoffs and arguments; narrow, so that it is quick."""
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
  assert main(['models', 'import', '--config=configs/wikitext103.py:variant=lm,reference=True',
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
  params = load_params(
    tmp_path / 'run' / 'lm', params_template(language_model(config), make_mesh(MeshConfig())))
  for i in range(1, 4):
    table = tensors[f'transformer.word_emb.emb_layers.{i}.weight']
    np.testing.assert_array_equal(params[f'embedding_{i}'][:len(table)], table)
  head = tensors['transformer.word_emb.emb_layers.0.weight']
  # <pad>, <eos>, <unk>, and the first of the other words.
  np.testing.assert_array_equal(
    params['embedding_0'][:4], [0 * head[0], head[0], head[24], head[1]])
  np.testing.assert_array_equal(params['cluster_weight'], tensors['crit.cluster_weight'])


# Models as folders: written with everything that belongs to them, read back bit for bit.

TINY = MODEL | {
  'data.planted_documents': 300, 'data.planted_heldout_documents': 20, 'data.vocab_size': 500,
  'model.dtype': 'bfloat16', 'model.vocab_multiple': 64,
  'lm.batch_size': 8, 'lm.eval_batches': 1, 'until': 'lm'}
OPTIONS = [f'--config.{name}={value}' for name, value in TINY.items()]


def command(verb, workdir, *more, config='configs/quickstart.py'):
  fields = OPTIONS if config.endswith('.py') else []
  return [*verb.split(), f'--config={config}', f'--workdir={workdir}', *map(str, more), *fields]


def run(*arguments, **config):
  return main(command(*arguments, **config))


@pytest.fixture(scope='module')
def trained(tmp_path_factory, in_repository_in_module, one_device):
  """A workdir with a language model, whose parameters nobody trained."""
  workdir = tmp_path_factory.mktemp('trained') / 'run'
  job = Job(load_config('configs/quickstart.py', {k: str(v) for k, v in TINY.items()}), workdir)
  random = np.random.default_rng(0)
  params = jax.tree.map(lambda leaf: random.normal(0, 0.1, leaf.shape).astype(leaf.dtype),
                        params_template(language_model(job.model_config), job.mesh))
  job.curriculum(StopSignal()).import_lm(params, source={'by': 'a test'})
  return workdir


@pytest.fixture(scope='module')
def exported(trained):
  folder = trained.parent / 'exported'
  assert run('models export', trained, f'--output={folder}', '--license=apache-2.0') == 0
  return folder


@pytest.fixture
def copy(exported, tmp_path):
  """A copy of the folder that a test may change."""
  return pathlib.Path(shutil.copytree(exported, tmp_path / 'copy'))


def digest(workdir):
  return json.loads((workdir / 'lm' / 'DONE').read_text())['digest']


@pytest.mark.tf
def test_an_imported_model_is_the_exported_one_bit_for_bit(
    trained, exported, tmp_path, capsys, refused):
  again = tmp_path / 'again'
  assert run('models import', again, f'--from={exported}', config=f'{exported}/config.json') == 0
  assert 'validation perplexity' in capsys.readouterr().out
  assert digest(again) == digest(trained)
  one, two = (run.params(run.find_model('baseline')) for run in map(open_run, (trained, again)))
  for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(one), jax.tree.leaves(two),
                          strict=True):
    assert a.dtype == b.dtype and np.asarray(a).tobytes() == np.asarray(b).tobytes(), path
  for name in ('spiece.model', 'vocabulary.json'):
    contents = {(folder / name).read_bytes() for folder in (
      exported / 'vocabulary', trained / 'data' / 'vocabulary', again / 'data' / 'vocabulary')}
    assert len(contents) == 1
  # What came in is told when it goes out again, under the same bytes.
  out = tmp_path / 'out'
  assert run('models export', again, f'--output={out}', config=f'{exported}/config.json') == 0
  assert (out / 'model.safetensors').read_bytes() == (exported / 'model.safetensors').read_bytes()
  card = (out / 'README.md').read_text()
  assert f'trained elsewhere: digest {digest(trained)}' in card and 'License' in card
  refused(command('models import', again, f'--from={exported}', config=f'{exported}/config.json'),
          'has none yet')


@pytest.mark.tf
def test_a_copy_of_models_and_vocabulary_is_exported_without_the_text_and_only_read(
    trained, exported, tmp_path):
  workdir, out = tmp_path / 'w', tmp_path / 'out'
  shutil.copytree(trained, workdir, ignore=lambda folder, names: (
    set(names) - {'vocabulary'} if folder.endswith('data') else ()))
  before = sorted(workdir.rglob('*'))
  assert run('models export', workdir, f'--output={out}') == 0
  assert sorted(workdir.rglob('*')) == before
  assert (out / 'model.safetensors').read_bytes() == (exported / 'model.safetensors').read_bytes()


@pytest.mark.tf
def test_two_processes_that_hold_parts_write_the_reference_form_once(
    trained, tmp_path, repository):
  assert run('models export', trained, f'--output={tmp_path}/one.safetensors') == 0
  found = run_group([
    '-m', 'fairjax', 'models', 'export', '--config=configs/quickstart.py', *OPTIONS,
    f'--workdir={trained}', '--config.mesh.fsdp=2', f'--output={tmp_path}/two.safetensors'],
    repository)
  assert [code for code, _, _ in found] == [0, 0], found
  assert sum(out.count('[export]') for _, out, _ in found) == 1
  for end in ('.safetensors', '.json'):
    assert (tmp_path / f'one{end}').read_bytes() == (tmp_path / f'two{end}').read_bytes()


@pytest.mark.tf
def test_the_folder_says_what_the_model_is(trained, exported):
  config = json.loads((exported / 'config.json').read_text())
  assert config['export']['digest'] == digest(trained)
  tensors = load_file(exported / 'model.safetensors')
  assert tensors['layers.query'].shape == (2, 16, 2, 8)
  assert len(tensors['embedding']) % 64 == 0
  found = read_folder(exported)
  assert len(tensors['embedding']) > found.vocabulary.size == found.config.model.vocab_size
  text = (exported / 'README.md').read_text(encoding='utf-8')
  _, head, body = text.split('---\n', 2)
  front = yaml.safe_load(head)
  assert front == {
    'language': ['en'], 'license': 'apache-2.0', 'library_name': 'fairjax',
    'pipeline_tag': 'text-generation', 'metrics': ['perplexity'],
    'tags': ['fairjax', 'jax', 'transformer-xl', 'fairness', 'counterfactual-sentiment-bias']}
  assert 'was not measured' in body and '## Limits' in body and '## License' not in body
  assert escape(digest(trained)) in body


def test_tensors_keep_every_bit_of_every_dtype(tmp_path):
  bits = np.arange(1 << 16, dtype=np.uint16)  # every bfloat16: NaNs, infinities, -0.0
  params = {'layers': {'a': bits.view(ml_dtypes.bfloat16).reshape(256, 256).T,
                       'b': np.array([[np.nan, -0.0], [5e-324, np.inf]])[:, ::-1]},
            'c': np.float32(1.5), 'd': np.zeros((0, 3), np.float16)}
  save_file(to_tensors(params), tmp_path / 'x.safetensors')
  found = read_tensors(tmp_path / 'x.safetensors', cure='')
  for name, value in (('layers.a', params['layers']['a']), ('layers.b', params['layers']['b']),
                      ('c', params['c']), ('d', params['d'])):
    assert found[name].dtype == value.dtype and found[name].shape == value.shape
    assert found[name].tobytes() == np.ascontiguousarray(value).tobytes()


def test_tensors_that_do_not_fit_are_named_with_shapes_and_dtypes():
  model = ModelConfig(vocab_size=10, num_layers=1, model_dim=4, num_heads=1, head_dim=4, ff_dim=8)
  template = params_template(language_model(model), make_mesh(MeshConfig()))
  tensors = to_tensors(jax.tree.map(lambda leaf: np.ones(leaf.shape, leaf.dtype), template))
  assert jax.tree.structure(to_params(tensors, model, where='w')) == jax.tree.structure(template)
  tensors['softmax_bias'] = np.zeros(10, ml_dtypes.bfloat16)
  tensors['embedding'] = np.zeros((9, 4), np.float32)
  tensors['extra'] = tensors.pop('layers.query')
  with pytest.raises(UserError) as error:
    to_params(tensors, model, where='w')
  assert str(error.value) == (
    'w does not fit its configuration: embedding is float32 (9, 4) instead of float32 (10, 4); '
    'extra is float32 (1, 4, 1, 4) instead of nothing; layers.query is nothing instead of float32 '
    '(1, 4, 1, 4); softmax_bias is bfloat16 (10,) instead of float32 (10,)')


def _flip(folder):
  path = folder / 'model.safetensors'
  content = bytearray(path.read_bytes())
  content[-5] ^= 1
  path.write_bytes(content)


def _narrow(folder):
  tensors = load_file(folder / 'model.safetensors')
  save_file(tensors | {'embedding': tensors['embedding'][:, :8].copy()},
            folder / 'model.safetensors')


def _edit(folder, change):
  value = json.loads((folder / 'config.json').read_text())
  change(value)
  (folder / 'config.json').write_text(json.dumps(value))


@pytest.mark.tf
@pytest.mark.parametrize(('change', 'message'), [
  (lambda f: _flip(f), 'model.safetensors is damaged: its parameters have digest'),
  (lambda f: _narrow(f), 'embedding is float32 (512, 8) instead of float32 (512, 16)'),
  (lambda f: (f / 'model.safetensors').write_bytes(b'x'), 'cannot be read as safetensors'),
  (lambda f: (f / 'config.json').unlink(), 'config.json is missing'),
  (lambda f: _edit(f, lambda c: c.pop('export')), "('export' is missing)"),
  (lambda f: _edit(f, lambda c: c['export'].update(format=2)), 'has format 2'),
  (lambda f: _edit(f, lambda c: c['config']['model'].update(depth=2)), 'model.depth'),
  (lambda f: _edit(f, lambda c: c['config']['model'].update(num_layers=3)),
   'layers.attention_norm_bias is float32 (2, 16) instead of float32 (3, 16)'),
  (lambda f: (f / 'vocabulary' / 'spiece.model').write_bytes(b'x'), 'has fingerprint'),
  (lambda f: _edit(f, lambda c: c['export']['vocabulary'].update(fingerprint='00')),
   'names 00: copy the folder again'),
])
def test_a_damaged_folder_is_refused_before_anything_is_written(
    copy, tmp_path, refused, change, message):
  change(copy)
  refused(command('models import', tmp_path / 'w', f'--from={copy}'), message)
  assert not (tmp_path / 'w').exists()  # it belongs to no configuration yet


@pytest.mark.tf
def test_another_model_or_vocabulary_is_refused(exported, trained, tmp_path, refused):
  def refuse(workdir, words, *more):
    refused(command('models import', tmp_path / workdir, f'--from={exported}', *more,
                    config=f'{exported}/config.json'), words)

  refuse('w', 'model.ff_dim=32 but the checkpoint has 16', '--config.model.ff_dim=32')
  assert not (tmp_path / 'w').exists()
  texts = ['--config.data.source=lines', '--config.measure.scorers=vader',
           '--config.sentiment.scorer=vader',
           *(f'--config.data.{split}={tmp_path}/none' for split in ('train', 'valid', 'test'))]
  refuse('w3', f'file not found: {tmp_path}/none', *texts)
  assert not is_begun(tmp_path / 'w3')  # so the next try may name other files
  refuse('w2', 'model.vocab_multiple=1 but the checkpoint has 64',
         '--config.model.vocab_multiple=1')
  assert run('step data', tmp_path / 'w4', '--config.data.vocab_size=450',
             config=f'{exported}/config.json') == 0
  refuse('w4', 'import into a workdir whose data are not prepared yet',
         '--config.data.vocab_size=450')


@pytest.mark.tf
def test_nothing_is_overwritten_and_options_belong_to_their_form(trained, tmp_path, refused):
  (tmp_path / 'there').mkdir()
  (tmp_path / 'x.json').write_text('mine')
  for more, message in (
      ([f'--output={tmp_path}/there'], 'exists: it is not overwritten'),
      ([f'--output={tmp_path}/x.safetensors'], 'x.json exists: it is not overwritten'),
      ([f'--output={tmp_path}/y', '--prefix'], '--prefix does not belong to --form=fairjax'),
      ([f'--output={tmp_path}/y.safetensors', '--license=mit'],
       '--license does not belong to --form=transformer-xl'),
      ([f'--output={tmp_path}/y.safetensors', '--form=fairjax'], 'writes a folder'),
      # Its JSON, the arguments, would replace the weights.
      ([f'--output={tmp_path}/y.json', '--form=transformer-xl'], 'end in .safetensors'),
      ([f'--output={tmp_path}/y', '--license=My Own'], '--license=My Own is not an identifier'),
      ([f'--output={tmp_path}/y', '--language=English'], '--language=English is not a code'),
      ([f'--output={tmp_path}/y', '--model=baselin'], "did you mean 'baseline'")):
    refused(command('models export', trained, *more), message)
  assert sorted(p.name for p in tmp_path.iterdir()) == ['there', 'x.json']
  assert (tmp_path / 'x.json').read_text() == 'mine'
