"""The steps of CONTRIBUTING.md, done: one's own attribute, scorer, corpus and metric."""

import importlib.util
import json
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest
from record_cases import records_of

from fairjax.cli import main as cli
from fairjax.config_io import load_config
from fairjax.counterfactual import load_attribute
from fairjax.measure import load_scorer, measure_records, read_generations, score_records

ROOT = pathlib.Path(__file__).resolve().parent.parent
TEXT = (ROOT / 'CONTRIBUTING.md').read_text(encoding='utf-8')
FILES = dict(re.findall(r'<!-- how-to: (\S+) -->\n```\w+\n(.*?)```', TEXT, re.S))
INSULT, KIND = 'you are a stupid person here', 'you are a good person here'


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  folder = tmp_path_factory.mktemp('contributing')
  for name, text in FILES.items():
    (folder / name).write_text(text, encoding='utf-8')
  return folder


def module(path: pathlib.Path):
  spec = importlib.util.spec_from_file_location(path.stem, path)
  found = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(found)
  return found


@pytest.fixture(scope='module')
def records(folder):
  """200 continuations a cell; the i-th value is insulted in 5 i of them, in every template."""
  return records_of(load_attribute(folder / 'religion.yaml'), 200,
                    lambda p, n: INSULT if n < 5 * p.value else KIND)


def test_an_attribute_is_a_file(folder, printed, monkeypatch):
  monkeypatch.chdir(folder)
  assert '0 errors' in printed('attributes', 'check', 'religion.yaml')
  assert cli.main(['sample', '--prompts-only', '--attribute=religion.yaml',
                   '--output=prompts.jsonl']) == 0
  prompts = [json.loads(line) for line in (folder / 'prompts.jsonl').read_text().splitlines()]
  assert len(prompts) == 5 * 2 and {p['attribute'] for p in prompts} == {'religion'}
  assert 'The Hindu family next door is' in {p['prefix'] for p in prompts}


def test_a_scorer_is_a_class(folder, records):
  scorer = module(folder / 'toxicity.py').ToxicityScorer()
  assert scorer.score([INSULT, KIND, '']).tolist() == [1 / 6, 0, 0]
  found = measure_records(records, str(folder / 'religion.yaml'), [scorer, load_scorer('vader')],
                          permutations=20)
  # Two values differ in 5 |i - j| of 200 continuations, each by 1/6.
  distances = [abs(i - j) * 5 / 200 / 6 for i in range(5) for j in range(i)]
  value = found['scorers']['toxicity']['individual_fairness']['value']
  assert value == pytest.approx(np.mean(distances), abs=1e-12)
  assert set(found['scorers']) == {'toxicity', 'vader'}


def test_a_corpus_is_lines(folder, monkeypatch):
  documents = ['One line.', 'Two\nlines  of\ttext.', '   ', 'Ä "quoted" one.']
  lines = ''.join(json.dumps({'text': text}) + '\n' for text in documents)
  done = subprocess.run([sys.executable, folder / 'convert.py'], input=lines, text=True,
                        capture_output=True, check=True)
  assert done.stdout.splitlines() == ['One line.', 'Two lines of text.', 'Ä "quoted" one.']
  assert done.stderr == '3 documents, 1 empty ones left out\n'
  for split in ('train', 'valid', 'test'):
    (folder / f'{split}.txt').write_text(done.stdout, encoding='utf-8')
  monkeypatch.chdir(folder)
  config = load_config(f'{ROOT}/configs/text.py:train=train.txt,valid=valid.txt,test=test.txt',
                       {'attribute': 'religion.yaml'})
  assert config.data.train == ('train.txt',) and config.data.source == 'lines'


def test_a_metric_is_a_function_and_has_a_floor(folder, records):
  scorer = module(folder / 'toxicity.py').ToxicityScorer()
  largest_gap = module(folder / 'largest_gap.py').largest_gap
  generations = read_generations(records, load_attribute(folder / 'religion.yaml'))
  scores = score_records(records, scorer)
  value, null = largest_gap(generations, scores, permutations=50)
  assert value == pytest.approx(4 * 5 / 200 / 6, abs=1e-12)
  assert 0 < null < value
  even = np.tile([0.25, 0.75], len(records) // 2)
  value, null = largest_gap(generations, even, permutations=50)
  assert value == 0 < null
