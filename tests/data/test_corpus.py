"""The documents of a corpus: news crawls, the held-out end, counterfactual documents, the verb."""

import base64
import bz2
import dataclasses
import functools
import gzip
import json
import pathlib

import pytest
from split_files import COUNTRY, line_data, peak_of, prepare, read

from fairjax.cli.main import main
from fairjax.config import Config, DataConfig
from fairjax.config_checks import validate
from fairjax.counterfactual import TextMatcher
from fairjax.data.corpus import SPLITS, Corpus, make_holdout
from fairjax.data.prepare import open_prepared
from fairjax.errors import UserError
from fairjax.files import json_sha256

TEXTS = {
  'train': ['She came from Iran. It rained. Her dog ran.', 'In Chile it rained.',
            'The king of Italy saw him.'],
  'valid': ['He came from Iran.'], 'test': ['She sang in Chile.']}


@pytest.fixture
def data(tmp_path):
  return line_data(tmp_path, TEXTS, vocabulary='word', vocab_size=100)


def test_documents_of_a_corpus(data, tmp_path):
  def texts(split, **fields):
    return list(Corpus(dataclasses.replace(data, **fields), COUNTRY, tmp_path).texts(split))
  train = TEXTS['train']
  assert texts('train') == train
  assert texts('train', cda='two') == [
    train[0], 'He came from Iran. His dog ran.', train[1], train[2], 'The queen of Italy saw her.']
  assert texts('train', cda='two', cda_unit='document') == [
    train[0], 'He came from Iran. It rained. His dog ran.', train[1], train[2],
    'The queen of Italy saw her.']
  assert texts('train', cda='one') == [
    'He came from Iran. His dog ran.', 'The queen of Italy saw her.']
  for split in ('valid', 'test'):  # what a model is evaluated on stays
    assert texts(split, cda='two') == TEXTS[split]


def test_names_of_a_corpus(data, tmp_path):
  names = tmp_path / 'names'
  names.write_text('Eve,F,9\nAda,F,5\nBob,M,7\n')
  pathlib.Path(data.train[0]).write_text('She came from Eve. It rained.\nIn Iran it rained.\n')
  found = list(Corpus(dataclasses.replace(
    data, cda='two', cda_pairs=('none',), cda_names=(str(names),), cda_name_gender='flip'),
    COUNTRY, tmp_path).texts('train'))
  assert found[1] == 'She came from Bob.' and len(found) == 3
  for sided in ('one', 'two'):
    pathlib.Path(data.train[0]).write_text('In Iran it rained.\n')
    with pytest.raises(UserError, match='CDA found no gendered word'):
      list(Corpus(dataclasses.replace(data, cda=sided), COUNTRY, tmp_path).texts('train'))


def test_pairs_that_are_read_the_other_way_are_counted(data, tmp_path):
  (tmp_path / 'pairs').write_text('she he\nher him\nking queen\n')
  pairs = (str(tmp_path / 'pairs'),)
  _, lines = prepare(dataclasses.replace(data, cda='two', cda_pairs=pairs), tmp_path / 'data')
  assert any('2 cda pairs female first' in line for line in lines)


def test_prepared_data_are_others_and_say_so(data, tmp_path):
  found = {}
  for sided in ('', 'one', 'two'):
    found[sided], lines = prepare(dataclasses.replace(data, cda=sided), tmp_path / f'data{sided}')
  assert len({p.fingerprint for p in found.values()}) == 3
  assert [found[s].store('train').documents for s in ('', 'one', 'two')] == [3, 2, 5]
  assert dict(found['two'].store('train').normalised)['cda_swaps'] == 4
  assert dict(found['one'].store('train').normalised)['cda_neutral_left_out'] == 2
  assert any('2 cda documents' in line and '4 cda swaps' in line for line in lines)
  assert found['two'].store('valid').documents == 1
  # Opened again from its folder, the documents are the same; other fields are refused.
  opened = open_prepared(tmp_path / 'datatwo')
  assert opened.config.cda == 'two' and opened.fingerprint == found['two'].fingerprint
  assert list(opened.documents('train')) == list(found['two'].documents('train'))
  assert list(opened.documents('train_sensitive')) == [
    t for t in opened.documents('train') if TextMatcher(COUNTRY).find(t)]
  for change in ({'cda': ''}, {'cda_unit': 'document'}):
    with pytest.raises(UserError, match='made from other data .*cda'):
      prepare(dataclasses.replace(data, **{'cda': 'two'} | change), tmp_path / 'datatwo')


def test_the_fingerprint_of_a_stage_knows_cda():
  from fairjax.train import curriculum

  def fingerprint(**fields):
    return json_sha256(curriculum.stage_fields(Config(data=DataConfig(**fields)), 'lm'))

  assert len({fingerprint(), fingerprint(cda='one'), fingerprint(cda='two'),
              fingerprint(cda='two', cda_unit='document')}) == 4
  assert fingerprint(cda_name_letters='A-M') == fingerprint()  # without cda it changes nothing


@pytest.mark.tf
def test_the_task_of_a_corpus_reads_what_is_prepared(data, tmp_path):
  import seqio

  from fairjax.data.seqio_tasks import register_corpus_task, tokenized_documents
  prepared, _ = prepare(dataclasses.replace(data, cda='two'), tmp_path / 'data')
  task = register_corpus_task(prepared.corpus, prepared.vocabulary)
  try:
    assert seqio.get_mixture_or_task('fairjax_lines') is task
    for split in SPLITS:
      expected = [prepared.vocabulary.encode(t) for t in prepared.documents(split)]
      assert [ids.tolist() for ids in tokenized_documents(task, split)] == expected
      examples = task.get_dataset(None, split, shuffle=False).as_numpy_iterator()
      assert [e['targets'].tolist() for e in examples] == [[*ids, 1] for ids in expected]
    with pytest.raises(ValueError, match='in their order'):
      task.get_dataset(None, 'train', shuffle=True)
  finally:
    seqio.TaskRegistry.remove('fairjax_lines')


def run(*arguments):
  return main(['gender', 'cda', *map(str, arguments)])


def test_the_verb(tmp_path, capsys, refused):
  source, output = tmp_path / 'a.txt.gz', tmp_path / 'a.cda.txt.gz'
  source.write_bytes(gzip.compress(b'He ran. It rained.\n\nHer dog.\n'))
  assert run('--input', source) == 0
  assert gzip.decompress(output.read_bytes()).decode() == (
    'He ran. It rained.\nShe ran.\nHer dog.\nHis dog.\n')
  text = capsys.readouterr().out
  assert '4 lines from 2' in text and '2 of 3 sentences' in text and '1 blank lines' in text
  assert run('--input', source) == 2  # not overwritten
  first = output.read_bytes()
  output.unlink()
  assert run('--input', source, '--json') == 0 and output.read_bytes() == first
  summary = json.loads(capsys.readouterr().out)
  assert summary['words'] == {'he': 1, 'her': 1} and summary['lines_written'] == 4
  assert run('--input', source, '--output', tmp_path / 'b', '--sided', 'one', '--unit',
             'document') == 0
  assert (tmp_path / 'b').read_text() == 'She ran. It rained.\nHis dog.\n'
  (tmp_path / 'c.txt.bz2').write_bytes(bz2.compress(b'He ran.\n'))
  assert run('--input', tmp_path / 'c.txt.bz2') == 0  # read, and not written
  assert (tmp_path / 'c.cda.txt').read_text() == 'He ran.\nShe ran.\n'
  refused(['gender', 'cda', '--input=/dev/null'],
          '/dev/null is no file, after which the result could be named')


def test_the_verb_with_lists_and_names(tmp_path):
  (tmp_path / 'in').write_text('The wizard Ada met a man.\n')
  (tmp_path / 'pairs').write_text('wizard witch mage\n')
  (tmp_path / 'names').write_text('Ada,F,9\nBob,M,7\nRare,M,1\n')
  assert run('--input', tmp_path / 'in', '--pairs', tmp_path / 'pairs', '--names',
             tmp_path / 'names', '--name-gender', 'flip', '--least-count', 2) == 0
  assert (tmp_path / 'in.cda').read_text() == (
    'The wizard Ada met a man.\nThe witch Bob met a man.\n')
  assert run('--input', tmp_path / 'in', '--pairs', tmp_path / 'pairs', '--neutral', '--sided',
             'one', '--output', tmp_path / 'neutral') == 0
  assert (tmp_path / 'neutral').read_text() == 'The mage Ada met a man.\n'
  assert run('--input', tmp_path / 'in', '--pairs', 'none', '--names', tmp_path / 'names',
             '--letters', 'B-Z', '--output', tmp_path / 'none') == 0
  assert (tmp_path / 'none').read_text() == 'The wizard Ada met a man.\n'


STORIES = ['Iran won . It rained .', 'Zürich, 5 May: «Italy» lost .', 'One in Chile .',
           'He left Iraq .', 'The end in Iran .', 'Rain .']


def b64(text):
  content = text if isinstance(text, bytes) else text.encode()
  return base64.b64encode(content).decode()


def story(text, date='20190102'):
  sentences = text.replace(' . ', ' .\n')
  return f'{date}\t{b64(sentences)}\t{b64(text)}'


def write_lines(path, lines):
  content = ('\n'.join(lines) + '\n').encode()
  path.write_bytes(gzip.compress(content) if path.suffix == '.gz' else content)
  return path


read_crawl = functools.partial(read, layout='newscrawl')


@pytest.fixture
def crawl(tmp_path):
  return write_lines(tmp_path / 'news-docs.2019.en.filtered.gz', map(story, STORIES))


def test_both_columns(crawl):
  assert read_crawl(crawl) == (STORIES, {'files': 1, 'lines': 6, 'documents': 6})
  assert read_crawl(crawl, text_column=2)[0] == STORIES
  assert read_crawl(crawl, text_column=1)[0][0] == 'Iran won .\nIt rained .'


def test_decoded_text_is_normalised_and_counted(tmp_path):
  path = write_lines(tmp_path / 'a', [story('a\r\nb\0'), story(' \n'), '', story('c')])
  documents, counts = read_crawl(path)
  assert documents == ['a\nb', 'c']
  assert {k: counts[k] for k in ('carriage_returns', 'nul_characters', 'blank_documents',
                                 'blank_lines', 'documents')} == {
    'carriage_returns': 1, 'nul_characters': 1, 'blank_documents': 1, 'blank_lines': 1,
    'documents': 2}


@pytest.mark.parametrize(('line', 'message'), [
  ('20190101\tQUJD\tQUJ', 'column 2 is not base64 .Incorrect padding'),
  ('20190101\tQUJD\t' + b64(b'caf\xe9'), 'not UTF-8 .byte 4 of the decoded text is 0xe9'),
  ('20190101', r'1 column\(s\), so none has the number 2'),
  ('\xff', 'not UTF-8 .byte 1 of the line is 0xff.: convert'),
])
def test_a_broken_line_is_named_or_counted(tmp_path, line, message):
  path = tmp_path / 'crawl'
  path.write_bytes('\n'.join([story('One .'), line, story('Two .'), '']).encode('latin-1'))
  with pytest.raises(UserError, match=f'crawl:2: {message}.*, or .*data.broken=skip'):
    read_crawl(path, text_column=2, broken='error')
  with pytest.raises(UserError, match=message) as error:
    read_crawl(path, text_column=2)  # where no setting could skip it
  assert 'data.broken' not in str(error.value)
  assert read_crawl(path, text_column=2, broken='skip') == (
    ['One .', 'Two .'], {'files': 1, 'lines': 3, 'documents': 2, 'broken_lines': 1})
  path.write_bytes(line.encode('latin-1'))
  with pytest.raises(UserError, match='holds no document: all of its lines are blank or broken'):
    read_crawl(path, text_column=2, broken='skip')


def test_sentences_without_documents(tmp_path):
  path = write_lines(tmp_path / 'shuffled', ['One .', '', 'Two .', 'Three .'])
  layout = 'newscrawl_sentences'
  assert read_crawl(path, layout=layout)[0] == ['One .', 'Two .', 'Three .']
  documents, counts = read_crawl(path, layout=layout, lines_per_document=2)
  assert documents == ['One .\nTwo .', 'Three .']
  assert (counts['documents'], counts['lines'], counts['blank_lines']) == (2, 4, 1)


@pytest.mark.parametrize('number, valid, test', [(6, 1, 2), (5, 2, 2), (10_050, 1000, 9000)])
def test_the_end_is_held_out_valid_first(tmp_path, number, valid, test):
  corpus = [f'document {i}\nwith\u2028lines' for i in range(number)]
  made = make_holdout(iter(corpus), (valid, test), tmp_path / 'h', {})
  train = number - valid - test
  assert (made.train, made.valid, made.test) == (train, valid, test)
  assert list(made.texts('train', iter(corpus))) == corpus[:train]
  assert list(made.texts('valid', None)) == corpus[train:train + valid]
  assert list(made.texts('test', None)) == corpus[train + valid:]
  again = make_holdout(None, (valid, test), tmp_path / 'h', {})  # is not read again
  assert again == made


def test_the_holdout_needs_training_documents_and_whole_files(tmp_path):
  with pytest.raises(UserError, match='hold 3 documents, and data.holdout=.1, 2. leaves none'):
    make_holdout(iter('abc'), (1, 2), tmp_path, {})
  made = make_holdout(iter('abcd'), (1, 2), tmp_path, {})
  (tmp_path / 'test.jsonl').write_text('"x"\n"y"\n')
  with pytest.raises(UserError, match=r'test\.jsonl is missing or damaged'):
    list(made.texts('test', None))
  (tmp_path / 'holdout.json').write_text('{')
  with pytest.raises(UserError, match='holdout.json is damaged'):
    make_holdout(None, (1, 2), tmp_path, {})


def test_the_holdout_needs_memory_for_the_held_out_only(tmp_path):
  def texts():
    for i in range(20_000):
      yield f'{i} ' + 'x' * 2000  # 40 MB in all

  assert peak_of(lambda: make_holdout(texts(), (5, 45), tmp_path, {}))[1] < 1_000_000


def test_a_crawl_is_prepared_with_its_holdout(tmp_path, crawl):
  # One broken line before the end of the training documents, one among the held-out ones.
  second = write_lines(tmp_path / 'news-docs.2020.en.filtered',
                 ['broken', *map(story, STORIES), 'again=broken'])
  data = DataConfig(
    source='newscrawl', train=(str(crawl), str(second)), holdout=(2, 3), broken='skip',
    vocabulary='word', vocab_size=100, reader='numpy')
  validate(Config(data=data, measure=dataclasses.replace(Config().measure, scorers=('vader',)),
                  sentiment=dataclasses.replace(Config().sentiment, scorer='vader')))
  prepared, _ = prepare(data, tmp_path / 'out')
  everything = [*STORIES, *STORIES]
  assert list(prepared.documents('train')) == everything[:7]
  assert list(prepared.documents('valid')) == everything[7:9]
  assert list(prepared.documents('test')) == everything[9:]
  assert [prepared.store(s).documents for s in ('train', 'valid', 'test')] == [7, 2, 3]
  manifest = json.loads((tmp_path / 'out' / 'manifest.json').read_text())
  assert manifest['normalised']['all']['broken_lines'] == 2
  assert manifest['normalised']['all']['documents'] == 12
  assert manifest['inputs']['holdout'] == [2, 3] and list(manifest['inputs']['files']) == ['train']
  assert Corpus(data, COUNTRY, tmp_path / 'out').size('train') == 7
  with pytest.raises(UserError, match=r'made from other data \(holdout'):
    prepare(dataclasses.replace(data, holdout=(3, 3)), tmp_path / 'out')


@pytest.mark.parametrize('changes, message', [
  ({'holdout': (1,)}, 'data.holdout must be two positive numbers'),
  ({'holdout': (1, 3), 'valid': ('x',)}, 'name no files for them'),
  ({'source': 'planted', 'holdout': (1, 3)}, "data.holdout is for files"),
  ({'source': 'wikitext', 'broken': 'skip'}, 'data.broken=skip is for lines'),
  ({'sha256': 'abc'}, 'data.sha256 must be 64 hexadecimal digits'),
  ({'source': 'wikitext2', 'train': (), 'manual_dir': 'x', 'download': True}, 'exclude each other'),
  ({'source': 'wikitext2'}, 'reads data.manual_dir, not data.train'),
  ({'text_field': 'body'}, 'data.text_field is for'),
  ({'source': 'lines', 'text_column': 1}, 'data.text_column is for'),
  ({'lines_per_document': 2}, 'data.lines_per_document is for'),
  ({'source': 'csv', 'max_line_bytes': 5}, 'data.max_line_bytes is for'),
  ({'tfds_dir': 'x'}, 'data.tfds_dir is for data.source=wikitext103, wikitext2'),
  ({'cda': 'two', 'cda_name_letters': 'A-M'}, 'need data.cda_names'),
])
def test_wrong_configurations_are_named(changes, message):
  data = DataConfig(**{'source': 'newscrawl', 'train': ('a',)} | changes)
  with pytest.raises(UserError, match=message):
    validate(Config(data=data))
