"""Tokenizers of model directories, and texts as token ids: cut where too long, and counted."""

import hashlib
import json
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fairjax.errors import UserError

_FAR = 10 ** 9  # tokenizer_config.json writes 1e30 for "no limit"


class WithinModel:
  """A tokenizer with tokens that its model has no embedding of: refused where a text holds one.

  Everything else is that of the `tokenizers.Tokenizer`, as if these tokens were not there.
  """

  def __init__(self, tokenizer: Any, vocab_size: int, where: str):
    self._tokenizer, self._vocab_size, self._where = tokenizer, vocab_size, where

  def __getattr__(self, name: str) -> Any:
    if name == '_tokenizer':  # before it is set there is nothing to ask
      raise AttributeError(name)
    return getattr(self._tokenizer, name)

  def token_to_id(self, token: str) -> int | None:
    """As the tokenizer's."""
    found = self._tokenizer.token_to_id(token)
    return None if found is None or found >= self._vocab_size else found

  def get_added_tokens_decoder(self) -> dict[int, Any]:
    """As the tokenizer's."""
    found = self._tokenizer.get_added_tokens_decoder()
    return {i: token for i, token in found.items() if i < self._vocab_size}

  def encode(self, *args, **kwargs) -> Any:
    """As the tokenizer's.

    Raises:
      UserError: a token is none of the model's.
    """
    return self._checked([self._tokenizer.encode(*args, **kwargs)])[0]

  def encode_batch(self, *args, **kwargs) -> list[Any]:
    """As the tokenizer's.

    Raises:
      UserError: a token is none of the model's.
    """
    return self._checked(self._tokenizer.encode_batch(*args, **kwargs))

  def _checked(self, encodings: list[Any]) -> list[Any]:
    for number, encoding in enumerate(encodings, 1):
      for token, i in zip(encoding.tokens, encoding.ids, strict=True):
        if i >= self._vocab_size:
          raise UserError(
            f'text {number} of {len(encodings)} holds {token!r}, token {i} of the tokenizer, but '
            f'{self._where} has {self._vocab_size} embeddings: take the token out of the text, or '
            'give a model whose embeddings were resized to its tokenizer (resize_token_embeddings)')
    return encodings


def within_model(tokenizer: Any, vocab_size: int, where: str) -> tuple[Any, list[str]]:
  """A tokenizer for a model with another number of embeddings, as the reference library takes them.

  A model may have more (a padded table); the tokenizer may have added tokens without any.

  Args:
    tokenizer: a `tokenizers.Tokenizer`.
    vocab_size: embeddings of the model.
    where: directory of both, for messages.

  Returns:
    The tokenizer or, where it has tokens beyond the model's, `WithinModel`; lines that say so.
  """
  ids = tokenizer.get_vocab(with_added_tokens=True)
  beyond = sorted((i, token) for token, i in ids.items() if i >= vocab_size)
  head = f'{where}: the tokenizer has {len(ids)} tokens, the model {vocab_size} embeddings'
  lines = []
  unused = vocab_size + len(beyond) - len(ids)
  if unused:
    lines.append(f'{head}: {unused} of them belong to no token (a padded table) and are never '
                 'drawn')
  if beyond:
    shown = ', '.join(repr(token) for _, token in beyond[:4])
    lines.append(f'{head}: {len(beyond)} added tokens have none ({shown}): a text that holds one '
                 'is refused')
    tokenizer = WithinModel(tokenizer, vocab_size, where)
  return tokenizer, lines


def unused_ids(tokenizer: Any, vocab_size: int) -> tuple[int, ...]:
  """Ids of a model that are no token of its tokenizer, such as the padding of its table."""
  return tuple(sorted(set(range(vocab_size))
                      - set(tokenizer.get_vocab(with_added_tokens=True).values())))


class Encoded(NamedTuple):
  """Token ids of texts.

  Attributes:
    ids: one int32 array a text, special tokens included.
    truncated: how many texts were longer than the model reads and lost their end.
    repaired: how many texts held lone surrogates, which were replaced by U+FFFD.
    cut: of each text whether it lost its end; None where nobody asks (pairs).
  """

  ids: list[np.ndarray]
  truncated: int
  repaired: int
  cut: list[bool] | None = None


class CutTexts:
  """Which texts were cut, remembered from their encoding: counting them takes no second one.

  Args:
    encode: texts to `Encoded` with `cut`.
  """

  def __init__(self, encode: Callable[[Sequence[str]], Encoded]):
    self._encode = encode
    self._known: dict[bytes, bool] = {}  # by digest: the texts themselves can go

  def encode(self, texts: Sequence[str]) -> Encoded:
    """Encodes texts."""
    encoded = self._encode(texts)
    self._known.update(zip(map(_digest, texts), encoded.cut, strict=True))
    return encoded

  def count(self, texts: Sequence[str]) -> int:
    """How many of the texts lose their end; only those that were not encoded yet are now."""
    digests = [_digest(text) for text in texts]
    new = {d: text for d, text in zip(digests, texts, strict=True) if d not in self._known}
    if new:
      self.encode(list(new.values()))
    return sum(self._known[d] for d in digests)


def _digest(text: str) -> bytes:
  return hashlib.blake2b(text.encode('utf-8', 'surrogatepass'), digest_size=16).digest()


def load_tokenizer(directory: pathlib.Path, *, kind: str, vocab_size: int) -> Any:
  """Reads `tokenizer.json`; for BERT also `vocab.txt` with `tokenizer_config.json`.

  Returns:
    A `tokenizers.Tokenizer` without padding and truncation; see `within_model`.

  Raises:
    UserError: no such file, one that cannot be read or that another contradicts, or ordinary tokens
      that the model has no embeddings of.
  """
  path = directory / 'tokenizer.json'
  if path.is_file():
    import tokenizers
    try:
      tokenizer = tokenizers.Tokenizer.from_file(str(path))
    except Exception as e:  # the package raises plain Exception
      raise UserError(f'{path} cannot be read ({e}): it is damaged, or newer than the package '
                      'tokenizers: download it again, or upgrade the package') from None
    if kind == 'bert':
      _check_normalizer(path, tokenizer)
  elif kind == 'bert' and (directory / 'vocab.txt').is_file():
    path = directory / 'vocab.txt'
    tokenizer = _from_word_list(path)
  else:
    other = ' nor vocab.txt' if kind == 'bert' else ''
    raise UserError(f'{directory} holds no tokenizer.json{other}: download the whole directory, or '
                    'write it with save_pretrained of the tokenizer in its fast form '
                    '(AutoTokenizer.from_pretrained(..., use_fast=True))')
  tokenizer.no_padding()
  tokenizer.no_truncation()
  ids, added = tokenizer.get_vocab(with_added_tokens=True), tokenizer.get_added_tokens_decoder()
  beyond = {token: i for token, i in ids.items() if i >= vocab_size}
  ordinary = [token for token, i in beyond.items() if i not in added]
  if ordinary:  # the model would read the embedding of another token in its place
    raise UserError(
      f'{path} has {len(ids)} tokens with ids up to {max(ids.values())}, the model {vocab_size} '
      f'(vocab_size in config.json): {len(ordinary)} of them, like {ordinary[0]!r}, would have no '
      'embedding: it is damaged, or the tokenizer of another model: take both from one directory')
  return tokenizer


def _check_normalizer(path: pathlib.Path, tokenizer: Any) -> None:
  """Case and accents must be what `tokenizer_config.json` says: some programs follow that one."""
  options, normalizer = path.parent / 'tokenizer_config.json', tokenizer.normalizer
  if not options.is_file() or type(normalizer).__name__ != 'BertNormalizer':
    return
  said = read_json(options)
  for name, found in (('do_lower_case', normalizer.lowercase),
                      ('strip_accents', normalizer.strip_accents),
                      ('tokenize_chinese_chars', normalizer.handle_chinese_chars)):
    if name in said and said[name] != found:
      raise UserError(f'{options} says {name}={said[name]}, {path.name} does as with {found}: keep '
                      'the one that the model was trained with')


def wordpiece_tokenizer(vocabulary: Mapping[str, int], options: Mapping[str, Any], *, where: str):
  """BERT's tokenizer over a vocabulary.

  Args:
    vocabulary: token -> id.
    options: `do_lower_case`, `strip_accents`, `tokenize_chinese_chars` and the names of the special
      tokens, as in `tokenizer_config.json`.
    where: file of the vocabulary, for messages.

  Raises:
    UserError: a special token is not in the vocabulary.
  """
  import tokenizers
  special = {}
  for role, default in (('unk', '[UNK]'), ('cls', '[CLS]'), ('sep', '[SEP]'), ('pad', '[PAD]'),
                        ('mask', '[MASK]')):
    token = options.get(f'{role}_token', default)
    token = token.get('content') if isinstance(token, dict) else token
    if not isinstance(token, str) or token not in vocabulary:
      raise UserError(f'{where} has no {role} token {token!r}: add the line, or name the token '
                      f'that it has as {role}_token in tokenizer_config.json')
    special[role] = token
  tokenizer = tokenizers.Tokenizer(tokenizers.models.WordPiece(
    dict(vocabulary), unk_token=special['unk'], max_input_chars_per_word=100))
  tokenizer.normalizer = tokenizers.normalizers.BertNormalizer(
    clean_text=True, handle_chinese_chars=options.get('tokenize_chinese_chars', True),
    strip_accents=options.get('strip_accents'), lowercase=options.get('do_lower_case', True))
  tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
  tokenizer.post_processor = tokenizers.processors.BertProcessing(
    *[(special[role], vocabulary[special[role]]) for role in ('sep', 'cls')])
  tokenizer.decoder = tokenizers.decoders.WordPiece(prefix='##')
  tokenizer.add_special_tokens(list(special.values()))
  return tokenizer


def _from_word_list(path: pathlib.Path):
  """The tokenizer of a `vocab.txt`; how it treats case stands in `tokenizer_config.json`."""
  options = path.parent / 'tokenizer_config.json'
  if not options.is_file():
    raise UserError(f'{path.parent} holds vocab.txt without tokenizer_config.json, which says '
                    'whether case counts (do_lower_case): add it, or tokenizer.json')
  try:
    words = path.read_text(encoding='utf-8').split('\n')
  except (OSError, UnicodeDecodeError) as e:
    raise UserError(f'{path} cannot be read ({e})') from None
  words = [w.removesuffix('\r') for w in (words[:-1] if words[-1] == '' else words)]
  vocabulary = {word: i for i, word in enumerate(words)}
  if len(vocabulary) != len(words):
    raise UserError(f'{path} holds a token twice: {len(words)} lines, {len(vocabulary)} tokens: '
                    'download it again')
  return wordpiece_tokenizer(vocabulary, _text_options(options), where=str(path))


def _text_options(path: pathlib.Path) -> dict[str, Any]:
  """`tokenizer_config.json`, whose treatment of text must be said in truth values."""
  options = read_json(path)
  for name in ('do_lower_case', 'strip_accents', 'tokenize_chinese_chars'):
    value = options.get(name, True)
    if not isinstance(value, bool) and not (name == 'strip_accents' and value is None):
      raise UserError(f'{path}: {name} is {value!r}, it must be true or false')
  return options


def read_json(path: pathlib.Path, *, remedy: str = '') -> dict[str, Any]:
  """The object in a JSON file.

  Args:
    path: of the file.
    remedy: what to do where there is none.

  Raises:
    UserError: it cannot be read, or holds something else.
  """
  try:
    value = json.loads(path.read_text(encoding='utf-8-sig'))
  except OSError as e:
    raise UserError(f'{path}: {e.strerror or e}{remedy and ": "}{remedy}') from None
  except (ValueError, RecursionError) as e:
    raise UserError(f'{path} is not JSON ({e}): it is damaged, download it again') from None
  if not isinstance(value, dict):
    raise UserError(f'{path} holds no JSON object: it is damaged, download it again')
  return value


def length_limit(directory: pathlib.Path, max_positions: int) -> int:
  """Tokens that a text may have, special ones included: the least of what the files say."""
  limits = [max_positions]
  for name, field in (('tokenizer_config.json', 'model_max_length'),
                      ('sentence_bert_config.json', 'max_seq_length')):
    path = directory / name
    limit = read_json(path).get(field) if path.is_file() else None
    if limit is None:
      continue
    # NaN, which Python's JSON reads, is not >= 3 either.
    if not isinstance(limit, int | float) or isinstance(limit, bool) or not limit >= 3:
      raise UserError(f'{path}: {field} is {limit!r}, a number of tokens above 2 is needed')
    limits.append(int(min(limit, _FAR)))
  return min(limits)


def is_broken(text: str) -> bool:
  """Whether a text holds half a character (a lone surrogate), which no tokenizer takes."""
  try:
    text.encode('utf-8')
  except UnicodeEncodeError:
    return True
  return False


def encode_texts(tokenizer: Any, texts: Sequence[str], *, max_length: int) -> Encoded:
  """Token ids of texts, special tokens included, of at most `max_length` tokens each.

  Raises:
    UserError: the tokenizer gives a text no token at all.
  """
  whole, repaired = [], 0
  for text in texts:
    broken = is_broken(text)
    repaired += broken
    whole.append(
      text.encode('utf-8', 'surrogatepass').decode('utf-8', 'replace') if broken else text)
  tokenizer.enable_truncation(max_length)
  encodings = tokenizer.encode_batch(whole)
  ids = [np.array(e.ids, np.int32) for e in encodings]
  empty = [i for i, row in enumerate(ids) if not row.size]
  if empty:
    raise UserError(f'text {empty[0] + 1} of {len(texts)} has no tokens ({texts[empty[0]][:60]!r})')
  cut = [bool(e.overflowing) for e in encodings]
  return Encoded(ids, sum(cut), repaired, cut)
