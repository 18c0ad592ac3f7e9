"""Several processes as one run, signals, and how a process ends.

`start` joins the processes through `jax.distributed`; without it there is one process and every
function here answers at once. Beside JAX each process holds a connection to the first one. JAX 0.10
was tried alone and lacks three things:

- A lost peer: the runtime notices missing heartbeats after 30 s and aborts the process from a C++
  thread (SIGABRT), without the exit code 42. A connection closes as soon as a process dies, and
  carries the exit code of one that fails.
- Long waits: `multihost_utils.broadcast_one_to_all` fails on CPUs after 30 minutes, and the first
  process may prepare data for hours.
- Signals: `multihost_utils.reached_preemption_sync_point` hears SIGTERM only, through a handler
  that nothing else can share.
"""

import contextlib
import json
import os
import queue
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from fairjax.errors import Preempted, UserError, first_line

if TYPE_CHECKING:
  from multiprocessing.connection import Connection

PREEMPTED = 42
HEARTBEAT_SECONDS = 30  # JAX takes a machine that does not answer for so long for dead
START_SECONDS = 120  # within which all processes must have started
_LOSS_SECONDS = 3


class _Group:
  """The connections of one process: the first has one to each other, and passes messages on.

  Messages are JSON objects with one of these keys: `value` (of `share`), `end` (an exit code, for
  all; 0: this process is done), `stop` (a signal came), `at` (the sender's last step), `until` (the
  step after which all stop).
  """

  def __init__(self, index: int, count: int, address: str):
    self.index, self.count = index, count
    self.cooperative = 0  # depth of `cooperative` blocks
    self.stopped = False  # all stopped after the same step
    self.position = 0  # steps done
    self.values: queue.SimpleQueue[Any] = queue.SimpleQueue()
    self._peers: dict[int, Connection] = {}
    self._sending = threading.Lock()
    self._finished: set[int] = set()
    self._stepping = threading.Lock()
    self._asked, self._agreed = threading.Event(), threading.Event()
    self._positions: dict[int, int] = {}
    self._until = 0
    if count > 1:
      self._connect(address)
      threading.Thread(target=self._watch, name='peers', daemon=True).start()

  def _connect(self, address: str) -> None:
    from multiprocessing.connection import Client, Listener

    import numpy as np
    from jax.experimental import multihost_utils
    key = secrets.token_bytes(32)
    listener = None if self.index else Listener((address, 0), backlog=self.count, authkey=key)
    port = 0 if listener is None else listener.address[1]
    where = f'{address} {port}'.encode().ljust(256)
    key, where = (bytes(array) for array in multihost_utils.broadcast_one_to_all(
      (np.frombuffer(key, np.uint8), np.frombuffer(where, np.uint8))))
    if listener is None:
      host, port = where.split()
      self._peers[0] = Client((host.decode(), int(port)), authkey=key)
      self._send(0, {'index': self.index})
      return
    with listener:
      while len(self._peers) < self.count - 1:
        peer = listener.accept()
        self._peers[json.loads(peer.recv_bytes())['index']] = peer

  def _send(self, peer: int, message: dict[str, Any]) -> None:
    with self._sending, contextlib.suppress(OSError):  # `_watch` notices a dead peer
      self._peers[peer].send_bytes(json.dumps(message).encode())

  def send(self, message: dict[str, Any]) -> None:
    """Sends a message to all other processes."""
    for peer in list(self._peers):
      self._send(peer, message)

  def _watch(self) -> None:
    """Receives messages until all connections are closed."""
    from multiprocessing.connection import wait
    peers: dict[Any, int] = {connection: peer for peer, connection in self._peers.items()}
    while peers:
      ready: list[Any] = wait(list(peers))
      for connection in ready:
        peer = peers[connection]
        try:
          self._receive(peer, json.loads(connection.recv_bytes()))
        except (EOFError, OSError):
          del peers[connection]
          if peer not in self._finished:
            self._receive(peer, {'end': PREEMPTED, 'why': (
              f'process {peer} of {self.count} is gone (killed, or its machine failed); started '
              'again in all processes, the same command continues from the last checkpoint')})

  def _receive(self, peer: int, message: dict[str, Any]) -> None:
    if self.index == 0 and ('stop' in message or message.get('end')):
      for other in self._peers:
        if other != peer:
          self._send(other, message)
    if message.get('end') == 0:
      self._finished.add(peer)
    elif 'end' in message:
      end_now(message['end'], f'process {self.index} ends: {message["why"]}')
    elif 'value' in message:
      self.values.put(message['value'])
    elif 'stop' in message:
      self.stop(message['stop'])
    elif 'at' in message:
      self._report(peer, message['at'])
    elif 'until' in message:
      self._until = message['until']
      self._agreed.set()

  def stop(self, why: str) -> None:
    """Stops at a step in a `cooperative` block, elsewhere at once."""
    if not self.cooperative:
      end_all(PREEMPTED, f'{why}; the same command continues')
    # The thread that receives the message answers: the main thread may be in a step that ends only
    # when the others take part.
    with self._stepping:
      if self._asked.is_set():
        return
      self._asked.set()
      position = self.position
    if self.index:
      self._send(0, {'at': position})
    else:
      self._report(0, position)

  def _report(self, index: int, position: int) -> None:
    self._positions[index] = position
    if len(self._positions) == self.count:
      self._until = max(self._positions.values()) + 1
      self.send({'until': self._until})
      self._agreed.set()

  def step(self) -> bool:
    """Counts a step; whether all stop after it: the first that none had done when asked."""
    with self._stepping:
      self.position += 1
      if not self._asked.is_set():
        return False
    self._agreed.wait()  # the threads that receive messages need no step for it
    return self.position >= self._until


_group, _started = _Group(0, 1, ''), False


def start(spec: str) -> None:
  """Joins the processes of a run (`auto` or `HOST:PORT,COUNT,INDEX`), before all else with JAX."""
  global _group, _started
  import jax
  arguments: dict[str, Any] = {}
  address = ''
  if spec != 'auto':
    try:
      address, count, index = spec.split(',')
      arguments = {'coordinator_address': address, 'num_processes': int(count),
                   'process_id': int(index)}
      if not (address.rpartition(':')[2].isdigit() and 0 <= int(index) < int(count)):
        raise ValueError
    except ValueError:
      raise UserError(f"--distributed='{spec}' is neither 'auto' nor HOST:PORT,COUNT,INDEX, e.g. "
                      '--distributed=10.0.0.1:8476,2,0') from None
    if int(index) == 0:
      _check_port(spec, int(address.rpartition(':')[2]))
  # JAX would abort with a stack of C++, some versions with an error.
  late = threading.Timer(START_SECONDS, end_now, (PREEMPTED, (
    f'--distributed={spec}: the processes did not find each other within {START_SECONDS} s: start '
    'the same command on every machine, and see that the address is reached from all')))
  late.daemon = True
  late.start()
  try:
    jax.distributed.initialize(
      **arguments, heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
      initialization_timeout=2 * START_SECONDS)
    _group = _Group(jax.process_index(), jax.process_count(),
                    _ip_address(address.rpartition(':')[0]) if address else _own_address())
  except (RuntimeError, ValueError) as e:
    if spec == 'auto' and 'should be defined' in str(e):
      raise UserError(
        '--distributed=auto finds no group here: neither Cloud TPU, GKE, Slurm nor MPI names the '
        'address of the first process, their number and which this is: leave --distributed out '
        'where one process works alone, or say all three: --distributed=HOST:PORT,COUNT,INDEX'
      ) from None
    raise Preempted(f'--distributed={spec}: the processes do not find each other '
                    f'({first_line(e)}): start the same command on every machine') from e
  finally:
    late.cancel()
  _started = True


def _check_port(spec: str, port: int) -> None:
  """Refuses the port of another program, at which JAX crashes without a word."""
  with socket.socket() as probe:
    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
      probe.bind(('', port))
    except (OSError, OverflowError) as e:
      raise UserError(f'--distributed={spec}: port {port} of this machine cannot be taken ({e}): '
                      'name another one, in all processes') from None


def _ip_address(host: str) -> str:
  try:
    return socket.gethostbyname(host.strip('[]'))
  except OSError:
    return host.strip('[]')


def _own_address() -> str:
  """The address of this machine on the network of its default route; nothing is sent."""
  with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
    try:
      probe.connect(('10.255.255.255', 1))
      return probe.getsockname()[0]
    except OSError:
      return _ip_address(socket.gethostname())


def is_first() -> bool:
  """Whether this process writes what the run writes once; true of a process alone."""
  return _group.index == 0


def started() -> bool:
  """Whether `start` was called."""
  return _started


def index() -> int:
  """Number of this process."""
  return _group.index


def count() -> int:
  """Processes of the run."""
  return _group.count


def share(value: Any = None) -> Any:
  """The first process's value (plain JSON) in all; every process calls it, the others wait."""
  if count() == 1:
    return value
  if not is_first():
    return _group.values.get()
  _group.send({'value': value})
  return json.loads(json.dumps(value))


def agree(ok: bool) -> bool:
  """Whether `ok` holds in all processes; every process calls it."""
  if count() == 1:
    return ok
  import numpy as np
  from jax.experimental import multihost_utils
  return bool(multihost_utils.process_allgather(np.int32(ok)).all())


@contextlib.contextmanager
def cooperative() -> Iterator[None]:
  """Work in the block asks `stop_here` at every step; elsewhere a signal ends all at once."""
  _group.cooperative += 1
  try:
    yield
  finally:
    _group.cooperative -= 1


def ask_to_stop(why: str) -> None:
  """Asks all processes to stop (this one got a signal)."""
  if _started:
    _group.send({'stop': why})
    _group.stop(why)


def stop_here() -> bool:
  """Whether all processes stop after the step just done; every process calls it after each."""
  if not _started:
    return False
  from jax.experimental import multihost_utils
  _group.stopped |= _group.step()
  # Whether the runtime has a notice, and all have reached the step that it chose.
  _group.stopped |= multihost_utils.reached_preemption_sync_point(_group.position)
  return _group.stopped


def leave(code: int) -> int:
  """Ends this process's part: sends the others its exit code, and returns it."""
  if not _started:
    return code
  # After a stop that all agreed on, each leaves in its own time, as after a success.
  alone = code and not (code == PREEMPTED and _group.stopped)
  _group.send({'end': code if alone else 0,
               'why': f'process {_group.index} ended with code {code}'})
  if alone:  # JAX would wait for the others to leave, and they for this one
    end_now(code, '')
  return code


def wait_for_loss() -> None:
  """Waits until the loss of a peer, if that broke a collective, has ended this process."""
  if count() > 1:
    time.sleep(_LOSS_SECONDS)


def end_all(code: int, line: str) -> None:
  """Ends this process and the others of its run without waiting for anything."""
  _group.send({'end': code, 'why': line})
  end_now(code, line)


def end_now(code: int, line: str) -> None:
  """Ends the process without waiting for anything, also from a thread."""
  if line:
    os.write(2, f'fairjax: {line}\n'.encode())
  with contextlib.suppress(Exception):
    sys.stdout.flush()
  os._exit(code)


NUMBERS = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def heard_by(act: Callable[[int], None]) -> Iterator[None]:
  """Has a thread call `act(number)` for SIGINT and SIGTERM in the block."""
  if threading.current_thread() is not threading.main_thread():  # which alone may have handlers
    yield
    return

  # A handler written in Python would wait until the main thread has compiled or computed.
  def hear():
    while data := reader.recv(64):
      for number in data:
        if number in NUMBERS:
          act(number)

  reader, writer = socket.socketpair()
  writer.setblocking(False)
  thread = threading.Thread(target=hear, name='signals', daemon=True)
  previous = {number: signal.signal(number, lambda *_: None) for number in NUMBERS}
  before = signal.set_wakeup_fd(writer.fileno())
  thread.start()
  try:
    yield
  finally:
    signal.set_wakeup_fd(before)
    for number, handler in previous.items():
      signal.signal(number, handler)
    writer.close()
    thread.join()
    reader.close()


@contextlib.contextmanager
def ended_at_once(line: str) -> Iterator[None]:
  """Ends the process at a signal in the block, with `line` and code 128 + its number."""
  def end(number):
    os.write(2, f'fairjax: {line}\n'.encode())
    os._exit(128 + number)  # flushes nothing: the main thread may be writing and hold the stream

  with heard_by(end):
    yield


# `timeout` and job managers send SIGTERM to a process and to its group: twice within a moment is
# one request. Ctrl-C twice is two.
_ECHO_SECONDS = 1.0


class StopSignal:
  """Turns the first SIGINT or SIGTERM into a flag; a second one ends the process at once."""

  def __init__(self):
    self.received = False

  def here(self) -> bool:
    """Whether to stop after the step just done; the same answer in all processes."""
    return stop_here() if started() else self.received

  @contextlib.contextmanager
  def installed(self) -> Iterator['StopSignal']:
    """Handles the signals in the block; in other threads than the main one none come."""
    first = (0, 0.0)

    def act(number):
      nonlocal first
      now = time.monotonic()
      if number == signal.SIGTERM == first[0] and now - first[1] < _ECHO_SECONDS:
        return
      if self.received:
        os.write(2, b'fairjax: second signal: ends at once; the same command continues from the '
                    b'last checkpoint\n')
        os._exit(128 + number)
      self.received, first = True, (number, now)
      name = signal.Signals(number).name
      ask_to_stop(f'process {index()} received {name}')
      os.write(2, f'fairjax: {name}: stops after this step; once more ends at once\n'.encode())

    with heard_by(act):
      yield self
