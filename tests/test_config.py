"""Configuration: overrides, strictness, error lines, saved form."""

import json
import shutil

import pytest

from fairjax.config import Config
from fairjax.config_checks import validate
from fairjax.config_io import (
  config_differences,
  describe,
  described_fields,
  from_dict,
  load_config,
  load_sweep,
  parse_arg,
  to_dict,
)
from fairjax.errors import UserError
from fairjax.files import write_json

QUICKSTART = 'configs/quickstart.py'


pytestmark = pytest.mark.usefixtures('in_repository')


def test_overrides_keep_types():
  config = load_config(QUICKSTART, {
    'model.num_layers': '7', 'lm.learning_rate': '1', 'model.tie_position_biases': 'false',
    'debias.variants': "('embedding:2',)", 'measure.scorers': 'vader', 'name': 'x',
    'model.cutoffs': '100,200'})
  assert config.model.num_layers == 7
  assert config.lm.learning_rate == 1.0 and isinstance(config.lm.learning_rate, float)
  assert config.model.tie_position_biases is False
  assert config.debias.variants == ('embedding:2',)
  assert config.measure.scorers == ('vader',) and config.model.cutoffs == (100, 200)
  config = load_config(QUICKSTART, {
    'lm.learning_rate': '.5', 'lm.clip_norm': '1.', 'model.cutoffs': '1_00, 200', 'seed': '+1'})
  assert (config.lm.learning_rate, config.lm.clip_norm, config.seed) == (0.5, 1.0, 1)
  assert config.model.cutoffs == (100, 200)


@pytest.mark.parametrize('overrides, words', [
  ({'model.num_layer': '3'}, ["'model.num_layer'", "did you mean 'model.num_layers'"]),
  ({'model.num_layers': '3.5'}, ['--config.model.num_layers', "'3.5' is not a valid int"]),
  ({'model.num_layers': '1e-400'}, ["'1e-400' is not a valid int"]),
  ({'model.tie_position_biases': 'no'}, ["'no' is not a valid bool"]),
  ({'debias.variants': ''}, ['is not a valid tuple', 'for none give ()']),
  ({'lm.learning_rate': 'nan'}, ['lm.learning_rate is nan']),
  ({'data.train': '((1,),)'}, ['--config.data.train: ', 'got `tuple`']),
  ({'debias.variants': 'embeding:1,embedding:-1,dropout:1.5'},
   ["did you mean 'embedding'", 'must be finite and >= 0', 'in [0, 1): attention and hidden']),
  ({'decoding': 'average:1.5,steer:-1,steer:1e39,average:0.5,average:0.5,stear:1'},
   ['in [0, 1], e.g. average:0.5', "'steer:-1' must be from 0 to 3.4e+38, e.g. steer:1",
    "'steer:1e39' must be", 'names a method twice', "did you mean 'steer'"]),
  ({'model': '3'}, ['model.num_layers']),
  ({'seed.x': '3'}, ['seed has no fields']),
  ({'model.h_bar_final_norm': 'True', 'sentiment.prefixes': '-3'},
   ['h_bar_final_norm needs model.final_norm=True', 'sentiment.prefixes=-3']),
  ({'model.attention': 'kernel', 'model.attention_dropout': '0.1', 'model.dtype': 'float64',
    'model.attention_block': '100'},
   ['cannot drop attention weights', 'cannot compute in float64', 'multiple of 128']),
])
def test_wrong_override_is_one_line_that_helps(overrides, words):
  with pytest.raises(UserError) as error:
    load_config(QUICKSTART, overrides)
  message = str(error.value)
  assert '\n' not in message
  for word in words:
    assert word in message


def test_every_config_file_builds(repository):
  arguments = {'text.py': [':train=a,valid=b,test=c'], 'pretrained.py': ['', ':model=d,train=a']}
  for path in sorted((repository / 'configs').glob('*.py')):
    for given in arguments.get(path.name, ['']):
      assert isinstance(load_config(f'{path}{given}'), Config)
  for argument in ('attribute=name', 'layout=jsonl'):  # of the text that comes with it
    with pytest.raises(UserError, match='train=FILE'):
      load_config(f'{repository}/configs/pretrained.py:{argument}')


def test_saved_config_reads_back_equal(tmp_path):
  config = load_config(QUICKSTART, {'lm.steps': '17', 'lm.warmup_steps': '3'})
  path = tmp_path / 'config.json'
  write_json(path, {'config': to_dict(config)})
  assert load_config(str(path)) == config
  assert config_differences(json.loads(path.read_text())['config'], to_dict(config)) == []
  assert list(tmp_path.iterdir()) == [path]  # no temporary file is left


def test_defaults_validate_and_every_field_is_documented():
  validate(Config())
  lines = describe(Config())
  assert 'model.num_heads = 4  (int)  # N, attention heads' in lines
  assert len(lines) == len(config_differences({}, to_dict(Config())))
  docs = {name: words for name, _, _, words in described_fields(Config())}
  assert all(docs.values())
  assert docs['model.attention'] == (
    'How attention is computed: auto (by device) | shift (whole scores) | blocks (of queries) | '
    'heads (one at a time, for CPUs) | kernel (fused, for TPUs from v4 on) (not in the paper). '
    'The values are the same.')
  assert docs['sentiment.learning_rate'] == docs['lm.learning_rate'] == 'H-18'


FIELDS = [(name, value) for name, value, _, _ in described_fields(Config())]


@pytest.mark.parametrize(('name', 'value'), [
  (name, value) for name, value in FIELDS
  if type(value) in (int, float) and not name.startswith('data.')])
def test_no_number_may_be_negative_or_beyond_64_bits(name, value):
  with pytest.raises(UserError, match=f'{name}\\b'):
    load_config(QUICKSTART, {name: '-3'})
  with pytest.raises(UserError, match=name):
    load_config(QUICKSTART, {name: '1' + '0' * (20 if isinstance(value, int) else 400)})


@pytest.mark.parametrize(('name', 'value'), FIELDS)
def test_every_field_refuses_another_type(name, value):
  wrong = {str: 5, tuple: [object()]}.get(type(value), 'three')
  for part in reversed(name.split('.')):
    wrong = {part: wrong}
  with pytest.raises(UserError, match=f'config field {name}: '):
    from_dict(wrong)
  if not isinstance(value, str | tuple):
    with pytest.raises(UserError, match=f"--config.{name}: 'three' is not a valid"):
      load_config(QUICKSTART, {name: 'three'})


@pytest.mark.parametrize('content, words', [
  ('{', 'is no JSON'), ('[1]', 'holds list'), ('{"config": 3}', 'holds int'),
  ('{"seed": NaN}', 'NaN is no number'), ('{"sead": 1}', "did you mean 'seed'"),
  ('def get_config(arg):\n  return 1 +', 'x.py:2: SyntaxError: invalid syntax'),
  ('def get_config(arg):\n  return {}', 'returned dict, not a ConfigDict'),
  ('x = 1', r'defines no get_config(arg)'),
  ('from fairjax.config_io import default_config_dict\n'
   'def get_config(arg):\n  c = default_config_dict()\n  c.lm.steps = 2.5\n  return c',
   'x.py:4: TypeError: '),
  ('\ndef sweep(add):\n  add(**points)', 'x.py:3: NameError: '),
])
def test_a_config_that_fails_is_one_line_with_its_place(tmp_path, monkeypatch, content, words):
  path = tmp_path / ('config.json' if content[0] in '{[' else 'x.py')
  path.write_text(content)
  monkeypatch.chdir(tmp_path)
  for name in (f'./{path.name}', str(path)):
    with pytest.raises(UserError) as error:
      (load_sweep if 'sweep' in content else load_config)(name)
    assert words in str(error.value)
    if 'Error' in words:
      assert error.value.__cause__ is not None  # for --debug


def test_a_saved_config_takes_overrides_but_no_arguments(tmp_path):
  path = tmp_path / 'config.json'
  write_json(path, {'config': to_dict(load_config(QUICKSTART))})
  assert load_config(str(path), {'seed': '4'}).seed == 4
  (tmp_path / '18:00').mkdir()  # a folder of a time
  shutil.copy(path, tmp_path / '18:00')
  assert load_config(f'{tmp_path}/18:00/config.json') == load_config(str(path))
  with pytest.raises(UserError, match="takes no arguments, but ':strength=0'"):
    load_config(f'{path}:strength=0')


def test_an_override_that_is_given_twice_is_refused():
  from fairjax.cli.main import parse
  with pytest.raises(UserError, match="--config.seed is given twice, as '1' and '2'"):
    parse(['step', 'config', f'--config={QUICKSTART}', '--config.seed=1', '--config.seed', '2'])
  assert parse(['step', 'config', f'--config={QUICKSTART}', '--config.seed=1',
                '--config.seed=1']).overrides == {'seed': '1'}


def test_parse_arg_types():
  assert vars(parse_arg('a=1+2,b', a=(), b=False, c=3)) == {'a': ('1', '2'), 'b': True, 'c': 3}
  with pytest.raises(UserError, match='needs a value'):
    parse_arg('c', c=3)
  with pytest.raises(UserError, match='is empty'):
    parse_arg('a=', a=())


def write_config(folder, lines):
  path = folder / 'own.py'
  path.write_text('from fairjax.config_io import default_config_dict\n\n\ndef get_config(arg):\n'
                  "  config = default_config_dict()\n  config.measure.scorers = ('vader',)\n"
                  f"  config.sentiment.scorer = 'vader'\n  {lines}\n  return config\n")
  return str(path)


def test_names_of_files_hold_plus_and_comma(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  for name in ('c++.txt', 'a,b.txt', 'x', 'y'):
    (tmp_path / name).write_text('')
  for text, files in (
      ('c++.txt', ('c++.txt',)), ('"c++.txt"+x', ('c++.txt', 'x')), ('x+y', ('x', 'y')),
      ("'none+1'", ('none+1',)), ('"a,b.txt"', ('a,b.txt',)), ('x,train="c++.txt",train=y+x',
                                                             ('x', 'c++.txt', 'y', 'x'))):
    assert parse_arg(f'train={text},seed=3', train=(), seed=0).train == files
  (tmp_path / 'x+y').write_text('')
  with pytest.raises(UserError, match="'x.y' is a file, and so are x and y: put quotes around"):
    parse_arg('train=x+y', train=())
  assert parse_arg('train="x"+"y"', train=()).train == ('x', 'y')
  with pytest.raises(UserError, match=r"'b.txt'.*a comma in a file name needs quotes"):
    parse_arg('train=a,b.txt', train=())
  with pytest.raises(UserError, match="'seed' is given twice"):
    parse_arg('seed=1,seed=2', seed=0)
  spec = write_config(tmp_path, "config.data.source = 'lines'; config.data.holdout = (1, 1)")
  for text, files in (('a,b.txt', ('a,b.txt',)), ('x,"a,b.txt"', ('x', 'a,b.txt')),
                      ('x,y', ('x', 'y')), ("('a,b.txt',)", ('a,b.txt',))):
    assert load_config(spec, {'data.train': text}).data.train == files


def test_the_home_folder_is_known_in_every_path(tmp_path, monkeypatch):
  from fairjax.cli.main import main, parse
  monkeypatch.setenv('HOME', str(tmp_path))
  home = str(tmp_path)
  options = parse(['measure', '--records=~/r.jsonl', '--attribute', '~/a.yaml', '--scorer=bert:~/m',
                   '--keep=~', '--output=a~/b'])
  assert options.records == f'{home}/r.jsonl' and options.attribute == [f'{home}/a.yaml']
  assert options.scorer == [f'bert:{home}/m'] and options.keep == home
  assert str(options.output) == 'a~/b'
  options = parse(['step', 'data', '--config=~/c.py:train=~/a+~/b,valid=~/v', '--workdir=~/w',
                   '--config.data.test=~/t,~/u'])
  assert options.config == f'{home}/c.py:train={home}/a+{home}/b,valid={home}/v'
  assert options.overrides == {'data.test': f'{home}/t,{home}/u'}
  spec = write_config(tmp_path, "config.data.train = ('~/x',); config.attribute = '~/a.yaml'; "
                      "config.data.source = 'lines'; config.data.holdout = (1, 1)")
  config = load_config(spec)
  assert config.data.train == (f'{home}/x',) and config.attribute == f'{home}/a.yaml'
  monkeypatch.chdir(tmp_path)
  assert main(['sample', '--prompts-only', '--attribute=country', '--output=~/p.jsonl']) == 0
  assert (tmp_path / 'p.jsonl').is_file() and not (tmp_path / '~').exists()
  words = parse(['tpu', 'run', '--tpu=v3-8', '--zone=a', '--', 'run', '--config=x',
                 '--workdir=~/w'])
  assert words.command == ['run', '--config=x', '--workdir=~/w']  # that of the workers


def test_a_renamed_field_is_refused_with_its_new_name():
  values = to_dict(Config())
  with pytest.raises(UserError, match=r'lm\.parts .* lm\.grad_accum_steps'):
    from_dict(values | {'lm': values['lm'] | {'parts': 2}})
  with pytest.raises(UserError, match=r'debias\.parts .* debias\.grad_accum_steps'):
    load_config(QUICKSTART, {'debias.parts': '2'})


def test_shipped_configs_are_found_by_name_from_anywhere(tmp_path, monkeypatch, repository):
  expected = to_dict(load_config(str(repository / 'configs' / 'quickstart.py:strength=0')))
  monkeypatch.chdir(tmp_path)
  assert to_dict(load_config('quickstart:strength=0')) == expected
  assert to_dict(load_config('configs/quickstart.py:strength=0')) == expected
  (tmp_path / 'quickstart').write_text('x')  # a file of one's own comes first
  with pytest.raises(UserError, match='quickstart'):
    load_config('quickstart')
  with pytest.raises(UserError, match="unknown config file 'wikitxt103': did you mean 'wikitext"):
    load_config('configs/wikitxt103.py')
  with pytest.raises(UserError, match='^config file not found: runs/config.json$'):
    load_config('runs/config.json')
