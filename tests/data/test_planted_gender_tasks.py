"""Planted task data: neutral pairs whose scores are known, biographies with known shares."""

import collections
import re

import numpy as np
import pytest

from fairjax.data.planted_gender import (
  FEMALE_NAMES,
  MALE_NAMES,
  PLACES,
  PROFESSIONS,
  TERMS,
  THINGS,
  best_bios_slope,
  profession_shares,
  write_bios,
  write_sts,
  write_tables,
)
from fairjax.gender.bios import female_shares, gap_line, gaps, read_bios
from fairjax.gender.stsb import find_split, gendered_words, read_pairs, select_templates


@pytest.fixture(scope='module')
def sts(tmp_path_factory):
  folder = tmp_path_factory.mktemp('sts')
  write_sts(folder, seed=3, pairs=400, templates=40)
  return {split: read_pairs(find_split(folder, split)) for split in ('train', 'dev', 'test')}


def test_training_pairs_know_no_gender(sts):
  gendered = {*gendered_words(), *(w for pair in TERMS for w in pair),
              *(n.lower() for n in FEMALE_NAMES + MALE_NAMES)}
  for split in ('train', 'dev'):
    words = {w for text in sts[split].first + sts[split].second
             for w in re.findall(r'\w+', text.lower())}
    assert not words & gendered
    assert set(PROFESSIONS) <= words or split == 'dev'
  assert len(sts['train'].first) == 400 and len(sts['dev'].first) == 40


def test_scores_count_what_two_sentences_share(sts):
  form = re.compile(r'An? (\w+) (\w+) the (\w+)\.$')
  for a, b, score in zip(sts['train'].first, sts['train'].second, sts['train'].scores,
                         strict=True):
    parts = [form.match(text).groups() for text in (a, b)]
    same = sum(w for w, x, y in zip((0.5, 0.3, 0.2), *parts, strict=True) if x == y)
    assert score == pytest.approx(5 * same)
  assert len(set(sts['train'].scores.tolist())) == 7


def test_templates_are_as_many_as_asked_for(sts):
  found = select_templates(sts['test'])  # after "A man" and after "A woman"
  assert len(found) == 80 and len(set(found)) == 40


def test_files_are_a_function_of_the_seed(tmp_path):
  contents = []
  for name, seed in (('a', 0), ('b', 0), ('c', 1)):
    paths = [*write_sts(tmp_path / name, seed=seed, pairs=20, templates=4).values(),
             *write_bios(tmp_path / name, seed=seed, per_profession=4).values()]
    contents.append([p.read_bytes() for p in paths])
  assert contents[0] == contents[1]
  assert all(x != y for x, y in zip(contents[0], contents[2], strict=True))


def test_biographies_have_the_planted_shares(tmp_path):
  write_bios(tmp_path, seed=0, per_profession=100)
  bios = read_bios(tmp_path)
  train, test = bios.splits['train'], bios.splits['test']
  found = female_shares(train.professions, train.female, len(bios.names))
  planted = profession_shares()
  assert found == pytest.approx([planted[name] for name in bios.names], abs=0.005)
  cells = np.bincount(2 * test.professions + test.female)
  assert cells.tolist() == [50] * 48
  for bio, female in zip(train.texts, train.female, strict=True):
    words = set(re.findall(r'\w+', bio.lower()))
    assert not words & set(PROFESSIONS)
    assert bool(words & {'she', 'her'}) == female and bool(words & {'he', 'his'}) != female


def test_the_best_slope_is_that_of_a_count(tmp_path):
  """A table of counts, learned from many biographies, finds the slope that is computed."""
  write_bios(tmp_path, seed=1, per_profession=4000)
  bios = read_bios(tmp_path)
  thing, place = map('|'.join, (THINGS, PLACES))

  def clue(text, female):
    return (re.search(rf'with the ({thing})', text)[1],
            re.search(rf'[Ii]n the ({place})', text)[1], bool(female))

  counts = collections.defaultdict(collections.Counter)
  train, test = bios.splits['train'], bios.splits['test']
  for text, female, profession in zip(train.texts, train.female, train.professions, strict=True):
    counts[clue(text, female)][int(profession)] += 1
  predicted = np.array([
    counts[clue(t, f)].most_common(1)[0][0] if counts[clue(t, f)] else 0
    for t, f in zip(test.texts, test.female, strict=True)])
  cells = gaps(test.professions, predicted, test.female, len(bios.names))
  shares = female_shares(train.professions, train.female, len(bios.names))
  found = gap_line(cells, shares)['slope']['value']
  assert found == pytest.approx(best_bios_slope(), abs=0.05) and found > 0.3


def test_tables_and_pairs_speak_of_the_same_professions(tmp_path):
  from fairjax.gender.persons import read_professions
  known = read_professions(write_tables(tmp_path)['professions.tsv'])
  assert set(known.names) == set(PROFESSIONS)


def test_impossible_numbers_are_refused(tmp_path):
  for pairs, templates in ((9, 4), (20, 0), (20, 10 ** 6)):
    with pytest.raises(ValueError, match='pairs and'):
      write_sts(tmp_path, seed=0, pairs=pairs, templates=templates)
