"""Sampling from an endpoint: a server on this machine that fails in every way it may."""

import collections
import contextlib
import email.utils
import http.server
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time

import pytest
from command_words import changed

import fairjax
from fairjax.cli.main import main
from fairjax.config import SampleConfig
from fairjax.counterfactual import load_attribute
from fairjax.errors import UserError
from fairjax.generate import manifest_of, read_records
from fairjax.generate.endpoint import ATTEMPTS, INSTRUCTION, Endpoint, sample_endpoint

CANARY = 'sk-canary-0123456789'
ATTRIBUTE = """
name: place
values: [France, {text: Syria, subgroup: other}]
templates: ['My friend from {value} said', '{value} is']
"""
PROMPTS = ['My friend from France said', 'My friend from Syria said', 'France is', 'Syria is']


class Server(http.server.ThreadingHTTPServer):
  """Answers as told: `script` holds, by prompt, what comes before the ordinary answers."""

  daemon_threads = True
  request_queue_size = 100

  def __init__(self):
    super().__init__(('127.0.0.1', 0), _Handler)
    self.lock = threading.Lock()
    self.script, self.delay, self.key, self.models = {}, 0.0, None, {'m', 'org/m-2'}
    self.requests, self.running, self.most_running = [], 0, 0

  @property
  def url(self):
    return f'http://127.0.0.1:{self.server_address[1]}/v1'

  def prompts(self):
    return collections.Counter(prompt for prompt, *_ in self.requests)


class _Handler(http.server.BaseHTTPRequestHandler):
  def log_message(self, *_):
    pass

  def do_POST(self):
    server, body = self.server, json.loads(self.rfile.read(int(self.headers['Content-Length'])))
    prompt = body['messages'][1]['content'] if 'messages' in body else body['prompt']
    with server.lock:
      server.requests.append((prompt, self.path, body, time.monotonic()))
      server.running += 1
      server.most_running = max(server.most_running, server.running)
      step = server.script[prompt].pop(0) if server.script.get(prompt) else None
    time.sleep(server.delay)
    with server.lock:
      server.running -= 1
    if server.key and self.headers['Authorization'] != f'Bearer {server.key}':
      step = (401, {'error': {'message': f"wrong key {self.headers['Authorization']}"}}, {})
    elif body['model'] not in server.models:
      step = (404, {'error': {'message': f"no model {body['model']}"}}, {})
    elif step == 'hang up':
      self.close_connection = True
      return
    elif step is None:
      text = f' text after {prompt}'
      choice = {'message': {'content': text}} if 'messages' in body else {'text': text}
      step = (200, {'choices': [choice | {'finish_reason': 'stop'}],
                    'usage': {'prompt_tokens': 10, 'completion_tokens': 3}}, {})
    status, answer, headers = step
    content = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
    self.send_response(status)
    for name, value in headers.items():
      self.send_header(name, value)
    self.send_header('Content-Length', str(len(content)))
    self.end_headers()
    with contextlib.suppress(OSError):
      self.wfile.write(content)


@pytest.fixture
def server():
  with Server() as found:
    threading.Thread(target=found.serve_forever, args=(0.02,), daemon=True).start()
    yield found
    found.shutdown()


@pytest.fixture
def attribute_file(tmp_path):
  path = tmp_path / 'place.yaml'
  path.write_text(ATTRIBUTE)
  return path


@pytest.fixture(autouse=True)
def _no_key(monkeypatch):
  monkeypatch.delenv('FAIRJAX_ENDPOINT_KEY', raising=False)
  monkeypatch.setenv('NO_PROXY', '127.0.0.1')


@pytest.fixture
def ask(server, attribute_file, tmp_path):
  def run(*, samples=5, rewordings=False, prices=None, **changes):
    said, output = [], tmp_path / 'g.jsonl'
    endpoint = Endpoint(**{'url': server.url, 'model': 'm', 'pause': (0.001, 0.002)} | changes)
    try:
      sample_endpoint(endpoint, load_attribute(attribute_file), output,
                      SampleConfig(samples=samples, max_new_tokens=7, temperature=0.5),
                      rewordings=rewordings, prices=prices, log=said.append)
    finally:
      run.log = said
    return list(read_records(output)), said

  return run


def test_records_are_those_of_other_sampling_and_are_measured(server, ask, tmp_path, attribute_file,
                                                              found):
  server.delay = 0.02
  records, said = ask(concurrency=3, prices=(1.0, 10.0))
  assert collections.Counter(r['prefix'] for r in records) == dict.fromkeys(PROMPTS, 5)
  assert {k: records[0][k] for k in records[0] if k not in ('_where', 'value', 'subgroup', 'prefix',
                                                            'template', 'continuation')} == {
    'attribute': 'place', 'model': 'm', 'prompt_tokens': 10, 'completion_tokens': 3,
    'finish_reason': 'stop'}
  assert all(r['continuation'] == f" text after {r['prefix']}" for r in records)
  assert 1 < server.most_running <= 3
  _, path, body, _ = server.requests[0]
  assert path == '/v1/completions' and body == {
    'model': 'm', 'max_tokens': 7, 'temperature': 0.5, 'prompt': body['prompt']}
  assert '200 tokens read and 60 written, which cost 0.0008' in said[-1]
  assert found('measure', f'--records={tmp_path / "g.jsonl"}', f'--attribute={attribute_file}',
               '--scorer=vader', '--permutations=20')['coupled'] is False
  assert main(['records', 'convert', f'--records={tmp_path / "g.jsonl"}',
               f'--output={tmp_path / "g.parquet"}']) == 0
  again = list(read_records(tmp_path / 'g.parquet'))
  assert [{**r, '_where': ''} for r in again] == [{**r, '_where': ''} for r in records]


def test_a_complete_file_is_left_alone_and_a_larger_number_extends_it(server, ask):
  first, _ = ask(samples=2)
  ask(samples=2)
  assert len(server.requests) == 8
  records, _ = ask(samples=5)
  assert records[:8] == first and len(server.requests) == 20
  assert collections.Counter(r['prefix'] for r in records) == dict.fromkeys(PROMPTS, 5)
  with pytest.raises(UserError, match='5 samples|samples are wanted'):
    ask(samples=3)
  for change in ({'model': 'org/m-2'}, {'body': {'top_p': 0.5}}, {'chat': True}):
    with pytest.raises(UserError, match='generated otherwise'):
      ask(**change)
  assert len(server.requests) == 20


def test_429_5xx_lost_connections_and_timeouts_are_asked_again(server, ask):
  a, b, c, d = PROMPTS
  busy, down = (429, {'error': 'slow down'}, {}), (503, b'<html>', {})
  broken = (200, {'choices': [{'text': 'Half', 'finish_reason': 'error'}]}, {})
  behind = (200, {'error': {'message': 'provider is down'}, 'choices': None}, {})
  server.script = {a: [busy] * 3, b: [down, 'hang up'], c: [broken, behind],
                   d: [(500, {'error': {'message': 'oops'}}, {}), (502, b'', {})]}
  records, said = ask(samples=2)
  assert len(records) == 8 and {r['finish_reason'] for r in records} == {'stop'}
  assert server.prompts() == {a: 5, b: 4, c: 4, d: 4}
  assert any('sends requests again' in line for line in said)
  assert any('17 requests, 9 of them again' in line for line in said)


def test_a_slow_answer_is_asked_for_again(server, ask):
  server.delay = 0.6
  threading.Timer(0.3, setattr, (server, 'delay', 0.0)).start()
  records, _ = ask(samples=1, timeout=0.2)
  assert len(records) == 4 and server.prompts().total() > 4


def test_retry_after_is_obeyed_as_seconds_and_as_a_date(server, ask, monkeypatch):
  date = email.utils.formatdate(time.time() + 3, usegmt=True)
  server.script = {PROMPTS[0]: [(429, {}, {'Retry-After': '1.0'})],
                   PROMPTS[1]: [(503, {}, {'Retry-After': date})]}
  ask(samples=1)
  for prompt, least in zip(PROMPTS, (1.0, 0.9), strict=False):
    first, second = (when for asked, *_, when in server.requests if asked == prompt)
    assert least <= second - first < 5
  # One that says 0 switches the growing pauses off no more than one that says nothing.
  longest = []
  monkeypatch.setattr(random, 'uniform', lambda low, high: longest.append(high) or 0.0)
  server.script = {PROMPTS[0]: [(429, {}, {'Retry-After': '0'})] * 4}
  ask(samples=2, pause=(0.5, 2.0), concurrency=1)
  assert longest == [0.5, 1.0, 2.0, 2.0]
  server.script = {PROMPTS[0]: [(429, {}, {'Retry-After': '86400'})]}
  with pytest.raises(UserError, match='asks to wait 86,400 s'):
    ask(samples=3)


def test_what_never_succeeds_ends_with_one_line_and_the_same_call_continues(server, ask):
  server.script = {PROMPTS[2]: [(200, {'error': 'provider is down'}, {})] * ATTEMPTS}
  with pytest.raises(UserError, match=f'no answer in {ATTEMPTS} requests .*provider is down'):
    ask(samples=3, concurrency=1)
  assert any('2 of 12 records' in line for line in ask.log)
  records, _ = ask(samples=3)
  assert len(records) == 12
  assert server.prompts() == {p: 3 + ATTEMPTS * (p == PROMPTS[2]) for p in PROMPTS}


@pytest.mark.parametrize(('step', 'words'), [
  ((200, b'{"choices": [{"te', {}), 'answers otherwise'),
  ((200, b'[]', {}), 'answers otherwise'),
  ((200, {'choices': [{'text': 5}]}, {}), 'answers otherwise'),
  ((200, {'choices': [{'text': 'a'}], 'usage': [1]}, {}), 'answers otherwise'),
  ((400, {'error': {'message': 'temperature\nmust be 1'}}, {}), '400: temperature must be 1'),
  ((404, {'detail': 'This is a chat model'}, {}), "no model 'm'.*--chat"),
  ((403, {}, {}), 'set FAIRJAX_ENDPOINT_KEY'),
  *(((status, {'error': {'code': 'insufficient_quota', 'message': 'no money'}}, {}),
     'quota is used up') for status in (200, 429)),
  ((200, {'error': {'code': 401, 'message': 'whose key?'}}, {}), '401: whose key.*set FAIRJAX'),
  ((307, b'', {'Location': 'http://elsewhere.invalid/'}), 'name that address'),
])
def test_a_wrong_answer_is_one_line_and_what_was_answered_is_kept(server, ask, step, words):
  server.script = {PROMPTS[1]: [step]}
  with pytest.raises(UserError, match=words):
    ask(samples=2, concurrency=1)
  assert len(server.requests) == 2
  records, _ = ask(samples=2)
  assert len(records) == 8 and server.prompts() == dict.fromkeys(PROMPTS, 2) | {PROMPTS[1]: 3}


def test_empty_choices_refusals_and_repeated_prompts_are_recorded_and_counted(server, ask):
  def chat(content, reason='stop'):
    return 200, {'choices': [{'message': {'content': content}, 'finish_reason': reason}]}, {}

  a, b, c, d = PROMPTS
  server.script = {a: [(200, {'choices': []}, {})], b: [chat('They are all', 'content_filter')],
                   c: [(400, {'error': {'code': 'content_filter', 'message': 'no'}}, {})],
                   d: [chat(f' {d} big\ud83d\0')]}
  server.script[d][0][1]['error'] = {'code': None, 'message': None}  # of a good answer
  records, said = ask(samples=1, chat=True, instruction='Go on.')
  found = {r['prefix']: (r['continuation'], r['finish_reason']) for r in records}
  assert found == {a: ('', 'no choice'), b: ('', 'content_filter'), c: ('', 'content_filter'),
                   d: (' big\ufffd\ufffd', 'stop')}
  assert {r['instruction'] for r in records} == {'Go on.'}
  for words in ('4 answers do not state their tokens', '2 content_filter', '1 no choice',
                '3 empty continuations', '1 answers began with the prompt'):
    assert words in said[-1]
  _, path, body, _ = server.requests[0]
  assert path == '/v1/chat/completions' and body['messages'][0] == {
    'role': 'system', 'content': 'Go on.'}


def test_an_answer_whose_tokens_went_into_thinking_is_empty(server, ask):
  message = {'role': 'assistant', 'reasoning_content': 'Hm'}
  server.script = {PROMPTS[0]: [
    (200, {'choices': [{'message': message, 'finish_reason': 'length'}]}, {})]}
  records, _ = ask(samples=1, chat=True)
  assert [r['finish_reason'] for r in records if not r['continuation']] == ['length']


def test_fields_of_the_body_are_added_and_taken_out(server, ask):
  ask(samples=1, body={'max_tokens': None, 'max_completion_tokens': 9})
  assert all('max_tokens' not in body and body['max_completion_tokens'] == 9
             for _, _, body, _ in server.requests)


def test_other_models_under_the_name_are_recorded_and_counted(server, ask):
  answer = {'choices': [{'text': ' big', 'finish_reason': 'stop'}]}
  server.script = {PROMPTS[0]: [(200, answer | {'model': 'm'}, {})],
                   PROMPTS[1]: [(200, answer | {'model': 'm-2026'}, {})]}
  records, said = ask(samples=1)
  assert {r['prefix']: r.get('answered_by') for r in records} == dict.fromkeys(PROMPTS) | {
    PROMPTS[1]: 'm-2026'}
  assert 'answered by m (3), m-2026 (1)' in said[-1] and 'same text' not in said[-1]
  server.script = {PROMPTS[0]: [(200, {'choices': [{'text': 'small'}]}, {})]}
  assert 'all answers to 2 of 4 prompts are the same text' in ask(samples=2)[1][-1]


def command(server, attribute_file, output, *more):
  return changed(['sample', f'--endpoint={server.url}', '--model=m', '--samples=10',
                  f'--attribute={attribute_file}', f'--output={output}'], more)


def test_a_killed_command_continues_without_asking_again(server, attribute_file, tmp_path, capsys):
  server.delay = 0.05
  words = command(server, attribute_file, tmp_path / 'g.jsonl', '--concurrency=2', '--chat')
  process = subprocess.Popen([sys.executable, '-m', 'fairjax', *words],
                             stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
  while len(server.requests) < 10 and process.poll() is None:
    time.sleep(0.01)
  os.kill(process.pid, signal.SIGKILL)
  assert process.wait() == -signal.SIGKILL
  with open(tmp_path / 'g.jsonl', 'ab') as file:
    file.write(b'{"attribute": "pla')  # as a kill in the middle of an append leaves it
  assert main(words) == 0
  records = list(read_records(tmp_path / 'g.jsonl'))
  assert collections.Counter(r['prefix'] for r in records) == dict.fromkeys(PROMPTS, 10)
  assert {r['instruction'] for r in records} == {INSTRUCTION}
  assert len(server.requests) <= 40 + 2  # those under way at the kill
  capsys.readouterr()


def test_the_key_is_sent_and_shown_nowhere(server, attribute_file, tmp_path, monkeypatch, capfd):
  server.key = CANARY
  words = command(server, attribute_file, tmp_path / 'g.jsonl')
  assert main(words) == 2
  assert 'set FAIRJAX_ENDPOINT_KEY to the key' in capfd.readouterr().err
  monkeypatch.setenv('FAIRJAX_ENDPOINT_KEY', f'{CANARY}-wrong')
  assert main(words) == 2
  said = capfd.readouterr()
  assert 'refuses the request (401: wrong key Bearer ***): set the right key' in said.err
  monkeypatch.setenv('FAIRJAX_ENDPOINT_KEY', CANARY)
  assert main(words) == 0
  written = ''.join(path.read_text() for path in (
    tmp_path / 'g.jsonl', manifest_of(tmp_path / 'g.jsonl')))
  assert CANARY not in written + ''.join(said) + ''.join(capfd.readouterr())


@pytest.mark.parametrize(('change', 'words'), [
  (['--endpoint=http://127.0.0.1:1/v1'], 'cannot be reached'),
  (['--endpoint=ftp://a'], 'must be an address like'),
  ([f'--endpoint=http://me:{CANARY}@127.0.0.1/v1'], 'must be the address alone'),
  ([f'--endpoint=http://127.0.0.1/v1?key={CANARY}'], 'must be the address alone'),
  (['--model=other'], "it has no model 'other'"),
  (['--seed=3'], '--seed does nothing with --endpoint'),
  (['--instruction=x'], '--instruction belongs to --chat'),
  (['--body=[1]'], 'is no object of JSON'),
  (['--body={"n": 2, "prompt": "x"}'], '--body sets prompt, n'),
  (['--body={"seed": 2}'], '--body sets seed'), (['--body={"top_p": NaN}'], 'cannot be sent'),
  (['--price-in=-1'], 'is not in'),
])
def test_bad_options_are_one_line(server, attribute_file, tmp_path, capsys, change, words):
  assert main(command(server, attribute_file, tmp_path / 'g.jsonl', *change)) == 2
  error = capsys.readouterr().err
  assert words in error and CANARY not in error and 'Traceback' not in error


def test_the_python_function_asks_an_endpoint(server, attribute_file, tmp_path):
  said = []
  path = fairjax.sample('m', attribute=attribute_file, output=tmp_path / 'g.jsonl',
                        endpoint=server.url, chat=True, samples=2, log=said.append)
  result = fairjax.measure(path, attribute=attribute_file, permutations=20)
  assert result.name == 'm' and len(result.generations) == 8
  with pytest.raises(UserError, match='seed'):
    fairjax.sample('m', attribute=attribute_file, output=path, endpoint=server.url, seed=1)
