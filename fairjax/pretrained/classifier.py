"""Fine-tuning of a sequence classifier: epochs, the best of which is kept, resumable after each."""

import collections
import dataclasses
import functools
import hashlib
import heapq
import io
import json
import os
import pathlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
from jax.sharding import Mesh

from fairjax.errors import UserError
from fairjax.files import atomic_write, write_json
from fairjax.inputs import decode, open_input
from fairjax.pretrained.batch_runner import BatchRunner, default_mesh
from fairjax.pretrained.checkpoint import Architecture, entries, load_pretrained, read_architecture
from fairjax.pretrained.fit import Recipe, TokenRows, Trainer
from fairjax.pretrained.models import class_logits, encode
from fairjax.pretrained.tokens import encode_texts, wordpiece_tokenizer
from fairjax.tables import read_rows

# Labelled sentences: the Stanford Sentiment Treebank (Socher et al. 2013) and the like.

NAMES = {2: ('negative', 'positive'),
         5: ('very negative', 'negative', 'neutral', 'positive', 'very positive')}
"""Number of classes -> their names, from bad to good."""

_NODE = re.compile(r'\(|\)|[^() ]+')  # a no-break space belongs to a word
_TEXT = ('sentence', 'text')
_HEADER = re.compile(rb'[^\r\n]*\b(label["\']?[\t,;]|[\t,;]["\']?label\b)')
_UNDO = {'-LRB-': '(', '-RRB-': ')', '-LSB-': '[', '-RSB-': ']', '\\/': '/', '\\*': '*'}


class Examples(NamedTuple):
  """What a file holds.

  Attributes:
    texts: R texts.
    labels: `[R]` int32, 0 to classes - 1.
    neutral: texts of two-class data that were left out because they are neutral.
    doubles: phrases that were left out because the same text and label was there already.
    digest: SHA-256 (hex) of texts and labels.
  """

  texts: list[str]
  labels: np.ndarray
  neutral: int
  doubles: int
  digest: str


def read_examples(path: str | os.PathLike, *, classes: int, phrases: bool = False) -> Examples:
  """Reads a file of labelled sentences, plain or compressed.

  Forms, told apart by the first line: trees (`(3 (2 It) (4 ...))`, labels 0 to 4 at every node);
  `label<TAB>binary<TAB>text` with label 0 to 4 and binary 0, 1 or empty for neutral;
  `label<TAB>text` with labels 0 to classes - 1; a table whose header names `label` and `sentence`
  or `text` (GLUE's SST-2); JSON objects with these names.

  Args:
    path: the file.
    classes: 2 (neutral texts are left out, counted) or 5.
    phrases: of trees, take every phrase and not only the whole sentence.

  Raises:
    UserError: unreadable file or line (with its number), unknown label, empty text, or a form that
      cannot give what was asked for.
  """
  if classes not in NAMES:
    raise UserError(f'{classes} classes: only 2 and 5 are known')
  with open_input(path, what='labelled sentences') as file:
    begin = file.peek().lstrip()
    if phrases and not begin.startswith(b'('):
      raise UserError(f'{path}: phrases need trees, as in (3 (2 It) (4 works))')
    if begin.startswith((b'{', b'[')) or _HEADER.match(begin):
      found = ([_named(row, where, classes)] for row, where in read_rows(
        file, path, ('label',), unquoted_tabs=True))
    elif begin.startswith(b'('):
      found = (_tree(line, where, phrases=phrases) for line, where in _lines(file, path))
    else:
      found = ([_columns(line, where, classes)] for line, where in _lines(file, path))
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
  return tuple(
    Examples([data.texts[i] for i in part], data.labels[part], data.neutral, data.doubles,
             f'{data.digest}:{name}')
    for part, name in ((np.sort(order[cut:]), 'train'), (np.sort(order[:cut]), 'dev')))


def _lines(file: io.BufferedReader, path: str | os.PathLike) -> Iterator[tuple[str, str]]:
  """Lines that are not empty, with their places."""
  for number, line in enumerate(file, 1):
    text = decode(line, path, number).rstrip('\r\n')
    if '\0' in text:
      raise UserError(f'{path}:{number}: the line holds a NUL character: remove it')
    if text.strip():
      yield text, f'{path}:{number}'


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
  label = str(row['label'])
  _check_label(label, where, five=classes == 5)
  if not text.strip():
    raise UserError(f'{where}: the text is empty')
  return int(label) if classes == 5 else 4 * int(label), text.strip()


def _check_label(label: str, where: str, *, five: bool) -> None:
  allowed = '01234' if five else '01'
  if len(label) != 1 or label not in allowed:
    raise UserError(f"{where}: label '{label}' is not one of {', '.join(allowed)}: write "
                    'each label as one of these numbers')


def _columns(line: str, where: str, classes: int) -> tuple[int, str]:
  """Label from 0 to 4 and text of a line with tabs."""
  columns = line.split('\t')
  if len(columns) not in (2, 3):
    raise UserError(f'{where}: {len(columns)} columns, not label<TAB>text or '
                    'label<TAB>binary<TAB>text')
  label, text = columns[0], columns[-1].strip()
  five = len(columns) == 3 or classes == 5
  _check_label(label, where, five=five)
  if len(columns) == 3 and columns[1] != {'0': '0', '1': '0', '2': ''}.get(label, '1'):
    raise UserError(f"{where}: binary label '{columns[1]}' does not fit label {label} (0 for 0 and "
                    '1, empty for 2, 1 for 3 and 4)')
  if not text:
    raise UserError(f'{where}: the text is empty')
  return (int(label) if five else 4 * int(label)), text


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
_Z = 1.959963984540054  # 97.5 % point of the normal distribution


def quality(labels: np.ndarray, predictions: np.ndarray, *, classes: int, seed: int = 0
            ) -> dict[str, Any]:
  """Accuracy and F1 of R predictions."""
  labels, predictions = np.asarray(labels), np.asarray(predictions)
  if labels.shape != predictions.shape or not labels.size:
    raise ValueError(f'labels {labels.shape} and predictions {predictions.shape}')
  n = len(labels)
  pairs = labels * (classes + 1) + np.where(predictions < 0, classes, predictions)
  counts = np.bincount(pairs, minlength=classes * (classes + 1))
  drawn = np.random.default_rng(seed).multinomial(n, counts / n, size=_REPETITIONS)
  f1, resampled = _f1(counts[None], classes)[0], _f1(drawn, classes)

  def estimate(value, draws):
    low, high = np.percentile(draws, [2.5, 97.5])
    return {'value': float(value), 'low': float(low), 'high': float(high)}

  decided, right = predictions >= 0, labels == predictions
  result = {
    'accuracy_of_decided': float(right[decided].mean()) if decided.any() else None,
    'n': n, 'classes': classes, 'undecided': int((predictions < 0).sum()),
    'accuracy': _wilson(int(right.sum()), n),
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


def _wilson(hits: int, n: int) -> dict[str, float]:
  """Share with its Wilson interval."""
  share, extra = hits / n, _Z ** 2 / n
  middle = (share + extra / 2) / (1 + extra)
  half = _Z * np.sqrt(share * (1 - share) / n + extra / (4 * n)) / (1 + extra)
  return {'value': share, 'low': float(middle - half), 'high': float(middle + half)}


# A WordPiece vocabulary from texts: pairs of pieces that stand together most often are joined.
#
# The trainer of the package `tokenizers` breaks ties at random, so that two runs with the same seed
# would differ; here equal counts are ordered by the pieces themselves.

SPECIAL = ('[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]')
_ALPHABET = 1000  # characters that get a piece of their own; words with rarer ones are unknown


def train_word_pieces(words: Mapping[str, int], *, size: int, min_count: int = 2) -> dict[str, int]:
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
    if -count < min_count:
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


# Where training starts: a checkpoint with a new classification layer, or a small new BERT.

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
  """Starts from a BERT or ALBERT with its tokenizer and a new head."""
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


def start_model(data: Examples, *, init: str | os.PathLike | None, classes: int, seed: int,
                sizes: Mapping[str, int], log: Callable[[str], None]) -> Start:
  """`from_checkpoint` of a directory, without one `from_scratch`."""
  if init:
    return from_checkpoint(init, labels=NAMES[classes], seed=seed, log=log)
  return from_scratch(data.texts, classes=classes, seed=seed, sizes=sizes, log=log)


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


def write_tokenizer(output: pathlib.Path, start: Start) -> None:
  """Writes the tokenizer's files, each atomically."""
  for name, content in start.files.items():
    with atomic_write(output / name) as file:
      file.write(content)


def write_model(output: pathlib.Path, start: Start, params: Any) -> None:
  """Writes weights, then `config.json`, in the published form, each atomically."""
  from safetensors.numpy import save

  from fairjax.pretrained.checkpoint import to_tensors
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


CARD = 'card.json'


@dataclasses.dataclass(frozen=True)
class Settings(Recipe):
  """How to train a classifier."""

  classes: int = 2


def train_classifier(
  start: Start, train: Examples, dev: Examples, output: pathlib.Path, *, settings: Settings,
  source: dict[str, Any], log: Callable[[str], None], mesh: Mesh | None = None,
) -> dict[str, Any]:
  """Trains, keeps the epoch with the highest accuracy on `dev` and writes a model directory."""
  identity = {'settings': dataclasses.asdict(settings), 'start': start.fingerprint,
              'config': start.config, 'train': train.digest, 'dev': dev.digest, **source}
  checkpoint, best = output / 'training' / 'last.safetensors', output / 'training/best.safetensors'
  if (output / CARD).is_file():
    card = _read_card(output / CARD)
    check_identity(card['identity'], identity, output)
    log(f'[train] {output} finished earlier: nothing to do')
    _remove(checkpoint, best)  # an interruption after the card leaves them
    return card
  if not checkpoint.is_file():
    _check_free(output, start)
  classifier = _Classifier(start, train, dev, settings, mesh or default_mesh(), log)
  trainer, params, history = classifier.trainer, start.params, []
  opt_state = trainer.fresh(params)
  if checkpoint.is_file():
    tensors, saved = _read(checkpoint)
    check_identity(saved['identity'], identity, output)
    params, opt_state = _unflatten((params, opt_state), tensors, where=checkpoint)
    history = saved['history']
    log(f'[train] goes on after epoch {len(history)} of {settings.epochs}')
  write_tokenizer(output, start)
  params, opt_state = trainer.place((params, opt_state))
  for epoch in range(len(history), settings.epochs):
    params, opt_state, loss = trainer.epoch(params, opt_state, epoch)
    found = classifier.evaluate(params)
    history.append({'epoch': epoch + 1, 'train_loss': loss, 'dev': found})
    log(f"[epoch {epoch + 1}/{settings.epochs}] loss {loss:.4f}, dev accuracy "
        f"{found['accuracy']['value']:.4f}, macro F1 {found['macro_f1']['value']:.4f} "
        f"(n = {found['n']})")
    if _best(history) == epoch:
      _write(best, params, {'identity': identity, 'epoch': epoch + 1})
    _write(checkpoint, (params, opt_state), {'identity': identity, 'history': history})
  tensors, saved = _read(best)
  check_identity(saved['identity'], identity, output)
  write_model(output, start, _unflatten(params, tensors, where=best))
  chosen = history[_best(history)]
  card = {
    'identity': identity, 'epochs': history, 'chosen_epoch': chosen['epoch'], 'dev': chosen['dev'],
    'note': 'the epoch was chosen on dev, so its figures are a little too good',
    'train_texts': len(train.texts), 'train_neutral_left_out': train.neutral,
    'train_doubles_left_out': train.doubles, 'dev_texts': len(dev.texts),
    'dev_neutral_left_out': dev.neutral, 'max_length': start.max_length,
    'train_truncated': classifier.train.truncated,
    'dev_truncated': classifier.dev.truncated}
  write_json(output / CARD, card)
  _remove(checkpoint, best)
  return card


class _Classifier:
  """Rows, loss and quality of one training."""

  def __init__(self, start: Start, train: Examples, dev: Examples, settings: Settings, mesh: Mesh,
               log: Callable[[str], None]):
    self._start, self._mesh, self._classes = start, mesh, settings.classes
    self.train, self.dev = (encode_texts(start.tokenizer, e.texts, max_length=start.max_length)
                            for e in (train, dev))
    longer = ', '.join(
      f'{encoded.truncated:,} of {len(encoded.ids):,} {name} texts'
      for name, encoded in (('training', self.train), ('dev', self.dev)) if encoded.truncated)
    if longer:
      log(f'[data] {longer} are longer than the {start.max_length} tokens the model reads: their '
          'end is not seen')
    self._dev_labels = dev.labels
    rows = TokenRows(self.train.ids, train.labels, max_length=start.max_length,
                     pad_id=start.arch.pad_id)
    self.trainer = Trainer(rows, functools.partial(class_losses, arch=start.arch), settings,
                           mesh=mesh, log=log)
    self._runner: BatchRunner | None = None

  def evaluate(self, params: Any) -> dict[str, Any]:
    """Quality on the dev texts."""
    arch = self._start.arch
    if self._runner is None:
      self._runner = BatchRunner(
        lambda p, ids, mask, packing: class_logits(
          p, arch, encode(p, arch, ids, mask, packing=packing, first_only=True)), params,
        max_length=self._start.max_length, pad_id=arch.pad_id, mesh=self._mesh)
    self._runner.load(params)
    return quality(self._dev_labels, self._runner(self.dev.ids).argmax(-1), classes=self._classes)


def class_losses(params: Any, batch: dict[str, jax.Array], key: jax.Array, *, arch: Architecture
                 ) -> jax.Array:
  """Cross-entropy of every row, `[B]` nats."""
  keys = jax.random.split(key)
  hidden = encode(params, arch, batch['ids'], batch['mask'], key=keys[0], first_only=True)
  logits = class_logits(params, arch, hidden, key=keys[1])
  return optax.softmax_cross_entropy_with_integer_labels(logits, batch['labels'])


def _best(history: list[dict[str, Any]]) -> int:
  """Index of the epoch with the highest accuracy, the first of equal ones."""
  return int(np.argmax([h['dev']['accuracy']['value'] for h in history]))


def _names(tree: Any) -> list[str]:
  return [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(tree)]


def _write(path: pathlib.Path, tree: Any, card: dict[str, Any]) -> None:
  """Writes a tree of arrays with its card, atomically."""
  from safetensors.numpy import save
  arrays = [np.asarray(a, order='C') for a in jax.device_get(jax.tree.leaves(tree))]
  with atomic_write(path) as file:
    file.write(save(dict(zip(_names(tree), arrays, strict=True)),
                    metadata={'card': json.dumps(card)}))


def _read(path: pathlib.Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
  """Arrays and card of a file of `_write`."""
  from safetensors import SafetensorError, safe_open
  try:
    with safe_open(path, 'np') as file:
      return {name: file.get_tensor(name) for name in file.keys()}, json.loads(  # noqa: SIM118
        file.metadata()['card'])
  except (OSError, SafetensorError, ValueError, KeyError, TypeError) as e:
    raise UserError(f'{path} is damaged ({e}): delete its folder to train again') from None


def _read_card(path: pathlib.Path) -> dict[str, Any]:
  """The card of a finished training."""
  try:
    card = json.loads(path.read_text(encoding='utf-8'))
    if isinstance(card['identity'], dict):
      return card
  except (OSError, ValueError, KeyError, TypeError):
    pass
  raise UserError(f'{path} is not the card of a finished training: name another --output, or '
                  'delete it to train again')


def _check_free(output: pathlib.Path, start: Start) -> None:
  """A training that begins must not write over files that are not its own."""
  for name in ('config.json', 'model.safetensors', *start.files):
    path = output / name
    if path.exists() and (name not in start.files or path.read_bytes() != start.files[name]):
      raise UserError(f'{path} exists and is not of this training: it would be written over; name '
                      'a new folder with --output')


def _remove(checkpoint: pathlib.Path, best: pathlib.Path) -> None:
  """Removes what an interrupted training would go on with."""
  for path in (checkpoint, best):
    path.unlink(missing_ok=True)
  if checkpoint.parent.is_dir() and not any(checkpoint.parent.iterdir()):
    checkpoint.parent.rmdir()


def _unflatten(tree: Any, tensors: dict[str, np.ndarray], *, where: pathlib.Path) -> Any:
  """Puts arrays by name into the places of `tree`."""
  names = _names(tree)
  shapes = dict(zip(names, map(np.shape, jax.tree.leaves(tree)), strict=True))
  if shapes != {name: tensor.shape for name, tensor in tensors.items()}:
    raise UserError(f'{where} holds other arrays than this training: delete its folder')
  return jax.tree.unflatten(jax.tree.structure(tree), [tensors[name] for name in names])


def check_identity(saved: dict[str, Any], wanted: dict[str, Any], output: pathlib.Path) -> None:
  """Refuses to go on with another training, naming what differs."""
  def flat(tree, prefix=''):
    if not isinstance(tree, dict):
      return {prefix.removesuffix('.'): tree}
    return {k: v for name, value in tree.items()
            for k, v in flat(value, f'{prefix}{name}.').items()}

  old, new = flat(saved), flat(json.loads(json.dumps(wanted)))
  changed = [f'{k} ({old.get(k)!r}, now {new.get(k)!r})' for k in sorted(old.keys() | new.keys())
             if old.get(k) != new.get(k)]
  if changed:
    more = f' and {len(changed) - 3} more' if len(changed) > 3 else ''
    raise UserError(f"{output} belongs to another training: {'; '.join(changed[:3])}{more}: use "
                    'another --output, or the same options')
