"""Several processes as one run: who is first, what all agree on, who is gone, when all stop.

`start` joins the group through `jax.distributed`; without it there is one process and every
function here answers at once. Beside JAX's own service, which notices a dead peer by missing
heartbeats and then aborts, each process holds a connection to the first one: the kernel closes it
when a process dies, so that the others end within a second, with a line that says who is gone.
"""

import contextlib
import hmac
import json
import os
import queue
import secrets
import selectors
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from fairjax.errors import UserError

PREEMPTED = 42
HEARTBEAT_SECONDS = 30  # after which JAX takes a machine that no longer answers for dead
START_SECONDS = 120  # within which all processes must have started
_LOSS_SECONDS = 3
_FOREVER_MS = 2 ** 31 - 1  # 24 days; a lost peer ends the wait


class _Group:
  """This process's part in the group; the first process is the hub of the connections."""

  def __init__(self, index: int, count: int, client: Any):
    self.index, self.count, self._client = index, count, client
    self._calls = 0
    self._lock = threading.Lock()
    self._peers: dict[int, socket.socket] = {}
    self._finished: set[int] = set()
    self._positions: dict[int, int] = {}
    self._until: int | None = None
    self._asked, self._agreed = threading.Event(), threading.Event()
    self.work: queue.SimpleQueue[Any] = queue.SimpleQueue()
    self._step, self._position = threading.Lock(), 0
    self.noticed = False  # by the runtime
    self.stopped = False  # all agreed to
    self.cooperative = 0
    if count > 1:
      self._connect()
      threading.Thread(target=self._watch, name='peers', daemon=True).start()

  def key(self, kind: str) -> str:
    """A key that all processes use for this call and none for another."""
    self._calls += 1
    return f'fairjax/{kind}/{self._calls}'

  def put(self, key: str, value: Any) -> None:
    """Writes to the store of the group."""
    self._client.key_value_set(key, json.dumps(value))

  def get(self, key: str) -> Any:
    """Waits until a key is written."""
    return json.loads(self._client.blocking_key_value_get(key, _FOREVER_MS))

  def _connect(self) -> None:
    key = self.key('hub')
    if self.index:
      host, port, token = self.get(key)
      hub = socket.create_connection((host, port), timeout=START_SECONDS)
      hub.settimeout(None)
      self._peers[0] = hub
      self._send(0, {'hello': self.index, 'token': token})
      return
    token, host = secrets.token_hex(16), _hub_host()
    with socket.create_server((host, 0), backlog=self.count) as server:
      server.settimeout(START_SECONDS)
      self.put(key, (host, server.getsockname()[1], token))
      while len(self._peers) < self.count - 1:
        peer, _ = server.accept()
        peer.settimeout(START_SECONDS)
        try:
          hello = json.loads(peer.makefile('rb', buffering=0).readline(200))
          known = hmac.compare_digest(str(hello['token']), token)
        except (OSError, ValueError, KeyError, TypeError):
          known = False
        if not known:  # something else that looks for open ports
          peer.close()
          continue
        peer.settimeout(None)
        self._peers[int(hello['hello'])] = peer

  def _send(self, peer: int, message: dict[str, Any]) -> None:
    with self._lock, contextlib.suppress(OSError):  # a dead peer is noticed by the watch
      self._peers[peer].sendall(json.dumps(message).encode() + b'\n')

  def tell(self, message: dict[str, Any]) -> None:
    """Sends to all others; those beside the hub are reached through it."""
    for peer in list(self._peers):
      self._send(peer, message)

  def _watch(self) -> None:
    """Reads what the others say until the process ends."""
    with selectors.DefaultSelector() as selector:
      for peer, connection in self._peers.items():
        selector.register(connection, selectors.EVENT_READ, (peer, bytearray()))
      while selector.get_map():
        for event, _ in selector.select():
          peer, buffer = event.data
          try:
            data = event.fileobj.recv(2 ** 16)
          except OSError:
            data = b''
          if not data:
            selector.unregister(event.fileobj)
            self._gone(peer)
          buffer += data
          while b'\n' in buffer:
            line, _, rest = bytes(buffer).partition(b'\n')
            buffer[:] = rest
            self._hear(peer, json.loads(line))

  def _gone(self, peer: int) -> None:
    if peer not in self._finished:
      self._hear(peer, {'end': PREEMPTED, 'index': peer, 'why': (
        f'process {peer} of {self.count} is gone (killed, or its machine failed); started again in '
        'all processes, the same command continues from the last checkpoint')})

  def _hear(self, peer: int, message: dict[str, Any]) -> None:
    """Acts on a message, and passes it on if this is the hub."""
    if self.index == 0 and 'at' not in message and message.get('end') != 0:
      for other in self._peers:
        if other != peer:
          self._send(other, message)
    if message.get('end') == 0:
      self._finished.add(peer)
    elif 'end' in message:
      end_now(message['end'], f'process {self.index} ends: {message["why"]}')
    elif 'work' in message:
      self.work.put(message['work'])
    elif 'stop' in message:
      self.ask(message['stop'])
    elif 'at' in message:
      self._report(message['index'], message['at'])
    elif 'until' in message:
      self._until = message['until']
      self._agreed.set()

  def ask(self, why: str) -> None:
    """Notes that the group is to stop; outside of cooperative work at once."""
    if not self.cooperative:
      self.tell({'end': PREEMPTED, 'index': self.index, 'why': why})
      end_now(PREEMPTED, f'{why}; the same command continues')
    # Reported here, in the thread that hears it: the main thread may be in a step that ends only
    # when the others take part.
    with self._step:
      if self._asked.is_set():
        return
      self._asked.set()
      position = self._position
    if self.index:
      self._send(0, {'at': position, 'index': self.index})
    else:
      self._report(0, position)

  def _report(self, index: int, position: int) -> None:
    self._positions[index] = position
    if len(self._positions) == self.count:
      self._until = max(self._positions.values()) + 1
      self.tell({'until': self._until})
      self._agreed.set()

  def reached(self, position: int) -> bool:
    """Whether all stop here: one step behind the furthest that any had done when asked."""
    with self._step:
      self._position = position
      if not self._asked.is_set():
        return False
    self._agreed.wait()  # for messages only, which need no step
    return position >= self._until


_group: _Group | None = None


def start(spec: str) -> None:
  """Joins the processes of a run; the first thing that a process does with JAX.

  Args:
    spec: `auto` where JAX finds out itself (Cloud TPU, GKE, Slurm, MPI), or
      `HOST:PORT,COUNT,INDEX`: an address of the first process that the others reach, how many there
      are, and which this is.

  Raises:
    UserError: the text is not of that form, or the processes do not find each other.
  """
  global _group
  import jax
  from jax._src import distributed  # the store and the address have no public name
  arguments: dict[str, Any] = {}
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
  try:
    jax.distributed.initialize(
      **arguments, heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
      initialization_timeout=START_SECONDS)
  except (RuntimeError, ValueError) as e:
    if spec == 'auto' and 'should be defined' in str(e):
      raise UserError(
        '--distributed=auto finds no group here: neither Cloud TPU, GKE, Slurm nor MPI names the '
        'address of the first process, their number and which this is: leave --distributed out '
        'where one process works alone, or say all three: --distributed=HOST:PORT,COUNT,INDEX'
      ) from None
    raise UserError(f'--distributed={spec}: the processes do not find each other '
                    f'({str(e).splitlines()[0]}): start the same command on every machine') from e
  state = distributed.global_state
  _group = _Group(state.process_id, state.num_processes, state.client)
  if _group.count > 1:
    # All are here now. On CPUs the first collective connects them and waits 30 s at most, which one
    # that still compiles might miss.
    from jax.experimental import multihost_utils
    agree(True)
    multihost_utils.sync_global_devices('fairjax')


def _hub_host() -> str:
  """The address under which the others reach the first process."""
  from jax._src import distributed
  host = distributed.global_state.coordinator_address.rpartition(':')[0].strip('[]')
  try:
    return socket.gethostbyname(host)
  except OSError:
    return host


def is_first() -> bool:
  """Whether this process writes what the run writes once; true of a process alone."""
  return _group is None or _group.index == 0


def started() -> bool:
  """Whether `start` was called."""
  return _group is not None


def index() -> int:
  """Number of this process."""
  return 0 if _group is None else _group.index


def count() -> int:
  """Processes of the run."""
  return 1 if _group is None else _group.count


def share(value: Any = None) -> Any:
  """The first process's value (plain JSON) in all, which wait for it; every process calls this."""
  if count() == 1:
    return value
  key = _group.key('share')
  if is_first():
    _group.put(key, value)
    return json.loads(json.dumps(value))
  return _group.get(key)


def agree(ok: bool) -> bool:
  """Whether `ok` holds in all processes; every process calls it."""
  if count() == 1:
    return ok
  key = _group.key('agree')
  _group.put(f'{key}/{_group.index}', bool(ok))
  return all([_group.get(f'{key}/{i}') for i in range(_group.count)])


def hand_out(work: Any) -> None:
  """Gives a piece of work (plain JSON) to all other processes; the first one calls it.

  It goes over the connections: what is shared (`share`) stays in the store of the group for good.
  """
  if count() > 1:
    _group.tell({'work': work})


def take() -> Any:
  """Waits for the next piece of work that the first process hands out, in their order."""
  return _group.work.get()


@contextlib.contextmanager
def cooperative() -> Iterator[None]:
  """Work in the block asks `stop_here` at every step; elsewhere a signal ends all at once."""
  if _group is not None:
    _group.cooperative += 1
  try:
    yield
  finally:
    if _group is not None:
      _group.cooperative -= 1


def ask_to_stop(why: str) -> None:
  """Asks all processes to stop (this one got a signal)."""
  if _group is not None:
    _group.tell({'stop': why})
    _group.ask(why)


_position = 0


def stop_here() -> bool:
  """Whether all processes stop after the step just done; every process calls it after every step.

  Also true where the runtime has a preemption notice and has agreed on this step.
  """
  global _position
  if _group is None:
    return False
  from jax.experimental import multihost_utils
  _position += 1
  _group.noticed |= multihost_utils.reached_preemption_sync_point(_position)
  _group.stopped = _group.reached(_position) or _group.noticed
  return _group.stopped


def leave(code: int) -> int:
  """The end of a process: tells the others how it ended, and returns the code.

  A process that failed does not return: JAX would wait for the others to leave, and they for it.
  """
  if _group is None:
    return code
  # After a stop that all agreed on, each leaves in its own time, as after a success.
  alone = code and not (code == PREEMPTED and _group.stopped)
  _group.tell({'end': code if alone else 0, 'index': _group.index,
               'why': f'process {_group.index} ended with code {code}'})
  if alone:
    end_now(code, '')
  return code


def wait_for_loss() -> None:
  """Gives the watch the time to end this process because another one is gone."""
  if count() > 1:
    time.sleep(_LOSS_SECONDS)


def end_now(code: int, line: str) -> None:
  """Ends the process without waiting for anything, also from a thread."""
  if line:
    os.write(2, f'fairjax: {line}\n'.encode())
  with contextlib.suppress(Exception):
    sys.stdout.flush()
  os._exit(code)


# SIGINT and SIGTERM, heeded while the main thread computes or compiles.

NUMBERS = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def heard_by(act: Callable[[int], None]) -> Iterator[None]:
  """Has a thread call `act(number)` for each of the signals in the block (main thread only).

  A handler written in Python would wait until the main thread has compiled or computed.
  """
  def handle(number, frame):
    pass  # the thread below acts

  def hear():
    while data := reader.recv(64):
      for number in data:
        if number in NUMBERS:
          act(number)

  reader, writer = socket.socketpair()
  writer.setblocking(False)
  thread = threading.Thread(target=hear, name='signals', daemon=True)
  previous = {number: signal.signal(number, handle) for number in NUMBERS}
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
  """One of the signals in the block ends the process, with `line` and code 128 + its number.

  So a shell counts a process that a signal ended. In a thread that is not the main one, nothing.
  """
  if threading.current_thread() is not threading.main_thread():
    yield
    return

  def end(number):
    os.write(2, f'fairjax: {line}\n'.encode())
    os._exit(128 + number)  # flushes nothing: the main thread may be writing and hold the stream

  with heard_by(end):
    yield


# Signals that ask a run to stop: the first is heeded at the next step, the second at once.

# Who ends a job often tells the process and its whole group (`timeout` does): SIGTERM twice in a
# moment is one request. Ctrl-C twice is two.
_ECHO_SECONDS = 1.0


class StopSignal:
  """Turns the first SIGINT or SIGTERM into a flag; a second one ends the process at once."""

  def __init__(self):
    self.received = False

  def here(self) -> bool:
    """Whether to stop after the step just done; in a group all processes get the same answer."""
    return stop_here() if started() else self.received

  @contextlib.contextmanager
  def installed(self) -> Iterator['StopSignal']:
    """Handles the signals inside the block (main thread only).

    A second one ends the process with code 128 + its number, as if there were no handler.
    """
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
