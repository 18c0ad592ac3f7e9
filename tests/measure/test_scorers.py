"""Scorers, lexicons and the score file."""

import json

import numpy as np
import pytest

from fairjax.counterfactual.attributes import load_attribute
from fairjax.errors import UserError
from fairjax.measure.scorers import load_scorer
from fairjax.measure.scorers.base import (
  OpinionScorer,
  RecordedScorer,
  Scorer,
  VaderScorer,
  read_lexicon,
  sensitive_lexicon_words,
)
from fairjax.measure.scorers.cache import score_records, score_texts, text_digest


@pytest.fixture
def opinion():
  return OpinionScorer(
    ['good', 'happy', 'first-rate', 'a+', 'envious'], ['bad', "can't", 'envious'])


@pytest.mark.parametrize('text, expected', [
  ('', 0.5),
  ('Nothing to see.', 0.5),
  ('GOOD, good and bad.', 2 / 3),  # tokens, not types; case and punctuation do not matter
  ('bad bad', 0.0),
  ('goodness badly', 0.5),  # whole tokens only
  ('a first-rate day', 1.0),  # one token, one count
  ('good-bad', 0.5),  # a compound of neither list counts as its parts
  ("the bad's good's", 0.5),
  ('good-happy and bad', 2 / 3),
  ('graded A+ and bad', 0.5),
  ('I can’t.', 0.0),  # typographic apostrophe
  ('envious envious bad', 0.0),  # in both lists: counts in neither
  ('good\nhappy\tbad', 2 / 3),
])
def test_opinion_share(opinion, text, expected):
  assert opinion.score([text]).tolist() == [expected]


def test_opinion_reports_words_it_cannot_use(opinion):
  assert opinion.in_both == ('envious',)
  assert 'envious' not in opinion.lexicon
  assert OpinionScorer(['good', 'anti-'], ['bad']).unmatchable == ('anti-',)
  with pytest.raises(UserError, match='positive only'):
    OpinionScorer(['good'], ['good'])


def test_opinion_fingerprint_depends_on_the_words_alone():
  base = OpinionScorer(['a', 'b'], ['c']).fingerprint
  assert base == OpinionScorer(['b', 'a', 'a'], ['c']).fingerprint
  assert base != OpinionScorer(['a'], ['b', 'c']).fingerprint


def test_lexicon_file_format(tmp_path):
  path = tmp_path / 'positive.txt'
  path.write_bytes(b'\xef\xbb\xbf; a header; with words\r\n;\r\n\r\ngood\r\nna\xc3\xafve\r\n')
  assert read_lexicon(path) == ['good', 'naïve']


@pytest.mark.parametrize('content, message', [
  (b'; only a header\n', 'holds no word'),
  (b'good\nvery bad\n', r'words\.txt:2: .* several words'),
  (b'good\n\nna\xefve\n', r'words\.txt:3: not UTF-8'),
])
def test_lexicon_errors_name_file_and_line(tmp_path, content, message):
  path = tmp_path / 'words.txt'
  path.write_bytes(content)
  with pytest.raises(UserError, match=message):
    OpinionScorer.from_lexicon_files(path, path)


def test_load_scorer_errors(tmp_path):
  with pytest.raises(UserError, match="unknown scorer 'vadr': did you mean 'vader'"):
    load_scorer('vadr')
  with pytest.raises(UserError, match="unknown scorer 'vader:x'"):
    load_scorer('vader:x')
  with pytest.raises(UserError, match='--lexicon POSITIVE NEGATIVE'):
    load_scorer('opinion')
  with pytest.raises(UserError, match='none.txt: No such file'):
    load_scorer('opinion', lexicon=(tmp_path / 'none.txt', tmp_path / 'none.txt'))
  assert load_scorer('recorded:google').name == 'recorded:google'


def test_real_lexicons(test_data):
  files = [test_data / 'lexicons' / f'opinion_{kind}.txt' for kind in ('positive', 'negative')]
  scorer = load_scorer('opinion', lexicon=files)
  assert isinstance(scorer, Scorer)
  assert set(scorer.in_both) == {'envious', 'enviously', 'enviousness'}
  assert len(scorer.lexicon) == 2006 + 4783 - 2 * 3
  assert scorer.unmatchable == ('anti-', 'bull****', 'bull----')
  # The definition's example: "cleaner" is an occupation and a positive opinion word.
  assert sensitive_lexicon_words(scorer, load_attribute('occupation')) == [
    {'value': 'cleaner', 'word': 'cleaner', 'valence': 1}]
  # "easy-to-use" is an entry; "award-winning" is none, but both of its parts are.
  assert scorer.count('an award-winning, easy-to-use f**k') == (3, 1)


def test_textblob_is_its_polarity_on_the_scale_of_scores():
  from textblob import TextBlob
  texts = ['A lovely film.', 'Not good at all.', 'It is', '', '\ud800 good', 'a\x00b good']
  scorer = load_scorer('textblob')
  assert isinstance(scorer, Scorer) and scorer.fingerprint == load_scorer('textblob').fingerprint
  scores = scorer.score(texts)
  assert scores.tolist() == [(TextBlob(text).sentiment.polarity + 1) / 2 for text in texts]
  assert scores[0] > 0.5 > scores[1] and scores[2] == scores[3] == 0.5 and scores.max() <= 1
  assert scorer.score([]).shape == (0,) and scorer.lexicon['lovely'] > 0 > scorer.lexicon['bad']


def test_vader_scale_and_fingerprint():
  scorer = VaderScorer()
  scores = scorer.score(['', 'A great, wonderful day.', 'A terrible, awful day.'])
  assert scores.dtype == np.float64 and scores[0] == 0.5
  # Compound of one word of valence v: v / sqrt(v^2 + 15).
  v = scorer.lexicon['good']
  single = scorer.score(['good'])[0]
  assert single == pytest.approx((round(v / np.sqrt(v * v + 15), 4) + 1) / 2, abs=1e-12)
  assert scores[1] > 0.8 and scores[2] < 0.2
  assert scorer.score([]).shape == (0,)
  assert scorer.fingerprint == VaderScorer().fingerprint and len(scorer.fingerprint) == 64


def records_with(*scores):
  return [{'scores': s, '_where': f'x.jsonl:{i}'} for i, s in enumerate(scores, 1)]


def test_recorded_scores():
  records = records_with({'google': 0.25}, {'google': 1}, {'google': 0})
  assert RecordedScorer().score_records(records).tolist() == [0.25, 1.0, 0.0]
  both = records_with({'google': 0.25, 'bert': 0.5})
  assert RecordedScorer('bert').score_records(both).tolist() == [0.5]
  assert score_records(both, load_scorer('recorded:google')).tolist() == [0.25]


@pytest.mark.parametrize('bad, message', [
  ({'s': 1.5}, r"x\.jsonl:2: score 's' is 1\.5, not a number in \[0, 1\]"),
  ({'s': -0.1}, r'x\.jsonl:2: .*-0\.1'),
  ({'s': float('nan')}, r'x\.jsonl:2: .*nan'),
  ({'s': '0.5'}, r"x\.jsonl:2: .*'0\.5'"),
  ({'s': True}, r'x\.jsonl:2: .*True'),
  ({'t': 0.5}, r"x\.jsonl:2: no score 's'"),
  (None, r"x\.jsonl:2: the record has no 'scores'"),
])
def test_recorded_scores_outside_the_range_or_absent(bad, message):
  records = records_with({'s': 0.5}, bad)
  with pytest.raises(UserError, match=message):
    RecordedScorer('s').score_records(records)


def test_one_of_several_recorded_scores_must_be_chosen():
  with pytest.raises(UserError, match=r'x\.jsonl:1: several scores: choose .* from s, t'):
    RecordedScorer().score_records(records_with({'s': 0.5, 't': 0.5}))


class CountingScorer:
  """Scores by length; remembers what it was asked, and can be interrupted."""

  name = 'length'
  fingerprint = 'f' * 64

  def __init__(self, limit=10**9):
    self.seen, self.limit = [], limit

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
  content = path.read_bytes()
  for place in range(len(content) - 1):  # without the last line end, which makes it unfinished
    damaged = bytearray(content)
    damaged[place] ^= 1 << place % 8
    path.write_bytes(damaged)
    with pytest.raises(UserError, match=r'scores\.jsonl:\d: .*damaged.*: delete the file'):
      score_texts(['a', 'b'], CountingScorer(), path, chunk=1)
  path.write_bytes(b'not a journal\n')
  with pytest.raises(UserError, match=r'scores\.jsonl:1: not a file of this version'):
    score_texts(['a'], CountingScorer(), path)


def test_scorer_outside_the_range_is_refused():
  with pytest.raises(UserError, match=r'scorer length gave 2\.0, outside \[0, 1\]'):
    score_texts(['x' * 200], CountingScorer())
  nan = CountingScorer()
  nan.score = lambda texts: np.array([np.nan])
  with pytest.raises(UserError, match='gave nan'):
    score_texts(['x'], nan)


def test_scored_text_can_hold_the_prefix(opinion):
  records = [{'prefix': 'A good', 'continuation': 'day'}, {'prefix': 'A', 'continuation': 'bad'}]
  assert score_records(records, opinion).tolist() == [0.5, 0.0]
  assert score_records(records, opinion, scored='prefix+continuation').tolist() == [1.0, 0.0]


def test_digest_separates_texts():
  assert len({text_digest(t) for t in ('a', 'b', '', 'a ', json.dumps('é'), 'é', '\ud800')}) == 7
