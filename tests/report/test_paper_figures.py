"""The figures of the paper: what is drawn is what the records say."""

import numpy as np
import pytest
import scipy.stats
from test_sections import ATTRIBUTE, BagOfWords, simulate

from fairjax.errors import UserError
from fairjax.measure import (
  OpinionScorer,
  VaderScorer,
  measure_records,
  read_generations,
  score_records,
)
from fairjax.measure.content import ContentOptions
from fairjax.report import ModelRow, paper_figures

SCORERS = [OpinionScorer(['good'], ['awful']), VaderScorer()]
MODELS = {'baseline': ('baseline', None), 'embedding-1': ('embedding', 1.0),
          'embedding-10': ('embedding', 10.0), 'sentiment-10': ('sentiment', 10.0)}
BIAS = {'baseline': 0.4, 'embedding-1': 0.3, 'embedding-10': 0.1, 'sentiment-10': 0.2}


@pytest.fixture(scope='module')
def rows():
  return [ModelRow(name, *MODELS[name], measures=measure_records(
    simulate(bias=b, memory=0.9 - 0.02 * (MODELS[name][1] or 0), samples=40), ATTRIBUTE, SCORERS,
    permutations=20, content=ContentOptions(encoder=BagOfWords()))) for name, b in BIAS.items()]


def heights(axis):
  """Heights of the filled bars, from the left."""
  bars = sorted((p for p in axis.patches if p.get_hatch() is None), key=lambda p: p.get_x())
  return [p.get_height() for p in bars]


def test_figure_1_shows_w1_of_the_pair(drawn):
  records = simulate(bias=0.4, memory=1.0, samples=80)
  generations = read_generations(records, ATTRIBUTE)
  scores = score_records(records, SCORERS[0])
  arguments = {'generations': generations, 'scores': scores, 'template': 1, 'scorer': 'opinion'}
  paper_figures.plot_pair('x', values=('baker', 'designer'), **arguments)
  left, right = drawn[0].axes
  one, other = (np.array([s for s, r in zip(scores, records, strict=True)
                          if r['template'] == 1 and r['value'] == v]) for v in (
                            'baker', 'designer'))
  want = scipy.stats.wasserstein_distance(one, other)
  assert right.get_title() == f'W1 = {want:.3f}' and want > 0.05
  width = 1 / 20
  mass = [sum(p.get_height() * width for p in c.patches) for c in right.containers]
  assert mass == pytest.approx([1, 1])
  texts = [t.get_text() for t in left.texts]
  assert 'My friend' not in texts[0] and 'I got a job as a baker. I' in texts[0]
  shown = [t.strip().rpartition(' (') for t in texts if t.startswith('   ')]
  assert len(shown) == 6
  by_text = {r['continuation']: s for s, r in zip(scores, records, strict=True)}
  for text, _, score in shown:
    assert f'{by_text[text]:.2f})' == score
  with pytest.raises(UserError, match="did you mean 'baker'"):
    paper_figures.plot_pair('x', values=('bakr', 'designer'), **arguments)
  with pytest.raises(UserError, match='template'):
    paper_figures.plot_pair('x', values=('baker', 'designer'), **(arguments | {'template': 7}))


@pytest.mark.parametrize('pair', [(0.445, 0.555), (0.494, 0.505), (0.2, 0.9)])
def test_figure_2_integrates_eq_1(pair):
  """One distribution dominates the other, so W1 is the difference of the means."""
  found = paper_figures.gaussian_distance(*pair, sigma=0.2)
  means = [scipy.stats.truncnorm(-m / 0.2, (1 - m) / 0.2, m, 0.2).mean() for m in pair]
  assert found == pytest.approx(abs(means[0] - means[1]), abs=1e-9)


def test_figure_2_has_the_distances_of_the_paper(drawn):
  paper_figures.plot_truncated_gaussians('x')
  assert [a.get_title() for a in drawn[0].axes] == ['W1 = 0.0998', 'W1 = 0.0100']
  line = drawn[0].axes[0].lines[0]
  assert np.trapezoid(line.get_ydata(), line.get_xdata()) == pytest.approx(1, abs=1e-4)


def test_figure_6_puts_every_model_at_its_numbers(rows, drawn):
  paper_figures.plot_relevance('x', attributes={'Job': rows, 'Other': rows[:3]}, scorer='opinion')
  first, second = drawn[0].axes
  assert (first.get_title(), second.get_title()) == ('Job', 'Other')
  points = {tuple(xy) for c in first.containers for xy in c[0].get_xydata()}
  assert points == {(r.estimate('opinion', 'individual_fairness')['value'],
                     100 * r.content('semantic_similarity')['value']) for r in rows}
  low, high = first.get_xlim()
  assert low > high  # the fairer to the right
  assert {t.get_text() for t in second.texts} == {'baseline', '1', '10'}  # weights, by colour
  without = [ModelRow('m', 'model', measures=measure_records(
    simulate(bias=0, memory=1, samples=2), ATTRIBUTE, SCORERS[:1], permutations=5))]
  with pytest.raises(UserError, match='no S.S. of m'):
    paper_figures.plot_relevance('x', attributes={'Job': without}, scorer='opinion')


def test_figures_16_and_17_group_models_by_attribute(rows, drawn):
  paper_figures.plot_models('x', attributes={'Job': rows[:3], 'Other': rows[1:3]},
                            scorers=['opinion', 'vader'], measure='individual_fairness')
  for axis, scorer, models in zip(drawn[0].axes, ('opinion', 'vader') * 2,
                                  (rows[:3],) * 2 + (rows[1:3],) * 2, strict=True):
    found = [r.estimate(scorer, 'individual_fairness') for r in models]
    assert heights(axis) == [e['value'] for e in found]
    assert [p.get_height() for p in axis.patches if p.get_hatch()] == [e['null_p95'] for e in found]
  with pytest.raises(UserError, match="did you mean 'vader'"):
    paper_figures.plot_models('x', attributes={'Job': rows}, scorers=['vadr'],
                              measure='group_fairness')
