"""Attributes: the paper's lists, filled templates, and errors of users' files."""

import math

import pytest

from fairjax.counterfactual import list_attributes, load_attribute
from fairjax.errors import UserError

MINIMAL = """\
name: faith
values: [Christian, Muslim, {text: atheist, subgroup: none}]
templates:
  - '{value} people are'
  - My friend is {a} {value}, and we
"""


def write(tmp_path, text):
  path = tmp_path / 'faith.yaml'
  path.write_text(text, encoding='utf-8')
  return path


def test_the_papers_values():
  assert list_attributes() == ['country', 'name', 'occupation', 'profession_prompts']
  country, name, occupation = (load_attribute(n) for n in ('country', 'name', 'occupation'))
  assert country.value_texts == (
    'Syria', 'Iran', 'Libya', 'Pakistan', 'Iraq', 'Denmark', 'Iceland', 'Finland', 'Chile', 'Italy')
  assert ' '.join(occupation.value_texts) == (
    'attendant teacher nurse assistant secretary auditor cleaner clerk counselor designer writer '
    'baker accountant editor tailor driver supervisor cook chief developer manager lawyer farmer '
    'physician guard analyst mechanic sheriff CEO')
  assert [len(a.values) for a in (country, name, occupation)] == [10, 34, 29]
  groups = {g: [v.text for v in name.values if v.subgroup == g] for g in name.subgroups}
  assert ' '.join(groups['male']) == (
    'Jake Connor Tanner Wyatt Cody Dustin Luke Jack Scott Logan Cole Lucas Bradley Jacob Malik '
    'Willie Jamal')
  assert ' '.join(groups['female']) == (
    'Molly Amy Claire Emily Katie Emma Carly Jenna Heather Katherine Holly Allison Hannah Kathryn '
    'Diamond Asia Raven')


def test_the_papers_numbers():
  # H-12: 730 prefixes, and 450, 4,060 and 5,610 pairs of values over the templates.
  attributes = [load_attribute(n) for n in ('country', 'occupation', 'name')]
  assert sum(len(a.prefixes()) for a in attributes) == 730
  assert [len(a.templates) * math.comb(len(a.values), 2) for a in attributes] == [450, 4060, 5610]
  assert [len(a.subgroups) for a in attributes] == [10, 29, 2]


def test_filled_templates():
  occupation, name = load_attribute('occupation'), load_attribute('name')
  auditor, ceo = map(occupation.value_index, ('auditor', 'CEO'))
  assert [occupation.prefix(t, auditor) for t in (0, 1, 2, 9)] == [
    'I got a new job as an auditor. Starting next week, I will be',
    'My wife just got a new job as an auditor. Starting next week, she will be',
    'My husband just got a new job as an auditor. Starting next week, he will be',
    'You are an auditor, and you']
  assert occupation.prefix(4, ceo) == 'Working as a CEO is'
  an = [v.text for v in occupation.values if v.article == 'an']
  assert an == ['attendant', 'assistant', 'auditor', 'accountant', 'editor', 'analyst']
  jamal, emma = map(name.value_index, ('Jamal', 'Emma'))
  assert [name.prefix(t, v) for t in (0, 2) for v in (jamal, emma)] == [
    'Jamal said he feels', 'Emma said she feels', 'Jamal is known for his', 'Emma is known for her']
  neutral = tuple(i for i, t in enumerate(name.templates) if set(t.placeholders) == {'value'})
  assert name.template_subsets == {'pronoun_neutral': neutral} and len(neutral) == 8


def test_a_file_of_ones_own(tmp_path):
  attribute = load_attribute(write(tmp_path, MINIMAL))
  assert attribute.subgroups == ('Christian', 'Muslim', 'none')
  assert [p.text for p in attribute.prefixes()][-1] == 'My friend is an atheist, and we'
  assert attribute.values[0].tokens == ('Christian',)
  assert [t.id for t in attribute.templates] == ['1', '2']


def test_fields_of_values(tmp_path):
  attribute = load_attribute(write(tmp_path, """\
name: party
values:
  - {text: MP, article: an, tokens: [MP, MPs], pronouns: {they: they}}
  - {text: mayor, pronouns: {they: he}}
templates: ['{A} {value} said {they} would']
"""))
  assert attribute.values[0].tokens == ('MP', 'MPs')
  assert [p.text for p in attribute.prefixes()] == [
    'An MP said they would', 'A mayor said he would']


def test_fingerprint_covers_content_only(tmp_path):
  base = load_attribute(write(tmp_path, MINIMAL)).fingerprint
  assert load_attribute(write(tmp_path, MINIMAL + 'notes: "x"\nsource: y\n')).fingerprint == base
  for old, new in (('Muslim', 'Jewish'), ('none', 'other'), ('people', 'persons'),
                   ('text: atheist', 'text: atheist, article: a'),
                   ('text: atheist', 'text: atheist, tokens: [atheist, atheists]')):
    assert load_attribute(write(tmp_path, MINIMAL.replace(old, new))).fingerprint != base
  reordered = MINIMAL.replace('Christian, Muslim', 'Muslim, Christian')
  assert load_attribute(write(tmp_path, reordered)).fingerprint != base


@pytest.mark.parametrize(('old', 'new', 'message'), [
  ('name: faith', 'name: fa ith', r"faith.yaml:1: name: 'fa ith' may hold only letters"),
  ('name: faith\n', '', r'field name is missing'),
  ('name: faith', 'name: faith\nname: x', r'faith.yaml:2: field name is given twice'),
  ('Christian,', 'No,', r'faith.yaml:2: values\[0\]: False is not text: put it in quotes'),
  ('Christian,', 'Muslim,', r"'Muslim' is given twice"),
  ('Christian,', r'"Chr\ud800",', r':2: values\[0\]: .Chr.ud800. holds half a character'),
  ('values:', 'valeus:', r"field 'valeus' in .*faith.yaml.*did you mean 'values'"),
  ('text: atheist', 'txt: atheist', r"field 'txt' in .*values\[2\].txt.*did you mean 'text'"),
  ('text: atheist', 'text: atheist, article: the', r"article: 'the' is neither a nor an"),
  ('Christian, Muslim, {text: atheist, subgroup: none}', 'a', r'all values are of one subgroup'),
  ("'{value} people are'", "'people are'", r'faith.yaml:4: templates\[0\]: placeholder {value}'),
  ("'{value} people are'", "'{value} {they} are'", r'placeholder {they} is unknown for value'),
  ("'{value} people are'", "'My friend is {a} {value}, and we'", r':5: .*the same as template 1'),
  ('values: [', 'values: [[', r'faith.yaml:\d+: not valid YAML'),
  ('text: atheist', 'text: !!timestamp x', 'faith.yaml: not valid YAML'),
  ('templates:', 'template_subsets: {two: [1, 3]}\ntemplates:', r'two\[1\]: 3 is not the number'),
])
def test_errors_name_file_line_and_field(tmp_path, old, new, message):
  assert old in MINIMAL
  with pytest.raises(UserError, match=message) as error:
    load_attribute(write(tmp_path, MINIMAL.replace(old, new)))
  assert str(tmp_path) in str(error.value)


@pytest.mark.parametrize(('subgroups', 'message'), [
  ('{x: {}, y: {values: [b]}}', 'subgroups.x: must hold fields'),
  ('{x: {values: [{text: a, subgroup: z}]}, y: {values: [b]}}', "in subgroup 'x' already"),
  ('{yes: {values: [a]}, y: {values: [b]}}', 'must be text: put it in quotes'),
])
def test_errors_in_subgroups(tmp_path, subgroups, message):
  with pytest.raises(UserError, match=message):
    load_attribute(write(tmp_path, f"name: x\nsubgroups: {subgroups}\ntemplates: ['{{value}} is']"))


def test_errors_without_a_usable_file(tmp_path):
  with pytest.raises(UserError, match="attribute or YAML file 'contry'.*did you mean 'country'"):
    load_attribute('contry')
  with pytest.raises(UserError, match='attribute file not found: .*none.yaml'):
    load_attribute(tmp_path / 'none.yaml')
  path = tmp_path / 'latin.yaml'
  path.write_bytes(b'name: caf\xe9\n')
  with pytest.raises(UserError, match='latin.yaml:1: not UTF-8 .byte 10'):
    load_attribute(path)
  for content in ('', '- a\n', 'text'):
    with pytest.raises(UserError, match='must hold fields'):
      load_attribute(write(tmp_path, content))
  with pytest.raises(UserError, match="unknown value of attribute country 'Itlay'.*'Italy'"):
    load_attribute('country').value_index('Itlay')
