"""Every command of the README, the guide and the page of the main job, run on small data.

What is added to a command makes it small; it takes nothing away. A command that is not run here
says where it is or what it needs, and a new one belongs into one of the tables.
"""

import base64
import glob
import gzip
import json
import re
import shlex
import shutil

import numpy as np
import pytest
from command_words import changed
from golden_models import copied
from human_oracle import fill
from record_cases import records_of, write_lines
from test_docs import README, fairjax_commands
from test_export import FIELDS, write_words
from test_job import TINY

from fairjax.cli.main import main
from fairjax.counterfactual import load_attribute
from fairjax.data.planted import NEGATIVE, POSITIVE, make_planted_documents

GOLDEN = 'tests/golden'

NOT_HERE = {
  'scorers lexicon': 'a download; tests/measure/test_lexicons.py fetches from a server of its own',
  'measure --records answers.jsonl --attribute country --scorer google':
    "Google's service; tests/cli/test_measure_verbs.py has a server of its own",
  'sample --endpoint': 'a server; tests/generate/test_endpoint.py has one of its own',
  'tpu compile': 'the TPU compiler; `pytest -m libtpu` runs the verb',
  'run --config=configs/pretrained.py': 'a package; tests/run/test_published.py makes a small one',
  'doctor --pretrained': 'warns of random weights; tests/pretrained/test_decoders.py runs it',
}

def words_of(fields, **changes):
  fields = fields | {name.replace('__', '.'): value for name, value in changes.items()}
  return [f'--config.{name}={value}' for name, value in fields.items()]


SMALL = {name: value for name, value in TINY.items() if not name.startswith('data.')} | {
  'debias.variants': "('embedding:10',)"}
PLANTED = TINY | {'debias.variants': "('embedding:10',)"}
PAPER = SMALL | {  # the first step only
  'model.dtype': 'float32', 'model.vocab_multiple': 1, 'until': 'lm',
  'mesh.fsdp': 1, 'measure.similarity_threshold': '0.5'}

IMPORTED = {name: value for name, value in FIELDS.items() if 'planted' not in name} | {
  'model.dtype': 'float32', 'model.vocab_size': 0, 'measure.permutations': 20,
  'model.tie_position_biases': True, 'model.clamp_len': -1}

# The first words of a command -> what makes it small; the longest that fits counts.
MORE = {
  'run --config=configs/quickstart.py --workdir': words_of(PLANTED),
  'run --config=configs/quickstart.py:attribute=name': words_of(PLANTED, until='lm'),
  'run --config=configs/quickstart.py:strength=0': words_of(PLANTED, until='lm'),
  'run --config=configs/text.py': words_of(
    SMALL, until='lm', data__vocab_size=400, measure__similarity_threshold='0.5'),
  'run --config=configs/wikitext103.py': words_of(
    PAPER, data__vocab_size=80, model__vocab_size=0, model__cutoffs='(20,)'),
  'run --config=configs/wmt19.py': words_of(
    PAPER, data__vocab_size=400, model__vocab_size=0, data__holdout='(10,30)'),
  'models export --config=configs/quickstart.py': words_of(PLANTED),
  'models import --config=configs/quickstart.py': words_of(PLANTED),
  'models import --config=configs/wikitext103.py': ['--workdir=runs/imported', *words_of(IMPORTED)],
  'models export --config=configs/wikitext103.py': ['--workdir=runs/imported', *words_of(IMPORTED)],
  'measure --records': ['--permutations=20'],
  'records plan': ['--effect=0.3', '--values=3', '--shared=0.5'],
  'report --records': ['--permutations=20'],
  'sample --pretrained': ['--samples=2', '--batch-size=64', '--max-new-tokens=3'],
  'models classifier': [
    '--vocab_size=100', '--layers=1', '--dim=16', '--heads=2', '--epochs=1'],
  'models select': words_of(PLANTED),
  'gender corpus': ['--sentences=300'],
  'models masked-lm': ['--layers=1', '--dim=16', '--heads=2', '--steps=2', '--batch_size=8'],
  'gender correlations': ['--persons=2', '--shuffles=2', '--restarts=1', '--epochs=1'],
  **dict.fromkeys((
    'attributes check', 'compare gate', 'compare paper', 'compare reports', 'gender cda',
    'gender professions', 'human', 'sample --prompts-only', 'scorers audit', 'scorers evaluate',
    'step config', 'tpu run'), []),
}


# What test_examples.py runs in another order; here every week.
LONG = ('run --config=configs/quickstart.py', 'run --config=configs/text.py',
        'run --config=configs/wmt19.py', 'models export --config=configs/quickstart.py',
        'models import --config=configs/quickstart.py', 'models select', 'compare reports',
        'compare paper', 'models masked-lm', 'gender corpus', 'gender correlations')


def write_records(path, model, samples=2):
  write_lines(path, records_of(load_attribute('country'), samples, lambda p, i: (
    f' was {("good", "bad")[(p.value + i) % 2]} and {model}.'), model=model))


def write_wikitext(folder):
  folder.mkdir()
  for split, n in (('train', 120), ('valid', 20), ('test', 20)):
    (folder / f'wiki.{split}.tokens').write_text(''.join(
      f' \n = Article {i} = \n \n {text} \n' for i, text in enumerate(planted(n, n))))


def write_news(path):
  lines = []
  for text in planted(150, 1):
    found = [base64.b64encode(x.encode()).decode() for x in (text.replace(' . ', ' .\n'), text)]
    lines.append('\t'.join(['20190102', *found]))
  path.write_bytes(gzip.compress('\n'.join(lines).encode() + b'\n'))


def write_gpt2(tiny, folder, *, positions):
  """The tiny model with positions for the long prompts, and an end-of-text id of its own."""
  copied(folder, tiny, lambda tensors: {
    name: np.resize(x, (positions, x.shape[1])) if name.endswith('wpe.weight') else x
    for name, x in tensors.items()}, eos_token_id=0, n_positions=positions, n_ctx=positions)


def planted(n, seed):
  return make_planted_documents(load_attribute('country'), num_documents=n, seed=seed,
                                strength=0.9, sensitive_share=0.8)


def write_inputs(folder, repository):
  """What the README and the examples of the help read."""
  for name in ('configs', 'docs', 'tests'):
    (folder / name).symlink_to(repository / name)
  write_records(folder / 'generations.jsonl', 'generations')
  for name in ('new', 'old'):
    write_records(folder / f'{name}.jsonl', 'theirs', samples=20)
  for name in ('train', 'dev'):
    (folder / f'{name}.tsv').write_text(''.join(
      f'{i % 2}\tit was a {(NEGATIVE, POSITIVE)[i % 2][i % 5]} day number {i}\n'
      for i in range(60)))


@pytest.fixture
def folder(tmp_path_factory, repository, one_device):
  folder = tmp_path_factory.mktemp('readme')
  write_inputs(folder, repository)
  for name, n in (('train', 300), ('valid', 40), ('test', 40)):
    (folder / f'{name}.txt').write_text('\n'.join(planted(n, len(name))))
  write_wikitext(folder / 'FOLDER')
  write_news(folder / 'news-docs.2019.en.filtered.gz')
  for name in ('answers', 'gpt2', 'opt'):
    write_records(folder / f'{name}.jsonl', name)
  (folder / 'lexicon').mkdir()
  for name, found in (('positive', POSITIVE), ('negative', NEGATIVE)):
    (folder / 'lexicon' / f'{name}-words.txt').write_text('\n'.join(found))
  write_gpt2(repository / GOLDEN / 'pretrained' / 'gpt2', folder / 'gpt2-xl', positions=96)
  reference = repository / GOLDEN / 'transformer_xl' / 'adaptive_softmax'
  shutil.copy(reference.with_suffix('.safetensors'), folder / 'model.safetensors')
  shutil.copy(reference.with_suffix('.json'), folder / 'config.json')
  write_words(folder / 'words.txt')
  (text,) = re.findall(r'<!-- attribute-example -->\n```yaml\n(.*?)```', README, re.S)
  (folder / 'faith.yaml').write_text(text, encoding='utf-8')
  return folder


def key_of(line):
  words = line.removeprefix('fairjax ')
  return max((key for key in MORE | NOT_HERE if words.startswith(key)), key=len, default=None)


@pytest.mark.parametrize('line', fairjax_commands())
def test_every_command_is_run_here_or_says_where(line):
  assert key_of(line), 'a new command: add it to MORE or NOT_HERE'


@pytest.mark.tf
@pytest.mark.parametrize('quick', [True, pytest.param(False, marks=pytest.mark.weekly)])
def test_the_commands_of_the_readme(folder, monkeypatch, capfd, quick):
  monkeypatch.chdir(folder)
  if quick:
    monkeypatch.setattr('fairjax.report.report._draw', lambda *arguments: [])
  shown = {}
  # The README scores with a classifier before it says how to make one.
  first = 'fairjax models classifier'
  for line in sorted(fairjax_commands(), key=lambda line: not line.startswith(first)):
    words = shlex.split(line, comments=True)[1:]
    key = key_of(line)
    if key in NOT_HERE or quick and key.startswith(LONG):
      continue
    if words[:2] == ['human', 'import']:
      answer_sheets(folder)
    words = [x for word in words for x in (sorted(glob.glob(word)) if '*' in word and (
      not word.startswith('--')) else [word])]
    at = words.index('--') if '--' in words else len(words)
    more = MORE[key]
    if any(word.startswith('--init=') for word in words):  # a model has its own sizes
      more = [x for x in more if not x.startswith(('--layers', '--dim', '--heads'))]
    code = main(changed(words[:at], more) + words[at:])
    shown[line], error = capfd.readouterr()
    assert code == 0, f'{line}: {error[-1500:]}'
  # What the README says of them is there.
  with_floor = json.loads(next(v for k, v in shown.items() if k.endswith('--scorer vader --json')))
  assert with_floor['scorers']['vader']['individual_fairness']['null_mean'] >= 0
  assert 'samples' in next(v for k, v in shown.items() if 'records plan' in k)
  left = ['reports/ours/report.json', 'out.safetensors', 'human.json', 'gpt2-xl.jsonl',
          'runs/sst/model.safetensors', 'jobs.jsonl', 'gpt2-xl.next_token.json']
  if not quick:
    left += ['runs/quickstart/report/index.html', 'runs/quickstart/report/report.md',
             'runs/cda/model.safetensors', 'runs/correlations/correlations.md',
             'runs/unbiased/report/index.html']
  for path in left:
    assert (folder / path).is_file(), path


def answer_sheets(folder):
  (folder / 'returned').mkdir()
  for path in sorted((folder / 'sheets').glob('*.csv')):
    task = 'relevance' if 'relevance' in path.name else 'sentiment'
    label = {'relevance': 'related', 'sentiment': 'positive'}[task]
    fill(path, lambda row, label=label: label, output=folder / 'returned' / path.name)
