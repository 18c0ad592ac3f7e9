"""Reference checkpoints in and out of a workdir: the verbs `import` and `export`."""

import dataclasses
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fairjax import processes
from fairjax.config import ModelConfig
from fairjax.errors import UserError
from fairjax.files import atomic_write, refuse_existing, write_json
from fairjax.inputs import read_text, read_text_lines, refuse_pointer
from fairjax.job.main_job import Job
from fairjax.model.reference import params_from_reference, params_to_reference
from fairjax.model.reference_arguments import reference_notes
from fairjax.vocabulary import EOS_ID, PAD_ID, UNK_ID, WordVocabulary

_SPECIAL = {'<pad>': PAD_ID, '<eos>': EOS_ID, '<unk>': UNK_ID}
_PAD_BIAS = -1e4  # of the added <pad>: its probability is 0
# What weights depend on; lengths, dropout and dtype may differ.
_FIELDS = ('num_layers', 'model_dim', 'num_heads', 'head_dim', 'ff_dim', 'cutoffs', 'div_val',
           'tie_projections', 'norm', 'final_norm', 'tie_position_biases', 'clamp_len')


@dataclasses.dataclass(frozen=True)
class Reference:
  """A checkpoint of the reference, read and checked.

  Attributes:
    model: its config, with the size of its vocabulary.
    params: NumPy parameters, the vocabulary's tables padded as the run's model has them.
    vocabulary: of its words; None if none were given.
    file: the safetensors file.
    notes: lines about what is otherwise here.
  """

  model: ModelConfig
  params: Mapping[str, Any]
  vocabulary: WordVocabulary | None
  file: pathlib.Path
  notes: tuple[str, ...]


def read_reference(
  wanted: ModelConfig, *, weights: str, arguments: str, words: str | None = None
) -> Reference:
  """Reads a checkpoint of the reference and compares it with the model of a run; writes nothing.

  Args:
    wanted: model of the run.
    weights: safetensors file under the reference's names.
    arguments: JSON file of its constructor's arguments, or a published `config.json`.
    words: its words, one a line in the order of its ids, `<eos>` and `<unk>` among them; they
      become the vocabulary of the run (`<pad>` is added and never predicted). None: the vocabulary
      of `config.data` has the checkpoint's ids.

  Raises:
    UserError: a file that cannot be read; tensors or configuration that do not fit.
  """
  from safetensors import SafetensorError
  from safetensors.numpy import load_file
  text = read_text(arguments, what='arguments')
  try:
    refuse_pointer(weights)
    state_dict = load_file(weights)
  except (OSError, SafetensorError) as e:
    raise UserError(f'{weights} cannot be read ({e}): a safetensors file is needed') from None
  try:
    reference = json.loads(text)
  except (ValueError, RecursionError) as e:
    raise UserError(f'{arguments} is not JSON ({e})') from None
  if not isinstance(reference, dict):
    raise UserError(f"{arguments} holds {type(reference).__name__}, not an object of the "
                    "constructor's arguments and their values")
  model, params = params_from_reference(state_dict, reference, dtype=wanted.dtype)
  vocabulary = None
  if words is not None:
    vocabulary, order = order_words(_read_words(words), model, where=words)
    model, params = reorder(model, params, order)
  check_fields(wanted, model)
  return Reference(model, pad_vocabulary(params, wanted.vocab_multiple), vocabulary,
                   pathlib.Path(weights), tuple(reference_notes(reference)))


def import_reference(job: Job, found: Reference) -> dict[str, float]:
  """Puts a checkpoint of the reference in the place of step 1. A group of processes calls it.

  Args:
    job: a workdir without a language model.
    found: of `read_reference` for the model of its config.

  Returns:
    Validation loss and perplexity.

  Raises:
    UserError: the vocabulary of the workdir is another one.
  """
  from fairjax.train import StopSignal
  place = job.workdir / 'data' / 'vocabulary'
  if found.vocabulary is not None:
    if processes.is_first() and not place.exists():
      found.vocabulary.save(place)
    processes.share()
    if job.prepared.vocabulary != found.vocabulary:
      raise UserError(f'{place} is {job.prepared.vocabulary!r}, the words of the checkpoint are '
                      f'{found.vocabulary!r}: import into a workdir whose data are not prepared '
                      'yet; it takes over the vocabulary')
  size = job.prepared.vocabulary.size
  if size != found.model.vocab_size:
    raise UserError(f'the checkpoint has {found.model.vocab_size} ids, the vocabulary in {place} '
                    f'{size}: give the words of the checkpoint (--words), and another --workdir')
  for note in found.notes:
    job.log(f'[lm] {note}')
  made = job.curriculum(StopSignal()).import_lm(
    found.params, source={'form': 'transformer-xl', 'file': found.file.name})
  job.log(f'[lm] imported from {found.file}: validation perplexity {made["perplexity"]:.4g} by '
          'token')
  return made


def _read_words(path: str) -> list[str]:
  return read_text_lines(path, what='words of the checkpoint')


def export_reference(job: Job, *, model: str, output: str, prefix: bool = False) -> None:
  """Writes a trained model under the reference's names.

  Args:
    job: of the workdir.
    model: its name, e.g. `baseline` or `country-embedding-10`.
    output: safetensors file; `output` with `.json` gets the constructor's arguments and, for a
      word vocabulary, with `.words.txt` the words in the order of their ids.
    prefix: names as in published checkpoints.

  Raises:
    UserError: unknown or unfinished model, or one that the reference cannot express; a file that
      exists.
  """
  from safetensors.numpy import save
  path = pathlib.Path(output)
  for suffix in (path.suffix, '.json', '.words.txt'):
    refuse_existing(path.with_suffix(suffix))
  tensors, arguments = params_to_reference(job.params(model), job.model_config, prefix=prefix)
  with atomic_write(path) as file:
    file.write(save(tensors))
  write_json(path.with_suffix('.json'), arguments)
  vocabulary = job.prepared.vocabulary
  if isinstance(vocabulary, WordVocabulary):
    with atomic_write(path.with_suffix('.words.txt')) as file:
      file.write('\n'.join([*vocabulary.words, '']).encode('utf-8'))
  job.log(f'[export] {model}: {len(tensors)} tensors in {path}, arguments in '
          f'{path.with_suffix(".json")}')


def order_words(
  words: Sequence[str], model: ModelConfig, *, where: str
) -> tuple[WordVocabulary, np.ndarray]:
  """The checkpoint's words as a vocabulary, and its id of every new id (-1: there is none).

  Only words of the head move: a softmax does not depend on the order of its words.

  Raises:
    UserError: too few or too many words, doubles, or special words that lack or stand in a tail.
  """
  number = {word: i for i, word in enumerate(words)}
  if len(words) != model.vocab_size or len(number) != len(words):
    raise UserError(f'{where} has {len(words)} lines ({len(number)} different), the checkpoint '
                    f'{model.vocab_size} ids: one word a line, in the order of the ids')
  head = model.cutoffs[0] if model.cutoffs else model.vocab_size
  for word in ('<eos>', '<unk>'):
    if number.get(word, head) >= head:
      raise UserError(f'{where} must hold {word} among its first {head} words')
  order = [number.get(word, -1) for word in _SPECIAL]
  order += [i for i, word in enumerate(words) if word not in _SPECIAL]
  content = [*_SPECIAL, *(words[i] for i in order[len(_SPECIAL):]), '']
  info = {'words_of': pathlib.Path(where).name}
  return WordVocabulary('\n'.join(content).encode('utf-8'), info), np.array(order)


def reorder(
  model: ModelConfig, params: Mapping[str, Any], order: np.ndarray
) -> tuple[ModelConfig, dict[str, Any]]:
  """Moves the words of the head; a new id without an old one gets a row of zeros and no chance."""
  added = len(order) - model.vocab_size
  suffix = '_0' if model.cutoffs else ''
  head = (model.cutoffs[0] if model.cutoffs else model.vocab_size) + added
  old, known = order[:head], order[:head, None] >= 0
  table, bias = (params[f'{kind}{suffix}'] for kind in ('embedding', 'softmax_bias'))
  return dataclasses.replace(
    model, vocab_size=len(order), cutoffs=tuple(c + added for c in model.cutoffs)), {
    **params, f'embedding{suffix}': np.where(known, table[old], 0).astype(table.dtype),
    f'softmax_bias{suffix}': np.where(known[:, 0], bias[old], _PAD_BIAS).astype(bias.dtype)}


def pad_vocabulary(params: Mapping[str, Any], multiple: int) -> dict[str, Any]:
  """Pads the vocabulary's tables to a multiple of rows."""
  def pad(rows):
    return np.pad(rows, [(0, -len(rows) % multiple)] + [(0, 0)] * (rows.ndim - 1))

  return {name: pad(value) if name.startswith(('embedding', 'softmax_bias')) else value
          for name, value in params.items()}


def check_fields(
  wanted: ModelConfig, found: ModelConfig, more: Sequence[str] = ()
) -> None:
  """Compares what weights depend on.

  Args:
    wanted: the configured model.
    found: the checkpoint's, with its vocabulary size.
    more: further fields that must be equal.

  Raises:
    UserError: they differ; every field is named.
  """
  def value(config, field):
    if field == 'tie_projections' and config.div_val == 1:
      return ()
    if field == 'tie_projections':
      return config.tie_projections or (False,) + (True,) * len(config.cutoffs)
    return getattr(config, field)

  wrong = [f'model.{f}={value(wanted, f)!r} but the checkpoint has {value(found, f)!r}'
           for f in (*_FIELDS, *more) if value(wanted, f) != value(found, f)]
  if wanted.vocab_size not in (0, found.vocab_size):
    wrong.append(f'model.vocab_size={wanted.vocab_size} but the checkpoint has {found.vocab_size}')
  if wrong:
    raise UserError(f'the configured model is another: {"; ".join(wrong)}: set these fields')
