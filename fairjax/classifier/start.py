"""Where training starts: a checkpoint with a new classification layer, or a small new BERT."""

import json
import os
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from fairjax.classifier.examples import NAMES
from fairjax.classifier.wordpieces import SPECIAL, count_words, train_word_pieces
from fairjax.errors import UserError
from fairjax.files import atomic_write
from fairjax.pretrained import Architecture, load_pretrained, read_architecture
from fairjax.pretrained.names import entries
from fairjax.pretrained.tokens import wordpiece_tokenizer

TOKENIZER_FILES = ('tokenizer.json', 'tokenizer_config.json', 'vocab.txt',
                   'special_tokens_map.json', 'sentence_bert_config.json')
_CLASSES = {'bert': 'BertForSequenceClassification', 'albert': 'AlbertForSequenceClassification'}


class Start(NamedTuple):
  """A model before its first step of training: a classifier, or one for masked words.

  Attributes:
    config: content of its `config.json`.
    arch: the same, read.
    params: NumPy float32.
    tokenizer: that of its texts.
    files: name -> content of the files that hold the tokenizer.
    max_length: most tokens of a row.
    fingerprint: of the checkpoint, or 'new'.
  """

  config: dict[str, Any]
  arch: Architecture
  params: dict[str, dict[str, np.ndarray]]
  tokenizer: Any
  files: dict[str, bytes]
  max_length: int
  fingerprint: str


def from_checkpoint(directory: str | os.PathLike, *, labels: Sequence[str], seed: int,
                    log: Callable[[str], None]) -> Start:
  """Starts from a BERT or ALBERT with its tokenizer and a new head.

  Args:
    directory: in the published form.
    labels: names of the classes; one name makes a head of one number, for a regression.
    seed: of the head.
    log: gets a line.

  Raises:
    UserError: the directory cannot be read, or is of another kind.
  """
  model = load_pretrained(directory, 'encoder')
  pooled = any(name.startswith('pooler') for name in model.ignored)
  if pooled:
    model = load_pretrained(directory, 'pooled')
  config = {**model.config, 'architectures': [_CLASSES[model.arch.kind]], **_label_fields(labels)}
  arch = read_architecture(config, where='config.json')
  fresh = new_params(arch, seed=seed, only=('classifier',) if pooled else ('classifier', 'pooler'),
                     std=_std(config))
  log(f"[start] {directory}: {'pooler' if pooled else 'no pooler (a new one is made)'}, a new "
      f'classification layer of {len(labels)} classes; not used: '
      + (', '.join(model.ignored) or 'nothing'))
  files = {name: (model.directory / name).read_bytes() for name in TOKENIZER_FILES
           if (model.directory / name).is_file()}
  return Start(config, arch, {**model.params, **fresh}, model.tokenizer, files, model.max_length,
               model.fingerprint)


def from_scratch(texts: Sequence[str], *, classes: int, seed: int, sizes: Mapping[str, int],
                 log: Callable[[str], None]) -> Start:
  """Starts from random parameters and a vocabulary of the training texts."""
  tokenizer, vocabulary, files = new_tokenizer(
    texts, vocab_size=sizes['vocab_size'], max_length=sizes['max_length'])
  config = {
    'architectures': [_CLASSES['bert']], 'model_type': 'bert', 'vocab_size': len(vocabulary),
    'hidden_size': sizes['dim'], 'num_hidden_layers': sizes['layers'],
    'num_attention_heads': sizes['heads'], 'intermediate_size': 4 * sizes['dim'],
    'max_position_embeddings': sizes['max_length'], 'type_vocab_size': 2, 'hidden_act': 'gelu',
    'layer_norm_eps': 1e-12, 'hidden_dropout_prob': 0.2, 'attention_probs_dropout_prob': 0.1,
    'initializer_range': 0.02, 'pad_token_id': 0, 'position_embedding_type': 'absolute',
    **_label_fields(NAMES[classes])}
  arch = read_architecture(config, where='the options')
  params = new_params(arch, seed=seed, std=_std(config))
  count = sum(a.size for group in params.values() for a in group.values())
  log(f'[start] new BERT: {count:,} parameters, {len(vocabulary)} word pieces of the training '
      'texts')
  return Start(config, arch, params, tokenizer, files, sizes['max_length'], 'new')


def new_tokenizer(texts: Iterable[str], *, vocab_size: int, max_length: int
                  ) -> tuple[Any, dict[str, int], dict[str, bytes]]:
  """A lower-case WordPiece tokenizer of the texts, its vocabulary, and the files that hold it."""
  vocabulary = train_word_pieces(count_words(texts), size=vocab_size)
  tokenizer, files = tokenizer_of(vocabulary, max_length=max_length)
  return tokenizer, vocabulary, files


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
  """Random parameters as BERT's: normal kernels and tables, norms 1, biases 0.

  Each array's numbers depend on the seed and its own name alone.
  """
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


def write_tokenizer(output: pathlib.Path, start: Start) -> None:
  """Writes the tokenizer's files, each atomically."""
  for name, content in start.files.items():
    with atomic_write(output / name) as file:
      file.write(content)


def write_model(output: pathlib.Path, start: Start, params: Any) -> None:
  """Writes weights, then `config.json`, in the published form, each atomically."""
  from safetensors.numpy import save

  from fairjax.pretrained.weights import to_tensors
  tensors = to_tensors(jax.device_get(params), start.arch, 'classifier')
  with atomic_write(output / 'model.safetensors') as file:
    file.write(save(tensors, metadata={'format': 'pt'}))
  with atomic_write(output / 'config.json') as file:
    file.write(json.dumps(start.config, indent=2).encode('utf-8') + b'\n')


def _label_fields(names: Sequence[str]) -> dict[str, Any]:
  return {'id2label': {str(i): n for i, n in enumerate(names)},
          'label2id': {n: i for i, n in enumerate(names)}}


def _std(config: Mapping[str, Any]) -> float:
  value = config.get('initializer_range', 0.02)
  if not isinstance(value, float | int) or not 0 < value < 1:
    raise UserError(f'config.json: initializer_range is {value!r}, a number in (0, 1) is needed')
  return float(value)
