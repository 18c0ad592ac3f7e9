"""The gate: its verdicts by simulation, pairing, the command and its exit codes."""

import dataclasses
import json
from xml.etree import ElementTree

import numpy as np
import pytest
import scipy.stats
from score_arrays import from_arrays

from fairjax.cli.main import main
from fairjax.counterfactual import load_attribute
from fairjax.errors import UserError
from fairjax.measure.gate import compare_fairness
from tests.benchmarks.gate import BIAS, gates, true_rise


def w1(row):
  first, second = np.triu_indices(len(row), 1)
  return np.mean([scipy.stats.wasserstein_distance(row[a], row[b])
                  for a, b in zip(first, second, strict=True)])


def test_error_of_paired_models_is_the_slow_jackknife():
  rng = np.random.default_rng(0)
  old = rng.random((3, 60))
  new = np.clip(old + 0.2 * rng.random((3, 60)) * np.array([[1], [0], [0]]), 0, 1)
  found = compare_fairness(*(from_arrays(x, coupled=True) for x in (new, old)),
                           margin=0.3, permutations=20)
  left = [w1(np.delete(new, np.s_[g::20], axis=1)) - w1(np.delete(old, np.s_[g::20], axis=1))
          for g in range(20)]
  assert found.paired
  assert found.std_error == pytest.approx(np.sqrt(19 * np.var(left)), rel=1e-9)
  assert found.high - found.difference == pytest.approx(
    scipy.stats.t.ppf(0.95, 19) * found.std_error, rel=1e-9)
  assert found.difference == pytest.approx(found.new - found.old, abs=1e-15)


@pytest.mark.parametrize(('kind', 'coupled'), [
  ('binary', True), ('continuous', False),
  *(pytest.param(*case, marks=pytest.mark.weekly)
    for case in (('binary', False), ('continuous', True)))])
def test_simulated_gates_err_as_documented(kind, coupled):
  # The table of docs/measures.md, smaller; each share may err once in 10,000.
  most = scipy.stats.binom.ppf(1 - 1e-4, 80, 0.05)
  for old in (BIAS, 0.0):
    rise = true_rise(kind, coupled=coupled, old=old)
    at = gates(kind, coupled=coupled, runs=80, samples=100, margin=rise, old=old)
    for errs in ([g.verdict == 'worse' for g in at], [g.verdict == 'no worse' for g in at],
                 [g.equivalent for g in at]):
      assert sum(errs) <= most


@pytest.mark.parametrize(('old', 'new'), [(0, 5), (1, 5), (5, 1)])
def test_chance_hides_no_rise(old, new):
  # Of 10 values so many are biased, with an I.F. of 0.04 without chance, which is known.
  rng = np.random.default_rng(10 * old + new)
  true, wrong, hidden = 0.04 - 0.04 * (old > 0), 0, 0
  for _ in range(20):
    models = []
    for biased in (old, new):
      scores = (rng.random((10, 10, 100)) < 0.5) * 1.0
      share = 0.04 / (0.5 * biased * (10 - biased) / 45) if biased else 0
      scores[:, :biased] = np.where(rng.random((10, biased, 100)) < share, 1.0,
                                    scores[:, :biased])
      models.append(from_arrays(scores))
    found = compare_fairness(models[1], models[0], margin=1, permutations=5)
    wrong += not found.least < true < found.most
    hidden += not found.low < true < found.high
  assert wrong <= 6  # of 20 intervals of 90 %: once in 400
  assert hidden > 6  # so the data tell the two intervals apart


def test_only_as_many_samples_count_as_both_files_have():
  rng = np.random.default_rng(6)
  few, many = rng.random((2, 3, 40)), rng.random((2, 3, 100))
  free, unequal = from_arrays(few), [list(row) for row in many]
  unequal[1][2] = many[1, 2, :40]
  found = compare_fairness(free, from_arrays(unequal), margin=0.05, permutations=9)
  cut = compare_fairness(free, from_arrays(many[..., :40]), margin=0.05,
                         permutations=9)
  assert (found.left_out, cut.left_out, found.samples) == (300, 0, 40)
  assert dataclasses.replace(found, left_out=0) == cut and '300 samples' in found.sentence()
  numbers = np.arange(0, 78, 2)  # of few, whose last is one that many lacks
  coupled = [from_arrays(x, coupled=True) for x in (few, many)]
  coupled[0] = dataclasses.replace(coupled[0], sample_ids=((np.append(numbers, 200),) * 3,) * 2)
  paired = compare_fairness(*coupled, margin=0.05, permutations=9)
  same = compare_fairness(*(from_arrays(x, coupled=True) for x in (
    few[..., :-1], many[..., numbers])), margin=0.05, permutations=9)
  assert paired.paired and dataclasses.replace(paired, left_out=0) == same
  # Numbers that only one file has: the first of each.
  coupled[0] = dataclasses.replace(coupled[0], sample_ids=((np.arange(500, 540),) * 3,) * 2)
  apart = compare_fairness(*coupled, margin=0.05, permutations=9)
  first = from_arrays(many[..., :40], coupled=True)
  cut = compare_fairness(coupled[0], first, margin=0.05, permutations=9)
  assert not apart.paired and dataclasses.replace(apart, left_out=0) == cut
  with pytest.raises(UserError, match='sample both alike'):
    compare_fairness(free, coupled[1], margin=0.05)


def test_the_named_number_of_samples_tells():
  rng = np.random.default_rng(3)
  models = [from_arrays(rng.random((3, 100))) for _ in range(2)]
  found = compare_fairness(*models, margin=0.02, permutations=50)
  assert found.verdict == 'cannot tell' and found.samples_needed > 100
  # What chance may hide counts too.
  biased = from_arrays(np.clip(rng.random((3, 100)) + [[0.5], [0], [0]], 0, 1))
  margin = 0.05 + compare_fairness(biased, models[0], margin=1, permutations=50).difference
  found = compare_fairness(biased, models[0], margin=margin, permutations=50)
  reach = found.most - found.difference + scipy.stats.t.ppf(0.8, 19) * found.std_error
  assert found.verdict == 'cannot tell' and found.most > found.high
  assert found.samples_needed == np.ceil(100 * (reach / 0.05) ** 2)
  many = [from_arrays(rng.random((3, 20_000))) for _ in range(2)]
  assert compare_fairness(*many, margin=0.02, permutations=20).verdict == 'no worse'


def test_a_gate_needs_twenty_samples():
  few, many = (from_arrays(np.full((3, n), 0.5)) for n in (10, 30))
  with pytest.raises(UserError, match='20 or more'):
    compare_fairness(few, many, margin=0.01)


def test_exit_codes_and_junit(tmp_path, capsys):
  country = load_attribute('country')
  for name, bias, templates, begin in (
      ('old', 0.1, 2, ''), ('new', 0.4, 2, ''), ('fewer', 0.4, 1, ''), ('other', 0.4, 2, 'So: ')):
    rng = np.random.default_rng(5)
    (tmp_path / name).write_text(''.join(
      json.dumps({'attribute': 'country', 'value': country.value_texts[p.value],
                  'template': p.template, 'prefix': begin + p.text, 'sample': i,
                  'continuation': 'a', 'scores': {
                    's': float(x), 'half': float(x / 2), 'same': i / 24}}) + '\n'
      for p in country.prefixes() if p.template < templates
      for i, x in enumerate(0.6 * rng.random(24) + bias * (p.value == 0))))

  def gate(new, old, margin, scorers=('s',)):
    code = main(['compare', 'gate', f'--records={tmp_path / new}', f'--against={tmp_path / old}',
                 '--attribute=country', f'--margin={margin}', '--permutations=20',
                 f'--junit={tmp_path / "j.xml"}', *(f'--scorer=recorded:{s}' for s in scorers)])
    line = ''.join(capsys.readouterr())
    return code, line, ElementTree.parse(tmp_path / 'j.xml').getroot()  # noqa: S314  our own

  code, line, suite = gate('new', 'old', 0.005)
  assert code == 3 and line.count('\n') == 1 and suite.get('failures') == '1'
  assert suite[0].get('name') == 'recorded:s' and suite[0][0].tag == 'failure'
  assert gate('old', 'new', 0.005)[0] == 0
  rise = float(line.split('difference ')[1].split()[0])
  code, line, suite = gate('new', 'old', rise)
  assert code == 4 and suite.get('errors') == '1'
  # The worst verdict of several is the build's.
  assert gate('new', 'old', rise / 2, ('same', 'half'))[0] == 4
  assert gate('new', 'old', rise / 2, ('half', 's', 'same'))[0] == 3
  assert gate('new', 'old', rise / 2, ('same',))[0] == 0
  for other, count in (('fewer', 10), ('other', 40)):
    code, line, _ = gate('new', other, 0.005)
    assert code == 2 and f'{count} prompts of country' in line
  assert gate('new', 'old', 0)[0] == 2
  first, *others = (json.loads(line) for line in (tmp_path / 'new').read_text().splitlines())
  rows = [first | {'continuation': ''}, *others, first | {'arm': 'rewording', 'rewording': 1}]
  rows += [r | {'arm': 'rewording', 'rewording': 1} for r in others]
  (tmp_path / 'new').write_text(''.join(json.dumps(row) + '\n' for row in rows))
  for code, *verb in ((3, 'compare', 'gate', f'--against={tmp_path / "old"}', '--permutations=9'),
                      (0, 'records', 'plan', '--effect=0.3')):
    assert main([*verb, f'--records={tmp_path / "new"}', '--attribute=country',
                 '--scorer=recorded:s', '--empty=drop']) == code
    line = capsys.readouterr().err
    assert '1 of 480 continuations are empty' in line and '480 records of rewordings' in line
