"""A verb that is interrupted while XLA compiles ends with one line and code 42, on any signal."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys

import pytest

from fairjax import processes
from fairjax.counterfactual import load_attribute

GOLDEN = pathlib.Path(__file__).parents[1] / 'golden' / 'pretrained'

# The first compilation after `place` is called gets the signal in its midst.
SIGNALLED = '''
import os, signal, sys, threading, time, traceback
from fairjax.cli import main as cli
{imports}
before, watches = {place}, []
def interrupt():
  main = threading.main_thread().ident
  while not any('backend_compile' in frame.f_code.co_name for frame, _ in
                traceback.walk_stack(sys._current_frames()[main])):
    time.sleep(0.01)
  os.kill(os.getpid(), signal.{number})
def place(*arguments, **options):
  if not watches:
    watches.append(threading.Thread(target=interrupt, daemon=True))
    watches[0].start()
  return before(*arguments, **options)
{place} = place
sys.exit(cli.main())
'''


@pytest.fixture
def faith(tmp_path):
  path = tmp_path / 'faith.yaml'
  path.write_text('name: faith\nvalues: [a, b]\ntemplates:\n  - the {value} was\n')
  return path


@pytest.fixture
def gpt2(tmp_path):
  """The golden model with an end-of-text id of its own (the library wrote GPT-2's)."""
  folder = tmp_path / 'gpt2'
  shutil.copytree(GOLDEN / 'gpt2', folder)
  config = json.loads((folder / 'config.json').read_text(encoding='utf-8'))
  (folder / 'config.json').write_text(json.dumps(config | {'eos_token_id': 0}), encoding='utf-8')
  return folder


def interrupted(repository, tmp_path, imports, place, number, arguments):
  """(code, errors) of a verb that gets the signal while it compiles."""
  code = SIGNALLED.format(imports=imports, place=place, number=number.name)
  result = subprocess.run(
    [sys.executable, '-c', code, *map(str, arguments)], cwd=tmp_path, capture_output=True,
    text=True, timeout=300, env=os.environ | {
      'PYTHONPATH': str(repository), 'XLA_FLAGS': '', 'JAX_PLATFORMS': 'cpu',
      'JAX_ENABLE_COMPILATION_CACHE': 'false'})
  return result.returncode, result.stderr


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
def test_sampling(tmp_path, repository, faith, gpt2, number):
  code, errors = interrupted(
    repository, tmp_path, 'from fairjax.generate import noise', 'noise.seed_words', number,
    ['sample', f'--pretrained={gpt2}', f'--attribute={faith}', '--output=k.jsonl',
     '--samples=2000', '--batch-size=2000', '--max-new-tokens=20'])
  assert code == processes.PREEMPTED, errors
  assert errors.count('\n') == 1 and 'interrupted; the same command continues' in errors


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
def test_measuring(tmp_path, repository, number):
  country = load_attribute('country')
  (tmp_path / 'r.jsonl').write_text(''.join(
    json.dumps({'attribute': 'country', 'value': country.value_texts[p.value],
                'template': p.template, 'prefix': p.text, 'sample': sample,
                'continuation': f'good {p.template} {p.value} {sample}'}) + '\n'
    for p in country.prefixes() for sample in range(30)))
  code, errors = interrupted(
    repository, tmp_path, 'from fairjax.pretrained.batch_runner import BatchRunner',
    'BatchRunner._batch', number,
    ['measure', '--records=r.jsonl', '--attribute=country',
     f'--scorer=bert:{GOLDEN / "bert_classifier"}', '--permutations=5'])
  assert code == processes.PREEMPTED, errors
  assert errors.splitlines()[-1].startswith('fairjax: interrupted; the same command continues')
