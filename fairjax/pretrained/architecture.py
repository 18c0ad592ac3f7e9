"""What a `config.json` says of a model, checked: anything that would change its values is known.

Letters: V vocabulary, E embedding width, D model width, N heads, F feed-forward width, L layers.
"""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from fairjax.errors import UserError, unknown_name

KINDS = ('albert', 'bert', 'gpt2')
_CLASSES = {'albert': r'Albert(?=[A-Z]).*', 'bert': r'Bert(?=[A-Z]).*', 'gpt2': r'GPT2(?=[A-Z]).*'}
# Fields that a config of the kind has, and fields of others that share them (GPT-J, StarCoder).
_FIELDS = {
  'albert': ({'hidden_size', 'embedding_size', 'inner_group_num', 'intermediate_size'}, set()),
  'bert': ({'hidden_size', 'num_hidden_layers', 'num_attention_heads', 'intermediate_size',
            'type_vocab_size'}, {'embedding_size', 'num_hidden_groups'}),
  'gpt2': ({'n_embd', 'n_layer', 'n_head', 'n_positions'},
           {'rotary_dim', 'multi_query', 'afn', 'attention_layers'})}
ACTIVATIONS = ('gelu', 'gelu_new', 'gelu_pytorch_tanh', 'relu')


@dataclasses.dataclass(frozen=True)
class Architecture:
  """Sizes and switches of a model; hashable, so that compiled functions can depend on it.

  Attributes:
    kind: 'bert', 'albert' or 'gpt2'.
    groups: different groups of layers (ALBERT shares them); L where nothing is shared.
    layers_per_group: layers that a group applies each time.
    tied: the output table is the embedding table.
    labels: names of the classes of a sequence classifier, by number.
  """

  kind: str
  vocab_size: int
  embedding_dim: int
  model_dim: int
  num_layers: int
  num_heads: int
  ff_dim: int
  max_positions: int
  token_types: int
  groups: int
  layers_per_group: int
  norm_eps: float
  activation: str
  tied: bool
  labels: tuple[str, ...]
  pad_id: int
  hidden_dropout: float
  attention_dropout: float
  classifier_dropout: float

  @property
  def head_dim(self) -> int:
    """Width of one attention head."""
    return self.model_dim // self.num_heads

  @property
  def layer_order(self) -> tuple[int, ...]:
    """Number of the stacked layer at every depth: 0 to L-1, or with repetitions in ALBERT."""
    if self.kind != 'albert':
      return tuple(range(self.num_layers))
    return tuple(self.layers_per_group * (depth * self.groups // self.num_layers) + inner
                 for depth in range(self.num_layers) for inner in range(self.layers_per_group))


def recognise(config: Mapping[str, Any], *, where: str) -> tuple[str, str]:
  """The kind of a model by its config, and '' or what it was recognised by.

  Args:
    config: content of a `config.json`: `model_type`, or where there is none `architectures`, or the
      names of its fields.
    where: its path, for messages.

  Raises:
    UserError: another kind, or nothing tells the kind; or quantised weights.
  """
  quantised = config.get('quantization_config')
  if quantised:
    method = quantised.get('quant_method') if isinstance(quantised, Mapping) else None
    bits = [f'{key}={value}' for key, value in quantised.items()
            if 'bit' in key and value is not False] if isinstance(quantised, Mapping) else []
    raise UserError(f"{where} has a quantization_config ({', '.join([str(method), *bits])}): "
                    'quantised weights are not read: take the checkpoint before quantisation')
  kind, classes = config.get('model_type'), config.get('architectures') or []
  reads = f"fairjax reads the kinds {', '.join(KINDS)} here"
  if kind is not None:
    if kind not in KINDS:
      raise UserError(f"{where}: unknown model_type '{kind}': {reads}: take a model of one of them")
    return kind, ''
  for name in classes if isinstance(classes, list) else ():
    found = [k for k, pattern in _CLASSES.items() if re.fullmatch(pattern, str(name))]
    if not found:
      raise UserError(f"{where} has no model_type, and its architecture '{name}' is not known: "
                      f'{reads}: take a model of one of them')
    return found[0], f"its architecture '{name}'"
  for name, (needed, foreign) in _FIELDS.items():
    if needed <= config.keys() and not foreign & config.keys():
      return name, 'the names of its fields'
  raise UserError(f'{where} has no model_type, no architectures, and not the fields of any kind '
                  f'that is known: {reads}: add "model_type", or take the config.json of the model')


def read_architecture(config: Mapping[str, Any], *, where: str) -> Architecture:
  """Reads the content of a `config.json`.

  Args:
    config: as published with checkpoints of BERT, ALBERT and GPT-2.
    where: its path, for messages.

  Raises:
    UserError: unknown `model_type` or activation, a field that is missing or no positive number,
      or a setting under which the model would compute something else than is implemented here.
  """
  kind = recognise(config, where=where)[0]
  read = _Fields(config, where)
  found = _gpt2(read) if kind == 'gpt2' else _encoder(read, kind)
  if found['activation'] not in ACTIVATIONS:
    raise unknown_name('activation', str(found['activation']), ACTIVATIONS, where=where)
  if found['model_dim'] % found['num_heads']:
    raise UserError(f"{where}: width {found['model_dim']} is not divisible by "
                    f"{found['num_heads']} heads")
  for name in ('add_cross_attention',) if kind == 'gpt2' else ('is_decoder', 'add_cross_attention'):
    read.must(name, False)
  if found['pad_id'] >= found['vocab_size']:  # of an added token; no place of padding is read
    found['pad_id'] = 0
  return Architecture(kind=kind, labels=read.labels(), **found)


def _encoder(read: '_Fields', kind: str) -> dict[str, Any]:
  """Fields of BERT and ALBERT."""
  read.must('position_embedding_type', 'absolute')
  width, layers = read.size('hidden_size'), read.size('num_hidden_layers')
  albert = kind == 'albert'
  groups = read.size('num_hidden_groups', 1) if albert else layers
  if layers < groups:
    raise UserError(f'{read.where}: num_hidden_groups={groups} is above '
                    f'num_hidden_layers={layers}')
  hidden_dropout = read.share('hidden_dropout_prob', 0.0 if albert else 0.1)
  last = 'classifier_dropout_prob' if albert else 'classifier_dropout'
  return dict(
    vocab_size=read.size('vocab_size'),
    embedding_dim=read.size('embedding_size', 128) if albert else width, model_dim=width,
    num_layers=layers, num_heads=read.size('num_attention_heads'),
    ff_dim=read.size('intermediate_size'), max_positions=read.size('max_position_embeddings'),
    token_types=read.size('type_vocab_size', 2), groups=groups,
    layers_per_group=read.size('inner_group_num', 1) if albert else 1,
    norm_eps=read.share('layer_norm_eps', 1e-12),
    activation=read.get('hidden_act', 'gelu_new' if albert else 'gelu'),
    tied=bool(read.get('tie_word_embeddings', True)), pad_id=read.number('pad_token_id', 0),
    hidden_dropout=hidden_dropout,
    attention_dropout=read.share('attention_probs_dropout_prob', 0.0 if albert else 0.1),
    classifier_dropout=read.share(last, 0.1 if albert else hidden_dropout))


def _gpt2(read: '_Fields') -> dict[str, Any]:
  """Fields of GPT-2."""
  read.must('scale_attn_weights', True)
  read.must('scale_attn_by_inverse_layer_idx', False)
  width = read.size('n_embd')
  layers = read.size('n_layer')
  return dict(
    vocab_size=read.size('vocab_size'), embedding_dim=width, model_dim=width, num_layers=layers,
    num_heads=read.size('n_head'), ff_dim=read.size('n_inner', 4 * width),
    max_positions=read.size('n_positions'), token_types=0, groups=layers, layers_per_group=1,
    norm_eps=read.share('layer_norm_epsilon', 1e-5),
    activation=read.get('activation_function', 'gelu_new'),
    tied=bool(read.get('tie_word_embeddings', True)), pad_id=read.number('pad_token_id', 0),
    hidden_dropout=read.share('resid_pdrop', 0.1), attention_dropout=read.share('attn_pdrop', 0.1),
    classifier_dropout=0.0)


class _Fields:
  """Values of a config with their checks."""

  def __init__(self, config: Mapping[str, Any], where: str):
    self.config, self.where = config, where

  def get(self, name: str, default: Any) -> Any:
    value = self.config.get(name)
    return default if value is None else value

  def must(self, name: str, wanted: Any) -> None:
    if self.get(name, wanted) != wanted:
      raise UserError(f'{self.where}: {name}={self.config[name]!r} is not supported, only '
                      f'{wanted!r}')

  def number(self, name: str, default: int | None = None) -> int:
    value = self.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
      raise UserError(f'{self.where}: {name} is {value!r}, a whole number is needed')
    return value

  def size(self, name: str, default: int | None = None) -> int:
    value = self.number(name, default)
    if not value:
      raise UserError(f'{self.where}: {name} is 0, a positive number is needed')
    return value

  def share(self, name: str, default: float) -> float:
    value = self.get(name, default)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < 1:
      raise UserError(f'{self.where}: {name} is {value!r}, a number in [0, 1) is needed')
    return float(value)

  def labels(self) -> tuple[str, ...]:
    """Names of the classes; a config without any has two (it leaves out that default)."""
    named = self.config.get('id2label')
    if named is None:
      count = self.number('num_labels', self.number('_num_labels', 2))
      return tuple(f'LABEL_{i}' for i in range(count))
    if not isinstance(named, dict) or sorted(named) != sorted(map(str, range(len(named)))):
      raise UserError(f'{self.where}: id2label must name the classes "0" to "C-1"')
    labels = tuple(str(named[str(i)]) for i in range(len(named)))
    if len(set(labels)) != len(labels):
      raise UserError(f'{self.where}: id2label gives several classes the same name')
    return labels


def safe_name(text: str) -> str:
  """Keeps letters, digits, `.`, `_` and `-` of a name, for names of files.

  >>> safe_name('my model:v2')
  'my-model-v2'
  """
  return re.sub(r'[^\w.-]+', '-', text, flags=re.ASCII).strip('-.') or 'model'
