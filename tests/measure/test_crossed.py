"""Main effects and interaction of crossed attributes: closed forms, an oracle, calibrated nulls."""

import dataclasses
import itertools
import json

import numpy as np
import pytest
from record_cases import records_of, write_lines
from scipy.stats import wasserstein_distance
from score_arrays import from_arrays

from fairjax.cli.main import main
from fairjax.counterfactual import TextMatcher, load_attribute
from fairjax.errors import UserError
from fairjax.generate import read_records
from fairjax.measure.crossed import _contrasts, _Template, crossed_effects, measure_crossed

FILE = """\
name: both
crossed: {colour: colour.yaml, job: occupation}
templates: ['The {colour} {job} said', '{A_job} {job} in {colour} is']
"""
COLOUR = """\
name: colour
values: [red, blue, green]
templates: ['the {value} one']
"""


@pytest.fixture
def both(tmp_path):
  (tmp_path / 'both.yaml').write_text(FILE)
  (tmp_path / 'colour.yaml').write_text(COLOUR)
  return tmp_path / 'both.yaml'


def crossed(rows, columns):
  """Two crossed attributes of so many values."""
  attribute = load_attribute('country*occupation')
  return dataclasses.replace(attribute, values=tuple(
    v for v, (i, j) in zip(attribute.values, attribute.levels, strict=True)
    if i < rows and j < columns))


def samples_of(attribute, scores, coupled=False):
  return from_arrays(scores, coupled=coupled, values=attribute.value_texts)


def values(found):
  return [effect['value'] for effect in crossed_effects(found).values()]


def pair_mean(effects):
  return np.mean([np.abs(a - b) for a, b in itertools.combinations(effects, 2)])


# Of 40 samples so many have the score 0.9, where others have 0.4.
ALPHA, BETA = np.array([0, 6, 3]), np.arange(29) % 6
GAMMA = np.outer([1, -1, 0], [4] * 14 + [-4] * 14 + [0])


def planted(attribute, gamma):
  """Records of a model whose shares of high scores are known."""
  def scores(p, n):
    i, j = attribute.levels[p.value]
    return {'s': 0.9 if n < 8 + ALPHA[i] + BETA[j] + gamma[i, j] else 0.4}
  return records_of(attribute, 40, lambda p, n: f'so {n}', scores=scores)


def test_the_gate_takes_all_combinations(both, tmp_path, capsys):
  attribute, files, expected = load_attribute(both), [], []
  for name, gamma in (('new', GAMMA), ('old', 0 * GAMMA)):
    files.append(write_lines(tmp_path / f'{name}.jsonl', planted(attribute, gamma)))
    shares = (8 + np.add.outer(ALPHA, BETA) + gamma).ravel() / 40
    expected.append(0.5 * pair_mean(shares))  # scores are 0.4 and 0.9
  options = [f'--attribute={both}', '--scorer=recorded:s', '--json']
  assert main(['compare', 'gate', f'--records={files[0]}', f'--against={files[1]}', *options,
               '--margin=0.001', '--permutations=9']) in (0, 3, 4)
  (found,) = json.loads(capsys.readouterr().out)
  np.testing.assert_allclose([found['new'], found['old']], expected, rtol=1e-12)
  assert found['paired'] and found['samples'] == 40


@pytest.mark.parametrize('fraction', [None, 0.45])
def test_planted_effects_pass_through_prompts_measure_and_report(
    both, tmp_path, check_keys, found, fraction):
  prompts, answers = tmp_path / 'prompts.jsonl', tmp_path / 'answers.jsonl'
  attribute, options = load_attribute(both), []
  gamma = GAMMA
  if fraction:
    attribute, gamma, options = attribute.fraction(fraction), 0 * gamma, [f'--fraction={fraction}']
  assert main(['sample', '--prompts-only', f'--attribute={both}', f'--output={prompts}',
               *options]) == 0
  asked = [json.loads(line)['prefix'] for line in prompts.read_text().splitlines()]
  rows = planted(attribute, gamma)
  assert asked == list(dict.fromkeys(r['prefix'] for r in rows))
  write_lines(answers, rows)
  options = [f'--records={answers}', f'--attribute={both}', '--scorer=recorded:s']
  check_keys(result := found('measure', *options, '--permutations=99'), 'measures')
  crossed = result['scorers']['recorded:s']['crossed']
  expected = np.array([pair_mean(ALPHA), pair_mean(BETA), np.abs(gamma).mean()]) / 40 * 0.5
  effects = list(crossed_effects(crossed).values())
  np.testing.assert_allclose([e['value'] for e in effects], expected, rtol=1e-12, atol=1e-15)
  p_values = [0.01, 0.01, 1 if fraction else 0.01]
  assert [e['p_value'] for e in effects] == p_values
  assert [e['p_holm'] for e in effects] == [0.03, 0.03, 1] if fraction else [0.03] * 3
  assert main(['report', *options, '--permutations=99', f'--output={tmp_path / "report"}']) == 0
  assert 'main effect of colour' in (tmp_path / 'report' / 'report.md').read_text()


def test_effects_are_those_of_the_definition_for_unequal_n():
  attribute, rng = crossed(3, 4), np.random.default_rng(2)
  scores = [[rng.uniform(size=n) for n in row] for row in rng.choice([20, 21, 25], (2, 12))]
  found = measure_crossed(samples_of(attribute, scores), attribute, permutations=1, seed=0)
  expected = []
  for row in scores:
    ends = np.sort(np.concatenate(row))
    share = np.array([[np.mean(x <= s) for s in ends[:-1]] for x in row]).reshape(3, 4, -1)
    a, b, width = share.mean(1), share.mean(0), np.diff(ends)
    rest = share - a[:, None] - b + share.mean((0, 1))
    expected.append([wasserstein(row, 0, 3), wasserstein(row, 1, 4),
                     (np.abs(rest) @ width).mean()])
  np.testing.assert_allclose(values(found), np.mean(expected, axis=0), rtol=1e-12)


def wasserstein(row, axis, count):
  """Mean over pairs of W1 of the scores of each value, every combination with the same weight."""
  found = []
  cells = np.array([f'{i} {j}' for i in range(3) for j in range(4)])
  for one, other in itertools.combinations(range(count), 2):
    mixed = []
    for value in (one, other):
      rows = [x for x, cell in zip(row, cells, strict=True) if cell.split()[axis] == str(value)]
      mixed += [np.concatenate(rows), np.concatenate([np.full(x.size, 1 / x.size) for x in rows])]
    found.append(wasserstein_distance(mixed[0], mixed[2], mixed[1], mixed[3]))
  return np.mean(found)


def test_half_samples_have_the_noise_of_whole_ones(monkeypatch):
  """Also of 21 samples, whose halves are unequal."""
  monkeypatch.setattr('fairjax.measure.crossed._jackknife', lambda *_: [None] * 3)
  attribute, rng = crossed(3, 4), np.random.default_rng(0)
  scores = [[rng.uniform(size=21) for _ in range(12)] for _ in range(300)]
  found = measure_crossed(
    samples_of(attribute, scores), attribute, permutations=20, seed=0)['interaction']
  assert found['value'] == pytest.approx(found['null_mean'], rel=0.015)


def test_halves_cancel_and_have_the_square_of_the_whole():
  attribute, rng = crossed(2, 2), np.random.default_rng(3)
  levels, sizes = np.array(attribute.levels), [20, 21, 23, 21]
  contrasts = _contrasts(levels)
  template = _Template([rng.uniform(size=n) for n in sizes], levels, contrasts)
  labels, steps = template._halves(rng, 3)
  for i, part in enumerate(np.split(labels, np.cumsum(sizes)[:-1], axis=1)):
    for own in part:
      np.testing.assert_allclose(steps[own].sum(axis=0), 0, atol=1e-15)
      np.testing.assert_allclose((steps[own] ** 2).sum(axis=0), contrasts[2][:, i] ** 2 / sizes[i],
                                 rtol=1e-12)


@pytest.mark.parametrize('samples', [1, 19])
def test_few_samples_judge_no_interaction(samples):
  attribute, rng = crossed(2, 2), np.random.default_rng(0)
  found = measure_crossed(samples_of(attribute, rng.uniform(size=(4, samples))), attribute,
                          permutations=39, seed=0)
  assert found['interaction'] is None and [*crossed_effects(found)] == [
    'main effect of country', 'main effect of occupation']
  assert found['sentence'].endswith('is judged from 20 samples of each prefix on')


def test_standard_errors_are_those_of_the_jackknife_over_twenty_groups():
  attribute, rng = crossed(2, 3), np.random.default_rng(4)
  scores = [[rng.uniform(size=40) for _ in range(6)] for _ in range(2)]

  def measured(rows):
    return crossed_effects(
      measure_crossed(samples_of(attribute, rows), attribute, permutations=1, seed=0))

  left = [[e['value'] for e in measured([[np.delete(x, [g, g + 20]) for x in row]
                                         for row in scores]).values()] for g in range(20)]
  np.testing.assert_allclose(
    [effect['std_error'] for effect in measured(scores).values()],
    np.sqrt(19 * np.var(left, axis=0)), rtol=1e-9)


def test_records_without_templates_find_theirs_and_texts_are_refused(tmp_path):
  attribute = load_attribute('name*country')
  rows = [{'value': v.text, 'prefix': f'{v.pronouns["name"]} moved to {v.pronouns["country"]} '
           f'with {v.pronouns["their_name"]} friend and', 'continuation': 'so'}
          for v in attribute.values]
  found = {r['template'] for r in read_records(rows, attributes=[attribute])}
  assert found == {'{name} moved to {country} with {their_name/them_name} friend and'}
  with pytest.raises(UserError, match='crosses two attributes, for prompts only'):
    TextMatcher(attribute)
  asked, answers = tmp_path / 'asked.csv', tmp_path / 'answers.jsonl'
  asked.write_text('prompt,answer\n"I think Asia from Iran is a",cook\n"Iran is",big\n'
                   '"Jake and Molly left Iran",so\n')
  assert main(['records', 'convert', '--from=csv', f'--records={asked}',
               '--map=prefix=prompt,continuation=answer', '--attribute=country*name',
               f'--output={answers}']) == 0
  (row,) = [json.loads(line) for line in answers.read_text().splitlines()]
  assert (row['value'], row['continuation']) == ('Iran * Asia', 'cook')


def test_fractions_are_balanced_and_keep_the_fingerprint():
  for name in ('country*name', 'country*occupation', 'occupation*name'):
    attribute = load_attribute(name)
    for share in (0.15, 0.3, 0.77):
      part = attribute.fraction(share, seed=1)
      assert len(part.values) == round(share * len(attribute.values))
      assert part.fingerprint == attribute.fingerprint
      for factor, column in zip(part.crossed, np.transpose(part.levels), strict=True):
        assert np.ptp(np.bincount(column, minlength=len(factor.values))) <= 1
    assert attribute.fraction(0.2, seed=1) != attribute.fraction(0.2, seed=2)


def simulated(rng, kind, effect, coupled, samples):
  """`[2, 12, n]` scores of 3 x 4 combinations without an effect, where others may be."""
  a, b = rng.normal(0, 0.5, (2, 3, 1, 1)), rng.normal(0, 0.5, (2, 1, 4, 1))
  a, b = (1 - (effect != 1)) * a, (1 - (effect == 1)) * b  # shifts of both would interact
  noise = rng.normal(size=(2, 3, 4, samples))
  if coupled:
    noise = 0.6 * noise + 0.8 * rng.normal(size=(2, 1, 1, samples))
  z = a + b + noise
  scores = {'continuous': np.clip(0.5 + z / 20, 0, 1), 'binary': (z > 0).astype(float),
            'three classes': (1 + np.sign(z) * (np.abs(z) > 0.5)) / 2}[kind]
  return scores.reshape(2, 12, samples)


@pytest.mark.parametrize(('runs', 'samples'), [
  (60, 20), pytest.param(2000, 20, marks=pytest.mark.weekly)])
@pytest.mark.parametrize('coupled', [False, True])
@pytest.mark.parametrize('kind', ['continuous', 'three classes', 'binary'])
def test_five_percent_are_rejected_without_the_effect(kind, coupled, runs, samples, monkeypatch):
  monkeypatch.setattr('fairjax.measure.crossed._jackknife', lambda *_: [None] * 3)  # takes longest
  attribute, rng = crossed(3, 4), np.random.default_rng(11)
  p_values, mid_p_values = np.empty((2, 3, runs))
  for run in range(runs):
    for effect in range(3):
      found = measure_crossed(
        samples_of(attribute, simulated(rng, kind, effect, coupled, samples), coupled), attribute,
        permutations=39, seed=run)
      estimate = list(crossed_effects(found).values())[effect]
      p_values[effect, run] = estimate['p_value']
      mid_p_values[effect, run] = estimate['mid_p_value']
  # Without the effect, the scores and their permutations are exchangeable. So p_value, by which all
  # outputs decide, is at most 0.05 in 5 % of the sets or fewer; in just 5 % (2 of 40 ranks) where
  # no values tie. What ties take away depends on the scores, and half of them, which mid_p_value
  # gives back, may be too much: only 10 % bounds its rate, since it is at least half of p_value.
  # But its mean is 1/2 with any ties: of two exchangeable values, each is as often the larger one,
  # and a tie counts half. For the interaction all this is an approximation, of two moments.
  rejected, mean = (p_values <= 0.05).mean(axis=1), mid_p_values.mean(axis=1)
  print(kind, coupled, rejected, (mid_p_values <= 0.05).mean(axis=1), mean)
  error = 3 * np.sqrt(0.05 * 0.95 / runs)
  assert (rejected < 0.05 + error).all()
  if kind == 'continuous':
    assert (rejected > 0.05 - error).all()
  assert (np.abs(mean - 0.5) < 3 / np.sqrt(12 * runs)).all()
