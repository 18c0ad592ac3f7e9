"""A stand-in for Google's service on this machine: real gRPC, answers from a script."""

import collections
import contextlib
import datetime
import ipaddress
import threading
import time
from concurrent import futures

import grpc
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from google.cloud import language_v1
from google.protobuf.any_pb2 import Any as AnyMessage
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

METHOD = '/google.cloud.language.v1.LanguageService/AnalyzeSentiment'


def true_score(text: str) -> float:
  """What the stand-in thinks of a text: in [-1, 1], exact in float32."""
  return (sum(text.encode()) % 17 - 8) / 8


class Server:
  """Answers AnalyzeSentiment.

  Attributes:
    script: text -> list of what to do first with it: a `grpc.StatusCode`, (code, message), a number
      (score as it is), 'empty' (no document_sentiment), 'slow' (longer than any test waits).
    always: done to every text when set, after the script.
    texts: texts received, in order; `answered`: those that got a score.
    keys: values of the API key header received.
    delay: seconds before every answer.
  """

  def __init__(self, *, secure=None, delay=0.0):
    self.script, self.always, self.delay = collections.defaultdict(list), None, delay
    self.texts, self.answered, self.keys, self.languages = [], [], set(), set()
    self.running = self.most_running = 0
    self.lock = threading.Lock()
    self.released = threading.Event()
    self._server = grpc.server(futures.ThreadPoolExecutor(16))
    self._server.add_generic_rpc_handlers((_Handler(self),))
    if secure:
      self.port = self._server.add_secure_port(
        '127.0.0.1:0', grpc.ssl_server_credentials([secure]))
    else:
      self.port = self._server.add_insecure_port('127.0.0.1:0')
    self._server.start()

  def close(self):
    self.released.set()
    self._server.stop(None).wait()

  def client(self):
    """A client of Google's package that talks to this server without credentials."""
    from google.auth.credentials import AnonymousCredentials
    from google.cloud.language_v1.services.language_service.transports import (
      LanguageServiceGrpcTransport,
    )
    channel = grpc.insecure_channel(f'127.0.0.1:{self.port}')
    return language_v1.LanguageServiceClient(
      transport=LanguageServiceGrpcTransport(channel=channel, credentials=AnonymousCredentials()))

  def answer(self, request, context):
    text = request.document.content
    with self.lock:
      self.texts.append(text)
      self.languages.add(request.document.language)
      self.running += 1
      self.most_running = max(self.most_running, self.running)
      do = self.script[text].pop(0) if self.script[text] else self.always
    try:
      time.sleep(self.delay)
      return self._do(do, text, context)
    finally:
      with self.lock:
        self.running -= 1

  def _do(self, do, text, context):
    if do == 'slow':
      self.released.wait(30)
      do = None
    if isinstance(do, grpc.StatusCode):
      do = (do, 'scripted')
    if isinstance(do, status_pb2.Status):
      context.abort_with_status(rpc_status.to_status(do))
    if isinstance(do, tuple):
      context.abort(*do)
    if do == 'empty':
      return language_v1.AnalyzeSentimentResponse(language='en')
    score = true_score(text) if do is None else do
    with self.lock:
      self.answered.append(text)
    return language_v1.AnalyzeSentimentResponse(
      document_sentiment=language_v1.Sentiment(score=score, magnitude=abs(score)), language='en')


class _Handler(grpc.GenericRpcHandler):
  def __init__(self, server):
    self._server = server

  def service(self, details):
    if details.method != METHOD:
      return None
    with self._server.lock:
      self._server.keys |= {v for k, v in details.invocation_metadata if k == 'x-goog-api-key'}
    return grpc.unary_unary_rpc_method_handler(
      self._server.answer, language_v1.AnalyzeSentimentRequest.deserialize,
      language_v1.AnalyzeSentimentResponse.serialize)


def quota_status(limit: str) -> status_pb2.Status:
  detail = AnyMessage()
  detail.Pack(error_details_pb2.ErrorInfo(
    reason='RATE_LIMIT_EXCEEDED', domain='googleapis.com',
    metadata={'quota_limit': limit, 'service': 'language.googleapis.com'}))
  return status_pb2.Status(
    code=grpc.StatusCode.RESOURCE_EXHAUSTED.value[0], message='Quota exceeded', details=[detail])


@contextlib.contextmanager
def running(**arguments):
  server = Server(**arguments)
  try:
    yield server
  finally:
    server.close()


def self_signed(folder):
  """(key, certificate) for this machine as PEM, and the path of the certificate."""
  key = ec.generate_private_key(ec.SECP256R1())
  name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, 'localhost')])
  # The number too: no test needs to look a name up.
  names = [x509.DNSName('localhost'), x509.IPAddress(ipaddress.ip_address('127.0.0.1'))]
  now = datetime.datetime.now(datetime.UTC)
  certificate = (
    x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    .serial_number(x509.random_serial_number()).not_valid_before(now - datetime.timedelta(days=1))
    .not_valid_after(now + datetime.timedelta(days=1))
    .add_extension(x509.SubjectAlternativeName(names), critical=False)
    .sign(key, hashes.SHA256()))
  pem = certificate.public_bytes(serialization.Encoding.PEM)
  private = key.private_bytes(
    serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
  path = folder / 'certificate.pem'
  path.write_bytes(pem)
  return (private, pem), path
