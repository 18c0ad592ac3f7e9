"""Fine-tuning of BERT: pairs with token types, what is frozen stays, restarts are exact."""

import jax.numpy as jnp
import numpy as np
import pytest
from golden_models import GOLDEN

from fairjax.errors import UserError
from fairjax.pretrained import class_logits, encode, load_pretrained
from fairjax.pretrained.fit import Recipe
from fairjax.pretrained.heads import Inputs, Labelled, TokenLearner, run_restarts
from fairjax.pretrained.tokens import encode_pairs, pair_types, separator_id, wordpiece_tokenizer

BERT = GOLDEN / 'bert_classifier'
RECIPE = Recipe(2, 8, 1e-3)

pytestmark = pytest.mark.usefixtures('one_device')


@pytest.fixture(scope='module')
def train():
  rng = np.random.default_rng(0)
  words = np.array(['bread', 'baker', 'sad', 'was', 'and', 'the'])  # one piece each
  first, second = ([' '.join(rng.choice(words, 2)) for _ in range(24)] for _ in range(2))
  labels = [len({*a.split()} & {*b.split()}) for a, b in zip(first, second, strict=True)]
  return Labelled(Inputs(first, second), np.array(labels, np.float32))


@pytest.fixture(scope='module')
def learner(one_device):
  return TokenLearner(BERT, labels=['similarity'], pairs=True, max_length=8)


@pytest.fixture(scope='module')
def found(learner, train, tmp_path_factory):
  folder = tmp_path_factory.mktemp('restarts')
  return folder, tune(learner, train, folder)


def tune(learner, train, folder=None, **more):
  return run_restarts(
    learner, train, lambda predict: {'scores': predict(train.inputs)[:, 0].tolist()},
    recipe=RECIPE, restarts=2, curve=(0, 3), frozen_first=Recipe(1, 8, 1e-2), folder=folder,
    **({'log': lambda line: None} | more))


def test_the_model_reads_pairs_as_its_tokenizer_types_them(learner, train):
  """Scores of the learner against one row at a time, with the tokenizer's own token types."""
  params = learner.fresh(7, train)
  ours = learner.predict(params, train.inputs)
  model = load_pretrained(BERT, 'classifier')
  plain, swapped = [], []
  for a, b in list(zip(*train.inputs, strict=True))[:6]:
    encoding = model.tokenizer.encode(a, b)
    ids, mask = jnp.array([encoding.ids]), jnp.ones((1, len(encoding.ids)), bool)
    for types, scores in ((encoding.type_ids, plain), ([0] * len(encoding.ids), swapped)):
      hidden = encode(params, model.arch, ids, mask, jnp.array([types]))
      scores.append(float(class_logits(params, model.arch, hidden)[0, 0]))
  np.testing.assert_allclose(ours[:6, 0], plain, atol=2e-6)
  assert np.abs(np.array(plain) - swapped).max() > 1e-4


def test_heads_of_two_seeds_differ_and_start_at_the_mean(learner, train):
  heads = [learner.fresh(seed, train)['classifier'] for seed in (0, 1, 0)]
  assert (heads[0]['kernel'] != heads[1]['kernel']).all()
  np.testing.assert_array_equal(heads[0]['kernel'], heads[2]['kernel'])
  assert heads[0]['bias'] == pytest.approx([train.labels.mean()])


def test_restarts_are_kept_and_run_again_to_the_same_bits(learner, train, found):
  folder, first = found
  files = {p.name: p.read_bytes() for p in folder.glob('*.json')}
  assert sorted(files) == ['restart-0.json', 'restart-1.json']
  (folder / 'restart-1.json').unlink()
  lines = []
  again = tune(learner, train, folder, log=lines.append)
  assert again == first and any('finished earlier' in line for line in lines)
  assert files == {p.name: p.read_bytes() for p in folder.glob('*.json')}
  assert [f['seed'] for f in first] == [0, 1]
  assert first[0]['result'] != first[1]['result']


def test_curves_begin_with_a_head_on_the_frozen_model_and_it_learns(found, train):
  for restart in found[1]:
    assert [p['step'] for p in restart['curve']] == [0, 3] and restart['steps'] == 6
    start, later = (np.array(p['result']['scores']) for p in restart['curve'])
    assert np.abs(start - later).max() > 1e-5
    assert np.isfinite(restart['train_loss'])

  ends = np.mean([f['result']['scores'] for f in found[1]], axis=0)
  assert np.square(ends - train.labels).mean() < train.labels.var()


def test_another_training_is_refused(learner, train, found):
  other = Labelled(train.inputs, train.labels + 1)
  with pytest.raises(UserError, match='restart-0.json belongs to another training: train'):
    tune(learner, other, found[0])


@pytest.mark.parametrize('freeze', ['1', 'all'])
def test_what_is_frozen_stays_bit_by_bit(train, freeze):
  learner = TokenLearner(BERT, labels=['similarity'], pairs=True, freeze=freeze, max_length=8)
  start = learner.fresh(0, train)
  tuning = learner.tuning(train, Recipe(1, 8, 1e-2, weight_decay=0.5, warmup_share=0.0))
  params, _ = tuning.run(start, name='test', seed=0, log=lambda line: None)
  for name, array in start['embeddings'].items():
    np.testing.assert_array_equal(array, params['embeddings'][name])
  for name, array in start['layers'].items():
    moved = np.asarray(params['layers'][name]) != array
    assert not moved[0].any(), name
    assert moved[1].any() == (freeze != 'all'), name
  assert (np.asarray(params['classifier']['kernel']) != start['classifier']['kernel']).all()
  assert not learner.can_thaw if freeze == 'all' else learner.can_thaw


def test_classes_of_single_texts():
  texts = ['sad the', 'baker it', 'sad bread', 'baker bread'] * 6
  labels = np.array([0, 1, 0, 1] * 6, np.int32)
  learner = TokenLearner(BERT, labels=['sad', 'happy', 'other'], max_length=8)
  (found,) = run_restarts(
    learner, Labelled(Inputs(texts), labels),
    lambda predict: {'scores': predict(Inputs(texts)).tolist()}, recipe=Recipe(10, 8, 5e-3),
    restarts=1, log=lambda line: None)
  scores = np.array(found['result']['scores'])
  assert scores.shape == (24, 3) and (scores.argmax(-1) == labels).mean() > 0.9


def test_types_and_long_pairs():
  tokenizer = load_pretrained(BERT, 'encoder').tokenizer
  sep = separator_id(tokenizer)
  long, short = ' '.join(['bread'] * 20), 'sad clerk'
  encoded = encode_pairs(tokenizer, [long, short, long], [short, short, long], max_length=12)
  assert encoded.truncated == 2 and [len(row) for row in encoded.ids][::2] == [12, 12]
  for row in encoded.ids:
    assert (row == sep).sum() == 2 and row[-1] == sep
    types = np.asarray(pair_types(jnp.array(row[None]), sep))[0]
    assert types.tolist() == [0] * (row.tolist().index(sep) + 1) + [1] * (
      len(row) - row.tolist().index(sep) - 1)
  assert encode_pairs(tokenizer, ['sad \ud800'], [short], max_length=12).ids


def test_a_separator_in_a_text_is_refused():
  words = {w: i for i, w in enumerate(['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', 'sad'])}
  tokenizer = wordpiece_tokenizer(words, {}, where='x')
  assert encode_pairs(tokenizer, ['sad'], ['sad'], max_length=12).ids[0].tolist() == [
    2, 5, 3, 5, 3]
  with pytest.raises(UserError, match="holds the tokenizer's own separator"):
    encode_pairs(tokenizer, ['sad [SEP] sad'], ['sad'], max_length=12)


def test_a_tokenizer_without_pairs_is_refused():
  with pytest.raises(UserError, match='does not join a pair of sentences as BERT does'):
    TokenLearner(GOLDEN / 'albert_mlm', labels=['x'], pairs=True)
