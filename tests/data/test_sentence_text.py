"""Text of masked models on the disk: streams, held-out documents, CDA, stores, resumption."""

import json

import numpy as np
import pytest
from masked_cases import encoded
from tiny_runs import contents

from fairjax.counterfactual.cda import GenderSwap
from fairjax.counterfactual.gendered_words import read_word_pairs
from fairjax.data import prepare as prepare_module
from fairjax.data import sentence_text, token_store
from fairjax.data.documents import split_sentences
from fairjax.data.prepare import open_prepared, open_sentences, prepare_sentences
from fairjax.data.sentence_text import Augmentation, SentenceCorpus
from fairjax.errors import UserError
from fairjax.pretrained.start import new_tokenizer
from fairjax.vocabulary import PieceEncoder, load_encoder, load_vocabulary

GENDERED = ['He sings. It rains.', 'It snows.', 'The queen met her brother.']


@pytest.fixture
def corpus(tmp_path):
  """Makes a corpus of documents."""
  def make(documents, valid=('He left.',), sided=None, **fields):
    (tmp_path / 'train.txt').write_text('\n'.join(documents), encoding='utf-8')
    if valid is not None:
      (tmp_path / 'valid.txt').write_text('\n'.join(valid), encoding='utf-8')
      fields['valid'] = (str(tmp_path / 'valid.txt'),)
    if sided:
      fields['augmentation'] = Augmentation(GenderSwap(read_word_pairs()), sided)
    return SentenceCorpus((str(tmp_path / 'train.txt'),), **fields)

  return make


def read(corpus, split, told=None):
  return [text.split('\n') for text in corpus.texts(split, corpus.survey(), told)]


@pytest.fixture(scope='module')
def tokenizer():
  return new_tokenizer([*GENDERED, *(f'document number {i}.' for i in range(10))] * 3,
                       vocab_size=90, max_length=16)[0]


def test_two_sided_cda_keeps_all_and_adds_behind_them_one_sided_only_the_others(corpus):
  plain = corpus(GENDERED)
  assert read(plain, 'train') == [
    ['He sings.', 'It rains.'], ['It snows.'], ['The queen met her brother.']]
  counterfactual = [['She sings.'], ['The king met his sister.']]
  for sided, wanted in (('one', counterfactual), ('two', read(plain, 'train') + counterfactual)):
    told = {}
    augmented = corpus(GENDERED, sided=sided)
    # Never beside their originals: a packed row that held both would give the masks away.
    assert read(augmented, 'train', told) == wanted
    assert read(augmented, 'valid') == [['He left.']]
    assert told['dropped'] == (2 if sided == 'one' else 0)
    assert told['changed'] == 2 and told['swaps'] == 4 and told['counterfactual_documents'] == 2
  with pytest.raises(UserError, match='no gendered word'):
    read(corpus(['It rains.'] * 3, sided='one'), 'train')


def test_documents_are_held_out_once_and_by_seed(corpus):
  documents = [f'Document {i}.' for i in range(200)]
  one, two = (corpus(documents, None, seed=s) for s in (0, 1))
  assert one.survey()[:2] == (196, 4)
  valid = read(one, 'valid')
  assert len(valid) == 4 and sorted(read(one, 'train') + valid) == sorted([d] for d in documents)
  assert valid != read(two, 'valid')
  # The choice of every version so far, on which figures depend.
  held = np.random.default_rng([0, 0x401D]).permutation(200)[:4]
  assert valid == [[documents[i]] for i in sorted(held)]
  with pytest.raises(UserError, match='--valid'):
    corpus(documents[:1], None).survey()


def test_headings_and_documents_without_a_sentence_are_counted(corpus):
  lines = [' = One = ', '', ' He sings . It rains . ', '', ' = = Part = = ', ' It snows . ', '',
           ' = Two = ', '', '']
  found = corpus(lines, layout='wikitext', valid=[' = Three = ', '', 'He left .', ''])
  survey = found.survey()
  assert survey.train == 2 and survey.valid == 1
  assert survey.read['documents'] == 3 and survey.read['headings_left_out'] == 4
  assert read(found, 'train') == [['He sings .', 'It rains .', 'It snows .'], ['']]


def prepare(corpus, folder, pieces, **changes):
  given = PieceEncoder.of(pieces)
  options = {'tokenizer': {'given': given.fingerprint}, 'make_encoder': lambda texts: given,
             'log': lambda line: None} | changes
  return prepare_sentences(corpus, folder, **options)


def test_stores_hold_every_sentence_whatever_the_chunks(corpus, tmp_path, tokenizer, monkeypatch):
  documents = [f'He is document number {i}. It rains {i % 7} times.' for i in range(60)]
  found = corpus(documents, None, sided='two')
  monkeypatch.setattr(token_store, 'CHUNK_DOCUMENTS', 7)
  prepared = prepare(found, tmp_path / 'data', tokenizer)
  for split in ('train', 'valid'):
    tokens, ends, encoder = encoded(read(found, split), tokenizer)
    store = prepared.stores[split]
    np.testing.assert_array_equal(store.open_tokens()[:], tokens)
    np.testing.assert_array_equal(store.open_documents()[:, 0], ends)
    assert encoder == prepared.encoder
  assert prepared.stores['train'].documents == 59 + 59 and prepared.cda['changed'] == 59
  assert not (tmp_path / 'data' / 'progress').exists()
  # Ids of the store are the tokenizer's, and say where sentences end and words begin.
  first = prepared.stores['valid'].open_tokens()[:].tolist()
  sentence = split_sentences(read(found, 'valid')[0][0])[0]
  pieces = tokenizer.encode(sentence, add_special_tokens=False)
  assert [i % encoder.pieces for i in first[:len(pieces)]] == pieces.ids
  assert first[len(pieces)] == encoder.border_id


def test_a_second_start_reads_no_text_and_another_text_is_named(corpus, tmp_path, tokenizer,
                                                                monkeypatch):
  folder, found = tmp_path / 'data', corpus(GENDERED, sided='two')
  first = prepare(found, folder, tokenizer)
  before = contents(folder, times=True)
  with monkeypatch.context() as patch:
    patch.setattr(sentence_text, 'read_documents', None)
    again = prepare(found, folder, tokenizer)
  assert again.survey == first.survey and again.cda == first.cda
  assert again.stores == first.stores and contents(folder, times=True) == before
  for change, words in (
      ({'corpus': corpus(GENDERED)}, 'cda'),
      ({'corpus': corpus(GENDERED, None, sided='two')}, 'holdout'),
      ({'corpus': corpus(GENDERED, sided='two', layout='newscrawl_sentences')}, 'layout'),
      ({'tokenizer': {'given': 'x'}}, 'tokenizer.given')):
    with pytest.raises(UserError, match=f'was made from other data .*{words}'):
      prepare(change.pop('corpus', found), folder, tokenizer, **change)
  with pytest.raises(UserError, match=r'train: .*train\.txt has changed'):
    prepare(corpus([*GENDERED, 'He came.'], sided='two'), folder, tokenizer)
  assert contents(folder, times=True) == before


def test_what_reads_other_data_names_what_this_is(corpus, tmp_path, tokenizer, refused):
  prepare(corpus(GENDERED), tmp_path / 'data', tokenizer)
  said = 'data holds the text of a masked language model: fairjax models masked-lm'
  with pytest.raises(UserError, match=said):
    open_prepared(tmp_path / 'data')
  verb = ['step', 'check-data', f'--workdir={tmp_path}']
  refused(verb, said)
  (tmp_path / 'config.json').write_text('{"model_type": "bert"}')  # of the finished model
  refused(verb, said)


def test_an_interrupted_preparation_goes_on_at_the_next_chunk(corpus, tmp_path, tokenizer,
                                                              monkeypatch):
  found = corpus([f'He is document number {i}.' for i in range(40)], sided='two')
  monkeypatch.setattr(token_store, 'CHUNK_DOCUMENTS', 8)
  whole = prepare(found, tmp_path / 'whole', tokenizer)
  real, made = token_store.write_chunk, []

  def stopping(folder, index, *rest):
    if len(made) == stop_at:
      raise KeyboardInterrupt
    made.append(index)
    return real(folder, index, *rest)

  monkeypatch.setattr(token_store, 'write_chunk', stopping)
  stop_at = 3
  with pytest.raises(KeyboardInterrupt):
    prepare(found, tmp_path / 'cut', tokenizer)
  with pytest.raises(UserError, match='is not complete'):
    open_sentences(tmp_path / 'cut')
  stop_at = None
  # Killed once more, between the store of train and that of valid.
  write = prepare_module.write_token_store
  monkeypatch.setattr(prepare_module, 'write_token_store', lambda path, *a, **k: (
    write(path, *a, **k) if path.name == 'train' else 1 / 0))
  with pytest.raises(ZeroDivisionError):
    prepare(found, tmp_path / 'cut', tokenizer)
  monkeypatch.setattr(prepare_module, 'write_token_store', write)
  result = prepare(found, tmp_path / 'cut', tokenizer)
  assert made == [0, 1, 2, *range(3, 10), 0]  # none twice; the last is of valid
  assert result.cda == whole.cda and result.survey == whole.survey
  for split, store in whole.stores.items():
    assert result.stores[split].sha256 == store.sha256


def test_the_folder_of_a_tokenizer(tmp_path, tokenizer):
  encoder = PieceEncoder.of(tokenizer)
  encoder.save(tmp_path)
  assert load_encoder(tmp_path) == encoder
  assert encoder.vocabulary() == tokenizer.get_vocab()
  assert list(encoder.vocabulary().values()) == list(range(encoder.pieces))
  with pytest.raises(UserError, match="vocabulary kind 'pieces'"):
    load_vocabulary(tmp_path)
  (tmp_path / 'tokenizer.json').write_text(json.dumps({'model': 1}))
  with pytest.raises(UserError, match='has fingerprint'):
    load_encoder(tmp_path)
