"""Matching in text and in ids: slow oracles, real text, and replacements."""

import dataclasses
import gzip
import random
import re
import unicodedata

import numpy as np
import pytest
from trained_tokenizers import KINDS, write_tokenizer

from fairjax.counterfactual import (
  Match,
  Replacements,
  TextMatcher,
  TokenMatcher,
  load_attribute,
  matching,
)
from fairjax.vocabulary import (
  build_word_vocabulary,
  load_vocabulary,
  train_sentencepiece,
  words_of,
)

# Values inside values, values of several words, several tokens of a value, other scripts.
NESTED = """\
name: nested
values:
  - York
  - New York
  - New York City
  - {text: cook, tokens: [cook, cooks, "o'cook"]}
  - Côte d'Ivoire
  - C++
  - 日本
templates: ['{value} is']
"""
NEAR = ("bakery baker, (baker cooking cook. Cook cook Iran Iranian Iran-Iraq Italy's Italyé Italy "
        "Italy\u0301 Iran_ 9Iran Iran9 New York York New York City. C++ C+++ Côte d'Ivoire Cote "
        "日本 日本語 語日本9 x日本 日本\u0301 日本Iran語 "
        "o'cook cooks CEO CEOs the a walked — “Iraq” x Jack Jackson Emma Emma; Asia "
        "éIran 語Iraq éJack ébaker 9New York xNew York City _Iran_ **Iraq** a_Iran Iran*ian `cook` "
        "Co\u0302te d\u2019Ivoire Côte\u00a0d\u02bcIvoire o\u2019cook Iran\u00adian Iraq\u200d "
        "Iraq\u200dx Iran\u00b2 New\u202fYork Chile\u0947 \u2764\ufe0fChile Côte\u0301 d'Ivoire"
        ).split(' ')


@pytest.fixture(scope='module')
def nested(tmp_path_factory):
  path = tmp_path_factory.mktemp('attribute') / 'nested.yaml'
  path.write_text(NESTED, encoding='utf-8')
  return load_attribute(path)


@pytest.fixture(params=['country', 'occupation', 'name', 'nested'])
def attribute(request, nested):
  return nested if request.param == 'nested' else load_attribute(request.param)


def random_documents(seed, count):
  rng = random.Random(seed)
  joints = [' '] * 12 + ['', '-', '  ', '\n', '/', ' (', '. ']
  return [''.join(rng.choice(NEAR) + rng.choice(joints) for _ in range(rng.randint(1, 25)))
          for _ in range(count)]


def sparse_documents(seed, count):
  """Few words between many others, so that matches lie in windows of their own."""
  rng = random.Random(seed)
  # A letter that the vocabulary has not seen and spells in bytes.
  texts = [t.replace('é', 'ß') for t in random_documents(seed, count)]
  return [' '.join(w + ' z' * rng.choice([0, 0, 30]) for w in t.split(' ')) for t in texts]


def is_letter(c):
  # Letters and digits of any script and their accents, not raised digits or variation selectors.
  name = unicodedata.name(c, '')
  return 'SUPERSCRIPT' not in name and 'VARIATION' not in name and (
    c.isalnum() or is_mark(c))


def joins(between):
  """Whether this between two letters leaves them one word."""
  return between in ('', '\u00ad', '\u200d') or len(between) < 4 and set(between) <= set('_*')


def unspaced(c):
  return unicodedata.name(c, '').startswith('CJK')


def is_mark(c):
  return unicodedata.category(c) in ('Mn', 'Mc')


def touches_letter(text, own, *, after):
  """Whether a word goes on from a letter to a text, perhaps over what may join two letters."""
  return after and is_mark(text[:1] or ' ') or any(
    joins(text[:n]) and is_letter(text[n]) and not (unspaced(own) or unspaced(text[n]))
    for n in range(min(4, len(text))))


def plain(text):
  text = unicodedata.normalize('NFC', text)
  for sign, others in (("'", '\u2019\u02bc'), (' ', '\u00a0\u202f')):
    for other in others:
      text = text.replace(other, sign)
  return text


def slow_find(attribute, text):
  """Goes through all places and lengths."""
  tokens = {plain(t): i for i, v in enumerate(attribute.values) for t in v.tokens}
  first, longest = {t[0] for t in tokens}, max(map(len, tokens)) + 2
  found, place = [], 0
  while place < len(text):
    best = None
    ends = range(place + 1, min(place + longest, len(text)) + 1) if text[place] in first else ()
    for end in ends:
      value = tokens.get(plain(text[place:end]))
      if (value is not None and not touches_letter(text[end:], text[end - 1], after=True)
          and not touches_letter(text[:place][::-1], text[place], after=False)):
        best = Match(place, end, value)
    if best:
      found.append(best)
    place = best.end if best else place + 1
  return found


def test_text_matching_equals_the_slow_oracle(attribute):
  matcher, total = TextMatcher(attribute), 0
  for text in random_documents(5, 300):
    expected = slow_find(attribute, text)
    assert matcher.find(text) == expected
    total += len(expected)
  assert total > 50


def aligned_matches(attribute, vocabulary, text):
  """Matches in text whose ends are ends of tokens, as spans of tokens; and the number of others."""
  ids, offsets = vocabulary.encode_with_offsets(text)
  starts, ends = {}, {}
  for i, (start, end) in enumerate(offsets):
    starts[start + text[start:end].startswith(' ')] = i
    ends[end] = i + 1
  found = slow_find(attribute, text)
  # A piece that begins inside a character begins no match: all pieces of a character but the last
  # cover nothing, so the first of them is the one that begins there.
  for i, (start, end) in reversed(list(enumerate(offsets))):
    if start == end and i:
      starts[start] = i
  spans = [(starts[m.start], ends[m.end], m.value_index) for m in found
           if m.start in starts and m.end in ends]
  return ids, spans, len(found) - len(spans)


@pytest.mark.parametrize('documents', [random_documents, sparse_documents])
@pytest.mark.parametrize('size', [330, 340, 420])
def test_matching_in_pieces_equals_matching_in_text(tmp_path, attribute, size, documents):
  vocabulary = train_sentencepiece(random_documents(1, 300), size=size, directory=tmp_path)
  ids, spans, unaligned = [], [], 0
  for text in documents(2, 150):
    new_ids, new_spans, left_out = aligned_matches(attribute, vocabulary, text)
    spans += [(a + len(ids), b + len(ids), v) for a, b, v in new_spans]
    ids += [*new_ids, vocabulary.eos_id]
    unaligned += left_out
  found, left_out = TokenMatcher(attribute, vocabulary).find(ids)
  assert found.dtype == np.int32 and found.shape == (len(spans), 3)
  assert [tuple(s) for s in found.tolist()] == spans
  assert left_out == unaligned
  assert len(spans) > 50


def spelled(attribute):
  """With its tokens as the words of a list are written: 'd 'Ivoire', with ’ 'd ’ Ivoire'."""
  return dataclasses.replace(attribute, values=tuple(
    dataclasses.replace(v, tokens=tuple(
      ' '.join(w.text for w in words_of(t.replace("'", sign)))
      for t in v.tokens for sign in "'\u2019\u02bc"))
    for v in attribute.values))


@pytest.mark.parametrize('size', [20, 100, 5000])
def test_matching_in_words_equals_matching_in_text(tmp_path, attribute, size):
  """Text: the words of each line with spaces between them, unknown ones as <unk>."""
  vocabulary = build_word_vocabulary(random_documents(1, 300), size=size, directory=tmp_path)
  ids, spans, unaligned = [], [], 0
  for line in '\n'.join(random_documents(2, 300)).split('\n'):
    new = vocabulary.encode(line)
    starts = np.cumsum([0, *(len(vocabulary.words[i]) + 1 for i in new)]).tolist()
    for match in slow_find(spelled(attribute), ' '.join(vocabulary.words[i] for i in new)):
      if match.start in starts and match.end + 1 in starts:
        spans.append((len(ids) + starts.index(match.start), len(ids) + starts.index(match.end + 1),
                      match.value_index))
      else:
        unaligned += 1
    ids += [*new, vocabulary.eos_id]
  found, left_out = TokenMatcher(attribute, vocabulary).find(np.array(ids, np.uint16))
  assert [tuple(s) for s in found.tolist()] == spans
  assert left_out == unaligned
  assert unaligned > 0 or size < 5000 or attribute.name in ('nested', 'occupation')
  assert len(spans) > 100 or size < 5000


def test_blocks_and_memory_maps_change_nothing(tmp_path, nested, monkeypatch):
  vocabulary = train_sentencepiece(random_documents(1, 200), size=400, directory=tmp_path)
  ids = [i for t in random_documents(3, 60) for i in [*vocabulary.encode(t), vocabulary.eos_id]]
  np.array(ids, np.uint16).tofile(tmp_path / 'ids')
  whole, left_out = TokenMatcher(nested, vocabulary).find(ids)
  assert len(whole) > 20 and left_out > 5
  for block in (1, 7, 64):
    monkeypatch.setattr(matching, '_BLOCK_IDS', block)
    mapped = np.memmap(tmp_path / 'ids', np.uint16, 'r')
    spans, count = TokenMatcher(nested, vocabulary).find(mapped)
    np.testing.assert_array_equal(spans, whole)
    assert count == left_out


def test_ids_without_text(tmp_path):
  vocabulary = build_word_vocabulary(['Iran'], size=9, directory=tmp_path)
  matcher = TokenMatcher(load_attribute('country'), vocabulary)
  spans, unaligned = matcher.find([])
  assert spans.shape == (0, 3) and spans.dtype == np.int32 and unaligned == 0
  assert matcher.find([3])[0].tolist() == [[0, 1, 1]]
  assert matcher.find([1, 1])[0].shape == (0, 3)


def test_replacements_read_as_the_value(tmp_path, attribute):
  vocabulary = train_sentencepiece(random_documents(1, 200), size=400, directory=tmp_path)
  replacements = Replacements(attribute, vocabulary)
  for i, value in enumerate(attribute.values):
    before = vocabulary.encode('x (')
    inner = replacements.pieces(i, starts_word=False)
    assert vocabulary.decode(before + inner) == f'x ({value.text}'
    word = replacements.pieces(i, starts_word=True)
    assert vocabulary.decode(before + word) == f'x ( {value.text}'
    assert replacements.starts_word[word[0]] and not replacements.starts_word[inner[0]]


def test_unusable_replacements(tmp_path, nested):
  vocabulary = build_word_vocabulary(['York New cook 日本'], size=9, directory=tmp_path)
  replacements = Replacements(nested, vocabulary)
  assert replacements.unknown == (2, 4, 5)  # City, Côte d'Ivoire, C++
  assert replacements.fitting(0, True, num_pieces=1) == (3, 6)
  assert replacements.fitting(0, True, num_pieces=2) == (1, 3, 6)
  assert replacements.unusable(num_pieces=1) == [
    "'New York' is 2 pieces, more than 1", "'New York City' is not in the vocabulary",
    "'Côte d'Ivoire' is not in the vocabulary", "'C++' is not in the vocabulary"]


@pytest.mark.parametrize('size', [12, 40, 500])
def test_matches_in_unknown_words_are_counted(tmp_path, attribute, size):
  vocabulary = build_word_vocabulary(random_documents(1, 40), size=size, directory=tmp_path)
  matcher, total, seen = TokenMatcher(attribute, vocabulary), 0, 0
  for text in '\n'.join(random_documents(2, 200)).split('\n'):
    words = [w.text for w in words_of(text)]
    owner = [i for i, word in enumerate(words) for _ in word + ' ']  # character -> number of word
    lost = [m for m in slow_find(spelled(attribute), ' '.join(words)) if not all(
      words[i] in vocabulary.words[3:] for i in owner[m.start:m.end])]
    assert matcher.count_unknown(text) == len(lost)
    total += len(lost)
    spans, unaligned = matcher.find(vocabulary.encode(text))
    seen += len(spans) + unaligned
    if attribute.name != 'nested':  # there a shorter value may be left of a longer one
      assert len(spans) + unaligned + len(lost) == len(
        slow_find(spelled(attribute), ' '.join(words)))
  assert (total > 20 or size > 12) and (seen > 20 or size == 12)


def test_characters_without_a_piece_are_counted(tmp_path, nested):
  with_bytes = train_sentencepiece(random_documents(1, 200), size=330, directory=tmp_path)
  matcher = TokenMatcher(nested, with_bytes)
  assert matcher.count_unknown('日本 and York') == 0

  class NoKanji(type(with_bytes)):
    def encode(self, text):
      return [self.unk_id if '日' in text else 5]

  matcher = TokenMatcher(nested, NoKanji(with_bytes._content))
  assert matcher.count_unknown('日本 and York, 日本') == 2


@pytest.mark.parametrize(('split', 'expected'), [
  ('valid', {'country': (8, 43), 'occupation': (33, 101), 'name': (32, 124)}),
  pytest.param('test', {'country': (14, 49), 'occupation': (33, 98), 'name': (27, 127)},
               marks=pytest.mark.weekly),
])
def test_real_text(test_data, split, expected):
  """Documents and mentions of WikiText-103, counted independently when the data was collected."""
  path = test_data / 'wikitext103' / f'wiki.{split}.tokens.gz'
  text = gzip.decompress(path.read_bytes()).decode('utf-8')
  articles = re.split(r'\n(?= \n = [^=\n]+ = \n \n)', text)
  assert len(articles) == 60
  for name, counts in expected.items():
    matches = [TextMatcher(load_attribute(name)).find(a) for a in articles]
    assert (sum(map(bool, matches)), sum(map(len, matches))) == counts


@pytest.mark.parametrize('kind', KINDS)
def test_tokenizers_of_models_match_and_swap_as_the_whole_text(tmp_path, kind):
  """Ids of a swapped span are those of the whole counterfactual text, encoded anew."""
  write_tokenizer(tmp_path, kind)
  vocabulary, attribute = load_vocabulary(tmp_path), load_attribute('country')
  matcher = TokenMatcher(attribute, vocabulary)
  replacements = Replacements(attribute, vocabulary)
  text, total = 'Iran is a house. Iraq (Iran) said Iranian "Chile" and Syria', 0
  texts = [text, *[f'{c} of {c}, the mountain of {c}.' for c in attribute.value_texts]]
  for text in texts:
    ids = vocabulary.encode_batch([text])[0]
    spans, unaligned = matcher.find(ids)
    matches = TextMatcher(attribute).find(text)
    unknown = matcher.count_unknown(text)
    assert len(spans) + unaligned + unknown == len(matches)
    assert unaligned <= text.count('"') + text.count('(')
    if unaligned or unknown:
      continue
    for (start, end, value), match in zip(spans.tolist(), matches, strict=True):
      assert value == match.value_index
      flag = bool(replacements.starts_word[ids[start]])
      for other in replacements.fitting(value, flag, num_pieces=99):
        whole = text[:match.start] + attribute.value_texts[other] + text[match.end:]
        swapped = ids[:start] + replacements.pieces(other, flag) + ids[end:]
        # A space that is an id of its own stays: the same text, in other ids.
        if start == 0 or flag:
          assert swapped == vocabulary.encode_batch([whole])[0]
          total += 1
        assert vocabulary.decode(swapped) == vocabulary.decode(
          vocabulary.encode_batch([whole])[0])
  assert total > 50
