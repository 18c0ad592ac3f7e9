"""Groups of real processes on loopback."""

import concurrent.futures
import contextlib
import os
import socket
import subprocess
import sys


def free_address():
  with socket.socket() as s:
    s.bind(('127.0.0.1', 0))
    return f'127.0.0.1:{s.getsockname()[1]}'


def flags(devices=1):
  """XLA's flags of the tests, with so many devices instead of eight."""
  found = [flag for flag in os.environ['XLA_FLAGS'].split() if 'device_count' not in flag]
  if devices > 1:
    found.append(f'--xla_force_host_platform_device_count={devices}')
  return ' '.join(found)


def start(commands, repository, devices=1, **environment):
  """A Python process for each list of arguments, with the tests' modules in reach."""
  variables = os.environ | {
    'PYTHONPATH': f'{repository}{os.pathsep}{repository / "tests"}', 'JAX_PLATFORMS': 'cpu',
    'XLA_FLAGS': flags(devices)} | environment
  return [subprocess.Popen(
    [sys.executable, '-u', *map(str, command)], cwd=repository, env=variables, text=True,
    stdout=subprocess.PIPE, stderr=subprocess.PIPE) for command in commands]


def ends(group, timeout=240):
  """(exit code, what it printed, its errors) of every process; kills those that do not end."""
  try:
    with concurrent.futures.ThreadPoolExecutor(len(group)) as pool:  # no pipe fills up unread
      texts = list(pool.map(lambda p: p.communicate(timeout=timeout), group))
    return [(p.returncode, *text) for p, text in zip(group, texts, strict=True)]
  finally:
    kill(group)


def kill(group):
  for process in group:
    with contextlib.suppress(ProcessLookupError):
      process.kill()


@contextlib.contextmanager
def starter(repository):
  """Starts groups by the arguments of the process at `ADDRESS,COUNT,INDEX`; ends what is left."""
  left = []

  def group(arguments, count=2, **options):
    address = free_address()
    left.extend(start(
      [arguments(f'{address},{count},{i}') for i in range(count)], repository, **options))
    return left[-count:]

  try:
    yield group
  finally:
    kill(left)


def run_group(command, repository, **options):
  """`ends` of the processes of one command that is run by two."""
  with starter(repository) as group:
    return ends(group(lambda place: [*command, f'--distributed={place}'], **options))
