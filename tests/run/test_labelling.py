"""Labelled sentences: the same as by shuffling everything, without holding everything."""

import numpy as np
import pytest

from fairjax.config import SentimentConfig
from fairjax.data.documents import split_sentences
from fairjax.errors import UserError
from fairjax.measure import OpinionScorer, RecordedScorer
from fairjax.run import labelling
from fairjax.run.labelling import label_sentences
from fairjax.train import derive_seed
from fairjax.vocabulary import WordVocabulary

WORDS = ['good', 'bad', 'dull', 'news', 'Today', 'we', 'read', 'long', *map(str, range(400))]
VOCABULARY = WordVocabulary('\n'.join(['<pad>', '<eos>', '<unk>', *WORDS, '']).encode())
SCORER = OpinionScorer(['good'], ['bad'])


def documents(number, seed=0):
  """Two sentences each: one opinion word or none, some too long."""
  rng = np.random.default_rng(seed)
  for i in range(number):
    word = ('good', 'bad', 'dull')[rng.integers(3)]
    tail = ' long' * int(rng.integers(0, 8))
    yield f'Today we read {i % 400} {word} news{tail}. Today {word} {i % 7}.'


def stage(**more):
  return SentimentConfig(**{'sentence_tokens': 10, 'max_sentences': 0} | more)


def by_shuffling(texts, config, seed):
  """The rule in the docstring, word for word, with everything in memory."""
  sentences = [s for d in texts for s in split_sentences(d)]
  order = np.random.default_rng(derive_seed(seed, 'sentences')).permutation(len(sentences))
  rows = []
  for i in order:
    score = SCORER.score([sentences[i]])[0]
    ids = [1, *VOCABULARY.encode(sentences[i])]
    if abs(2 * score - 1) > config.margin and len(ids) <= config.sentence_tokens:
      rows.append((ids, float(score > 0.5)))
  return rows[:config.max_sentences or None]


def rows_of(found):
  return [(row[:n].tolist(), float(label)) for row, n, label in zip(
    found.tokens, found.length, found.label, strict=True)]


def run(texts, config, *, seed=3, **more):
  lines = []
  found = label_sentences(texts, SCORER, VOCABULARY, config, seed=seed, log=lines.append, **more)
  (line,) = lines
  return found, line


@pytest.mark.parametrize('start_ids', [(), (7,), (7, 8)])
def test_sentences_of_a_decoder_begin_with_its_start_ids(start_ids):
  usual, _ = run(documents(150), stage(sentence_tokens=40))
  found, _ = run(documents(150), stage(sentence_tokens=40), start_ids=start_ids)
  assert rows_of(found) == [([*start_ids, *ids[1:]], label) for ids, label in rows_of(usual)]


@pytest.mark.parametrize('most', [0, 1, 17, 100, 10_000])
@pytest.mark.parametrize('chunk', [7, 5000])
def test_it_is_the_shuffle_word_for_word(monkeypatch, most, chunk):
  monkeypatch.setattr(labelling, 'SCORING_CHUNK', chunk)
  config = stage(max_sentences=most)
  found, _ = run(documents(150), config)
  assert rows_of(found) == by_shuffling(documents(150), config, 3)
  assert found.tokens.dtype == np.int32 and found.tokens.shape[1] == 10
  assert found.length.dtype == np.int32 and found.label.dtype == np.float32
  assert (found.tokens[np.arange(10) >= found.length[:, None]] == 0).all()


def test_a_corpus_of_just_the_cap_is_shuffled_and_one_more_sentence_is_streamed():
  config = stage(max_sentences=20)
  exact, _ = run(documents(50), config, most_held=100)
  assert rows_of(exact) == by_shuffling(documents(50), config, 3)
  streamed, _ = run(documents(50), config, most_held=99)
  assert rows_of(streamed) != rows_of(exact) and len(streamed) == 20


@pytest.mark.parametrize('chunk', [1, 13, 5000])
def test_streaming_keeps_the_lowest_numbers_whatever_the_chunk(monkeypatch, chunk):
  monkeypatch.setattr(labelling, 'SCORING_CHUNK', chunk)
  sentences = [s for d in documents(200) for s in split_sentences(d)]
  rng = np.random.default_rng(derive_seed(3, 'sentences'))
  numbered = sorted((rng.random(), s) for s in sentences)
  expected = [[1, *VOCABULARY.encode(s)] for _, s in numbered
              if ('good' in s or 'bad' in s) and len(VOCABULARY.encode(s)) <= 9]
  for most in (5, 60, 0):
    found, _ = run(documents(200), stage(max_sentences=most), most_held=10)
    assert [ids for ids, _ in rows_of(found)] == expected[:most or None]


def test_memory_is_bounded_and_few_sentences_are_scored(monkeypatch):
  monkeypatch.setattr(labelling, 'SCORING_CHUNK', 20)
  import gc
  alive = []

  class Text(str):
    """A document that can be counted."""

    __slots__ = ('__weakref__',)

  def corpus():
    for i in range(5000):
      yield Text(f'Today good {i % 400}.')
      if i % 500 == 499:
        gc.collect()
        alive.append(sum(isinstance(o, Text) for o in gc.get_objects()))

  found, line = run(corpus(), stage(max_sentences=50), most_held=100)
  assert len(found) == 50 and alive and max(alive) <= 2
  scored = int(line.split(' from ')[1].split(' of ')[0].replace(',', ''))
  # 50 (1 + ln(5000 / 50)) = 280 may be kept at the time; then what waits in chunks, and the first
  assert scored < 500 and 'of 5,000 read' in line


def test_counts_are_reported():
  config = stage(margin=0.5)
  texts = ['Today good.', 'Today good bad.', 'Today good' + ' long' * 20 + '.', 'Today bad.',
           'good']
  found, line = run(texts, config, start_ids=())  # with which 'good' is a single token
  assert line == ('[sentiment] 2 sentences with |2 score - 1| > 0.5 (1 positive) from 5 of 5 read; '
                  '2 left out, not of 2 to sentence_tokens=10 tokens')
  assert len(found) == 2


def test_scorers_of_records_and_bad_scores_are_refused():
  class Wrong:
    name = fingerprint = 'wrong'

    def score(self, texts):
      return np.full(len(texts), np.nan)

  for scorer, words in ((RecordedScorer(), 'sentiment.scorer=recorded'), (Wrong(), 'gave nan')):
    with pytest.raises(UserError, match=words):
      label_sentences(documents(3), scorer, VOCABULARY, stage(), seed=0, log=print)


def test_no_sentence_gives_empty_arrays():
  found, line = run([], stage())
  assert len(found) == 0 and found.tokens.shape == (0, 10) and '0 of 0 read' in line
