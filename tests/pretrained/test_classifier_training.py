"""Training a classifier: it learns, resumes exactly, refuses others; its files are standard."""

import json
import shutil
import signal
import types

import numpy as np
import pytest
from command_words import changed
from golden_models import GOLDEN
from safetensors.numpy import load_file

from fairjax.cli import main as cli
from fairjax.files import FolderLock, write_sealed_json
from fairjax.measure import load_scorer
from fairjax.pretrained import fit, load_pretrained

pytestmark = pytest.mark.usefixtures('two_devices')

SMALL = ['--layers=1', '--dim=32', '--heads=2', '--vocab_size=80', '--max_length=16',
         '--epochs=5', '--batch_size=8', '--learning_rate=0.005']


@pytest.fixture(scope='module')
def data(tmp_path_factory):
  """Sentences whose one opinion word decides; some are neutral, one is long."""
  rng = np.random.default_rng(0)
  folder = tmp_path_factory.mktemp('data')
  nouns, words = ['film', 'plot', 'actor', 'song'], {0: ['bad', 'wooden'], 4: ['good', 'fine']}
  for name, count in (('train.tsv', 240), ('dev.tsv', 60)):
    lines = []
    for i in range(count):
      label = int(rng.choice([0, 4]))
      noun, word = rng.choice(nouns), rng.choice(words[label])
      text = f'the {noun} is {word} .' if i else 'the film ' * 20 + f'is {word} .'
      lines.append(f'{label}\t{label // 4}\t{text}' if i % 20 else f'2\t\tthe {noun}')
    (folder / name).write_text('\n'.join(lines) + '\n')
  return folder


def run(*arguments):
  return cli.main(list(map(str, arguments)))


def command(data, output, *more):
  return changed(['models', 'classifier', f'--data={data}/train.tsv', f'--dev={data}/dev.tsv',
                  f'--output={output}', *SMALL], [*map(str, more)])


def train(*arguments):
  return run(*command(*arguments))


@pytest.fixture(scope='module')
def trained(data, two_devices, tmp_path_factory):
  output = tmp_path_factory.mktemp('trained') / 'sst'
  assert train(data, output) == 0
  return output


def test_it_learns_and_says_how_well(data, trained, capsys, found):
  card = json.loads((trained / 'card.json').read_text())
  assert sorted(p.name for p in trained.iterdir()) == [
    '.lock', 'card.json', 'config.json', 'model.safetensors', 'tokenizer.json',
    'tokenizer_config.json', 'vocab.txt']
  assert card['train_neutral_left_out'] == 12 and card['dev_neutral_left_out'] == 3
  assert card['dev']['n'] == 57 and card['dev']['accuracy']['value'] > 0.95
  assert len(card['epochs']) == 5
  accuracies = [e['dev_accuracy'] for e in card['epochs']]
  assert card['chosen_epoch'] == 1 + accuracies.index(max(accuracies))
  assert card['dev']['accuracy']['value'] == max(accuracies)
  evaluate = ['scorers', 'evaluate', f'--data={data}/dev.tsv', f'--model={trained}']
  result = found(*evaluate, '--scorer=vader')
  model, vader = result['scorers'].values()
  assert {k: model[k] for k in card['dev']} == card['dev']
  assert vader['n'] == 57 and vader['undecided'] > 0
  assert result['data']['neutral_left_out'] == 3
  assert run(*evaluate) == 0
  assert f"  {card['dev']['accuracy']['value']:.3f} (" in capsys.readouterr().out


def test_the_loss_of_an_epoch_is_that_of_its_rows():
  """Rows of 8, and of 8 and 4 in one line: the last batch of an epoch is smaller."""
  lines = [{'kind': 'train', 'step': s, 'loss': loss, 'rows': rows}
           for s, loss, rows in ((3, 9, 8), (4, 1, 8), (6, 2, 6), (7, 9, 8))]
  found = fit.FineTuning.epoch_loss(types.SimpleNamespace(epoch_steps=3), lines, 1)
  assert found == pytest.approx((1 * 8 + 2 * 12) / 20)


def test_an_interrupted_training_goes_on_to_the_same_model(data, trained, tmp_path, monkeypatch,
                                                           capsys, refused):
  output, whole = tmp_path / 'sst', fit.TokenRows.batch
  left = [75]  # 29 steps an epoch: in the middle of the third

  def stopping(self, numbers, rows):
    left[0] -= 1
    if not left[0]:
      signal.raise_signal(signal.SIGTERM)
    return whole(self, numbers, rows)

  monkeypatch.setattr(fit.TokenRows, 'batch', stopping)
  assert train(data, output) == 42
  assert (output / 'training' / 'best.safetensors').exists()
  assert not (output / 'model.safetensors').exists()
  monkeypatch.undo()
  # Another training is refused and touches nothing.
  before = {p: p.read_bytes() for p in output.rglob('*') if p.is_file()}
  for change, message in (('--seed=1', 'settings.seed: 0 -> 1'),
                          ('--learning_rate=0.01', 'settings.learning_rate'),
                          (f'--data={data}/dev.tsv', 'train: '), ('--vocab_size=40', 'config.')):
    refused(command(data, output, change), 'belongs to another training', message, alone=False)
  assert before == {p: p.read_bytes() for p in output.rglob('*') if p.is_file()}
  assert train(data, output) == 0
  assert 'resumes after step' in capsys.readouterr().err
  for name in ('model.safetensors', 'config.json', 'tokenizer.json', 'card.json'):
    assert (output / name).read_bytes() == (trained / name).read_bytes(), name
  assert not (output / 'training').exists()


def test_a_finished_training_is_left_alone(data, trained, tmp_path, capsys, refused):
  before = (trained / 'model.safetensors').stat()
  (trained / 'training').mkdir()  # as a kill after the card leaves it
  (trained / 'training' / 'best.safetensors').write_bytes(b'x')
  assert train(data, trained) == 0
  assert 'finished earlier' in capsys.readouterr().err
  assert (trained / 'model.safetensors').stat() == before and not (trained / 'training').exists()
  refused(command(data, trained, '--epochs=6'), 'settings.epochs: 5 -> 6', alone=False)
  with FolderLock(tmp_path / 'new', print):
    refused(command(data, tmp_path / 'new'), 'is in use by another run', alone=False)


@pytest.mark.parametrize(('card', 'words'), [
  ('{"x"', 'card.json is damaged'), ('{"identity": {}}', 'it has no SHA-256'),
  ({'plan': {}}, 'belongs to another training')])
def test_a_card_of_something_else_is_named(data, tmp_path, refused, card, words):
  if isinstance(card, str):
    (tmp_path / 'card.json').write_text(card)
  else:
    write_sealed_json(tmp_path / 'card.json', card)  # as models masked-lm does
  refused(command(data, tmp_path), words, alone=False)
  assert {p.name for p in tmp_path.iterdir()} == {'card.json'}


@pytest.mark.parametrize('change', ['the start itself', 'another tokenizer'])
def test_files_of_others_are_not_written_over(data, tmp_path, capsys, change):
  folder = tmp_path / 'mine'
  shutil.copytree(GOLDEN / 'bert_classifier', folder)
  start = GOLDEN / 'bert_classifier'
  if change == 'the start itself':
    start = folder
  elif change == 'another tokenizer':
    for name in ('config.json', 'model.safetensors'):
      (folder / name).unlink()
    (folder / 'tokenizer.json').write_text('{}')
  before = {p: p.read_bytes() for p in folder.rglob('*') if p.is_file()}
  assert run('models', 'classifier', f'--data={data}/train.tsv', f'--output={folder}', '--epochs=1',
             f'--init={start}') == 2
  assert 'exists and is not of this training' in capsys.readouterr().err
  assert before == {p: p.read_bytes() for p in folder.rglob('*') if p.is_file()}


@pytest.mark.parametrize(('name', 'said'), [
  pytest.param('bert_classifier', 'pooler, a new classification layer of 2 classes',
               marks=pytest.mark.weekly),
  ('albert_mlm', 'no pooler (a new one is made)')])
def test_any_checkpoint_can_be_the_start(data, tmp_path, capsys, name, said):
  assert run('models', 'classifier', f'--data={data}/train.tsv', f'--output={tmp_path / "out"}',
             '--epochs=1', '--learning_rate=1e-9', f'--init={GOLDEN / name}') == 0
  error = capsys.readouterr().err
  assert said in error and '23 dev texts (0 neutral left out), a tenth of the data' in error
  ours, base = (load_pretrained(d, 'encoder') for d in (tmp_path / 'out', GOLDEN / name))
  for group, arrays in base.params.items():  # so low a rate moves nothing: it is the start
    for key, array in arrays.items():
      np.testing.assert_allclose(ours.params[group][key], array, atol=1e-6)
  model = load_pretrained(tmp_path / 'out', 'classifier')
  assert model.arch.labels == ('negative', 'positive')
  assert model.params['classifier']['kernel'].shape == (16, 2)
  assert model.max_length == 24


def test_names_are_those_that_others_read(trained):
  stored = set(load_file(GOLDEN / 'bert_classifier' / 'model.safetensors'))
  ours = load_file(trained / 'model.safetensors')
  assert set(ours) == {k for k in stored if '.layer.' not in k or '.layer.0.' in k}
  config = json.loads((trained / 'config.json').read_text())
  assert config['architectures'] == ['BertForSequenceClassification']
  golden = json.loads((GOLDEN / 'bert_classifier' / 'config.json').read_text())
  assert set(config) <= set(golden)


def test_five_classes_and_trees(tmp_path, capsys, refused, found):
  path = tmp_path / 'trees.txt'
  rows = [(0, 'awful'), (1, 'bad'), (2, 'odd'), (3, 'good'), (4, 'superb')]
  path.write_text(''.join(f'({label} (2 film) ({label} {word}))\n' for label, word in rows * 12))
  out = tmp_path / 'five'
  options = ['models', 'classifier', f'--data={path}', f'--dev={path}', '--classes=5',
             *changed(SMALL, ['--batch_size=4', '--epochs=12'])]
  assert run(*changed(options, ['--epochs=1']), f'--output={tmp_path / "phrases"}', '--phrases'
             ) == 0
  assert '11 training texts (0 neutral and 169 repeated' in capsys.readouterr().err
  assert run(*options, f'--output={out}') == 0
  assert '60 training texts' in capsys.readouterr().err
  evaluate = ['scorers', 'evaluate', f'--data={path}', '--classes=5']
  (rated,) = found(*evaluate, f'--model={out}')['scorers'].values()
  assert rated['accuracy']['value'] > 0.95 and 'positive_f1' not in rated
  scorer, texts = load_scorer(f'bert:{out}'), [f'film {word}' for _, word in rows]
  assert scorer.probabilities(texts).argmax(-1).tolist() == [0, 1, 2, 3, 4]
  assert scorer.score(texts)[0] < scorer.score(texts)[4]
  # Values given in another order than that of the model's classes change nothing.
  names = ['very negative', 'negative', 'neutral', 'positive', 'very positive']
  given = ','.join(f'{names[i]}={i / 4}' for i in (3, 0, 4, 1, 2))
  (same,) = found(*evaluate, f'--scorer=bert:{out}#{given}')['scorers'].values()
  assert same == rated
  tied = ','.join(f'{name}={min(i, 3) / 3}' for i, name in enumerate(names))
  for name, words in (('vader', 'has no five classes'),
                      (f'bert:{out}#{tied}', 'gives two classes the same value')):
    refused([*evaluate, f'--scorer={name}'], words)


@pytest.mark.parametrize(('arguments', 'message'), [
  (['models', 'classifier'], '--output'),
  (['models', 'classifier', '--output=x', '--dim=10', '--heads=3'], '--heads=3'),
  (['models', 'classifier', '--output=x', '--phrases'], 'phrases need trees'),
  (['models', 'classifier', '--output=x', '--init=none'], 'none is no directory'),
  (['scorers', 'evaluate'], 'needs --model=DIR or --scorer=NAME'),
  (['scorers', 'evaluate', '--scorer=opinion'], '--lexicon POSITIVE NEGATIVE'),
])
def test_bad_options_are_one_line(data, arguments, message, refused):
  refused([*arguments, f'--data={data}/train.tsv'], message, alone=False)


def test_what_was_cut_and_classes_without_a_text_are_said(data, tmp_path, capsys, refused):
  text = (data / 'train.tsv').read_text()
  (tmp_path / 'train.tsv').write_text(text + f"4\t1\t{'good film ' * 20}\n" * 2)
  (tmp_path / 'dev.tsv').write_text('4\t1\tthe film is good .\n' * 4)
  assert train(tmp_path, tmp_path / 'out', '--epochs=1') == 0
  error = capsys.readouterr().err
  assert ('[data] 2 of 230 training texts are longer than the 16 tokens the model reads: their end '
          'is not seen') in error
  assert '[data] WARNING: no dev text is negative' in error
  (tmp_path / 'train.tsv').write_text('4\t1\tthe film is good .\n3\t1\tthe plot is fine .\n')
  refused(command(tmp_path, tmp_path / 'other'), 'all 2 training texts are positive')
  assert not (tmp_path / 'other').exists()
