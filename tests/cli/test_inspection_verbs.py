"""`fairjax doctor`: each thing that would go wrong later is found, and named with its cure."""

import os
import pathlib

import pytest
from test_launch_supervise import executable

from fairjax.cli import inspection_verbs as doctor
from fairjax.cli import main as cli
from fairjax.errors import UserError
from fairjax.files import json_line

REQUIRES = ['ml_dtypes>=0.5', 'libtpu==0.0.42.*; extra == "tpu"']


@pytest.mark.parametrize(('version', 'fits'), [
  ('0.0.42', True), ('0.0.42.1', True), ('0.0.421', False), ('0.0.41', False), ('0.1.42', False)])
def test_libtpu_must_be_that_of_jax(version, fits):
  fault = doctor.libtpu_fault({'jax': '0.10.2', 'libtpu': version}, REQUIRES)
  assert (fault == '') == fits and (fits or "pip install 'jax[tpu]==0.10.2'" in fault)
  assert doctor.libtpu_fault({'jax': '0.10.2'}, REQUIRES) == ''  # without one


@pytest.mark.parametrize(('text', 'chosen', 'hint'), [
  ('always [madvise] never\n', 'madvise', True), ('[always] madvise never\n', 'always', False)])
def test_large_pages(tmp_path, text, chosen, hint):
  (tmp_path / 'enabled').write_text(text)
  line = doctor.large_pages(tmp_path / 'enabled')
  assert line.startswith(chosen) and ('sudo tee' in line) == hint
  assert doctor.large_pages(tmp_path / 'none') == 'not on this system'


def test_it_leaves_nothing_where_it_wrote(tmp_path):
  assert doctor.folder_fault(tmp_path / 'new' / 'folder') == '' and not list(tmp_path.iterdir())
  (tmp_path / 'file').write_text('')
  assert 'cannot be written to' in doctor.folder_fault(tmp_path / 'file' / 'x')


def fake_gcloud(folder: pathlib.Path, monkeypatch, line: str) -> None:
  executable(folder / 'bin' / 'gcloud', f'#!/bin/sh\necho "$*" >>{folder}/calls\n{line}\n')
  monkeypatch.setenv('PATH', f'{folder}/bin:{os.environ["PATH"]}')


def test_a_bucket_is_written_to_and_left_as_it_was(tmp_path, monkeypatch):
  fake_gcloud(tmp_path, monkeypatch, 'exit 0')
  assert doctor.bucket_fault('gs://bucket/') == ''
  first, second = (tmp_path / 'calls').read_text().splitlines()
  assert first.startswith('storage cp - gs://bucket/fairjax-doctor-')
  assert second == first.replace('cp - ', 'rm ')
  with pytest.raises(UserError, match='must be gs://BUCKET'):
    doctor.bucket_fault('bucket')


def test_a_worker_looks_at_the_folder_of_its_bucket(tmp_path, monkeypatch):
  bucket = f'{doctor.MOUNTS}/bucket'
  assert doctor.bucket_fault(bucket) == f'{bucket} is not mounted'
  monkeypatch.setattr(os.path, 'ismount', lambda path: path == bucket)
  monkeypatch.setattr(doctor, 'folder_fault', lambda folder: f'looked at {folder}')
  assert doctor.bucket_fault(f'{bucket}/run') == f'looked at {bucket}/run'


def test_a_bucket_that_refuses_gives_code_2_and_its_reason(tmp_path, monkeypatch, capsys):
  fake_gcloud(tmp_path, monkeypatch, 'echo "ERROR: 403 no storage.objects.create" >&2; exit 1')
  assert cli.main(['doctor', '--bucket=gs://bucket', f'--workdir={tmp_path}/run']) == 2
  printed = capsys.readouterr().out
  assert '\n! gcloud storage cp gs://bucket: ERROR: 403 no storage.objects.create\n' in printed
  assert f'{tmp_path}/run: writable' in printed and 'gs://bucket: not writable' in printed


def test_doctor_says_where_the_time_of_a_stage_went(tmp_path, capsys):
  (tmp_path / 'debias' / 'x').mkdir(parents=True)
  (tmp_path / 'debias' / 'x' / 'times.jsonl').write_bytes(b''.join(map(json_line, [
    {'start': 0, 'at': 0.0, 'work': 100, 'unit': 'tokens', 'flops': 0.0, 'devices': 1,
     'device': 'cpu'},
    {'step': 50, 'at': 9.0, 'seconds': {'compile': 5.0, 'step': 4.0, 'input': 1.0}}])))
  assert cli.main(['doctor', f'--workdir={tmp_path}', '--kernel']) == 0
  printed = capsys.readouterr().out
  assert ('[debias/x]         10 steps/s, 1,000 tokens/s; 40 % of 10.0 s productive: '
          'compiling 5.0 s, productive 4.0 s, waiting for input 1.0 s\n') in printed
  assert 'not for cpu' in printed


def test_devices_that_cannot_be_opened_are_a_line(monkeypatch, capsys):
  def devices():
    raise RuntimeError("Unable to initialize backend 'tpu': libtpu.so already in use\nmore")
  monkeypatch.setattr('jax.devices', devices)
  assert cli.main(['doctor', '--kernel']) == 2
  assert capsys.readouterr().out.endswith(
    "\n! JAX opens no device: Unable to initialize backend 'tpu': libtpu.so already in use\n")


def test_a_checked_attribute_steers_no_terminal(tmp_path, printed):
  path = tmp_path / 'a.yaml'
  path.write_text('name: own\nvalues: ["a\\e[31mb", C]\ntemplates: ["{value} is"]\n')
  assert r"small letter for 'a\x1b[31mb'" in printed('attributes', 'check', path)
