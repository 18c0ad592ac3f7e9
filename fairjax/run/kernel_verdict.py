"""Whether a run may use the attention kernel on its devices: compared once, kept in the workdir.

`kernel.json` has a verdict by chip, versions and sizes: '' (equal to `blocks`) or what is wrong.
"""

import pathlib
import time
from collections.abc import Callable

from fairjax import processes
from fairjax.config import Config, ModelConfig
from fairjax.files import installed_versions, read_sealed_json, write_sealed_json

FILE = 'kernel.json'


def check_kernel(
  config: Config, model: ModelConfig, workdir: pathlib.Path, log: Callable[[str], None]
) -> None:
  """Takes `blocks` if the kernel fails on an accelerator; every process calls it."""
  import jax

  from fairjax.model.attention_paths import choose_attention, refuse_kernel
  from fairjax.model.kernel_check import kernel_fault
  device = jax.local_devices()[0]
  if config.pretrained.model or device.platform == 'cpu' or (
      choose_attention(model, device.device_kind) != 'kernel'):
    return
  branches = kernel_branches(config)
  key, path = verdict_key(model, branches, device.device_kind), workdir / FILE
  verdict = processes.share(read_verdicts(workdir).get(key) if processes.is_first() else None)
  if verdict is None:
    begun, verdict = time.monotonic(), kernel_fault(model, branches)
    if not processes.agree(not verdict):
      verdict = processes.share(verdict or 'it fails in another process')
    if processes.is_first():
      workdir.mkdir(parents=True, exist_ok=True)
      write_sealed_json(path, read_verdicts(workdir) | {key: verdict})
    log(f'[model] attention kernel compared with blocks on {device.device_kind} in '
        f'{time.monotonic() - begun:.0f} s: {verdict or "equal"}')
  if verdict:
    log(f'WARNING: [model] attention is computed by blocks: the kernel is not used on {key}: '
        f'{verdict}')
    refuse_kernel(device.device_kind)


def kernel_branches(config: Config) -> tuple[int, int]:
  """Branches of a row in step 3 and the pieces of each."""
  return (config.debias.branches_per_row,
          config.debias.pieces_per_branch + config.debias.branch_tokens)


def verdict_key(model: ModelConfig, branches: tuple[int, int], device_kind: str) -> str:
  """Chip, versions and sizes that a verdict is about."""
  found = installed_versions()
  return (f'{device_kind}, libtpu {found.get("libtpu", "none")}, jax {found["jax"]}, '
          f'{model.num_heads} heads of {model.head_dim}, {model.memory_len}+{model.segment_len} '
          f'tokens, {branches[0]}x{branches[1]} in branches, {model.dtype}, '
          f'block {model.attention_block}')


def read_verdicts(workdir: pathlib.Path) -> dict[str, str]:
  """Key -> what is wrong with the kernel, or ''; empty where it was never compared."""
  path = workdir / FILE
  return read_sealed_json(path, again=f'delete {path}') if path.exists() else {}
