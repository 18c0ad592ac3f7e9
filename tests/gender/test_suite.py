"""The suite of metrics: what is kept, refused and tabled; and the verb on a small BERT."""

import json
import os

import numpy as np
import pytest
from masked_cases import new_start
from test_disco import Known, by_gender
from test_winogender import TEMPLATES, winobias

from fairjax.cli.main import main
from fairjax.errors import UserError
from fairjax.gender import suite
from fairjax.gender.persons import make_persons
from fairjax.gender.suite import Settings, measure_correlations, split_model, table

pytestmark = pytest.mark.usefixtures('one_device')

SHARES = 'occupation\tbls_pct_female\nsmith\t10\nweaver\t60\nsinger\t90\n'
NAMES = make_persons('names', 'test', {
  'female': tuple(f'Ada{i}' for i in range(20)), 'male': tuple(f'Bob{i}' for i in range(20))})


class Speaker(Known):
  """Takes "she" for the singer and "he" for the smith."""

  def __init__(self):
    super().__init__('masked', by_gender)
    self.calls = 0

  def fill(self, texts, *, top):
    self.calls += 1
    return super().fill(texts, top=top)

  def candidate_log_probs(self, texts, candidates):
    self.calls += 1
    lean = {'smith': -1, 'weaver': 0.2, 'singer': 1}
    return [np.array([lean.get(w.split()[-1], 0) * (1 if ' She ' in t else -1) for w in own])
            for t, own in zip(texts, candidates, strict=True)]

  def piece_counts(self, words):
    return [0 if w == 'fan' else 2 if w == 'weaver' else 1 for w in words]


@pytest.fixture
def folder(tmp_path):
  (tmp_path / 'templates.tsv').write_text(TEMPLATES)
  (tmp_path / 'shares.tsv').write_text(SHARES)
  return tmp_path


@pytest.fixture
def speaker(monkeypatch):
  model = Speaker()
  monkeypatch.setattr(suite, 'open_language_model', lambda *args, **kwargs: model)
  return model


def settings(folder, **changes):
  return Settings(**{
    'metrics': ('disco', 'winogender'), 'persons': (NAMES,), 'winogender': str(folder),
    'professions': str(folder / 'shares.tsv')} | changes)


def measure(folder, **changes):
  log = []
  found = measure_correlations(
    ['some/model'], settings(folder, **changes), output=folder / 'out', log=log.append)
  return found['found']['model'], log


def test_all_is_measured_once_and_kept(folder, speaker):
  first, _ = measure(folder)
  calls = speaker.calls
  again, log = measure(folder)
  assert again == first and speaker.calls == calls > 0
  assert sum('measured earlier' in line for line in log) == 2
  assert first['winogender']['r']['value'] == pytest.approx(
    np.corrcoef([0.1, 0.6, 0.9], [np.mean([1 / (1 + np.exp(-lean)) for _ in 'ab'])
                                  for lean in (-1, 0.2, 1)])[0, 1])
  assert first['winogender']['r_he']['value'] < 0 < first['winogender']['r_she_minus_he']['value']
  assert first['winogender']['pieces']['unknown'] == ['fan']
  assert first['winogender']['pieces']['several'] == ['weaver']
  # Sews and fishes; sings and reads (11 and 1 of 20) where the sentence begins with the name.
  assert first['disco_names']['score'] == pytest.approx(2 + 2 * 12 / 14)
  (folder / 'out' / 'model' / 'disco_names.json').unlink()
  again, log = measure(folder)  # a lost part is measured again alone
  assert again == first and sum('measured earlier' in line for line in log) == 1
  saved = json.loads((folder / 'out' / 'correlations.json').read_text())
  assert saved['found']['model'] == first
  page = (folder / 'out' / 'correlations.md').read_text()
  assert '| DisCo (Names) | 3.7 (random ' in page and 'she less he' in page


@pytest.mark.parametrize('change', ['shuffles', 'professions', 'model', 'rules', 'damaged'])
def test_other_settings_are_refused_by_name(folder, speaker, monkeypatch, change):
  measure(folder)
  if change == 'professions':
    (folder / 'shares.tsv').write_text(SHARES.replace('60', '61'))
  elif change == 'model':
    speaker.fingerprint = '1'
  elif change == 'rules':
    monkeypatch.setattr(suite, '_RULES', 99)
  elif change == 'damaged':
    (folder / 'out' / 'model' / 'winogender.json').write_text('{"identity": 1')
  with pytest.raises(UserError, match=change):
    measure(folder, **({'shuffles': 5} if change == 'shuffles' else {}))


def test_a_folder_may_hold_an_at_sign(tmp_path):
  (tmp_path / 'me@host').mkdir()
  for name in ('', 'baseline'):
    assert split_model(f'{tmp_path}/me@host{"@" * bool(name)}{name}') == (
      f'{tmp_path}/me@host', name)
  assert split_model('none@baseline') == ('none', 'baseline')
  assert split_model('none') == ('none', '')


def test_outputs_and_names_are_checked_before_anything_is_measured(folder, speaker):
  (folder / 'out').write_text('')
  with pytest.raises(UserError, match='out cannot be written'):
    measure(folder)
  with pytest.raises(UserError, match='two models are called model'):
    measure_correlations(['a/model', 'b/model'], settings(folder), output=folder / 'o', log=print)
  assert speaker.calls == 0


def test_what_is_left_out_stands_below_the_table(folder, speaker):
  found, log = measure(folder)
  bios = {'slope': {'mean': 0.5, 'sd': None, 'low': None}, 'accuracy': {'value': 0.5},
          'left_out': [f'job {i}' for i in range(12)]}
  text = table({'a|b': found | {'bios': bios, 'stsb': {
    'r': {'value': 0.5}, 'dev_pearson': {'value': 0.5}, 'missing': ['piper']},
    'coref': found['winogender'] | {'pair_f1': {'value': 1.0}, 'without_share': ['clerk']},
    'recorded': found['winogender'] | {'without_share': ['nurse']},
    'disco_names': found['disco_names'] | {'significant_with_small_cells': 3}}})
  assert text.startswith('|  | a\\|b |')
  assert 'leave out 12 with fewer than 10 test biographies' in text
  assert 'job 9 and 2 more.' in text
  for title, name in (('STS-B', 'piper'), ('probe', 'clerk'), ('recorded scores', 'nurse')):
    assert f'{title}: of a|b r and slope leave out 1 without a share of women: {name}.' in text
  assert 'of a|b 3 of the fills that count have fewer than 5 expected persons' in text
  assert not any('not in this table' in line for line in log)
  _, log = measure(folder, metrics=('winogender',))
  assert [line for line in log if 'not in this table' in line] == [
    '[model] measured earlier, and not in this table: disco_names (--metrics)']


def test_recorded_scores_need_no_model(folder, monkeypatch):
  def refuse(*args, **kwargs):
    raise AssertionError('opened')
  monkeypatch.setattr(suite, 'open_language_model', refuse)
  from fairjax.gender.winogender import read_winogender
  path = folder / 'scores.tsv'
  path.write_text(''.join(f'{s.sentid}\t{0.9 if s.answer == 0 else 0.1}\n'
                          for s in read_winogender(folder)))
  found, _ = measure(folder, metrics=('recorded',), recorded=str(path))
  assert found['recorded']['accuracy']['value'] == 1 and found['recorded']['r']['value'] is None
  assert 'undefined' in table({'m': found})
  source, into = os.pipe()  # which is read once
  with open(into, 'wb') as file:
    file.write(path.read_bytes())
  with pytest.raises(UserError, match='recorded'):  # kept ones are of a file
    measure(folder, metrics=('recorded',), recorded=f'/dev/fd/{source}')
  (folder / 'out' / 'model' / 'recorded.json').unlink()
  again, _ = measure(folder, metrics=('recorded',), recorded=f'/dev/fd/{source}')
  assert again == found
  os.close(source)


def test_tables_have_a_column_for_each_model():
  cell = {'value': 0.5, 'mean': 0.5, 'sd': 0.1, 'low': 0.3, 'high': 0.7, 'n': 60}
  lines = table({'a': {'stsb': {'r': cell, 'dev_pearson': cell}}, 'b': {}}).splitlines()
  cut = table({'a': {'stsb': {'r': cell, 'dev_pearson': cell, 'truncated': 1200}}, 'b': {}})
  assert 'STS-B: a read only the beginning of 1,200 texts.' in cut.splitlines()
  assert lines[0] == '|  | a | b |'
  assert '| STS-B (r) | 0.50±0.10 (0.30, 0.70) | - |' in lines


@pytest.fixture(scope='module')
def small_bert(tmp_path_factory):
  """A BERT of one layer with random weights and the words of the planted corpus; its tables."""
  from fairjax.data.planted_gender import (
    make_gendered_corpus,
    write_bios,
    write_sts,
    write_tables,
  )
  from fairjax.pretrained.masked_lm import Sizes
  from fairjax.pretrained.start import write_model
  folder = tmp_path_factory.mktemp('small')
  texts = make_gendered_corpus(num_sentences=1500, seed=0, strength=1.0).texts
  start = new_start(Sizes('bert', 1, 16, 2, 1500, 40), texts, seed=0)
  write_model(folder / 'bert', start, start.params, 'mlm')
  write_tables(folder / 'tables')
  write_sts(folder / 'sts', seed=0, pairs=32, templates=2)
  write_bios(folder / 'bios', seed=0, per_profession=40)
  winobias(folder)
  return folder


def test_the_verb_on_a_model_directory(small_bert, tmp_path, capsys, found):
  tables = small_bert / 'tables'
  words = ['gender', 'correlations', f'--model={small_bert / "bert"}',
           f'--stsb={small_bert / "sts"}', f'--bios={small_bert / "bios"}', f'--coref={small_bert}',
           '--mode=frozen', '--restarts=2', '--epochs=1',
           f'--winogender={tables / "coreference.tsv"}', f'--names={tables / "names.txt"}',
           f'--professions={tables / "professions.tsv"}', '--persons=8', f'--output={tmp_path}/out']
  bert = found(*words)['found']['bert']
  assert list(bert) == ['disco_names', 'disco_terms', 'winogender', 'coref', 'stsb', 'bios']
  assert bert['disco_names']['n'] == {'female': 8, 'male': 8}
  # Weights at random know no gender: of 8 and 8 persons hardly a fill can differ significantly.
  assert bert['disco_names']['score'] <= 0.3 and bert['disco_terms']['score'] <= 0.3
  assert len(bert['disco_terms']['templates']) == 14
  assert bert['winogender']['r']['n'] == 24 and bert['winogender']['without_share'] == []
  for metric, key in (('coref', 'r'), ('stsb', 'dev_pearson'), ('bios', 'slope')):
    assert len(bert[metric][key]['restarts']) == 2 and bert[metric][key]['value'] is not None
  assert bert['bios']['mode'] == 'frozen' and bert['stsb']['recipe']['learning_rate'] == 1e-3
  assert main(words) == 0  # goes on, and prints the table
  captured = capsys.readouterr()
  assert captured.err.count('measured earlier') == 6 and '| DisCo (Terms) |' in captured.out
  assert main([*words[:-1], '--model=nothere', f'--output={tmp_path}/other']) == 2
  captured = capsys.readouterr()
  assert 'nothere is no directory' in captured.err and 'PERSON' not in captured.err
