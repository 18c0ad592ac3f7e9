"""Counterfactual documents in prepared data, in seqio tasks and by the verb `cda`."""

import dataclasses
import functools
import gzip
import json
import pathlib
import re

import pytest

from fairjax.cli.main import main
from fairjax.config import Config, DataConfig
from fairjax.counterfactual import (
  GenderSwap,
  NameLists,
  TextMatcher,
  augment,
  augment_document,
  load_attribute,
  read_word_pairs,
)
from fairjax.data.corpus import SPLITS, Corpus
from fairjax.data.documents import split_sentences
from fairjax.data.prepare import open_prepared, prepare_data
from fairjax.errors import UserError

COUNTRY = load_attribute('country')
SWAP = GenderSwap(read_word_pairs())
TEXTS = {
  'train': ['She came from Iran. It rained. Her dog ran.', 'In Chile it rained.',
            'The king of Italy saw him.'],
  'valid': ['He came from Iran.'], 'test': ['She sang in Chile.']}


@pytest.fixture
def data(tmp_path):
  paths = {}
  for split, texts in TEXTS.items():
    (tmp_path / f'{split}.txt').write_text('\n'.join(texts) + '\n', encoding='utf-8')
    paths[split] = (str(tmp_path / f'{split}.txt'),)
  return DataConfig(source='lines', vocabulary='word', vocab_size=100, reader='numpy', **paths)


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


def test_prepared_data_are_others_and_say_so(data, tmp_path):
  lines, found = [], {}
  for sided in ('', 'one', 'two'):
    config = Config(data=dataclasses.replace(data, cda=sided))
    found[sided] = prepare_data(config, tmp_path / f'data{sided}', attribute=COUNTRY,
                                log=lines.append)
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
    config = Config(data=dataclasses.replace(data, **{'cda': 'two'} | change))
    with pytest.raises(UserError, match='made from other data .*cda'):
      prepare_data(config, tmp_path / 'datatwo', attribute=COUNTRY, log=lines.append)


def test_the_fingerprint_of_a_stage_knows_cda():
  from fairjax.train.curriculum import Curriculum
  def fingerprint(**fields):
    curriculum = object.__new__(Curriculum)
    object.__setattr__(curriculum, 'config', Config(data=DataConfig(**fields)))
    return curriculum._config_fingerprint('lm')
  assert len({fingerprint(), fingerprint(cda='one'), fingerprint(cda='two'),
              fingerprint(cda='two', cda_unit='document')}) == 4
  assert fingerprint(cda_name_letters='A-M') == fingerprint()  # without cda it changes nothing


@pytest.mark.tf
@pytest.mark.parametrize('sided', ['one', 'two'])
def test_preprocessors_in_a_seqio_task(data, tmp_path, sided):
  import seqio

  from fairjax.data.seqio_tasks import augment_documents, augment_sentences
  texts = TEXTS['train']
  cases = {
    'documents': (functools.partial(augment_documents, swap=SWAP, sided=sided), [
      d for t in texts for d in augment_document(
        t, SWAP, sided, unit='sentence', split=split_sentences)]),
    'whole': (functools.partial(augment_documents, swap=SWAP, sided=sided, unit='document'), [
      d for t in texts for d in augment_document(
        t, SWAP, sided, unit='document', split=split_sentences)]),
    'sentences': (functools.partial(augment_sentences, swap=SWAP, sided=sided), [
      s for t in texts for s in augment(split_sentences(t), SWAP, sided)])}
  feature = seqio.Feature(seqio.PassThroughVocabulary(1), dtype='string', rank=0, add_eos=False)
  for name, (preprocessor, expected) in cases.items():
    task = seqio.Task(
      f'cda_{name}', source=seqio.TextLineDataSource({'train': data.train[0]}),
      output_features={'targets': feature}, preprocessors=[
        lambda lines: lines.map(lambda line: {'targets': line}), preprocessor])
    found = [e['targets'].decode() for e in task.get_dataset(
      None, 'train', shuffle=False).as_numpy_iterator()]
    assert found == expected and found != texts


@pytest.mark.tf
def test_the_task_of_a_corpus_reads_what_is_prepared(data, tmp_path):
  from fairjax.data.seqio_tasks import register_corpus_task, tokenized_documents
  prepared = prepare_data(Config(data=dataclasses.replace(data, cda='two')), tmp_path / 'data',
                          attribute=COUNTRY, log=lambda line: None)
  task = register_corpus_task(prepared.corpus, prepared.vocabulary)
  for split in SPLITS:
    found = [ids.tolist() for ids in tokenized_documents(task, split)]
    assert found == [prepared.vocabulary.encode(t) for t in prepared.documents(split)]


@pytest.mark.tf
def test_other_features_are_repeated():
  import tensorflow as tf

  from fairjax.data.seqio_tasks import augment_sentences
  dataset = tf.data.Dataset.from_tensor_slices(
    {'text': ['He sang. It rained.', 'It rained.'], 'id': [7, 8]})
  found = list(augment_sentences(dataset, swap=SWAP, key='text').as_numpy_iterator())
  assert [(e['text'].decode(), int(e['id'])) for e in found] == [
    ('He sang.', 7), ('She sang.', 7), ('It rained.', 7), ('It rained.', 8)]


def test_names_do_not_depend_on_shards():
  """Every line alone gives what it gives in the whole file."""
  swap = GenderSwap(None, NameLists(('Ada', 'Eve', 'Zoe'), ('Bob', 'Tom'), counts={}), seed=4)
  lines = [f'Ada saw Bob {i} times.' for i in range(30)]
  whole = list(augment(lines, swap, 'one'))
  assert [next(augment([line], swap, 'one')) for line in reversed(lines)] == whole[::-1]
  assert len(set(re.findall('[A-Z][a-z]+', ' '.join(whole)))) == 5


def run(*arguments):
  return main(['cda', *map(str, arguments)])


def test_the_verb(tmp_path, capsys):
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


def test_the_verb_with_lists_and_names(tmp_path, capsys):
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


def test_an_interrupted_file_leaves_nothing(tmp_path, monkeypatch):
  from fairjax.data import corpus as cda_file
  (tmp_path / 'in').write_text('He ran.\nShe ran.\n')
  def interrupted(*args, **kwargs):
    raise KeyboardInterrupt
  monkeypatch.setattr(cda_file, 'augment_document', interrupted)
  assert run('--input', tmp_path / 'in', '--output', tmp_path / 'out') == 42
  assert [p.name for p in tmp_path.iterdir()] == ['in']
