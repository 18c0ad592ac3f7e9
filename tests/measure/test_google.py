"""The Google scorer against a server on this machine that fails in every way it may."""

import os
import signal
import subprocess
import sys
import time
import traceback

import google_server
import grpc
import numpy as np
import pytest
from google_server import true_score

import fairjax
from fairjax.errors import UserError
from fairjax.measure.scorers.base import Scorer
from fairjax.measure.scorers.cache import read_score_file, text_digest
from fairjax.measure.scorers.google import MOST_REFUSED, GoogleScorer

CANARY = 'AIzaCanary0123456789abcdefghijklmnopqrs'
TEXTS = [f'text number {i}' for i in range(40)]


@pytest.fixture
def server():
  with google_server.running() as found:
    yield found


@pytest.fixture(autouse=True)
def _canary(monkeypatch):
  monkeypatch.setenv('FAIRJAX_GOOGLE_API_KEY', CANARY)


def make(server, path, *, requests_per_minute=1e6, log=None, **settings):
  scorer = GoogleScorer(
    path, client=server.client(), requests_per_minute=requests_per_minute, log=log)
  vars(scorer).update({'pause': (0.001, 0.001), 'timeout': 5.0, 'deadline': 20.0} | settings)
  return scorer


def expected(texts):
  return [(true_score(t) + 1) / 2 if t.strip() else 0.5 for t in texts]


def kept(path):
  header, known = read_score_file(path)
  assert header == {'scorer': 'google', 'fingerprint': GoogleScorer.fingerprint}
  return known


def test_scores_are_half_of_s_plus_one_in_order_and_equal_texts_are_sent_once(server, tmp_path):
  scorer = make(server, tmp_path / 'g.jsonl')
  assert isinstance(scorer, Scorer)
  texts = TEXTS + ['', ' \n', 'text number 3', 'naïve 😀']
  scores = scorer.score(texts)
  assert scores.dtype == np.float64 and scores.tolist() == expected(texts)
  assert sorted(server.texts) == sorted(set(texts) - {'', ' \n'})
  assert server.languages == {'en'} and server.most_running <= 8 and scorer.requests == 41
  for extreme in (-1.0, 1.0, 0.0):
    server.script[f'x{extreme}'] = [extreme]
    assert scorer.score([f'x{extreme}']).tolist() == [(extreme + 1) / 2]
  assert scorer.score([]).shape == (0,)


def test_measuring_by_its_name_keeps_what_was_paid_for(server, tmp_path, monkeypatch):
  monkeypatch.setattr('fairjax.measure.scorers.google._make_client', lambda *_: server.client())
  rows = [{'value': v, 'prefix': f'{v} is', 'continuation': text}
          for v in ('Syria', 'Chile') for text in TEXTS[:3]]
  options = {'attribute': 'country', 'scorers': ['google'], 'permutations': 9}
  with pytest.raises(UserError, match='name a folder, keep='):
    fairjax.measure(rows, **options)
  for _ in range(2):
    found = fairjax.measure(rows, keep=tmp_path / 'kept', **options)
    assert found.scores['google'].tolist() == expected(TEXTS[:3] * 2)
  assert sorted(server.texts) == TEXTS[:3] and len(kept(tmp_path / 'kept' / 'google.jsonl')) == 3


def test_requests_run_side_by_side(tmp_path):
  with google_server.running(delay=0.05) as server:
    assert make(server, tmp_path / 'g').score(TEXTS).tolist() == expected(TEXTS)
    assert 1 < server.most_running <= 8


def test_429_503_and_slow_answers_are_tried_again_until_they_succeed(server, tmp_path):
  busy, down = grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE
  server.script['a'], server.script['b'] = [busy] * 5, [down, busy, (down, f'key {CANARY}')]
  server.script['c'] = ['slow']
  said = []
  scorer = make(server, tmp_path / 'g', log=said.append, timeout=0.3)
  assert scorer.score(['a', 'b', 'c']).tolist() == expected('abc')
  assert [server.texts.count(t) for t in 'abc'] == [6, 4, 2]
  assert scorer.requests == 12 and '3 scored now in 12 requests' in said[-1]
  assert len(said) == 2 and 'again' in said[0]  # one line in ten seconds, and the end
  assert CANARY not in ''.join(said)


def test_used_up_quota_saves_and_the_same_call_goes_on(server, tmp_path):
  path = tmp_path / 'g'
  make(server, path, workers=1).score(TEXTS[:7])
  server.always = grpc.StatusCode.RESOURCE_EXHAUSTED
  with pytest.raises(UserError, match='quota used up .*7 of 40'):
    make(server, path, workers=1, deadline=0.3).score(TEXTS)
  assert set(server.texts[7:]) == {TEXTS[7]}
  server.always = None
  assert make(server, path).score(TEXTS).tolist() == expected(TEXTS)
  assert sorted(server.answered) == sorted(TEXTS)  # nothing paid twice
  assert kept(path) == {text_digest(t): (true_score(t) + 1) / 2 for t in TEXTS}
  assert 'text number' not in path.read_text()


def test_a_quota_of_the_day_stops_at_once(server, tmp_path):
  server.script['a'] = [google_server.quota_status('RequestsPerDayPerProject')]
  with pytest.raises(UserError, match='quota used up'):
    make(server, tmp_path / 'g').score(['a'])
  server.script['a'] = [google_server.quota_status('RequestsPerMinutePerProject')]
  assert make(server, tmp_path / 'g').score(['a']).tolist() == expected('a')
  assert server.texts.count('a') == 3


def test_no_answer_within_the_deadline(server, tmp_path):
  scorer = make(server, tmp_path / 'g', deadline=0.5, pause=(0.1, 0.1))
  server.close()
  with pytest.raises(UserError, match='no answer for 0.5 s'):
    scorer.score(['a'])


@pytest.mark.parametrize('garbage', [-1.25, float('nan'), 'empty'])
def test_garbage_is_refused_and_not_kept(server, tmp_path, garbage):
  server.script['a'] = [garbage]
  with pytest.raises(UserError, match='an answer with'):
    make(server, tmp_path / 'g').score(['a'])
  assert text_digest('a') not in kept(tmp_path / 'g')


def test_refused_texts_are_counted_and_never_neutral(server, tmp_path):
  for text in TEXTS[3:6]:
    server.script[text] = [(grpc.StatusCode.INVALID_ARGUMENT, 'The document is not supported')]
  texts = [*TEXTS, 'half \ud83d']
  with pytest.raises(UserError, match="4 texts were refused, the first 'text number 3'.*37 of 41"):
    make(server, tmp_path / 'g', workers=1).score(texts)
  assert set(kept(tmp_path / 'g')) == {text_digest(t) for t in TEXTS[:3] + TEXTS[6:]}


def test_many_refusals_stop_the_work(server, tmp_path):
  server.always = grpc.StatusCode.INVALID_ARGUMENT
  with pytest.raises(UserError, match=f'{MOST_REFUSED} texts were refused'):
    make(server, tmp_path / 'g', workers=1).score(TEXTS)
  assert len(server.texts) == MOST_REFUSED


@pytest.mark.parametrize('code, message', [
  (grpc.StatusCode.PERMISSION_DENIED, f'key {CANARY} may not'),
  (grpc.StatusCode.INVALID_ARGUMENT, f'API key {CANARY} not valid. Please pass a valid API key.'),
  (grpc.StatusCode.UNAUTHENTICATED, f'x\ny?key={CANARY}'),
  (grpc.StatusCode.INTERNAL, f'{CANARY}')])
def test_other_errors_stop_at_once_and_hide_the_key(server, tmp_path, code, message):
  server.always = (code, message)
  with pytest.raises(UserError) as error:
    make(server, tmp_path / 'g', workers=1).score(TEXTS)
  assert len(server.texts) == 1 and '***' in str(error.value)
  shown, link = '', error.value
  while link is not None:  # whatever a traceback could print
    shown += repr(link) + str(link.__dict__)
    link = link.__context__ or link.__cause__
  shown += ''.join(traceback.format_exception(error.value))
  assert CANARY not in shown


def test_credentials_are_needed_and_a_broken_key_is_not_shown(tmp_path, monkeypatch):
  monkeypatch.setenv('FAIRJAX_GOOGLE_API_KEY', CANARY + '\n' + CANARY)
  with pytest.raises(UserError, match='white space') as error:
    GoogleScorer(tmp_path / 'g')
  assert CANARY not in str(error.value)
  monkeypatch.delenv('FAIRJAX_GOOGLE_API_KEY')
  monkeypatch.setenv('GOOGLE_APPLICATION_CREDENTIALS', str(tmp_path / 'none.json'))
  with pytest.raises(UserError, match='credentials') as error:
    GoogleScorer(tmp_path / 'g')



def test_an_interruption_keeps_what_is_there(server, tmp_path):
  path = tmp_path / 'g'
  scorer, asked = make(server, path, workers=2), []

  class Interrupting:
    def __init__(self, client):
      self._client = client

    def analyze_sentiment(self, **arguments):
      asked.append(1)
      if len(asked) == 12:
        raise KeyboardInterrupt
      return self._client.analyze_sentiment(**arguments)

  scorer._client = Interrupting(scorer._client)
  with pytest.raises(KeyboardInterrupt):
    scorer.score(TEXTS)
  assert 10 <= len(kept(path)) == len(server.answered) < 14
  assert make(server, path).score(TEXTS).tolist() == expected(TEXTS)
  assert sorted(server.answered) == sorted(TEXTS)


def test_sigkill_loses_only_requests_under_way(tmp_path, repository):
  key, certificate = google_server.self_signed(tmp_path)
  texts = [f'a text to be paid for {i}' for i in range(120)]
  path = tmp_path / 'kept.jsonl'
  code = f'''
from fairjax.measure.scorers.google import GoogleScorer
texts = [f'a text to be paid for {{i}}' for i in range(120)]
scorer = GoogleScorer({str(path)!r}, endpoint='127.0.0.1:PORT', requests_per_minute=1e5, log=print)
print(sum(scorer.score(texts)))
'''
  with google_server.running(secure=key, delay=0.02) as server:
    command = [sys.executable, '-c', code.replace('PORT', str(server.port))]
    environment = os.environ | {
      'GRPC_DEFAULT_SSL_ROOTS_FILE_PATH': str(certificate), 'no_proxy': '127.0.0.1'}
    runs, kills = [], 2
    for kill in range(kills):
      process = subprocess.Popen(command, cwd=repository, env=environment, text=True,
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE)
      deadline = time.monotonic() + 60
      while len(server.answered) < 40 * (kill + 1) and time.monotonic() < deadline:
        time.sleep(0.002)
      process.send_signal(signal.SIGKILL)
      runs.append(process.communicate())
      assert process.returncode == -signal.SIGKILL and time.monotonic() < deadline, runs
      if kill == kills - 1:  # what a power cut may leave
        with open(path, 'ab') as file:
          file.write(b'{"text": "0123')
    done = subprocess.run(command, cwd=repository, env=environment, text=True, capture_output=True,
                          timeout=120, check=True)
    runs.append((done.stdout, done.stderr))
    assert float(done.stdout.splitlines()[-1]) == pytest.approx(sum(expected(texts)), abs=1e-9)
    twice = len(server.answered) - len(set(server.answered))
    assert set(server.answered) == set(texts) and twice <= kills * GoogleScorer.workers
    assert server.keys == {CANARY}  # the key reached the server, over TLS
  assert 'removed 14 bytes' in done.stdout
  everything = ''.join(a + b for a, b in runs) + path.read_text()
  assert CANARY not in everything


def test_no_more_requests_than_the_rate_allows_with_retries_counted(server, tmp_path):
  server.script[TEXTS[0]] = [grpc.StatusCode.UNAVAILABLE] * 3
  start = time.monotonic()
  make(server, tmp_path / 'g', requests_per_minute=3000).score(TEXTS[:10])
  assert len(server.texts) == 13 and time.monotonic() - start >= 12 * 60 / 3000
