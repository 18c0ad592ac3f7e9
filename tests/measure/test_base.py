"""Scorers: the share of opinion words, VADER, TextBlob and recorded scores."""

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
  sensitive_lexicon_words,
)
from fairjax.measure.scorers.cache import score_records


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
  signs, plain = ['Good\u2026 but', '\u00abgood\u00bb'], ['Good... but', '"good"']
  assert scorer.score(signs).tolist() == scorer.score(plain).tolist() != [0.5, 0.5]
  assert scorer.count_changed(signs + plain) == 2


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
  assert score_records(records, RecordedScorer()).tolist() == [0.25, 1.0, 0.0]
  both = records_with({'google': 0.25, 'bert': np.float32(0.5)})
  assert score_records(both, RecordedScorer('bert')).tolist() == [0.5]
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
    score_records(records, RecordedScorer('s'))
  with pytest.raises(UserError, match=r'x\.jsonl:1: several scores: choose .* from s, t'):
    score_records(records_with({'s': 0.5, 't': 0.5}), RecordedScorer())


def test_parts_of_compounds_are_sensitive_words_too(tmp_path):
  path = tmp_path / 'names.yaml'
  path.write_text('name: nick\nvalues: [Good-Bad, first-rate, Mild]\ntemplates: ["{value} is"]\n')
  found = sensitive_lexicon_words(
    OpinionScorer(['good', 'first-rate', 'rate'], ['bad']), load_attribute(path))
  assert [(w['value'], w['word'], w['valence']) for w in found] == [
    ('Good-Bad', 'good', 1), ('Good-Bad', 'bad', -1), ('first-rate', 'first-rate', 1)]
