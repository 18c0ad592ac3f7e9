"""From documents to stores: resumable, checked, and with the right numbers."""

import dataclasses
import functools
import os
import shutil

import pytest
from split_files import COUNTRY, line_data, peak_of, prepare
from tiny_runs import contents

from fairjax.config import Config, DataConfig
from fairjax.counterfactual import TextMatcher, load_attribute
from fairjax.data import corpus, token_store
from fairjax.data import prepare as prepare_module
from fairjax.data.corpus import SPLITS
from fairjax.data.data_check import check_prepared
from fairjax.data.prepare import open_prepared, prepare_data
from fairjax.errors import UserError
from fairjax.files import file_sha256
from fairjax.vocabulary import build_word_vocabulary

PLANTED = DataConfig(planted_documents=300, planted_heldout_documents=40, vocab_size=700,
                     reader='numpy')


def files(tmp_path, texts=None, **fields):
  """A data config over files that are written here."""
  texts = texts or {
    'train': [f'I am from {c} , she said .' for c in ('Iran', 'Chile', 'Italy')] * 4 + ['None .'],
    'valid': ['Iran won .', 'He sang .'], 'test': ['She sang .']}
  return line_data(tmp_path, texts, **{'vocabulary': 'word', 'vocab_size': 100} | fields)


@pytest.fixture(scope='module')
def planted(tmp_path_factory):
  directory = tmp_path_factory.mktemp('planted')
  return prepare(PLANTED, directory / 'data')


def test_planted_stores_hold_the_planted_documents(planted):
  prepared, lines = planted
  vocabulary = prepared.vocabulary
  matcher = TextMatcher(COUNTRY)
  for split in SPLITS:
    texts = list(prepared.documents(split))
    store = prepared.store(split)
    assert store.documents == len(texts) == (300 if split == 'train' else 40)
    assert store.words == sum(len(t.split()) for t in texts)
    assert store.num_bytes == sum(len(t) for t in texts)
    text = vocabulary.decode([i if i != 1 else vocabulary.unk_id for i in store.open_tokens()[:]])
    decoded = [t.strip() for t in text.split('\u2047')][:-1]
    order = store.open_documents()[:, 3]
    assert decoded == [texts[i] for i in order]
    assert (order.tolist() == list(range(len(texts)))) == (split != 'train')
    sensitive = prepared.store(f'{split}_sensitive')
    wanted = [t for t in texts if matcher.find(t)]
    assert sensitive.documents == len(wanted) > 15
    assert list(prepared.documents(f'{split}_sensitive')) == wanted
    assert sensitive.matches == store.matches == sum(len(matcher.find(t)) for t in texts)
  assert len({t for s in SPLITS for t in prepared.documents(s)}) > 375  # the splits differ
  assert any('train: 300 documents' in line for line in lines)


def test_sensitive_documents_are_those_of_the_store(tmp_path):
  # As words, "Iran.com" and "Chile.org" hold their value inside a token, where no branch can be.
  texts = {'train': ['In Iran.com .', "From Chile, he said: Chile's.", 'None .', 'To 1Chile, so.',
                     'In Italy and Chile.org then .'],
           'valid': ['Iran.net won .'], 'test': ['(Chile) won .']}
  prepared, _ = prepare(files(tmp_path, texts), tmp_path / 'data')
  assert prepared.store('train').unaligned == 2
  for split, wanted in (('train', [texts['train'][1], texts['train'][4]]), ('valid', []),
                        ('test', texts['test'])):
    assert prepared.store(f'{split}_sensitive').documents == len(wanted)
    assert list(prepared.documents(f'{split}_sensitive')) == wanted


def test_every_word_of_the_planted_corpus_is_one_piece(planted):
  prepared, _ = planted
  store = prepared.store('train')
  words = [w for t in prepared.documents('train')
           for w in t.replace('.', ' .').replace(',', ' ,').split()]
  assert (store.tokens - store.documents) / len(words) < 1.03
  assert all(len(prepared.vocabulary.encode(v)) == 1 for v in COUNTRY.value_texts)


def test_a_finished_folder_is_only_read(planted):
  prepared, _ = planted
  before = contents(prepared.directory, times=True)
  again, lines = prepare(PLANTED, prepared.directory)
  assert contents(prepared.directory, times=True) == before and lines == []
  assert (again.fingerprint, again.manifest) == (prepared.fingerprint, prepared.manifest)


def test_what_a_kill_after_the_manifest_leaves_is_removed(tmp_path, monkeypatch):
  class Killed(BaseException):
    pass

  def kill(path, **options):
    if path.name == 'progress':
      raise Killed
    real(path, **options)

  data, real = files(tmp_path), shutil.rmtree
  with monkeypatch.context() as patch, pytest.raises(Killed):
    patch.setattr(shutil, 'rmtree', kill)
    prepare(data, tmp_path / 'out')
  assert (tmp_path / 'out' / 'progress').is_dir() and (tmp_path / 'out' / '.lock').exists()
  again, _ = prepare(data, tmp_path / 'out')
  whole, _ = prepare(data, tmp_path / 'whole')
  assert again.fingerprint == whole.fingerprint
  assert sorted(p.name for p in (tmp_path / 'out').iterdir()) == sorted(
    p.name for p in (tmp_path / 'whole').iterdir())


def test_what_a_kill_leaves_beside_the_vocabulary_is_no_part_of_the_data(tmp_path):
  data = files(tmp_path)
  prepare(data, tmp_path / 'whole')
  left = tmp_path / 'killed' / 'vocabulary' / '.vocabulary.json.x1'
  left.parent.mkdir(parents=True)
  left.write_text('half')
  prepare(data, tmp_path / 'killed')
  whole, killed = ((tmp_path / name / 'manifest.json').read_bytes() for name in ('whole', 'killed'))
  assert killed == whole and left.exists()


@pytest.mark.parametrize('changes, message', [
  ({'planted_strength': 0.5}, r'planted.strength: 0.8 -> 0.5'),
  ({'seed': 1}, r'order_seed: 0 -> 1'),
])
def test_other_inputs_are_refused(planted, changes, message, tmp_path):
  with pytest.raises(UserError, match=f'made from other data .*{message}.*use another folder'):
    prepare(dataclasses.replace(PLANTED, **changes), planted[0].directory)
  with pytest.raises(UserError, match='attribute.name: country -> name'):
    prepare(PLANTED, planted[0].directory, attribute=load_attribute('name'))
  with pytest.raises(UserError, match='planted.documents: 300 -> .missing.'):
    prepare(files(tmp_path), planted[0].directory)


def test_a_changed_file_is_refused_but_a_moved_one_is_not(tmp_path):
  data = files(tmp_path)
  first, _ = prepare(data, tmp_path / 'out')
  moved = tmp_path / 'moved.txt'
  (tmp_path / 'valid.txt').rename(moved)
  again, lines = prepare(dataclasses.replace(data, valid=(str(moved),)), tmp_path / 'out')
  assert again.fingerprint == first.fingerprint and lines == []
  (tmp_path / 'train.txt').write_text('Iran .\n')
  with pytest.raises(UserError, match=r'train: .*train\.txt has changed'):
    prepare(dataclasses.replace(data, valid=(str(moved),)), tmp_path / 'out')


def test_a_moved_or_touched_file_is_hashed_once(tmp_path, monkeypatch):
  data, hashed = files(tmp_path), []
  prepare(data, tmp_path / 'out')
  (tmp_path / 'valid.txt').rename(tmp_path / 'moved.txt')
  moved = dataclasses.replace(data, valid=(str(tmp_path / 'moved.txt'),))
  os.utime(tmp_path / 'train.txt', (1, 1))
  monkeypatch.setattr(corpus, 'file_sha256', lambda path: hashed.append(path) or file_sha256(path))
  with monkeypatch.context() as patch:  # a folder that cannot be written
    patch.setattr(prepare_module, 'write_sealed_json', lambda path, value: open('/none/x', 'w'))
    prepare(moved, tmp_path / 'out')
  assert len(hashed) == 2
  for _ in range(2):
    prepare(moved, tmp_path / 'out')
  assert hashed == 2 * [str(tmp_path / f'{name}.txt') for name in ('train', 'moved')]
  assert not any('not at their place' in note for note in check_prepared(tmp_path / 'out').notes)


@pytest.mark.parametrize('split', ['train', 'valid'])
def test_a_file_that_stopped_a_preparation_may_be_mended(tmp_path, split):
  data, path, train = files(tmp_path), tmp_path / f'{split}.txt', tmp_path / 'out' / 'train'
  text = path.read_bytes()
  path.write_bytes(text + b'\xff\n')
  with pytest.raises(UserError, match='not UTF-8'):
    prepare(data, tmp_path / 'out')
  made = contents(train, times=True)
  path.write_bytes(text)
  mended, _ = prepare(data, tmp_path / 'out')
  assert (contents(train, times=True) == made) == (split == 'valid')  # which was whole by then
  assert mended.manifest['splits'] == prepare(data, tmp_path / 'whole')[0].manifest['splits']
  path.write_bytes(text + text)
  with pytest.raises(UserError, match=rf'{split}: .*{split}\.txt has changed'):
    prepare(data, tmp_path / 'out')


def test_without_the_file_of_inputs_the_manifest_says_what_was_read(tmp_path):
  data, out = files(tmp_path), tmp_path / 'out'
  prepare(data, out)
  (out / 'inputs.json').unlink()
  shutil.rmtree(out / 'valid')  # which would be made anew
  text = (tmp_path / 'train.txt').read_text()
  (tmp_path / 'train.txt').write_text(text.replace('Iran', 'Iraq'))
  with pytest.raises(UserError, match=r'train\.txt has changed'):
    prepare(data, out)
  (tmp_path / 'train.txt').write_text(text)
  prepare(data, out)
  assert (out / 'inputs.json').is_file()
  for name in ('inputs.json', 'manifest.json'):
    (out / name).unlink()
  with pytest.raises(UserError, match='inputs.json is missing, so nothing says'):
    prepare(data, out)


def test_prepared_data_find_their_attribute_from_anywhere(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'land.yaml').write_text(
    'name: land\ntemplates: ["{value} is"]\nvalues: [Iran, Chile]')
  prepare_data(Config(data=files(tmp_path), attribute='land.yaml'), 'out',
               attribute=load_attribute('land.yaml'), log=print)
  (tmp_path / 'country').write_text('no attribute')  # a file of the name of a built-in one
  prepare(files(tmp_path), 'built-in')
  monkeypatch.chdir('/')
  assert open_prepared(tmp_path / 'out').attribute.name == 'land'
  assert open_prepared(tmp_path / 'built-in').attribute == COUNTRY


def test_unknown_words_are_counted(tmp_path):
  texts = {'train': ['Iran is here .'] * 3 + ['Iran was there .'], 'valid': ['Iran fell .'],
           'test': ['Iran .']}
  prepared, lines = prepare(files(tmp_path, texts, vocab_size=6), tmp_path / 'out')
  unknown = {split: (prepared.store(split).open_tokens()[:] == 2).sum() for split in SPLITS}
  assert prepared.manifest['unknown_words'] == unknown and unknown['valid'] == 1
  assert any('valid: 1 of the tokens stand for unknown words (25.0%)' in line for line in lines)


@pytest.mark.parametrize(('sign', 'warned'), [(',', True), (' ,', False)])
def test_text_that_is_not_written_as_wikitext_is_warned_of(tmp_path, sign, warned):
  texts = {split: ['', ' = Iran = ', '', f' In Iran{sign} they said . '] for split in SPLITS}
  _, lines = prepare(files(tmp_path, texts, source='wikitext'), tmp_path / 'out')
  assert any('WARNING: WikiText is cut' in line for line in lines) == warned


def test_a_table_without_the_column_of_texts_names_the_option(tmp_path):
  texts = {'train': ['id,Text', '1,Iran'], 'valid': ['text', 'b'], 'test': ['text', 'b']}
  with pytest.raises(UserError, match='data.text_field=NAME takes another column'):
    prepare(files(tmp_path, texts, source='csv'), tmp_path / 'out')
  parquet = pytest.importorskip('pyarrow.parquet')
  parquet.write_table(pytest.importorskip('pyarrow').table({'Text': ['Iran']}),
                      tmp_path / 'train.txt')
  with pytest.raises(UserError, match=r"unknown column 'text' in .*\(data.text_field\)"):
    prepare(DataConfig(source='parquet', train=(str(tmp_path / 'train.txt'),), reader='numpy',
                       valid=(str(tmp_path / 'train.txt'),), test=(str(tmp_path / 'train.txt'),)),
            tmp_path / 'other')


def test_a_corpus_without_sensitive_tokens_is_refused(tmp_path):
  texts = {'train': ['Nothing here .', 'Iranian food .'], 'valid': ['a'], 'test': ['b']}
  with pytest.raises(UserError, match="no sensitive token of attribute 'country' .Syria, Iran,"):
    prepare(files(tmp_path, texts), tmp_path / 'out')


def test_values_in_unknown_words_are_counted_too(tmp_path):
  often = ['Iran won .'] * 3
  texts = {'train': [*often, 'I like Iran.com yes', 'To Chile.com Italy.com', 'Iran and Iran.org'],
           'valid': ['Iran.com Syria'], 'test': ['Iran']}
  data = dataclasses.replace(files(tmp_path, texts), vocab_size=7)  # Iran won . and one more
  prepared, lines = prepare(data, tmp_path / 'out')
  for split, found in (('train', (4, 4)), ('valid', (0, 2)), ('test', (1, 0))):
    store = prepared.store(split)
    assert (store.matches, store.unaligned) == found
    assert sum(found) == sum(len(TextMatcher(COUNTRY).find(t)) for t in texts[split])
  assert any('valid: 2 sensitive tokens are inside other tokens or unknown words' in x
             for x in lines)
  data = files(tmp_path, texts | {'train': ['a a Chile.com']}, vocab_size=4)
  with pytest.raises(UserError, match=f'1 are inside other .*: delete {tmp_path}/none and use'):
    prepare(data, tmp_path / 'none')
  lines = []  # of language models alone
  prepare_data(Config(data=data, until='lm'), tmp_path / 'lm', attribute=COUNTRY, log=lines.append)
  assert any(line.startswith('[data] WARNING: step 3 will lack text: ') for line in lines)


def test_a_value_is_kept_and_found_as_the_text_writes_it(tmp_path):
  path = tmp_path / 'a.yaml'
  path.write_text('name: a\nvalues: ["Côte d\'Ivoire", Mali]\ntemplates: ["{value} is"]\n')
  texts = {'train': ['a a a b b c c', 'Mali , Côte d\u2019Ivoire'], 'valid': ['a'], 'test': ['b']}
  data = dataclasses.replace(files(tmp_path, texts), vocab_size=10)
  prepared, _ = prepare(data, tmp_path / 'out', attribute=load_attribute(path))
  store = prepared.store('train')
  assert store.value_counts == (1, 1) and not store.unaligned


def test_a_vocabulary_of_ones_own(tmp_path):
  data = files(tmp_path)
  own = build_word_vocabulary(['Iran Italy Chile , .'], size=50, directory=tmp_path / 'own')
  by_path, _ = prepare(dataclasses.replace(data, vocabulary=str(tmp_path / 'own')), tmp_path / 'a')
  by_value, _ = prepare(data, tmp_path / 'b', vocabulary=own)
  assert by_path.vocabulary == by_value.vocabulary == own
  assert by_path.fingerprint == by_value.fingerprint
  with pytest.raises(UserError, match='vocabulary.given'):
    prepare(data, tmp_path / 'b')


def test_damaged_manifests_are_refused(tmp_path):
  data = files(tmp_path)
  prepare(data, tmp_path / 'out')
  manifest = tmp_path / 'out' / 'manifest.json'
  content = manifest.read_text()
  changed = content.replace('"words": 3\n', '"words": 4\n')
  for other in ('{', changed):  # a number that changed makes no other sign
    assert other != content
    manifest.write_text(other)
    with pytest.raises(UserError, match=r'manifest\.json is damaged'):
      prepare(data, tmp_path / 'out')


def test_a_store_of_other_data_in_its_place_is_refused(tmp_path):
  data = files(tmp_path)
  prepare(data, tmp_path / 'out')
  prepare(dataclasses.replace(data, seed=5), tmp_path / 'other')
  shutil.rmtree(tmp_path / 'out' / 'train')
  shutil.copytree(tmp_path / 'other' / 'train', tmp_path / 'out' / 'train')
  with pytest.raises(UserError, match=r'out/train is not the store that .*manifest\.json names'):
    prepare(data, tmp_path / 'out')


def test_a_store_that_was_deleted_is_made_again(tmp_path):
  data = files(tmp_path)
  first, _ = prepare(data, tmp_path / 'out')
  (tmp_path / 'out' / 'valid' / 'manifest.json').unlink()
  shutil.rmtree(tmp_path / 'out' / 'train_sensitive')
  kept = (tmp_path / 'out' / 'train' / 'tokens.bin').stat().st_ino
  again, lines = prepare(data, tmp_path / 'out')
  assert (again.fingerprint, again.manifest) == (first.fingerprint, first.manifest)
  assert lines and (tmp_path / 'out' / 'train' / 'tokens.bin').stat().st_ino == kept


def test_repeated_documents_are_kept_counted_and_said(tmp_path):
  texts = {'train': ['Iran won .', 'She sang .', 'Iran won .', 'Iran  won .', 'None .'],
           'valid': ['She sang .', 'He sang .', 'He sang .'], 'test': ['Iran won .']}
  prepared, lines = prepare(files(tmp_path, texts), tmp_path / 'out')
  assert prepared.store('train').documents == 5
  assert [prepared.store(s).repeated for s in SPLITS] == [2, 1, 0]  # words: spaces do not count
  assert prepared.manifest['documents_in_train'] == {'valid': 1, 'test': 1}
  assert '[data] train: 2 documents repeat an earlier one (as tokens); they are kept' in lines
  assert ('[data] valid: 1 documents repeat an earlier one, 1 are in train too (as tokens); they '
          'are kept') in lines


def test_ten_times_the_text_takes_no_more_memory(tmp_path, monkeypatch):
  # What is held at a time, as small beside these texts as it is beside a corpus.
  monkeypatch.setattr(token_store, 'CHUNK_BYTES', 1 << 18)
  line, peaks = ' '.join(['internationalisation' * 40] * 20), []
  for number in (50, 500):
    texts = {'train': ['From Iran .', *[line] * (number - 1)], 'valid': ['a'], 'test': ['a']}
    data = files(tmp_path, texts)
    (prepared, _), peak = peak_of(functools.partial(prepare, data, tmp_path / f'{number}'))
    peaks.append(peak)
    assert prepared.store('train').documents == number
  assert peaks[1] < peaks[0] + 2_000_000  # of 7 MB more text
