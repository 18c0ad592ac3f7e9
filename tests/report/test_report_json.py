"""report.json and records keep their schemas, which name every key."""

import json

import pytest
from test_report import ATTRIBUTE, SCORERS, make_records

from fairjax.cli.main import main
from fairjax.errors import UserError
from fairjax.generate import read_records
from fairjax.measure import VaderScorer, measure_records, perplexities, read_generations
from fairjax.report import KnownBias, ModelRow, write_report
from fairjax.report.differences import SCHEMA
from fairjax.report.page import collect_distributions
from fairjax.report.sections import paired_samples


@pytest.fixture(scope='module')
def report(tmp_path_factory):
  scorers = [*SCORERS, VaderScorer()]
  ppl = perplexities(100.0, tokens=100, words=50, num_bytes=400)
  rows, distributions, records = [], {}, {}
  for name, method, weight in (('baseline', 'baseline', None), ('e', 'embedding', 1.0)):
    records[name] = make_records(0.4, samples=20)
    measures = measure_records(records[name], ATTRIBUTE, scorers, permutations=39)
    rows.append(ModelRow(name, method, weight, ppl, ppl, measures))
    distributions[name] = collect_distributions(
      read_generations(records[name], ATTRIBUTE), {}, coupled=True)
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


def test_the_report_and_records_keep_their_schemas(report, check_keys, capsys):
  jsonschema = pytest.importorskip('jsonschema')
  schemas = {}
  for of in ('record', 'report'):
    assert main(['records', 'schema', of]) == 0
    schemas[of] = jsonschema.Draft202012Validator(json.loads(capsys.readouterr().out))
    schemas[of].check_schema(schemas[of].schema)
  check_keys(report, 'report')
  record = make_records(0.4, samples=1)[0]
  schemas['record'].validate(record)
  for wrong in (report | {'schema': SCHEMA - 1}, report | {'rows': []},
                {k: v for k, v in report.items() if k != 'ledger'}):
    assert not schemas['report'].is_valid(wrong)
  for field, value in (('value', 3), ('template', 0.5), ('sample', '1'), ('scores', 0.5)):
    wrong = record | {field: value}
    assert not schemas['record'].is_valid(wrong)
    with pytest.raises(UserError, match=field):  # what the schema refuses, the reader refuses
      list(read_records([wrong]))
