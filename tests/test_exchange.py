"""Reference checkpoints in and out of a workdir."""

import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

from fairjax.cli import main
from fairjax.config import ModelConfig
from fairjax.counterfactual import load_attribute
from fairjax.data.planted import make_planted_documents
from fairjax.job.exchange import order_words, reorder
from fairjax.model import TransformerXL, init_memory
from fairjax.model.reference import params_from_reference

GOLDEN = pathlib.Path(__file__).parent / 'golden' / 'transformer_xl'
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
    scores = jax.nn.log_softmax(model.apply({'params': p}, hidden, method='logits'))
    logits.append(np.asarray(scores)[0][:, [all_words.index(w) for w in old_words]])
  np.testing.assert_allclose(*logits, atol=2e-5)


@pytest.mark.tf
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
  assert not (tmp_path / 'run' / 'lm').exists()


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
