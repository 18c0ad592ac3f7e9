"""Distinct words, divergence of words and of the next token: closed forms and slow counts."""

import collections
import itertools
import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.spatial.distance
import scipy.special
from model_oracle import whole_logits
from record_cases import records_of
from test_sampler import CONFIG, make_params
from test_similarity import ATTRIBUTE

from fairjax.counterfactual.attributes import Prefix
from fairjax.generate.sampler import next_token_log_probs
from fairjax.measure import OpinionScorer, measure_records, read_generations
from fairjax.measure.content import ContentOptions
from fairjax.measure.words import (
  count_words,
  distinct_words,
  joint_js,
  pairwise_js,
  word_divergence,
)
from fairjax.model.decoding import TransformerXLDecoder
from fairjax.run.next_token import next_token_divergence

COLOURS = ATTRIBUTE.value_texts


def make_records(texts, **more):
  """`texts(template, value, sample)` for 2 templates, 3 values, 30 samples."""
  return records_of(ATTRIBUTE, 30, lambda p, s: texts(p.template, p.value, s), **more)


def make_generations(texts, *, numbered=True):
  return read_generations(make_records(texts, **{} if numbered else {'sample': None}), ATTRIBUTE,
                          empty='keep')


def biased(t, a, s):
  rng = np.random.default_rng([t, s])
  words = rng.choice(['the', 'a', 'sea.', 'sea', 'sun', 'moon'], 6).tolist()
  return ' '.join([*words, COLOURS[a]] if s % 2 else words)


def same(t, a, s):
  return biased(t, 0, s)


def independent(t, a, s):
  return biased(t, 0, s + 1000 * (a + 1))


def test_divergences_are_those_of_scipy():
  table = np.random.default_rng(0).integers(0, 5, (4, 9))
  p = table / table.sum(1, keepdims=True)
  want = [scipy.spatial.distance.jensenshannon(p[a], p[b], base=2) ** 2
          for a, b in itertools.combinations(range(4), 2)]
  np.testing.assert_allclose(pairwise_js(table), want, atol=1e-12)
  mean = p.mean(0)
  kl = np.mean([scipy.special.rel_entr(row, mean).sum() for row in p]) / math.log(2)
  assert joint_js(table) == pytest.approx(kl, abs=1e-12)
  assert joint_js(table[:2]) == pytest.approx(want[0], abs=1e-12)
  many = np.random.default_rng(1).integers(0, 3, (5, 1 << 20))  # several blocks of pairs
  p = many[[1, 4]] / many[[1, 4]].sum(1, keepdims=True)
  assert pairwise_js(many)[6] == pytest.approx(
    scipy.spatial.distance.jensenshannon(*p, base=2) ** 2, abs=1e-9)


def test_words_are_counted_as_written():
  generations = make_generations(biased)
  counts = count_words(generations)
  want = collections.Counter(
    (int(a), w) for a, text in zip(generations.value_index, generations.continuations, strict=True)
    for w in text.split())
  table = counts.by_value()
  assert {(a, w): n for (a, w), n in want.items()} == {
    (a, counts.words[w]): int(n) for (a, w), n in np.ndenumerate(table) if n}
  assert 'sea.' in counts.words and 'sea' in counts.words


@pytest.mark.parametrize('numbered', [True, False])
def test_divergence_is_above_its_floor_only_where_values_differ(numbered):
  found = word_divergence(count_words(make_generations(biased, numbered=numbered)))
  assert found['coupled'] == numbered and not found['within_floor']
  assert found['p_value'] == pytest.approx(1 / 101) and found['value'] > found['null_p95']
  assert found['corrected'] == pytest.approx(found['value'] - found['null_mean'])
  noise = word_divergence(count_words(make_generations(independent, numbered=numbered)))
  assert noise['value'] > 0 and noise['within_floor'] and noise['p_value'] > 0.05
  assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_values_are_permuted_within_each_of_many_numbers():
  words = records_of(ATTRIBUTE, 150, lambda p, s: f'{p.template}.{s}')  # 300 numbers, a word each
  found = word_divergence(count_words(read_generations(words, ATTRIBUTE)))
  assert found['coupled'] and found['value'] == found['null_p95'] == 0


def test_equal_texts_have_no_divergence_and_no_floor():
  found = word_divergence(count_words(make_generations(same)))
  assert found['value'] < 1e-12 and found['null_p95'] < 1e-12 and found['p_value'] == 1
  free = word_divergence(count_words(make_generations(same)), coupled=False)
  assert free['null_mean'] > 1e-4 and not free['coupled']


def test_the_floor_keeps_templates_apart():
  """Templates of different words do not raise the floor when values are permuted."""
  texts = lambda t, a, s: ('sun ' * 5, 'moon ' * 5)[t]
  found = word_divergence(count_words(make_generations(texts, numbered=False)))
  assert found['value'] == 0 and found['null_p95'] < 1e-12


def test_a_value_without_words_gives_no_number():
  found = word_divergence(count_words(make_generations(lambda t, a, s: 'x' if a else ' ')))
  assert found['value'] is None and found['within_floor'] is None and found['largest_pairs'] == []


def test_distinct_words_are_the_largest_smoothed_ratios():
  def texts(t, a, s):
    return ' '.join(['both'] * 3 + (['often'] * 2 if a == 0 else ['other']) + ['rare'] * (
      a == 0 and s < 1) + ['seldom'] * (a == 0 or s < 6))
  counts = count_words(make_generations(texts))
  found = distinct_words(counts, 'Red', 'Blue')
  table = {w: tuple(counts.by_value()[:2, i]) for i, w in enumerate(counts.words)}
  totals, known = counts.by_value()[:2].sum(1), sum(any(c) for c in table.values())
  def ratio(w):
    (a, b), (m, n) = table[w], totals
    return (a + 1) / (m + known) / ((b + 1) / (n + known))
  assert [f['word'] for f in found] == ['often', 'seldom'] and ratio('both') < 1
  for f in found:
    assert f['ratio'] == pytest.approx(ratio(f['word']), rel=1e-12)
    assert (f['count'], f['count_other']) == table[f['word']]


def test_many_records_are_read_by_their_first_samples(monkeypatch):
  generations = make_generations(biased)
  monkeypatch.setattr('fairjax.measure.words.MOST_RECORDS', 6 * 7 + 5)
  counts = count_words(generations)
  assert counts.left_out == len(generations) - 42
  assert set(counts.generations.sample) == set(range(7))
  assert word_divergence(counts)['left_out'] == counts.left_out


def test_next_token_divergences_are_those_of_scipy():
  rng = np.random.default_rng(0)
  log_probs = [scipy.special.log_softmax(rng.normal(size=(3, 7)) * 3, axis=1) for _ in range(2)]
  found = next_token_divergence(log_probs, COLOURS, (0, 'b'))
  p = np.exp(log_probs)
  kl = np.array([[[scipy.special.rel_entr(x, y).sum() for y in m] for x in m] for m in p])
  pairs = list(itertools.permutations(range(3), 2))
  assert found['kl'] == pytest.approx(np.mean([kl[:, a, b] for a, b in pairs]), abs=1e-12)
  assert found['kl_largest'] == pytest.approx(kl.max(), abs=1e-12)
  js = [scipy.spatial.distance.jensenshannon(m[a], m[b]) ** 2 for m in p for a, b in pairs]
  assert found['js'] == pytest.approx(np.mean(js), abs=1e-12)
  assert found['by_template'][1]['template'] == 'b'
  assert found['by_template'][1]['kl'] == pytest.approx(
    np.mean([kl[1, a, b] for a, b in pairs]), abs=1e-12)
  means = {(COLOURS[a], COLOURS[b]): kl[:, a, b].mean() for a, b in pairs}
  top = found['largest_pairs'][0]
  assert tuple(top['values']) == max(means, key=means.get)
  assert top['kl'] == pytest.approx(max(means.values()), abs=1e-12)
  assert found['prefixes'] == 6 and json.dumps(found, allow_nan=False)
  equal = next_token_divergence([np.repeat(x[:1], 3, 0) for x in log_probs], COLOURS, (0, 1))
  assert equal['kl'] < 1e-12 and equal['js'] < 1e-12


class Words:
  """A vocabulary of 10 words; the model's table has 12 rows."""

  size, eos_id, start_ids = 10, 1, [1]

  def encode(self, text):
    return [3 + sum(map(ord, w)) % 7 for w in text.split()]

  def prompt_ids(self, text):
    return [*self.start_ids, *self.encode(text)]


def test_log_probs_are_those_of_a_whole_pass():
  params = make_params(CONFIG)
  prefixes = [Prefix(t, a, 'w ' * (t + 2 * a) + 'xyz'[a]) for t in range(2) for a in range(3)]
  found = next_token_log_probs(params, TransformerXLDecoder(CONFIG), Words(), prefixes)
  assert [x.shape for x in found] == [(3, 10), (3, 10)]
  for prefix, got in zip(prefixes, np.concatenate(found), strict=True):
    ids = [1, *Words().encode(prefix.text)]
    text = jnp.array([ids + [0] * (12 - len(ids))])  # one length compiles once
    logits = whole_logits(CONFIG, params, text)[0, len(ids) - 1, :10]
    np.testing.assert_allclose(got, jax.nn.log_softmax(logits), atol=1e-5)
    assert np.exp(got).sum() == pytest.approx(1, abs=1e-12)


def test_measures_hold_the_content_and_say_what_is_absent():
  scorers = [OpinionScorer(['sun'], ['moon'])]
  found = measure_records(make_records(biased), ATTRIBUTE, scorers, permutations=20)
  assert set(found['absent']) == {'semantic_similarity', 'next_token_divergence'}
  assert 'minilm' in found['absent']['semantic_similarity']
  assert found['semantic_similarity'] is None and found['next_token_divergence'] is None
  assert found['distinct_word_divergence']['permutations'] == 20
  first = found['distinct_words'][0]
  assert first['words'][0]['word'] == first['value']  # the value's own name tells it apart most
  given = measure_records(
    make_records(biased), ATTRIBUTE, scorers, permutations=20,
    content=ContentOptions(next_token={'kl': 0.5}))
  assert given['next_token_divergence'] == {'kl': 0.5}
  assert set(given['absent']) == {'semantic_similarity'}
