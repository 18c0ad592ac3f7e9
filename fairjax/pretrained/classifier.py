"""Fine-tuning of a sequence classifier: epochs, the best of which is kept, resumable after each."""

import dataclasses
import functools
import hashlib
import json
import os
import pathlib
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from fairjax.errors import UserError
from fairjax.files import FolderLock, read_sealed_json, write_sealed_json
from fairjax.inputs import open_input, read_text_lines
from fairjax.pretrained.batch_runner import BatchRunner, class_runner
from fairjax.pretrained.checkpoint import (
  Architecture,
  Params,
  load_pretrained,
  open_model,
  read_architecture,
  to_params,
  to_tensors,
)
from fairjax.pretrained.fit import FineTuning, Recipe, TokenRows, label_losses
from fairjax.pretrained.models import class_logits, encode
from fairjax.pretrained.start import (
  PLAN,
  Sizes,
  Start,
  check_free,
  check_plan,
  count_words,
  initial_std,
  new_params,
  new_start,
  open_plan,
  train_word_pieces,
  write_model,
  write_tensors,
)
from fairjax.pretrained.tensor_files import open_tensors
from fairjax.pretrained.tokens import Encoded, encode_texts, pair_types
from fairjax.processes import StopSignal
from fairjax.tables import read_rows
from fairjax.train.loop import run_stage
from fairjax.train.metrics import read_metrics

# Labelled sentences: the Stanford Sentiment Treebank (Socher et al. 2013) and the like.

NAMES = {  # number of classes -> their names, from bad to good
  2: ('negative', 'positive'),
  5: ('very negative', 'negative', 'neutral', 'positive', 'very positive')}

_NODE = re.compile(r'\(|\)|[^() ]+')  # a no-break space belongs to a word
_TEXT = ('sentence', 'text')
# A line that begins with a label has its text behind it, which may speak of a label, too.
_HEADER = re.compile(rb'(?!\d\t)[^\r\n]*\b(label["\']?[\t,;]|[\t,;]["\']?label\b)')
_UNDO = {'-LRB-': '(', '-RRB-': ')', '-LSB-': '[', '-RSB-': ']', '\\/': '/', '\\*': '*'}


class Examples(NamedTuple):
  """What a file holds."""

  texts: list[str]
  labels: np.ndarray  # [R] int32, 0 to classes - 1
  neutral: int  # texts of two-class data that were left out because they are neutral
  doubles: int  # phrases that were left out because the same text and label was there already
  digest: str  # SHA-256 (hex) of texts and labels


def read_examples(path: str | os.PathLike, *, classes: int, phrases: bool = False) -> Examples:
  """Reads a file of labelled sentences, plain or compressed.

  Forms, told apart by the first line: trees (`(3 (2 It) (4 ...))`, labels 0 to 4 at every node);
  `label<TAB>binary<TAB>text` with label 0 to 4 and binary 0, 1 or empty for neutral;
  `label<TAB>text` with labels 0 to classes - 1; a table whose header names `label` and `sentence`
  or `text` (GLUE's SST-2); JSON objects with these names. Of 2 classes neutral texts are left out,
  counted; `phrases` takes every phrase of a tree and not only the whole sentence.
  """
  with open_input(path, what='labelled sentences') as file:
    begin = file.peek().lstrip()
    if phrases and not begin.startswith(b'('):
      raise UserError(f'{path}: phrases need trees, as in (3 (2 It) (4 works))')
    if begin.startswith((b'{', b'[')) or _HEADER.match(begin):
      found = ([_named(row, where, classes)] for row, where in read_rows(
        file, path, ('label',), unquoted_tabs=True))
    elif begin.startswith(b'('):
      found = (_tree(line, where, phrases=phrases) for line, where in _lines(path))
    else:
      found = ([_columns(line, where, classes)] for line, where in _lines(path))
    return _collect(found, path, classes=classes, phrases=phrases)


def read_training(
  path: str | os.PathLike, dev: str | os.PathLike | None, *, classes: int, phrases: bool, seed: int,
  log: Callable[[str], None],
) -> tuple[Examples, Examples]:
  """Training and dev texts; without a dev file a seeded tenth of the training texts is held out."""
  data = read_examples(path, classes=classes, phrases=phrases)
  if dev:
    held = read_examples(dev, classes=classes)
  else:
    if phrases:
      raise UserError('--phrases needs --dev: a tenth of the phrases would be parts of the others')
    data, held = _hold_out(data, seed)
  present = np.unique(data.labels).tolist()
  if len(present) == 1:
    raise UserError(f'{path}: all {len(data.texts)} training texts are '
                    f'{NAMES[classes][present[0]]}: a classifier needs texts of two classes')
  for where, labels in (('training', data.labels), ('dev', held.labels)):
    missing = [name for i, name in enumerate(NAMES[classes]) if i not in labels]
    if missing:
      log(f"[data] WARNING: no {where} text is {' or '.join(missing)}")
  log(f'[data] {len(data.texts):,} training texts ({data.neutral:,} neutral and {data.doubles:,} '
      f'repeated ones left out), {len(held.texts):,} dev texts ({held.neutral:,} neutral left out)'
      + ('' if dev else ', a tenth of the data'))
  return data, held


def _hold_out(data: Examples, seed: int) -> tuple[Examples, Examples]:
  """The texts without a seeded tenth, and the tenth."""
  if len(data.texts) < 20:
    raise UserError(f'{len(data.texts)} texts are too few to hold a tenth out: give --dev')
  order = np.random.default_rng([seed, 2]).permutation(len(data.texts))
  cut = round(len(order) / 10)
  train, dev = (
    Examples([data.texts[i] for i in part], data.labels[part], neutral, data.doubles,
             f'{data.digest}:{name}')
    for part, name, neutral in ((np.sort(order[cut:]), 'train', data.neutral),
                                (np.sort(order[:cut]), 'dev', 0)))  # counted once
  return train, dev


def _lines(path: str | os.PathLike) -> Iterator[tuple[str, str]]:
  """Lines that are not empty, with their places."""
  return ((line, f'{path}:{number}') for number, line in enumerate(read_text_lines(path), 1)
          if line.strip())


def _collect(found: Iterable[Iterable[tuple[int, str]]], path: str | os.PathLike, *, classes: int,
             phrases: bool) -> Examples:
  """The examples of all lines."""
  texts, labels, neutral, seen, doubles = [], [], 0, set(), 0
  for line in found:
    for label, words in line:
      if classes == 2 and label == 2:
        neutral += 1
        continue
      label = int(label > 2) if classes == 2 else label
      if phrases:
        doubles += (label, words) in seen
        if (label, words) in seen:
          continue
        seen.add((label, words))
      texts.append(words)
      labels.append(label)
  if not texts:
    raise UserError(f'{path} holds no labelled sentence')
  array = np.array(labels, np.int32)
  digest = hashlib.sha256('\0'.join([*texts, str(labels)]).encode('utf-8')).hexdigest()
  return Examples(texts, array, neutral, doubles, digest)


def _named(row: Any, where: str, classes: int) -> tuple[int, str]:
  """Label from 0 to 4 and text of a row with names."""
  text = next((row[n] for n in _TEXT if n in row), None) if isinstance(row, Mapping) else None
  if not isinstance(text, str) or 'label' not in row:
    raise UserError(f"{where}: a row names 'label' and {' or '.join(map(repr, _TEXT))}")
  return _example(str(row['label']), text, where, five=classes == 5)


def _example(label: str, text: str, where: str, *, five: bool) -> tuple[int, str]:
  """Label from 0 to 4 and text, checked."""
  allowed = '01234' if five else '01'
  if len(label) != 1 or label not in allowed:
    raise UserError(f"{where}: label '{label}' is not one of {', '.join(allowed)}: write "
                    'each label as one of these numbers')
  if not text.strip():
    raise UserError(f'{where}: the text is empty')
  return (int(label) if five else 4 * int(label)), text.strip()


def _columns(line: str, where: str, classes: int) -> tuple[int, str]:
  """Label from 0 to 4 and text of a line with tabs."""
  columns = line.split('\t')
  if len(columns) not in (2, 3):
    raise UserError(f'{where}: {len(columns)} columns, not label<TAB>text or '
                    'label<TAB>binary<TAB>text')
  label = columns[0]
  found = _example(label, columns[-1], where, five=len(columns) == 3 or classes == 5)
  if len(columns) == 3 and columns[1] != {'0': '0', '1': '0', '2': ''}.get(label, '1'):
    raise UserError(f"{where}: binary label '{columns[1]}' does not fit label {label} (0 for 0 and "
                    '1, empty for 2, 1 for 3 and 4)')
  return found


def _tree(line: str, where: str, *, phrases: bool) -> list[tuple[int, str]]:
  """Label and text of the whole sentence, or of every phrase."""
  found: list[tuple[int, str]] = []
  open_: list[tuple[int, int]] = []  # label, number of words before the phrase
  words: list[str] = []
  expects_label = False
  for token in _NODE.findall(line):
    if expects_label:
      if token not in ('0', '1', '2', '3', '4'):
        raise UserError(f"{where}: label '{token}' of a phrase is not one of 0 to 4")
      open_.append((int(token), len(words)))
      expects_label = False
    elif token == '(':
      expects_label = True
    elif token == ')':
      if not open_ or open_[-1][1] == len(words):
        raise UserError(f'{where}: brackets do not match, or a phrase has no words')
      label, start = open_.pop()
      if phrases or not open_:
        found.append((label, ' '.join(words[start:])))
    else:
      if not open_:
        raise UserError(f"{where}: '{token}' stands outside the tree")
      for written, meant in _UNDO.items():
        token = token.replace(written, meant)
      words.append(token)
  if open_ or expects_label or not found:
    raise UserError(f'{where}: brackets do not match')
  return found


# How good predictions are: accuracy and F1 (H-15), each with n and an interval.

_REPETITIONS = 2000


def quality(labels: np.ndarray, predictions: np.ndarray, *, classes: int, seed: int = 0
            ) -> dict[str, Any]:
  """Accuracy and F1 of R predictions."""
  from scipy.stats import binomtest
  labels, predictions = np.asarray(labels), np.asarray(predictions)
  n = len(labels)
  pairs = labels * (classes + 1) + np.where(predictions < 0, classes, predictions)
  counts = np.bincount(pairs, minlength=classes * (classes + 1))
  drawn = np.random.default_rng(seed).multinomial(n, counts / n, size=_REPETITIONS)
  f1, resampled = _f1(counts[None], classes)[0], _f1(drawn, classes)

  def estimate(value, draws):
    low, high = np.percentile(draws, [2.5, 97.5])
    return {'value': float(value), 'low': float(low), 'high': float(high)}

  decided, right = predictions >= 0, labels == predictions
  share = binomtest(int(right.sum()), n).proportion_ci(method='wilson')
  result = {
    'accuracy_of_decided': float(right[decided].mean()) if decided.any() else None,
    'n': n, 'classes': classes, 'undecided': int((predictions < 0).sum()),
    'accuracy': {'value': float(right.mean()), 'low': float(share.low), 'high': float(share.high)},
    'macro_f1': estimate(f1.mean(), resampled.mean(1)), 'f1_by_class': f1.tolist()}
  if classes == 2:
    result['positive_f1'] = estimate(f1[1], resampled[:, 1])
  return result


def _f1(counts: np.ndarray, classes: int) -> np.ndarray:
  """F1 of every class, `[X, classes]`, from `[X, classes * (classes + 1)]` counts; 0 if unseen."""
  table = counts.reshape(-1, classes, classes + 1)
  hits = np.diagonal(table, axis1=1, axis2=2)
  total = table.sum(2) + table[:, :, :classes].sum(1)
  return np.divide(2 * hits, total, out=np.zeros(hits.shape), where=total > 0)


# Where training starts: a checkpoint with a new classification layer, or a small new BERT.


def from_checkpoint(directory: str | os.PathLike, *, labels: Sequence[str], seed: int,
                    log: Callable[[str], None]) -> Start:
  """Starts from a BERT or ALBERT with its tokenizer and a new head."""
  pooled = any('pooler.' in name for name in open_model(directory).tensors)
  model = load_pretrained(directory, 'pooled' if pooled else 'encoder')
  config = {
    **model.config,
    'architectures': [f'{model.architecture.kind.capitalize()}ForSequenceClassification'],
    **_label_fields(labels)}
  arch = read_architecture(config, where='config.json')
  fresh = new_params(arch, seed=seed, only=('classifier',) if pooled else ('classifier', 'pooler'),
                     std=initial_std(config))
  log(f"[start] {directory}: {'pooler' if pooled else 'no pooler (a new one is made)'}, a new "
      f'classification layer of {len(labels)} classes; not used: '
      + (', '.join(model.ignored) or 'nothing'))
  return Start.of(model, config, arch, {**model.params, **fresh})


def from_scratch(texts: Sequence[str], sizes: Sizes, *, classes: int, seed: int,
                 log: Callable[[str], None]) -> Start:
  """Starts from random parameters of a BERT and a vocabulary of the training texts."""
  return new_start(
    train_word_pieces(count_words(texts), size=sizes.vocab_size), sizes, std=0.02,
    head='classifier', seed=seed, log=log, architectures=['BertForSequenceClassification'],
    hidden_act='gelu', hidden_dropout_prob=0.2, attention_probs_dropout_prob=0.1,
    **_label_fields(NAMES[classes]))


def _label_fields(names: Sequence[str]) -> dict[str, Any]:
  return {'id2label': {str(i): n for i, n in enumerate(names)},
          'label2id': {n: i for i, n in enumerate(names)}}


CARD, _BEST = 'card.json', 'best.safetensors'


@dataclasses.dataclass(frozen=True)
class Settings(Recipe):
  """How to train a classifier."""

  classes: int = 2


def train_classifier(
  start: Start, train: Examples, dev: Examples, output: pathlib.Path, *, settings: Settings,
  source: dict[str, Any], log: Callable[[str], None], stop: StopSignal | None = None,
) -> dict[str, Any]:
  """Trains, keeps the epoch with the highest accuracy on `dev` and writes a model directory."""
  plan = json.loads(json.dumps({
    'settings': dataclasses.asdict(settings), 'start': start.fingerprint, 'config': start.config,
    'train': train.digest, 'dev': dev.digest, **source}))
  training = output / 'training'  # the checkpoints and the best epoch until the end
  if (output / CARD).is_file():  # perhaps where no lock can be written
    card = read_sealed_json(
      output / CARD, again='name another --output, or delete the folder to train again')
    check_plan(card.get('identity', {}), plan, output, option='--output')
    log(f'[train] {output} finished earlier: nothing to do')
    shutil.rmtree(training, ignore_errors=True)  # an interruption after the card leaves it
    return card
  if not (training / PLAN).is_file():
    check_free(output, option='--output')  # before the lock leaves a file there
  with FolderLock(output, log):
    open_plan(training / PLAN, plan, output=output, option='--output')
    encoded = [encode_texts(start.tokenizer, e.texts, max_length=start.max_length)
               for e in (train, dev)]
    longer = ', '.join(f'{e.truncated:,} of {len(e.ids):,} {name} texts'
                       for name, e in zip(('training', 'dev'), encoded, strict=True) if e.truncated)
    if longer:
      log(f'[data] {longer} are longer than the {start.max_length} tokens the model reads: their '
          'end is not seen')
    rows = TokenRows(encoded[0].ids, train.labels, max_length=start.max_length,
                     pad_id=start.arch.pad_id)
    tuning = FineTuning(rows, functools.partial(class_losses, arch=start.arch), settings)
    judge = _Judge(start, encoded[1], dev.labels, settings.classes, tuning.mesh, training / _BEST)
    stage = tuning.stage(
      start.params, name='classifier', seed=settings.seed, directory=training, evaluate=judge,
      identity=start.identity('classifier', plan))
    run_stage(stage, stop=stop or StopSignal(), log=log)
    lines = read_metrics(training / 'metrics.jsonl')
    epochs = [{'epoch': epoch + 1, 'train_loss': tuning.epoch_loss(lines, epoch),
               'dev_accuracy': line['accuracy'], 'dev_macro_f1': line['macro_f1']}
              for epoch, line in enumerate(line for line in lines if line['kind'] == 'valid')]
    best, found = judge.kept()
    write_model(output, start, best, 'classifier')
    card = {
      'identity': plan, 'epochs': epochs, 'dev': found,
      'chosen_epoch': 1 + int(np.argmax([e['dev_accuracy'] for e in epochs])),  # first of equals
      'note': 'the epoch was chosen on dev, so its figures are a little too good',
      'train_texts': len(train.texts), 'train_neutral_left_out': train.neutral,
      'train_doubles_left_out': train.doubles, 'dev_texts': len(dev.texts),
      'dev_neutral_left_out': dev.neutral, 'max_length': start.max_length,
      'train_truncated': encoded[0].truncated, 'dev_truncated': encoded[1].truncated}
    write_sealed_json(output / CARD, card)
    shutil.rmtree(training)
    return card


class _Judge:
  """Quality on the dev texts after every epoch; the parameters of the best one go into a file."""

  def __init__(self, start: Start, dev: Encoded, labels: np.ndarray, classes: int, mesh: Mesh,
               path: pathlib.Path):
    self._start, self._dev, self._labels, self._classes = start, dev, labels, classes
    self._path, self._mesh = path, mesh
    self._runner: BatchRunner | None = None
    # After an interruption the file may be of a later epoch than the checkpoint: that epoch is
    # trained again, to the same parameters.
    self._best = self.kept()[1]['accuracy']['value'] if path.is_file() else -1.0

  def __call__(self, params: Any) -> dict[str, float]:
    """Accuracy and F1."""
    found = self.quality(params)
    accuracy = found['accuracy']['value']
    if accuracy > self._best:
      tensors = to_tensors(jax.device_get(params), self._start.arch, 'classifier')
      write_tensors(self._path, tensors)
      self._best = accuracy
    return {'accuracy': accuracy, 'macro_f1': found['macro_f1']['value']}

  def kept(self) -> tuple[Params, dict[str, Any]]:
    """The parameters of the best epoch, and how good they are."""
    params, *_ = to_params(
      open_tensors([self._path]), self._start.arch, 'classifier', where=str(self._path))
    return params, self.quality(params)

  def quality(self, params: Any) -> dict[str, Any]:
    """All of `quality`."""
    if self._runner is None:
      self._runner = class_runner(
        params, self._start.arch, max_length=self._start.max_length, mesh=self._mesh)
    self._runner.load(params)
    return quality(self._labels, self._runner(self._dev.ids).argmax(-1), classes=self._classes)


def class_losses(params: Any, batch: dict[str, jax.Array], key: jax.Array, *, arch: Architecture,
                 sep: int | None = None, frozen: bool = False) -> jax.Array:
  """Loss of every row, `[B]`; `sep` ends each sentence of pairs, a frozen model drops nothing."""
  keys = jax.random.split(key)
  types = None if sep is None else pair_types(batch['ids'], sep)
  hidden = encode(params, arch, batch['ids'], batch['mask'], types,
                  key=None if frozen else keys[0], first_only=True)
  if frozen:
    hidden = jax.lax.stop_gradient(hidden)
  return label_losses(class_logits(params, arch, hidden, key=keys[1]), batch['labels'])
