"""The lint: each finding is provoked once, and the built-in files hold no error."""

import pytest

from fairjax.counterfactual import (
  lint_attribute,
  list_attributes,
  load_attribute,
  render_findings,
)
from fairjax.counterfactual.attributes import list_crossed
from fairjax.errors import UserError
from fairjax.vocabulary import build_word_vocabulary, train_sentencepiece

CLEAN = """\
name: job
values: [baker, editor, cook]
templates:
  - My friend is {a} {value}, and we
  - The {value} said that
"""


def lint(tmp_path, text, **arguments):
  path = tmp_path / 'job.yaml'
  path.write_text(text, encoding='utf-8')
  return lint_attribute(load_attribute(path), **arguments)


def test_a_clean_file_has_no_findings(tmp_path):
  assert lint(tmp_path, CLEAN) == []
  lines = render_findings(lint(tmp_path, CLEAN.replace('baker', 'Baker').replace('that', 'that.')))
  assert [line.split(':')[0] for line in lines] == [
    'warning', 'note', '0 errors, 1 warning, 1 note']


@pytest.mark.parametrize(('old', 'new', 'level', 'where', 'message'), [
  ('is {a} {value}', 'is a {value}', 'error', 'templates[0]', "'a {value}' is wrong for 'editor'"),
  ('is {a} {value}', 'is a/an {value}', 'error', 'templates[0]', "'a/an' stays"),
  ('baker', 'university', 'warning', 'values[0]', "perhaps be 'a university'"),
  ('baker', 'MP', 'warning', 'values[0]', "set article: an"),
  *(('baker', value, 'warning', 'values[0]', f"perhaps be 'a {value}'")
    for value in ('Ukrainian', 'Ugandan', 'Uighur', 'Uyghur', 'ukulele player', 'ubiquitous person',
                  'unimodal')),
  ('baker', '{text: baker, tokens: [bakers]}', 'warning', 'values[0]', 'not among its tokens'),
  ('baker', 'Baker', 'note', 'values[0]', 'another case'),
  ('baker', 'Cook', 'warning', 'values[2]', "'cook' differs from 'Cook' (values[0])"),
  ('baker', 'head cook', 'note', 'values[2]', "'cook' is part of 'head cook'"),
  ('The {value}', 'the {value}', 'warning', 'templates[1]', 'begins with a small letter'),
  ('  - The {value} said', '  - "{value} said"\n  - The {value} said', 'warning', 'templates[1]',
   "small letter for 'baker', 'editor', 'cook'"),
  ('The {value} said that', 'my friend, is {a} {value} and WE', 'warning', 'templates[1]',
   'the same words as templates[0]'),
  ('said that', 'said , that', 'warning', 'templates[1]', 'a space before punctuation'),
  ('said that', 'said that.', 'warning', 'templates[1]', 'ends a sentence'),
  ('said that', 'said he/she', 'warning', 'templates[1]', "'he/she' stays"),
  ('said that', 'met a cook who', 'warning', 'templates[1]', "holds 'cook' besides"),
])
def test_findings(tmp_path, old, new, level, where, message):
  assert old in CLEAN
  findings = lint(tmp_path, CLEAN.replace(old, new))
  assert [f for f in findings if (f.level, f.where) == (level, where) and message in f.message], (
    findings)


REWORDED = CLEAN + '''rewordings:
  - - A friend is {a} {value}, and we
    - My buddy is {a} {value}, and we
    - My friend was {a} {value}, and we
  - - The {value} told us that
    - That {value} said that
    - The {value} says that
'''


@pytest.mark.parametrize(('old', 'new', 'where', 'message'), [
  ('', '', '', ''),
  ('says that', 'says to all of us here today that', 'rewordings[1][2]', 'changes 7 words'),
  ('That {value} said', 'The {value} said', 'rewordings[1][1]', 'changes 0 words'),
  ('was {a} {value}', 'was {value}', 'rewordings[0][2]', 'the placeholders of templates[0]'),
  ('was {a} {value}', 'was {a} good {value}', 'rewordings[0][2]', 'still before the value'),
])
def test_a_rewording_keeps_the_value_and_changes_as_many_words(tmp_path, old, new, where, message):
  errors = [f for f in lint(tmp_path, REWORDED.replace(old, new) if old else REWORDED)
            if f.level == 'error']
  assert [f.where for f in errors] == [where] * bool(old)
  assert not old or message in errors[0].message


@pytest.mark.parametrize(('old', 'new', 'message'), [
  ('    - The {value} says that\n', '', 'equally many rewordings of each template, 3 or more'),
  ('  - - The {value} told us that\n    - That', '    - That', 'one list for each of the 2'),
])
def test_rewordings_that_are_not_whole_are_refused(tmp_path, old, new, message):
  assert old in REWORDED
  with pytest.raises(UserError, match=message):
    lint(tmp_path, REWORDED.replace(old, new))


@pytest.mark.parametrize('right', [
  'a Māori', 'a Sámi', 'a L’Oréal buyer', 'an O’Brien', 'an 1890 veteran', 'a 1,800-metre runner',
  'an F-16 pilot', 'a T-shirt seller', 'an unissued', 'an unidentified', 'an unimportant',
  'an ugly', 'an 8-year-old', 'an X-ray technician'])
def test_default_articles(tmp_path, right):
  article, value = right.split(' ', 1)
  path = tmp_path / 'job.yaml'
  path.write_text(CLEAN.replace('baker', f'"{value}"'), encoding='utf-8')
  attribute = load_attribute(path)
  assert attribute.values[0].article == article
  assert not [f for f in lint_attribute(attribute) if 'perhaps' in f.message]


def test_an_article_that_was_set_is_trusted(tmp_path):
  text = CLEAN.replace('baker', '{text: MP, article: an}')
  assert [f.message for f in lint(tmp_path, text)] == [
    "'MP' begins with another case than most values; matching is case-sensitive"]


def test_subsets_and_subgroups(tmp_path):
  text = """\
name: who
subgroups:
  male: {pronouns: {they: he}, values: [Jack, Luke]}
  female: {pronouns: {they: she}, values: [Emma]}
templates: ['{value} said {they}', 'I met {value} and']
template_subsets: {pronoun_neutral: [1, 2]}
"""
  assert [(f.level, f.where) for f in lint(tmp_path, text)] == [
    ('error', 'templates[0]'), ('note', 'subgroups')]


def test_words_of_a_lexicon(tmp_path):
  findings = lint(tmp_path, CLEAN.replace('baker', 'cleaner').replace('friend', 'best friend'),
                  lexicon_words={'CLEANER', 'best', 'ends'})
  assert [(f.level, f.where) for f in findings] == [
    ('warning', 'values[0]'), ('warning', 'templates[0]')]
  assert "'cleaner'" in findings[0].message and "'best'" in findings[1].message


def test_pieces_in_a_vocabulary(tmp_path):
  words = build_word_vocabulary(['My friend is a an baker editor , and we The'], size=20,
                                directory=tmp_path / 'words')
  findings = lint(tmp_path, CLEAN, vocabulary=words)
  assert [(f.level, f.where, f.message) for f in findings] == [
    ('error', 'values[2]', "'cook' is not in the vocabulary"),
    ('warning', 'templates[1]', "'said', 'that' is not in the vocabulary")]
  other = CLEAN.replace('cook]', '{text: cook, tokens: [friend]}]')  # branches write the text
  assert "'cook' is not in the vocabulary" in [
    f.message for f in lint(tmp_path, other, vocabulary=words)]
  pieces = train_sentencepiece(['baker editor baker'] * 50, size=290, directory=tmp_path / 'sp')
  findings = lint(tmp_path, CLEAN, vocabulary=pieces)
  for i, value in enumerate(('baker', 'editor', 'cook')):
    count = len(pieces.encode(value))
    said = [f.message for f in findings if f.where == f'values[{i}]']
    assert said == ([] if count == 1 else [
      f"'{value}' is {count} pieces in the vocabulary: debias.pieces_per_branch must be at least "
      'that'])


def test_built_in_attributes_hold_no_error():
  for name in [*list_attributes(), *list_crossed()]:
    assert 'error' not in {f.level for f in lint_attribute(load_attribute(name))}, name


def test_the_filled_prefix_is_looked_at(tmp_path):
  text = CLEAN.replace('The {value} said that', 'The {value}-like')
  words = build_word_vocabulary(['My friend is a an baker editor cook , and we The @-@ like'],
                                size=30, directory=tmp_path / 'words')
  assert lint(tmp_path, text, vocabulary=words) == []  # "baker-like": three words of WikiText
  few = build_word_vocabulary(['My friend is a an baker , and we The @-@ like'],
                              size=30, directory=tmp_path / 'few')
  findings = [f for f in lint(tmp_path, text, vocabulary=few) if f.where.startswith('templates')]
  assert findings == [
    ('error', 'templates[1]', "is the same input for 'editor', 'cook'")]  # a and an differ in 0
