"""Labelled sentences, word pieces and the figures of a classifier."""

import collections
import gzip
import json

import numpy as np
import pytest

from fairjax.cli.main import main
from fairjax.errors import UserError
from fairjax.pretrained.classifier import (
  quality,
  read_examples,
)
from fairjax.pretrained.start import SPECIAL, count_words, train_word_pieces

TREE = "(3 (2 It) (4 (4 (2 's) (4 lovely)) (2 -LRB-1\\/2-RRB-)))"


def written(tmp_path, text, name='data.tsv'):
  path = tmp_path / name
  content = text.encode('utf-8')
  path.write_bytes(gzip.compress(content) if name.endswith('.gz') else content)
  return path


@pytest.mark.parametrize('name', ['data.tsv', 'data.tsv.gz'])
def test_three_columns(tmp_path, name):
  path = written(tmp_path, '3\t1\tGood .\r\n2\t\tSo so .\n\n0\t0\tBad .\n4\t1\tGreat .\n', name)
  two = read_examples(path, classes=2)
  assert two.texts == ['Good .', 'Bad .', 'Great .']
  assert two.labels.tolist() == [1, 0, 1] and two.neutral == 1
  five = read_examples(path, classes=5)
  assert five.labels.tolist() == [3, 2, 0, 4] and five.neutral == 0
  assert five.digest != two.digest


def test_two_columns_have_the_classes_asked_for(tmp_path):
  assert read_examples(written(tmp_path, '1\ta\n0\tb\n'), classes=2).labels.tolist() == [1, 0]
  assert read_examples(written(tmp_path, '1\ta\n4\tb\n'), classes=5).labels.tolist() == [1, 4]
  text = 'A label, or the label; "label"'  # no header
  assert read_examples(written(tmp_path, f'1\t{text}\n0\tb\n'), classes=2).texts == [text, 'b']


def test_trees_give_sentences_or_phrases(tmp_path):
  path = written(tmp_path, f'{TREE}\n(1 (0 bad) (2 film))\n')
  whole = read_examples(path, classes=5)
  assert whole.texts == ["It 's lovely (1/2)", 'bad film'] and whole.labels.tolist() == [3, 1]
  parts = read_examples(path, classes=5, phrases=True)
  assert list(zip(parts.texts, parts.labels.tolist(), strict=True)) == [
    ('It', 2), ("'s", 2), ('lovely', 4), ("'s lovely", 4), ('(1/2)', 2), ("'s lovely (1/2)", 4),
    ("It 's lovely (1/2)", 3), ('bad', 0), ('film', 2), ('bad film', 1)]
  again = read_examples(written(tmp_path, f'{TREE}\n{TREE}\n'), classes=2, phrases=True)
  assert again.texts == ['lovely', "'s lovely", "'s lovely (1/2)", "It 's lovely (1/2)"]
  assert again.doubles == 4 and again.neutral == 6


@pytest.mark.parametrize(('text', 'classes', 'message'), [
  ('1\ta\n5\tb\n', 5, r":2: label '5' is not one of 0, 1, 2, 3, 4"),
  ('2\ta\n', 2, r":1: label '2' is not one of 0, 1: write each label as"),
  ('3\t0\ta\n', 2, "binary label '0' does not fit label 3"),
  ('3\t1\t \n', 2, 'the text is empty'),
  ('good\n', 2, '1 columns'),
  ('2\t\tfine\n', 2, 'holds no labelled sentence'),
  ('(3 (2 It) (4 good)\n', 2, 'brackets do not match'),
  ('(3 It) good\n', 2, "'good' stands outside"),
  ('(7 It)\n', 2, "label '7' of a phrase"),
  ('(3 (2 ) (4 good))\n', 2, 'has no words'),
])
def test_lines_that_do_not_fit_are_named(tmp_path, text, classes, message):
  with pytest.raises(UserError, match=message):
    read_examples(written(tmp_path, text), classes=classes)


def test_published_counts(test_data):
  """8,544 and 1,101 sentences; 6,920 and 872 without the neutral ones (Socher et al. 2013)."""
  for split, five, two in (('train', 8544, 6920), ('dev', 1101, 872)):
    columns = test_data / 'sst' / f'{split}.tsv.gz'
    trees = test_data / 'sst' / f'trees_{split}.txt.gz'
    for classes, count in ((5, five), (2, two)):
      found, same = read_examples(columns, classes=classes), read_examples(trees, classes=classes)
      assert len(found.texts) == count and found.neutral == (five - two if classes == 2 else 0)
      assert found.digest == same.digest  # the columns were made of the trees


@pytest.mark.parametrize('undecided, accuracy, left', [('wrong', 472, 231), ('negative', 607, 0)])
def test_opinion_words_have_the_papers_accuracy_if_undecided_is_negative(
    undecided, accuracy, left, test_data, capsys):
  """Huang et al. give 69.6 % (H-16)."""
  lexicon = [str(test_data / 'lexicons' / f'opinion_{sign}.txt')
             for sign in ('positive', 'negative')]
  assert main(['scorers', 'evaluate', f"--data={test_data / 'sst' / 'dev.tsv.gz'}",
               '--scorer=opinion', f'--undecided={undecided}', '--json', '--lexicon',
               *lexicon]) == 0
  shown = capsys.readouterr()
  found = json.loads(shown.out)['scorers']['opinion']
  assert found['accuracy']['value'] == accuracy / 872 and found['undecided'] == left
  assert ('231 undecided texts count as negative' in shown.err + shown.out) == (left == 0)
  if undecided == 'negative':
    assert f"{found['accuracy']['value']:.3f}" == '0.696'


def slow_f1(labels, predictions, k):
  pairs = list(zip(labels, predictions, strict=True))
  hit = sum(a == b == k for a, b in pairs)
  wrong, missed = sum(b == k != a for a, b in pairs), sum(a == k != b for a, b in pairs)
  return 2 * hit / (2 * hit + wrong + missed) if hit + wrong + missed else 0.0


@pytest.mark.parametrize('classes', [2, 5])
def test_figures_beside_a_slow_count(classes):
  rng = np.random.default_rng(classes)
  labels = rng.integers(0, classes, 300)
  predictions = np.where(rng.random(300) < 0.6, labels, rng.integers(-1, classes, 300))
  found = quality(labels, predictions, classes=classes)
  f1 = [slow_f1(labels.tolist(), predictions.tolist(), k) for k in range(classes)]
  assert found['f1_by_class'] == pytest.approx(f1, abs=1e-12)
  assert found['macro_f1']['value'] == pytest.approx(np.mean(f1), abs=1e-12)
  assert found['accuracy']['value'] == np.mean(labels == predictions)
  assert found['undecided'] == (predictions == -1).sum() > 0 and found['n'] == 300
  assert found['accuracy_of_decided'] == pytest.approx(
    np.mean(labels == predictions) / np.mean(predictions >= 0), abs=1e-12)
  assert ('positive_f1' in found) == (classes == 2)
  for name in ('accuracy', 'macro_f1'):
    assert found[name]['low'] < found[name]['value'] < found[name]['high']
    assert 0.05 < found[name]['high'] - found[name]['low'] < 0.2


def test_intervals_hold_the_truth_as_often_as_they_say():
  rng = np.random.default_rng(0)
  held = collections.Counter()
  for seed in range(200):
    labels = rng.integers(0, 2, 400)
    predictions = np.where(rng.random(400) < 0.8, labels, 1 - labels)
    found = quality(labels, predictions, classes=2, seed=seed)
    for name in ('accuracy', 'macro_f1', 'positive_f1'):  # all 0.8 in the limit
      held[name] += found[name]['low'] <= 0.8 <= found[name]['high']
  for name, count in held.items():
    assert 180 <= count <= 199, name  # 95 % of 200 +- 3.2 standard deviations


def slow_pieces(words, size):
  """Counts all pairs again after every join."""
  split = {w: [w[0], *('##' + c for c in w[1:])] for w in words}
  vocabulary = [*SPECIAL, *sorted({p for s in split.values() for p in s})]
  while len(vocabulary) < size:
    counts = collections.Counter()
    for word, pieces in split.items():
      for pair in zip(pieces, pieces[1:], strict=False):
        counts[pair] += words[word]
    if not counts or max(counts.values()) < 2:
      break
    best = min(counts, key=lambda p: (-counts[p], p))
    joined = best[0] + best[1].removeprefix('##')
    if joined not in vocabulary:
      vocabulary.append(joined)
    for pieces in split.values():
      i = 0
      while i < len(pieces) - 1:
        if (pieces[i], pieces[i + 1]) == best:
          pieces[i:i + 2] = [joined]
        i += 1
  return vocabulary


def test_word_pieces_beside_a_slow_count():
  rng = np.random.default_rng(1)
  words = {''.join(rng.choice(list('abcd'), rng.integers(1, 9))): int(rng.integers(1, 20))
           for _ in range(120)}
  words['aaaaaa'] = 9
  for size in (20, 60, 150):
    assert list(train_word_pieces(words, size=size)) == slow_pieces(words, size)


def test_words_are_those_of_bert():
  assert count_words(["The caf\u00e9's", 'the\u4eac']) == {
    'the': 2, 'cafe': 1, "'": 1, 's': 1, '\u4eac': 1}
