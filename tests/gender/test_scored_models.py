"""One interface to masked and causal models, against the models themselves, one text at a time."""

import dataclasses
import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from golden_models import GOLDEN, copied, lm_logits

from fairjax.config import Config, ModelConfig
from fairjax.config_io import to_dict
from fairjax.errors import UserError
from fairjax.files import installed_versions, write_json
from fairjax.gender.scored_models import BLANK, fill_in, open_language_model
from fairjax.model import TransformerXL, init_memory, language_model
from fairjax.pretrained import encode, load_pretrained, mlm_logits
from fairjax.vocabulary import build_word_vocabulary

pytestmark = pytest.mark.usefixtures('one_device')

TEXTS = ['A sad [BLANK] was good.', 'The baker was [BLANK].']
WORDS = 'the nurse told doctor that she he would be late likes to sing . , \'s'.split()


@pytest.fixture(scope='module', params=['bert_mlm', 'albert_mlm'])
def masked(request):
  return open_language_model(GOLDEN / request.param)


@pytest.fixture(scope='module')
def gpt2(tmp_path_factory):
  return open_language_model(
    copied(tmp_path_factory.mktemp('models') / 'gpt2', 'gpt2', eos_token_id=0))


@pytest.fixture(scope='module')
def own(tmp_path_factory):
  """An exported Transformer-XL with random parameters; its folder and the parameters."""
  from safetensors.numpy import save_file

  from fairjax.config import MeshConfig
  from fairjax.run.export import to_tensors
  from fairjax.train import make_mesh, params_digest, params_template
  folder = tmp_path_factory.mktemp('own')
  vocabulary = build_word_vocabulary(
    [' '.join(WORDS)] * 2, size=100, directory=folder / 'vocabulary')
  config = Config(model=ModelConfig(
    num_layers=2, model_dim=16, num_heads=2, head_dim=8, ff_dim=32, segment_len=8, memory_len=4))
  model = dataclasses.replace(config.model, vocab_size=vocabulary.size)
  random = np.random.default_rng(0)
  params = jax.tree.map(lambda leaf: random.normal(0, 0.3, leaf.shape).astype(leaf.dtype),
                        params_template(language_model(model), make_mesh(MeshConfig())))
  save_file(to_tensors(params), folder / 'model.safetensors')
  write_json(folder / 'config.json', {
    'config': to_dict(config), 'versions': installed_versions(), 'export': {
      'format': 1, 'model': 'baseline', 'identity': {}, 'digest': params_digest(params),
      'vocabulary': {'fingerprint': vocabulary.fingerprint}}})
  return folder, model, params, vocabulary


@functools.partial(jax.jit, static_argnums=1)
def scores_of_one(params, arch, ids):
  hidden = encode(params, arch, ids, jnp.ones_like(ids, bool))
  return jax.nn.log_softmax(mlm_logits(params, arch, hidden)[0])


def slow_mlm(model, ids):
  """Log-probabilities `[n, V]` of one row."""
  raw = load_pretrained(model._model.directory, 'mlm')
  return np.asarray(scores_of_one(raw.params, raw.arch, jnp.array([ids])))


def test_masked_fills_are_the_best_pieces_at_the_mask(masked):
  tokenizer = masked._tokenizer
  special = {tokenizer.token_to_id(t) for t in (
    '[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', '<pad>', '<unk>')}
  for text, fills in zip(TEXTS, masked.fill(TEXTS, top=40), strict=True):
    ids = tokenizer.encode(fill_in(text, '[MASK]')).ids
    row = slow_mlm(masked, ids)[ids.index(masked._mask_id)]
    words = [tokenizer.id_to_token(int(i)).replace('\u2581', ' ').strip()
             for i in np.argsort(-row) if i not in special]
    assert fills == list(dict.fromkeys(filter(None, words)))[:40]


def test_the_mask_of_an_albert_takes_the_space_before_it(tmp_path):
  """The published files say so (lstrip); a piece for that space was never seen in training."""
  folder = copied(tmp_path / 'albert', 'albert_mlm')
  content = json.loads((folder / 'tokenizer.json').read_text())
  for token in content['added_tokens']:
    token['lstrip'] = token['content'] == '[MASK]'
  (folder / 'tokenizer.json').write_text(json.dumps(content))
  model = open_language_model(folder)
  tokens = model._tokenizer.encode(fill_in(TEXTS[1], '[MASK]')).tokens
  place = next(i for i, token in enumerate(tokens) if '[MASK]' in token)
  assert tokens[place - 1].strip('\u2581')  # the end of "was"
  assert model._tokenizer.token_to_id('\u2581') is not None
  assert '' not in model.fill(TEXTS[1:], top=999)[0]  # which stands for no text: never a fill


def test_masked_candidates_are_read_piece_by_piece(masked):
  words = ['clerk', 'happy farmer']
  (found,) = masked.candidate_log_probs(TEXTS[:1], [words])
  for word, value in zip(words, found, strict=True):
    before = masked._tokenizer.encode(TEXTS[0].partition(BLANK)[0].rstrip()).ids
    ids = list(masked._tokenizer.encode(fill_in(TEXTS[0], word)).ids)
    behind = masked._tokenizer.encode(TEXTS[0].partition(BLANK)[2]).ids
    start, stop = len(before) - 1, len(ids) - (len(behind) - 1)
    total = 0.0
    for place in range(start, stop):
      row = ids[:place] + [masked._mask_id] * (stop - place) + ids[stop:]
      total += slow_mlm(masked, row)[place, ids[place]]
    assert stop - start == len(masked._tokenizer.encode(word, add_special_tokens=False).ids)
    assert value == pytest.approx(total, abs=1e-4)
  assert masked.piece_counts(words)[1] > 1


def slow_gpt2(model, text):
  raw = load_pretrained(GOLDEN / 'gpt2', 'lm')
  ids = [0, *raw.tokenizer.encode(text, add_special_tokens=False).ids]
  row = np.array([ids + [0] * (24 - len(ids))])  # what comes after a text changes nothing in it
  return ids, np.asarray(jax.nn.log_softmax(lm_logits(raw.params, raw.arch, row)[0, :len(ids)]))


def test_causal_log_probs_are_sums_over_tokens(gpt2):
  texts = [fill_in(TEXTS[0], 'clerk'), fill_in(TEXTS[0], 'old farmer'), 'Short']
  for text, value in zip(texts, gpt2.log_probs(texts), strict=True):
    ids, row = slow_gpt2(gpt2, text)
    slow = sum(row[i, ids[i + 1]] for i in range(len(ids) - 1))
    assert value == pytest.approx(slow, abs=1e-4)
  (pair,) = gpt2.candidate_log_probs(TEXTS[:1], [['clerk', 'old farmer']])
  np.testing.assert_allclose(pair, gpt2.log_probs(texts[:2]), atol=1e-4)


def test_causal_fills_are_the_best_next_tokens(gpt2):
  """A word that two tokens write, with and without a space before it, is one fill."""
  (fills,) = gpt2.fill(TEXTS[1:], top=200)
  _, row = slow_gpt2(gpt2, 'The baker was')
  words = [gpt2._vocabulary.surfaces[i].decode('utf-8', 'replace').strip()
           for i in np.argsort(-row[-1])]
  assert len(set(words[:200])) < 190
  assert fills == list(dict.fromkeys(filter(None, words)))[:200]


def test_a_model_trained_here(own):
  folder, config, params, vocabulary = own
  model = open_language_model(folder)
  assert model.kind == 'causal' and model.max_length > 210  # the longest sentence of OntoNotes
  text = "The nurse's late, she likes the doctor."
  ids = [*vocabulary.start_ids, *vocabulary.encode(text)]
  assert len(ids) == 11
  xl = TransformerXL(config)
  hidden = jax.jit(xl.apply)({'params': params}, jnp.array([ids]), init_memory(config, 1)).hidden
  row = np.asarray(jax.nn.log_softmax(
    language_model(xl.config).logits(params, hidden)[0, :, :vocabulary.size]))
  slow = sum(row[i, ids[i + 1]] for i in range(len(ids) - 1))
  assert model.log_probs([text])[0] == pytest.approx(slow, abs=1e-4)
  (states,) = model.token_features([text])
  np.testing.assert_allclose(states.hidden, hidden[0], atol=1e-5)
  at = text.index('doctor')
  np.testing.assert_allclose(states.span(at, at + 6), hidden[0, -2], atol=1e-5)
  np.testing.assert_allclose(model.features([text])[0], hidden[0].mean(0), atol=1e-5)
  (fills,) = model.fill(['She likes to [BLANK].'], top=2)
  assert len(fills) == 2 and {*fills} <= {*WORDS}
  # A word that is not listed is no fill, as the [UNK] of a masked model is none.
  assert {*model.fill(['She likes to [BLANK].'], top=999)[0]} == {*WORDS}
  assert model.piece_counts(['doctor', 'zebra']) == [1, 0]


def test_features_are_those_of_the_text_by_itself(masked, gpt2):
  texts = ['A sad clerk!', 'The baker was sad.']
  for model in (masked, gpt2):
    together = model.features(texts)
    np.testing.assert_allclose(together[0], model.features(texts[:1])[0], atol=1e-5)
    states = model.token_features(texts)
    at = texts[1].index('baker')
    span = states[1].span(at, at + len('baker'))
    assert span.shape == together[0].shape
    touched = [i for i, (a, b) in enumerate(states[1].offsets) if a < at + 5 and b > at]
    np.testing.assert_allclose(span, states[1].hidden[touched].mean(0), atol=1e-6)
    assert model.truncated == 0
    with pytest.raises(ValueError, match='no token'):
      states[0].span(900, 901)


def test_features_need_no_head_that_fills():
  whole = open_language_model(GOLDEN / 'bert_mlm')
  model = open_language_model(GOLDEN / 'bert_classifier', features_only=True)
  assert model.features(['A sad clerk!']).shape == whole.features(['A sad clerk!']).shape
  with pytest.raises(UserError):
    open_language_model(GOLDEN / 'bert_classifier')


def test_too_long_features_are_cut_and_counted(gpt2):
  long = 'word ' * 2000
  assert gpt2.features([long]).shape[0] == 1 and gpt2.truncated == 1
  first = gpt2._vocabulary.prompt_ids('word word')
  np.testing.assert_array_equal(
    gpt2.features([long], max_length=len(first)), gpt2.features(['word word']))
  assert gpt2.truncated == 2
  with pytest.raises(UserError, match='tokens, but the model reads'):
    gpt2.log_probs([long])


@pytest.mark.parametrize('text', ['no blank', '[BLANK] and [BLANK]', ' [BLANK] '])
def test_a_text_has_one_blank(gpt2, text):
  with pytest.raises(UserError, match='once'):
    gpt2.fill([text], top=1)


def test_what_is_no_model_or_has_no_models_by_name(tmp_path):
  with pytest.raises(UserError, match=r'config\.json: No such file'):
    open_language_model(tmp_path)
  with pytest.raises(UserError, match='leave @country-embedding-10 out'):
    open_language_model(GOLDEN / 'bert_mlm', model='country-embedding-10')
