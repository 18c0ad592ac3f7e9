"""Whose folder it is: a first start, the same run again, another one, or none."""

import dataclasses
import json

import pytest

from fairjax.config import Config
from fairjax.errors import UserError
from fairjax.files import FolderLock
from fairjax.run.workdir import open_workdir

CONFIG = Config()


def claimed(folder, config=CONFIG):
  """Lines of a claim."""
  lines = []
  open_workdir(folder, config, FolderLock(folder, lines.append), lines.append)
  return lines


def test_a_second_start_changes_nothing(tmp_path):
  folder = tmp_path / 'run'
  assert claimed(folder) == []
  before = (folder / 'config.json').read_bytes(), (folder / 'config.json').stat().st_mtime_ns
  assert claimed(folder) == []
  assert before == (
    (folder / 'config.json').read_bytes(), (folder / 'config.json').stat().st_mtime_ns)


def test_versions_that_are_not_what_was_written_are_told_and_mended(tmp_path):
  assert claimed(tmp_path) == []
  path = tmp_path / 'config.json'
  whole = path.read_bytes()
  at = whole.index(b'"numpy": "') + 11
  path.write_bytes(whole[:at] + bytes([whole[at] ^ 8]) + whole[at + 1:])
  (line,) = claimed(tmp_path)
  assert line.startswith('WARNING: ') and 'config.json is damaged' in line
  assert path.read_bytes() == whole


def test_another_configuration_is_refused_by_its_fields(tmp_path):
  claimed(tmp_path)
  before = (tmp_path / 'config.json').read_bytes()
  with pytest.raises(UserError, match='seed: 0 -> 3'):
    claimed(tmp_path, dataclasses.replace(CONFIG, seed=3))
  assert (tmp_path / 'config.json').read_bytes() == before


def test_a_run_from_before_the_field_of_one_mood_goes_on(tmp_path):
  claimed(tmp_path)
  saved = json.loads((tmp_path / 'config.json').read_text())
  del saved['config']['data']['planted_one_mood']
  (tmp_path / 'config.json').write_text(json.dumps(saved))
  assert not any('goes on' in line for line in claimed(tmp_path))
  (tmp_path / 'config.json').write_text(json.dumps(saved))
  with pytest.raises(UserError, match='planted_one_mood: .missing. -> True'):
    claimed(tmp_path, dataclasses.replace(CONFIG, data=dataclasses.replace(
      CONFIG.data, planted_one_mood=True)))


def test_more_stages_go_on_and_the_run_is_not_done(tmp_path):
  claimed(tmp_path, dataclasses.replace(CONFIG, until='lm'))
  (tmp_path / 'DONE').write_text('x')
  (line,) = claimed(tmp_path, dataclasses.replace(CONFIG, until='debias'))
  assert 'goes on with until' in line
  assert not (tmp_path / 'DONE').exists()
  assert json.loads((tmp_path / 'config.json').read_text())['config']['until'] == 'debias'


def test_a_folder_of_something_else_is_left_alone(tmp_path):
  (tmp_path / 'setup.py').write_text('')
  with pytest.raises(UserError, match="holds setup.py but no config.json, so it is no run's"):
    claimed(tmp_path)
  assert [p.name for p in tmp_path.iterdir()] == ['setup.py']


def test_what_an_interrupted_first_start_left_is_no_obstacle(tmp_path):
  for name in ('.lock', '.config.json.abc'):
    (tmp_path / name).write_bytes(b'\xf3 process 1')
  assert claimed(tmp_path) == []


def test_a_file_is_no_folder(tmp_path):
  (tmp_path / 'run').write_text('')
  with pytest.raises(UserError, match='is a file: name a folder'):
    claimed(tmp_path / 'run')
