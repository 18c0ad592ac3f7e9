"""Tokenizers of model directories, and texts as token ids: cut where too long, and counted."""

import hashlib
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fairjax.errors import UserError
from fairjax.inputs import replace_broken
from fairjax.vocabulary import (
  named_tokens,
  parse_tokenizer,
  read_json,
  refuse_tokens_beyond,
)

_FAR = 10 ** 9  # tokenizer_config.json writes 1e30 for "no limit"


class WithinModel:
  """A tokenizer with tokens that its model has no embedding of: refused where a text holds one."""

  def __init__(self, tokenizer: Any, vocab_size: int, where: str):
    self._tokenizer, self._vocab_size, self._where = tokenizer, vocab_size, where

  def __getattr__(self, name: str) -> Any:
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
    """As the tokenizer's."""
    found = self._tokenizer.encode(*args, **kwargs)
    refuse_tokens_beyond([found], self._vocab_size, self._where)
    return found

  def encode_batch(self, *args, **kwargs) -> list[Any]:
    """As the tokenizer's."""
    found = self._tokenizer.encode_batch(*args, **kwargs)
    refuse_tokens_beyond(found, self._vocab_size, self._where)
    return found


def within_model(tokenizer: Any, vocab_size: int, where: str) -> tuple[Any, list[str]]:
  """Fits a tokenizer to a model with fewer embeddings; also returns warnings."""
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
  """Token ids of texts."""

  ids: list[np.ndarray]  # one int32 array a text, special tokens included
  cut: list[bool]  # whether each text was longer than the model reads and lost its end

  @property
  def truncated(self) -> int:
    """How many texts were cut."""
    return sum(self.cut)


class CutTexts:
  """Which texts were cut, remembered from their encoding: counting them takes no second one."""

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


def load_tokenizer(directory: pathlib.Path, *, kind: str, vocab_size: int,
                   content: str | None = None) -> Any:
  """Reads `tokenizer.json`, or its content; for BERT also `vocab.txt`, `tokenizer_config.json`."""
  path = directory / 'tokenizer.json' if content is None else directory
  if path.is_file():
    try:
      tokenizer = parse_tokenizer(path.read_bytes() if content is None else content.encode('utf-8'))
    except (OSError, UserError) as e:
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
  """BERT's tokenizer over a vocabulary."""
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
  """The tokenizer of a `vocab.txt`; `tokenizer_config.json` says how it treats case."""
  options = path.parent / 'tokenizer_config.json'
  if not options.is_file():
    raise UserError(f'{path.parent} holds vocab.txt without tokenizer_config.json, which says '
                    'whether case counts (do_lower_case): add it, or tokenizer.json')
  words = _word_list(path)
  vocabulary = {word.removesuffix('\r'): i for i, word in enumerate(words)}
  if len(vocabulary) != len(words):
    raise UserError(f'{path} holds a token twice: {len(words)} lines, {len(vocabulary)} tokens: '
                    'download it again')
  try:
    return wordpiece_tokenizer(vocabulary, read_json(options), where=str(path))
  except TypeError as e:
    raise UserError(f'{options} has a value of another type ({e}): correct it') from None


def _word_list(path: pathlib.Path) -> list[str]:
  """The lines of a list of words."""
  try:
    lines = path.read_bytes().decode('utf-8').split('\n')
  except (OSError, UnicodeDecodeError) as e:
    raise UserError(f'{path} cannot be read ({e}): download it again') from None
  return lines[:-1] if lines[-1] == '' else lines


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


def encode_texts(tokenizer: Any, texts: Sequence[str], *, max_length: int) -> Encoded:
  """Token ids of texts, special tokens included, of at most `max_length` tokens each."""
  tokenizer.enable_truncation(max_length)
  encoded = _encoded(tokenizer.encode_batch([replace_broken(text) for text in texts]))
  empty = [i for i, row in enumerate(encoded.ids) if not row.size]
  if empty:
    raise UserError(f'text {empty[0] + 1} of {len(texts)} has no tokens ({texts[empty[0]][:60]!r})')
  return encoded


def _encoded(encodings: Sequence[Any]) -> Encoded:
  return Encoded([np.array(e.ids, np.int32) for e in encodings],
                 [bool(e.overflowing) for e in encodings])


# Whether a tokenizer is the model's own: another one of the same size would change ids silently.

_CLS, _SEP = ('[CLS]', '<s>'), ('[SEP]', '</s>')


def check_tokenizer(tokenizer: Any, directory: pathlib.Path, *, kind: str) -> None:
  """Compares a tokenizer with the word list beside it, and with how its kind begins and ends."""
  tokens = {i: token for token, i in tokenizer.get_vocab(with_added_tokens=True).items()}
  for path in (directory / 'vocab.txt', directory / 'vocab.json'):
    if path.is_file():  # other programs read it in the place of tokenizer.json
      words = (dict(enumerate(_word_list(path))) if path.suffix == '.txt' else
               {i: word for word, i in read_json(path).items()})
      for i, word in words.items():
        if word.rstrip() != tokens.get(i, '').rstrip():
          raise UserError(f'{path} has {word!r} as token {i}, tokenizer.json {tokens.get(i)!r}: '
                          'one of them is of another model: take all files from one and the same '
                          'model')
  if kind not in ('bert', 'albert'):
    return
  ids = tokenizer.encode('a').ids
  for wanted, place, verb in ((named_tokens(directory, 'cls') or _CLS, 0, 'begin'),
                              (named_tokens(directory, 'sep') or _SEP, -1, 'end')):
    token = tokens[ids[place]] if ids else None
    if len(ids) < 2 or token not in wanted:
      raise UserError(f"{directory}: the tokenizer does not {verb} a text with "
                      f"{' or '.join(wanted)} but with {token!r}: its post-processor is missing or "
                      'of another model: write the tokenizer again with save_pretrained in its '
                      'fast form')


# Pairs of sentences as BERT and ALBERT read them: `[CLS] first [SEP] second [SEP]`, with types.
#
# The types of the tokens (0: first sentence, 1: second) are read off the ids, so that whatever
# batches ids need not carry them.
#
# Letters: B batch, T tokens.

def encode_pairs(
  tokenizer: Any, firsts: Sequence[str], seconds: Sequence[str], *, max_length: int
) -> Encoded:
  """Token ids of pairs, special tokens included; of a pair that is too long the longer is cut."""
  whole = [(replace_broken(a), replace_broken(b)) for a, b in zip(firsts, seconds, strict=True)]
  sep = separator_id(tokenizer)
  tokenizer.enable_truncation(max_length, strategy='longest_first')
  encodings = tokenizer.encode_batch(whole)
  encoded = _encoded(encodings)
  for pair, row, encoding in zip(whole, encoded.ids, encodings, strict=True):
    if not np.array_equal(_types(row[None], sep, np)[0], encoding.type_ids):
      raise UserError(f'the pair {pair[0][:60]!r}, {pair[1][:60]!r} does not become one separator '
                      "after each sentence: it holds the tokenizer's own separator as text, or "
                      'the tokenizer does not join pairs as BERT does')
  return encoded


def separator_id(tokenizer: Any) -> int:
  """Id of the token that ends each sentence of a pair."""
  tokenizer.no_truncation()
  pair, single = tokenizer.encode('a', 'a'), tokenizer.encode('a')
  if len(single.ids) < 2 or pair.ids[-1] != single.ids[-1] or pair.type_ids[-1] != 1:
    raise UserError('the tokenizer does not join a pair of sentences as BERT does ([CLS] first '
                    '[SEP] second [SEP], with token types): pairs need such a model')
  return pair.ids[-1]


def pair_types(ids: jax.Array, sep_id: int) -> jax.Array:
  """Token types of `[B, T]` ids: 1 after the first separator; at padding arbitrary."""
  return _types(ids, sep_id, jnp)


def _types(ids, sep_id, xp):
  ends = (ids == sep_id).astype(xp.int32)
  return ((xp.cumsum(ends, axis=1) - ends) > 0).astype(xp.int32)
