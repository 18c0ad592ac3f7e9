"""Branches of a row: layout, choices, counts; and swapped texts."""

import itertools

import numpy as np
import pytest
import scipy.stats

from fairjax.counterfactual import (
  COUNT_NAMES,
  BranchBuilder,
  Replacements,
  TextMatcher,
  TokenMatcher,
  load_attribute,
  swap_text,
)
from fairjax.vocabulary import build_word_vocabulary, train_sentencepiece

T, K, P = 24, 3, 2


@pytest.fixture(scope='module')
def attribute(tmp_path_factory):
  path = tmp_path_factory.mktemp('attribute') / 'place.yaml'
  path.write_text('name: place\nvalues:\n'
                  '  - {text: Rome, subgroup: south}\n  - {text: Athens, subgroup: south}\n'
                  '  - {text: Oslo, subgroup: north}\n  - {text: New York, subgroup: west}\n'
                  '  - {text: Rio de Janeiro, subgroup: west}\n'
                  "templates: ['{value} is']\n", encoding='utf-8')
  return load_attribute(path)


@pytest.fixture(scope='module')
def vocabulary(tmp_path_factory):
  return build_word_vocabulary(['Rome Athens Oslo New York Rio de Janeiro we saw it'], size=20,
                               directory=tmp_path_factory.mktemp('words'))


def choose(attribute, vocabulary, spans, *, key=(0, 0, 0), k=K, p=P):
  """The branches of a row of T words for (seed, step, row)."""
  builder = BranchBuilder(attribute, vocabulary, segment_len=T, num_branches=k, num_pieces=p,
                          seed=key[0])
  return builder.build(np.zeros(T, np.int32), np.array(spans, np.int32).reshape(-1, 3),
                       step=key[1], row=key[2])


def test_arrays_of_one_row(attribute, vocabulary):
  row = vocabulary.encode('we saw New York and Oslo')
  spans, _ = TokenMatcher(attribute, vocabulary).find(row)
  assert spans.tolist() == [[2, 4, 3], [5, 6, 2]]
  branches = choose(attribute, vocabulary, spans)
  assert {k: (v.shape, v.dtype) for k, v in branches.items()} == {
    'branch_tokens': ((K, P), np.int32), 'branch_start': ((K,), np.int32),
    'branch_len': ((K,), np.int32), 'original_end': ((K,), np.int32),
    'branch_weight': ((K,), np.float32), 'branch_counts': ((5,), np.int32)}
  assert branches['branch_start'].tolist() == [2, 5, 0]
  assert branches['original_end'].tolist() == [3, 5, 0]
  assert branches['branch_weight'].tolist() == [1, 1, 0]
  assert branches['branch_len'][2] == 0 and not branches['branch_tokens'][2].any()
  assert dict(zip(COUNT_NAMES, branches['branch_counts'].tolist(), strict=True)) == {
    'hits': 2, 'used': 2, 'dropped_over_k': 0, 'cut_by_border': 0, 'too_long': 0}


@pytest.mark.parametrize('seed', range(20))
def test_properties_of_random_rows(attribute, vocabulary, seed):
  rng = np.random.default_rng(seed)
  borders = np.sort(rng.choice(np.arange(-2, T + 3), size=2 * rng.integers(0, 8), replace=False))
  spans = [(a, b, int(rng.integers(5))) for a, b in borders.reshape(-1, 2).tolist()]
  branches = choose(attribute, vocabulary, spans, key=(seed, 1, 2))
  hits, used, over_k, cut, too_long = branches['branch_counts'].tolist()
  assert hits == len(spans) == used + over_k + cut + too_long
  whole = {a: (b, v) for a, b, v in spans if a >= 0 and b <= T}
  assert cut == hits - len(whole) and too_long == 0
  assert used == min(len(whole), K) == branches['branch_weight'].sum()
  starts = branches['branch_start'][:used].tolist()
  assert starts == sorted(starts) and set(starts) <= set(whole)
  for k in range(used):
    end, value = whole[starts[k]]
    assert branches['original_end'][k] == end - 1
    length = branches['branch_len'][k]
    assert 1 <= length <= P and not branches['branch_tokens'][k, length:].any()
    text = vocabulary.decode(branches['branch_tokens'][k, :length])
    new = attribute.value_index(text)
    assert attribute.values[new].subgroup != attribute.values[value].subgroup
  for name in ('branch_start', 'branch_len', 'original_end', 'branch_weight', 'branch_tokens'):
    assert not branches[name][used:].any()


def test_replacements_are_uniform_over_other_subgroups(attribute, vocabulary):
  # Rome may become Oslo or New York, not Athens (its subgroup) and not Rio de Janeiro (3 > P).
  drawn = [vocabulary.decode(choose(attribute, vocabulary, [(4, 5, 0)], key=(3, i, 0))[
    'branch_tokens'][0]) for i in range(600)]
  counts = [drawn.count('Oslo'), drawn.count('New York')]
  assert sum(counts) == 600
  assert scipy.stats.chisquare(counts).pvalue > 1e-3
  wide = [vocabulary.decode(choose(attribute, vocabulary, [(4, 5, 0)], p=3, key=(4, i, 0))[
    'branch_tokens'][0]) for i in range(600)]
  counts = [wide.count(v) for v in ('Oslo', 'New York', 'Rio de Janeiro')]
  assert sum(counts) == 600 and scipy.stats.chisquare(counts).pvalue > 1e-3


def test_matches_over_k_are_chosen_uniformly(attribute, vocabulary):
  spans = [(2 * i, 2 * i + 1, i % 5) for i in range(5)]
  chosen = []
  for i in range(1500):
    branches = choose(attribute, vocabulary, spans, k=2, key=(0, i, 5))
    assert branches['branch_counts'].tolist() == [5, 2, 3, 0, 0]
    chosen.append(tuple(branches['branch_start'].tolist()))
  pairs = list(itertools.combinations(range(0, 10, 2), 2))
  assert set(chosen) == set(pairs)
  assert scipy.stats.chisquare([chosen.count(p) for p in pairs]).pvalue > 1e-3


def test_values_that_never_fit_are_counted(vocabulary, tmp_path):
  path = tmp_path / 'x.yaml'
  path.write_text("name: x\nvalues: [Rome, Rio de Janeiro]\ntemplates: ['{value} is']\n")
  two = load_attribute(path)
  branches = choose(two, vocabulary, [(0, 1, 0), (3, 6, 1)])
  assert branches['branch_counts'].tolist() == [2, 1, 0, 0, 1]
  assert branches['branch_start'][0] == 3 and vocabulary.decode(
    branches['branch_tokens'][0]) == 'Rome'


def test_choices_are_a_function_of_seed_step_and_row(attribute, vocabulary):
  spans = [(2 * i, 2 * i + 1, i % 5) for i in range(10)]

  def drawn(*key):
    branches = choose(attribute, vocabulary, spans, key=key)
    return branches['branch_start'].tolist(), branches['branch_tokens'].tolist()

  assert drawn(1, 2, 3) == drawn(1, 2, 3)
  keys = list(itertools.product(range(3), repeat=3))
  assert len({str(drawn(*k)) for k in keys}) > 24  # (1, 2, 3) and (2, 1, 3) differ, too


def test_places_inside_words(attribute, tmp_path):
  vocabulary = train_sentencepiece(['we saw Rome (Oslo) and Athens'] * 9, size=300,
                                   directory=tmp_path)
  row = np.array(vocabulary.encode('(Rome)'))
  spans, _ = TokenMatcher(attribute, vocabulary).find(row)
  assert not Replacements(attribute, vocabulary).starts_word[row[spans[0, 0]]]
  branches = BranchBuilder(attribute, vocabulary, segment_len=20, num_branches=1, num_pieces=20,
                           seed=0).build(row, spans, step=0, row=0)
  start, end = int(branches['branch_start'][0]), int(branches['original_end'][0]) + 1
  new = branches['branch_tokens'][0, :branches['branch_len'][0]].tolist()
  assert vocabulary.decode([*row[:start].tolist(), *new, *row[end:].tolist()]) in (
    '(Oslo)', '(New York)', '(Rio de Janeiro)')


def test_swapping_twice_gives_the_text_back():
  attribute = load_attribute('occupation')
  text = 'I met an analyst, and the cook met a baker.'
  for k, match in enumerate(TextMatcher(attribute).find(text)):
    for value in range(len(attribute.values)):
      swapped = swap_text(text, match, value, attribute)
      again = TextMatcher(attribute).find(swapped)
      assert [m.value_index for m in again][k] == value
      assert swap_text(swapped, again[k], match.value_index, attribute) == text


@pytest.mark.parametrize(('text', 'value', 'expected'), [
  ('I met an analyst.', 'baker', 'I met a baker.'),
  ('A cook', 'editor', 'An editor'),
  ('An editor', 'cook', 'A cook'),
  ('Ukraina cook', 'editor', 'Ukraina editor'),
  ('the cook', 'editor', 'the editor'),
  ('a “cook”', 'editor', 'an “editor”'),
  ('an\xa0editor', 'cook', 'a\xa0cook'),
  ('AN editor', 'cook', 'A cook'),
])
def test_the_article_before_a_value_is_that_of_the_new_one(text, value, expected):
  attribute = load_attribute('occupation')
  match, = TextMatcher(attribute).find(text)
  assert swap_text(text, match, attribute.value_index(value), attribute) == expected
