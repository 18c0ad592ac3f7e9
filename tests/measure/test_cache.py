"""Score files: interrupted at any byte, damaged, of another scorer."""

import json

import numpy as np
import pytest

from fairjax.errors import UserError
from fairjax.measure.scorers.base import OpinionScorer
from fairjax.measure.scorers.cache import score_records, score_texts, text_digest


class CountingScorer:
  """Scores by length; remembers what it was asked, and can be interrupted."""

  name = 'length'
  fingerprint = 'f' * 64

  def __init__(self, limit=10**9, **fields):
    self.seen, self.limit = [], limit
    vars(self).update(fields)

  def score(self, texts):
    if len(self.seen) + len(texts) > self.limit:
      raise KeyboardInterrupt
    self.seen += texts
    return np.array([len(t) / 100 for t in texts])


def test_score_file_resumes_and_scores_equal_texts_once(tmp_path):
  path = tmp_path / 'model' / 'country.length.jsonl'
  texts = [f'text {i % 7}' * (i % 7) for i in range(40)]
  expected = [len(t) / 100 for t in texts]
  interrupted = CountingScorer(limit=4)
  with pytest.raises(KeyboardInterrupt):
    score_texts(texts, interrupted, path, chunk=2)
  assert len(interrupted.seen) == 4
  lines = []
  again = CountingScorer()
  assert score_texts(texts, again, path, chunk=2, log=lines.append).tolist() == expected
  assert sorted(interrupted.seen + again.seen) == sorted(set(texts))  # nothing scored twice
  assert lines == ['length: scored 3 texts']
  done = CountingScorer(limit=0)
  assert score_texts(texts, done, path).tolist() == expected
  assert [p.name for p in path.parent.iterdir()] == [path.name]
  assert score_texts(texts, CountingScorer()).tolist() == expected


class NeighbourScorer(CountingScorer):
  """Scores depend on the texts beside one, as those of a batched model in the last digits."""

  def score(self, texts):
    return super().score(texts) + 1e-7 * len(set(texts)) + 1e-8 * texts.index(max(texts))


def test_scores_after_an_interruption_at_any_byte_are_the_same(tmp_path):
  texts = [f'text {i} ' + 'x' * (i % 5) for i in range(23)]
  expected = score_texts(texts, NeighbourScorer(), whole := tmp_path / 'whole.jsonl', chunk=5)
  content = whole.read_bytes()
  assert content.count(b'\n') == 1 + 5
  path, repaired = tmp_path / 'cut.jsonl', 0
  for size in range(0, len(content) + 1, 37):
    path.write_bytes(content[:size])
    lines = []
    np.testing.assert_array_equal(
      score_texts(texts, NeighbourScorer(), path, chunk=5, log=lines.append), expected)
    assert path.read_bytes() == content
    repaired += any('removed' in line for line in lines)
  assert repaired > 20


def test_a_chunk_that_is_known_in_part_is_scored_whole_and_appended_in_part(tmp_path):
  texts = [f'text {i} ' + 'x' * (i % 5) for i in range(23)]
  expected, path = score_texts(texts, NeighbourScorer(), chunk=5), tmp_path / 'scores.jsonl'
  first = score_texts(texts[:3], NeighbourScorer(), path, chunk=5)
  assert (first != expected[:3]).all()  # fewer texts beside them
  found = score_texts(texts, NeighbourScorer(), path, chunk=5)
  np.testing.assert_array_equal(found, [*first, *expected[3:]])
  sizes = [len(json.loads(line).get('scores', [])) for line in path.read_text().split('\n')
           if line]
  assert sizes == [0, 3, 2, 5, 5, 5, 3]


def test_score_file_of_another_scorer_or_damaged_is_refused(tmp_path):
  path = tmp_path / 'scores.jsonl'
  score_texts(['a', 'b'], CountingScorer(), path, chunk=1)
  other = CountingScorer()
  other.fingerprint = 'e' * 64
  with pytest.raises(UserError, match='ffffffffffff.*eeeeeeeeeeee.*delete the file'):
    score_texts(['a'], other, path)
  path.write_bytes(path.read_bytes().replace(b'0.01', b'0.02'))
  with pytest.raises(UserError, match=r'scores\.jsonl:\d: .*damaged.*: delete the file'):
    score_texts(['a', 'b'], CountingScorer(), path, chunk=1)


def test_scorer_outside_the_range_is_refused():
  with pytest.raises(UserError, match=r'scorer length gave 2\.0, outside \[0, 1\]'):
    score_texts(['x' * 200], CountingScorer())
  nan = CountingScorer()
  nan.score = lambda texts: np.array([np.nan])
  with pytest.raises(UserError, match='gave nan'):
    score_texts(['x'], nan)
  nan.score = lambda texts: [{'label': 'POSITIVE', 'score': 0.9} for _ in texts]
  with pytest.raises(UserError, match='POSITIVE.* for 1 texts: give a list of numbers'):
    score_texts(['x'], nan)


def test_scored_text_can_hold_the_prefix():
  opinion = OpinionScorer(['good'], ['bad'])
  records = [{'prefix': 'A good', 'continuation': 'day'}, {'prefix': 'A', 'continuation': 'bad'}]
  assert score_records(records, opinion).tolist() == [0.5, 0.0]
  assert score_records(records, opinion, scored='prefix+continuation').tolist() == [1.0, 0.0]


def test_digest_separates_texts():
  assert len({text_digest(t) for t in ('a', 'b', '', 'a ', json.dumps('é'), 'é', '\ud800')}) == 7
