"""Bad inputs, one of each kind: exit code 2 and one line that says what is wrong and where.

One is no error but counted in a line, with exit code 0.
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

TUNE = ('resilience finetune --model=tests/golden/pretrained/bert_classifier --stsb=DIR '
        '--professions=DIR/p.tsv --output=DIR/o')
PAIR = 'g\tf\ty\t1\t{}\tA man sings.\tA woman sings.\n'


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


@contextlib.contextmanager
def with_key(folder: pathlib.Path):
  """A key of no account."""
  with mock.patch.dict(os.environ, FAIRJAX_GOOGLE_API_KEY='none'):
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
    Case('data without a workdir', f'data {QUICK}', 'data needs --config=FILE and --workdir=DIR'),
  ],
  'Config files': [
    Case('not there', 'config show --config=configs/quickstrat.py', 'config file not found'),
    Case('an error while it runs', 'config show --config=DIR/x.py', "x.py:5: KeyError: 'a'",
         config_py('return {}["a"]')),
    Case('an argument of another type', f'{SHOW}:strength=much', "'much' is not a valid float"),
    Case('config.json with another type', 'config show --config=DIR/c.json',
         'lm.steps: True is bool, not int', {'c.json': '{"lm": {"steps": true}}'}),
  ],
  'Overrides': [
    Case('a group instead of a field', f'{SHOW} --config.mesh=3', 'set one of mesh.slices'),
    Case('NaN', f'{SHOW} --config.lm.learning_rate=nan', "'nan' is not a valid float"),
    Case('a tuple element of another type', f"{SHOW} --config.data.holdout=(1,'a')",
         "'a' is str, not int"),
    Case('a choice that does not exist', f'{SHOW} --config.model.attention=flash',
         'is not one of auto, shift, blocks, heads, kernel'),
    Case('a number out of its range', f'{SHOW} --config.model.hidden_dropout=1',
         'hidden_dropout=1.0'),
    Case('a seed that is negative', f'{SHOW} --config.seed=-1', 'seed=-1 must be at least 0'),
    Case('several faults at once', f'{SHOW} --config.lm.steps=0 --config.model.norm=mid',
         "model.norm='mid' is not one of post, pre; lm.steps=0"),
    Case('a tuple that is nested too deep', f'{SHOW} --config.data.holdout=' + '(' * 300,
         "((((...' is not a valid tuple"),
  ],
  'Workdirs': [
    Case('of another configuration', f'report {QUICK} --config.seed=3 --workdir=DIR/w',
         'seed: 5 -> 3', {'w/config.json': 'SAVED'}),
    Case('with an empty name', f'run {QUICK} --workdir=', '--workdir is empty'),
    Case('scored before it was sampled', f'score {QUICK} --workdir=DIR/w', 'run fairjax sample'),
    Case('whose data were never finished', 'data check --workdir=DIR/w', ''),
  ],
  'Devices': [
    Case('a mesh of other devices', f'train {QUICK} --workdir=DIR/w --config.mesh.fsdp=3',
         'mesh slices=1 x fsdp=3 x model=1 takes 3 devices or a multiple, not 8'),
    Case('a mesh that does not divide the batches', f'run {QUICK} --workdir=DIR/w '
         '--config.lm.batch_size=12 --config.debias.batch_size=20',
         '--config.lm.batch_size=8; debias.batch_size=20 is not divisible by the 8'),
    Case('a mesh that does not divide the vocabulary', f'run {QUICK} --workdir=DIR/w '
         '--config.mesh.model=2 --config.model.num_heads=2 --config.model.vocab_size=601',
         'does not divide 601, rows of a table of the vocabulary'),
  ],
  'Documents': [
    Case('bytes that are not UTF-8', text_config(), 'train.txt:4: not UTF-8 (byte 4 of the line is',
         documents(GOOD.encode() + b'caf\xe9\n')),
    Case('a line that is too long', text_config() + ' --config.data.max_line_bytes=100',
         'train.txt:4: a line of more than 100 bytes', documents(GOOD + 'x' * 101)),
    Case('gzip that is cut off', text_config(), 'it is cut off at byte 4000',
         documents(GZIP[:4000])),
    Case('JSON lines as lines of text', text_config(), 'use layout=jsonl (data.source=jsonl) and '
         'data.text_field=text', documents('{"text": "She sang ."}\n{"text": "Iran won ."}\n')),
    Case('a pointer of Git LFS', text_config(), 'train.txt is a Git LFS pointer', documents(
      'version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n')),
    Case('a line with too few columns', text_config(layout='tsv') + ' --config.data.text_column=1',
         'train.txt:1: 1 column(s), so none has the number 1', documents()),
    Case('base64 of bytes that are not UTF-8', text_config(layout='newscrawl'),
         'byte 1 of the decoded text is 0xff',
         documents(b'2019\teA==\t' + base64.b64encode(b'\xff') + b'\n')),
    Case('WikiText without a title', text_config(layout='wikitext'), 'no article begins in it',
         documents()),
    Case('no sensitive token', text_config(), 'hold no sensitive token', documents('She sang .\n')),
    Case('more held out than there is',
         'data --config=configs/text.py:train=DIR/train.txt --workdir=DIR/run '
         '--config.data.holdout=2,2', 'leaves none to train on', documents()),
    Case('a vocabulary that is not there', text_config().replace('=word', '=DIR/v'),
         'no vocabulary in DIR/v', documents()),
  ],
  'Counterfactual text': [
    Case('a replacement given twice', CDA + ' --pairs DIR/p', "'a' becomes 'c' here",
         {'in.txt': GOOD, 'p': 'a b\nb a\na c\n'}),
    Case('names of one gender', CDA + ' --names DIR/n', 'more than 80% of its count as male',
         {'in.txt': GOOD, 'n': 'Ada,F,5\n'}),
    Case('initials that are none', CDA + ' --letters=M-A', 'no range of initials',
         {'in.txt': GOOD}),
    Case('nothing to swap', CDA + ' --pairs none', 'need word pairs or names', {'in.txt': GOOD}),
    Case('rates of a variant', f'{SHOW} --config.debias.variants=dropout:1.5',
         'must be in [0, 1): attention and hidden'),
  ],
  'Generations of any model': [
    Case('a field that is missing', MEASURE, 'r.jsonl:2: fields missing: prefix',
         changed(prefix=None)),
    Case('another attribute', MEASURE, "r.jsonl:2: attribute is 'occupation', not 'country'",
         changed(attribute='occupation')),
    Case('a line that is nested too deep', MEASURE, 'r.jsonl:1: not JSON (maximum recursion',
         {'r.jsonl': '[' * 100_000 + '\n'}),
    Case('two models', MEASURE, 'measure one model at a time', changed(model='b')),
    Case('a value without records', MEASURE, 'Every value is needed in every template',
         {'r.jsonl': records(lambda rows: [r for r in rows if r['value'] != 'Italy'])}),
    Case('a file that sampling has not finished', MEASURE, 'is not complete: repeat the command', {
      'r.jsonl': records(), 'r.manifest.json': sealed(identity={}, complete=False)}),
    Case('measures into a folder', MEASURE + ' --output=DIR', 'is a folder: name a file',
         {'r.jsonl': records()}),
    Case('no attribute', 'measure --records=DIR/r.jsonl', 'needs --attribute=A and --scorer=S'),
  ],
  'Scorers and lexicons': [
    Case('a scorer that does not exist', MEASURE.replace('vader', 'vadr'), "did you mean 'vader'",
         {'r.jsonl': records()}),
    Case('a lexicon that is not there',
         MEASURE.replace('vader', 'opinion --lexicon DIR/p.txt DIR/n.txt'), 'p.txt',
         {'r.jsonl': records()}),
    Case('a quota that is used up', MEASURE.replace('vader', 'google'),
         '2 of 4 different texts are scored', {
           'r.jsonl': records(lambda rows: [
             row | {'continuation': f'good {i % 4} .'} for i, row in enumerate(rows)])}, used_up),
    Case('a sheet with an unknown label', 'human import --key=DIR/sheets.key.json '
         '--output=DIR/h.json DIR/sheets/sentiment-a01.csv', "label 'good' of item s0",
         {'r.jsonl': records()}, labelled),
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
  ],
  'Model directories': [
    Case('no weights', BERT, 'holds neither model.safetensors nor',
         model(changes={'model.safetensors': None})),
    Case('no tokenizer', BERT, 'holds no tokenizer.json nor vocab.txt',
         model(changes={'tokenizer.json': None, 'vocab.txt': None})),
    Case('tensors of another shape', BERT, 'has shape (40, 16), config.json needs (48, 16)',
         model(intermediate_size=48)),
    Case('a word list with more words', BERT, 'has 91 tokens with ids up to 90, the model 90',
         model(changes={'tokenizer.json': None,
                        'vocab.txt': golden('bert_classifier', 'vocab.txt') + b'more\n'})),
    Case('merges of another model', 'sample --pretrained=DIR/m --attribute=country '
         '--output=DIR/o.jsonl', "merges.txt has 'h t' as merge 1, tokenizer.json 't h'",
         model('gpt2', changes={'merges.txt': b'#version: 0.2\nh t\nth e\n'})),
    Case('a model of another kind', BERT, "is gpt2, which has no head 'classifier'", model('gpt2')),
    Case('texts over the length (cut, counted)', BERT + ' --permutations=5',
         '1 of 3 texts are longer than the 24 tokens', model() | {'r.jsonl': records(
           lambda rows: [row | {'continuation': 'good ' * (1, 2, 60)[row['sample']]}
                         for row in rows])}, code=0),
  ],
  'Fair generation': [
    Case('no embeddings', FAIR, '--embeddings'),
    Case('an option of another action', f'{FAIR} --embeddings=DIR/v --records=DIR/r',
         'unrecognized arguments: --records'),
    Case('embeddings that are cut off', f'{FAIR} --embeddings=DIR/v',
         'promises 9 words, it holds 8', {'v': VECTORS.replace('8 ', '9 ', 1)}),
    Case('a word twice', f'{FAIR} --embeddings=DIR/v', "v:3: the word 'she' occurs twice",
         {'v': VECTORS.replace('he -1', 'she -1')}),
    Case('a distance that does not exist', f'{LIPSCHITZ} --bias=vader --distance=jacard',
         "did you mean 'jaccard'", {'r.jsonl': records()}),
    Case('one prompt', f'{LIPSCHITZ} --bias=vader', 'compares at least two',
         {'r.jsonl': records(lambda rows: rows[:1])}),
    Case('a group without a name', f'{LIPSCHITZ} --bias=vader --group=Italy',
         'is not VALUE=GROUP', {'r.jsonl': records()}),
  ],
  'Fine-tuning and resilience': [
    Case('a score above 5', TUNE, "sts-test.tsv:2: score '5.5' is no number from 0 to 5",
         sts(PAIR.format('5') + PAIR.format('5.5'))),
    Case('a share above 100', TUNE, "p.tsv:3: '120' is no percentage",
         sts(professions='a\t1\nb\t120\n')),
    Case('more frozen layers than there are', f'{TUNE} --freeze=none,9',
         "'9' is not none, embedding, all, or a number of layers from 1 to 3", sts()),
    Case('no restart', f'{TUNE} --restarts=0', '--restarts', sts()),
    Case('re-learning by the baseline',
         'resilience relearn --workdir=DIR/w --name=baseline --output=DIR/o',
         'has no reduction that it could lose'),
  ],
  'Masked language models': [
    Case('one document and nothing to validate', MASKED, 'give --valid', {'t.txt': 'It rains .'}),
    Case('names without augmentation', MASKED + ' --names=DIR/n.txt', 'belong to --cda=one'),
    Case('processes of another action', 'masked-lm corpus --output=DIR/c --distributed',
         'runs in one process'),
    Case('shares that are no numbers', 'masked-lm pronouns --model=DIR --shares=DIR/s.tsv',
         's.tsv:2', {'s.tsv': 'occupation\tbls_pct_female\nbaker\tmany\n'}),
  ],
  'Attributes': [
    Case('YAML that makes objects', 'attributes check DIR/a.yaml', 'a.yaml',
         {'a.yaml': 'values: !!python/object/apply:os.getcwd []\n'}),
    Case('a key that does not exist', 'attributes check DIR/a.yaml', 'valeus',
         {'a.yaml': 'name: a\nvaleus: [b]\n'}),
    Case('no file', 'attributes check', 'needs a file'),
  ],
  'Launching': [
    Case('an accelerator that does not exist', LAUNCH.replace('v3-128', 'v3-100'),
         'v3-128'),
    Case('the value of a secret', LAUNCH + ' --env=HF_TOKEN=value', 'would show a secret'),
  ],
  'Other models': [
    Case('a temperature without end', 'sample --pretrained=DIR --attribute=country --output=DIR/o '
         '--temperature=inf', 'argument --temperature'),
    Case('a run into a file', 'sample --config=configs/quickstart.py --workdir=DIR/w '
         '--attribute=country --output=DIR/f', 'of a run it is a folder', {'f': ''}),
    Case('arguments that are a list', REFERENCE, 'holds list, not an object', {'a.json': '[1, 2]'}),
    Case('a checkpoint of another architecture', REFERENCE.replace('DIR/a.json', GOLDEN_ARGUMENTS),
         'model.model_dim=128 but the checkpoint has 32'),
    Case('two kinds of models', f'import {QUICK} --workdir=DIR/w --from=DIR --words=DIR/w.txt',
         'not both'),
    Case('a topology that does not exist', 'compile --config=configs/quickstart.py --topology=v9:8',
         'v9:8'),
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
