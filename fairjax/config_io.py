"""Configuration files: reads `configs/*.py`, overrides fields, converts to dataclasses and back.

`load_config('configs/quickstart.py:strength=0', {'lm.steps': '100'})` executes the file's
`get_config(arg)`, converts its `ml_collections.ConfigDict` once to frozen dataclasses, applies the
overrides with their types checked, and validates the result. A config file is Python and is
executed: run only files that you trust. The saved `config.json` is the form to share.
"""

import ast
import dataclasses
import functools
import importlib.util
import inspect
import io
import itertools
import json
import os
import pathlib
import re
import tokenize
import traceback
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from fairjax.config import STAGES, Config
from fairjax.config_checks import validate
from fairjax.errors import UserError, unknown_name
from fairjax.inputs import read_text

_QUOTED = re.compile(r"""(?<![^=+,])(["'])(.*?)\1(?![^+,])""")  # a whole element


def default_config_dict():
  """The defaults of every field as an unlocked `ml_collections.ConfigDict`, for config files."""
  import ml_collections

  return ml_collections.ConfigDict(to_dict(Config()))


def parse_arg(arg: str, **defaults: Any) -> types.SimpleNamespace:
  """Parses the argument `k=v,k2=v2` after a config file's colon; the defaults give the types.

  Elements of a tuple are joined by `+`, or the key is repeated. Quotes protect `+` and `,` in a
  value; the name of an existing file needs none. A bare `k` means `k=True` for booleans.

  >>> parse_arg('strength=0,quick', strength=0.8, quick=False)
  namespace(strength=0.0, quick=True)
  >>> parse_arg('train="c++.txt"+b.txt,train=c.txt', train=()).train
  ('c++.txt', 'b.txt', 'c.txt')
  """
  values, given = dict(defaults), set()
  for item in _split(arg or '', ','):
    key, has_value, text = item.partition('=')
    if key not in defaults:
      hint = ' (a comma in a file name needs quotes: train="a,b.txt")' if not has_value else ''
      raise UserError(f'{unknown_name("config argument", key, defaults)}{hint}')
    default = defaults[key]
    if key in given and not isinstance(default, tuple):
      raise UserError(f"config argument '{key}' is given twice: leave one out")
    if not has_value:
      if not isinstance(default, bool):
        raise UserError(f"config argument '{key}' needs a value: {key}=...")
      values[key] = True
    elif isinstance(default, tuple):
      if not text:
        raise UserError(f"config argument '{key}' is empty: name a file, or leave it out")
      values[key] = (values[key] if key in given else ()) + _elements(text, '+')
    else:
      values[key] = _parse(_unquoted(text), type(default), f"config argument '{key}'")
    given.add(key)
  return types.SimpleNamespace(**values)


def _split(text: str, separator: str) -> list[str]:
  """Splits at a separator outside quotes; empty parts are dropped."""
  quoted, places = [m[0] for m in _QUOTED.finditer(text)], itertools.count()
  masked = _QUOTED.sub(lambda m: f'\0{next(places)}\0', text)
  return [re.sub('\0([0-9]+)\0', lambda m: quoted[int(m[1])], part)
          for part in masked.split(separator) if part]


def _unquoted(text: str) -> str:
  return text[1:-1] if _QUOTED.fullmatch(text) else text


def _elements(text: str, separator: str) -> tuple[str, ...]:
  """Elements of a tuple of texts; the name of an existing file is one element."""
  parts = _split(text, separator)
  if separator in text and os.path.exists(text):
    if len(parts) > 1 and all(map(os.path.exists, parts)):
      raise UserError(f"'{text}' is a file, and so are {' and '.join(parts)}: put quotes around "
                      'the names that are meant')
    return (text,)
  return tuple(map(_unquoted, parts))


def _expanded(value: Any) -> Any:
  """Replaces a `~` at the beginning of texts by the home folder."""
  if isinstance(value, str):
    return os.path.expanduser(value) if value.startswith('~') else value
  if isinstance(value, Mapping):
    return {key: _expanded(part) for key, part in value.items()}
  return type(value)(map(_expanded, value)) if isinstance(value, list | tuple) else value


def load_config(spec: str, overrides: Mapping[str, str] | None = None) -> Config:
  """Reads `FILE.py[:args]` or a saved `config.json`, applies overrides, and validates.

  `overrides` maps dotted field names to values as text, e.g. `{'model.num_layers': '12'}`.
  `UserError`: missing file, unknown variant or field (nearest name), wrong type, invalid value.
  """
  path, arg = _split_spec(spec)
  path = _find_config(path)
  if path.endswith('.json'):
    if arg:
      raise UserError(f"{path} takes no arguments, but ':{arg}' is given: set fields instead, "
                      '--config.a.b=VALUE')
    config = from_dict(read_config_json(path))
  else:
    values = _execute(path, 'get_config(arg)', lambda module: module.get_config(arg))
    if not hasattr(values, 'to_dict'):
      raise UserError(f'get_config of {path} returned {type(values).__name__}, not a ConfigDict: '
                      'begin with fairjax.config_io.default_config_dict()')
    config = from_dict(_expanded(values.to_dict()))
  for name, text in (overrides or {}).items():
    config = _override(config, name.split('.'), text, name)
  validate(config)
  return config


def shipped_configs() -> dict[str, str]:
  """Paths of the configs that come with fairjax, by name: `quickstart`, `wikitext103`, ..."""
  package = pathlib.Path(__file__).parent  # an installation has them within, a checkout beside it
  folder = next((f for f in (package / 'configs', package.parent / 'configs') if f.is_dir()), None)
  return {} if folder is None else {
    path.stem: os.path.relpath(path) if path.is_relative_to(pathlib.Path.cwd()) else str(path)
    for path in sorted(folder.glob('*.py')) if path.stem != '__init__'}


def _split_spec(spec: str) -> tuple[str, str]:
  """The file and its argument after a colon; folders may have colons, e.g. of a time, too."""
  ends = [*(match.start() for match in re.finditer(':', spec)), len(spec)]
  end = next((end for end in ends if os.path.isfile(spec[:end])), ends[0])
  return spec[:end], spec[end + 1:]


def _find_config(path: str) -> str:
  """The file, or the shipped one of this name: `quickstart`, also as `configs/quickstart.py`."""
  if os.path.isfile(path):
    return path
  shipped = shipped_configs()
  name = re.fullmatch(r'(?:configs/)?([^/]+?)(?:\.py)?', path)
  if name and name[1] in shipped:
    return shipped[name[1]]
  if name is None or path.endswith('.json'):
    raise UserError(f'config file not found: {path}')
  raise unknown_name('config file', name[1], shipped)


def load_sweep(spec: str) -> list[dict[str, Any]]:
  """Overrides of each point `add(**{'debias.variants': (...)})` in a config file's `sweep(add)`."""
  path = _find_config(_split_spec(spec)[0])
  if not path.endswith('.py'):
    raise UserError(f'a sweep needs a config file in Python, not {path}')
  points: list[dict[str, Any]] = []
  _execute(path, 'sweep(add)', lambda module: module.sweep(lambda **point: points.append(point)))
  return points


def _execute(path: str, needed: str, use: Callable[[types.ModuleType], Any]) -> Any:
  """Runs a config file, which must have a function, and uses it."""
  module_spec = importlib.util.spec_from_file_location('_fairjax_config', path)
  if module_spec is None:
    raise UserError(f'{path} is no config file: its name must end in .py or .json')
  module = importlib.util.module_from_spec(module_spec)
  try:
    module_spec.loader.exec_module(module)
    if not hasattr(module, needed.partition('(')[0]):
      raise UserError(f'{path} defines no {needed}: see configs/quickstart.py')
    return use(module)
  except Exception as e:
    raise _in_config_file(path, e) from e


def _in_config_file(path: str, error: Exception) -> UserError:
  """One line for an exception in a config file, with the last line of the file in its traceback."""
  if isinstance(error, UserError):
    return error
  lines = [f.lineno for f in traceback.extract_tb(error.__traceback__)
           if os.path.abspath(f.filename) == os.path.abspath(path)]
  if isinstance(error, SyntaxError) and os.path.abspath(error.filename or '') == os.path.abspath(
      path):
    lines.append(error.lineno)
  line = lines[-1] if lines else 1
  words = ' '.join(str(error.args[0] if isinstance(error, SyntaxError) else error).split())
  return UserError(f'{path}:{line}: {type(error).__name__}: {words} (--debug shows where)')


WORKDIR_FORMAT = 1
"""Of what a run writes (stages, records, scores, measures); without a number it is 1."""


def read_config_json(path: str | os.PathLike) -> Mapping[str, Any]:
  """Reads the fields of a saved configuration, without checking them."""
  values = read_saved(path)
  fields = values.get('config', values)
  if not isinstance(fields, dict):
    raise _not_fields(path, fields)
  return fields


def step1_run(config: Config, workdir: pathlib.Path) -> tuple[Config, pathlib.Path] | None:
  """Configuration and workdir of the run whose step 1 a run takes; None if it trains its own."""
  if not config.step1_from:
    return None
  other = (workdir / config.step1_from).resolve()
  if not (other / 'config.json').is_file():
    raise UserError(f'step1_from={config.step1_from}: {other} is no workdir of a run (config.json '
                    'is missing); a relative path is seen from --workdir, e.g. ../other')
  return from_dict(read_config_json(other / 'config.json')), other


def as_begun(config: Config, workdir: pathlib.Path) -> Config:
  """The configuration with the names that the corpus had when a run, or its step 1, began."""
  # Of these the identities of its stages are made: its files may have moved since.
  if other := step1_run(config, workdir):
    return dataclasses.replace(config, data=as_begun(*other).data)
  path, values = workdir / 'config.json', to_dict(config)
  if not (began := path.is_file() and read_saved(path).get('began')):
    return config
  return from_dict(values | {'data': values['data'] | began})


def read_saved(path: str | os.PathLike) -> dict[str, Any]:
  """Reads a saved `config.json` with everything beside the configuration, e.g. `versions`."""
  def refuse(name):
    raise ValueError(f'{name} is no number')

  text = read_text(path, what='config file')
  try:
    values = json.loads(text, parse_constant=refuse)
  except (ValueError, RecursionError) as e:
    raise UserError(f'{path} is no JSON ({e}): restore it from the run that wrote it') from None
  if not isinstance(values, dict):
    raise _not_fields(path, values)
  if (found := values.get('workdir_format', WORKDIR_FORMAT)) != WORKDIR_FORMAT:
    raise UserError(f'{path}: a workdir of format {found}, and this fairjax reads '
                    f'{WORKDIR_FORMAT}: use the version that wrote it (it stands there)')
  return values


def _not_fields(path: str | os.PathLike, value: Any) -> UserError:
  return UserError(f'{path} holds {type(value).__name__}, not the fields of a configuration')


def from_dict(values: Mapping[str, Any]) -> Config:
  """Converts nested plain values (lists for tuples) to a `Config`; checks names and types."""
  return _build(Config, values, '')


def to_dict(config: Any) -> dict[str, Any]:
  """Converts a config dataclass to nested plain values; inverts `from_dict`."""
  return dataclasses.asdict(config)


def config_differences(saved: Mapping[str, Any], current: Mapping[str, Any]) -> list[str]:
  """Lists `field: saved -> current` for every leaf that differs or is missing on one side."""
  def leaves(tree, prefix=''):
    for key, value in tree.items():
      if isinstance(value, Mapping):
        yield from leaves(value, f'{prefix}{key}.')
      else:
        yield f'{prefix}{key}', tuple(value) if isinstance(value, list) else value

  old, new = dict(leaves(saved)), dict(leaves(current))
  return [
    f'{k}: {old.get(k, "(missing)")} -> {new.get(k, "(missing)")}'
    for k in sorted(old.keys() | new.keys()) if k not in old or k not in new or old[k] != new[k]
  ]


def _parse(text: str, kind: Any, what: str) -> Any:
  if kind is str:
    return text
  try:
    if kind is bool:
      return msgspec.convert(text, bool, strict=False)
    if kind in (int, float):  # as Python writes them: .5, 1_000, spaces around
      return kind(text)
    element = typing.get_args(kind)[0]
    if text[:1] not in '([' or element is str and os.path.exists(text):
      parts = _elements(text, ',') if element is str else _split(text, ',')
      return tuple(_parse(v, element, what) for v in parts)
    return _coerce(ast.literal_eval(text), kind, what)
  except UserError:
    raise
  except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
    name = str(kind) if typing.get_args(kind) else kind.__name__
    shown = text if len(text) <= 80 else f'{text[:80]}...'
    hint = '; for none give ()' if not text and typing.get_args(kind) else ''
    raise UserError(f"{what}: '{shown}' is not a valid {name}{hint}") from None


def _coerce(value: Any, kind: Any, what: str) -> Any:
  try:
    return msgspec.convert(value, kind)
  except msgspec.ValidationError as e:
    raise UserError(f"{what}: {str(e).replace('`array`', '`tuple`')}") from None


# Fields of earlier versions -> their names now.
_RENAMED = {f'{stage}.parts': f'{stage}.grad_accum_steps' for stage in STAGES}


def _build(cls: type, values: Mapping[str, Any], prefix: str) -> Any:
  hints = typing.get_type_hints(cls)
  arguments = {}
  for key, value in values.items():
    if key not in hints:
      raise _unknown_field(prefix, key, hints)
    if dataclasses.is_dataclass(hints[key]):
      if not isinstance(value, Mapping):
        raise UserError(f'config field {prefix}{key} holds fields, not {value!r}')
      arguments[key] = _build(hints[key], value, f'{prefix}{key}.')
    else:
      arguments[key] = _coerce(value, hints[key], f'config field {prefix}{key}')
  return cls(**arguments)


def _unknown_field(prefix: str, name: str, known: Iterable[str]) -> UserError:
  if new := _RENAMED.get(f'{prefix}{name}'):
    return UserError(f'config field {prefix}{name} is called {new} now: use that name')
  return unknown_name('config field', f'{prefix}{name}', [f'{prefix}{k}' for k in known])


def _override(node: Any, parts: list[str], text: str, name: str) -> Any:
  hints = typing.get_type_hints(type(node))
  prefix = name[: len(name) - len('.'.join(parts))]
  if parts[0] not in hints:
    raise _unknown_field(prefix, parts[0], hints)
  kind = hints[parts[0]]
  if dataclasses.is_dataclass(kind):
    if len(parts) == 1:
      raise UserError(f'config field {name} holds fields: set one of '
                      + ', '.join(f'{name}.{k}' for k in typing.get_type_hints(kind)))
    return dataclasses.replace(
      node, **{parts[0]: _override(getattr(node, parts[0]), parts[1:], text, name)})
  if len(parts) > 1:
    raise UserError(f'config field {prefix}{parts[0]} has no fields of its own')
  return dataclasses.replace(node, **{parts[0]: _parse(text, kind, f'--config.{name}')})


def describe(config: Any) -> list[str]:
  """One line for each field: `name = value  (type)  # documentation`."""
  return [f'{name} = {value!r}  ({kind})  # {words}'
          for name, value, kind, words in described_fields(config)]


def described_fields(config: Any, prefix: str = '') -> Iterator[tuple[str, Any, str, str]]:
  """Yields (dotted name, value, type, documentation) of every field of a config dataclass."""
  for field in dataclasses.fields(config):
    value = getattr(config, field.name)
    if dataclasses.is_dataclass(value):
      yield from described_fields(value, f'{prefix}{field.name}.')
    else:
      kind = getattr(field.type, '__name__', str(field.type))
      if '[' in str(field.type):  # the name of tuple[int, ...] is only 'tuple'
        kind = str(field.type)
      yield f'{prefix}{field.name}', value, kind, field_docs(config.__class__).get(field.name, '')


@functools.cache
def field_docs(cls: type) -> dict[str, str]:
  """Documentation of the fields of a config dataclass and of those that it inherits, by name."""
  found: dict[str, str] = {}
  for base in reversed(cls.__mro__):
    if dataclasses.is_dataclass(base):
      found |= _own_docs(inspect.getsource(base))
  return found


def _own_docs(source: str) -> dict[str, str]:
  """Comments of the annotated names in the source of one class."""
  comments, alone = {}, set()
  for token in tokenize.generate_tokens(io.StringIO(source).readline):
    if token.type == tokenize.COMMENT:
      line = token.start[0]
      comments[line] = token.string.lstrip('#').strip()
      if not token.line[:token.start[1]].strip():
        alone.add(line)
  found = {}
  (owner,) = ast.parse(source).body
  for node in owner.body if isinstance(owner, ast.ClassDef) else ():
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
      first = node.lineno
      while first - 1 in alone:
        first -= 1
      lines = [*range(first, node.lineno), node.end_lineno]
      found[node.target.id] = ' '.join(comments[n] for n in lines if n in comments)
  return found
