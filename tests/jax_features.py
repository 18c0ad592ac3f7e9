"""What a version of JAX or XLA may lack, found by asking for it."""

import importlib.util
import mmap
import pathlib


def xla_knows(flag: str) -> bool:
  """Whether XLA has a flag: an unknown one in XLA_FLAGS ends the process."""
  for library in pathlib.Path(importlib.util.find_spec('jaxlib').origin).parent.glob('libjax*.so'):
    with library.open('rb') as f, mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) as text:
      if text.find(flag.encode() + b'\0') >= 0:  # else a flag of the past
        return True
  return False


def complete_jax() -> None:
  """Puts what the tests use where JAX 0.10 has it."""
  import jax
  import jax.extend.core

  if not hasattr(jax, 'enable_x64'):  # JAX 0.7.2
    jax.enable_x64 = jax.experimental.enable_x64
  if not hasattr(jax.extend.core, 'jaxprs_in_params'):
    jax.extend.core.jaxprs_in_params = jax.core.jaxprs_in_params
