"""A run compares the kernel once for a chip and its sizes, and takes blocks if it differs."""

import dataclasses
import functools
import types

import jax
import pytest

from fairjax.config import Config, ModelConfig
from fairjax.model import attention_paths, kernel_check
from fairjax.model.attention_kernel import fused_attention
from fairjax.run.kernel_verdict import check_kernel, read_verdicts

MODEL = ModelConfig(num_heads=2, head_dim=64, segment_len=128, memory_len=128, attention_block=128)
CHIP = 'TPU v5 lite'


@pytest.fixture
def chip(monkeypatch):
  """A TPU, on which a small kernel is interpreted; counts comparisons."""
  calls = []

  def fault(model, branches):
    calls.append(model)
    return kernel_check.kernel_fault.__wrapped__(dataclasses.replace(
      model, head_dim=8, segment_len=16, memory_len=16, attention_block=16), branches,
      interpret=True)

  monkeypatch.setattr(attention_paths, '_faulty', set())
  monkeypatch.setattr(jax, 'local_devices', lambda: [types.SimpleNamespace(
    platform='tpu', device_kind=CHIP)])
  fault = functools.wraps(kernel_check.kernel_fault)(fault)
  monkeypatch.setattr(kernel_check, 'kernel_fault', fault)
  return calls


def test_a_kernel_that_differs_gives_way_to_blocks(monkeypatch, tmp_path, chip):
  monkeypatch.setattr(kernel_check, 'fused_attention', lambda *arrays, **options: (
    1.1 * fused_attention(*arrays, **options)))
  lines = []
  for _ in range(2):
    attention_paths._faulty.clear()
    assert attention_paths.choose_attention(MODEL, CHIP) == 'kernel'
    check_kernel(Config(), MODEL, tmp_path, lines.append)
    assert attention_paths.choose_attention(MODEL, CHIP) == 'shift'  # of blocks: it is short
    asked = dataclasses.replace(MODEL, attention='kernel')
    assert attention_paths.choose_attention(asked, CHIP) == 'blocks'
  assert len(chip) == 1 and len(lines) == 3
  assert 'WARNING' in lines[-1] and 'differs from blocks by' in lines[-1] and CHIP in lines[-1]
  ((key, fault),) = read_verdicts(tmp_path).items()
  assert key.startswith(CHIP) and 'jax ' in key and 'differs' in fault


def test_a_kernel_that_agrees_is_used_and_not_compared_again(tmp_path, chip):
  lines = []
  for _ in range(2):
    check_kernel(Config(), MODEL, tmp_path, lines.append)
  assert attention_paths.choose_attention(MODEL, CHIP) == 'kernel'
  assert len(chip) == len(lines) == 1 and list(read_verdicts(tmp_path).values()) == ['']


def test_nothing_is_compared_on_cpu(tmp_path):
  check_kernel(Config(), dataclasses.replace(MODEL, attention='kernel'), tmp_path, print)
  assert not list(tmp_path.iterdir())
