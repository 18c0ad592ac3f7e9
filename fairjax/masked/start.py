"""Where masked training starts: a checkpoint with its MLM head, or a new BERT or ALBERT."""

import dataclasses
import json
import math
import pathlib
from collections.abc import Callable, Iterable
from typing import Any

import jax

from fairjax.classifier.start import (
  TOKENIZER_FILES,
  Start,
  new_params,
  new_tokenizer,
  tokenizer_of,
)
from fairjax.errors import UserError
from fairjax.files import atomic_write
from fairjax.pretrained import load_pretrained, read_architecture
from fairjax.pretrained.weights import to_tensors

_CLASSES = {'bert': 'BertForMaskedLM', 'albert': 'AlbertForMaskedLM'}


@dataclasses.dataclass(frozen=True)
class Sizes:
  """Of a new model.

  Attributes:
    kind: 'bert' or 'albert' (its layers share their parameters).
    layers, dim, heads, ff_dim: of the encoder; `ff_dim` 0 is four times `dim`.
    embedding_dim: of an ALBERT; 0: that of the encoder, but at most 128.
    vocab_size: most word pieces, special ones included.
    max_length: tokens that the model can read.
  """

  kind: str
  layers: int
  dim: int
  heads: int
  vocab_size: int
  max_length: int
  ff_dim: int = 0
  embedding_dim: int = 0


def with_dropout(start: Start, *, hidden: float | None, attention: float | None) -> Start:
  """The same with other rates, in [0, 1), also in its `config.json`; None leaves one as it is.

  They are the rates a and h of Webster et al. 2020, section 5.1 (W-13).

  Raises:
    UserError: a rate that is none.
  """
  given = {name: rate for name, rate in (('hidden_dropout_prob', hidden),
                                         ('attention_probs_dropout_prob', attention))
           if rate is not None}
  config = {**start.config, **given}
  return start._replace(config=config, arch=read_architecture(config, where='the options'))


def from_checkpoint(directory: str, *, log: Callable[[str], None]) -> Start:
  """Goes on from a BERT or ALBERT that has its MLM head.

  Raises:
    UserError: the directory cannot be read, has no MLM head, or is of another kind.
  """
  model = load_pretrained(directory, 'mlm')
  config = {**model.config, 'architectures': [_CLASSES[model.arch.kind]]}
  files = {name: (model.directory / name).read_bytes() for name in TOKENIZER_FILES
           if (model.directory / name).is_file()}
  log(f"[start] {directory}: {model.arch.kind}; in its files, but no part of this model: "
      + (', '.join(model.ignored) or 'nothing'))
  return Start(config, model.arch, model.params, model.tokenizer, files, model.max_length,
               model.fingerprint)


def from_scratch(texts: Iterable[str], sizes: Sizes, *, seed: int, log: Callable[[str], None]
                 ) -> Start:
  """Random parameters, and a WordPiece vocabulary of the texts (lower-case).

  Raises:
    UserError: sizes that do not fit each other.
  """
  _, vocabulary, _ = new_tokenizer(texts, vocab_size=sizes.vocab_size, max_length=sizes.max_length)
  return from_vocabulary(vocabulary, sizes, seed=seed, log=log)


def from_vocabulary(vocabulary: dict[str, int], sizes: Sizes, *, seed: int,
                    log: Callable[[str], None]) -> Start:
  """Random parameters for a WordPiece vocabulary, piece -> id in the order of the ids.

  Raises:
    UserError: sizes that do not fit each other.
  """
  # BERT-large's 0.02, for the variance of sums over `dim` inputs: with 0.02 itself attention in a
  # model of width 64 stays even for thousands of steps.
  std = round(0.02 * math.sqrt(1024 / sizes.dim), 4)
  tokenizer, files = tokenizer_of(vocabulary, max_length=sizes.max_length)
  config: dict[str, Any] = {
    'architectures': [_CLASSES[sizes.kind]], 'model_type': sizes.kind,
    'vocab_size': len(vocabulary), 'hidden_size': sizes.dim, 'num_hidden_layers': sizes.layers,
    'num_attention_heads': sizes.heads, 'intermediate_size': sizes.ff_dim or 4 * sizes.dim,
    'max_position_embeddings': sizes.max_length, 'type_vocab_size': 2, 'layer_norm_eps': 1e-12,
    'initializer_range': std, 'pad_token_id': vocabulary['[PAD]'],
    'position_embedding_type': 'absolute'}
  if sizes.kind == 'albert':
    config |= {
      'embedding_size': sizes.embedding_dim or min(sizes.dim, 128), 'num_hidden_groups': 1,
      'inner_group_num': 1, 'hidden_act': 'gelu_new', 'hidden_dropout_prob': 0.0,
      'attention_probs_dropout_prob': 0.0, 'classifier_dropout_prob': 0.1,
      'bos_token_id': vocabulary['[CLS]'], 'eos_token_id': vocabulary['[SEP]']}
    # Its own tokenizer class reads SentencePiece models only.
    options = json.loads(files['tokenizer_config.json'])
    files['tokenizer_config.json'] = json.dumps(
      options | {'tokenizer_class': 'PreTrainedTokenizerFast'}, indent=2).encode('utf-8')
  else:
    config |= {'hidden_act': 'gelu', 'hidden_dropout_prob': 0.1,
               'attention_probs_dropout_prob': 0.1}
  arch = read_architecture(config, where='the options')
  params = new_params(arch, seed=seed, std=std, head='mlm')
  count = sum(a.size for group in params.values() for a in group.values())
  log(f'[start] new {sizes.kind}: {count:,} parameters, {len(vocabulary):,} word pieces of the '
      'training texts')
  return Start(config, arch, params, tokenizer, files, sizes.max_length, 'new')


def write_model(directory: pathlib.Path, start: Start, params: Any) -> None:
  """Writes tokenizer, weights, then `config.json`, in the published form, each atomically."""
  from safetensors.numpy import save
  for name, content in start.files.items():
    with atomic_write(directory / name) as file:
      file.write(content)
  tensors = to_tensors(jax.device_get(params), start.arch, 'mlm')
  with atomic_write(directory / 'model.safetensors') as file:
    file.write(save(tensors, metadata={'format': 'pt'}))
  with atomic_write(directory / 'config.json') as file:
    file.write(json.dumps(start.config, indent=2).encode('utf-8') + b'\n')


def check_free(directory: pathlib.Path) -> None:
  """A training that begins must not write over files that are not its own.

  Raises:
    UserError: a file of a model is there.
  """
  for name in ('config.json', 'model.safetensors', *TOKENIZER_FILES):
    if (directory / name).exists():
      raise UserError(f'{directory / name} exists and is not of this training: it would be written '
                      'over; name a new folder with --workdir')
