"""Masked training: the loss, what moves, resumption bit by bit, meshes, the files it writes."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from command_words import changed
from golden_models import GOLDEN
from masked_cases import SENTENCES, new_start, rows_of, stop_before
from safetensors.numpy import load_file

from fairjax.cli import main as cli
from fairjax.cli import pretrained_verbs
from fairjax.pretrained import encode, load_pretrained, mlm_logits
from fairjax.pretrained.masked_lm import Sizes, masked_sums
from fairjax.pretrained.masked_rows import MaskedRows, Masking, special_tokens
from fairjax.run import masked_training as training
from fairjax.train import params_digest, read_metrics

pytestmark = pytest.mark.usefixtures('two_devices')

NEW = ['--layers=2', '--dim=16', '--heads=2', '--vocab_size=120']
SMALL = ['--max_length=16', '--rows=sentence', '--batch_size=8', '--steps=12', '--log_every=4',
         '--eval_every=6', '--checkpoint_every=4', '--hidden_dropout=0.2',
         '--attention_dropout=0.1']


def run(*arguments):
  return cli.main(list(map(str, arguments)))


def command(text, workdir, *more, sizes=NEW):
  return changed(['models', 'masked-lm', f'--data={text}', f'--valid={text}',
                  f'--workdir={workdir}', *sizes, *SMALL], [*map(str, more)])


def train(*arguments, **sizes):
  return run(*command(*arguments, **sizes))


@pytest.fixture(scope='module')
def trained(text, two_devices, tmp_path_factory):
  workdir = tmp_path_factory.mktemp('trained') / 'mlm'
  assert train(text, workdir) == 0
  return workdir


@pytest.fixture(scope='module')
def start():
  sizes = Sizes(kind='bert', layers=2, dim=16, heads=2, vocab_size=120, max_length=16)
  return new_start(sizes)


def masked_rows(start, *, share=0.3, count=8):
  special = special_tokens(start.tokenizer, pad_id=0, where='x', vocab_size=0)
  rows = rows_of([SENTENCES * 6], start.tokenizer, special)
  masked = MaskedRows(rows, Masking(share, False, 0), vocab_size=start.arch.vocab_size, length=16)
  return next(iter(masked.training(0, count)))


def test_loss_is_the_cross_entropy_at_the_masked_places(start):
  """Against a loop in float64 over the scores of all places."""
  batch = masked_rows(start)
  assert batch['weights'].sum() > 5 and (batch['weights'] == 0).any()
  scores = np.asarray(jax.jit(lambda params, ids, mask: mlm_logits(
    params, start.arch, encode(params, start.arch, ids, mask)))(
      start.params, batch['ids'], batch['mask']), np.float64)
  nats = right = count = 0
  for b in range(len(scores)):
    for place, target, weight in zip(batch['places'][b], batch['targets'][b], batch['weights'][b],
                                     strict=True):
      if weight:
        row = scores[b, place]
        nats += np.log(np.exp(row - row.max()).sum()) + row.max() - row[target]
        right += row.argmax() == target
        count += 1
  found = jax.jit(lambda params, batch: masked_sums(params, start.arch, batch, None))(
    start.params, batch)
  np.testing.assert_allclose(found, (nats, right, count), rtol=1e-5)


def test_what_it_writes_is_a_model_directory(text, trained, capsys, refused):
  names = {p.name for p in trained.iterdir() if not p.name.startswith('.')}
  assert names == {'card.json', 'config.json', 'data', 'model.safetensors', 'plan.json',
                   'tokenizer.json', 'tokenizer_config.json', 'vocab.txt', 'training'}
  model = load_pretrained(trained, 'mlm')
  done = json.loads((trained / 'training' / 'DONE').read_text())
  assert params_digest(jax.tree.map(jnp.asarray, model.params)) == done['digest']
  assert model.ignored == ()
  assert (model.arch.hidden_dropout, model.arch.attention_dropout) == (0.2, 0.1)
  assert model.config['architectures'] == ['BertForMaskedLM']
  load_pretrained(trained, 'encoder')
  # The names are those of published checkpoints.
  golden = load_file(GOLDEN / 'bert_mlm' / 'model.safetensors')  # of three layers
  assert set(load_file(trained / 'model.safetensors')) == {
    name for name in golden if '.layer.2.' not in name}
  card = json.loads((trained / 'card.json').read_text())
  assert card['steps'] == 12 and card['result']['skipped_updates'] == 0
  assert card['train']['rows'] == 48 and card['train']['unknown_tokens'] == 0
  metrics = read_metrics(trained / 'training' / 'metrics.jsonl')
  assert [(m['step'], m['kind']) for m in metrics] == [
    (4, 'train'), (6, 'valid'), (8, 'train'), (12, 'train'), (12, 'valid')]
  assert all(0 < m['loss'] < 10 and 0 <= m['accuracy'] <= 1 for m in metrics)
  # A finished training is left alone, and does not become another one.
  before = (trained / 'training' / 'DONE').stat()
  assert train(text, trained) == 0
  assert 'finished earlier' in capsys.readouterr().err
  assert (trained / 'training' / 'DONE').stat() == before
  for more, words in ((['--steps=13'], 'settings.train.steps: 12 -> 13'),
                      (['--attention_dropout=0'], 'config.attention_probs_dropout_prob'),
                      (['--whole_words'], 'settings.whole_words'),
                      (['--rows=packed'], 'source.rows')):
    refused(command(text, trained, *more), 'belongs to another training', words, alone=False)


def test_interrupted_by_sigterm_it_goes_on_to_the_same_model(text, trained, tmp_path, monkeypatch,
                                                             capsys):
  workdir, stops = tmp_path / 'mlm', []
  stop_before(5, monkeypatch, lambda: stops[-1])
  real = training.train_masked
  monkeypatch.setattr(training, 'train_masked', lambda *a, stop, **k: (
    stops.append(stop), real(*a, stop=stop, **k))[1])
  assert train(text, workdir) == 42
  assert 'saved after step 6 of 12' in capsys.readouterr().err
  assert not (workdir / 'model.safetensors').exists()
  monkeypatch.undo()
  assert train(text, workdir) == 0
  assert 'resumes after step 6 of 12' in capsys.readouterr().err
  for name in ('model.safetensors', 'config.json', 'tokenizer.json', 'card.json',
               'training/metrics.jsonl'):
    assert (workdir / name).read_bytes() == (trained / name).read_bytes(), name


def test_albert_shares_its_layers_and_frozen_parameters_stay(text, tmp_path, capsys, refused):
  """From scratch, then further with the embedding frozen."""
  first, second = tmp_path / 'albert', tmp_path / 'further'
  assert train(text, first, '--kind=albert', '--layers=3', '--embedding_dim=8', '--steps=4') == 0
  tensors = load_file(first / 'model.safetensors')
  golden = load_file(GOLDEN / 'albert_mlm' / 'model.safetensors')  # of two groups of two layers
  assert set(tensors) == {name for name in golden
                          if 'groups.1.' not in name and 'layers.1.' not in name}
  model = load_pretrained(first, 'mlm')
  assert model.arch.num_layers == 3 and len(model.params['layers']['qkv_bias']) == 1
  assert model.params['embeddings']['word'].shape[1] == 8
  assert 'PreTrainedTokenizerFast' in (first / 'tokenizer_config.json').read_text()
  assert train(text, second, f'--init={first}', '--freeze=embedding', '--steps=4',
               sizes=()) == 0
  assert 'embedding frozen' in capsys.readouterr().err
  after = load_pretrained(second, 'mlm')
  for group, arrays in model.params.items():
    for name, array in arrays.items():
      same = np.array_equal(array, after.params[group][name])
      assert same == (group in ('embeddings', 'projection')), (group, name)
  assert (second / 'tokenizer.json').read_bytes() == (first / 'tokenizer.json').read_bytes()
  for more, words in (('--freeze=1', 'share their parameters'),
                      ('--max_length=17', '--max-length=17 is too much')):
    refused(command(text, tmp_path / 'x', f'--init={first}', more, sizes=()), words, alone=False)
    assert not (tmp_path / 'x').exists()


def test_it_learns_what_can_be_learned(text, tmp_path):
  """Four sentences that no two words share: any word tells the others."""
  assert train(text, tmp_path / 'mlm', '--steps=300', '--learning_rate=0.01',
               '--eval_every=300', '--checkpoint_every=300', '--log_every=100') == 0
  found = json.loads((tmp_path / 'mlm' / 'card.json').read_text())['result']
  assert found['accuracy'] > 0.95 and found['loss'] < 1  # log(24 words) = 3.2 without learning


def test_a_validation_without_a_mask_is_refused_before_training(text, tmp_path, capsys):
  """A loss over no place is none; it was noticed after the steps."""
  (tmp_path / 'valid').write_text('a\n')
  assert run('models', 'masked-lm', f'--data={text}', f'--valid={tmp_path / "valid"}', *NEW, *SMALL,
             f'--workdir={tmp_path / "mlm"}', '--mask_share=0.001') == 2
  assert 'nothing of it is masked' in capsys.readouterr().err
  assert not (tmp_path / 'mlm' / 'plan.json').exists()


def test_a_folder_of_something_else_is_refused(text, tmp_path, refused):
  (tmp_path / 'config.json').write_text('{}')
  refused(command(text, tmp_path), 'is not of this training')
  assert [p.name for p in tmp_path.iterdir()] == ['config.json']


def test_corpus_and_pronouns(tmp_path, refused, found):
  folder = tmp_path / 'corpus'
  assert run('gender', 'corpus', f'--output={folder}', '--sentences=200', '--strength=0.5') == 0
  refused(['gender', 'corpus', f'--output={folder}'], 'exists')
  assert len((folder / 'train.txt').read_text().splitlines()) == 200
  assert len((folder / 'valid.txt').read_text().splitlines()) == 10
  assert run('models', 'masked-lm', f'--data={folder}/train.txt', f'--workdir={tmp_path}/mlm',
             *changed([*NEW, *SMALL], ['--vocab_size=400', '--max_length=24', '--steps=2']),
             '--cda=two', f'--names={folder}/names.txt') == 0
  card = json.loads((tmp_path / 'mlm' / 'card.json').read_text())
  cda = card['plan']['source']['cda']
  assert cda['sided'] == 'two' and cda['changed'] > 150 and cda['words']['(name)'] > 10
  (result,) = found('gender', 'pronouns', f'--model={tmp_path}/mlm',
                    f'--shares={folder}/professions.tsv').values()
  assert result['r']['n'] == 24 and len(result['p_she']) == 24
  assert all(0 < p < 1 for p in result['p_she'].values())
  row = pretrained_verbs._format_pronouns({'my/m_l_m': result}).splitlines()[-1]
  assert row.startswith(f"my/m_l_m  {result['r']['value']:.3f} (")
  assert (tmp_path / 'mlm' / 'data' / 'vocabulary').is_dir()  # as the workdir of a run has
  refused(['gender', 'correlations', f'--model={tmp_path}/mlm@typo', f'--bios={folder}/train.txt',
           '--metrics=bios', f'--output={tmp_path}/c'], 'leave @typo out')


def test_a_loss_that_is_no_number_is_printed(tmp_path, monkeypatch, capsys):
  monkeypatch.setattr(training, 'train_on_text', lambda *_, **__: {
    'steps': 2, 'result': {'loss': 'nan', 'accuracy': 0.0, 'places': 3.0, 'skipped_updates': 1}})
  assert cli.main(['models', 'masked-lm', f'--data={tmp_path}', f'--workdir={tmp_path}']) == 0
  assert 'validation loss nan, accuracy 0.0000' in capsys.readouterr().out
