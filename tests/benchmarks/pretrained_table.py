"""The table of docs/pretrained.md: a published decoder, three attributes, every method.

  python -m tests.benchmarks.pretrained_table prepare DIR --model=MODEL --data=DATA
  python -m tests.benchmarks.pretrained_table run DIR --jobs=16
  python -m tests.benchmarks.pretrained_table join DIR --json > RESULT.json

DATA holds the corpora and word lists (Wikipedia, IMDB, opinion words). `prepare` writes the token
stores, so that a machine with an accelerator needs DIR and MODEL only. Each part is a workdir
`DIR/ATTRIBUTE-PART` of a process of its own: a part that was stopped goes on. `join` puts the parts
of an attribute into one workdir with one report, and prints the rows.
"""

import argparse
import concurrent.futures
import dataclasses
import json
import pathlib
import shutil
import subprocess
import sys
import time
import types
from collections.abc import Mapping
from typing import Any

from fairjax.config import Config
from fairjax.config_io import load_config
from fairjax.run.job import Job
from fairjax.run.results import Run
from tests.benchmarks import harness

CONFIG = pathlib.Path(__file__).resolve().parents[2] / 'configs' / 'pretrained.py'
ATTRIBUTES = ('country', 'occupation', 'name')
WEIGHTS = (10, 100, 1)
SAMPLES, NEW_TOKENS, STEPS = 100, 25, 60
_SEED = {'debias.variants': ('embedding:10',), 'debias.extended_baseline': False}
# What a part trains beside the control, and the models that it samples and measures.
PARTS = {
  'embedding': ({'debias.variants': tuple(f'embedding:{w}' for w in WEIGHTS),
                 'debias.extended_baseline': False},
                ('baseline', 'control', *(f'embedding-{w}' for w in WEIGHTS))),
  'sentiment': ({'debias.variants': tuple(f'sentiment:{w}' for w in WEIGHTS),
                 'debias.extended_baseline': False},
                tuple(f'sentiment-{w}' for w in WEIGHTS)),
  'text': ({'debias.variants': ('cda:two',)}, ('extended-baseline', 'cda-two')),
  'long': (_SEED | {'debias.branch_tokens': 8}, ('embedding-10',)),
  'decoding': ({'until': 'lm', 'debias.variants': (), 'debias.extended_baseline': False,
                'decoding': ('average:0.5', 'average:1', 'steer:1')},
               ('average-0.5', 'average-1', 'steer-1')),
  'seed1': (_SEED | {'seed': 1}, ('baseline', 'control', 'embedding-10')),
  'seed2': (_SEED | {'seed': 2}, ('baseline', 'control', 'embedding-10'))}


def part_config(folder: pathlib.Path, attribute: str, part: str, smoke: bool = False,
                overrides: Mapping[str, Any] = types.MappingProxyType({})) -> Config:
  """The configuration of one part, whose files lie in `folder`."""
  given = json.loads((folder / 'files.json').read_text())
  dtype = given.pop('dtype')
  files = {k: '+'.join(f'"{x}"' for x in v) for k, v in given.items()}
  fields = {
    'data.holdout': (), 'debias.steps': STEPS, 'debias.checkpoint_every': STEPS,
    'debias.random_projection': False, 'debias.batch_size': 4, 'sample.samples': SAMPLES,
    'sample.batch_size': SAMPLES, 'sample.max_new_tokens': NEW_TOKENS,
    'measure.eval_batch_size': 16,
    'lm.batch_size': 16, 'measure.audit_texts': 0,
    'measure.scorers': ('opinion', 'vader'),
    'model.dtype': dtype}
  fields |= PARTS[part][0] | overrides
  if smoke:
    fields |= {'debias.steps': 2, 'debias.warmup_steps': 1, 'sentiment.steps': 60,
               'sample.samples': 2, 'sample.batch_size': 2, 'sample.max_new_tokens': 3,
               'measure.permutations': 100}
  return load_config(
    f'{CONFIG}:model={files["model"]},attribute={attribute},layout=wikitext,train={files["train"]},'
    f'valid={files["valid"]},test={files["test"]},lexicon={files["lexicon"]}',
    {name: repr(value) if isinstance(value, tuple) else str(value)
     for name, value in fields.items()})


def own_name(name: str, attribute: str) -> str:
  """The name of a model without the attribute's."""
  return name.removeprefix(f'{attribute}-')


class Part(Job):
  """A run of which some models are sampled and measured."""

  chosen = ()

  @property
  def measured(self):
    """The models that this part adds to the table."""
    return [(m, held) for m, held in super().measured
            if own_name(m.name, self.attribute.name) in self.chosen]


def prepare(folder: pathlib.Path, model: str, data: pathlib.Path, dtype: str) -> None:
  """The token stores of every attribute, and of the reviews, read with the model's tokenizer."""
  folder.mkdir(parents=True, exist_ok=True)
  wiki = {split: [str(data / 'wikipedia' / f'wiki.{name}.txt.gz')] for split, name in (
    ('train', 'train_sensitive'), ('valid', 'valid'), ('test', 'test'))}
  (folder / 'files.json').write_text(json.dumps(wiki | {
    'model': [model], 'dtype': dtype,
    'lexicon': [str(data / 'lexicons' / f'opinion_{x}.txt') for x in ('positive', 'negative')],
    'reviews': [str(data / 'imdb' / 'valid.tsv.gz')]}))
  for attribute in ATTRIBUTES:
    _ = Job(part_config(folder, attribute, 'embedding'), folder / f'{attribute}-data').prepared
  _ = Job(reviews_config(folder), folder / 'reviews').prepared


def reviews_config(folder: pathlib.Path) -> Config:
  """Reviews in the place of the corpus: the last 200 are the test split."""
  config = part_config(folder, 'occupation', 'embedding')
  reviews = json.loads((folder / 'files.json').read_text())['reviews']
  return dataclasses.replace(config, data=dataclasses.replace(
    config.data, source='tsv', train=tuple(reviews), valid=(), test=(), holdout=(50, 200)))


def run_part(folder: pathlib.Path, attribute: str, part: str, smoke: bool) -> None:
  """Trains, samples and measures; the perplexity of the reviews goes to `reviews.json`."""
  workdir = folder / f'{attribute}-{part}'
  begin = time.perf_counter()
  def log(line):
    print(f'{time.perf_counter() - begin:6.1f} {workdir.name} {line}', flush=True)
  variants = PARTS[part][0]['debias.variants']
  for count in range(min(1, len(variants)), len(variants) + 1):  # each adds rows to the table
    job = Part(part_config(folder, attribute, part, smoke, {'debias.variants': variants[:count]}),
               workdir, log=log)
    job.chosen = PARTS[part][1]
    if not (workdir / 'data').exists():
      shutil.copytree(folder / f'{attribute}-data' / 'data', workdir / 'data')
    job.train()
    job.sample()
    job.measure()
  reviews, found = Run(reviews_config(folder), folder / 'reviews', log), {}
  for model, _ in job.measured:
    found[own_name(model.name, attribute)] = reviews.perplexity(job.params(model), 'test')
  (workdir / 'reviews.json').write_text(json.dumps(found))
  log('done')


def run(folder: pathlib.Path, names: list[str], jobs: int, smoke: bool) -> None:
  """All parts, so many at a time, each in a process of its own."""
  def start(name):
    with open(folder / f'{name}.log', 'a') as log:
      return subprocess.run(
        [sys.executable, '-m', 'tests.benchmarks.pretrained_table', 'part', str(folder), name,
         *['--smoke'] * smoke], stdout=log, stderr=subprocess.STDOUT, check=False).returncode
  names = [name for name in names if not (folder / name / 'reviews.json').exists()]
  begin = time.perf_counter()
  with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
    for name, code in zip(names, pool.map(start, names), strict=True):
      print(f'{name}: exit code {code}, {time.perf_counter() - begin:.0f} s', flush=True)


def all_parts() -> list[str]:
  """The longest first; methods at decoding time for one attribute only."""
  order = ('decoding', 'sentiment', 'embedding', 'text', 'long', 'seed1', 'seed2')
  return [f'{attribute}-{part}' for part in order for attribute in reversed(ATTRIBUTES)
          if attribute == 'country' or part != 'decoding']


def join(folder: pathlib.Path, attribute: str) -> pathlib.Path:
  """One workdir of the parts with one seed, and its report."""
  joined = folder / attribute
  shutil.rmtree(joined, ignore_errors=True)
  parts = [p for p in ('embedding', 'sentiment', 'text', 'decoding')
           if (folder / f'{attribute}-{p}' / 'reviews.json').exists()]
  variants = [v for p in parts for v in PARTS[p][0]['debias.variants']]
  job = Job(part_config(folder, attribute, 'embedding', overrides={
    'debias.variants': tuple(variants), 'debias.extended_baseline': 'text' in parts,
    'decoding': PARTS['decoding'][0]['decoding'] * ('decoding' in parts)}), joined)
  for part in reversed(parts):  # what parts share is that of the first one
    shutil.copytree(folder / f'{attribute}-{part}', joined, dirs_exist_ok=True,
                    ignore=shutil.ignore_patterns('checkpoints', '.lock', 'config.json'))
  job.report()
  return joined


def rows(folder: pathlib.Path, attribute: str, part: str) -> list[dict[str, Any]]:
  """The numbers of the table of one part; differences stand in the joined report."""
  place = folder / f'{attribute}-{part}'
  reviews, found = json.loads((place / 'reviews.json').read_text()), []
  for name in PARTS[part][1]:
    full = name if name in ('baseline', 'control', 'extended-baseline', 'cda-two') or (
      part == 'decoding') else f'{attribute}-{name}'
    file = json.loads((place / 'measures' / full / f'{attribute}.json').read_text())
    found.append({'attribute': attribute, 'part': part, 'model': name,
                  'reviews_perplexity': reviews[name]} | {
                    key: file[key] for key in ('perplexity', 'measures')})
  return found


def main() -> None:
  """Parses the action."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('action', choices=('prepare', 'run', 'part', 'join'))
  parser.add_argument('folder', type=pathlib.Path)
  parser.add_argument('names', nargs='*', help='parts, e.g. country-embedding; default: all')
  parser.add_argument('--model', help='folder, GGUF file, hf:ORG/NAME or pip:PACKAGE')
  parser.add_argument('--data', type=pathlib.Path)
  parser.add_argument('--dtype', default='float32', help='of the computation')
  parser.add_argument('--jobs', type=int, default=1, help='parts at a time')
  parser.add_argument('--smoke', action='store_true', help='tiny sizes')
  options = parser.parse_args()
  folder, names = options.folder.resolve(), options.names or all_parts()
  if options.action == 'prepare':
    prepare(folder, options.model, options.data.resolve(), options.dtype)
  elif options.action == 'part':
    run_part(folder, *names[0].split('-'), options.smoke)
  elif options.action == 'run':
    run(folder, names, options.jobs, options.smoke)
  else:
    done = [n.split('-') for n in all_parts() if (folder / n / 'reviews.json').exists()]
    for attribute in dict(done):
      print(join(folder, attribute), file=sys.stderr)
    print(json.dumps(harness.provenance('pretrained_table', options) | {
      'rows': [row for name in done for row in rows(folder, *name)]}))


if __name__ == '__main__':
  main()
