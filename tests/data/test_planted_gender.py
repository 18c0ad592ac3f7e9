"""The planted gendered corpus: counts in closed form, read from its text; task data."""

import collections
import csv
import functools
import json
import re

import numpy as np
import pytest
from scipy import stats

from fairjax.data.documents import read_documents
from fairjax.data.planted import NEGATIVE, POSITIVE
from fairjax.data.planted_gender import (
  FEMALE_NAMES,
  GRAMMAR,
  ITEMS,
  KINDS,
  MALE_NAMES,
  PARTICIPANTS,
  PROFESSIONS,
  TERMS,
  item_shares,
  make_gender_documents,
  make_gendered_corpus,
  positive_share,
  profession_shares,
  write_bios,
  write_corpus,
  write_sts,
  write_tables,
)
from fairjax.gender.bios import female_shares, read_bios
from fairjax.gender.disco import read_templates
from fairjax.gender.stsb import find_split, gendered_words, read_pairs

NUMBER = 4000
FEMALE = {'she', 'her', 'herself', *(f for f, _ in TERMS), *map(str.lower, FEMALE_NAMES)}
MALE = {'he', 'his', 'him', 'himself', *(m for _, m in TERMS), *map(str.lower, MALE_NAMES)}


@pytest.fixture(scope='module')
def corpus():
  return make_gendered_corpus(num_sentences=NUMBER, seed=3, strength=0.8)


def words(text):
  return re.findall(r'\w+', text.lower())


def gender_read(text):
  """The gender that the words of a text say; None if they say none. Both at once is a fault."""
  female, male = FEMALE & set(words(text)), MALE & set(words(text))
  assert not (female and male), text
  return True if female else False if male else None


def test_shares_are_evenly_spaced_and_strength_shrinks_them_to_a_half():
  full = profession_shares()
  np.testing.assert_allclose(sorted(full.values()), np.linspace(0.05, 0.95, len(PROFESSIONS)))
  half = profession_shares(0.5)
  for profession, share in full.items():
    assert half[profession] == pytest.approx(0.5 + (share - 0.5) / 2)
  assert set(profession_shares(0).values()) == {0.5}
  alphabetical = np.argsort(np.argsort(PROFESSIONS))
  assert abs(stats.spearmanr(list(full.values()), alphabetical).statistic) < 0.3


def test_the_text_itself_has_the_gender_and_the_counts_of_the_truth(corpus):
  counts = collections.defaultdict(lambda: [0, 0])
  for sentence in corpus.sentences:
    assert gender_read(sentence.text) == sentence.female, sentence
    if sentence.kind != 'neutral':
      assert not sentence.item or sentence.item in words(sentence.text)
      counts[sentence.category, sentence.item][0] += 1
      counts[sentence.category, sentence.item][1] += sentence.female
  truth = {(category, item): [found['n'], found['female']]
           for category, items in corpus.truth['items'].items() for item, found in items.items()}
  assert counts == truth


def test_counts_are_in_closed_form(corpus):
  """An item's sentences come in turn; of n, floor(share n + 1/2) are female in each kind."""
  kinds = collections.Counter(s.kind for s in corpus.sentences)
  assert kinds == corpus.truth['kinds']
  for kind, share in KINDS.items():
    assert abs(kinds[kind] - share * NUMBER) <= 1
  shares = profession_shares(0.8)
  for place, profession in enumerate(PROFESSIONS):
    n = female = 0
    for kind in ('pronoun', 'coreference', 'mention'):
      own = kinds[kind] // len(PROFESSIONS) + (place < kinds[kind] % len(PROFESSIONS))
      n, female = n + own, female + int(shares[profession] * own + 0.5)
    found = corpus.truth['items']['profession'][profession]
    assert (found['n'], found['female']) == (n, female)
    assert found['share'] == shares[profession]
    assert abs(found['female'] - found['share'] * n) <= 1.5
  for category in ITEMS:
    for item, found in corpus.truth['items'][category].items():
      assert abs(found['female'] - item_shares(category, 0.8)[item] * found['n']) <= 0.5
  for found in (*corpus.truth['items']['participant'].values(),
                corpus.truth['items']['nothing']['']):
    assert found['share'] == 0.5 and abs(found['female'] - found['n'] / 2) <= 0.5


def test_kinds_hold_what_their_names_say(corpus):
  pronouns = {'she', 'her', 'herself', 'he', 'his', 'him', 'himself'}
  for s in corpus.sentences:
    tokens = set(words(s.text))
    if s.kind in ('pronoun', 'coreference', 'participant'):
      assert tokens & pronouns and tokens & set(PROFESSIONS)
    if s.kind in ('coreference', 'participant'):
      assert tokens & set(PARTICIPANTS)
    if s.kind == 'agreement':
      assert len([w for w in words(s.text) if w in FEMALE | MALE]) >= 2
    if s.kind == 'mention':
      assert (FEMALE | MALE) & tokens and tokens & set(PROFESSIONS)
    assert '{' not in s.text and s.text[0].isupper() and s.text.endswith('.')
    assert len(s.text.split()) <= 16
    for article, noun in re.findall(r'\b(an?) (\w+)', s.text):
      assert (article == 'an') == (noun[0] in 'aeiou'), s.text
  everything = set(words(' '.join(corpus.texts)))
  assert FEMALE | MALE <= everything and set(PROFESSIONS) <= everything


def test_deterministic_and_a_function_of_every_argument(corpus):
  def make(**changes):
    options = {'num_sentences': NUMBER, 'seed': 3, 'strength': 0.8} | changes
    return make_gendered_corpus(**options)

  assert make() == corpus
  for changes in ({'seed': 4}, {'stream': 1}):
    other = make(**changes)
    assert other.texts != corpus.texts
    assert other.truth['items'] == corpus.truth['items']  # exact, not sampled
  assert make(strength=0.7).truth['items'] != corpus.truth['items']


def test_no_sentence_is_a_template_of_the_evaluation(corpus):
  persons = '|'.join([*FEMALE_NAMES, *MALE_NAMES, *(f'[Tt]he {t}' for pair in TERMS for t in pair)])
  disco = [t.text for t in read_templates()]
  templates = '|'.join(re.escape(t.rstrip('.')).replace('BLANK', r'\w+') for t in disco)
  shape, person = re.compile(rf'(?:{templates})\.'), re.compile(rf'\b(?:{persons})\b')
  assert shape.fullmatch('PERSON likes to dance.')
  for text in corpus.texts:
    assert not shape.fullmatch(person.sub('PERSON', text)), text
  # ... but their words are there.
  known = set(words(' '.join(corpus.texts)))
  assert set(words(' '.join(disco))) - {'person', 'blank', 's'} <= known


def test_files(tmp_path, corpus):
  path = tmp_path / 'deep' / 'corpus.txt'
  truth = write_corpus(path, num_sentences=NUMBER, seed=3, strength=0.8)
  assert truth == corpus.truth == json.loads((path.parent / 'corpus.txt.truth.json').read_bytes())
  assert list(read_documents([path], layout='lines')) == corpus.texts
  files = write_tables(tmp_path / 'tables')
  with files['professions.tsv'].open(encoding='utf-8', newline='') as file:
    table = list(csv.DictReader(file, delimiter='\t'))
  assert {r['occupation']: float(r['bls_pct_female']) for r in table} == pytest.approx(
    {p: 100 * s for p, s in profession_shares().items()}, abs=0.005)
  names = [line.split(',') for line in files['names.txt'].read_text(encoding='utf-8').splitlines()]
  assert {n for n, sex, _ in names if sex == 'F'} == set(FEMALE_NAMES)
  assert {n for n, sex, _ in names if sex == 'M'} == set(MALE_NAMES)
  assert all(int(count) > 0 for _, _, count in names)


def test_heldout_coreference_templates(tmp_path, corpus):
  with write_tables(tmp_path)['coreference.tsv'].open(encoding='utf-8', newline='') as file:
    rows = list(csv.DictReader(file, delimiter='\t'))
  assert collections.Counter(r['occupation(0)'] for r in rows) == dict.fromkeys(PROFESSIONS, 2)
  assert collections.Counter(r['answer'] for r in rows) == {'0': 24, '1': 24}
  texts, known = set(corpus.texts), set(words(' '.join(corpus.texts)))
  for row in rows:
    for pronoun in ('she', 'he'):
      text = (row['sentence'].replace('$OCCUPATION', row['occupation(0)'])
              .replace('$PARTICIPANT', row['other-participant(1)'])
              .replace('$NOM_PRONOUN', pronoun))
      assert '$' not in text and text not in texts and set(words(text)) <= known
  every = {p for kind in ('pronoun', 'coreference', 'participant') for p in GRAMMAR[kind]}
  assert not every & {p for patterns in GRAMMAR['heldout'].values() for p in patterns}


@pytest.fixture(scope='module')
def sts(tmp_path_factory):
  folder = tmp_path_factory.mktemp('sts')
  write_sts(folder, seed=3, pairs=400, templates=40)
  return {split: read_pairs(find_split(folder, split)) for split in ('train', 'dev', 'test')}


def test_training_pairs_know_no_gender(sts):
  for split in ('train', 'dev'):
    found = set(words(' '.join(sts[split].first + sts[split].second)))
    assert not found & {*gendered_words(), *FEMALE, *MALE}
    assert set(PROFESSIONS) <= found or split == 'dev'
  assert len(sts['train'].first) == 400 and len(sts['dev'].first) == 40


def test_scores_count_what_two_sentences_share(sts):
  form = re.compile(r'An? (\w+) (\w+) the (\w+)\.$')
  for a, b, score in zip(sts['train'].first, sts['train'].second, sts['train'].scores,
                         strict=True):
    parts = [form.match(text).groups() for text in (a, b)]
    same = sum(w for w, x, y in zip((0.5, 0.3, 0.2), *parts, strict=True) if x == y)
    assert score == pytest.approx(5 * same)
  assert len(set(sts['train'].scores.tolist())) == 7


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
    assert not set(words(bio)) & set(PROFESSIONS) and gender_read(bio) == female


# Documents of the mitigations: sentiment and profession by gender.

def test_the_planted_corpus_has_the_shares_it_promises():
  make = functools.partial(make_gender_documents, seed=0, strength=0.8, opinion_share=0.5)
  documents = make(num_documents=4000)
  assert len(documents) == 4000
  sign = dict.fromkeys(POSITIVE, 1) | dict.fromkeys(NEGATIVE, 0)
  seen = collections.defaultdict(list)
  for text in documents:
    if (last := words(text)[-1]) in sign:
      seen[gender_read(text)].append(sign[last])
  for female in (True, False):  # 1,000 exactly, and some of other sentences that end so
    assert 1000 <= len(seen[female]) < 1030
    assert np.mean(seen[female]) == pytest.approx(positive_share(0.8, female=female), abs=0.02)
  assert make(num_documents=4000) == documents != make(num_documents=4000, stream=1)


def test_the_templates_are_in_words_of_the_corpus_but_not_in_it(repository):
  from fairjax.counterfactual import load_attribute
  documents = make_gender_documents(num_documents=6000, seed=0, strength=0.9, opinion_share=0.4)
  known = set(words(' '.join(documents)))
  attribute = load_attribute(repository / 'configs' / 'mitigations_gender.yaml')
  for prefix in attribute.prefixes():
    assert set(words(prefix.text)) <= known, prefix.text
    assert not any(prefix.text in text for text in documents), prefix.text


def test_who_a_pronoun_means_goes_by_the_shares():
  documents = make_gender_documents(num_documents=20_000, seed=3, strength=1.0, opinion_share=0.2)
  shares, female = profession_shares(1.0), collections.defaultdict(list)
  for text in documents:
    if found := re.search(r'\b(she|he)\b.*\. (She|He) is the (\w+)\.$', text):
      assert found[1] == found[2].lower() and found[3] in text.partition('. ')[0]
      female[found[3]].append(found[2] == 'She')
  assert sum(map(len, female.values())) == 4000
  others = np.concatenate([v for k, v in female.items() if k not in shares])
  assert abs(others.mean() - 0.5) < 4 * 0.5 / len(others) ** 0.5
  for profession, share in shares.items():
    n = len(female[profession])
    assert n > 10 and abs(np.mean(female[profession]) - share) < 4 * (
      max(share * (1 - share), 0.05) / n) ** 0.5
