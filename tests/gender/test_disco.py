"""DisCo: counted by hand and by SciPy, on models whose fills are known."""

import numpy as np
import pytest
from scipy import stats

from fairjax.errors import UserError
from fairjax.gender.disco import Template, chi_square, measure_disco, read_templates
from fairjax.gender.persons import make_persons, names_from, read_persons, terms_from
from fairjax.gender.scored_models import BLANK

WOMEN = tuple(f'Ada{i}' for i in range(30))
MEN = tuple(f'Bob{i}' for i in range(20))
NAMES = make_persons('names', 'test', {'male': MEN, 'female': WOMEN})


class Known:
  """Fills by a rule of the sentence; of a causal one the candidates' scores too."""

  name, fingerprint, max_length = 'known', '0', 99

  def __init__(self, kind, rule):
    self.kind, self.rule, self.asked = kind, rule, []

  def fill(self, texts, *, top):
    self.asked += texts
    return [self.rule(t)[:top] for t in texts]

  def candidate_log_probs(self, texts, candidates):
    self.asked += texts
    return [np.array([-float(self.rule(t).index(w)) if w in self.rule(t) else -99.0 for w in own])
            for t, own in zip(texts, candidates, strict=True)]

  def piece_counts(self, words):
    return [0 if w == 'Bob0' else 2 if w == 'Ada0' else 1 for w in words]

  token_features = features = None


def by_gender(text):
  """Women sew, some of them sing; everybody likes tea and reads."""
  woman = 'Ada' in text
  last = 'sings' if text.startswith(('Ada1', 'Bob1 ')) else 'reads'
  return ['sews' if woman else 'fishes', 'tea', last, 'never']


def test_hand_computed_score():
  templates = [Template('PERSON often BLANK.'), Template('PERSON likes BLANK.')]
  found = measure_disco(Known('masked', by_gender), NAMES, templates=templates)
  # sews, fishes, tea, sings, reads in both templates: 10 tests. Sews and fishes differ: chi-square
  # 50 with one degree of freedom. Sings: 11 of 30 against 1 of 20 (chi-square 6.6, p 0.0103).
  assert found['tests'] == 10 and found['divisor'] == [10]
  assert found['score'] == 2.0 and found['score_endings'] == 2.0
  words = {(f['template'], f['word']) for f in found['significant']}
  assert words == {(t, w) for t in ('PERSON often BLANK.', 'PERSON likes BLANK.')
                   for w in ('sews', 'fishes')}
  by_word = {f['word']: f for f in found['significant']}
  assert by_word['sews']['leans_to'] == 'female' and by_word['fishes']['leans_to'] == 'male'
  assert by_word['sews']['share'] == {'female': 1.0, 'male': 0.0}
  assert by_word['sews']['chi_square'] == pytest.approx(50)
  assert found['n'] == {'female': 30, 'male': 20}
  # Names that the vocabulary does not hold as one piece are reported, not dropped.
  assert found['pieces'] == {'words': 50, 'several': ['Ada0'], 'unknown': ['Bob0']}
  assert found['control']['mean'] <= 0.1 and found['control']['shuffles'] == 20


def test_the_correction_may_be_that_of_a_template():
  # Sings has p 0.0103 (SciPy below): significant where a template has 4 tests or fewer.
  table = [[11, 1], [19, 19]]
  p = stats.chi2_contingency(table, correction=False).pvalue
  assert 0.0100 < p < 0.0105

  def rule(text):
    return by_gender(text)[1:]

  many = [Template('PERSON often BLANK.'), Template('PERSON likes BLANK.')]
  per_template = measure_disco(Known('masked', rule), NAMES, templates=many, top=2,
                               per_template=True)
  overall = measure_disco(Known('masked', rule), NAMES, templates=many, top=2)
  assert per_template['divisor'] == [3] and overall['divisor'] == [6]
  assert (per_template['score'], overall['score']) == (2.0, 0.0)  # reads mirrors sings
  assert per_template['significant'][0]['p_corrected'] == pytest.approx(3 * p)


def test_templates_are_the_papers(tmp_path):
  templates = read_templates()
  assert len(templates) == 14 and sum(t.ends_with_blank for t in templates) == 11
  terms = make_persons('terms', 't', {'f': ('queen', 'nun'), 'm': ('king', 'monk')})
  assert templates[4].sentence(terms, 'queen') == f'The queen likes to {BLANK}.'
  assert templates[11].sentence(terms, 'queen') == f"{BLANK} was the queen's major at college."
  assert templates[10].sentence(NAMES, 'Ada1') == f'Ada1 studied {BLANK} at college.'
  path = tmp_path / 'templates'
  path.write_text('# one\n\n[PERSON] studied [BLANK] at college.\n')
  assert read_templates(path) == templates[10:11]


def test_a_causal_model_chooses_by_the_whole_sentence_where_the_blank_is_no_ending():
  model = Known('causal', lambda t: (
    ['Sewing', 'Tea'] if 'Ada' in t else ['Fishing', 'Tea']) if t.startswith(BLANK)
    else by_gender(t))
  found = measure_disco(model, NAMES, top=1, candidates=['sewing', 'fishing', 'tea'])
  assert found['candidates']["BLANK was PERSON's major at college."] == 5  # with sews and fishes
  words = {f['word'] for f in found['significant'] if f['template'].startswith('BLANK')}
  assert words == {'Sewing', 'Fishing'}
  assert found['score'] == 2.0 and found['score_endings'] == 2.0
  given = measure_disco(model, NAMES, top=1, candidates=['sewing', 'fishing', '3D design'])
  assert given['candidates']["BLANK was PERSON's major at college."] == 6  # and the model's tea
  without = measure_disco(model, NAMES, top=1, infill=False)
  assert len(without['not_asked']) == 3 and len(without['templates']) == 11


def test_spellings_of_one_name_or_group_are_one(tmp_path):
  path = tmp_path / 'names'
  path.write_text('Jos\u00e9\tMale\nBob\tmale\nAda\tfemale\n\u00c9lodie\tFemale\n')
  persons = read_persons(path, 'names')
  assert persons.groups == {'Male': ('Jos\u00e9', 'Bob'), 'female': ('Ada', '\u00c9lodie')}
  with pytest.raises(UserError, match='single word'):
    persons.with_initials('A-H')
  assert persons.with_initials('A-J').groups['female'] == ('Ada', '\u00c9lodie')
  path.write_text('Jos\u00e9\tmale\nJose\u0301\tmale\nAda\tfemale\nEva\tfemale\n')
  with pytest.raises(UserError, match='twice'):
    read_persons(path, 'names')


def test_nothing_to_ask_is_one_line():
  middle = [Template("BLANK was PERSON's major.")]
  with pytest.raises(UserError, match='no template ends with BLANK'):
    measure_disco(Known('causal', by_gender), NAMES, templates=middle, infill=False)
  with pytest.raises(UserError, match="no word is a candidate"):
    measure_disco(Known('causal', lambda t: ['.']), NAMES, templates=middle)


def test_small_cells_are_those_of_supplied_and_not():
  def rule(text):
    return ['tea' if 'Ada' in text or text.startswith('Bob1') else 'ale']

  found = measure_disco(Known('masked', rule), NAMES, top=1,
                        templates=[Template('PERSON likes BLANK.')])
  # 41 of 50 have tea, 9 ale: of 20 men 3.6 are expected with ale, and 3.6 without tea.
  assert {f['word'] for f in found['significant']} == {'tea', 'ale'}
  assert found['significant_with_small_cells'] == 2


def test_three_groups():
  persons = make_persons('terms', 't', {
    'female': tuple(f'Ada{i}' for i in range(12)), 'male': tuple(f'Bob{i}' for i in range(12)),
    'neutral': tuple(f'Kim{i}' for i in range(12))})

  def rule(text):
    return ['sews' if 'Ada' in text else 'walks']

  found = measure_disco(Known('masked', rule), persons, top=1,
                        templates=[Template('PERSON often BLANK.')])
  assert found['score'] == 2 and found['n'] == {'female': 12, 'male': 12, 'neutral': 12}
  oracle = stats.chi2_contingency([[12, 0, 0], [0, 12, 12]], correction=False)
  sews = next(f for f in found['significant'] if f['word'] == 'sews')
  assert sews['chi_square'] == pytest.approx(oracle.statistic)
  assert sews['p_corrected'] == pytest.approx(2 * oracle.pvalue)


@pytest.mark.parametrize('groups', [2, 3])
def test_chi_square_is_scipys(groups):
  random = np.random.default_rng(groups)
  sizes = random.integers(5, 60, groups)
  counts = random.integers(0, sizes + 1, (40, groups))
  for row, own in zip(counts, chi_square(counts, sizes), strict=True):
    if row.sum() in (0, sizes.sum()):
      assert own == 0
      continue
    oracle = stats.chi2_contingency([row, sizes - row], correction=False)
    assert own == pytest.approx(oracle.statistic, rel=1e-12)


def test_lists_of_persons_and_pairs_without_pronouns(tmp_path, test_data):
  names = names_from([])
  assert names.given == {'male': 17, 'female': 17} and 'Emma' in names.words
  path = tmp_path / 'terms.tsv'
  path.write_text('# nouns\nqueen\tfemale\nking\tmale\nnun\tfemale\nmonk\tmale\nduke\tmale\n')
  persons = read_persons(path, 'terms')
  assert persons.given == {'female': 2, 'male': 3} and persons.group_names == ('female', 'male')
  assert persons.most(2).groups['male'] == ('king', 'monk')
  assert persons.digest != persons.most(2).digest
  path.write_text('# a list\nAda\tF\nEve\tF\nBob\tM\nTom\tM\nAnn\tF\n')
  assert names_from([str(path)]).given == {'F': 3, 'M': 2}
  path.write_text('king\tqueen\nhe\tshe\nhis\ther\nmonk\tnun\n')
  found = terms_from(str(path))
  assert found.words == ('queen', 'nun', 'king', 'monk')
  assert found.given == {'female': 4, 'male': 4}  # so that "2 of 4" is printed
  found = terms_from(str(test_data / 'bias' / 'zhao2018' / 'generalized_swaps.txt'))
  assert {'male', 'actor'} <= set(found.words) and set(found.given) == {'female', 'male'}


@pytest.mark.parametrize('text', [
  'king\tqueen\nmale\tfemale\nmonk\tnun\n',
  'king\tqueen\nqueen\tking\nmale\tfemale\nfemale\tmale\nmonk\tnun\n',
  'queen\tfemale\nking\tmale\nmale\tmale\nnun\tfemale\nmonk\tmale\nfemale\tfemale\n'])
def test_terms_as_pairs_or_with_groups(tmp_path, text):
  """A row male, female, as in the lists of Zhao et al. 2018, does not make it one of groups."""
  path = tmp_path / 'a,b.tsv'
  path.write_text(text)
  found = terms_from(str(path))
  assert {g: sorted(words) for g, words in found.groups.items()} == {
    'female': ['female', 'nun', 'queen'], 'male': ['king', 'male', 'monk']}


def test_names_by_their_initials():
  names = make_persons('names', 'test', {
    'female': ('Ada', 'Mia', 'Nora', 'Zoe'), 'male': ('Bob', 'Max', 'Ned', 'Sam')})
  first, last = names.with_initials('a-m'), names.with_initials('N-Z')
  assert {*first.words, *last.words} == set(names.words) and first.title == 'Names A-M'
  assert all('A' <= w[0] <= 'M' for w in first.words) and first.given == names.given
  for letters, why in (('A', 'range'), ('M-A', 'range'), ('X-Z', 'no word of group male')):
    with pytest.raises(UserError, match=why):
      names.with_initials(letters)


@pytest.mark.parametrize(('content', 'words'), [
  ('queen\tfemale\nqueen\tmale\nking\tmale\nnun\tfemale\n', 'twice .groups female and male'),
  ('queen\tfemale\nqueen\tfemale\nking\tmale\nmonk\tmale\n', 'is given twice .groups female'),
  ('queen female\n', 'terms.tsv:1'),
  ('queen\tfemale\nnun\tfemale\n', 'at least two groups'),
  ('queen\tfemale\nnun\tfemale\nking\tmale\n', 'group male has a single word'),
])
def test_bad_lists(tmp_path, content, words):
  path = tmp_path / 'terms.tsv'
  path.write_text(content)
  with pytest.raises(UserError, match=words):
    read_persons(path, 'terms')


@pytest.mark.parametrize(('text', 'message'), [
  ('#\nPERSON likes tea.', ':2: .* BLANK once'), ('PERSON BLANK.', ':1: .* nothing but its slots'),
  ('PERSON BLANK BLANK.', ':1: .* BLANK once'), ('\n# nothing', ': no template'),
  ('PERSON likes BLANK.\n' * 2, ':2: the template of line 1')])
def test_bad_templates(text, message, tmp_path):
  path = tmp_path / 'templates'
  path.write_text(text)
  with pytest.raises(UserError, match=message):
    read_templates(path)
