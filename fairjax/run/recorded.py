"""Records of any language model: sampled, measured, reported, and written in another form."""

import dataclasses
import functools
import itertools
import os
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fairjax.config import MeasureConfig, SampleConfig, parse_threshold
from fairjax.counterfactual import Attribute
from fairjax.errors import UserError, unknown_name
from fairjax.files import FolderLock, atomic_write, refuse_existing
from fairjax.run.next_token import (
  carry_next_token,
  next_token_file,
  read_next_token,
  saved_next_token,
)

if TYPE_CHECKING:
  import numpy as np

  from fairjax.generate.records import Record
  from fairjax.measure import RecordedScorer, Scorer
  from fairjax.measure.content import ContentOptions
  from fairjax.report.page import Distributions

ReadRecords = Callable[[str | os.PathLike], Iterable[dict[str, Any]]]
_CHUNK = 2_000  # records written at a time
_FORMS = ('.jsonl', '.jsonl.gz', '.parquet')


def convert_records(
  source: str | os.PathLike, output: str | os.PathLike, *,
  scores: Sequence[str | os.PathLike] = (), scored: str = 'continuation',
  read: ReadRecords | None = None, log: Callable[[str], None],
) -> int:
  """Writes records in another form, with the scores of score files if wanted."""
  from fairjax.generate import check_complete, read_records
  from fairjax.generate.records import manifest_of
  read = read or read_records
  output = refuse_existing(output)
  for beside in (manifest_of(output), next_token_file(output)):
    if beside.exists():
      raise UserError(f'{beside} belongs to other records and would be taken for that of {output}: '
                      'name another --output')
  if not output.name.endswith(_FORMS):
    raise UserError(f'--output={output} must end in one of {", ".join(_FORMS)}')
  check_complete(source)
  next_token = saved_next_token(source)
  tables = dict(_read_scores(path) for path in scores)
  if len(tables) < len(scores):
    raise UserError(f'two of the score files are of one scorer: {", ".join(map(str, scores))}')
  records = (_scored(record, tables, scored) for record in read(source))
  with atomic_write(output) as file:
    if output.suffix == '.parquet':
      from fairjax.generate.parquet import write_parquet
      count = write_parquet(file, records, {
        'source': pathlib.Path(source).name,
        'scorers': {name: fingerprint for name, (fingerprint, _) in tables.items()}})
    else:
      count = _write_lines(file, records, compressed=output.suffix == '.gz')
  carry_next_token(next_token, output)
  log(f'{output}: {count:,} records'
      + (f', with the scores of {", ".join(tables)}' if tables else ''))
  return count


def _write_lines(file, records: Iterable[Mapping[str, Any]], *, compressed: bool) -> int:
  from fairjax.generate.records import encode_records
  count = 0
  records = iter(records)
  while chunk := list(itertools.islice(records, _CHUNK)):
    try:
      file.write(encode_records([{k: v for k, v in r.items() if k != '_where'} for r in chunk],
                                compressed=compressed))
    except (ValueError, TypeError) as e:  # NaN, half a character, what only Parquet knows
      raise UserError(f'{chunk[0]["_where"]} or one of the {len(chunk) - 1} records after it '
                      f'cannot be written as JSON ({e}): fix it') from None
    count += len(chunk)
  return count


def _read_scores(path: str | os.PathLike) -> tuple[str, tuple[str, dict[bytes, float]]]:
  """(scorer, (fingerprint, text digest -> score)) of a score file."""
  from fairjax.measure.scorers.cache import read_score_file
  from fairjax.measure.similarity import holds_cosines
  if not pathlib.Path(path).is_file():
    raise UserError(f'score file not found: {path}')
  header, known = read_score_file(path)
  if not header:
    raise UserError(f'{path} holds no scores: make it with fairjax measure --keep')
  if holds_cosines(header['scorer']):
    raise UserError(f"{path} holds cosines of continuations and prefixes ({header['scorer']}), not "
                    'scores of texts: --scores takes the files of scorers beside it')
  return header['scorer'], (header['fingerprint'], known)


def _scored(
  record: dict[str, Any], tables: Mapping[str, tuple[str, dict[bytes, float]]], scored: str
) -> dict[str, Any]:
  """A record with its scores."""
  from fairjax.measure.columns import scored_text
  from fairjax.measure.scorers.cache import text_digest
  if not tables:
    return record
  digest, found = text_digest(scored_text(record, scored)), dict(record.get('scores') or {})
  for name, (_, known) in tables.items():
    if digest not in known:
      raise UserError(f'{record["_where"]}: no score of {name} for this text: score these records '
                      'first (fairjax measure --keep), with the same --scored')
    if found.get(name, known[digest]) != known[digest]:
      raise UserError(f'{record["_where"]}: has another score of {name} already, {found[name]!r}')
    found[name] = known[digest]
  return record | {'scores': found}


# Measures of records of any language models, and their report, written as for a run.

def record_contents(
  attributes: Sequence[Attribute], measure: MeasureConfig,
  baseline: 'Iterable[Mapping[str, Any] | Record] | None', *, empty: str, coupled: bool,
) -> 'dict[str, ContentOptions]':
  """Options of the measures of content by attribute; the records `baseline` give the threshold."""
  from fairjax.measure.columns import read_attributes
  from fairjax.measure.content import content_options
  from fairjax.measure.similarity import calibrated_threshold, load_encoder, prefix_cosines
  encoder = load_encoder(measure.encoder) if measure.encoder else None
  thresholds: dict[str, float] = {}
  if baseline is not None:
    share = parse_threshold(measure.similarity_threshold)[1]
    for name, found in read_attributes(baseline, attributes, empty=empty, coupled=coupled).items():
      thresholds[name] = calibrated_threshold(prefix_cosines(
        found, encoder, samples=measure.similarity_samples), share)
  return {a.name: content_options(measure, encoder, None, baseline_threshold=functools.partial(
    thresholds.get, a.name)) for a in attributes}


def report_records(
  files: Sequence[str | os.PathLike], attribute: Attribute,
  scorers: Sequence['Scorer | RecordedScorer'], directory: str | os.PathLike, *,
  baseline: str | None, permutations: int, coupled: bool, content: 'ContentOptions', empty: str,
  read: 'Callable[[str | os.PathLike], Iterable[Record]]', log: Callable[[str], None],
) -> pathlib.Path:
  """Measures files of generations and writes `index.html`, `report.md` and `report.json`."""
  from fairjax.generate import check_complete, records_stem
  from fairjax.measure import read_generations
  from fairjax.measure.gate import check_prompts, prompts_of
  from fairjax.measure.measures import measure_generations
  from fairjax.report import ModelRow, check_folder, write_report
  from fairjax.report.page import collect_distributions
  rows: list[ModelRow] = []
  distributions: dict[str, Distributions] = {}
  prompts: set[tuple[Any, str, str]] = set()
  config = pathlib.Path(directory) / 'config.json'
  if config.is_file() and b'"workdir_format"' in config.read_bytes():
    # Its files of scores would get those of other texts.
    raise UserError(f'{directory} is the workdir of a run: name another --output')
  check_folder(directory)
  for file in files:
    check_complete(file)
  if baseline is not None:  # the first record of a file names its model
    names = [next(iter(read(file))).model or records_stem(file) for file in files]
    if baseline not in names:
      raise unknown_name('baseline', baseline, names)
  for file in files:
    generations = read_generations(read(file), attribute, empty=empty, coupled=coupled)
    name = generations.model or records_stem(file)
    if name in distributions:
      raise UserError(f"{file}: model '{name}' is in an earlier file too: give each model a name "
                      "of its own (field 'model', or the file's name)")
    found = prompts_of(generations)
    check_prompts(found, prompts or found, attribute=attribute.name, files=(file, files[0]))
    prompts = found
    scores: dict[str, np.ndarray] = {}
    own = dataclasses.replace(content, next_token=read_next_token(file, attribute))
    measures = measure_generations(
      generations, scorers, permutations=permutations, coupled=coupled, scores=scores,
      scores_directory=scores_folder(directory, name), content=own, log=log)
    distributions[name] = collect_distributions(
      generations, scores, coupled=measures['coupled'])
    rows.append(ModelRow(name, 'baseline' if name == baseline else 'model', measures=measures))
    reworded = len(generations.reworded or ())
    log(f'{name}: {len(generations):,} records measured'
        + f', {reworded:,} of rewordings' * (reworded > 0))
  with FolderLock(directory, log):
    return write_report(
      directory, rows=rows, attribute=attribute.name, distributions=distributions)


def scores_folder(directory: str | os.PathLike, name: str) -> pathlib.Path:
  """Where the scores of a model are kept: other characters of its name become code points."""
  folder = ''.join(c if c.isalnum() or c in '-_' else f'%{ord(c):x}' for c in name)
  return pathlib.Path(directory) / 'scores' / folder


def sample_pretrained(
  directory: str | os.PathLike, attribute: Attribute, output: str | os.PathLike,
  sample: SampleConfig, *, dtype: str, start: bool, coupled: bool, log: Callable[[str], None],
  rewordings: bool = False, chat: bool = False,
) -> None:
  """Samples a published decoder on all devices (H-13, H-33), and writes its next-token file."""
  import jax

  from fairjax.generate.generations import generate
  from fairjax.model.decoder import CachedDecoder, DecoderConfig
  from fairjax.pretrained import load_pretrained
  from fairjax.pretrained.checkpoint import safe_name
  from fairjax.run.next_token import write_next_token
  if start and chat:
    raise UserError('start and chat exclude each other: the chat template says how a text begins')
  devices, mesh = jax.devices(), None  # of all processes
  place: jax.sharding.Sharding = jax.sharding.SingleDeviceSharding(devices[0])
  if len(devices) > 1:
    mesh = jax.make_mesh((len(devices),), ('data',), axis_types=(jax.sharding.AxisType.Auto,))
    place = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
  model = load_pretrained(directory, 'lm', dtype=dtype, shardings=place)
  assert isinstance(model.arch, DecoderConfig)
  vocabulary = model.files.vocabulary(start=start, chat=chat)
  prefixes = attribute.prefixes() + (attribute.reworded_prefixes() if rewordings else [])
  parts = (model.params, CachedDecoder(model.arch, vocabulary.silent_ids), vocabulary, attribute)
  generate(*parts, path=output, model=safe_name(model.name), sample=sample,
           card={'fingerprint': model.fingerprint}, coupled=coupled, prefixes=prefixes, mesh=mesh,
           log=log)
  write_next_token(output, *parts, prefixes=attribute.prefixes(), mesh=mesh, log=log)
