"""News crawls: base64 columns, lines without documents, broken lines, the held-out end."""

import base64
import collections
import dataclasses
import gzip
import json
import tracemalloc

import pytest

from fairjax.config import Config, DataConfig
from fairjax.config_checks import validate
from fairjax.counterfactual import load_attribute
from fairjax.data.corpus import Corpus, make_holdout
from fairjax.data.documents import read_documents
from fairjax.data.prepare import prepare_data
from fairjax.errors import UserError

COUNTRY = load_attribute('country')
STORIES = ['Iran won . It rained .', 'Zürich, 5 May: «Italy» lost .', 'One in Chile .',
           'He left Iraq .', 'The end in Iran .', 'Rain .']


def b64(text):
  content = text if isinstance(text, bytes) else text.encode()
  return base64.b64encode(content).decode()


def story(text, date='20190102'):
  sentences = text.replace(' . ', ' .\n')
  return f'{date}\t{b64(sentences)}\t{b64(text)}'


def write(path, lines):
  content = ('\n'.join(lines) + '\n').encode()
  path.write_bytes(gzip.compress(content) if path.suffix == '.gz' else content)
  return path


def read(*paths, layout='newscrawl', **kwargs):
  counts = collections.Counter()
  return list(read_documents(paths, layout=layout, counts=counts, **kwargs)), +counts


@pytest.fixture
def crawl(tmp_path):
  return write(tmp_path / 'news-docs.2019.en.filtered.gz', map(story, STORIES))


def test_both_columns(crawl):
  assert read(crawl) == (STORIES, {'files': 1, 'lines': 6, 'documents': 6})
  assert read(crawl, text_column=2)[0] == STORIES
  assert read(crawl, text_column=1)[0][0] == 'Iran won .\nIt rained .'


def test_decoded_text_is_normalised_and_counted(tmp_path):
  path = write(tmp_path / 'a', [story('a\r\nb\0'), story(' \n'), '', story('c')])
  documents, counts = read(path)
  assert documents == ['a\nb', 'c']
  assert {k: counts[k] for k in ('carriage_returns', 'nul_characters', 'blank_documents',
                                 'blank_lines', 'documents')} == {
    'carriage_returns': 1, 'nul_characters': 1, 'blank_documents': 1, 'blank_lines': 1,
    'documents': 2}


BROKEN = {
  '20190101\tQUJD\tQUJ': 'column -1 is not base64 .Incorrect padding',
  '20190101\tQUJD\tQU*D': 'column -1 is not base64 .Only base64 data',
  '20190101\tQUJD\tQQ==QQ==': 'column -1 is not base64',
  '20190101\tQUJD\t' + b64(b'caf\xe9'): r'not UTF-8 .byte 4 of the decoded text is 0xe9',
}


@pytest.mark.parametrize('line', BROKEN)
def test_a_broken_line_is_named_or_counted(tmp_path, line):
  path = write(tmp_path / 'crawl', [story('One .'), line, story('Two .')])
  with pytest.raises(UserError, match=rf'crawl:2: {BROKEN[line]}.*data\.broken=skip') as error:
    read(path)
  assert '\n' not in str(error.value)
  documents, counts = read(path, broken='skip')
  assert documents == ['One .', 'Two .'] and counts['broken_lines'] == 1


def test_too_few_columns_and_bad_bytes(tmp_path):
  path = tmp_path / 'crawl'
  path.write_bytes(f'{story("One .")}\n20190101\n\xff\n'.encode('latin-1'))
  with pytest.raises(UserError, match=r'crawl:2: 1 column\(s\), so none has the number 2'):
    read(path, text_column=2)
  assert read(path, text_column=2, broken='skip') == (
    ['One .'], {'files': 1, 'lines': 3, 'documents': 1, 'broken_lines': 2})
  path.write_text('x\n')
  with pytest.raises(UserError, match='holds no document: all of its lines are blank or broken'):
    read(path, broken='skip')


def test_sentences_without_documents(tmp_path):
  path = write(tmp_path / 'shuffled', ['One .', '', 'Two .', 'Three .'])
  layout = 'newscrawl_sentences'
  assert read(path, layout=layout)[0] == ['One .', 'Two .', 'Three .']
  documents, counts = read(path, layout=layout, lines_per_document=2)
  assert documents == ['One .\nTwo .', 'Three .']
  assert (counts['documents'], counts['lines'], counts['blank_lines']) == (2, 4, 1)


@pytest.mark.parametrize('number, valid, test', [(6, 1, 2), (5, 2, 2), (10_050, 1000, 9000)])
def test_the_end_is_held_out_valid_first(tmp_path, number, valid, test):
  corpus = [f'document {i}\nwith\u2028lines' for i in range(number)]
  made = make_holdout(iter(corpus), (valid, test), tmp_path / 'h')
  train = number - valid - test
  assert (made.train, made.valid, made.test) == (train, valid, test)
  assert list(made.texts('train', iter(corpus))) == corpus[:train]
  assert list(made.texts('valid', None)) == corpus[train:train + valid]
  assert list(made.texts('test', None)) == corpus[train + valid:]
  again = make_holdout(None, (valid, test), tmp_path / 'h')  # is not read again
  assert again == made


def test_the_holdout_needs_training_documents_and_its_own_folder(tmp_path):
  with pytest.raises(UserError, match='hold 3 documents, and data.holdout=.1, 2. leaves none'):
    make_holdout(iter('abc'), (1, 2), tmp_path)
  made = make_holdout(iter('abcd'), (1, 2), tmp_path)
  with pytest.raises(UserError, match='holds out 1 and 2 documents, not 2 and 1'):
    make_holdout(None, (2, 1), tmp_path)
  (tmp_path / 'test.jsonl').write_text('"x"\n"y"\n')
  with pytest.raises(UserError, match=r'test\.jsonl is missing or damaged'):
    list(made.texts('test', None))
  (tmp_path / 'holdout.json').write_text('{')
  with pytest.raises(UserError, match='holdout.json is damaged'):
    make_holdout(None, (1, 2), tmp_path)


def test_the_holdout_needs_memory_for_the_held_out_only(tmp_path):
  def texts():
    for i in range(20_000):
      yield f'{i} ' + 'x' * 2000  # 40 MB in all

  tracemalloc.start()
  make_holdout(texts(), (5, 45), tmp_path)
  peak = tracemalloc.get_traced_memory()[1]
  tracemalloc.stop()
  assert peak < 1_000_000


def test_a_crawl_is_prepared_with_its_holdout(tmp_path, crawl):
  # One broken line before the end of the training documents, one among the held-out ones.
  second = write(tmp_path / 'news-docs.2020.en.filtered',
                 ['broken', *map(story, STORIES), 'again=broken'])
  data = DataConfig(
    source='newscrawl', train=(str(crawl), str(second)), holdout=(2, 3), broken='skip',
    vocabulary='word', vocab_size=100, reader='numpy')
  validate(Config(data=data, measure=dataclasses.replace(Config().measure, scorers=('vader',)),
                  sentiment=dataclasses.replace(Config().sentiment, scorer='vader')))
  lines = []
  prepared = prepare_data(Config(data=data), tmp_path / 'out', attribute=COUNTRY,
                          log=lines.append)
  everything = [*STORIES, *STORIES]
  assert list(prepared.documents('train')) == everything[:7]
  assert list(prepared.documents('valid')) == everything[7:9]
  assert list(prepared.documents('test')) == everything[9:]
  assert [prepared.store(s).documents for s in ('train', 'valid', 'test')] == [7, 2, 3]
  assert ('[data] held out after 7 training documents: the next 2 as valid, the last 3 as test'
          in lines)
  manifest = json.loads((tmp_path / 'out' / 'manifest.json').read_text())
  assert '[data] all files, normalised or left out: 2 broken lines' in lines
  assert '[data] train, normalised or left out: 1 broken lines' in lines
  assert manifest['normalised']['all']['broken_lines'] == 2
  assert manifest['normalised']['all']['documents'] == 12
  assert manifest['inputs']['holdout'] == [2, 3] and list(manifest['inputs']['files']) == ['train']
  assert Corpus(data, COUNTRY, tmp_path / 'out').size('train') == 7
  with pytest.raises(UserError, match=r'made from other data \(holdout'):
    prepare_data(Config(data=dataclasses.replace(data, holdout=(3, 3))), tmp_path / 'out',
                 attribute=COUNTRY, log=lines.append)


@pytest.mark.parametrize('changes, message', [
  ({'holdout': (1,)}, 'data.holdout must be two positive numbers'),
  ({'holdout': (0, 3)}, 'data.holdout must be two positive numbers'),
  ({'holdout': (1, 3), 'valid': ('x',)}, 'name no files for them'),
  ({'source': 'planted', 'holdout': (1, 3)}, "data.holdout is for files"),
  ({'source': 'wikitext', 'broken': 'skip'}, 'data.broken=skip is for lines'),
  ({'broken': 'ignore'}, "data.broken='ignore' is not one of error, skip"),
  ({'lines_per_document': 0}, 'data.lines_per_document must be positive'),
  ({'vocab_sentences': -1}, 'data.vocab_sentences must not be negative'),
  ({'sha256': 'abc'}, 'data.sha256 must be 64 hexadecimal digits'),
  ({'source': 'wikitext2', 'train': (), 'manual_dir': 'x', 'download': True}, 'exclude each other'),
  ({'source': 'wikitext2'}, 'reads data.manual_dir, not data.train'),
])
def test_wrong_configurations_are_named(changes, message):
  data = DataConfig(**{'source': 'newscrawl', 'train': ('a',)} | changes)
  with pytest.raises(UserError, match=message):
    validate(Config(data=data))
