"""The check takes the kernel as it is, and notices one that is broken on purpose."""

import jax
import jax.numpy as jnp
import pytest

from fairjax.config import ModelConfig
from fairjax.model import kernel_check
from fairjax.model.attention import attention_in_blocks
from fairjax.model.attention_kernel import fused_attention

SIZES = ModelConfig(num_heads=2, head_dim=8, segment_len=16, memory_len=16, attention_block=8)


def _fault(branches=(0, 0)):
  return kernel_check.kernel_fault(SIZES, branches, interpret=True)


def test_the_kernel_is_as_blocks():
  assert _fault((4, 2)) == ''


@pytest.mark.parametrize('broken', [
  lambda out, query: out * 1.05,
  lambda out, query: out.at[0, 0, 3, 2].add(1.0),
  lambda out, query: out * jnp.nan,
  lambda out, query: out + 0.2 * (query - jax.lax.stop_gradient(query)),  # gradients alone
  lambda out, query: out + jnp.sqrt(query - jax.lax.stop_gradient(query)) * 0,
], ids=['scaled', 'one value', 'not a number', 'gradient', 'gradient is not a number'])
def test_a_broken_kernel_differs(monkeypatch, broken):
  monkeypatch.setattr(
    kernel_check, 'fused_attention',
    lambda query, key_value, *rest, block, **options: broken(
      attention_in_blocks(query, *key_value, *rest[:4], block=block), query))
  assert 'differs from blocks by' in _fault()


def test_a_kernel_that_is_broken_in_branches_alone_differs(monkeypatch):
  monkeypatch.setattr(kernel_check, 'fused_attention', lambda *arrays, **options: (
    1 if arrays[-1] is None else jnp.nan) * fused_attention(*arrays, **options))
  assert _fault() == '' and 'differs from blocks by nan' in _fault((4, 2))


def test_a_kernel_that_does_not_compile_is_one_line(monkeypatch):
  found = kernel_check.kernel_fault(SIZES)  # no TPU here
  assert found.startswith('it does not run: ') and '\n' not in found

  def silent(*_, **__):
    raise AssertionError  # without a message, as compilers do

  monkeypatch.setattr(kernel_check, 'fused_attention', silent)
  assert kernel_check.kernel_fault(SIZES).startswith('it does not run: AssertionError')
