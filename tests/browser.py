"""A real browser for tests of pages: Chromium without a window, driven over its pipe.

Chromium speaks the DevTools protocol over two inherited file descriptors (3 in, 4 out): no port, no
driver program, no package. Clicks and keys are real input events: they go to whatever lies under
the pointer or has the focus.
"""

import base64
import json
import os
import pathlib
import select
import shutil
import signal
import subprocess
import sys
import time

NAMES = ('chromium', 'chromium-browser', 'google-chrome', 'google-chrome-stable')
KEYS = {'Enter': 13, 'Tab': 9, 'Escape': 27, 'Home': 36, 'End': 35, 'ArrowLeft': 37, 'ArrowUp': 38,
        'ArrowRight': 39, 'ArrowDown': 40}
# The descriptors of the pipe become 3 and 4, in a process that does nothing else with them.
_LAUNCH = '''
import fcntl, os, sys
r, w = (fcntl.fcntl(int(n), fcntl.F_DUPFD, 10) for n in sys.argv[1:3])
os.dup2(r, 3), os.dup2(w, 4)
os.execv(sys.argv[3], sys.argv[3:])
'''


def find_browser() -> str | None:
  return next((path for path in map(shutil.which, NAMES) if path), None)


class Browser:
  """One page in one browser, whose profile is in `folder`; sizes in CSS pixels."""

  def __init__(self, folder: pathlib.Path, *, width: int = 1200, height: int = 900):
    to_browser, self._in = os.pipe()
    self._out, from_browser = os.pipe()
    self._process = subprocess.Popen(
      [sys.executable, '-I', '-c', _LAUNCH, str(to_browser), str(from_browser), find_browser(),
       '--headless=new', '--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage',
       '--no-first-run', '--disable-background-networking', '--disable-component-update',
       '--disable-sync', '--hide-scrollbars', f'--user-data-dir={folder / "profile"}',
       '--remote-debugging-pipe',
       'about:blank'],
      pass_fds=(to_browser, from_browser), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
      stderr=subprocess.DEVNULL, start_new_session=True)
    os.close(to_browser)
    os.close(from_browser)
    self._buffer, self._number, self._session = b'', 0, None
    self.events: list[dict] = []
    target = self.call('Target.createTarget', url='about:blank')['targetId']
    self._session = self.call('Target.attachToTarget', targetId=target, flatten=True)['sessionId']
    for domain in ('Page', 'Runtime', 'Network', 'Log'):
      self.call(f'{domain}.enable')
    self.resize(width, height)

  def call(self, method: str, **parameters):
    """Calls a method of the protocol and returns its result; events are kept in `events`."""
    self._number += 1
    message = {'id': self._number, 'method': method, 'params': parameters}
    if self._session:
      message['sessionId'] = self._session
    os.write(self._in, json.dumps(message).encode() + b'\0')
    while True:
      answer = self._read()
      if answer.get('id') == self._number:
        assert 'error' not in answer, (method, answer['error'])
        return answer['result']

  def _read(self, seconds: float = 60) -> dict:
    end = time.monotonic() + seconds
    while b'\0' not in self._buffer:
      ready, _, _ = select.select([self._out], [], [], max(0, end - time.monotonic()))
      data = os.read(self._out, 1 << 16) if ready else b''
      assert data, 'the browser does not answer'
      self._buffer += data
    line, _, self._buffer = self._buffer.partition(b'\0')
    message = json.loads(line)
    if 'method' in message:
      self.events.append(message)
    return message

  def open(self, url: str) -> None:
    before = len(self.events)
    self.call('Page.navigate', url=url)
    while not any(e['method'] == 'Page.loadEventFired' for e in self.events[before:]):
      self._read()

  def js(self, expression: str):
    """Value of an expression in the page, as JSON types; a promise is waited for."""
    result = self.call('Runtime.evaluate', expression=expression, returnByValue=True,
                       awaitPromise=True)
    assert 'exceptionDetails' not in result, (expression, result['exceptionDetails'])
    return result['result'].get('value')

  def until(self, condition: str, seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not self.js(condition):
      assert time.monotonic() < end, f'never came true: {condition}'
      time.sleep(0.02)

  def text(self, selector: str) -> str:
    """The text of an element as it is shown (collapsed and hidden parts are not)."""
    return self.js(f'document.querySelector({json.dumps(selector)}).innerText')

  def click(self, selector: str) -> None:
    """Presses and releases the mouse in the middle of an element, which must lie on top."""
    x, y, hit = self.js(f'''(() => {{
      const e = document.querySelector({json.dumps(selector)});
      e.scrollIntoView({{block: 'center', inline: 'center', behavior: 'instant'}});
      const r = e.getBoundingClientRect(), x = r.x + r.width / 2, y = r.y + r.height / 2;
      const top = document.elementFromPoint(x, y);
      return [x, y, e.contains(top) || !!(top && top.control === e)];
    }})()''')
    assert hit, f'{selector} is covered or out of sight'
    for kind in ('mousePressed', 'mouseReleased'):
      self.call('Input.dispatchMouseEvent', type=kind, x=x, y=y, button='left', clickCount=1)

  def press(self, key: str) -> None:
    for kind in ('keyDown', 'keyUp'):
      text = {'text': '\r'} if key == 'Enter' and kind == 'keyDown' else {}
      self.call('Input.dispatchKeyEvent', type=kind, key=key, code=key,
                windowsVirtualKeyCode=KEYS[key], **text)

  def type(self, text: str) -> None:
    self.call('Input.insertText', text=text)

  def resize(self, width: int, height: int) -> None:
    """Sets the size of the window, in CSS pixels; narrow ones are phones."""
    self.call('Emulation.setDeviceMetricsOverride', width=width, height=height,
              deviceScaleFactor=1, mobile=width < 600)

  def scheme(self, name: str) -> None:
    self.call('Emulation.setEmulatedMedia',
              features=[{'name': 'prefers-color-scheme', 'value': name}])

  def screenshot(self, path: pathlib.Path, *, whole: bool = True) -> None:
    data = self.call('Page.captureScreenshot', captureBeyondViewport=whole)['data']
    path.write_bytes(base64.b64decode(data))

  def pdf(self) -> bytes:
    printed = self.call('Page.printToPDF', paperWidth=8.27, paperHeight=11.69)
    return base64.b64decode(printed['data'])

  @property
  def requests(self) -> list[str]:
    return [e['params']['request']['url'] for e in self.events
            if e['method'] == 'Network.requestWillBeSent']

  @property
  def complaints(self) -> list[str]:
    """Errors of scripts, what they logged, and what the security policy stopped."""
    kinds = ('Runtime.exceptionThrown', 'Runtime.consoleAPICalled', 'Log.entryAdded')
    return [json.dumps(e['params']) for e in self.events if e['method'] in kinds]

  def close(self) -> None:
    try:
      os.killpg(self._process.pid, signal.SIGKILL)
    except ProcessLookupError:
      pass
    self._process.wait(timeout=30)
    os.close(self._in)
    os.close(self._out)
