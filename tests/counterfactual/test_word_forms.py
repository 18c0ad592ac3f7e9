"""One rule for equal words and their borders: matching, mentions, swaps, names, values, scorers."""

import itertools
import json
import re
import sys
import unicodedata

import pytest

from fairjax.cli import main as cli
from fairjax.counterfactual import (
  GenderSwap,
  TextMatcher,
  load_attribute,
  read_names,
)
from fairjax.counterfactual.cda import CdaCounts
from fairjax.counterfactual.word_forms import (
  LETTER,
  WordFinder,
  context,
  normal_form,
  written_forms,
)
from fairjax.errors import UserError
from fairjax.generate.records import TemplateFinder
from fairjax.measure import measure_records
from fairjax.measure.columns import read_generations
from fairjax.measure.relevance import mentions
from fairjax.measure.scorers.base import OpinionScorer, VaderScorer

NFD = 'NFD'
APOSTROPHES = "'\u2019\u2018\u201b\u02bc\u02bb\u00b4\uff07"


def apart(text):
  return unicodedata.normalize(NFD, text)


def attribute_of(tmp_path, *values, templates=('The {value} family',)):
  path = tmp_path / 'a.yaml'
  path.write_text(json.dumps({'name': 'p', 'values': values, 'templates': templates}),
                  encoding='utf-8')
  return load_attribute(path)


# Equal words.

NEPAL = '\u0928\u0947\u092a\u093e\u0932'


@pytest.mark.parametrize('word', ['José', 'Nguyễn', 'Hoậu', '한국', 'Åse', "D'Arcé",
                                  'Bissau-Gaç', 'São Tomé', NEPAL])
def test_every_way_to_write_a_word_is_found_and_no_other(word):
  """All orders of the marks, composed or not: Unicode's own NFD says which are equal."""
  finder = WordFinder([word, 'Sam'])
  forms, whole = written_forms(word, most=4096)
  assert whole and {unicodedata.normalize(NFC, word) for NFC in ('NFC', NFD)} <= set(forms)
  for form in forms:
    text = f'Yes, {form}!'
    assert [m.span() for m in finder.find(text)] == [(5, 5 + len(form))], ascii(form)
    assert normal_form(form) == normal_form(word)
  letters = unicodedata.normalize(NFD, word)
  if len(letters) < 8:
    for order in map(''.join, itertools.permutations(letters)):
      equal = unicodedata.normalize('NFC', order) == unicodedata.normalize('NFC', word)
      assert (order in forms or unicodedata.normalize('NFC', order) in forms) >= equal
      found = [m[0] for m in finder.find(f'({order})')]
      assert found == ([order] if equal else []), ascii(order)


@pytest.mark.parametrize('sign', APOSTROPHES)
def test_apostrophes_are_equal_and_places_are_those_of_the_text(tmp_path, sign):
  attribute = attribute_of(tmp_path, "O'Hara", 'Ayşe\u2019n', 'Côte Verte')
  text = apart(f'Ayşe{sign}n met O{sign}Hara in Côte\u00a0Verte\u2011City.')
  found = TextMatcher(attribute).find(text)
  assert [text[m.start:m.end] for m in found] == [
    apart(f'Ayşe{sign}n'), f'O{sign}Hara', apart('Côte\u00a0Verte')]
  assert [m.value_index for m in found] == [1, 0, 2]
  assert mentions([text], [attribute.values[0]]).all()
  assert mentions([text.upper()], [attribute.values[1]]).all()  # in any case


# Borders.

@pytest.mark.parametrize('text', [
  '_Kerala_', '__Kerala__', '*Kerala*', '**Kerala**', '***Kerala***', '`Kerala`', '~~Kerala~~',
  '_The Kerala people_', '_people of Kerala_', '[Kerala](x)', '\u201cKerala\u201d', "'Kerala'",
  '\u2764\ufe0fKerala', 'Kerala\u00b2', '#Kerala', 'Kerala\u2014', "Kerala's", '**Kerala**\u2019s',
  'Kerala\u02bcs', '\u2018Kerala\u2019', 'Kerala\u200b', 'Kerala/Goa', 'Kerala\u00ad'])
def test_marks_around_a_word_do_not_hide_it(tmp_path, text):
  attribute = attribute_of(tmp_path, 'Kerala', 'Assam')
  assert [text[m.start:m.end] for m in TextMatcher(attribute).find(text)] == ['Kerala']
  assert mentions([text, text.lower()], attribute.values[:1]).all()


@pytest.mark.parametrize('text', [
  'Keralan', 'Kerala\u0301', 'Kerala\u0302\u0323', 'xKerala', 'éKerala', 'e\u0301Kerala', '9Kerala',
  'Kerala9', 'Kerala\u00adn', 'in\u00adKerala', 'Kerala\u200dn', 'Kerala\u0947', 'Kerala\u093e',
  'old_Kerala_town',
  '**Kerala**n', 'e\u0301_Kerala', 'Keral', 'Kerala_n', 'K\u0435rala'])
def test_half_of_a_word_is_no_mention(tmp_path, text):
  attribute = attribute_of(tmp_path, 'Kerala', 'Assam')
  assert TextMatcher(attribute).find(text) == []
  assert not mentions([text, text.lower()], attribute.values).any()


@pytest.mark.parametrize(('value', 'inside', 'other'), [
  ('伊朗', '我来自伊朗2024年的Iran伊朗人', '伊 朗'), ('Iran', '在Iran的', '在Iran9'),
  ('ハワイ', 'Ωハワイへ', 'ハワイ\u3099'), ('ไทย', 'คนไทยคือ', 'คนไทย\u0e35')])
def test_scripts_without_spaces_have_no_borders(tmp_path, value, inside, other):
  attribute = attribute_of(tmp_path, value, 'Assam', templates=('{value}',))
  for text, count in ((inside, inside.count(value)), (other, 0)):
    assert [text[m.start:m.end] for m in TextMatcher(attribute).find(text)] == [value] * count
    assert mentions([text], attribute.values[:1]).all() == (count > 0)


# Values of records, and attribute files.

def records(*values, text='{} is good', prefix='The {} family'):
  return [{'attribute': 'p', 'value': v, 'template': 0, 'sample': i, 'prefix': prefix.format(v),
           'continuation': text.format(v)} for v in values for i in range(3)]


def test_values_of_records_are_known_in_any_form(tmp_path):
  attribute = attribute_of(tmp_path, 'Renée', "O'Hara", 'Bob')
  written = [apart('Renée'), 'O\u2019Hara', 'Bob']
  for text in ('{} is good', 'So _{}_ said'):
    given = records(*written, text=text)
    found = measure_records(given, attribute, [VaderScorer()], permutations=5)
    assert found['semantic_similarity_c']['conditioned']['value'] == 1
    assert found['values'] == list(attribute.value_texts) and not found['templates_not_in_records']
  found = TemplateFinder(attribute_of(tmp_path, 'York', 'New York', 'Will'))
  for text, value in (('In New\nYork I will', 'New York'), ('I will', 'Will')):
    assert found.find_value(text) == value
  assert found.find(2, 'Will will') == '{value} will' and found.find(2, 'I will') == 'I {value}'
  kept = read_generations(given, attribute)
  assert kept.continuations[0] == f'So _{written[0]}_ said'  # as it is written
  assert attribute.value_index('O\u02bcHara') == 1
  with pytest.raises(UserError, match="did you mean 'Renée'"):
    read_generations(records(apart('René')), attribute)


@pytest.mark.parametrize(('first', 'second', 'message'), [
  ('Renée', apart('Renée'), 'is given twice .* with other characters for an accent, apostrophe'),
  ("O'Hara", 'O\u2019Hara', 'is given twice'),
  ('Guinea-Bissau', 'Guinea\u2011Bissau', 'is given twice')])
def test_values_that_nobody_can_tell_apart_are_refused(tmp_path, first, second, message):
  with pytest.raises(UserError, match=message):
    attribute_of(tmp_path, first, second, 'Bob')


# Swaps.

SSA = """Mary,F,5000
Anna,F,4000
Zoë,F,2000
Mary-Jo,F,90
John,M,5000
D'Arco,M,2000
Émile,M,900
"""


@pytest.fixture
def names(tmp_path):
  (tmp_path / 'ssa.txt').write_text(SSA, encoding='utf-8')
  return read_names(tmp_path / 'ssa.txt')


@pytest.mark.parametrize('name', [
  'Zoë', apart('Zoë'), "D'Arco", 'D\u2019Arco', 'D\u02bcArco', 'Émile', apart('Émile'), 'Mary-Jo',
  'Mary\u2011Jo', 'ZOË', apart('ZOË'), 'D\u2019ARCO'])
def test_names_are_swapped_in_any_form(names, name):
  swap = GenderSwap(None, names, name_gender='flip')
  for text in (f'{name} met me.', f'_{name}_ met me.', f"So {name}\u2019s cafée\u0301."):
    counts = CdaCounts()
    swapped, (change,), kept = swap.swap(text, 1)
    counts.add([change], kept)
    assert text[change.start:change.end] == change.old == name and not kept
    assert change.new.lower() in {n.lower() for n in (*names.female, *names.male)}
    assert swapped == text.replace(name, change.new)  # the rest as it is written
  plain = normal_form(name)
  assert change.new == swap.swap(text.replace(name, plain), 1)[1][0].new  # the same draw


@pytest.mark.parametrize('text', [
  'Zoe\u0301 met me', 'Annas', 'Anna\u0301', 'my_Anna_x', 'Anna\u00adbel', 'xD\u2019Arco'])
def test_half_a_name_is_not_swapped(names, text):
  assert GenderSwap(None, names).swap(text) == (text, [], [])


def test_lists_of_names_hold_each_name_once(tmp_path):
  path = tmp_path / 'n.txt'
  path.write_text(f"{apart('Zoë')},F,10\nZoë,M,1\n{apart('ZOÉ')},F,5\nJohn,M,5\n", encoding='utf-8')
  found = read_names(path)
  assert found.female == (apart('Zoë'), 'Zoé')
  path.write_text("D'Arco,M,10\nD\u2019Arco,M,1\nAnna,F,1\n", encoding='utf-8')
  with pytest.raises(UserError, match='2: .* is in line 1 already'):
    read_names(path)



def test_context_is_read_without_markdown():
  text = '*Dear* café\u2019s **word**, _and_ more'
  at = text.index('word')
  assert context(apart(text), at + 1, at + 5, reach=80) == ("Dear café's ", ', and more')
  assert context('2 * 3 man * 4', 6, 9, reach=80) == ('2 * 3 ', ' * 4')


# Scorers.

def test_vader_is_given_the_signs_that_it_knows(tmp_path, capsys):
  scorer = VaderScorer()
  plain = ["They don't like it", "It isn't good", '"good" it is...', 'good']
  for sign in APOSTROPHES[1:]:
    written = [t.replace("'", sign) for t in plain]
    written[2] = '\u201cgood\u201d it is\u2026'
    assert scorer.score(written).tolist() == scorer.score(plain).tolist()
    assert scorer.count_changed(written) == 3
  assert scorer.count_changed([*plain, 'café', apart('café')]) == 0
  attribute_of(tmp_path, 'Ann', 'Bob')
  rows = records('Ann', text='I don\u2019t like it')
  rows += records('Bob', text="I don't like it")
  (tmp_path / 'r.jsonl').write_text(''.join(json.dumps(r) + '\n' for r in rows), encoding='utf-8')
  assert cli.main(['measure', f"--records={tmp_path / 'r.jsonl'}",
                   f"--attribute={tmp_path / 'a.yaml'}", '--scorer=vader', '--permutations=5']) == 0
  assert '3 of 6 texts' in capsys.readouterr().out


def test_opinion_words_are_compared_in_one_form():
  scorer = OpinionScorer(['passé-proof', "can't-fail"], [apart('naïve')])
  texts = [apart('passé\u2011proof'), 'can\u02bct\u2010fail', 'naïve', apart('Naïve'), 'naive']
  assert scorer.score(texts).tolist() == [1, 1, 0, 0, 0.5]


def test_a_letter_is_one_in_both_cases():
  # So borders of words need no IGNORECASE, which takes long to compile for so large a set.
  everything = ''.join(map(chr, range(sys.maxunicode + 1)))
  assert re.findall(LETTER, everything) == re.findall(LETTER, everything, re.IGNORECASE)
