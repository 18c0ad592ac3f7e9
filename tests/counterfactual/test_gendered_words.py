"""Word pairs and first names: what files may hold, what is refused, the lists of the papers."""

import gzip

import numpy as np
import pytest

from fairjax.counterfactual import GenderSwap, read_names, read_word_pairs
from fairjax.errors import UserError


@pytest.fixture
def write(tmp_path):
  def write(text, name='pairs.txt'):
    path = tmp_path / name
    path.write_text(text, encoding='utf-8')
    return path
  return write


def test_the_built_in_list_is_whole():
  pairs = read_word_pairs()
  assert len(pairs.pairs) == len(set(pairs.pairs)) > 150
  assert not set(pairs.male) & set(pairs.female)
  for word in (*pairs.male, *pairs.female):
    assert word == word.lower().strip() and pairs.partner[word] in pairs.partner
  for male, female in (('man', 'woman'), ('fathers', 'mothers'), ('actor', 'actress'),
                       ('he', 'she'), ('king', 'queen')):
    assert pairs.to_female[male] == female and pairs.to_male[female] == male
  # Coming back fails exactly for second partners.
  seconds = {w for i, (m, f) in enumerate(pairs.pairs) for w, o in ((m, f), (f, m))
             if any(o in p for p in pairs.pairs[:i]) and pairs.partner[o] != w}
  assert set(pairs.one_way) == seconds


def test_columns_and_separators(write):
  pairs = read_word_pairs(write(
    '# male female neutral\nWizard witch mage\nPlay_boy\tplay girl\tplayer\n\nzak \t zika \n'))
  assert pairs.pairs == (('wizard', 'witch'), ('play boy', 'play girl'), ('zak', 'zika'))
  assert pairs.to_neutral == {'wizard': 'mage', 'witch': 'mage', 'play boy': 'player',
                              'play girl': 'player'}
  assert not pairs.turned


def test_a_row_with_known_words_is_turned_and_reported(write):
  pairs = read_word_pairs(write('zak zika\nwomen men\n'))
  assert pairs.to_female == {'zak': 'zika', 'men': 'women'}
  assert len(pairs.turned) == 1 and pairs.turned[0].endswith('pairs.txt:2')


def test_lists_of_replacements_have_directions(write):
  pairs = read_word_pairs(write('woman man\nman woman\nguy girl\ngirl boy\nboy girl\nzik zak\n'))
  assert pairs.to_female == {'man': 'woman', 'boy': 'girl', 'guy': 'girl', 'zik': 'zak'}
  assert pairs.to_male == {'woman': 'man', 'girl': 'boy', 'zak': 'zik'}
  assert pairs.one_way == ('guy',)


def test_two_aligned_files_and_second_partners(write):
  pairs = read_word_pairs(write('groom\t\nbridegroom\nhis\nhis\ngroom\n', 'm.txt'),
                          write('bride\nbride\nher\nhers\nbride\n', 'f.txt'))
  assert pairs.to_male == {'bride': 'groom', 'her': 'his', 'hers': 'his'}
  assert pairs.to_female == {'groom': 'bride', 'bridegroom': 'bride', 'his': 'her'}
  assert pairs.one_way == ('bridegroom', 'hers')


def test_the_fingerprint_is_of_the_content(write):
  first = read_word_pairs(write('# one\nzak zika\nbo ba\n', 'a'))
  assert first.fingerprint == read_word_pairs(write('zak\tzika\nBO\tba\n', 'b')).fingerprint
  assert first.fingerprint != read_word_pairs(write('zak zika\nbo be\n', 'c')).fingerprint


@pytest.mark.parametrize(('text', 'words'), [
  ('king queen\nqueen duke\n', r"pairs.txt:2: 'queen' is in both genders"),
  ('zak zika\nzak zak\n', r"pairs.txt:2: 'zak' is in both genders"),
  ('a b\nb a\nb c\nc a\n', r"pairs.txt:\d: .* (both genders|given once)"),
  ('zak\tzika\nzok\t\n', r'pairs.txt:2: an empty side'),
  ('zak zika zike zeke\n', r'pairs.txt:1: 4 column'),
  ('zak zika x\nzok zika y\n', r"pairs.txt:2: the neutral word of 'zika' is 'y'"),
  ('\n# nothing\n', r'no pair'),
  ('he, she\n', r"pairs.txt:1: 'he,' is no word"),
  ('\u00b2 she\n', r"pairs.txt:1: '\u00b2' is no word"),
])
def test_bad_lists_name_file_and_line(write, text, words):
  with pytest.raises(UserError, match=words):
    read_word_pairs(write(text))


def test_bad_aligned_files(write):
  with pytest.raises(UserError, match=r'has 2 lines and .* 1'):
    read_word_pairs(write('zak\nbo\n', 'm'), write('zika\n', 'f'))
  with pytest.raises(UserError, match=r"m:2: 'zak' is in both genders"):
    read_word_pairs(write('zak\nbo\n', 'm'), write('zika\nzak\n', 'f'))
  # In the wrong order "her" would become "him" everywhere.
  with pytest.raises(UserError, match=r"f:2: 'she' is the female word .* male words comes first"):
    read_word_pairs(write('zika\nshe\nher\n', 'f'), write('zak\nhe\nhim\n', 'm'))


YEAR = 'Ada,F,900\nAda,M,10\nLee,F,50\nLee,M,50\nBob,M,400\nEdge,F,80\nEdge,M,20\nRare,M,1\n'


def test_names_of_one_gender(write):
  names = read_names(write(YEAR))
  assert names.female == ('Ada',) and names.male == ('Bob', 'Rare')  # 80 % is not more than 80 %
  assert names.neither == 2
  assert read_names(write(YEAR), least_count=2).male == ('Bob',)


def test_formats_and_sums(write, tmp_path):
  year = write(YEAR)
  totals = write('Ada\t900\t10\nLee\t50\t50\nBob\t0\t400\nEdge\t80\t20\nRare\t0\t1\n', 't.tsv')
  zipped = tmp_path / 'y.csv.gz'
  zipped.write_bytes(gzip.compress(YEAR.encode()))
  found = [read_names(p) for p in (year, totals, zipped)]
  assert len({f.fingerprint for f in found}) == 1
  both = read_names([year, write('Lee,F,151\nNew,F,950\n', 'second')])
  assert both.female == ('New', 'Ada', 'Lee')


def test_names_in_capitals_or_quotes_are_those_of_texts(write):
  names = read_names(write("ADA,F,900\nO'BOB,M,400\nned,M,3\nMcAl,M,2\n".replace('ned', '"ned"')))
  assert (names.female, names.male) == (('Ada',), ("O'Bob", 'Ned', 'McAl'))
  assert len(GenderSwap(None, names, name_gender='flip').swap('Ada, ADA, Ned')[1]) == 3
  with pytest.raises(UserError, match=r":2: 'Ada' is in line 1 already"):
    read_names(write('Ada,F,2\nADA,F,3\n'))


@pytest.mark.parametrize(('text', 'words'), [
  ('Ada,F,-3\n', r":1: '-3' is no count"),
  ('Ada,F,2\nAda,F,3\n', r':2: .*line 1'),
  ('Ada,F,2\n', 'no name has more than 80%'), ('', 'no name in it'),
  ("'Abd,M,2\n", ":1: ''Abd' is no name"),
  ('A\rda,F,2\n', ':1: not CSV'), ('Ada,X,2\n', "'X' is no"),
])
def test_bad_names_name_file_and_line(write, text, words):
  with pytest.raises(UserError, match=words):
    read_names(write(text))


def test_the_lists_of_zhao_et_al_can_be_read(test_data):
  folder = test_data / 'bias' / 'zhao2018'
  swaps = read_word_pairs(folder / 'generalized_swaps.txt')
  rows = [r.split() for r in (folder / 'generalized_swaps.txt').read_text().splitlines()]
  for left, right in rows:  # every row of the file is what happens
    assert swaps.partner[left] == right
  assert {'he', 'king', 'dude', 'uncle'} <= set(swaps.male)
  extra = read_word_pairs(folder / 'extra_gendered_words.txt')
  assert len(extra.pairs) == 92 and [t.rpartition(':')[2] for t in extra.turned] == ['3']
  assert extra.to_female['cameramen'] == 'camerawomen'
  files = [folder / f'{g}_word_file.txt' for g in ('male', 'female')]
  both = read_word_pairs(*files)
  assert len(both.pairs) == 220
  assert set(both.male) == {w.replace('_', ' ') for w in files[0].read_text().split()}


def test_social_security_names(test_data):
  totals = read_names(test_data / 'names' / 'ssa_totals_1880_2023.tsv.gz')
  with gzip.open(test_data / 'names' / 'ssa_totals_1880_2023.tsv.gz', 'rt') as file:
    rows = [line.rstrip('\n').split('\t') for line in file]
  share = np.array([float(f) / (float(f) + float(m)) for _, f, m in rows])
  assert len(totals.female) == np.sum(share > 0.8) and len(totals.male) == np.sum(1 - share > 0.8)
  assert totals.neither == len(rows) - len(totals.female) - len(totals.male)
  assert 'Maria' in totals.female and 'James' in totals.male
  year = read_names(test_data / 'names' / 'ssa_yob1960.csv.gz')
  assert year.female[0] == 'Mary'
