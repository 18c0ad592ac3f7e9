"""Sums of times: steps done again and later starts are lost, whatever the order of the parts."""

import dataclasses

import pytest
from test_curriculum import CONFIG, _curriculum, _train

from fairjax.config import LogConfig
from fairjax.files import json_line
from fairjax.tpu.chips import CHIPS
from fairjax.train.goodput import peak_flops, read_goodput

ABOUT = {'work': 4096, 'unit': 'tokens', 'flops': 6e12, 'devices': 2, 'device': 'TPU v4'}
LINES = [
  {'start': 0, 'at': 1000.0} | ABOUT,
  {'step': 50, 'at': 0, 'seconds': {'start': 3.0, 'compile': 20.0, 'step': 1.0, 'wait': 9.0,
                                    'input': 0.5}},
  {'step': 100, 'at': 1050.0, 'seconds': {'wait': 10.0, 'input': 0.5, 'evaluate': 2.0}},
  # killed; the checkpoint of step 80 is the newest
  {'start': 80, 'at': 1110.0} | ABOUT,
  {'step': 150, 'at': 1160.0, 'seconds': {'start': 4.0, 'compile': 5.0, 'step': 14.0, 'agree': 1.0,
                                          'checkpoint': 3.0, 'end': 1.0}}]


def test_times_add_up_over_restarts(tmp_path):
  content = b''.join(map(json_line, LINES))
  (tmp_path / 'times.jsonl').write_bytes(content.replace(b'{"start": 80', b'{"torn\n{"start": 80'))
  found = read_goodput(tmp_path)
  assert found.seconds == pytest.approx({
    'productive': 10 + 0.6 * 10 + 15, 'compiling': 20.0, 'waiting for input': 0.5 + 0.6 * 0.5,
    'evaluating': 0.6 * 2, 'starting and ending': 4.0, 'writing checkpoints': 3.0,
    'lost to restarts': 0.4 * 12.5 + 9})
  assert sum(found.seconds.values()) == pytest.approx(
    sum(sum(line['seconds'].values()) for line in LINES if 'seconds' in line))
  assert (found.steps, found.starts, found.stopped) == (150, 2, 60.0)
  assert found.steps_per_second == pytest.approx(150 / 31.8)
  assert found.work_per_second == pytest.approx(4096 * 150 / 31.8)
  assert found.utilisation == pytest.approx(6e12 * 150 / 31.8 / (2 * 275e12))
  assert read_goodput(tmp_path / 'none') is None


def test_a_start_that_goes_back_beyond_the_one_before_it_on_other_devices(tmp_path):
  def write(*lines):
    (tmp_path / 'times.jsonl').write_bytes(b''.join(map(json_line, lines)))
    return read_goodput(tmp_path)

  def start(at, **about):
    return {'start': at, 'at': 0.0} | ABOUT | about

  def steps(to, seconds):
    return {'step': to, 'at': 0.0, 'seconds': {'wait': seconds}}

  # Steps 50 to 100 of the first start are done again by the third, whose other checkpoints were
  # damaged; half of all steps run on 8 devices, a fourth of the time.
  lines = [start(0), steps(100, 300.0), start(100), steps(200, 300.0), start(50, devices=8),
           steps(100, 50.0)]
  found = write(*lines)
  assert found.seconds == {'productive': 150.0 + 50.0, 'lost to restarts': 150.0 + 300.0}
  assert found.steps == 100 and found.steps_per_second == 0.5
  assert found.utilisation == pytest.approx(100 * 6e12 / (275e12 * (2 * 150 + 8 * 50)))
  assert write(start(0, device='cpu'), steps(100, 1.0), *lines[2:]).utilisation is None


def test_peaks_are_those_of_the_chips():
  names = {'v3': 'TPU v3', 'v4': 'TPU v4', 'v5e': 'TPU v5 lite', 'v5p': 'TPU v5', 'v6e':
           'TPU v6 lite'}
  for chip, name in names.items():
    assert peak_flops(name) == CHIPS[chip].peak_flops
  assert peak_flops('NVIDIA H100 80GB HBM3') > peak_flops('NVIDIA H100 PCIe') > peak_flops('cpu')


def test_a_stage_tells_its_times_and_writes_a_trace(tmp_path, monkeypatch):
  monkeypatch.setitem(__import__('sys').modules, 'clu', None)
  lines = []
  config = dataclasses.replace(CONFIG, log=LogConfig(profile=2))
  found = _train(_curriculum(tmp_path, config=config, log=lines.append), 'lm')
  assert list((found.directory / 'tensorboard').rglob('*.xplane.pb'))
  times = read_goodput(found.directory)
  assert times.steps == 7 and times.seconds['compiling'] > 0 and times.unit == 'tokens'
  assert f'[lm] {times.format(brief=True)}' in lines
