"""The planted corpus: its bias against enumeration, simulation and counts, its words and frames."""

import collections
import itertools
import re

import numpy as np
import pytest
from scipy import stats

from fairjax.counterfactual import TextMatcher, list_attributes, load_attribute
from fairjax.data import planted
from fairjax.data.documents import split_sentences
from fairjax.errors import UserError

NAMES = ('country', 'occupation', 'name')
OPINIONS = set(planted.POSITIVE + planted.NEGATIVE)


def make(name, number=3000, **kwargs):
  options = {'seed': 0, 'strength': 0.8, 'sensitive_share': 0.6} | kwargs
  return planted.make_planted_documents(load_attribute(name), num_documents=number, **options)


def words(text):
  return re.findall(r'\w+', text)


def opinions(text):
  """Opinion words in their order, lower-case."""
  return [w for w in words(text.lower()) if w in OPINIONS]


def score(text):
  """Share of positive opinion words (H-16)."""
  found = opinions(text)
  return sum(w in planted.POSITIVE for w in found) / len(found)


def frames(texts, values):
  """Four words in a row, of one sentence, that hold the value (all words of shorter ones)."""
  pattern = re.compile('|'.join(rf'\b{re.escape(v)}\b' for v in sorted(values, key=len)[::-1]))
  found = set()
  for text in texts:
    for sentence in re.split(r'[.!?]', text):
      row = [w.lower() if w != 'VALUE' else w for w in words(pattern.sub('VALUE', sentence))]
      size = min(4, len(row))
      for i in range(len(row) - size + 1):
        if 'VALUE' in row[i:i + size]:
          found.add(tuple(row[i:i + size]))
  return found


@pytest.mark.parametrize('name', NAMES)
def test_probabilities_are_evenly_spaced_and_have_nothing_to_do_with_the_papers_order(name):
  attribute = load_attribute(name)
  p = planted.value_probabilities(attribute, 0.6)
  np.testing.assert_allclose(np.sort(p), np.linspace(0.2, 0.8, len(p)))
  order = np.arange(len(p))
  assert abs(stats.spearmanr(p, order).statistic) < 0.2
  assert planted.value_probabilities(attribute, 0).tolist() == [0.5] * len(p)


@pytest.mark.parametrize('name', NAMES)
def test_individual_fairness_has_the_closed_form(name):
  attribute = load_attribute(name)
  a, s = len(attribute.values), 0.8
  expected = s * (a + 1) / (3 * (a - 1))
  assert planted.true_individual_fairness(attribute, strength=s) == pytest.approx(expected)
  assert planted.true_individual_fairness(attribute, strength=0) == 0
  assert planted.true_group_fairness(attribute, strength=0) == pytest.approx(0, abs=1e-12)


def test_group_fairness_equals_enumeration():
  attribute, counts = load_attribute('name'), {1: 0.5, 2: 0.5}
  p = planted.value_probabilities(attribute, 1.0)
  scores, rows = np.array([0, 0.5, 1]), []
  for x in p:
    rows.append(0.5 * np.array([1 - x, 0, x]) + 0.5 * np.array([(1 - x)**2, 2 * x * (1 - x), x**2]))
  rows = np.array(rows)
  groups = [[i for i, v in enumerate(attribute.values) if v.subgroup == g]
            for g in attribute.subgroups]
  expected = np.mean([
    stats.wasserstein_distance(scores, scores, rows[g].mean(0), rows.mean(0)) for g in groups])
  actual = planted.true_group_fairness(attribute, strength=1.0, opinion_counts=counts)
  assert actual == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize('one_mood, counts', [
  (False, planted.HELDOUT_OPINION_COUNTS), (True, {1: 1.0})])
def test_the_grammars_own_continuations_have_the_true_fairness(one_mood, counts):
  attribute, s = load_attribute('country'), 0.8
  p, rng = planted.value_probabilities(attribute, s), np.random.default_rng(1)
  matcher, samples = TextMatcher(attribute), [[] for _ in attribute.values]
  for text in make('country', 40_000, sensitive_share=1.0, one_mood=one_mood):
    value = matcher.find(text)[0].value_index
    # After a held-out prefix come its opinion word and what follows a lead.
    rest = [w in planted.POSITIVE for sentence in split_sentences(text)[1:]
            for w in opinions(sentence)]
    own = rest[0] if one_mood else rng.random() < p[value]
    samples[value].append(np.mean([own, *rest]))
  assert one_mood == ({x for row in samples for x in row} == {0, 1})
  pairs = itertools.combinations(samples, 2)
  measured = np.mean([stats.wasserstein_distance(x, y) for x, y in pairs])
  assert measured == pytest.approx(
    planted.true_individual_fairness(attribute, strength=s), abs=0.01)
  pooled = np.concatenate(samples)
  measured = np.mean([stats.wasserstein_distance(x, pooled) for x in samples])
  assert measured == pytest.approx(planted.true_group_fairness(
    attribute, strength=s, opinion_counts=counts), abs=0.01)


def test_signs_follow_the_value_in_every_sentence():
  attribute = load_attribute('country')
  matcher = TextMatcher(attribute)
  p = planted.value_probabilities(attribute, 0.8)
  positive, total = collections.Counter(), collections.Counter()
  sensitive = mentions = 0
  documents = make('country', 9000)
  for text in documents:
    values = {m.value_index for m in matcher.find(text)}
    assert len(values) <= 1, text
    value = values.pop() if values else None
    sensitive += value is not None
    mentions += len(matcher.find(text)) > 1
    for i, word in enumerate(opinions(text)):
      key = (value, min(i, 2))
      total[key] += 1
      positive[key] += word in planted.POSITIVE
  for (value, place), n in total.items():
    expected = 0.5 if value is None else p[value]
    sigma = np.sqrt(max(expected * (1 - expected), 0.05) / n)
    assert abs(positive[value, place] / n - expected) < 4.5 * sigma, (value, place)
  for value, expected in enumerate(p):  # as a whole the share is exact
    n = sum(total[value, place] for place in range(3))
    assert abs(sum(positive[value, place] for place in range(3)) - expected * n) <= 0.5 + 1e-9
  assert sensitive / len(documents) == pytest.approx(0.6, abs=0.02)
  assert mentions / sensitive == pytest.approx(0.3, abs=0.03)


@pytest.mark.parametrize('name', NAMES)
def test_sentences_after_the_lead_hold_one_opinion_word_each(name):
  sizes = collections.Counter()
  for text in make(name):
    sentences = split_sentences(text)
    numbers = [len(opinions(s)) for s in sentences]
    assert numbers[0] <= 1 and set(numbers[1:]) == {1}, text
    assert len(text.split()) <= 50
    sizes[len(sentences)] += 1
  assert set(sizes) == {2, 3, 4} and min(sizes.values()) > 850
  for patterns in planted.GRAMMAR['mentions'].values():
    assert all('{w}' in p or '{aw}' in p for p in patterns)
  assert all(p.startswith('{W} ') for p in planted.GRAMMAR['opening'])


def test_sentiment_persists_in_documents_without_a_value():
  s = 0.8
  documents = make('country', 6000, sensitive_share=0.0, strength=s)
  signs = [[w in planted.POSITIVE for w in opinions(t)] for t in documents]
  share = np.mean([x for row in signs for x in row])
  assert share == pytest.approx(0.5, abs=0.02)  # the corpus as a whole favours neither sign
  same = np.mean([a == b for row in signs for a, b in itertools.pairwise(row)])
  p = (1 + s) / 2  # one mood or the other, words independent given the mood
  assert same == pytest.approx(p * p + (1 - p) ** 2, abs=0.02)


@pytest.mark.parametrize('strength', [0.0, 0.8])
def test_a_document_of_one_mood_has_it_in_the_exact_share_of_its_value(strength):
  attribute = load_attribute('country')
  matcher, p = TextMatcher(attribute), planted.value_probabilities(attribute, strength)
  moods, sizes = collections.defaultdict(list), collections.defaultdict(list)
  for text in make('country', 3000, strength=strength, sensitive_share=0.7, one_mood=True):
    assert score(text) in (0, 1), text
    found = matcher.find(text)
    value = found[0].value_index if found else None
    moods[value].append(score(text))
    sizes[value].append(len(opinions(text)))
  assert len(moods) == 11 and min(map(len, moods.values())) > 150
  for value, found in moods.items():
    expected, found = 0.5 if value is None else p[value], np.array(found)
    assert abs(found.sum() - expected * len(found)) <= 0.5 + 1e-9
    # Long documents are as often positive as short ones: each size is off by one at most.
    size = np.array(sizes[value])
    for n in range(1, 5):
      assert abs(found[size == n].sum() - expected * (size == n).sum()) <= 1 + 1e-9


@pytest.mark.parametrize('name', NAMES)
def test_no_template_and_no_heldout_frame_occurs(name):
  attribute, documents = load_attribute(name), make(name, 10000)
  corpus = '\n'.join(documents)
  heldout = planted.heldout_prefixes(attribute)
  for other in list_attributes():
    for prefix in load_attribute(other).prefixes():
      assert prefix.text not in corpus
  for _, _, text in heldout:
    assert text not in corpus
  values = attribute.value_texts
  in_corpus = frames(documents, values)
  in_templates = frames([p.text for p in attribute.prefixes()], values)
  in_heldout = frames([t for _, _, t in heldout], values)
  assert len(in_templates) > 10 and len(in_heldout) > 10 and len(in_corpus) > 500
  assert not in_corpus & in_templates
  assert not in_corpus & in_heldout
  assert not in_templates & in_heldout


@pytest.mark.parametrize('name', NAMES)
def test_templates_and_heldout_prefixes_hold_known_words_only(name):
  attribute = load_attribute(name)
  known = collections.Counter(w for t in make(name, 10000) for w in words(t))
  assert len(known) < 260
  for text in [p.text for p in attribute.prefixes()] + [
      t for _, _, t in planted.heldout_prefixes(attribute)]:
    assert all(known[w] >= 15 for w in words(text)), text


@pytest.mark.parametrize('name', NAMES)
def test_only_the_opinion_words_carry_sentiment(name):
  vader = pytest.importorskip('vaderSentiment.vaderSentiment')
  lexicon = vader.SentimentIntensityAnalyzer().lexicon
  assert all(lexicon[w] > 1 for w in planted.POSITIVE)
  assert all(lexicon[w] < -1 for w in planted.NEGATIVE)
  values = {w.lower() for v in load_attribute(name).value_texts for w in v.split()}
  allowed = OPINIONS | set(planted.GRAMMAR['opinion_free']) | values
  known = {w.lower() for t in make(name) for w in words(t)}
  assert not {w for w in known - allowed if w in lexicon}
  assert not known & (set(vader.BOOSTER_DICT) | set(vader.NEGATE))


def test_heldout_prefixes_cover_each_frame_and_value():
  attribute = load_attribute('occupation')
  prefixes = planted.heldout_prefixes(attribute)
  assert [(i, v) for i, v, _ in prefixes] == list(itertools.product(range(10), range(29)))
  for _, value, text in prefixes:
    assert [m.value_index for m in TextMatcher(attribute).find(text)] == [value]
    assert not set(words(text)) & OPINIONS
  assert 'an accountant' in prefixes[12][2]


def test_documents_are_a_function_of_the_arguments():
  assert make('country', 50) == make('country', 50)
  assert make('country', 50) != make('country', 50, seed=1)
  assert make('country', 50) != make('country', 50, stream=1)
  # Strength and mood change opinion words only.
  def blank(texts):
    return [' '.join('*' if w.lower() in OPINIONS else w for w in words(t) if w not in ('a', 'an'))
            for t in texts]
  assert blank(make('country', 50)) == blank(make('country', 50, strength=0.0))
  assert blank(make('country', 50)) == blank(make('country', 50, one_mood=True))
  assert make('country', 0) == []


def test_attributes_without_sentences_are_refused(tmp_path):
  file = tmp_path / 'faith.yaml'
  file.write_text("name: faith\nvalues: [Christian, Muslim]\ntemplates: ['{value} people are']\n")
  with pytest.raises(UserError, match='country, occupation, name'):
    planted.make_planted_documents(
      load_attribute(str(file)), num_documents=1, seed=0, strength=0.5, sensitive_share=0.5)
