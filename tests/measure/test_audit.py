"""The audit of scorers: swaps by brute force, nulls by enumeration, correlations by SciPy."""

import itertools
import json
import re

import numpy as np
import pytest
import scipy.stats
from record_cases import write_lines

from fairjax.counterfactual import load_attribute
from fairjax.errors import UserError
from fairjax.measure import OpinionScorer
from fairjax.measure.estimates import holm
from fairjax.measure.scorers.audit import agreement, audit_scorers, make_frames, own_bias

FAITH = """
name: faith
values: [Muslim, Old Catholic, Jewish]
templates: ['My {value} friend']
"""


@pytest.fixture
def faith(tmp_path):
  path = tmp_path / 'faith.yaml'
  path.write_text(FAITH)
  return load_attribute(path)


class ByTable:
  """Scores by a table of texts, by their length elsewhere."""

  fingerprint = 'f' * 64

  def __init__(self, name='table', **scores):
    self.name, self.scores = name, scores

  def score(self, texts):
    return np.array([self.scores.get(t, (len(t) % 10) / 10) for t in texts], np.float64)


def brute_force_swap(text, attribute, value):
  """Another way to the same swap: word by word over split text, longest value first."""
  first = min((text.find(v), i) for i, v in enumerate(attribute.value_texts) if v in text)[1]
  own, new = attribute.values[first].text, attribute.values[value]
  parts = text.split(own)
  result = parts[0]
  for part in parts[1:]:
    if re.search(r'\b[Aa]n? $', result):
      result = re.sub(r'([Aa])n? $', lambda m: m[1] + new.article[1:] + ' ', result)
    result += new.text + part
  return result


TEXTS = [
  'A Muslim and an Old Catholic met a Muslim.',  # several tokens, several values
  'The Jewish baker was kind.', 'The Muslim baker was kind.',  # one frame, two texts
  'an Old Catholic; An Old Catholic, "a Jewish man"', 'Nobody.', 'The Muslims are many.', '']


def test_swaps_are_those_of_brute_force(faith):
  frames = make_frames(TEXTS, faith)
  held = [TEXTS[0], TEXTS[1], TEXTS[3]]
  assert frames.texts == [
    [brute_force_swap(t, faith, v) for v in range(3)] for t in held]
  assert frames.texts[0] == [
    'A Muslim and an Old Catholic met a Muslim.',
    'An Old Catholic and an Old Catholic met an Old Catholic.',
    'A Jewish and an Old Catholic met a Jewish.']
  assert frames.texts[2][0] == 'a Muslim; A Muslim, "a Jewish man"'
  assert frames.weights.tolist() == [1, 2, 1]
  assert frames.counts == {
    'texts': 7, 'with_token': 4, 'with_several_values': 2, 'left_out': 0, 'frames': 3}
  assert frames.values.tolist() == [2, 1, 1]


def test_a_limit_is_a_seeded_counted_choice(faith):
  texts = [f'The {v} number {i}.' for i in range(30) for v in faith.value_texts] + ['None.'] * 5
  some = make_frames(texts, faith, limit=20, seed=1)
  assert some.weights.sum() == 20 and some.counts['left_out'] == 70
  assert some.counts['with_token'] == 90 and some.values.tolist() == [30, 30, 30]
  assert make_frames(texts, faith, limit=20, seed=1).texts == some.texts
  assert make_frames(texts, faith, limit=20, seed=2).texts != some.texts
  everything = make_frames(texts, faith, limit=90)
  assert everything.counts['left_out'] == 0 and everything.weights.tolist() == [3] * 30


def exact_p(scores, weights):
  """Two-sided p-values by listing every choice of one score a frame."""
  frames, values = scores.shape
  share = weights / weights.sum()
  others = [[row[v] - np.median(np.delete(row, v)) for v in range(values)] for row in scores]
  null = np.array([sum(share[f] * others[f][c] for f, c in enumerate(choice))
                   for choice in itertools.product(range(values), repeat=frames)])
  observed = [sum(share[f] * others[f][v] for f in range(frames)) for v in range(values)]
  return observed, [np.mean(np.abs(null) >= abs(d) - 1e-12) for d in observed]


def test_own_bias_against_the_enumerated_null():
  rng = np.random.default_rng(3)
  scores = (rng.random((7, 3)) / 2).round(2)
  scores[:, 1] += 0.3
  scores[2] = 0.5  # a frame that no value moves
  weights = np.array([1, 4, 2, 1, 1, 3, 1])
  found = own_bias(scores, weights, permutations=40000)
  observed, p = exact_p(scores, weights)
  np.testing.assert_allclose(found['difference'], observed, atol=1e-12)
  # Binomial error of 40,000 draws: five standard deviations.
  for a in range(3):
    error = 5 * np.sqrt(p[a] * (1 - p[a]) / 40000) + 2 / 40000
    assert abs(found['p_value'][a] - p[a]) < error
  assert p[1] < 0.02 and max(p) > 0.2
  assert found['moved'] == pytest.approx(11 / 13)
  assert found['range'] == pytest.approx(
    sum(w * (max(r) - min(r)) for w, r in zip(weights, scores, strict=True)) / 13)
  again = own_bias(scores, weights, permutations=40000)
  assert (again['p_value'] == found['p_value']).all()
  # Copies of a text are no evidence: twice the weights, the same test.
  assert (own_bias(scores, 2 * weights, permutations=40000)['p_value'] == found['p_value']).all()


def test_a_value_that_is_treated_apart_hides_no_other_and_makes_none_biased():
  rng = np.random.default_rng(0)
  ones = np.ones(60, int)
  for values in (3, 5):
    scores = 0.5 + 0.05 * rng.normal(size=(60, values))
    scores[:, 0] += 0.3
    found = own_bias(scores, ones, permutations=999)
    assert found['p_holm'][0] <= 0.005 and found['p_holm'][1:].min() > 0.05
    np.testing.assert_allclose(found['difference'][1:], 0, atol=0.03)
    scores[:, 1] += 0.05
    assert own_bias(scores, ones, permutations=999)['p_holm'][1] <= 0.05


def test_two_blocks_of_values_are_both_shown_in_any_order():
  rng = np.random.default_rng(0)
  scores = 0.5 + np.where(np.arange(8) < 4, 0.1, -0.1) + 0.02 * rng.normal(size=(100, 8))
  for order in (np.arange(8), rng.permutation(8)):
    found = own_bias(scores[:, order], np.ones(100, int), permutations=999)
    assert (found['p_holm'] <= 0.05).all()
    np.testing.assert_array_equal(np.sign(found['difference']), np.where(order < 4, 1, -1))
    assert np.abs(found['difference']).min() > 0.05


def test_holm_by_its_definition():
  rng = np.random.default_rng(1)
  for size in (1, 2, 5, 29):
    p = rng.random(size).round(2) ** 3
    order = sorted(range(size), key=lambda i: p[i])
    expected = [min(1.0, max((size - k) * p[order[k]] for k in range(order.index(i) + 1)))
                for i in range(size)]
    assert holm(p).tolist() == pytest.approx(expected, abs=1e-15)
  # Rejecting at 5 % is Holm's own procedure.
  assert (holm(np.array([0.011, 0.02, 0.9, 0.012])) <= 0.05).tolist() == [True, True, False, True]


def test_agreement_is_that_of_scipy():
  rng = np.random.default_rng(2)
  a = rng.random(200).round(1)
  scores = {'a': a, 'b': np.clip(a + rng.normal(0, 0.3, 200), 0, 1).round(1),
            'c': rng.choice([0.0, 0.5, 1.0], 200)}
  found = agreement(scores)
  assert [p['scorers'] for p in found] == [['a', 'b'], ['a', 'c'], ['b', 'c']]
  for pair in found:
    x, y = (scores[s] for s in pair['scorers'])
    assert pair['spearman'] == pytest.approx(scipy.stats.spearmanr(x, y).statistic, abs=1e-12)
    sides = [['-' if s < 0.5 else '+' if s > 0.5 else '0' for s in z] for z in (x, y)]
    same = [p == q for p, q in zip(*sides, strict=True)]
    strong = [p == q for p, q in zip(*sides, strict=True) if '0' not in (p, q)]
    assert pair['equal_signs'] == pytest.approx(np.mean(same)) and pair['n'] == 200
    assert pair['n_opinionated'] == len(strong) < 200
    assert pair['equal_signs_opinionated'] == pytest.approx(np.mean(strong))
  flat = agreement({'a': a, 'flat': np.full(200, 0.3), 'half': np.full(200, 0.5)})
  assert [p['spearman'] for p in flat] == [p['pearson'] for p in flat] == [None] * 3
  assert flat[2]['equal_signs'] == 0 and flat[2]['equal_signs_opinionated'] is None
  assert agreement({'a': a}) == []


def test_the_audit_finds_what_a_lexicon_thinks_of_a_cleaner():
  occupation = load_attribute('occupation')
  opinion = OpinionScorer(['good', 'cleaner'], ['bad'])
  texts = [f'The {v} of house {i} was {w}.' for i in range(4)
           for v, w in (('baker', 'good'), ('cleaner', 'bad'), ('editor', 'there'))]
  texts += ['Nothing.', 'A good day.']
  result = audit_scorers(texts, occupation, [opinion, ByTable()])
  json.dumps(result, allow_nan=False)
  assert result['counts']['with_token'] == 12 and result['share_with_token'] == 12 / 14
  bias = result['scorers']['opinion']['own_bias']
  by_value = {row['value']: row for row in bias['values']}
  assert bias['n'] == bias['frames'] == 12 and bias['moved'] == pytest.approx(2 / 3)
  # With "cleaner": good 1, bad 1/2, none 1; with others: 1, 0, 1/2: a third of a point on average.
  assert by_value['cleaner']['difference'] == pytest.approx(1 / 3)
  assert by_value['cleaner']['p_holm'] < 0.01 and by_value['cleaner']['n'] == 4
  assert {row['p_holm'] for v, row in by_value.items() if v != 'cleaner'} == {1.0}
  assert by_value['baker']['difference'] == 0  # one odd value does not make the others odd
  assert result['scorers']['opinion']['sensitive_lexicon_words'] == [
    {'value': 'cleaner', 'word': 'cleaner', 'valence': 1}]
  assert result['scorers']['table']['sensitive_lexicon_words'] == []
  assert result['agreement'][0]['n'] == 14


def test_audits_that_cannot_be_made(faith):
  with pytest.raises(UserError, match='no texts'):
    audit_scorers([], faith, [ByTable()])
  assert audit_scorers(['None here.'], faith, [ByTable()])['scorers']['table']['own_bias'] is None


def records(attribute, **scores):
  cells = itertools.product(attribute.value_texts, ('good', 'bad', 'so'))
  return [{'attribute': attribute.name, 'value': v, 'template': 0, 'prefix': f'My {v} friend',
           'continuation': f' is {w} to {v} people.',
           'scores': {name: column[i] for name, column in scores.items()}}
          for i, (v, w) in enumerate(cells)]


def lexicon(folder):
  for name, words in (('positive-words.txt', 'good\ncleaner\n'), ('negative-words.txt', 'bad\n')):
    (folder / name).write_text(words)
  return f'--lexicon={folder}'


def test_the_verb_prints_tables_and_json(tmp_path, faith, printed, found):
  path = write_lines(tmp_path / 'r.jsonl', records(faith, human=[0.9, 0.1, 0.5] * 3))
  arguments = ['scorers', 'audit', f'--records={path}', f'--attribute={tmp_path / "faith.yaml"}',
               '--scorer=opinion', '--scorer=vader', '--scorer=recorded:human', lexicon(tmp_path)]
  text = printed(*arguments)
  assert '9 texts; 9 (100.0 %) hold a sensitive token of faith (0 of several values' in text
  for row in ('Old Catholic +3 ', 'opinion and vader +9 '):
    assert re.search(f'^{row}', text, re.M)
  assert ('recorded:human: own bias not measured: recorded scores say nothing about other texts.'
          in text)
  some, both = found(*arguments, '--limit=4'), found(*arguments, '--scored=prefix+continuation')
  assert some['counts']['left_out'] == 5 and len(some['agreement']) == 3
  assert both['scorers']['vader']['own_bias']['n'] == 9


def test_the_verb_reads_lines_of_text(tmp_path, printed):
  path = tmp_path / 'texts.txt'
  path.write_text('The cleaner was late.\n\nA cleaner house.\nNothing.\n')
  text = printed('scorers', 'audit', f'--texts={path}', '--attribute=occupation',
                 '--scorer=opinion', lexicon(tmp_path))
  assert '3 texts; 2 (66.7 %)' in text and 'lexicon of opinion: cleaner (+1)' in text
  assert 'One scorer only' in text
