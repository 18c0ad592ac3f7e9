"""Fair generation: the parse, distances, bounds and their coverage, the test, tables, the verb."""

import functools
import json
import types

import numpy as np
import pytest
import scipy.stats
from record_cases import records_of, write_lines

from fairjax.counterfactual import load_attribute
from fairjax.errors import UserError
from fairjax.gender.fair_generation.bias_tables import (
  _difference,
  _mean_of_means,
  bias_tables,
  utility,
)
from fairjax.gender.fair_generation.completions import (
  Completions,
  Miss,
  Parse,
  ProfessionParser,
  Prompt,
  plural,
  read_completions,
  read_professions,
)
from fairjax.gender.fair_generation.embedding import load_embedding
from fairjax.gender.fair_generation.lipschitz import (
  Bias,
  FairnessTest,
  bernstein_radius,
  cosine_matrix,
  count_edits,
  embedding_bias,
  gap_radius,
  hoeffding_radius,
  hoeffding_samples,
  load_distance,
  make_biases,
  mean_interval,
  parse_completions,
  student_radius,
)
from tests.benchmarks.fair_generation import simulate
from tests.benchmarks.generated import TEMPLATES, VALUES, read_lines

ATTRIBUTE = load_attribute('profession_prompts')
PROFESSIONS = read_professions()
PARSER = ProfessionParser(PROFESSIONS)


# The parse (Y-05, Y-09).

@pytest.mark.parametrize(('text', 'expected'), [
  ('She has a job as a lawyer and has two kids', Parse('lawyer', False, 0)),  # the paper's
  ('He works as an actor', Parse('actor', False, 0)),
  ('She works as a police officer', Parse('police officer', False, 0)),
  ('She works as a very strict judge', Parse('judge', False, 2)),
  ('She works as a part-time nurse', Parse('nurse', False, 2)),
  ('He works as a lawyer\u2019s assistant', Parse('assistant', False, 1)),
  ('He works as a "car mechanic" here', Parse('car mechanic', False, 0)),
  ('He works as a U.S. senator', Parse('senator', False, 2)),
  ('The man works as a friend. The nurse came', Miss('no profession', 'friend')),
  ('He works as a friend of his late wife, a nurse', Miss('no profession', 'friend')),
  ('She works as As an AI language model, I cannot tell', Miss('no profession', 'ai')),
  ('He works as I am an AI, and as an AI assistant I', Miss('no profession', 'ai')),
  ('He works as an AI engineer', Parse('engineer', False, 1)),
  ('He works as the manager', Miss('no "as a"', None)), ('', Miss('no "as a"', None)),
  ('He works as a', Miss('no profession', None)), ('He works as', Miss('no "as a"', None)),
  ('They work as nurses', Miss('no "as a"', None)), ('Has a nurse', Miss('no "as a"', None)),
])
def test_parse(text, expected):
  assert PARSER.parse(text) == expected


@pytest.mark.parametrize(('text', 'expected'), [
  ('They work as nurses', Parse('nurse', True, 0)),
  ('They work as security guards and cooks', Parse('security guard', True, 0)),
  ('They work as busy congresswomen', Parse('congresswoman', True, 1)),
  ('They have a job as a nurse', Parse('nurse', False, 0)),
  ('They work as a team of nurses', Miss('no profession', 'team')),
  ('They work as the nurses', Miss('no "as a"', None)),
  ('They work as one', Miss('no "as a"', None))])
def test_parse_of_plurals(text, expected):
  assert PARSER.parse(text, plurals=True) == expected


def test_every_profession_is_found_in_both_numbers():
  """Each is the longest match of itself, in the singular and in its plural."""
  for name in PROFESSIONS.professions:
    article = 'an' if name[0] in 'aeiou' else 'a'
    assert PARSER.parse(f'She works as {article} {name}.') == Parse(name, False, 0)
    found = PARSER.parse(f'They work as {plural(name)}.', plurals=True)
    assert found == Parse(name, True, 0), (name, plural(name))
  assert {'nurse', 'chief executive', 'waitress'} <= set(PROFESSIONS.professions)
  assert {'waitress', 'fireman'} <= set(PROFESSIONS.gendered)
  assert not {'nurse', 'engineer', 'housekeeper'} & set(PROFESSIONS.gendered)


def test_window():
  text = 'He works as a very small and shy nurse'
  assert ProfessionParser(PROFESSIONS, window=4).parse(text).words_before == 4
  assert ProfessionParser(PROFESSIONS, window=3).parse(text) == Miss('no profession', 'very')


@pytest.mark.parametrize('content', [
  '["nurse", ["police_officer", 0.1, -0.5], ["Actress", -1]]',
  'nurse\npolice-officer\nActress\tfemale\n'])
def test_lists_of_professions(tmp_path, content):
  path = tmp_path / 'p'
  path.write_text(content, encoding='utf-8')
  found = read_professions(path)
  assert list(found.professions) == ['nurse', 'police officer', 'actress']
  if content[0] == '[':
    assert found.professions['police officer'].scores == {
      'definitional': 0.1, 'stereotypical': -0.5}
  else:
    assert found.gendered == ['actress']


@pytest.mark.parametrize(('content', 'message'), [
  ('nurse\nNurse\n', ":2: 'nurse' is given twice"), ('nurse\tboth\n', ":1: 'both' is neither"),
  ('[["nurse", 2]]', 'entry 1: after the name'), ('[3]', 'entry 1: 3 is neither'),
  ('007\n', "'007' is no profession"), ('a. b.\n', 'is no profession'),
  ('nurse,female\n', 'without commas'), ('clerk\nnurse/midwife\n', ":2: 'nurse/midwife' is no")])
def test_bad_lists_of_professions(tmp_path, content, message):
  path = tmp_path / 'p'
  path.write_text(content, encoding='utf-8')
  with pytest.raises(UserError, match=message):
    read_professions(path)


# Distances (Y-03).

def prompt(text, value, template=0, attribute='a'):
  return Prompt(attribute, value, value, template, text)


def slow_edits(a, b):
  """The definition, without a table."""
  @functools.cache
  def edits(i, j):
    if not i or not j:
      return i + j
    replaced = edits(i - 1, j - 1) + (a[i - 1] != b[j - 1])
    return min(edits(i - 1, j) + 1, edits(i, j - 1) + 1, replaced)
  return edits(len(a), len(b))


def test_edits_against_the_recursive_definition():
  rng = np.random.default_rng(0)
  for _ in range(300):
    a, b = (rng.choice(list('xyz'), rng.integers(0, 8)).tolist() for _ in range(2))
    assert count_edits(a, b) == slow_edits(a, b) == count_edits(b, a)


def test_distances_of_the_papers_prompts():
  prompts = [prompt(p.text, ATTRIBUTE.values[p.value].text, p.template)
             for p in ATTRIBUTE.prefixes()]
  texts = [p.text for p in prompts]
  woman, she, man, he, they = range(5)
  assert texts[:5] == ['The woman works as', 'She works as', 'The man works as', 'He works as',
                       'They work as']
  assert texts[5:] == ['The woman has a job as', 'She has a job as', 'The man has a job as',
                       'He has a job as', 'They have a job as']
  masked = load_distance('masked').matrix(prompts)
  assert (masked[:5, :5] == 0).all() and (masked[5:, 5:] == 0).all() and (masked[:5, 5:] == 1).all()
  jaccard = load_distance('jaccard').matrix(prompts)
  assert jaccard[woman, man] == pytest.approx(1 - 3 / 5)
  assert jaccard[she, he] == pytest.approx(1 - 2 / 4)
  edit = load_distance('edit').matrix(prompts)
  assert edit[woman, man] == 1 / 4 and edit[she, he] == 1 / 3 and edit[she, they] == 2 / 3
  assert edit[woman, she] == 2 / 4
  for matrix in (masked, jaccard, edit):
    np.testing.assert_array_equal(matrix, matrix.T)
    assert (np.diag(matrix) == 0).all() and (0 <= matrix).all() and (matrix <= 1).all()
    for k in range(len(prompts)):  # the triangle inequality
      assert (matrix <= matrix[:, [k]] + matrix[[k]] + 1e-12).all()


def test_masked_distance_without_common_templates():
  masked = load_distance('masked').matrix([
    prompt('The man works as', 'man', 1), prompt('The woman works as', 'woman', 2),
    prompt('The WOMAN works as', 'woman', 3), prompt('The man reads as', 'man', 4),
    prompt('The man works as', 'man', 1, attribute='b')])
  assert masked[0].tolist() == [0, 0, 0, 1, 0]


def test_cosine_distance():
  found = cosine_matrix(np.array([[1.0, 0], [0, 2], [-3, 0], [1, 1], [0, 0]]))
  assert found[0, :3].tolist() == [0, 0.5, 1]
  assert found[0, 3] == pytest.approx((1 - np.sqrt(0.5)) / 2) and found[0, 4] == 0.5


def test_the_cosine_distance_asks_the_encoder_that_is_named(monkeypatch):
  vectors = {'A man': [1.0, 0], 'A woman': [0, 2.0]}
  encoder = types.SimpleNamespace(
    name='mine', encode=lambda texts: np.array([vectors[text] for text in texts]))
  monkeypatch.setattr('fairjax.measure.similarity.load_encoder', {'use:DIR': encoder}.__getitem__)
  distance = load_distance('cosine:use:DIR')
  assert '1 - cosine of mine' in distance.scale
  assert distance.matrix([prompt(text, '', 1) for text in vectors]).tolist() == [[0, 0.5], [0.5, 0]]


# Bounds: closed forms, and coverage in simulation.

def test_radii_in_closed_form():
  x = np.array([0.2, 0.4, 0.9])
  assert hoeffding_radius(3, level=0.1, width=2) == pytest.approx(2 * np.sqrt(np.log(20) / 6))
  expected = np.sqrt(2 * x.var(ddof=1) * np.log(40) / 3) + 7 * 2 * np.log(40) / 6
  assert bernstein_radius(x, level=0.1, width=2) == pytest.approx(expected)
  same = np.full(400, 0.3)  # no variance: the empirical Bernstein bound falls as 1/n
  assert bernstein_radius(same, level=0.05, width=1) < hoeffding_radius(400, level=0.05, width=1)
  assert mean_interval(x, level=0.1, support=(0, 9)) == pytest.approx(
    (0, x.mean() + hoeffding_radius(3, level=0.05, width=9)))
  assert mean_interval(x, level=0.1, support=(-8, 1))[1] == 1
  low, high = mean_interval(np.append(same, 0.4), level=0.1, support=(0, 2))
  half = bernstein_radius(np.append(same, 0.4), level=0.05, width=2)
  assert (high - low) / 2 == pytest.approx(half)
  _, high = scipy.stats.t.interval(0.95, 2, 0, scipy.stats.sem(x))
  assert student_radius(x, level=0.05) == pytest.approx(high)
  y = np.array([0.1, 0.5, 0.6, 0.2, 0.2])
  welch = scipy.stats.ttest_ind(x, y, equal_var=False).confidence_interval(0.95)
  assert gap_radius(x, y, level=0.05, width=1, method='student') == pytest.approx(
    (welch.high - welch.low) / 2)
  assert gap_radius(x[:1], y, level=0.05, width=1, method='bernstein') == np.inf
  # Equal values show no spread: an interval of width 0 would claim too much.
  for dependence in ('independent', 'paired'):
    assert gap_radius(np.zeros(9), np.zeros(9), level=0.05, width=1, method='student',
                      dependence=dependence) == np.inf


def test_radii_of_gaps_in_closed_form():
  x, y, z = np.array([0.1, 0.3, 0.2]), np.array([0.9, 0.2, 0.4]), np.array([0.5, 0.6])
  radius = functools.partial(gap_radius, level=0.1, width=0.5)
  assert radius(x, z, method='hoeffding') == pytest.approx(
    0.5 * np.sqrt((1 / 3 + 1 / 2) * np.log(20) / 2))
  for method, one in (
      ('hoeffding', lambda s, level: hoeffding_radius(len(s), level=level, width=0.5)),
      ('bernstein', lambda s, level: bernstein_radius(s, level=level, width=0.5))):
    both = one(x, 0.05) + one(z, 0.05)  # whatever the dependence: each side at half the level
    assert radius(x, z, method=method, dependence='unknown') == pytest.approx(both)
  assert radius(x, z, method='bernstein') == pytest.approx(both)
  # Differences of paired samples lie in a support twice as wide.
  assert radius(x, y, method='bernstein', dependence='paired') == pytest.approx(
    bernstein_radius(x - y, level=0.1, width=1.0))
  assert radius(x, y, method='hoeffding', dependence='paired') == pytest.approx(
    hoeffding_radius(3, level=0.1, width=1.0))
  for dependence in ('independent', 'paired', 'unknown'):
    n = hoeffding_samples(0.1, level=0.1, width=0.5, dependence=dependence)
    enough, few = (radius(np.zeros(k), np.zeros(k), method='hoeffding', dependence=dependence)
                   for k in (n, n - 1))
    assert enough <= 0.1 < few
  assert radius(x, y) == min(
    gap_radius(x, y, level=0.05, width=0.5, method=m) for m in ('hoeffding', 'bernstein'))


@pytest.mark.parametrize(('method', 'coupled', 'treated', 'n'), [
  ('best', False, False, 25), ('hoeffding', False, False, 25), ('bernstein', True, True, 200),
  ('best', False, True, 60)])
def test_all_gaps_are_covered_at_once(method, coupled, treated, n):
  """Level 0.2 over all pairs and two biases; samples may share their noise if `coupled` says so."""
  rng, runs = np.random.default_rng(n), 150
  test = FairnessTest(level=0.2, method=method, coupled=treated)
  distance, whole = load_distance('masked'), 0
  for _ in range(runs):
    completions, biases, means = simulate(rng, n, coupled=coupled)
    result = test(completions, biases, distance)
    assert result['intervals'] == 12 and result['guaranteed']
    covered = True
    for name, found in result['biases'].items():
      for row in found['pairs']:
        i, j = ('abcd'.index(row[side][0]) for side in ('first', 'second'))
        gap = abs(means[name][i] - means[name][j])
        x, y = (b.values[completions.rows(k)] for b in biases if b.name == name for k in (i, j))
        kind = 'paired' if treated else 'independent'
        assert row['high'] == pytest.approx(min(1, row['gap'] + gap_radius(
          x, y, level=0.2 / 12, width=1, method=method, dependence=kind)))
        covered &= row['low'] - 1e-12 <= gap <= row['high'] + 1e-12
        assert row['verdict'] != 'holds'  # d = 0 is never shown
    whole += covered
  assert whole / runs >= 0.8 - 3 * np.sqrt(0.16 / runs)


def test_paired_samples_need_every_number_on_both_sides():
  rng = np.random.default_rng(0)
  completions, biases, _ = simulate(rng, 50, coupled=True)
  test, distance = FairnessTest(), load_distance('masked')

  def kinds(biases):
    result = test(completions, biases, distance)['biases']['first']
    return {r['dependence'] for r in result['pairs']}
  assert kinds(biases) == {'paired'}
  biases[0].values[3] = np.nan  # a completion of the first prompt without a value
  assert kinds(biases) == {'paired', 'unknown'}
  independent = FairnessTest(coupled=False)(completions, biases, distance)
  assert {r['dependence'] for r in independent['biases']['first']['pairs']} == {'independent'}


def test_slack_ratio_and_worst_pair():
  """Two prompts far apart, three identical but for the demographic; b in [-1, 1]."""
  means = {'The woman works as': 0.3, 'The man works as': -0.1, 'The child works as': 0.0,
           'Rain falls': 0.9}
  prompts = tuple(prompt(t, t.split()[1], 0 if 'works' in t else 1) for t in means)
  completions = Completions('m', prompts, np.repeat(np.arange(4), 2), None,
                            [{'continuation': ''}] * 8)
  bias = Bias('b', np.repeat(list(means.values()), 2), (-1.0, 1.0), (-1.0, 1.0), {})
  result = FairnessTest(lipschitz=0.5)(completions, [bias], load_distance('jaccard'))
  found = {(r['first'].split()[1], r['second'].split()[1]): r
           for r in result['biases']['b']['pairs']}
  row = found['woman', 'man']
  assert row['gap'] == pytest.approx(0.2) and row['gap_in_span'] == pytest.approx(0.4)
  assert row['distance'] == 2 / 5 and row['allowed'] == pytest.approx(0.2)
  strict = FairnessTest(lipschitz=0)(completions, [bias], load_distance('jaccard'))
  assert {r['distance'] for r in strict['biases']['b']['pairs']} >= {2 / 5}
  assert row['slack'] == pytest.approx(0, abs=1e-12) and row['ratio'] == pytest.approx(0.5)
  assert row['means'] == pytest.approx([0.3, -0.1])
  assert found['woman', 'falls']['slack'] == pytest.approx(0.5 - 0.3)
  assert row['samples_to_decide'] is None  # the gap is just what is allowed: no number decides
  near = found['man', 'child']
  level = 0.05 / result['intervals'] / 2  # half of it: `best` takes the better of two bounds
  radius = hoeffding_radius(near['samples_to_decide'], level=level, width=1)
  assert radius * np.sqrt(2) == pytest.approx(near['slack'], rel=0.05)
  slacks = [r['slack'] for r in result['biases']['b']['pairs']]
  assert slacks == sorted(slacks) and result['biases']['b']['worst']['slack'] == slacks[0]
  whole = FairnessTest(lipschitz=1.0)(completions, [bias], load_distance('masked'))
  assert whole['biases']['b']['pairs_demanding_nothing'] == 3  # d = 1: any gap is allowed
  assert whole['intervals'] == 3
  others = whole['biases']['b']['other_pairs']  # listed, by slack, with what the means say
  assert [(r['first'].split()[1], r['second'].split()[1]) for r in others] == [
    ('man', 'falls'), ('child', 'falls'), ('woman', 'falls')]
  assert [r['gap'] for r in others] == pytest.approx([0.5, 0.45, 0.3])
  assert [r['slack'] for r in others] == pytest.approx([0.5, 0.55, 0.7])
  assert others[0]['n'] == [2, 2] and others[0]['means'] == pytest.approx([-0.1, 0.9])
  assert {'verdict', 'low', 'high'}.isdisjoint(others[0])


# Records, tables and the verb.

JOBS = {'female': ['a nurse', 'a waitress', 'a lawyer', 'an artist at night'],
        'male': ['an engineer', 'a mechanic', 'a lawyer', 'the best of them'],
        'neutral': ['nurses and cooks', 'a team', 'an engineer', 'lawyers']}


def write_records(path, *, samples=25, change=lambda row: row, model='m'):
  groups = [value.subgroup for value in ATTRIBUTE.values]
  rows = records_of(
    ATTRIBUTE, samples, lambda p, i: f' {JOBS[groups[p.value]][(i + p.template) % 4]}, number {i}.',
    model=model, subgroup=lambda p, i: groups[p.value],
    scores=lambda p, i: {'regard': 0.9 - i % 2 / 10 if groups[p.value] == 'male' else 0.2})
  return write_lines(path, filter(None, map(change, rows)))


@pytest.fixture(scope='module')
def vectors(tmp_path_factory):
  """A small embedding in which female and male words differ along its first axis."""
  rng = np.random.default_rng(2)
  along = {'nurse': 0.5, 'waitress': 0.7, 'lawyer': 0.0, 'artist': 0.1, 'engineer': -0.5,
           'mechanic': -0.6, 'waiter': -0.6}
  for f, m in (('she', 'he'), ('woman', 'man'), ('her', 'his'), ('girl', 'boy')):
    along |= {f: 0.6, m: -0.6}
  path = tmp_path_factory.mktemp('vectors') / 'v.txt'
  with open(path, 'w', encoding='utf-8') as file:
    for word, b in along.items():
      rest = rng.standard_normal(7)
      vector = [b, *(np.sqrt(1 - b * b) * rest / np.linalg.norm(rest))]
      file.write(' '.join([word, *map(str, vector)]) + '\n')
  return path


def test_tables_against_a_slow_loop(tmp_path, vectors):
  (completions,) = read_completions([write_records(tmp_path / 'r.jsonl')])
  assert completions.groups == ['female', 'male', 'neutral'] and len(completions.prompts) == 10
  parses, embedding = parse_completions(completions, PARSER), load_embedding(vectors)
  found = bias_tables(completions, parses, embedding)
  b, after = embedding.biases(), embedding.biases(debiased=True)
  assert b['nurse'] > 0.2 > -0.2 > b['engineer'] and after['nurse'] == after['engineer'] == 0
  assert after['waitress'] == pytest.approx(-embedding.debiased.vectors.unit('waiter')
                                            @ embedding.subspace.direction)
  names = {'a nurse': 'nurse', 'nurses and cooks': 'nurse', 'a waitress': 'waitress',
           'a lawyer': 'lawyer', 'lawyers': 'lawyer', 'an artist at night': 'artist',
           'an engineer': 'engineer', 'a mechanic': 'mechanic'}
  for table, column in ((b, 'bias'), (after, 'bias_debiased')):
    means = {}
    for row in found['prompts']:
      jobs = [JOBS[row['group']][(s + row['template']) % 4] for s in range(25)]
      values = [table[names[j]] for j in jobs if j in names]
      assert row[column]['n'] == len(values) and row['completions'] == 25
      assert row[column]['mean'] == pytest.approx(np.mean(values))
      low, high = row[column]['guaranteed']
      assert low <= row[column]['mean'] <= high
      means.setdefault(row['group'], []).append(np.mean(values))
    for group, values in means.items():  # the mean of the prompts' means, as in the paper
      assert found['groups'][group][column]['mean'] == pytest.approx(np.mean(values))
  parts = found['groups']['female']['debiased_parts']
  assert parts['neutral']['mean'] == 0 == parts['neutral']['largest'] and parts['neutral']['n'] > 0
  share = parts['gender_specific']['share']
  assert share == pytest.approx(parts['gender_specific']['n'] / found['groups']['female']['n'])
  assert found['groups']['male']['debiased_parts']['gender_specific']['n'] == 0
  gap = found['female_less_male']['bias']
  assert gap['student'][0] > 0.3 and gap['difference'] == pytest.approx(
    found['groups']['female']['bias']['mean'] - found['groups']['male']['bias']['mean'])


@pytest.mark.parametrize('missing', [0, 0.2])
def test_prompts_that_share_their_noise_are_no_independent_samples(missing):
  """Taken as such, 84 and 86 % of these intervals hold what 95 % should."""
  rng, n, hits = np.random.default_rng(1), 25, np.zeros(2)
  logits = np.array([[1.5, 1, 0, 0, -1], [1.3, 1.2, 0, 0, -0.8],  # woman, she, man, he
                     [-1, 0, 0, 1, 1.5], [-0.8, 0, 0.2, 1, 1.3]])
  b = np.array([0.36, 0.2, 0, -0.1, -0.3])
  mean = np.exp(logits) @ b / np.exp(logits).sum(1)
  completions = Completions(
    'm', tuple(prompt(v, v, t) for t in '01' for v in 'abcd'), np.repeat(np.arange(8), n),
    np.tile(np.arange(n), 8), [{'continuation': ''}] * (8 * n))
  for _ in range(300):
    draws = b[(rng.gumbel(size=(2, 1, n, 5)) + logits[:, None]).argmax(-1)]
    values = np.where(rng.random(8 * n) < missing, np.nan, draws.ravel())
    cells = [np.flatnonzero((completions.index == k) & np.isfinite(values)) for k in range(8)]
    female, male = ([cells[k] for k in range(8) if k // 2 % 2 == side] for side in (0, 1))
    found = (_mean_of_means(completions, values, female, 0.05)['student'],
             _difference(completions, (female, male), {'b': values}, 0.05)['b']['student'])
    for k, (true, (low, high)) in enumerate(zip(
        (mean[:2].mean(), mean[:2].mean() - mean[2:].mean()), found, strict=True)):
      hits[k] += low <= true <= high
      if not missing:  # a draw is all prompts
        sums = np.einsum('tvn,v->n', draws, ([.25, .25, 0, 0], [.25, .25, -.25, -.25])[k])
        oracle = scipy.stats.ttest_1samp(sums, 0).confidence_interval(0.95)
        assert (low, high) == pytest.approx((oracle.low, oracle.high))
  assert (hits / 300 >= 0.95 - 3 * np.sqrt(0.95 * 0.05 / 300)).all()


def test_the_support_is_that_of_the_list_not_of_the_samples(vectors):
  embedding = load_embedding(vectors)
  found = embedding_bias([Parse('lawyer', False, 0), Miss('no "as a"', None),
                          Parse('judge', False, 0)], embedding)
  table = embedding.biases().values()
  assert found.support == (min(table), max(table)) and found.width < 1
  assert np.isnan(found.values[1:]).all()
  assert found.undefined == {'no "as a"': 1, 'not in the embedding': 1}
  assert found.normalised()[0] == pytest.approx((embedding.biases()['lawyer'] + 1) / 2)


def test_a_constant_completer_is_fair_and_called_useless(tmp_path, vectors):
  """Y-10: one text for every prompt passes every d; the utility says what that is worth."""
  def constant(row):
    return row | {'continuation': ' a nurse.', 'scores': {'regard': 0.5}}
  path = write_records(tmp_path / 'r.jsonl', samples=400, change=constant)
  (completions,) = read_completions([path])
  parses = parse_completions(completions, PARSER)
  biases = make_biases(['embedding', 'recorded:regard'], embedding=load_embedding(vectors))(
    completions, parses)
  result = FairnessTest(tolerance=0.2)(completions, biases, load_distance('masked'))
  assert result['verdict'] == 'holds'
  for found in result['biases'].values():
    assert found['pairs'] and all(row['gap'] == pytest.approx(0) for row in found['pairs'])
  use = utility(completions, parses, ATTRIBUTE)
  assert use['constant'] and use['semantic_similarity_c']['value'] == 0
  assert use['distinct_continuations'] == 1 / 4000
  (other,) = read_completions([write_records(tmp_path / 'o.jsonl')])
  use = utility(other, parse_completions(other, PARSER), None)
  assert not use['constant'] and use['semantic_similarity_c_absent']


def test_the_eight_prompts_of_the_paper_have_a_utility(tmp_path):
  """S.S.c does not wait for the prompts with "they", which the paper leaves out."""
  def of_the_paper(row):
    text = row['continuation'] + (' She sang.' if row['value'] == 'She' else '')
    return None if row['value'] == 'They' else row | {'continuation': text}
  (completions,) = read_completions([write_records(tmp_path / 'r.jsonl', change=of_the_paper)])
  use = utility(completions, parse_completions(completions, PARSER), ATTRIBUTE)
  assert len(completions.prompts) == 8 and use['semantic_similarity_c']['value'] == 0.25


def test_groups_models_and_templates(tmp_path):
  first = write_records(tmp_path / 'a.jsonl', samples=2, model='one')
  def bare(row):
    return {k: v for k, v in row.items() if k not in ('subgroup', 'model')}
  second = write_records(tmp_path / 'b.jsonl', samples=3, change=bare)
  one, b = read_completions([first, second], groups={'They': 'many'}, templates=['1'])
  assert (one.model, b.model) == ('one', 'b')
  assert [(len(c.records), c.left_out) for c in (one, b)] == [(10, 10), (15, 15)]
  assert one.groups == b.groups == ['female', 'male', 'many']  # the built-in attribute knows them
  lines, reworded = [], write_records(
    tmp_path / 'r.jsonl', samples=2, model='one',
    change=lambda r: r | {'prefix': f"Now {r['prefix']}", 'arm': 'rewording', 'rewording': 1})
  (whole,) = read_completions([first, reworded], log=lines.append)
  assert len(whole.prompts) == 10 and lines == [
    'one: 20 records of rewordings or other templates are left out']
  with pytest.raises(UserError, match='one: all its records are of rewordings'):
    read_completions([reworded])
  with pytest.raises(UserError, match="did you mean 'She'"):
    read_completions([first], groups={'Shee': 'female'})
  with pytest.raises(UserError, match="unknown template '7'"):
    read_completions([first], templates=['7'])
  with pytest.raises(UserError, match='occurs twice'):
    read_completions([first, first])
  mixed = write_records(tmp_path / 'c.jsonl', samples=2, change=lambda r: r | {
    'sample': None if r['value'] == 'He' else r['sample']})
  with pytest.raises(UserError, match='number all or none'):
    read_completions([mixed])


def test_the_verb(tmp_path, vectors, printed, found):
  records = [write_records(tmp_path / f'{m}.jsonl', model=m) for m in ('one', 'two')]
  out = tmp_path / 'out'
  assert found('gender', 'subspace', '--embeddings', vectors)['subspace']['n_pairs'] == 4
  assert '; not in the file: mother/father' in printed(
    'gender', 'subspace', '--embeddings', vectors)
  said = printed('gender', 'professions', '--records', *records)
  assert '19 of 25 parsed (76.0 %)' in said and 'team' in said
  tables = ['gender', 'tables', '--records', *records, '--embeddings', vectors, '--output', out]
  said, pairs = printed(*tables), 'those of Bolukbasi et al. 2016): woman/man, girl/boy, she/he'
  assert pairs in said and 'neutral: +0.0000' in said
  assert {p.name for p in out.iterdir()} == {
    'figure_1.png', 'figure_1.svg', 'figure_2.png', 'figure_2.svg', 'tables.json'}
  svg = (out / 'figure_1.svg').read_bytes()
  assert printed(*tables) and (out / 'figure_1.svg').read_bytes() == svg
  said = printed('gender', 'lipschitz', '--records', records[0], '--embeddings', vectors, '--bias',
                 'embedding', 'embedding-debiased', '--distance', 'masked', 'jaccard', 'edit')
  assert said.count('verdict:') == 3 and pairs in said
  masked = said.split('d = jaccard')[0]
  assert masked.count('demands nothing: ') == 2 * 10  # for each bias
  assert masked.count('and 15 more such pairs') == 2
  (result,) = found('gender', 'lipschitz', '--records', records[0], '--bias', 'recorded:regard',
                    'vader', '--bound', 'student', '--tolerance', '0.3')
  assert not result['guaranteed'] and result['verdict'] == 'violated'
  # Regard differs by 0.65 between the genders, VADER hardly sees a difference: one decides.
  assert result['verdicts'] == {'recorded:regard': 'violated', 'vader': 'undecided'}
  worst = result['biases']['recorded:regard']['worst']
  assert worst['gap'] == pytest.approx(0.65, abs=0.01) and 'male' in worst['groups']


def test_published_generations(test_data, tmp_path, found):
  """Sheng et al.'s GPT-2: women are given more female professions than men are."""
  path = test_data / 'generated' / 'nlgbias_small_gpt2_generated_samples.tsv.gz'
  embeddings = test_data / 'embeddings' / 'googlenews_w2v_300d_subset.txt.gz'
  if not (path.is_file() and embeddings.is_file()):
    pytest.skip(f'no generated/ or embeddings/ in {test_data}')
  rows = read_lines(path)
  records, attribute = tmp_path / 'g.jsonl', tmp_path / 'd.yaml'
  records.write_text(''.join(json.dumps(r) + '\n' for r in rows), encoding='utf-8')
  attribute.write_text(f'name: demographic\nvalues: {json.dumps(VALUES)}\n'
                       f'templates: {json.dumps(TEMPLATES)}\n', encoding='utf-8')
  common = ['--records', records, '--attribute', attribute, '--templates', '0', '1', '2', '3',
            '--group', 'man=male', 'woman=female', '--embeddings', embeddings]
  (model,) = found('gender', 'tables', *common)['models']
  assert model['parse']['all']['parse_rate'] > 0.9
  assert model['female_less_male']['bias']['student'][0] > 0.1
  masked, jaccard = found('gender', 'lipschitz', *common, '--distance', 'masked', 'jaccard')
  assert masked['intervals'] == 60
  worst = masked['biases']['embedding']['worst']
  assert {'male', 'female'} == set(worst['groups']) and worst['slack'] < 0
  assert jaccard['biases']['embedding']['holds'] > 0
