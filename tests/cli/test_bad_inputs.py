"""Bad inputs, one of each kind: exit code 2 and one line that says what is wrong and where."""

import json
import pathlib
import sys
from typing import NamedTuple

import pytest

import fairjax.data
from fairjax.config_io import load_config, to_dict
from fairjax.counterfactual import load_attribute

pytestmark = pytest.mark.usefixtures('in_repository')

ROOT = pathlib.Path(__file__).resolve().parents[2]
QUICK = '--config=configs/quickstart.py'
GOOD = 'Iran won .\nShe sang .\nIn Chile , then .\n'
COUNTRY = load_attribute('country')


class Case(NamedTuple):
  """What is wrong, the command, words of its line, and the files it needs (name -> content)."""

  what: str
  command: str
  words: str
  files: dict[str, bytes | str] = {}


def text_config(**changes: str) -> str:
  """A command on files of documents in DIR."""
  arguments = {'train': 'DIR/train.txt', 'valid': 'DIR/valid.txt', 'test': 'DIR/test.txt'} | changes
  return ('step data --config=configs/text.py:' + ','.join(f'{k}={v}' for k, v in arguments.items())
          + ' --config.data.vocabulary=word --workdir=DIR/run')


def documents(train: bytes | str = GOOD, name: str = 'train.txt') -> dict[str, bytes | str]:
  return {'train.txt': GOOD, 'valid.txt': GOOD, 'test.txt': GOOD} | {name: train}


def records(change=lambda rows: None) -> str:
  """Three samples of each value in one template, changed."""
  rows = [{'attribute': 'country', 'value': value.text, 'template': 0, 'sample': sample,
           'prefix': COUNTRY.prefix(0, i), 'continuation': 'good .'}
          for sample in range(3) for i, value in enumerate(COUNTRY.values)]
  return ''.join(json.dumps(row) + '\n' for row in change(rows) or rows)



MEASURE = 'measure --records=DIR/r.jsonl --attribute=country --scorer=vader'
CONVERT = 'records convert --output=DIR/o.jsonl --attribute=country --from='
SHOW = f'step config {QUICK}'
CDA = 'gender cda --input=DIR/in.txt --output=DIR/out.txt'
LIPSCHITZ = 'gender lipschitz --records=DIR/r.jsonl'
MASKED = 'models masked-lm --data=DIR/t.txt --workdir=DIR/w'
PAIR = 'g\tf\ty\t1\t5\tA man sings.\tA woman sings.\n'
TUNE = ('gender finetune --model=tests/golden/pretrained/bert_classifier --stsb=DIR '
        '--professions=DIR/p.tsv --output=DIR/o')
STS = {f'sts-{split}.tsv': PAIR for split in ('train', 'dev', 'test')} | {
  'p.tsv': 'occupation\tbls_pct_female\na\t1\nb\t2\nc\t3\n'}

CASES = [
  # Command line.
  Case('a limit that is no number', f'models select {QUICK} --perplexity-rise=nan',
       'nan is not in (-100, inf)'),
  Case('a verb that does not exist', 'mesure', "did you mean 'measure'"),
  Case('an action in the place of a verb', 'trian', "did you mean 'step train'"),
  Case('an action that does not exist', 'step trian', "did you mean 'train'"),
  Case('no action', 'step', 'needs an action: config, data, check-data, train, score'),
  # Overrides.
  Case('several faults at once', f'{SHOW} --config.lm.steps=0 --config.model.norm=mid',
       "model.norm='mid' is not one of post, pre; lm.steps=0"),
  Case('a tuple that is nested too deep', f'{SHOW} --config.data.holdout=' + '(' * 300,
       "((((...' is not a valid tuple"),
  # Workdirs.
  Case('of another configuration', f'report {QUICK} --config.seed=3 --workdir=DIR/w',
       'seed: 5 -> 3', {
         'w/config.json': json.dumps({'config': to_dict(load_config(
           str(ROOT / 'configs/quickstart.py'), {'seed': '5'}))}),
         'w/data/split': ''}),
  Case('with an empty name', f'run {QUICK} --workdir=', '--workdir is empty'),
  Case('of a bucket', f'run {QUICK} --workdir=gs://b/w', 'is not on this machine: mount'),
  Case('an output in a bucket', 'compare paper DIR/w --table=5 --output=gs://b/o',
       '--output=gs:/b/o is not on this machine'),
  Case('an import where a published model is', 'models import --from=DIR --workdir=DIR/w '
       '--config=configs/pretrained.py:model=DIR,train=DIR/x', 'in the place of step 1'),
  Case('scored before it was sampled', f'step score {QUICK} --workdir=DIR/w',
       'run fairjax sample'),
  # Documents.
  Case('no line feed', text_config(), 'train.txt is one line with carriage returns',
       documents(GOOD.replace('\n', '\r'))),
  Case('a line that is too long', text_config() + ' --config.data.max_line_bytes=100',
       'train.txt:4: a line of more than 100 bytes', documents(GOOD + 'x' * 101)),
  Case('a line with too few columns', text_config(layout='tsv') + ' --config.data.text_column=1',
       'train.txt:1: 1 column(s), so none has the number 1', documents()),
  # Counterfactual text.
  Case('a replacement given twice', CDA + ' --pairs DIR/p', "'a' becomes 'c' here",
       {'in.txt': GOOD, 'p': 'a b\nb a\na c\n'}),
  Case('initials without names', CDA + ' --letters=A-M', '--letters belongs to --names',
       {'in.txt': GOOD}),
  Case('fewer word pieces than special ones', MASKED + ' --vocab-size=5', '5 must be at least 6'),
  # Generations of any model.
  Case('measures into a folder', MEASURE + ' --output=DIR', 'is a folder: name a file',
       {'r.jsonl': records()}),
  Case('measures in the place of the records', MEASURE + ' --output=DIR/r.jsonl',
       '--output=DIR/r.jsonl is that of records too', {'r.jsonl': records()}),
  Case('a gate in the place of the old model', 'compare gate --records=DIR/s.jsonl --attribute='
       'country --scorer=vader --margin=0.1 --against=DIR/r.jsonl --junit=DIR/./r.jsonl',
       'r.jsonl is that of against too', {'r.jsonl': records(), 's.jsonl': records()}),
  Case('no attribute', 'measure --records=DIR/r.jsonl', 'needs --attribute and --scorer'),
  Case('the folder itself', MEASURE.replace('DIR/r.jsonl', '.'), '. is a folder: name a file'),
  Case('records and a run', MEASURE + ' --config=configs/quickstart.py --workdir=DIR/w',
       'not both', {'r.jsonl': records()}),
  Case('an option of records for a run', f'measure {QUICK} --workdir=DIR/w --permutations=77',
       '--permutations belongs to --records'),
  *(Case(f'an option that {command.split(" --")[0]} does not read', command, words, {
    'r.jsonl': records(), 't.txt': GOOD}) for command, words in {
      'sample --prompts-only --attribute=country --output=DIR/p --samples=5': '--samples belongs',
      'sample --prompts-only --pretrained=DIR --attribute=country --output=DIR/p': 'exclude',
      f'sample {QUICK} --workdir=DIR/w --samples=5': '--samples of a run needs --attribute',
      f'sample {QUICK} --workdir=DIR/w --attribute=country --output=DIR/o --dtype=bfloat16':
        '--dtype belongs to --pretrained',
      'records plan --effect=0.1 --attribute=country': 'name its --records too',
      'records convert --records=DIR/r.jsonl --output=DIR/o.jsonl --scored=prefix+continuation':
        '--scored belongs to --scores',
      'records convert --records=DIR/r.jsonl --output=DIR/o.jsonl --map=a=b': '--map belongs to',
      'scorers audit --attribute=country --texts=DIR/t.txt --scorer=vader --repair':
        '--repair belongs to --records',
      MEASURE + ' --google-rate=3': '--google-rate belongs to --scorer=google',
      MEASURE + ' --lexicon DIR/t.txt': 'it belongs to --scorer=opinion',
      'human export --records DIR/r.jsonl --output=DIR/o --annotators=2 --per-prefix=4':
        '--per-prefix belongs to --pairs',
      'human export --records DIR/r.jsonl --output=DIR/o --annotators=2 --items=4 --pairs Iran '
      'Chile': '--items is of the draw without --pairs'}.items()),
  Case('the report of a run somewhere else', f'report {QUICK} --workdir=DIR/w --output=DIR/r',
       '--output belongs to --records'),
  Case('templates of some records only', MEASURE, "r.jsonl:2: field 'template' is missing", {
    'r.jsonl': records(lambda rows: [rows[0], {**rows[1], 'template': None}])}),
  Case('records that would take the manifest of others',
       'records convert --records=DIR/r.jsonl --output=DIR/o.jsonl', 'name another --output',
       {'r.jsonl': records(), 'o.manifest.json': '{}'}),
  Case('nothing but log-likelihoods', CONVERT + 'lm-eval --records=DIR/l.jsonl',
       '1 left out with log-likelihoods', {'l.jsonl': '{"doc": {}, "resps": [[[-3.5, false]]]}'}),
  Case('samples that are none', CONVERT + 'inspect --records=DIR/l.json',
       'not of the form inspect', {'l.json': '{"samples": ["x"]}'}),
  Case('other values in the second file', 'report --records DIR/r.jsonl DIR/s.jsonl '
       '--output=DIR/o --attribute=country --scorer=vader --permutations=9', 's.jsonl and ', {
         'r.jsonl': records(), 's.jsonl': records(
           lambda rows: [r for r in rows if r['value'] != 'Chile'])}),
  Case('records that do not say what they are about',
       'human export --records DIR/r.jsonl --output=DIR/o --annotators=2',
       'one --attribute=A stands for attribute',
       {'r.jsonl': '{"prefix": "In Chile", "continuation": "a"}\n'}),
  Case('columns of other names', MEASURE, '--columns takes other names',
       {'r.jsonl': 'prompt,answer\nIn Chile,good\n'}),
  Case('a value that the attribute lacks', MEASURE, 'Other values need an attribute file', {
    'r.jsonl': records(lambda rows: [rows[0] | {'value': 'France'}])}),
  Case('a value with a line feed that colours the terminal', MEASURE, r"'Chi\nle\x1b[31m'", {
    'r.jsonl': records(lambda rows: [r | {'value': 'Chi\nle\x1b[31m'} for r in rows])}),
  Case('a report into a file', 'report --records DIR/r.jsonl --attribute=country --scorer=vader '
       '--output=DIR/r.jsonl', 'is no folder: name one', {'r.jsonl': records()}),
  Case('a baseline that no file holds, before a scorer is asked', 'report --records DIR/r.jsonl '
       '--attribute=country --scorer=recorded:none --output=DIR/o --baseline=q', "baseline 'q'",
       {'r.jsonl': records()}),
  Case('a report into a run', 'report --records DIR/r.jsonl --attribute=country --scorer=vader '
       '--output=DIR', 'is the workdir of a run', {
         'r.jsonl': records(), 'config.json': '{"workdir_format": 1}'}),
  Case('a figure of the paper below a file', 'compare paper --figure=2 --output=DIR/r/paper',
       'r/paper cannot be written', {'r': ''}),
  Case('a result to the standard output', f'{MEASURE} --output=-', 'a file or folder of that name'),
  Case('a pilot that a shell lost', 'records plan --effect=0.1 --records=',
       '--records is empty'),
  Case('many prompts', f'records plan --effect=0.1 --templates={10 ** 9}',
       'more than 100,000 prompts'),
  Case('many permutations', f'{MEASURE} --permutations=2000000', 'at most 1,000,000 '),
  *(Case(f'a sample with {options}', f'sample {options}', words, {'there': 'mine'})
    for options, words in {
      '--prompts-only --attribute=country': 'needs --output=FILE',
      '--prompts-only --output=DIR/p': 'either --attribute=A or --config=FILE',
      '--prompts-only --output=DIR/there --attribute=country': 'may hold continuations',
      '--workdir=DIR/x': 'sample needs --config=FILE and --workdir=DIR'}.items()),
  # Scorers and lexicons.
  *(Case(f'an audit with {options}', f'scorers audit --attribute=occupation {options}', words,
         {'t': 'The cleaner.\n'}) for options, words in {
      '--scorer=vader': 'either --records=FILE or --texts=FILE',
      '--scorer=vader --texts=DIR/t --records=DIR/t': 'either --records=FILE or --texts=FILE',
      '--texts=DIR/t': 'needs --scorer=S',
      '--scorer=recorded:x --texts=DIR/t': 'recorded:x: a text file brings no scores',
      '--scorer=vader --texts=none.txt': 'texts not found: none.txt',
      '--scorer=vader --scorer=vader --texts=DIR/t': 'vader is named twice'}.items()),
  Case('a service that is no host', MEASURE.replace('vader', 'google')
       + ' --google-endpoint=127.0.0.1:here', 'is no HOST or HOST:PORT',
       {'r.jsonl': records()}),
  # Fair generation.
  Case('a lexicon that nothing reads', f'{LIPSCHITZ} --bias=vader --lexicon=x',
       '--lexicon is for --bias=opinion'),
  Case('a distance that does not exist', f'{LIPSCHITZ} --bias=vader --distance=jacard',
       "did you mean 'jaccard'", {'r.jsonl': records()}),
  Case('pairs for no embedding', f'{LIPSCHITZ} --bias=vader --pairs=DIR/p',
       '--pairs is for --bias=embedding', {'r.jsonl': records()}),
  Case('one prompt', f'{LIPSCHITZ} --bias=vader', 'compares at least two',
       {'r.jsonl': records(lambda rows: rows[:1])}),
  Case('a group without a name', f'{LIPSCHITZ} --bias=vader --group=Italy',
       'is not VALUE=GROUP', {'r.jsonl': records()}),
  *(Case(f'a setting of the test, {option}', f'{LIPSCHITZ} {option}', option.partition('=')[0])
    for option in ('--level=0', '--level=1', '--bound=boot', '--lipschitz=-1', '--tolerance=nan',
                   '--window=-1')),
  # Correlations, fine-tuning and resilience.
  *(Case(f'correlations with {options}', f'gender correlations --model=DIR --output=DIR/out '
         f'{options}', words, {'s.tsv': ''}) for options, words in {
      '--metrics=discoo': "did you mean 'disco'",
      '--metrics=stsb': 'metric stsb needs --stsb and --professions',
      '--stsb=sts': 'metric stsb needs --professions',
      '--bios=nothere': '--bios=nothere: there is no such file',
      '--winogender=DIR/s.tsv': '--professions=DIR/occupations-stats.tsv: there is no such',
      '--coref=wino': 'metric coref needs --winogender',
      '--recorded=scores.tsv': 'metric recorded needs --winogender',
      '--metrics=,': '--metrics is empty', '--restarts=0': '--restarts: 0 must be at least 1',
      '--initials=M-A': 'range of letters', '--terms=a,b,c': 'give one file'}.items()),
  Case('more frozen layers than there are', f'{TUNE} --freeze=none,9',
       "'9' is not none, embedding, all, or a number of layers from 1 to 3", STS),
  Case('re-learning by the baseline',
       'models relearn --workdir=DIR/w --name=baseline --output=DIR/o',
       'has no reduction that it could lose'),
  # Masked language models.
  Case('a workdir that is a file', MASKED.replace('DIR/w', 'DIR/t.txt'),
       't.txt is no folder: name one', {'t.txt': GOOD}),
  Case('one document and nothing to validate', MASKED, 'give --valid', {'t.txt': 'It rains .'}),
  Case('names without augmentation', MASKED + ' --names=DIR/n.txt', 'belongs to --cda=one'),
  *(Case(f'sizes of a checkpoint, {size}', f'{verb} --init=DIR --{size}',
         f'--{size.partition("=")[0]} is of a new model')
    for verb in (MASKED, 'models classifier --data=DIR/t.tsv --output=DIR/o')
    for size in ('layers=4', 'layers=2', 'vocab-size=8000')),  # 2 and 8000 are the defaults
  Case('shares that are no numbers', 'gender pronouns --model=DIR --shares=DIR/s.tsv',
       's.tsv:2', {'s.tsv': 'occupation\tbls_pct_female\nbaker\tmany\n'}),
  # Attributes.
  Case('YAML that makes objects', 'attributes check DIR/a.yaml', 'a.yaml',
       {'a.yaml': 'values: !!python/object/apply:os.getcwd []\n'}),
  Case('a placeholder that has a meaning', 'attributes check DIR/a.yaml', "'a' cannot be",
       {'a.yaml': 'name: n\ncrossed: {a: occupation, b: country}\ntemplates: [A of B]\n'}),
  Case('a file of itself', 'attributes check DIR/a.yaml', 'a.yaml holds itself',
       {'a.yaml': 'name: n\ncrossed: {x: a.yaml, b: country}\ntemplates: [X of B]\n'}),
  # Other models.
  *(Case('a temperature that float32 does not hold', 'sample --pretrained=DIR --attribute=country '
         f'--output=DIR/o --temperature={t}', 'argument --temperature') for t in ('inf', '1e-40')),
  Case('texts of models that nobody trained', f'sample {QUICK} --workdir=DIR/w',
       'lm/DONE does not exist: run fairjax step train'),
  Case('a run into a file', 'sample --config=configs/quickstart.py --workdir=DIR/w '
       '--attribute=country --output=DIR/f', 'of a run it is a folder', {'f': ''}),
  Case('arguments that are a list', f'models import {QUICK} --workdir=DIR/w '
       '--arguments=DIR/a.json --weights=tests/golden/transformer_xl/plain_softmax.safetensors',
       'holds list, not an object', {'a.json': '[1, 2]'}),
  Case('two kinds of models',
       f'models import {QUICK} --workdir=DIR/w --from=DIR --words=DIR/w.txt', 'not both'),
]


@pytest.mark.parametrize(('package', 'command', 'words'), [
  *(('seqio', command, "needs seqio: pip install -e '.[train]'") for command in (
    text_config(), 'step check-data --seqio-cache=DIR/cache', 'step data --workdir=DIR/w '
    '--config=configs/text.py:layout=wikitext2 --config.data.manual_dir=DIR')),
  ('google.cloud', MEASURE.replace('vader', 'google'), "pip install -e '.[google]'"),
  *(('pyarrow', command, "pip install -e '.[parquet]'") for command in (
    MEASURE.replace('.jsonl', '.parquet'),
    'records convert --records=DIR/r.jsonl --output=DIR/o.parquet')),
  ('httpx', 'sample --endpoint=http://127.0.0.1:1/v1 --model=m --attribute=country '
   '--output=DIR/o.jsonl', "pip install -e '.[endpoint]'"),
  ('huggingface_hub', 'sample --pretrained=hf:org/gpt --attribute=country --output=DIR/o.jsonl',
   "pip install -e '.[hub]' in fairjax's folder; or put config.json")])
def test_without_a_package_the_line_says_how_to_install_it(
    tmp_path, monkeypatch, refused, package, command, words):
  case = Case('no package', command, words, documents() | {
    'cache/info.train.json': '{}', 'cache/stats.train.json': '{}', 'r.jsonl': records(),
    'r.parquet': 'PAR1'})
  monkeypatch.setitem(sys.modules, package, None)  # as import finds it where it is missing
  for module in ('seqio_tasks', 'tfds_wikitext'):
    monkeypatch.delitem(sys.modules, f'fairjax.data.{module}', raising=False)
    monkeypatch.delattr(fairjax.data, module, raising=False)
  test_it_is_refused_in_one_line(case, tmp_path, monkeypatch, refused)


@pytest.mark.parametrize('case', CASES, ids=lambda case: case.what)
def test_it_is_refused_in_one_line(case, tmp_path, monkeypatch, refused):
  monkeypatch.setenv('FAIRJAX_GOOGLE_API_KEY', 'none')
  files = {tmp_path / name: content if isinstance(content, bytes) else content.encode()
           for name, content in case.files.items()}
  for path, content in files.items():
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
  line = refused(case.command.replace('DIR', str(tmp_path)).split(), alone=False)
  assert case.words in line.replace(str(tmp_path), 'DIR') and len(line) < 600 + len(str(tmp_path))
  assert all(path.read_bytes() == content for path, content in files.items())
  # What a first start may leave, as after an interruption; nothing that counts as a result.
  assert {p.name for p in tmp_path.rglob('*') if p.is_file() and p not in files} <= {
    'config.json', '.lock', 'inputs.json', 'words.txt', 'vocabulary.json', 'country.vader.jsonl',
    'lexicon_negative.txt', 'lexicon_positive.txt'}
