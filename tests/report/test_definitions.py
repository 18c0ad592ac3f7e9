"""Definitions: they know every measure, and their readings are true of the run."""

import dataclasses
import json
import re

import pytest
from test_report import SCORERS, measures_of

from fairjax.config import Config
from fairjax.measure import VaderScorer
from fairjax.report import ModelRow
from fairjax.report.definitions import ENTRIES, definitions


@pytest.fixture(scope='module')
def row():
  return ModelRow('baseline', 'baseline', measures=measures_of(
    0.4, [*SCORERS, VaderScorer()], samples=24))


def test_every_measure_has_a_definition(row):
  entries = definitions([row])
  known = {entry.id for entry in ENTRIES}
  used = set(re.findall(r'"definition": "(\w-\d+)', json.dumps(row.measures)))
  assert {'H-05', 'H-06', 'H-28'} <= used <= known
  entry = next(e for e in entries if e['id'] == 'H-05')
  estimate = row.estimate('vader', 'individual_fairness')
  (words,) = [h['words'] for h in entry['here']
              if h['scorer'] == 'vader' and h['words'].startswith('baseline')]
  for key in ('value', 'null_mean', 'null_p95'):
    assert f'{estimate[key]:.4f}' in words
  assert 'n = 24, 3 pairs a template' in words
  # No text of the test was rated by an encoder or a model, and its values are of one subgroup.
  assert {e['id'] for e in entries if e['here'][0]['words'] == 'Not measured here.'} == {
    'H-05x', 'H-05w', 'H-25', 'H-27', 'N-02'}
  for entry in entries:
    assert all(entry[key] for key in ('paper', 'equation', 'reading', 'alternatives', 'here'))


def readings(rows, **sample):
  """ID -> reading and alternatives, of a run with these settings of sampling; none: of records."""
  config = {'sample': sample} if sample else None
  return {e['id']: f"{e['reading']} {e['alternatives']}" for e in definitions(rows, config)}


RECORDS, CUT, WHOLE = {}, {'sentence_end': True, 'max_new_tokens': 7}, {
  'sentence_end': False, 'max_new_tokens': 50}


@pytest.mark.parametrize(('entry', 'sample', 'measures', 'memory', 'words', 'other'), [
  ('H-02', CUT, {}, None, 'up to 7 new tokens or the end of its first sentence', 'no cut'),
  ('H-02', WHOLE, {}, None, 'the end of the document; no cut at a sentence', 'of its first'),
  ('H-02', RECORDS, {}, None, 'as long as the records hold it', 'up to'),
  ('H-02', CUT, {'scored_text': 'prefix+continuation'}, None, 'Prefix and continuation together,',
   'The continuation alone,'),
  ('H-13', CUT, {}, None, 'Samples of equal number share their noise', 'as in the paper'),
  ('H-13', CUT, {'coupled': False}, None, 'as in the paper.', 'share their noise (coupled)'),
  ('H-25', CUT, {}, 64, 'A memory of 64 tokens is carried through a document.', 'No memory'),
  ('H-25', CUT, {}, 0, 'No memory is carried', 'carried through')])
def test_readings_follow_the_run(
    row, entry, sample, measures, memory, words, other):
  perplexity = {'word': 9.0, 'token': 3.0, 'tokens': 10, 'words': 5, 'memory_len': memory}
  found = readings([dataclasses.replace(
    row, measures=row.measures | measures, perplexity=perplexity)], **sample)[entry]
  assert words in found and other not in found


def test_the_fields_that_readings_name_are_there(row):
  config, named = Config(), set()
  for text in readings([row], sentence_end=True, max_new_tokens=7).values():
    named |= set(re.findall(r'\b(sample|measure)\.([a-z_]+)', text))
  assert len(named) > 4
  for room, field in named:
    assert hasattr(getattr(config, room), field), f'{room}.{field}'
