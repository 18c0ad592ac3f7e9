"""A web server on this machine."""

import contextlib
import functools
import http.server
import threading


@contextlib.contextmanager
def served(handler, **options):
  """The address at which a handler answers, without a log."""
  quiet = type('Quiet', (handler,), {'log_message': lambda *_: None})
  with http.server.ThreadingHTTPServer(
      ('127.0.0.1', 0), functools.partial(quiet, **options)) as server:
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
      yield f'http://127.0.0.1:{server.server_port}'
    finally:
      server.shutdown()
