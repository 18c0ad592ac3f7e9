"""Labelled sentences, their states and batches, without a model."""

import dataclasses

import numpy as np
import pytest

from fairjax.errors import UserError
from fairjax.train.sentiment_examples import (
  LabelledSentences,
  SentenceStates,
  classification_report,
  read_positions,
  sentence_states,
  split_sentences_set,
  state_batches,
)


def _sentences(n=40, t=6):
  rng = np.random.default_rng(1)
  length = rng.integers(2, t + 1, size=n).astype(np.int32)
  tokens = np.where(np.arange(t) < length[:, None], np.arange(n)[:, None] + 3, 0).astype(np.int32)
  return LabelledSentences(tokens, length, (np.arange(n) % 2).astype(np.float32))


def test_sentence_split_holds_every_sentence_once():
  data = _sentences()
  train, valid = split_sentences_set(data, valid_share=0.25, batch_size=4, seed=3)
  assert len(valid) == 10
  found = np.sort(np.concatenate([train.tokens[:, 0], valid.tokens[:, 0]]))
  np.testing.assert_array_equal(found, np.sort(data.tokens[:, 0]))


def test_sentence_split_refuses_one_class_and_too_few():
  data = _sentences()
  kinds = [dataclasses.replace(data, label=np.full_like(data.label, x)) for x in (1, 0)]
  for bad, size, words in ((kinds[0], 4, 'all 40 .* are positive'),
                           (kinds[1], 64, 'all 40 .* are negative'),
                           (data, 64, 'too few .*max_sentences or .sentence_tokens'),
                           (data.take(np.arange(0)), 4, '0 sentences .* too few')):
    with pytest.raises(UserError, match=words):
      split_sentences_set(bad, valid_share=0.25, batch_size=size, seed=3)


def _states(n=40, places=3):
  """h-bar [n, places, 2] holds (sentence, place)."""
  sentence, place = np.meshgrid(np.arange(n), np.arange(places), indexing='ij')
  return SentenceStates(np.stack([sentence, place], -1).astype(np.float32),
                        (np.arange(n) % 2).astype(np.float32))


def test_state_batches_resume_and_cover_an_epoch():
  data = _states()
  arguments = dict(batch_size=8, prefix_share=0.5, seed=7)
  stream = state_batches(data, start_step=0, **arguments)
  batches = [next(stream) for _ in range(12)]
  resumed = state_batches(data, start_step=9, **arguments)
  for expected in batches[9:]:
    found = next(resumed)
    for name in expected:
      np.testing.assert_array_equal(found[name], expected[name])
  epoch = np.concatenate([b['h_bar'][:, 0] for b in batches[:5]])
  assert len(set(epoch.tolist())) == 40  # each sentence once
  assert (epoch != np.concatenate([b['h_bar'][:, 0] for b in batches[5:10]])).any()
  for batch in batches:
    np.testing.assert_array_equal(batch['label'], batch['h_bar'][:, 0] % 2)


@pytest.mark.parametrize('places, expected', [(3, [0.8, 0.1, 0.1]), (1, [1.0])])
def test_states_are_read_at_the_last_token_or_at_a_prefix(places, expected):
  stream = state_batches(_states(100, places), batch_size=100, prefix_share=0.2, seed=0,
                         start_step=0)
  found = np.concatenate([next(stream)['h_bar'][:, 1] for _ in range(200)]).astype(int)
  np.testing.assert_allclose(np.bincount(found) / len(found), expected, atol=0.015)


def test_positions_are_the_last_token_and_uniform_prefixes():
  data = LabelledSentences(np.full((5000, 9), 5, np.int32), np.full(5000, 9, np.int32),
                           np.zeros(5000, np.float32))
  positions = read_positions(data, prefixes=4, seed=0)
  assert positions.shape == (5000, 5) and (positions[:, 0] == 8).all()
  counts = np.bincount(positions[:, 1:].ravel(), minlength=9) / 20000
  np.testing.assert_allclose(counts, [0] + [1 / 7] * 7 + [0], atol=0.01)
  short = dataclasses.replace(data, length=np.full(5000, 2, np.int32))
  assert (read_positions(short, prefixes=2, seed=0) == 1).all()


def test_states_are_those_of_the_sentences_whatever_the_batch():
  data = _sentences()

  def features(tokens, positions):
    assert len(tokens) == 16  # one compiled shape
    return np.stack([np.take_along_axis(tokens, positions, 1), positions], -1)

  states = sentence_states(data, features, batch_size=16, prefixes=2, seed=5)
  assert states.h_bar.shape == (40, 3, 2)
  np.testing.assert_array_equal(states.h_bar[:, :, 1], read_positions(data, prefixes=2, seed=5))
  np.testing.assert_array_equal(states.h_bar[:, :, 0], np.tile(np.arange(40)[:, None] + 3, 3))
  np.testing.assert_array_equal(states.label, data.label)


def test_classification_report_by_hand():
  report = classification_report(np.array([1, 1, 0, 0, 1]), np.array([1, 0, 0, 1, 1]))
  assert report['accuracy'] == pytest.approx(3 / 5)
  assert report['f1'] == pytest.approx(2 / 3)  # 2 hits, 1 false alarm, 1 miss
  assert report['macro_f1'] == pytest.approx((2 / 3 + 1 / 2) / 2)
  assert report['majority'] == pytest.approx(3 / 5)
