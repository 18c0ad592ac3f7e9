"""Bad inputs: every one ends with exit code 2 and one line: what, where and how to mend it.

Two are no errors but counted in a line, with exit code 0.
"""

import base64
import contextlib
import gzip
import hashlib
import io
import json
import os
import pathlib
import re
import traceback
from collections.abc import Callable
from typing import NamedTuple
from unittest import mock

import pytest

from fairjax.cli.main import main
from fairjax.counterfactual import load_attribute

ROOT = pathlib.Path(__file__).resolve().parents[2]
QUICK = '--config=configs/quickstart.py'
GOOD = 'Iran won .\nShe sang .\nIn Chile , then .\n'
COUNTRY = load_attribute('country')


class Case(NamedTuple):
  """What is wrong, the command, words of its line, and the files it needs (name -> content).

  `around(folder)` is entered while the command runs; `code` is 0 for what is used and counted.
  """

  what: str
  command: str
  words: str
  files: dict[str, bytes | str] = {}
  around: Callable[[pathlib.Path], contextlib.AbstractContextManager] = contextlib.nullcontext
  code: int = 2


def text_config(**changes: str) -> str:
  """A command on files of documents in DIR."""
  arguments = {'train': 'DIR/train.txt', 'valid': 'DIR/valid.txt', 'test': 'DIR/test.txt'} | changes
  return ('data --config=configs/text.py:' + ','.join(f'{k}={v}' for k, v in arguments.items())
          + ' --config.data.vocabulary=word --workdir=DIR/run')


def documents(train: bytes | str = GOOD, name: str = 'train.txt') -> dict[str, bytes | str]:
  return {'train.txt': GOOD, 'valid.txt': GOOD, 'test.txt': GOOD} | {name: train}


def records(change=lambda rows: None) -> str:
  """Three samples of each value in one template, changed."""
  rows = [{'attribute': 'country', 'value': value.text, 'template': 0, 'sample': sample,
           'prefix': COUNTRY.prefix(0, i), 'continuation': 'good .'}
          for sample in range(3) for i, value in enumerate(COUNTRY.values)]
  return ''.join(json.dumps(row) + '\n' for row in change(rows) or rows)


def sealed(**values) -> str:
  """JSON with its SHA-256, as `fairjax.files.write_sealed_json` writes it."""
  text = json.dumps(values, sort_keys=True)
  return json.dumps(values | {'sha256': hashlib.sha256(text.encode()).hexdigest()})


def changed(**fields):
  """Records whose second has other fields; None removes one."""
  def change(rows):
    rows[1] |= fields
    rows[1] = {k: v for k, v in rows[1].items() if v is not None}
  return {'r.jsonl': records(change)}


def config_py(body: str) -> dict[str, str]:
  return {'x.py': 'from fairjax.config_io import default_config_dict\n\n\n'
                  f'def get_config(arg):\n  {body}\n'}


MEASURE = 'measure --records=DIR/r.jsonl --attribute=country --scorer=vader'
SHOW = f'config show {QUICK}'
CDA = 'cda --input=DIR/in.txt --output=DIR/out.txt'
FAIR = 'fair-generation subspace'
LIPSCHITZ = 'fair-generation test --records=DIR/r.jsonl'
VECTORS = ('8 3\nshe 1 0 0\nhe -1 0 0\nman 1 0 1\nwoman 0 1 1\ncook 0 0 1\nnurse 1 1 1\n'
           'her 1 0 0\nhis 0 1 0\n')
LAUNCH = 'launch run --tpu=v3-128 --zone=us-east1-d --dry_run'
MASKED = 'masked-lm train --data=DIR/t.txt --workdir=DIR/w'
GOLDEN_ARGUMENTS = 'tests/golden/transformer_xl/plain_softmax.json'
REFERENCE = (f'import {QUICK} --workdir=DIR/w --weights=tests/golden/transformer_xl/'
             'plain_softmax.safetensors --arguments=DIR/a.json')
GZIP = gzip.compress(b'\n'.join(b'%d %d' % (i, i * i) for i in range(3000)), mtime=0)
FLIPPED = GZIP[:5000] + bytes([GZIP[5000] ^ 255]) + GZIP[5001:]

TUNE = ('resilience finetune --model=tests/golden/pretrained/bert_classifier --stsb=DIR '
        '--professions=DIR/p.tsv --output=DIR/o')
PAIR = 'g\tf\ty\t1\t{}\tA man sings.\tA woman sings.\n'
BIOS = ('correlations --model=tests/golden/pretrained/bert_mlm --metrics=bios --bios=DIR/b.jsonl '
        '--output=DIR/o')


def sts(test: str = PAIR.format('5'), professions: str = 'a\t1\nb\t2\nc\t3\n'
        ) -> dict[str, bytes | str]:
  """The files of `TUNE`."""
  return {'sts-train.tsv': PAIR.format('5'), 'sts-dev.tsv': PAIR.format('5'),
          'sts-test.tsv': test, 'p.tsv': f'occupation\tbls_pct_female\n{professions}'}


GOLDEN = ROOT / 'tests' / 'golden' / 'pretrained'
BERT = MEASURE.replace('vader', 'bert:DIR/m')


def golden(name: str, file: str) -> bytes:
  return (GOLDEN / name / file).read_bytes()


def model(name: str = 'bert_classifier', changes: dict[str, bytes | None] | None = None, **config
          ) -> dict[str, bytes | str]:
  """Records, and a model directory `m` with other files (None: without) and other config fields."""
  content = {p.name: p.read_bytes() for p in (GOLDEN / name).iterdir() if p.suffix != '.npz'}
  content['config.json'] = json.dumps(json.loads(content['config.json']) | config).encode()
  content |= changes or {}
  return {'r.jsonl': records()} | {f'm/{k}': v for k, v in content.items() if v is not None}


def without_ends() -> bytes:
  tokenizer = json.loads(golden('bert_classifier', 'tokenizer.json'))
  return json.dumps(tokenizer | {'post_processor': None}).encode()


@contextlib.contextmanager
def with_key(folder: pathlib.Path):
  """A key of no account."""
  with mock.patch.dict(os.environ, FAIRJAX_GOOGLE_API_KEY='none'):
    yield


@contextlib.contextmanager
def without_key(folder: pathlib.Path):
  """No credentials of Google's."""
  with mock.patch.dict(os.environ, GOOGLE_APPLICATION_CREDENTIALS=str(folder / 'none.json'),
                       NO_GCE_CHECK='true'):
    os.environ.pop('FAIRJAX_GOOGLE_API_KEY', None)
    yield


@contextlib.contextmanager
def used_up(folder: pathlib.Path):
  """A service whose quota of the day is used up after two texts."""
  import google_server
  import grpc

  from fairjax.measure.scorers import google as google_scorer
  with google_server.running() as server, mock.patch.object(
      google_scorer, '_make_client', lambda *_: server.client()), mock.patch.dict(
      os.environ, FAIRJAX_GOOGLE_API_KEY='AIzaCanary0123'):
    server.always = (grpc.StatusCode.RESOURCE_EXHAUSTED, 'Quota of RequestsPerDay exceeded')
    server.script.update({f'good {i} .': [0.5] for i in range(2)})
    yield


@contextlib.contextmanager
def labelled(folder: pathlib.Path):
  """Sheets that were exported, one with a label that there is not."""
  assert main(['human', 'export', f'--records={folder}/r.jsonl', f'--output={folder}/sheets',
               '--annotators=2', '--items=4']) == 0
  from human_oracle import fill
  fill(folder / 'sheets' / 'sentiment-a01.csv', lambda row: 'good')
  yield


SECTIONS: dict[str, list[Case]] = {
  'Command line': [
    Case('a verb that does not exist', 'trian', "did you mean 'train'"),
    Case('an option that does not exist', f'run {QUICK} --workdir=DIR/w --wrkdir=x', '--wrkdir'),
    Case('an option that is missing', f'run {QUICK}', '--workdir'),
    Case('a choice that does not exist', f'train {QUICK} --workdir=DIR/w --stage=lmm', 'lmm'),
    Case('an override without a config', 'doctor --config.seed=1', 'needs --config=FILE'),
    Case('an override without a value', f'{SHOW} --config.seed', 'needs a value'),
    Case('an override given twice', f'{SHOW} --config.seed=1 --config.seed=2', 'given twice'),
    Case('a workdir that is a file', f'report {QUICK} --workdir=DIR/f', 'is a file', {'f': ''}),
    Case('data without a workdir', f'data {QUICK}', 'data needs --config=FILE and --workdir=DIR'),
    Case('nothing to check', 'data check', 'data check needs'),
  ],
  'Config files': [
    Case('not there', 'config show --config=configs/quickstrat.py', 'config file not found'),
    Case('a folder', 'config show --config=configs', 'config file not found'),
    Case('another kind of file', 'config show --config=DIR/x.txt', 'must end in .py or .json',
         {'x.txt': 'seed: 1'}),
    Case('a syntax error', 'config show --config=DIR/x.py', 'x.py:5: SyntaxError',
         config_py('return (')),
    Case('an error while it runs', 'config show --config=DIR/x.py', "x.py:5: KeyError: 'a'",
         config_py('return {}["a"]')),
    Case('no get_config', 'config show --config=DIR/x.py', 'defines no get_config(arg)',
         {'x.py': 'seed = 1\n'}),
    Case('get_config returns something else', 'config show --config=DIR/x.py',
         'returned dict, not a ConfigDict', config_py('return {}')),
    Case('a field that does not exist', 'config show --config=DIR/x.py', "did you mean 'lm.steps'",
         config_py('c = default_config_dict(); c.lm.step = 5; return c')),
    Case('an argument that does not exist', f'{SHOW}:strenght=0', "did you mean 'strength'"),
    Case('an argument of another type', f'{SHOW}:strength=much', "'much' is not a valid float"),
    Case('an argument without a value', f'{SHOW}:seed', 'needs a value: seed=...'),
    Case('config.json cut off', 'config show --config=DIR/c.json', 'is no JSON',
         {'c.json': '{"config": {"seed": 1'}),
    Case('config.json with NaN', 'config show --config=DIR/c.json', 'NaN is no number',
         {'c.json': '{"lm": {"learning_rate": NaN}}'}),
    Case('config.json with another type', 'config show --config=DIR/c.json',
         'lm.steps: True is bool, not int', {'c.json': '{"lm": {"steps": true}}'}),
    Case('config.json that is a list', 'config show --config=DIR/c.json', 'holds list',
         {'c.json': '[]'}),
    Case('config.json with arguments', 'config show --config=DIR/c.json:seed=1',
         'takes no arguments', {'c.json': '{}'}),
  ],
  'Overrides': [
    Case('a field that does not exist', f'{SHOW} --config.model.num_layer=3',
         "did you mean 'model.num_layers'"),
    Case('a group that does not exist', f'{SHOW} --config.modle.num_layers=3',
         "did you mean 'model'"),
    Case('a group instead of a field', f'{SHOW} --config.mesh=3', 'set one of mesh.slices'),
    Case('a field of a field', f'{SHOW} --config.seed.x=3', 'seed has no fields of its own'),
    Case('a fraction for an integer', f'{SHOW} --config.lm.steps=1.5', "'1.5' is not a valid int"),
    Case('NaN', f'{SHOW} --config.lm.learning_rate=nan', "'nan' is not a valid float"),
    Case('infinity', f'{SHOW} --config.sample.temperature=1e999', "'1e999' is not a valid float"),
    Case('a boolean that is none', f'{SHOW} --config.sample.sentence_end=no',
         "'no' is not a valid bool"),
    Case('a tuple element of another type', f"{SHOW} --config.data.holdout=(1,'a')",
         "'a' is str, not int"),
    Case('a tuple that does not end', f'{SHOW} --config.data.holdout=(1,', 'is not a valid tuple'),
    Case('a variant that does not exist', f'{SHOW} --config.debias.variants=embeding:1',
         "did you mean 'embedding'"),
    Case('a weight that is negative', f'{SHOW} --config.debias.variants=embedding:-1',
         'must be finite and >= 0'),
    Case('a choice that does not exist', f'{SHOW} --config.model.attention=flash',
         'is not one of auto, shift, blocks, heads, kernel'),
    Case('a number out of its range', f'{SHOW} --config.model.hidden_dropout=1', 'in [0, 1)'),
    Case('a number of more than 64 bits', f'{SHOW} --config.lm.steps=99999999999999999999',
         'more than 64 bits'),
    Case('a seed that is negative', f'{SHOW} --config.seed=-1', 'seed must be in [0, 2**32)'),
    Case('two fields that exclude each other',
         f'{SHOW} --config.model.attention=kernel --config.model.attention_dropout=0.1',
         'cannot drop attention weights'),
    Case('a kernel where it does not run',
         f'train {QUICK} --workdir=DIR/w --config.model.attention=kernel', 'does not run on cpu'),
    Case('several faults at once', f'{SHOW} --config.lm.steps=0 --config.model.norm=mid',
         "model.norm='mid' is not one of post, pre; lm.steps must be positive"),
    Case('a tuple that is nested too deep', f'{SHOW} --config.data.holdout=' + '(' * 300,
         "((((...' is not a valid tuple"),
    Case('a model without memory', f'{SHOW} --config.model.memory_len=0', 'at least 1'),
    Case('no scorer', f'{SHOW} --config.measure.scorers=()', 'names no scorer'),
  ],
  'Workdirs': [
    Case('of another configuration', f'report {QUICK} --config.seed=3 --workdir=DIR/w',
         'seed: 5 -> 3', {'w/config.json': 'SAVED'}),
    Case('whose config.json is damaged', f'report {QUICK} --workdir=DIR/w', 'is no JSON',
         {'w/config.json': '{"config"'}),
    Case('with an empty name', f'run {QUICK} --workdir=', '--workdir is empty'),
    Case('whose folder holds something else', f'run {QUICK} --workdir=DIR/w',
         'holds setup.py but no config.json', {'w/setup.py': ''}),
    Case('scored before it was sampled', f'score {QUICK} --workdir=DIR/w', 'run fairjax sample'),
    Case('reported before it was measured', f'report {QUICK} --workdir=DIR/w',
         'run fairjax measure'),
    Case('whose data were never finished', 'data check --workdir=DIR/w', ''),
  ],
  'Devices': [
    Case('a mesh of other devices', f'train {QUICK} --workdir=DIR/w --config.mesh.fsdp=3',
         'mesh slices=1 x fsdp=3 x model=1 takes 3 devices or a multiple, not 8'),
    Case('a mesh of too few devices', f'train {QUICK} --workdir=DIR/w --config.mesh.data=4',
         'does not cover the 8 devices'),
    Case('a mesh that does not divide the batches', f'run {QUICK} --workdir=DIR/w '
         '--config.lm.batch_size=12 --config.debias.batch_size=20',
         '--config.lm.batch_size=8; debias.batch_size=20 is not divisible by the 8'),
    Case('a mesh that does not divide the parts of a batch', f'train {QUICK} --workdir=DIR/w '
         '--config.lm.batch_size=8 --config.lm.parts=2', 'times 2 parts: use a multiple of 16'),
    Case('a mesh that does not divide the heads', f'train {QUICK} --workdir=DIR/w '
         '--config.mesh.model=2', 'mesh.model=2 does not divide model.num_heads=1'),
    Case('a mesh that does not divide the width', f'train {QUICK} --workdir=DIR/w '
         '--config.mesh.fsdp=8 --config.model.model_dim=132', 'divide model.model_dim=132'),
    Case('a mesh that does not divide the vocabulary', f'run {QUICK} --workdir=DIR/w '
         '--config.mesh.model=2 --config.model.num_heads=2 --config.model.vocab_size=601',
         'does not divide 601, rows of a table of the vocabulary'),
    Case('another batch in a run that has begun', f'train {QUICK} --config.seed=5 '
         '--config.mesh.data=4 --config.mesh.fsdp=2 --config.lm.batch_size=12 --workdir=DIR/w',
         'whose sizes stay: choose another mesh', {'w/config.json': 'SAVED'}),
  ],
  'Documents': [
    Case('a file that is not there', text_config(train='DIR/none.txt'), 'file not found',
         documents()),
    Case('a pattern without a match', text_config(train='DIR/*.csv'), 'no file matches',
         documents()),
    Case('a folder', text_config(train='DIR'), 'is a folder', documents()),
    Case('a file named twice', text_config(train='DIR/train.txt+DIR/tra*'), 'is named 2 times',
         documents()),
    Case('an empty file', text_config(), 'train.txt is empty', documents('')),
    Case('only blank lines', text_config(), 'holds no document', documents('\n \n')),
    Case('bytes that are not UTF-8', text_config(), 'train.txt:4: not UTF-8 (byte 4 of the line is',
         documents(GOOD.encode() + b'caf\xe9\n')),
    Case('a line that is too long', text_config() + ' --config.data.max_line_bytes=100',
         'train.txt:4: a line of more than 100 bytes', documents(GOOD + 'x' * 101)),
    Case('gzip that is cut off', text_config(), 'it is cut off at byte 4000',
         documents(GZIP[:4000])),
    Case('gzip that is damaged', text_config(), 'the gzip file is damaged at or before byte',
         documents(FLIPPED)),
    Case('JSON lines as lines of text', text_config(), 'use layout=jsonl (data.source=jsonl) and '
         'data.text_field=text', documents('{"text": "She sang ."}\n{"text": "Iran won ."}\n')),
    Case('an Excel workbook', text_config(), 'train.txt is an old Excel or Word file',
         documents(b'\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1')),
    Case('a pointer of Git LFS', text_config(), 'train.txt is a Git LFS pointer', documents(
      'version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n')),
    Case('a line with too few columns', text_config(layout='tsv') + ' --config.data.text_column=1',
         'train.txt:1: 1 column(s), so none has the number 1', documents()),
    Case('base64 that is none', text_config(layout='newscrawl'), 'is not base64',
         documents('2019\teA==\t?\n')),
    Case('base64 of bytes that are not UTF-8', text_config(layout='newscrawl'),
         'byte 1 of the decoded text is 0xff',
         documents(b'2019\teA==\t' + base64.b64encode(b'\xff') + b'\n')),
    Case('WikiText without a title', text_config(layout='wikitext'), 'no article begins in it',
         documents()),
    Case('no sensitive token', text_config(), 'hold no sensitive token', documents('She sang .\n')),
    Case('more held out than there is',
         'data --config=configs/text.py:train=DIR/train.txt --workdir=DIR/run '
         '--config.data.holdout=2,2', 'leaves none to train on', documents()),
    Case('no official files', 'data --config=configs/text.py:layout=wikitext2 --workdir=DIR/run '
         '--config.data.manual_dir=DIR', 'no files of wikitext2 in DIR'),
    Case('a vocabulary that is not there', text_config().replace('=word', '=DIR/v'),
         'no vocabulary in DIR/v', documents()),
    Case('a vocabulary that was changed', text_config().replace('=word', '=DIR/v'),
         'has fingerprint', documents() | {
           'v/words.txt': '<pad>\n<eos>\n<unk>\nx\n',
           'v/vocabulary.json': '{"kind": "word", "fingerprint": "0", "size": 4}'}),
  ],
  'Counterfactual text': [
    Case('word pairs that are not there', CDA + ' --pairs DIR/none', 'word pairs not found',
         {'in.txt': GOOD}),
    Case('a word in both genders', CDA + ' --pairs DIR/p', "p:2: 'queen' is in both genders",
         {'in.txt': GOOD, 'p': 'king queen\nqueen duke\n'}),
    Case('a word without a partner', CDA + ' --pairs DIR/p', 'p:1: an empty side',
         {'in.txt': GOOD, 'p': 'king\t\n'}),
    Case('a row of one word', CDA + ' --pairs DIR/p', 'p:2: 1 column(s)',
         {'in.txt': GOOD, 'p': '# male female\nking\n'}),
    Case('a replacement given twice', CDA + ' --pairs DIR/p', "'a' becomes 'c' here",
         {'in.txt': GOOD, 'p': 'a b\nb a\na c\n'}),
    Case('two word files of different length', CDA + ' --pairs DIR/m DIR/f', 'has 2 lines and',
         {'in.txt': GOOD, 'm': 'zak\nbo\n', 'f': 'zika\n'}),
    Case('names with a bad count', CDA + ' --names DIR/n', "n:2: '-3' is no count",
         {'in.txt': GOOD, 'n': 'Ada,F,5\nBob,M,-3\n'}),
    Case('names of one gender', CDA + ' --names DIR/n', 'more than 80% of its count as male',
         {'in.txt': GOOD, 'n': 'Ada,F,5\n'}),
    Case('a name twice', CDA + ' --names DIR/n', "n:2: 'Ada' stands in line 1",
         {'in.txt': GOOD, 'n': 'Ada,F,5\nAda,F,5\n'}),
    Case('initials that are none', CDA + ' --letters=M-A', 'no range of initials',
         {'in.txt': GOOD}),
    Case('neutral words that are not there', CDA + ' --neutral', 'third column', {'in.txt': GOOD}),
    Case('nothing to swap', CDA + ' --pairs none', 'need word pairs or names', {'in.txt': GOOD}),
    Case('a text over a file', CDA, 'it is not overwritten', {'in.txt': GOOD, 'out.txt': ''}),
    Case('a text that is not there', CDA, 'file not found'),
    Case('sides that do not exist', f'{SHOW} --config.data.cda=both', "is not one of , one, two"),
    Case('sides of a variant', f'{SHOW} --config.debias.variants=cda:both',
         'must be cda:one or cda:two'),
    Case('rates of a variant', f'{SHOW} --config.debias.variants=dropout:1.5',
         'must be in [0, 1): attention and hidden'),
    Case('a variant without its baseline',
         f'{SHOW} --config.debias.variants=cda:two --config.data.cda=two', 'no baseline'),
    Case('the comparison without a workdir', 'mitigations --config=configs/mitigations.py',
         '--workdir'),
    Case('pairs without augmentation', f"{SHOW} --config.data.cda_pairs=('p',)", 'need data.cda'),
  ],
  'Generations of any model': [
    Case('a file that is not there', MEASURE, 'records file not found'),
    Case('an empty file', MEASURE, 'holds no record', {'r.jsonl': ''}),
    Case('a line that is no JSON', MEASURE, 'r.jsonl:1: not JSON', {'r.jsonl': '{"attribute":\n'}),
    Case('a line that is no object', MEASURE, 'r.jsonl:1: expected a JSON object, not list',
         {'r.jsonl': '[1]\n'}),
    Case('bytes that are not UTF-8', MEASURE, 'r.jsonl:1: not UTF-8', {'r.jsonl': b'"\xff"\n'}),
    Case('gzip that is cut off', MEASURE.replace('r.jsonl', 'r.jsonl.gz'),
         'the gzip file ends here without its end mark: it is cut off at byte', {
           'r.jsonl.gz': gzip.compress(records().encode(), mtime=0)[:-9]}),
    Case('a field that is missing', MEASURE, 'r.jsonl:2: fields missing: prefix',
         changed(prefix=None)),
    Case('a field of another type', MEASURE, "r.jsonl:2: field 'continuation' must be a text",
         changed(continuation=3)),
    Case('a value that the attribute has not', MEASURE, "did you mean 'Italy'",
         changed(value='Itlay')),
    Case('another attribute', MEASURE, "r.jsonl:2: attribute is 'occupation', not 'country'",
         changed(attribute='occupation')),
    Case('another subgroup', MEASURE, "r.jsonl:2: subgroup of", changed(subgroup='x')),
    Case('a line that is nested too deep', MEASURE, 'r.jsonl:1: not JSON (maximum recursion',
         {'r.jsonl': '[' * 100_000 + '\n'}),
    Case('a sample number of more than 64 bits', MEASURE, "field 'sample' has more than 64 bits",
         changed(sample=1 << 70)),
    Case('two models', MEASURE, 'measure one model at a time', changed(model='b')),
    Case('a sample twice', MEASURE, 'occurs twice: remove one',
         {'r.jsonl': records(lambda rows: rows + rows[:1])}),
    Case('a value without records', MEASURE, 'Every value is needed in every template',
         {'r.jsonl': records(lambda rows: [r for r in rows if r['value'] != 'Italy'])}),
    Case('a file that sampling has not finished', MEASURE, 'is not complete: repeat the command', {
      'r.jsonl': records(), 'r.manifest.json': sealed(identity={}, complete=False)}),
    Case('a file that changed after sampling', MEASURE, 'SHA-256', {
      'r.jsonl': records(), 'r.manifest.json': sealed(
        identity={}, complete=True, records_sha256='0' * 64)}),
    Case('a manifest that is damaged', MEASURE, 'r.manifest.json is damaged', {
      'r.jsonl': records(), 'r.manifest.json': '{'}),
    Case('a damaged divergence of the next token', MEASURE, 'r.next_token.json is damaged', {
      'r.jsonl': records(), 'r.next_token.json': '{}'}),
    Case('.parquet that is no Parquet', MEASURE.replace('r.jsonl', 'r.parquet'),
         "r.parquet:1: no column 'attribute'", {'r.parquet': 'text'}),
    Case('records into an unknown form',
         'records convert --records=DIR/r.jsonl --output=DIR/r.csv', 'must end in one of',
         {'r.jsonl': records()}),
    Case('records over a file', 'records convert --records=DIR/r.jsonl --output=DIR/r.jsonl',
         'it is not overwritten', {'r.jsonl': records()}),
    Case('scores that are not there', 'records convert --records=DIR/r.jsonl '
         '--output=DIR/r.parquet --scores DIR/s.jsonl', 'score file not found',
         {'r.jsonl': records()}),
    Case('records in the place of scores', 'records convert --records=DIR/r.jsonl '
         '--output=DIR/r.parquet --scores DIR/r.jsonl', 'r.jsonl:1: not a file of results',
         {'r.jsonl': records()}),
    Case('measures into a folder', MEASURE + ' --output=DIR', 'is a folder: name a file',
         {'r.jsonl': records()}),
    Case('measures into a file as a folder', MEASURE + ' --output=DIR/r.jsonl/m/x.json',
         'r.jsonl is no folder', {'r.jsonl': records()}),
    Case('prompts into a file as a folder', 'sample --prompts-only --attribute=country '
         '--output=DIR/f/x/o.jsonl', 'o.jsonl cannot be written (Not a directory)', {'f': ''}),
    Case('no attribute', 'measure --records=DIR/r.jsonl', 'needs --attribute=A and --scorer=S'),
    Case('a folder for scores that is a file', MEASURE + ' --keep=DIR/r.jsonl',
         'cannot be written (File exists)', {'r.jsonl': records()}),
    Case('no permutation', MEASURE + ' --permutations=0', '--permutations must be at least 1',
         {'r.jsonl': records()}),
  ],
  'Scorers and lexicons': [
    Case('a scorer that does not exist', MEASURE.replace('vader', 'vadr'), "did you mean 'vader'",
         {'r.jsonl': records()}),
    Case('no lexicon', MEASURE.replace('vader', 'opinion'), '--lexicon', {'r.jsonl': records()}),
    Case('a lexicon that is not there',
         MEASURE.replace('vader', 'opinion --lexicon DIR/p.txt DIR/n.txt'), 'p.txt',
         {'r.jsonl': records()}),
    Case('scores that were not recorded', MEASURE.replace('vader', 'recorded:mine'),
         "has no 'scores'",
         {'r.jsonl': records()}),
    Case('a recorded score out of [0, 1]', MEASURE.replace('vader', 'recorded:mine'), '1.5',
         {'r.jsonl': records(lambda rows: [r | {'scores': {'mine': 1.5}} for r in rows])}),
    Case('a classifier that is not there', MEASURE.replace('vader', 'bert:DIR/none'), 'none',
         {'r.jsonl': records()}),
    Case('no key of the service', MEASURE.replace('vader', 'google'),
         'found no credentials: set FAIRJAX_GOOGLE_API_KEY', {'r.jsonl': records()}, without_key),
    Case('a quota that is used up', MEASURE.replace('vader', 'google'),
         'quota used up: 2 of 4 different texts are scored', {
           'r.jsonl': records(lambda rows: [
             row | {'continuation': f'good {i % 4} .'} for i, row in enumerate(rows)])}, used_up),
    Case('a sheet with an unknown label', 'human import --key=DIR/sheets.key.json '
         '--output=DIR/h.json DIR/sheets/sentiment-a01.csv', "label 'good' of item s0",
         {'r.jsonl': records()}, labelled),
    Case('ratings into a folder', 'human import --key=DIR/k.json --output=DIR DIR/s.csv',
         'is a folder: name a file'),
    Case('sheets into a file as a folder', 'human export --records=DIR/r.jsonl --annotators=2 '
         '--items=9 --task=sentiment --key=DIR/k.json --output=DIR/r.jsonl/sheets',
         'cannot be written (Not a directory)', {'r.jsonl': records()}),
    Case('a service that is no host', MEASURE.replace('vader', 'google')
         + ' --google-endpoint=127.0.0.1:here', 'is no HOST or HOST:PORT',
         {'r.jsonl': records()}, with_key),
    Case('sentences with an unknown label', 'sentiment-classifier train --data=DIR/t.tsv '
         '--output=DIR/o', "t.tsv:2: label 'positive' is not one of",
         {'t.tsv': '0\tIt rains .\npositive\tIt shines .\n'}),
    Case('a classifier into a file',
         'sentiment-classifier train --data=DIR/t.tsv --output=DIR/t.tsv',
         'is no folder: name one', {'t.tsv': '0\tIt rains .\n1\tIt shines .\n'}),
    Case('a lexicon at no address', 'lexicon fetch --output=DIR/l --url=https://[x',
         'is no address'),
    Case('a lexicon over a folder', 'lexicon fetch --output=DIR', 'is a folder: name a file',
         {'positive-words.txt/x': ''}),
    Case('a lexicon without encryption',
         'lexicon fetch --output=DIR/l --url=http://example.org/l.zip', 'https'),
  ],
  'Model directories': [
    Case('no config.json', BERT, 'config.json: No such file', {
      'r.jsonl': records(), 'm/README.md': ''}),
    Case('no weights', BERT, 'holds neither model.safetensors nor',
         model(changes={'model.safetensors': None})),
    Case('weights as a pickle', BERT, 'pytorch_model.bin is a pickle', model(
      changes={'model.safetensors': None, 'pytorch_model.bin': b'\x80\x04]\x94.'})),
    Case('weights that are cut off', BERT, 'cannot be read as safetensors', model(
      changes={'model.safetensors': golden('bert_classifier', 'model.safetensors')[:-9]})),
    Case('an index of no files', BERT, 'is no index of weights', model(changes={
      'model.safetensors': None, 'model.safetensors.index.json': b'{"weight_map": {"a": 3}}'})),
    Case('no tokenizer', BERT, 'holds no tokenizer.json nor vocab.txt',
         model(changes={'tokenizer.json': None, 'vocab.txt': None})),
    Case('tensors of another architecture', BERT, 'it is another architecture', model(
      changes={'model.safetensors': golden('albert_classifier', 'model.safetensors')})),
    Case('tensors of another shape', BERT, 'has shape (40, 16), config.json needs (48, 16)',
         model(intermediate_size=48)),
    Case('a tokenizer of another model', BERT, "vocab.txt has '[PAD]' as token 0", model(
      changes={'tokenizer.json': golden('albert_mlm', 'tokenizer.json')})),
    Case('a word list with more words', BERT, 'has 91 tokens with ids up to 90, the model 90',
         model(changes={'tokenizer.json': None,
                        'vocab.txt': golden('bert_classifier', 'vocab.txt') + b'more\n'})),
    Case('a model type that is not read', BERT, "unknown model_type 'roberta'",
         model(model_type='roberta')),
    Case('weights after quantisation', BERT, 'quantization_config (gptq, bits=4)',
         model(quantization_config={'quant_method': 'gptq', 'bits': 4})),
    Case('a pointer instead of weights', BERT, 'is a Git LFS pointer', model(changes={
      'model.safetensors': b'version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n'})),
    Case('an adapter', BERT, 'is an adapter (LORA) of bert-base', model(changes={
      'config.json': None, 'adapter_config.json':
        b'{"peft_type": "LORA", "base_model_name_or_path": "bert-base"}'})),
    Case('a tokenizer of another vocabulary', BERT, "vocab.txt has 'a' as token 10", model(
      changes={'vocab.txt': golden('bert_classifier', 'vocab.txt').replace(b'4\na\n', b'a\n4\n')})),
    Case('merges of another model', 'sample --pretrained=DIR/m --attribute=country '
         '--output=DIR/o.jsonl', "merges.txt has 'h t' as merge 1, tokenizer.json 't h'",
         model('gpt2', changes={'merges.txt': b'#version: 0.2\nh t\nth e\n'})),
    Case('a configuration in too many brackets', BERT, 'config.json is not JSON', model(
      changes={'config.json': b'[' * 200_000})),
    Case('a tokenizer without [CLS]', BERT, 'does not begin a text with [CLS]',
         model(changes={'tokenizer.json': without_ends()})),
    Case('a length that is no number', BERT, 'model_max_length is nan',
         model(changes={'tokenizer_config.json': b'{"model_max_length": NaN}'})),
    Case('no head of classes', BERT, 'has no classifier head', model('bert_mlm')),
    Case('no head of words', MASKED + ' --init=DIR/m', 'has no mlm head',
         model() | {'t.txt': 'It rains .\nIt snows .\n'}),
    Case('a model of another kind', BERT, "is gpt2, which has no head 'classifier'", model('gpt2')),
    Case('a classifier of tokens', BERT, 'which is no classifier of whole texts',
         model(architectures=['BertForTokenClassification'])),
    Case('a head that is no list', BERT, 'a list of names is needed',
         model(architectures='BertForTokenClassification')),
    Case('an end of text that is a word', 'sample --pretrained=DIR/m --attribute=country '
         '--output=DIR/o.jsonl', "the ordinary token '%'", model('gpt2', eos_token_id=5)),
    Case('texts over the length (cut, counted)', BERT + ' --permutations=5',
         '1 of 3 texts are longer than the 24 tokens', model() | {'r.jsonl': records(
           lambda rows: [row | {'continuation': 'good ' * (1, 2, 60)[row['sample']]}
                         for row in rows])}, code=0),
  ],
  'Fair generation': [
    Case('no embeddings', FAIR, '--embeddings=FILE'),
    Case('embeddings that are not there', f'{FAIR} --embeddings=DIR/v', 'embeddings not found'),
    Case('an option of another action', f'{FAIR} --embeddings=DIR/v --records=DIR/r',
         '--records does not belong to: fairjax fair-generation subspace'),
    Case('embeddings that are cut off', f'{FAIR} --embeddings=DIR/v',
         'promises 9 words, it holds 8', {'v': VECTORS.replace('8 ', '9 ', 1)}),
    Case('a row of another width', f'{FAIR} --embeddings=DIR/v', 'v:4: not a word and 3 numbers',
         {'v': VECTORS.replace('man 1 0 1', 'man 1 0 1 1')}),
    Case('a word twice', f'{FAIR} --embeddings=DIR/v', "v:3: the word 'she' occurs twice",
         {'v': VECTORS.replace('he -1', 'she -1')}),
    Case('a number that is none', f'{FAIR} --embeddings=DIR/v',
         "v:2: 'she' has a number that is not finite", {'v': VECTORS.replace('she 1', 'she nan')}),
    Case('embeddings of another language', f'{FAIR} --embeddings=DIR/v', 'none of the 694',
         {'v': 'la 1 0\nil 0 1\n'}),
    Case('no pair in the embeddings', f'{FAIR} --embeddings=DIR/v --pairs=DIR/p',
         'none of the 1 definitional pairs', {'v': VECTORS, 'p': 'Marie Jean\n'}),
    Case('a pair of one word', f'{FAIR} --embeddings=DIR/v --pairs=DIR/p', 'p:1: ',
         {'v': VECTORS, 'p': 'she\n'}),
    Case('a profession twice', f'{FAIR} --embeddings=DIR/v --professions=DIR/p',
         "p, entry 2: 'police officer' is given twice",
         {'v': VECTORS, 'p': '["police officer", "police_officer"]'}),
    Case('a bias that does not exist', f'{LIPSCHITZ} --bias=embeding', "did you mean 'embedding'",
         {'r.jsonl': records()}),
    Case('a distance that does not exist', f'{LIPSCHITZ} --bias=vader --distance=jacard',
         "did you mean 'jaccard'", {'r.jsonl': records()}),
    Case('a bias without its embeddings', LIPSCHITZ, 'the bias embedding needs --embeddings=FILE',
         {'r.jsonl': records()}),
    Case('a level that is none', f'{LIPSCHITZ} --bias=vader --level=0', 'must be in (0, 1)',
         {'r.jsonl': records()}),
    Case('one prompt', f'{LIPSCHITZ} --bias=vader', 'compares at least two',
         {'r.jsonl': records(lambda rows: rows[:1])}),
    Case('a group of no value', f'{LIPSCHITZ} --bias=vader --group=Itly=female',
         "did you mean 'Italy'", {'r.jsonl': records()}),
    Case('a group without a name', f'{LIPSCHITZ} --bias=vader --group=Italy',
         'is not VALUE=GROUP', {'r.jsonl': records()}),
    Case('a template of no record', f'{LIPSCHITZ} --bias=vader --templates=3',
         "unknown template '3'", {'r.jsonl': records()}),
  ],
  'Fine-tuning and resilience': [
    Case('no model', 'resilience finetune --output=DIR/o --stsb=DIR --professions=DIR/p.tsv',
         'finetune needs --model'),
    Case('no files of the STS benchmark', TUNE, 'holds no sts-train.csv',
         {'p.tsv': sts()['p.tsv']}),
    Case('a score above 5', TUNE, "sts-test.tsv:2: score '5.5' is no number from 0 to 5",
         sts(PAIR.format('5') + PAIR.format('5.5'))),
    Case('a pair without a second sentence', TUNE, 'sts-test.tsv:1: 6 columns',
         sts('g\tf\ty\t1\t5\tA man sings.\n')),
    Case('no column of shares', f'{TUNE}', "no column 'occupation'", {'p.tsv': 'job\n'}),
    Case('a share above 100', TUNE, "p.tsv:3: '120' is no percentage",
         sts(professions='a\t1\nb\t120\n')),
    Case('a profession twice', TUNE, "p.tsv:3: 'a' stands there twice",
         sts(professions='a\t1\na\t2\n')),
    Case('too few professions with a share', TUNE, '1 professions have a value',
         sts(professions='a\t1\nb\tNA\n')),
    Case('more frozen layers than there are', f'{TUNE} --freeze=none,9',
         "'9' is not none, embedding, all, or a number of layers from 1 to 3", sts()),
    Case('the same freeze twice', f'{TUNE} --freeze=none,none', 'each once', sts()),
    Case('no restart', f'{TUNE} --restarts=0', '--restarts=0 must be at least 1', sts()),
    Case('biographies as a pickle', BIOS, 'is a pickle', {'b.jsonl': b'\x80\x04]\x94.'}),
    Case('a biography without a gender', BIOS, 'b.jsonl:1: gender None',
         {'b.jsonl': '{"profession": "nurse", "text": "She helps."}'}),
    Case('biographies of one profession', BIOS, '1 profession: a classifier needs two',
         {'b.jsonl': '{"profession": "nurse", "gender": "F", "text": "She helps."}'}),
    Case('re-learning by the baseline',
         'resilience relearn --workdir=DIR/w --name=baseline --output=DIR/o',
         'has no reduction that it could lose'),
    Case('re-learning without a workdir',
         'resilience relearn --workdir=DIR/w --name=country-embedding-10 --output=DIR/o',
         'has no config.json'),
    Case('too few samples for an error', 'resilience relearn --workdir=DIR/w '
         '--name=country-embedding-10 --output=DIR/o --samples=5', 'needs 20 at least'),
  ],
  'Masked language models': [
    Case('no text', 'masked-lm train --workdir=DIR/w', 'needs --data=FILE'),
    Case('a text that is not there', MASKED, 'file not found: DIR/t.txt'),
    Case('one document and nothing to validate', MASKED, 'give --valid', {'t.txt': 'It rains .'}),
    Case('heads that do not divide the width', MASKED + ' --heads=3', 'does not divide --dim=128'),
    Case('a rate of dropout that cannot be', MASKED + ' --hidden_dropout=1', 'is not in [0, 1)'),
    Case('names without augmentation', MASKED + ' --names=DIR/n.txt', 'belong to --cda=one'),
    Case('augmentation of a text without gender', MASKED + ' --cda=one', 'no gendered word',
         {'t.txt': 'It rains .\nIt snows .\n'}),
    Case('a checkpoint that is not there', MASKED + ' --init=DIR/none', 'DIR/none is no directory'),
    Case('a mesh that no devices make', MASKED + ' --mesh.fsdp=0', '--mesh.fsdp=0 is no number of'),
    Case('a mesh of other devices', MASKED + ' --mesh.fsdp=3',
         'set --mesh.slices, .fsdp and .model'),
    Case('processes of another action', 'masked-lm corpus --output=DIR/c --distributed',
         '--distributed belongs to masked-lm train'),
    Case('a text that is not that of the workdir', MASKED + ' --valid=DIR/t.txt',
         'was made from other data (', {
           't.txt': 'It rains.', 'w/data/inputs.json': '{"layout": "tsv", "files": {}}'}),
    Case('a strength that cannot be', 'masked-lm corpus --output=DIR/c --strength=2',
         '--strength=2.0 is not in [0, 1]'),
    Case('shares that are no numbers', 'masked-lm pronouns --model=DIR --shares=DIR/s.tsv',
         's.tsv:2', {'s.tsv': 'occupation\tbls_pct_female\nbaker\tmany\n'}),
  ],
  'Attributes': [
    Case('one that does not exist', 'attributes check contry', "'country'"),
    Case('a file that is no YAML', 'attributes check DIR/a.yaml', 'a.yaml',
         {'a.yaml': 'values: [a, b\n'}),
    Case('YAML that makes objects', 'attributes check DIR/a.yaml', 'a.yaml',
         {'a.yaml': 'values: !!python/object/apply:os.getcwd []\n'}),
    Case('a key that does not exist', 'attributes check DIR/a.yaml', 'valeus',
         {'a.yaml': 'name: a\nvaleus: [b]\n'}),
    Case('no file', 'attributes check', 'needs a file'),
  ],
  'Launching': [
    Case('an accelerator that does not exist', LAUNCH.replace('v3-128', 'v3-100'),
         'no v3 slice of 100 cores is known'),
    Case('a name that the cloud refuses', LAUNCH + ' --name=A_b', 'at most 40 of a-z, 0-9 and -'),
    Case('the value of a secret', LAUNCH + ' --env=HF_TOKEN=value', 'would show a secret'),
    Case('an action that does not exist', LAUNCH.replace('run', 'start'), 'invalid choice'),
  ],
  'Other models': [
    Case('no folder', 'sample --pretrained=DIR/none --attribute=country --output=DIR/o.jsonl',
         'none'),
    Case('no samples', 'sample --pretrained=DIR --attribute=country --output=DIR/o --samples=0',
         '--samples is 0, it must be above 0'),
    Case('a temperature without end', 'sample --pretrained=DIR --attribute=country --output=DIR/o '
         '--temperature=inf', '--temperature is inf, it must be above 0 and finite'),
    Case('nothing named', 'sample', 'sample needs --config=FILE and --workdir=DIR'),
    Case('a run into a file', 'sample --config=configs/quickstart.py --workdir=DIR/w '
         '--attribute=country --output=DIR/f', 'of a run it is a folder', {'f': ''}),
    Case('prompts of a run without a place', 'sample --config=configs/quickstart.py '
         '--workdir=DIR/w --attribute=country', 'or, both, to a run'),
    Case('prompts over a file', 'sample --prompts-only --attribute=country --output=DIR/o.jsonl',
         'o.jsonl', {'o.jsonl': 'x'}),
    Case('a checkpoint that is not there',
         'import --config=configs/quickstart.py --workdir=DIR/w --weights=DIR/w.safetensors '
         '--arguments=DIR/a.json', 'arguments not found'),
    Case('arguments that are a list', REFERENCE, 'holds list, not an object', {'a.json': '[1, 2]'}),
    Case('arguments of another type', REFERENCE, "n_token='a' is not a whole number", {
      'a.json': '{"n_token": "a", "n_layer": 2, "d_model": 8, "n_head": [1], "d_head": 8, '
                '"d_inner": 8, "mem_len": 8}'}),
    Case('arguments that lack', REFERENCE, 'lack: d_head, d_inner', {
      'a.json': '{"n_token": 96, "n_layer": null, "d_model": 8, "n_head": 1, "mem_len": 8}'}),
    Case('a checkpoint of another architecture', REFERENCE.replace('DIR/a.json', GOLDEN_ARGUMENTS),
         'model.model_dim=128 but the checkpoint has 32'),
    Case('a folder without a model', f'import {QUICK} --workdir=DIR/w --from=DIR',
         'config.json is missing'),
    Case('a folder of another kind', f'import {QUICK} --workdir=DIR/w --from=DIR',
         "('export' is missing)", {'config.json': '{"config": {}}'}),
    Case('two kinds of models', f'import {QUICK} --workdir=DIR/w --from=DIR --words=DIR/w.txt',
         'not both'),
    Case('no model to import', f'import {QUICK} --workdir=DIR/w', 'import needs --from=DIR'),
    Case('an export over something', f'export {QUICK} --workdir=DIR/w --output=DIR/there',
         'it is not overwritten', {'there': ''}),
    Case('a licence that is none', f'export {QUICK} --workdir=DIR/w --output=DIR/m.safetensors '
         '--license=mit', 'does not belong to --form=transformer-xl'),
    Case('a topology that does not exist', 'compile --config=configs/quickstart.py --topology=v9:8',
         'v5e (v5e:1x1, v5e:2x2 to v5e:16x16)'),
    Case('a folder as the page of the compile matrix', 'compile --matrix --output=DIR',
         'is a folder: name a file'),
    Case('a page of the compile matrix inside a file', 'compile --matrix --output=DIR/f/x.md',
         'DIR/f is no folder', {'f': ''}),
    Case('the results of the compile matrix as its page', 'compile --matrix --output=DIR/x.json',
         'name the page, e.g. DIR/x.md'),
  ],
}
CASES = [(section, case) for section, cases in SECTIONS.items() for case in cases]


def prepare(case: Case, folder: pathlib.Path) -> list[str]:
  """Writes the files of a case; returns the command with the folder in it."""
  for name, content in case.files.items():
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if content == 'SAVED':
      from fairjax.config_io import load_config, to_dict
      config = to_dict(load_config('configs/quickstart.py', {'seed': '5'}))
      content = json.dumps({'config': config})
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
  return case.command.replace('DIR', str(folder)).split()


@pytest.fixture(scope='module')
def results(tmp_path_factory):
  """(exit code, stderr) of every case, by its number."""
  found, here = [], os.getcwd()
  os.chdir(ROOT)
  try:
    for _, case in CASES:
      folder = tmp_path_factory.mktemp('bad')
      found.append(run_case(case, folder))
  finally:
    os.chdir(here)
  return found


def run_case(case: Case, folder: pathlib.Path) -> tuple[int, str]:
  """Exit code and what was written to stderr, or to stdout by a verb that lists findings."""
  arguments, out, err = prepare(case, folder), io.StringIO(), io.StringIO()
  with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
    around = contextlib.ExitStack()
    around.enter_context(case.around(folder))
  with around, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
    try:
      code = main(arguments)
    except Exception:  # a fault: its case fails, the others go on
      code = 1
      traceback.print_exc()
  text = err.getvalue() or out.getvalue()
  text = re.sub(r'^google: .*\n', '', text)  # what it counts of every call
  if not case.code:
    text = ''.join(line for line in text.splitlines(keepends=True) if case.words in line)
  text = re.sub(r'bert-m-[0-9a-f]{6}', 'bert-m-......', text)  # digits of a fingerprint
  return code, text.replace(str(folder), 'DIR').replace(str(ROOT), '.')


@pytest.mark.parametrize('number', range(len(CASES)), ids=[f'{s}: {c.what}' for s, c in CASES])
def test_it_is_refused_in_one_line(results, number):
  (_, case), (code, text) = CASES[number], results[number]
  assert code == case.code, text
  assert case.words in text
  assert 'Traceback' not in text and text.endswith('\n')
  if case.words:  # the others list findings
    assert text.startswith('fairjax: ') or not case.code, text
    assert text.count('\n') == 1, text
    assert len(text) < 600, text


def test_debug_shows_the_traceback(tmp_path, monkeypatch):
  from fairjax.errors import UserError
  monkeypatch.chdir(ROOT)
  with pytest.raises(UserError) as error:
    main(['config', 'show', '--config=configs/none.py', '--debug'])
  assert error.traceback


def test_tensorflow_is_told_to_be_quiet_unless_the_user_said_otherwise(monkeypatch, capsys):
  for given, expected in ((None, '3'), ('0', '0')):
    monkeypatch.setenv('TF_CPP_MIN_LOG_LEVEL', given or '')
    if given is None:
      monkeypatch.delenv('TF_CPP_MIN_LOG_LEVEL')
    assert main(['attributes', 'check']) == 2
    assert os.environ['TF_CPP_MIN_LOG_LEVEL'] == expected
  assert capsys.readouterr().err.count('needs a file') == 2
