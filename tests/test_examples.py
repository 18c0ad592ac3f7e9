"""The examples in the help of every verb, run as it stands there on small data.

What `CASES` adds to an example makes it small; it takes nothing away. The examples run one after
the other in one folder, as a reader would give them: a later one finds what earlier ones have left.
"""

import contextlib
import gzip
import io
import json
import shlex
import shutil
import sys
import traceback
from typing import NamedTuple

import numpy as np
import pytest
import test_lexicon
import test_slice_search
from command_words import changed
from masked_cases import new_start
from test_fair_generation import write_records as write_prompted
from test_job import TINY as TINY_RUN
from test_lexicon import archive
from test_readme import words_of, write_inputs

from fairjax.cli import tpu_verbs as command
from fairjax.cli.main import VERBS, commands, main
from fairjax.data.planted_gender import make_gendered_corpus
from fairjax.measure.scorers import lexicon as lexicons
from fairjax.pretrained.masked_lm import Sizes
from fairjax.pretrained.start import write_model
from fairjax.tpu import slice_search

RUN = words_of(TINY_RUN | {
  'debias.variants': "('embedding:10',)", 'debias.extended_baseline': False,
  'sample.heldout_prefixes': False,
  'measure.scorers': "('vader',)", 'measure.encoder': '', 'data.reader': 'numpy'})
# `step train --stage=lm` ends there; the models of a run are sampled when all are trained.
LM = [*RUN, '--config.until=lm']
BERT = ['--layers=1', '--dim=16', '--heads=2']

EXAMPLES = {words: command.example for verb in VERBS for words, command in commands(verb).items()
            if command.example and words != 'compare mitigations'}  # report/test_mitigations.py

# Command -> what makes its example small, and what it says or leaves, in the order of giving them.
# What is missing here fails.
CASES: dict[str, tuple[list[str], tuple[str, ...]]] = {
  'attributes check': ([], ('0 errors',)),
  'step config': ([], ('lm.steps',)),
  'doctor': ([], ('devices',)),
  # A dry run: nothing is asked of a cloud.
  'tpu run': ([], ('gcloud compute tpus', '--accelerator-type=v3-128', 'fairjax run')),
  # The download comes from this process, with the hashes of a short list.
  'scorers lexicon': ([], ('2 positive and 2 negative words', 'lexicon/positive-words.txt')),
  # The compiler is another package: its answer is given; -m libtpu asks it.
  'tpu compile': ([], ('v5e:2x2', 'not times')),
  'step data': (LM, ('runs/quickstart/data/manifest.json',)),
  'step train': (LM, ('runs/quickstart/lm/DONE',)),
  'sample': (LM, ('runs/quickstart/generations/baseline/country.jsonl.gz',
                  'runs/quickstart/generations/baseline/country.next_token.json')),
  'step score': (LM, ('runs/quickstart/scores/baseline/country.vader.jsonl',)),
  'run': (RUN, ('runs/quickstart/DONE', 'runs/quickstart/measures/baseline/country.json')),
  'report': (RUN, ('runs/quickstart/report/index.html',)),
  'compare paper': ([], ('paper',)),
  # A few steps teach nothing that could be kept.
  'models select': ([*RUN, '--relevance-share=0.01'], ('country-embedding-10',)),
  'models relearn': (['--steps=2', '--every=2', '--samples=20'],
                     ('runs/relearned/relearning.json',)),
  'models export': (RUN, ('models/baseline/model.safetensors', 'models/baseline/README.md')),
  'models import': (RUN, ('runs/quickstart/lm/DONE',)),
  'measure': (['--permutations=20', '--keep=scores'],  # whose scores `records` reads
              ('"individual_fairness"', 'scores/country.vader.jsonl')),
  'compare gate': (['--permutations=20'], ('no worse',)),
  'completion': ([], ('complete',)),
  'records convert': ([], ('generations.parquet',)),
  'records plan': (['--effect=0.3'], ('samples per prefix',)),
  'human export': ([], ('sheets',)),
  'scorers audit': ([], ('opinion', 'vader', 'Spearman')),
  'gender cda': ([], ('train.cda.txt.gz',)),
  'models classifier': (['--vocab_size=100', *BERT, '--epochs=1'],
                        ('runs/sst/model.safetensors',)),
  'models masked-lm': ([*BERT, '--steps=2', '--batch_size=8'], ('runs/mlm/model.safetensors',)),
  'gender correlations': (['--persons=2', '--shuffles=2'],
                          ('runs/correlations/correlations.md',)),
  'gender lipschitz': ([], ('"jaccard"',)),
}


class Outcome(NamedTuple):
  """Of one example: exit code or traceback, what it printed, which of its files it left."""

  code: int | str
  out: str
  error: str
  left: set[str]


def test_every_verb_has_an_example_that_is_run():
  assert set(CASES) == set(EXAMPLES)
  assert {words.split()[0] for words in EXAMPLES} == set(VERBS)
  assert all(leaves for _, leaves in CASES.values())


def make_inputs(folder, repository):
  write_inputs(folder, repository)
  with gzip.open(folder / 'train.txt.gz', 'wt') as file:
    file.write('He said that his brother was a king.\nThe woman saw her.\nNothing here.\n')
  texts = make_gendered_corpus(num_sentences=400, seed=0, strength=1.0).texts
  (folder / 'corpus').mkdir()
  (folder / 'corpus' / 'train.txt').write_text('\n'.join(texts[:300]))
  (folder / 'corpus' / 'valid.txt').write_text('\n'.join(texts[300:]))
  start = new_start(Sizes('bert', 1, 16, 2, 400, 64), texts, seed=0)
  write_model(folder / 'runs' / 'bert', start, start.params, 'mlm')
  (folder / 'winogender').mkdir()
  (folder / 'winogender' / 'templates.tsv').write_text(
    'occupation(0)\tother-participant(1)\tanswer\tsentence\n'
    'nurse\tpatient\t0\tThe $OCCUPATION told the $PARTICIPANT that $NOM_PRONOUN was late.\n'
    'driver\tguest\t1\tThe $OCCUPATION saw the $PARTICIPANT and $POSS_PRONOUN bag.\n'
    'clerk\tguest\t0\tThe $OCCUPATION met the $PARTICIPANT when $NOM_PRONOUN came.\n')
  (folder / 'winogender' / 'occupations-stats.tsv').write_text(
    'occupation\tbls_pct_female\nnurse\t90\ndriver\t10\nclerk\t55\n')
  rng = np.random.default_rng(0)
  words = ('she he woman man her his girl boy nurse waitress lawyer artist engineer mechanic '
           'waiter').split()
  with gzip.open(folder / 'vectors.txt.gz', 'wt') as file:
    for i, word in enumerate(words):
      vector = rng.standard_normal(6) * 0.3
      vector[0] += (-1) ** i
      file.write(' '.join([word, *map(str, vector / np.linalg.norm(vector))]) + '\n')


def fake_compiler(patch):
  """A compiler that says at once that everything fits."""
  def analyse(config, program, where, *, log=print, cached=lambda key: None):
    return test_slice_search.analysis(where.name, program=program, required=2 ** 30), 'key'
  patch.setattr(command, 'prepare_process', lambda: None)
  patch.setattr(slice_search, 'analyse', analyse)


def fake_download(patch):
  """A short lexicon instead of the real one's address."""
  patch.setattr(lexicons, 'SHA256', {
    name: test_lexicon.hashlib.sha256(text.encode()).hexdigest()
    for name, text in test_lexicon.WORDS.items()})
  patch.setattr(lexicons, '_download', lambda url: archive())


def prepare(verb, folder):
  """What another program, or another choice of the reader, would have done before."""
  if verb == 'gender lipschitz':  # its generations are of other prompts
    write_prompted(folder / 'generations.jsonl', samples=4)
  if verb == 'compare paper':  # two corpora
    for name in ('wt103', 'wmt19'):
      shutil.copytree(folder / 'runs' / 'quickstart', folder / 'runs' / name)
  if verb == 'models import':  # into a workdir without step 1
    (folder / 'runs' / 'quickstart').rename(folder / 'runs' / 'exported')


def give(verb, folder):
  program, *words = shlex.split(EXAMPLES[verb])
  assert program == 'fairjax'
  at = words.index('--') if '--' in words else len(words)
  out, error = io.StringIO(), io.StringIO()
  with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
    try:
      code = main(changed(words[:at], CASES[verb][0]) + words[at:])
    except Exception:
      code = traceback.format_exc()
  return Outcome(code, out.getvalue(), error.getvalue(),
                 {name for name in CASES[verb][1] if (folder / name).exists()})


@pytest.fixture(scope='module')
def outcomes(tmp_path_factory, repository, one_device, no_figures_in_module):
  folder = tmp_path_factory.mktemp('examples')
  make_inputs(folder, repository)
  found = {}
  with pytest.MonkeyPatch.context() as patch:
    patch.chdir(folder)
    patch.setitem(sys.modules, 'clu.metric_writers', None)  # TensorBoard's, which needs TensorFlow
    fake_compiler(patch)
    fake_download(patch)
    for verb in CASES:
      prepare(verb, folder)
      found[verb] = give(verb, folder)
  found['digests'] = [json.loads((folder / 'runs' / name / 'lm' / 'DONE').read_text())['digest']
                      for name in ('exported', 'quickstart')]
  return found


@pytest.mark.parametrize('verb', EXAMPLES)
def test_the_example_of_a_verb_works(verb, outcomes):
  found = outcomes[verb]
  assert found.code == 0, f'{found.code}\n{found.error[-1500:]}'
  for expected in CASES[verb][1]:
    assert expected in found.left or expected in found.out, f'{expected}\n{found.out[-1500:]}'
  if verb == 'models import':
    assert outcomes['digests'][0] == outcomes['digests'][1]
