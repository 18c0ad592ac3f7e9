"""Where a training starts: a checkpoint, or a new model and vocabulary; and the files it writes."""

import collections
import dataclasses
import heapq
import json
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from fairjax import processes
from fairjax.config_io import config_differences
from fairjax.errors import UserError
from fairjax.files import check_place, json_sha256, read_sealed_json, write_file, write_sealed_json
from fairjax.pretrained.checkpoint import (
  Architecture,
  Pretrained,
  entries,
  read_architecture,
  to_tensors,
)
from fairjax.pretrained.tokens import wordpiece_tokenizer
from fairjax.train import Identity, params_digest

TOKENIZER_FILES = ('tokenizer.json', 'tokenizer_config.json', 'vocab.txt',
                   'special_tokens_map.json', 'sentence_bert_config.json')


class Start(NamedTuple):
  """A model before its first step of training: a classifier, or one for masked words."""

  config: dict[str, Any]  # content of its `config.json`
  arch: Architecture
  params: dict[str, dict[str, np.ndarray]]  # float32
  tokenizer: Any
  files: dict[str, bytes]  # name -> content of the files that hold the tokenizer
  max_length: int  # most tokens of a row
  fingerprint: str  # of the checkpoint, or 'new'

  @classmethod
  def of(cls, model: Pretrained, config: dict[str, Any], arch: Architecture,
         params: dict[str, dict[str, np.ndarray]]) -> 'Start':
    """That of a checkpoint, with its tokenizer."""
    files = {name: (model.directory / name).read_bytes() for name in TOKENIZER_FILES
             if (model.directory / name).is_file()}
    return cls(config, arch, params, model.tokenizer, files, model.max_length, model.fingerprint)

  def identity(self, stage: str, plan: Mapping[str, Any]) -> Identity:
    """That of the checkpoints of a training from here."""
    return Identity(
      stage=stage, config=json_sha256(plan), parent=params_digest(self.params),
      vocabulary=json_sha256({name: content.hex() for name, content in self.files.items()}))


# A WordPiece vocabulary from texts: pairs of pieces that stand together most often are joined.
#
# The trainer of the package `tokenizers` breaks ties at random, so that two runs with the same seed
# would differ; here equal counts are ordered by the pieces themselves.

SPECIAL = ('[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]')
_ALPHABET = 1000  # characters that get a piece of their own; words with rarer ones are unknown


def train_word_pieces(words: Mapping[str, int], *, size: int) -> dict[str, int]:
  """Makes a vocabulary."""
  pieces = [[w[0], *('##' + c for c in w[1:])] for w in words]
  weights = list(words.values())
  letters = collections.Counter()
  for word, weight in zip(pieces, weights, strict=True):
    for piece in word:
      letters[piece] += weight
  kept = sorted(sorted(letters, key=lambda c: (-letters[c], c))[:min(_ALPHABET, size - 5)])
  vocabulary = dict.fromkeys([*SPECIAL, *kept])
  counts: collections.Counter[tuple[str, str]] = collections.Counter()
  places: dict[tuple[str, str], set[int]] = collections.defaultdict(set)
  for i, (word, weight) in enumerate(zip(pieces, weights, strict=True)):
    for pair in zip(word, word[1:], strict=False):
      if pair[0] in vocabulary and pair[1] in vocabulary:
        counts[pair] += weight
        places[pair].add(i)
  heap = [(-count, pair) for pair, count in counts.items()]
  heapq.heapify(heap)
  while heap and len(vocabulary) < size:
    count, pair = heapq.heappop(heap)
    if -count != counts[pair]:  # it was queued before some of its places were joined otherwise
      continue
    if count > -2:
      break
    joined = pair[0] + pair[1].removeprefix('##')
    vocabulary[joined] = None
    changed = collections.Counter()
    for i in places.pop(pair):
      changed.update(_join(pieces[i], pair, joined, weights[i], places, i))
    for other, change in changed.items():
      counts[other] += change
      if counts[other] > 0:
        heapq.heappush(heap, (-counts[other], other))
    counts[pair] = 0
  return {piece: i for i, piece in enumerate(vocabulary)}


def _join(word, pair, joined, weight, places, number) -> dict[tuple[str, str], int]:
  """Joins the pair wherever it stands in the word; returns how the counts of pairs change."""
  changes: collections.Counter[tuple[str, str]] = collections.Counter()
  for old in zip(word, word[1:], strict=False):
    changes[old] -= weight
  i = 0
  while i < len(word) - 1:
    if (word[i], word[i + 1]) == pair:
      word[i:i + 2] = [joined]
    i += 1
  for new in zip(word, word[1:], strict=False):
    changes[new] += weight
    places[new].add(number)
  changes.pop(pair, None)
  return changes


def count_words(texts: Iterable[str]) -> dict[str, int]:
  """Words of texts as BERT separates them, in lower case, without accents, with their counts."""
  import tokenizers
  normalizer = tokenizers.normalizers.BertNormalizer(lowercase=True)
  separator = tokenizers.pre_tokenizers.BertPreTokenizer()
  counts: collections.Counter[str] = collections.Counter()
  for text in texts:
    counts.update(w for w, _ in separator.pre_tokenize_str(normalizer.normalize_str(text)))
  return dict(sorted(counts.items()))


def new_tokenizer(texts: Iterable[str], *, vocab_size: int, max_length: int
                  ) -> tuple[Any, dict[str, bytes]]:
  """A lower-case WordPiece tokenizer of the texts, and the files that hold it."""
  return tokenizer_of(train_word_pieces(count_words(texts), size=vocab_size), max_length=max_length)


def tokenizer_of(vocabulary: dict[str, int], *, max_length: int) -> tuple[Any, dict[str, bytes]]:
  """The lower-case WordPiece tokenizer of a vocabulary, and the files that hold it."""
  options = {'do_lower_case': True, 'strip_accents': None, 'tokenize_chinese_chars': True,
             'model_max_length': max_length, 'tokenizer_class': 'BertTokenizer',
             **{f'{role}_token': token for role, token in zip(
               ('pad', 'unk', 'cls', 'sep', 'mask'), SPECIAL, strict=True)}}
  tokenizer = wordpiece_tokenizer(vocabulary, options, where='the new vocabulary')
  files = {'vocab.txt': '\n'.join([*vocabulary, '']),
           'tokenizer.json': tokenizer.to_str(pretty=True),
           'tokenizer_config.json': json.dumps(options, indent=2)}
  return tokenizer, {name: text.encode('utf-8') for name, text in files.items()}


def new_params(arch: Architecture, *, seed: int, std: float, only: Sequence[str] = (),
               head: str = 'classifier') -> dict[str, dict[str, np.ndarray]]:
  """Random parameters as BERT's: normal kernels and tables, norms 1, biases 0."""
  params: dict[str, dict[str, np.ndarray]] = {}
  for entry in entries(arch, head):
    if only and entry.group not in only:
      continue
    shape = entry.shape[::-1] if entry.transposed else entry.shape
    shape = (*shape[:-1], shape[-1] * len(entry.tensors[0]))
    shape = (len(entry.tensors), *shape) if entry.stacked else shape
    if entry.name.endswith('scale'):
      array = np.ones(shape)
    elif entry.name.endswith('bias'):
      array = np.zeros(shape)
    else:
      name = f'{entry.group}/{entry.name}'.encode()
      array = std * np.random.default_rng([seed, *name]).standard_normal(shape)
    params.setdefault(entry.group, {})[entry.name] = array.astype(np.float32)
  return params


@dataclasses.dataclass(frozen=True)
class Sizes:
  """Of a new model."""

  kind: str  # 'bert' or 'albert' (its layers share their parameters)
  layers: int
  dim: int
  heads: int
  vocab_size: int  # most word pieces, special ones included
  max_length: int = 128  # tokens that the model can read
  embedding_dim: int = 0  # of an ALBERT; 0: `dim`, but at most 128


def new_start(vocabulary: dict[str, int], sizes: Sizes, *, std: float, head: str, seed: int,
              log: Callable[[str], None], **config: Any) -> Start:
  """Random parameters for a WordPiece vocabulary, piece -> id in the order of the ids."""
  tokenizer, files = tokenizer_of(vocabulary, max_length=sizes.max_length)
  config = {
    'model_type': sizes.kind, 'vocab_size': len(vocabulary), 'hidden_size': sizes.dim,
    'num_hidden_layers': sizes.layers, 'num_attention_heads': sizes.heads,
    'intermediate_size': 4 * sizes.dim, 'max_position_embeddings': sizes.max_length,
    'type_vocab_size': 2, 'layer_norm_eps': 1e-12, 'initializer_range': std,
    'pad_token_id': vocabulary['[PAD]'], 'position_embedding_type': 'absolute', **config}
  arch = read_architecture(config, where='the options')
  params = new_params(arch, seed=seed, std=std, head=head)
  count = sum(a.size for group in params.values() for a in group.values())
  log(f'[start] new {sizes.kind}: {count:,} parameters, {len(vocabulary):,} word pieces of the '
      'training texts')
  return Start(config, arch, params, tokenizer, files, sizes.max_length, 'new')


def initial_std(config: Mapping[str, Any]) -> float:
  """Deviation of new kernels and tables, by a `config.json`."""
  value = config.get('initializer_range', 0.02)
  if not isinstance(value, float | int) or not 0 < value < 1:
    raise UserError(f'config.json: initializer_range is {value!r}, a number in (0, 1) is needed')
  return float(value)


# The folder of a training: its plan, which is compared when it is continued, and a model directory.

PLAN = 'plan.json'


def open_plan(path: pathlib.Path, plan: Mapping[str, Any], *, output: pathlib.Path, option: str
              ) -> None:
  """Writes the plan of a new training into `output`, or compares it with the earlier start's."""
  if processes.share(not path.is_file()):
    check_free(output, option=option)
    if processes.is_first():
      write_sealed_json(path, plan)
    processes.share()
    return
  saved = read_sealed_json(path, again=f'delete {path.parent} to train again')
  check_plan(saved, plan, path.parent, option=option)


def check_plan(saved: Mapping[str, Any], plan: Mapping[str, Any], where: pathlib.Path, *,
               option: str) -> None:
  """Raises `UserError` that names up to three values in which two plans differ."""
  changed = config_differences(saved, json.loads(json.dumps(plan)))
  if changed:
    more = f' and {len(changed) - 3} more' if len(changed) > 3 else ''
    raise UserError(f"{where} belongs to another training: {'; '.join(changed[:3])}{more}: use "
                    f'another {option}, or the same options and data')


def check_free(directory: pathlib.Path, *, option: str) -> None:
  """Raises `UserError` if a training cannot write into a folder, or would overwrite a model."""
  check_place(directory, folder=True)
  for name in ('config.json', 'model.safetensors', *TOKENIZER_FILES):
    path = directory / name
    if path.exists():
      raise UserError(f'{path} exists and is not of this training: it would be overwritten; name a '
                      f'new folder with {option}')


def write_tensors(path: pathlib.Path, tensors: Mapping[str, np.ndarray]) -> None:
  """Writes a safetensors file, atomically."""
  from safetensors.numpy import save
  write_file(path, save(dict(tensors), metadata={'format': 'pt'}))


def write_model(directory: pathlib.Path, start: Start, params: Any, head: str) -> None:
  """Writes tokenizer, weights, then `config.json`, in the published form, each atomically."""
  for name, content in start.files.items():
    write_file(directory / name, content)
  tensors = to_tensors(jax.device_get(params), start.arch, head)
  write_tensors(directory / 'model.safetensors', tensors)
  # The last one makes the folder a model's.
  write_file(directory / 'config.json', json.dumps(start.config, indent=2) + '\n')
