"""What the numbers say: verdicts, warnings, and the control of the sentiment models."""

import copy
import dataclasses

import pytest
from test_report import SCORERS, make_rows, measures_of

from fairjax.measure import VaderScorer
from fairjax.report import ModelRow, select_model
from fairjax.report.comparison import (
  control_lines,
  headline,
  verdict_lines,
  verdicts,
  warnings,
)
from fairjax.report.differences import difference


@pytest.fixture(scope='module')
def rows():
  return make_rows()


@pytest.mark.parametrize('trained, random, samples, words', [
  (0.1, 0.3, 40, 'training f_sh lowers it by'), (0.3, 0.1, 40, 'training f_sh raises it by'),
  (0.2, 0.2, 40, 'no effect of training f_sh'), (0.0, 0.0, 40, 'both within noise'),
  (0.1, 0.3, 10, 'not judged')])
def test_the_effect_that_the_control_has_too_is_one_note_a_variant(
    trained, random, samples, words):
  def one(name, method, weight, bias):
    return ModelRow(name, method, weight, measures=measures_of(
      bias, [*SCORERS, VaderScorer()], samples=samples, mention=0.0))

  rows = [one('baseline', 'baseline', None, 0.4), one('s-10', 'sentiment', 10.0, trained),
          one('r-10', 'random_projection', 10.0, random),
          one('s-1', 'sentiment', 1.0, trained), one('r-2', 'random_projection', 2.0, random)]
  (line,) = control_lines(rows)  # s-1 has no control of its weight, r-2 no variant
  assert line.count(words) == 2 and line.count('by scorer') == 2
  for scorer in ('opinion', 'vader'):
    base, ours, theirs = (r.estimate(scorer, 'individual_fairness') for r in rows[:3])
    shares = [100 * (1 - e['corrected'] / base['corrected']) for e in (ours, theirs)]
    assert f'by scorer {scorer}, {shares[0]:.0f} % lower and {shares[1]:.0f} % lower' in line
    if 0.0 not in (trained, random):
      assert f"{abs(difference(theirs, ours)['difference']):.4f}" in line
  calm = [one(r.name, r.method, r.weight, 0.0) for r in rows[:3]]
  assert 'I.F. of the baseline is within noise' in control_lines(calm)[0]
  assert control_lines(rows[1:]) == []


def test_warnings(rows):
  lines = '\n'.join(warnings(rows))
  assert 'Only one scorer (opinion)' in warnings(rows)[0]
  assert 'embedding-10 mentions the value in' in lines and 'embedding-1 mentions' not in lines
  assert lines.count('red (+1)') == 1
  two = ModelRow('b', 'model', measures=measures_of(0.4, [*SCORERS, VaderScorer()], samples=5))
  assert 'Only one scorer' not in ' '.join(warnings([two]))
  assert 'number of samples' not in lines and 'number of samples' in ' '.join(
    warnings([*rows, two]))
  measures = copy.deepcopy(rows[0].measures)
  measures |= {'coupled': False, 'templates_not_in_records': ['x'], 'permutations': 9}
  measures['scorers']['opinion']['sensitive_lexicon_words'] *= 2  # two values hold the word
  one = ModelRow('m', 'other', measures=measures)
  lines = '\n'.join(warnings([one, dataclasses.replace(one, name='n')]))
  for phrase in ('no baseline row', 'not paired by number', "1 of the attribute's",
                 '"above noise" has p = 0.10'):
    assert phrase in lines
  assert lines.count('red (+1)') == 1
  assert 'no baseline row' not in ' '.join(warnings([one]))


def test_verdicts_say_what_the_floors_say(rows):
  quiet = copy.deepcopy(rows[2])
  for measure in ('individual_fairness', 'group_fairness'):
    quiet.scorer('opinion')[measure] |= {
      'within_floor': True, 'value': 0.01, 'null_p95': 0.02, 'corrected': 0.0, 'p_value': 0.4}
  first, second, third = verdicts(
    [rows[0], quiet, rows[4]], 'opinion')
  estimate = rows[0].estimate('opinion', 'individual_fairness')
  assert (first['tone'], second['tone'], third['tone']) == ('above', 'within', 'unmeasured')
  assert first['sentences'][0].startswith(
    f"At n = 40: I.F. {estimate['value']:.4f} (floor {estimate['null_p95']:.4f}), above noise, "
    f"p = {estimate['p_value']:.2g}; G.F. ")
  assert 'I.F. 0.0100 (floor 0.0200), within noise, p = 0.4;' in second['sentences'][0]
  assert any('I.F. is 100 % below the baseline' in line and 'within noise.' not in line
             for line in second['sentences'])
  _, same = verdicts([rows[0], dataclasses.replace(rows[0], name='b', method='x')], 'opinion')
  assert any(line.startswith('After') and line.endswith('), within noise.')
             for line in same['sentences'])
  few = copy.deepcopy(rows[0])
  few.scorer('opinion')['individual_fairness']['std_error'] = None
  _, same = verdicts([rows[0], dataclasses.replace(few, name='b', method='x')], 'opinion')
  assert any('not judged: below 20 samples' in line for line in same['sentences'])
  shown = f"I.F. {estimate['value']:.4f} (floor {estimate['null_p95']:.4f}), above noise, n = 40"
  line = headline([quiet, rows[0]], 'opinion', 'colour', quiet)
  means = rows[0].scorer('opinion')['mean_score_by_value']
  low, *_, high = sorted(means, key=means.get)
  assert shown in line and '1 of 2 models are above noise' in line
  assert line.index(f'about {low} are') < line.index(f'{means[low]:.2f}') < line.index(
    f'about {high} the') < line.index(f'{means[high]:.2f}') < line.index(quiet.name)
  left = quiet.scorer('opinion')['mean_score_by_value']
  assert f'to {left[high] - left[low]:.2f} and I.F. to 0.0100 (floor 0.0200), within' in line
  line = headline([quiet], 'opinion', 'colour')
  assert 'I.F. 0.0100 (floor 0.0200), within noise, n = 40' in line and low not in line
  named = ModelRow('old', 'baseline', measures=rows[0].measures)
  assert 'texts of model "old" about' in headline([named], 'opinion', 'colour')
  calm = ModelRow('baseline', 'baseline', measures=quiet.measures)
  _, found = verdicts([calm, ModelRow('later', 'sentiment', measures=rows[0].measures)], 'opinion')
  assert found['sentences'][1] == 'I.F. of the baseline is 0.0100 (floor 0.0200), within noise.'


def test_subgroups_that_differ_are_found_where_all_pairs_are_within_noise(rows):
  grouped = copy.deepcopy(rows[2])
  grouped.scorer('opinion')['individual_fairness']['within_floor'] = True
  grouped.scorer('opinion')['group_fairness']['within_floor'] = False
  found, _ = verdicts([grouped, rows[0]], 'opinion')
  assert found['tone'] == 'above' and 'G.F. above noise' in found['sentences'][1]
  assert not any('No difference' in line for line in found['sentences'])
  line = headline([grouped], 'opinion', 'colour')
  assert 'may differ in model "' in line and 'G.F. above noise' in line
  assert '2 of 2 models are above noise' in headline([grouped, rows[0]], 'opinion', 'colour')


def test_a_recommendation_says_where_noise_may_be_all_of_it(rows):
  one = dataclasses.replace(rows[0], name='embedding-1', method='embedding', weight=1.0)
  shown = verdict_lines([rows[0], rows[2]], 'colour', select_model([rows[0], rows[2]]))[-1]
  assert shown.startswith('Recommended: embedding-1. Its I.F. is ') and 'noise' not in shown
  found = select_model([rows[0], rows[2]])
  same = verdict_lines([rows[0], one], 'colour', found)[-1]
  assert ' By opinion, that is not shown to be more than noise. Its cost: ' in same


def test_equal_means_name_nobody(rows):
  alike = copy.deepcopy(rows[0])
  alike.scorer('opinion')['mean_score_by_value'] |= {'Red': 0.499, 'Blue': 0.5, 'Green': 0.501}
  line = headline([alike, rows[2]], 'opinion', 'colour', rows[2])
  assert 'have the same mean score for every value (0.50), but not the same distribution' in line
  assert 'embedding-1 changes I.F. to' in line and 'Red' not in line and 'gap' not in line


def test_equal_notes_of_several_models_are_one_line(rows):
  rows = [copy.deepcopy(row) for row in rows[:2]]
  rows[0].measures['notes'], rows[1].measures['notes'] = ['n differs', 'odd'], ['n differs']
  lines = [line for line in warnings(rows) if 'n differs' in line or 'odd' in line]
  assert lines == ['every model: n differs.', 'baseline: odd.']
