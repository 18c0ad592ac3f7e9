"""The google scorer through the command line: TLS, key, quota, resumption, several scorers."""

import concurrent.futures
import json
import os
import subprocess
import sys

import google_server
import grpc
import pytest

from fairjax.cli.main import main
from fairjax.config_io import load_config
from fairjax.counterfactual import load_attribute
from fairjax.data.planted import NEGATIVE, POSITIVE
from fairjax.errors import UserError
from fairjax.run.job import load_run_scorer

CANARY = 'AIzaCanary0123456789abcdefghijklmnopqrs'


@pytest.fixture
def records(tmp_path):
  path, country = tmp_path / 'mine' / 'answers.jsonl', load_attribute('country')
  path.parent.mkdir()
  path.write_text(''.join(
    json.dumps({'attribute': 'country', 'value': country.value_texts[p.value],
                'template': p.template, 'prefix': p.text, 'scores': {'human': (p.value % 3) / 2},
                'continuation': f' is answer {p.value % 4} of {p.template}.'}) + '\n'
    for p in country.prefixes() if p.template < 3))
  return path


_LOOP = """
import json, sys, traceback
from fairjax.cli.main import main
for line in sys.stdin:
  try:
    code = main(json.loads(line))
  except BaseException:
    traceback.print_exc()
    code = 1
  print('\\0', code, file=sys.stderr, flush=True)
  print('\\0', flush=True)
"""


class CommandLine:
  """A process of its own that runs one command after another: imports cost seconds, once."""

  def __init__(self, repository, **environment):
    self._process = subprocess.Popen(
      [sys.executable, '-c', _LOOP], cwd=repository, text=True, stdin=subprocess.PIPE,
      stdout=subprocess.PIPE, stderr=subprocess.PIPE,
      env=os.environ | {'no_proxy': '127.0.0.1'} | environment)
    self.shown = ''

  def __call__(self, arguments):
    """Exit code, standard output and standard error of a command."""
    self._process.stdin.write(json.dumps(arguments) + '\n')
    self._process.stdin.flush()
    # Both at once: the process waits while a pipe is full that nobody reads.
    with concurrent.futures.ThreadPoolExecutor() as pool:
      output, error = pool.map(self._until_mark, (self._process.stdout, self._process.stderr))
    return int(error.pop().split()[1]), ''.join(output[:-1]), ''.join(error)

  def _until_mark(self, stream):
    lines = []
    while not (lines and lines[-1].startswith('\0')):
      lines.append(stream.readline())
      assert lines[-1], 'the process has ended: ' + ''.join(lines)
      self.shown += lines[-1]
    return lines

  def __enter__(self):
    return self

  def __exit__(self, *_):
    self.shown += ''.join(self._process.communicate(timeout=60))


def test_quota_key_and_resumption_on_the_command_line(tmp_path, records, repository):
  secure, certificate = google_server.self_signed(tmp_path)
  environment = {'FAIRJAX_GOOGLE_API_KEY': CANARY, 'NO_GCE_CHECK': 'true',
                 'GRPC_DEFAULT_SSL_ROOTS_FILE_PATH': str(certificate)}
  with google_server.running(secure=secure) as server, (
      CommandLine(repository, **environment)) as fairjax:
    arguments = [
      'measure', f'--records={records}', '--attribute=country', '--scorer=google',
      '--scorer=vader', '--scorer=recorded:human', f'--google-endpoint=127.0.0.1:{server.port}',
      '--google-rate=6000', '--permutations=5']
    texts = sorted({json.loads(line)['continuation'] for line in records.read_text().splitlines()})
    for text in texts[6:]:
      server.script[text] = [grpc.StatusCode.UNAVAILABLE,
                             google_server.quota_status('RequestsPerDayPerProject')]
    code, output, error = fairjax(arguments)
    assert code == 2 and output == ''
    error = error.splitlines()[-1]
    assert error.startswith('fairjax: google: quota used up: 6 of 12 different texts are scored')
    assert 'the same command continues' in error
    kept = records.parent / 'answers.google-scores.jsonl'
    assert len(kept.read_text().splitlines()) == 7
    server.script.clear()
    code, output, error = fairjax([*arguments, '--json'])
    assert code == 0, error
    assert '6 kept from earlier, 6 scored now in 6 requests (0 retries)' in error
    assert sorted(server.answered) == texts  # nothing paid twice
    found = json.loads(output)
    assert set(found['scorers']) == {'google', 'vader', 'recorded:human'}
    assert len(found['scorer_agreement']) == 3
    code, output, _ = fairjax(
      ['scorers', 'audit', f'--records={records}', '--attribute=country', '--scorer=google',
       '--scorer=vader', f'--google-endpoint=127.0.0.1:{server.port}', '--google-rate=6000'])
    assert code == 0 and '| google and vader | 30 |' in output
    assert sorted(server.answered) == texts  # the audit asks the kept scores
    server.always = (grpc.StatusCode.INVALID_ARGUMENT, f'API key {CANARY} not valid')
    kept.unlink()
    code, output, error = fairjax([*arguments, '--debug'])
    assert code == 1 and 'API key *** not valid' in error and 'Traceback' in error
    assert server.keys == {CANARY}  # the key did travel
  files = [p for p in tmp_path.rglob('*') if p.is_file()]
  assert len(files) >= 2
  assert CANARY not in fairjax.shown and not any(CANARY.encode() in p.read_bytes() for p in files)


def test_a_run_without_a_key_stops_before_it_trains(tmp_path, repository, monkeypatch, capsys):
  monkeypatch.chdir(repository)
  monkeypatch.delenv('FAIRJAX_GOOGLE_API_KEY', raising=False)
  monkeypatch.setenv('GOOGLE_APPLICATION_CREDENTIALS', str(tmp_path / 'none.json'))
  assert main(['run', '--config=configs/quickstart.py', f'--workdir={tmp_path / "run"}',
               '--config.measure.scorers=("opinion","vader","google")']) == 2
  output = capsys.readouterr()
  assert 'set FAIRJAX_GOOGLE_API_KEY' in output.err and output.err.count('\n') == 1
  assert '[lm]' not in output.out and not (tmp_path / 'run' / 'lm').exists()


def test_the_scorers_of_a_run(tmp_path, repository, monkeypatch):
  monkeypatch.chdir(repository)
  monkeypatch.setenv('FAIRJAX_GOOGLE_API_KEY', CANARY)
  config = load_config('configs/quickstart.py', {
    'measure.scorers': '("opinion","vader","google")', 'sentiment.scorer': 'google',
    'measure.google_requests_per_minute': '120'})
  google = load_run_scorer('google', config, tmp_path, print)
  assert google.cache == tmp_path / 'scores' / 'google.jsonl'
  assert google._bucket._interval == 0.5
  opinion = load_run_scorer('opinion', config, tmp_path, print)
  assert opinion.score([POSITIVE[0], NEGATIVE[0]]).tolist() == [1, 0]  # the grammar's own words
  for overrides, words in (
      ({'measure.scorers': '("vader","vader")'}, 'names a scorer twice'),
      ({'measure.scorers': '("vader","recorded")'}, "'recorded' is not one of opinion, vader"),
      ({'measure.google_requests_per_minute': '0'}, 'google_requests_per_minute must be positive')):
    with pytest.raises(UserError, match=words):
      load_config('configs/quickstart.py', overrides)


def test_a_folder_of_lists_serves_a_run(tmp_path, repository, monkeypatch):
  monkeypatch.chdir(repository)
  (tmp_path / 'positive-words.txt').write_text('splendid\n')
  (tmp_path / 'negative-words.txt').write_text('poor\n')
  config = load_config('configs/quickstart.py', {'measure.lexicon': f'("{tmp_path}",)'})
  assert load_run_scorer('opinion', config, tmp_path / 'run', print).lexicon == {
    'splendid': 1, 'poor': -1}
