"""What runs on every worker of a slice, as lines for its shell, and what is packed here for it.

The scripts themselves are `launch/*.sh`; they travel with the code.
"""

import shlex

from fairjax.tpu.launch.commands import Run
from fairjax.tpu.launch.spec import LaunchSpec

REMOTE = 'fairjax-launch'
"""Folder of all launches, in the home of the workers."""


def local_folder(spec: LaunchSpec) -> str:
  """Folder of this launch on this machine, relative to the repository."""
  return f'.launch/{spec.job}'


def packed_files(spec: LaunchSpec) -> list[str]:
  """Files that every worker gets; their names are of this launch, as they arrive in the home."""
  folder = local_folder(spec)
  files = [f'{folder}/{REMOTE}-{spec.job}.tar.gz']
  return files + ([secrets_file(spec)] if spec.secrets else [])


def secrets_file(spec: LaunchSpec) -> str:
  """The file (mode 0600) that the secrets are written into, here."""
  return f'{local_folder(spec)}/{REMOTE}-{spec.job}.env'


def pack(spec: LaunchSpec) -> list[Run]:
  """Packs the code, and the secrets apart from it."""
  steps = [Run(('bash', 'launch/pack.sh', packed_files(spec)[0]),
               'pack the files that git tracks, as they are now')]
  return steps + write_secrets(spec)


def write_secrets(spec: LaunchSpec) -> list[Run]:
  """Writes the values of the secrets into a file; no argument and no output holds them."""
  if not spec.secrets:
    return []
  return [Run(('bash', 'launch/secrets.sh', secrets_file(spec), *spec.secrets),
              f'write the values of {", ".join(spec.secrets)} into a file that only you can read')]


def forget_secrets(spec: LaunchSpec) -> list[Run]:
  """Removes the file of the secrets from this machine, once they are where they belong."""
  if not spec.secrets:
    return []
  return [Run(('rm', '-f', secrets_file(spec)), 'remove the file of the secrets from here')]


def unpack_command(spec: LaunchSpec) -> str:
  """Unpacks the code on a worker and installs what it needs; harmless to repeat."""
  code = f'{REMOTE}/{spec.job}/code'
  arrived = f'{REMOTE}-{spec.job}'
  return ' && '.join((
    shlex.join(('rm', '-rf', code)), shlex.join(('mkdir', '-p', code)),
    shlex.join(('tar', '-xzf', f'{arrived}.tar.gz', '-C', code)),
    worker_command(spec, 'setup', *spec.buckets)))


def start_command(spec: LaunchSpec) -> str:
  """Starts the command on a worker, detached; the same command again changes nothing.

  The words are quoted for one shell, the login shell of the worker, so that they arrive as they
  were given, whatever they hold.
  """
  variables = [f'{name}={value}' for name, value in spec.all_env.items()]
  return worker_command(spec, 'start', str(spec.restarts), 'env', *variables, 'fairjax',
                        *spec.words)


def worker_command(spec: LaunchSpec, verb: str, *arguments: str) -> str:
  """One verb of `launch/worker.sh` on a worker."""
  script = f'{REMOTE}/{spec.job}/code/launch/worker.sh'
  return shlex.join(('bash', script, verb, spec.job, *arguments))


def read_status(text: str) -> dict[str, tuple[str, int]]:
  r"""Reads what the verb `status` of the workers printed.

  Returns:
    Worker -> (`running`, `exited` or `absent`, exit code of the last attempt or 0).

  >>> read_status('noise\nfairjax-worker w-0 exited 42\n')
  {'w-0': ('exited', 42)}
  """
  found = {}
  for line in text.splitlines():
    words = line.split()
    if len(words) == 4 and words[0] == 'fairjax-worker' and words[3].isdigit():
      found[words[1]] = (words[2], int(words[3]))
  return found
