"""Configuration: overrides, strictness, error lines, saved form."""

import dataclasses
import json

import pytest

from fairjax.config import Config, validate
from fairjax.config_files import (
  config_differences,
  default_config_dict,
  describe,
  from_dict,
  load_config,
  parse_arg,
  to_dict,
)
from fairjax.errors import UserError
from fairjax.files import write_json

QUICKSTART = 'configs/quickstart.py'


@pytest.fixture(autouse=True)
def _in_repository(repository, monkeypatch):
  monkeypatch.chdir(repository)


@pytest.mark.parametrize('text', ['(1000, 9000)', '1000,9000'])
def test_tuples_of_numbers(text):
  config = load_config('configs/text.py:train=a,layout=newscrawl', {'data.holdout': text})
  assert config.data.holdout == (1000, 9000)
  with pytest.raises(UserError, match="'x' is not a valid int"):
    load_config('configs/text.py:train=a', {'data.holdout': 'x,2'})


def test_overrides_keep_types():
  config = load_config(QUICKSTART, {
    'model.num_layers': '7', 'lm.learning_rate': '1', 'model.tie_position_biases': 'false',
    'debias.variants': "('embedding:2',)", 'measure.scorers': 'vader', 'name': 'x'})
  assert config.model.num_layers == 7
  assert config.lm.learning_rate == 1.0 and isinstance(config.lm.learning_rate, float)
  assert config.model.tie_position_biases is False
  assert config.debias.variants == ('embedding:2',)
  assert config.measure.scorers == ('vader',)


@pytest.mark.parametrize('overrides, words', [
  ({'model.num_layer': '3'}, ["'model.num_layer'", "did you mean 'model.num_layers'"]),
  ({'modle.num_layers': '3'}, ["did you mean 'model'"]),
  ({'model.num_layers': '3.5'}, ['--config.model.num_layers', "'3.5' is not a valid int"]),
  ({'lm.learning_rate': 'nan'}, ['--config.lm.learning_rate', 'nan']),
  ({'model.tie_position_biases': 'no'}, ["'no' is not a valid bool"]),
  ({'debias.variants': "('embedding:1', 5)"}, ['5 is int, not str']),
  ({'debias.variants': 'embeding:1'}, ["did you mean 'embedding'"]),
  ({'debias.variants': 'embedding:-1'}, ['must be finite and >= 0']),
  ({'model': '3'}, ['model.num_layers']),
  ({'seed.x': '3'}, ['seed has no fields']),
  ({'model.h_bar_final_norm': 'True', 'sentiment.prefixes': '-1'},
   ['h_bar_final_norm needs model.final_norm=True', 'sentiment.prefixes must not be negative']),
  ({'model.attention': 'flash'}, ["model.attention='flash'", 'kernel']),
  ({'model.attention': 'kernel', 'model.attention_dropout': '0.1', 'model.dtype': 'float64',
    'model.attention_block': '100'},
   ['cannot drop attention weights', 'cannot compute in float64', 'multiple of 128']),
  ({'model.norm': 'mid', 'lm.steps': '0'}, ["model.norm='mid'", 'lm.steps must be positive']),
])
def test_wrong_override_is_one_line_that_helps(overrides, words):
  with pytest.raises(UserError) as error:
    load_config(QUICKSTART, overrides)
  message = str(error.value)
  assert '\n' not in message
  for word in words:
    assert word in message


def test_unknown_config_argument_names_the_nearest():
  with pytest.raises(UserError, match="did you mean 'strength'"):
    load_config(QUICKSTART + ':strenght=0')
  with pytest.raises(UserError, match='not a valid float'):
    load_config(QUICKSTART + ':strength=much')
  with pytest.raises(UserError, match='config file not found'):
    load_config('configs/none.py')


def test_every_config_file_builds(repository):
  arguments = {'text.py': ':train=a,valid=b,test=c'}
  for path in sorted((repository / 'configs').glob('*.py')):
    assert isinstance(load_config(f'{path}{arguments.get(path.name, "")}'), Config)


def test_saved_config_reads_back_equal(tmp_path):
  config = load_config(QUICKSTART, {'lm.steps': '17', 'lm.warmup_steps': '3'})
  path = tmp_path / 'config.json'
  write_json(path, {'config': to_dict(config)})
  assert load_config(str(path)) == config
  assert config_differences(json.loads(path.read_text())['config'], to_dict(config)) == []
  assert list(tmp_path.iterdir()) == [path]  # no temporary file is left


def test_differences_name_every_field():
  other = dataclasses.replace(Config(), seed=3)
  assert config_differences(to_dict(Config()), to_dict(other)) == ['seed: 0 -> 3']


def test_unknown_or_wrongly_typed_field_in_a_dict_is_refused():
  values = to_dict(Config())
  with pytest.raises(UserError, match="did you mean 'model.num_layers'"):
    from_dict(values | {'model': values['model'] | {'num_layrs': 3}})
  with pytest.raises(UserError, match='config field seed'):
    from_dict(values | {'seed': True})


def test_defaults_validate_and_describe_lists_every_field():
  validate(Config())
  lines = describe(Config())
  assert 'model.num_layers = 4  (int)' in lines
  assert len(lines) == sum(1 for _ in _leaves(to_dict(Config())))


def test_default_config_dict_round_trips():
  assert from_dict(default_config_dict().to_dict()) == Config()


def test_parse_arg_types():
  assert vars(parse_arg('a=1+2,b', a=(), b=False, c=3)) == {'a': ('1', '2'), 'b': True, 'c': 3}
  with pytest.raises(UserError, match='needs a value'):
    parse_arg('c', c=3)


def test_write_json_refuses_nan_and_keeps_the_old_file(tmp_path):
  path = tmp_path / 'x.json'
  write_json(path, {'a': 1})
  with pytest.raises(ValueError):
    write_json(path, {'a': float('nan')})
  assert json.loads(path.read_text()) == {'a': 1}
  assert list(tmp_path.iterdir()) == [path]


def _leaves(tree):
  for value in tree.values():
    if isinstance(value, dict):
      yield from _leaves(value)
    else:
      yield value
