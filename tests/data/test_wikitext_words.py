"""WikiText's words: from natural text, back to it, and the counts that were published."""

import gzip

import pytest

from fairjax.data.corpus import Corpus
from fairjax.data.documents import read_documents
from fairjax.data.wikitext import CORPORA
from fairjax.vocabulary import EOS_ID, Word, build_word_vocabulary, natural_text, words_of


@pytest.mark.parametrize(('text', 'words'), [
  ('I am from Syria. Starting next week, I', 'I am from Syria . Starting next week , I'),
  ("He said \"it's a well-known co-op\"; O'Neill didn't.",
   "He said \" it 's a well @-@ known co @-@ op \" ; O 'Neill didn 't ."),
  ('The U.S. paid $3.5 (1,000,000%) in 2013–14/15: the 1990\'s dogs\' [sic]!',
   'The U.S. paid $ 3 @.@ 5 ( 1 @,@ 000 @,@ 000 % ) in 2013 – 14 / 15 : '
   "the 1990 's dogs ' [ sic ] !"),
  ('Dr. John F. Kennedy met St. Paul, no. 5, No. 5 and i.e. c. me... Etc.',
   'Dr. John F. Kennedy met St. Paul , no . 5 , No. 5 and i.e. c. me ... Etc .'),
  ('a <unk>-like <unk>\'s d\'état “x” it’s -3 -- 20°C', "a <unk> @-@ like <unk> 's d 'état “ x ” "
   'it ’ s -3 -- 20 ° C'),
  ('already , split @-@ text @,@ it \'s', "already , split @-@ text @,@ it 's")])
def test_words_are_those_of_wikitext(text, words):
  """By hand, from how these forms occur in WikiText-2 and from Moses' rules for English."""
  found = words_of(text)
  assert ' '.join(w.text for w in found) == words
  assert all(text[w.start:w.end] in (w.text, w.text.strip('@')) for w in found)
  assert all(a.end <= b.start for a, b in zip(found, found[1:], strict=False))
  assert words_of('') == words_of(' \n') == [] and words_of('a.')[1] == Word('.', 1, 2)


def test_no_word_copies_the_rest_of_its_line():
  copied = []

  class Line(str):
    def __getitem__(self, place):
      copied.append(len(part := super().__getitem__(place)))
      return part

  assert len(words_of(Line('It is. ' * 50))) == 150 and max(copied, default=0) < 20


def lines_of(path, most=None):
  with gzip.open(path, 'rt', encoding='utf-8') as file:
    found = [line.split() for line in file if line.strip()]
  return found[::max(len(found) // most, 1)] if most else found


@pytest.mark.parametrize('split', ['valid', 'test'])
def test_real_lines_come_back(test_data, split):
  """All lines: 98 % to the last word; otherwise a word in 2,000 differs (docs/corpora.md)."""
  lines = lines_of(test_data / 'wikitext103' / f'wiki.{split}.tokens.gz')
  back = [[w.text for w in words_of(natural_text(line))] for line in lines]
  same = sum(a == b for a, b in zip(lines, back, strict=True))
  assert same >= 0.975 * len(lines)
  assert abs(sum(map(len, back)) - sum(map(len, lines))) < 0.001 * sum(map(len, lines))
  text = '\n'.join(map(natural_text, lines))
  for mark in (' ,', ' .\n', '@-@', '@,@', '@.@', " 's", '( ', ' )'):
    assert text.count(mark) <= 0.01 * len(lines), mark


def test_more_words_never_change_the_beginning(test_data):
  for line in lines_of(test_data / 'wikitext103' / 'wiki.valid.tokens.gz', most=60):
    text = natural_text([*line, '\n', *line])
    assert all(text.startswith(natural_text(line[:n])) for n in range(len(line)))


@pytest.mark.parametrize(('corpus', 'split'), [
  ('wikitext2', 'train'), ('wikitext2', 'valid'), ('wikitext2', 'test'), ('wikitext103', 'valid'),
  ('wikitext103', 'test')])
def test_tokens_are_as_many_as_published(test_data, tmp_path, corpus, split):
  """Every line of every article ends with eos, blank ones too; documents end where articles do."""
  path = test_data / corpus / f'wiki.{split}.tokens.gz'
  articles = list(read_documents([path], layout='wikitext', blank_lines=True))
  plain = list(read_documents([path], layout='wikitext'))
  assert len(articles) == CORPORA[corpus].articles[split] == len(plain)
  vocabulary = build_word_vocabulary(
    articles, size=10 ** 6, directory=tmp_path, documents='wikitext')
  if split == 'train':
    assert vocabulary.size == 33_278 + 1  # and <pad>
  encoded = [[*ids, EOS_ID] for ids in vocabulary.encode_batch(articles)]
  assert sum(map(len, encoded)) == CORPORA[corpus].tokens[split]
  # The stream, against one that is made of the file itself.
  with gzip.open(path, 'rt', encoding='utf-8') as file:
    stream = [word for line in file for word in (*line.split(), '<eos>')]
  assert [vocabulary.words[i] for ids in encoded for i in ids] == stream
  assert all(ids[:3] == [EOS_ID, vocabulary.encode('=')[0], ids[2]] for ids in encoded[1:])


def test_scorers_read_natural_text(tmp_path):
  vocabulary = build_word_vocabulary(['It is n @-@ ary .'], size=99, directory=tmp_path,
                                     documents='wikitext')
  text = "It didn 't help , he said .\n\n = = A @-@ B = = "
  assert vocabulary.natural(text) == "It didn't help, he said.\n\n= = A-B = ="
  assert vocabulary.reading('text').natural(text) == text
  ids = vocabulary.encode_batch(['It is n @-@ ary .'])[0]
  assert vocabulary.decode(ids) == 'It is n-ary.' and ids == vocabulary.encode('It is n-ary.')


def test_corpus_keeps_blank_lines_for_words_only(tmp_path):
  from fairjax.config import DataConfig
  from fairjax.counterfactual import load_attribute
  path = tmp_path / 'a.tokens'
  path.write_text(' \n\n = A = \n \n x y \n \n \n = B = \n\n z \n \n', encoding='utf-8')
  data = DataConfig(source='wikitext', train=(str(path),))
  def texts(by_words):
    return list(Corpus(data, load_attribute('country'), tmp_path, by_words=by_words).texts('train'))
  assert texts(False) == ['= A =\nx y', '= B =\nz']
  assert texts(True) == ['\n\n= A =\n\nx y\n', '\n= B =\n\nz\n']
