"""docs/report_json.md and docs/measures.md describe the files that are written, key by key."""

import json
import re

import pytest
from test_report import ATTRIBUTE, SCORERS, make_records

from fairjax.measure import Perplexity, VaderScorer, measure_records, read_generations
from fairjax.report import KnownBias, ModelRow, collect_evidence, paired_samples, write_report

TYPES = {'text': str, 'number': (int, float), 'list': list, 'object': dict}
# Objects that other pages describe, and objects whose keys are data.
ELSEWHERE = ('rows[].measures', 'known_bias.measures.{model}', 'human', 'config', 'selection')
DATA_KEYS = {'scorers', 'by_value', 'mean_score_by_value', 'mean_cosine_by_value', 'absent',
             'quantiles', 'pairs_below', 'template_subsets'}


def described(page, table=0):
  """Path -> type of a table of the page."""
  tables = re.findall(r'\| path \| type \| what \|\n\|---\|---\|---\|\n((?:\|.*\n)+)', page)
  rows = re.findall(r'^\| `([^`]+)` \| ([^|]+) \| .+ \|$', tables[table], re.M)
  assert len(rows) == len(tables[table].splitlines())
  return dict(rows)


def agrees(value, kind):
  kinds = kind.removesuffix('?').split(' or ')
  if value is None:
    return kind.endswith('?')
  return any(isinstance(value, TYPES[k]) and not isinstance(value, bool) for k in kinds)


def paths(value, known, path=''):
  """Yields (path as described, value) of everything in a file; unknown paths as they are."""
  if path:
    yield path, value
  if path in ELSEWHERE:
    return
  if isinstance(value, list):
    for item in value:
      if isinstance(item, dict | list):
        yield from paths(item, known, f'{path}[]')
  elif isinstance(value, dict):
    place = re.compile(re.escape(path + '.' if path else '') + r'(\{\w+\})')
    data = next((m[1] for name in known if (m := place.match(name))), None)
    for key, item in value.items():
      name = data or key
      yield from paths(item, known, f'{path}.{name}' if path else name)


@pytest.fixture(scope='module')
def report(tmp_path_factory):
  scorers = [*SCORERS, VaderScorer()]
  ppl = Perplexity(nll=100.0, tokens=100, words=50, num_bytes=400).to_dict()
  rows, evidence, records = [], {}, {}
  for name, method, weight in (('baseline', 'baseline', None), ('e', 'embedding', 1.0)):
    records[name] = make_records(0.4, samples=20)
    measures = measure_records(records[name], ATTRIBUTE, scorers, permutations=39)
    rows.append(ModelRow(name, method, weight, ppl, ppl, measures))
    evidence[name] = collect_evidence(read_generations(records[name], ATTRIBUTE), {})
  rows.append(ModelRow('unmeasured', 'sentiment', 1.0))
  folder = tmp_path_factory.mktemp('json')
  config = {'sentiment': {'scorer': 'opinion'}, 'measure': {'scorers': ['opinion', 'vader']}}
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr('fairjax.report.report._draw', lambda *arguments: [])
    write_report(
      folder, rows=rows, attribute='colour', evidence=evidence, config=config, seeds={'run': 1},
      known_bias=KnownBias(0.2, 0.1, 'vader', {'baseline': rows[0].measures}), notes=['n'],
      paired=paired_samples(records, values=['Red', 'Blue']))
  return json.loads((folder / 'report.json').read_text())


def test_every_key_of_the_report_is_described_with_its_type(report, repository):
  page = (repository / 'docs' / 'report_json.md').read_text(encoding='utf-8')
  known = described(page)
  found: dict[str, list] = {}
  perplexity = described(page, 1)
  for path, value in paths(report, known):
    if match := re.match(r'rows\[\]\.(?:subset_)?perplexity\.(.+)', path):
      assert agrees(value, described(page, 1)[match[1]]), path
      perplexity.pop(match[1], None)
      continue
    found.setdefault(path, []).append(value)
  groups = {path for path in found if any(name.startswith((f'{path}.', f'{path}[')) for name in
                                          known)}
  for path, values in found.items():
    if path in known:
      for value in values:
        assert agrees(value, known[path]), (path, value)
    else:
      assert path in groups or path.endswith('[]'), f'{path} is not described'
  assert set(known) - set(found) == set(), 'described, but not in the file'
  assert not perplexity, 'described, but not in the file'


def keys(value, inside=''):
  """Names of keys that are not data."""
  if isinstance(value, list):
    for item in value:
      yield from keys(item)
  elif isinstance(value, dict):
    for key, item in value.items():
      if inside not in DATA_KEYS:
        yield key
      yield from keys(item, '' if inside in DATA_KEYS else key)


def test_every_key_of_the_measures_is_described(report, repository):
  page = (repository / 'docs' / 'measures.md').read_text(encoding='utf-8')
  page = re.sub(r'^```.*?^```', '', page, flags=re.M | re.S)
  names = {name for quoted in re.findall(r'`([^`]+)`', page) for name in re.findall(r'\w+', quoted)}
  used = set(keys(report['rows'][0]['measures']))
  assert 'p_holm' in used and used - names == set()
