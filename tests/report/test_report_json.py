"""docs/report_json.md and docs/measures.md name every key of the files that are written."""

import json
import re

import pytest
from test_report import ATTRIBUTE, SCORERS, make_records

from fairjax.cli.main import main
from fairjax.errors import UserError
from fairjax.generate import parse_record
from fairjax.measure import Perplexity, VaderScorer, measure_records, read_generations
from fairjax.report import KnownBias, ModelRow, collect_distributions, paired_samples, write_report
from fairjax.report.differences import SCHEMA

# Objects whose keys are data, such as names of scorers, and objects that other pages describe.
IN_MEASURES = {'scorers', 'by_value', 'mean_score_by_value', 'mean_cosine_by_value', 'absent',
               'quantiles', 'pairs_below', 'template_subsets'}
IN_REPORT = {'verdicts', 'prefixes', 'seeds', 'versions', 'individual_fairness',
             'group_fairness'}


@pytest.fixture(scope='module')
def report(tmp_path_factory):
  scorers = [*SCORERS, VaderScorer()]
  ppl = Perplexity(nll=100.0, tokens=100, words=50, num_bytes=400).to_dict()
  rows, distributions, records = [], {}, {}
  for name, method, weight in (('baseline', 'baseline', None), ('e', 'embedding', 1.0)):
    records[name] = make_records(0.4, samples=20)
    measures = measure_records(records[name], ATTRIBUTE, scorers, permutations=39)
    rows.append(ModelRow(name, method, weight, ppl, ppl, measures))
    distributions[name] = collect_distributions(read_generations(records[name], ATTRIBUTE), {})
  rows.append(ModelRow('unmeasured', 'sentiment', 1.0))
  folder = tmp_path_factory.mktemp('json')
  config = {'sentiment': {'scorer': 'opinion'}, 'measure': {'scorers': ['opinion', 'vader']}}
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr('fairjax.report.report._draw', lambda *arguments: [])
    write_report(
      folder, rows=rows, attribute='colour', distributions=distributions,
      config=config, seeds={'run': 1},
      known_bias=KnownBias(0.2, 0.1, 'vader', {'baseline': rows[0].measures}), notes=['n'],
      paired=paired_samples(records, values=['Red', 'Blue']))
  return json.loads((folder / 'report.json').read_text())


def keys(value, data, inside=''):
  """Names of keys that are not data; objects of `data` are left out or hold names."""
  if isinstance(value, list):
    for item in value:
      yield from keys(item, data)
  elif isinstance(value, dict):
    for key, item in value.items():
      if inside not in data:
        yield key
      yield from keys(item, data, '' if inside in data else key)


@pytest.mark.parametrize(('page', 'data', 'some'), [
  ('report_json.md', IN_REPORT, {'tone', 'paired_samples', 'judged_by_others', 'bits_per_byte'}),
  ('measures.md', IN_MEASURES, {'p_holm', 'std_error'})])
def test_every_key_is_described(report, repository, page, data, some):
  text = re.sub(r'^```.*?^```', '', (repository / 'docs' / page).read_text(encoding='utf-8'),
                flags=re.M | re.S)
  names = {name for quoted in re.findall(r'`([^`]+)`', text) for name in re.findall(r'\w+', quoted)}
  if page == 'measures.md':
    found = report['rows'][0]['measures']
  else:
    found = report | {'config': {}, 'selection': {}, 'known_bias': report['known_bias'] | {
      'measures': {}}, 'rows': [row | {'measures': {}} for row in report['rows']],
      'paired_samples': [sample | {'continuations': {}} for sample in report['paired_samples']]}
  used = set(keys(found, data))
  assert used - names == set() and some <= used


def test_the_report_and_records_keep_their_schemas(report, capsys):
  jsonschema = pytest.importorskip('jsonschema')
  schemas = {}
  for of in ('record', 'report'):
    assert main(['records', 'schema', of]) == 0
    schemas[of] = jsonschema.Draft202012Validator(json.loads(capsys.readouterr().out))
    schemas[of].check_schema(schemas[of].schema)
  schemas['report'].validate(report)
  record = make_records(0.4, samples=1)[0]
  schemas['record'].validate(record)
  for wrong in (report | {'schema': SCHEMA - 1}, report | {'rows': []},
                {k: v for k, v in report.items() if k != 'ledger'}):
    assert not schemas['report'].is_valid(wrong)
  for field, value in (('value', 3), ('template', 0.5), ('sample', '1'), ('scores', 0.5)):
    wrong = record | {field: value}
    assert not schemas['record'].is_valid(wrong)
    with pytest.raises(UserError, match=field):  # what the schema refuses, the reader refuses
      parse_record(json.dumps(wrong), 'r:1')
