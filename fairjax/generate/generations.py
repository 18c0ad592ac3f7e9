"""Recorded generations: samples of all prefixes of an attribute in a file that can be resumed.

`x.manifest.json` beside the file `x.jsonl.gz` holds the identity of the work (model and settings),
which is compared when it is resumed, and whether the file is complete.
"""

import collections
import contextlib
import json
import os
import pathlib
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from jax.sharding import Mesh

from fairjax import processes
from fairjax.config import LogConfig, SampleConfig
from fairjax.config_io import config_differences, to_dict
from fairjax.counterfactual.attributes import Attribute, Prefix
from fairjax.counterfactual.lint import same_inputs
from fairjax.errors import UserError
from fairjax.files import check_place, file_sha256, json_sha256, write_file, write_sealed_json
from fairjax.generate.records import (
  RecordWriter,
  check_complete,
  encode_records,
  manifest_of,
  read_manifest,
  read_records,
  repair,
)
from fairjax.generate.sampler import sample_continuations
from fairjax.inputs import replace_broken
from fairjax.model.decoding import Decoder
from fairjax.progress import Progress
from fairjax.train.watch import Watch
from fairjax.vocabulary import Vocabulary

# Prompts for models behind an API: what to have continued, as JSONL.

def write_prompts(attribute: Attribute, path: str | os.PathLike, *, rewordings: bool = False
                  ) -> int:
  """Writes one line for every template and value (H-12): a record without its `continuation`.

  With `rewordings` those follow.
  """
  # Without `sample` numbers, because samples of an API share no noise: equal numbers would be taken
  # for coupled samples.
  path = pathlib.Path(path)
  if path.exists():
    raise UserError(f'{path} exists and may hold continuations: choose another --output')
  prefixes = attribute.prefixes() + (attribute.reworded_prefixes() if rewordings else [])
  lines = [{'attribute': attribute.name, 'value': value.text, 'subgroup': value.subgroup,
            'template': prefix.template, 'prefix': prefix.text} | _arm(prefix.rewording)
           for prefix in prefixes for value in [attribute.values[prefix.value]]]
  write_file(path, encode_records(lines, compressed=path.suffix == '.gz'))
  return len(lines)


def _arm(rewording: int) -> dict[str, Any]:
  """Fields of a record of the arm `rewording`."""
  return {'arm': 'rewording', 'rewording': rewording} if rewording else {}


def _asked(vocabulary: Vocabulary) -> dict[str, str]:
  """How the model was asked, in records and their identity; nothing for plain continuation."""
  return {'asked': 'chat'} if vocabulary.chat else {}


# Raised when a change of the code changes what is sampled.
SAMPLING_VERSION = 1
_SENTENCE_END = re.compile(r'[.!?]+["\'\u2019\u201d)\]]*')


def generate(
  params: Any,
  decoder: Decoder,
  vocabulary: Vocabulary,
  attribute: Attribute,
  *,
  path: str | os.PathLike,
  model: str,
  sample: SampleConfig,
  prefixes: Sequence[Prefix] | None = None,
  card: Mapping[str, Any] | None = None,
  coupled: bool = True,
  mesh: Mesh | None = None,
  hang: LogConfig | None = None,
  log: Callable[[str], None] = print,
) -> int:
  """Samples continuations of every prefix and records them (H-12, H-13); how many were sampled."""
  # After an interruption the same call samples what is missing; the file then has the bytes of an
  # uninterrupted run at the same `sample.batch_size`, or the same records in another order. A
  # larger `sample.samples` extends a file, so do the rewordings of its prefixes; a complete file is
  # left alone.
  #
  # A continuation is what the vocabulary decodes after the prefix, with the space between the two;
  # by chat too, since the model's answer is begun with the prefix (`Vocabulary.prompt_ids`). It
  # ends at eos at the latest: with pieces the end of the document, with words that of the line.
  #
  # In a group of processes all call this with a mesh of all devices, and the first one writes.
  # `prefixes` are by default the templates of `attribute`; the manifest keeps `card`, the identity
  # of the model. Where a device hangs (`fairjax.train.watch`) the process ends; `hang=None`: never.
  path = pathlib.Path(path)
  prefixes = list(attribute.prefixes() if prefixes is None else prefixes)
  work = Work(path, prefixes, attribute, sample.samples)
  ids = decoder.config.vocab_size
  if ids < vocabulary.size:
    raise UserError(f'the model has {ids} ids, the vocabulary {vocabulary.size}: '
                    'they do not belong together')
  check_inputs(prefixes, attribute, vocabulary, positions=decoder.max_positions,
               new_tokens=sample.max_new_tokens)
  identity = work_identity(
    attribute, prefixes, sample, model=model, coupled=coupled, card=dict(card or {}),
    model_config=decoder.describe(), vocabulary=vocabulary.fingerprint, **_asked(vocabulary))
  opened = open_records(path, identity, work, sample, model, log) if processes.is_first() else None
  complete, done = processes.share(opened)
  if complete is not None:
    return 0
  work.done[:] = done
  counts, start = collections.Counter(), time.monotonic()

  def rate() -> str:
    return f"{counts['tokens'] / max(time.monotonic() - start, 1e-9):,.0f} tokens/s"

  writing = RecordWriter(path) if processes.is_first() else contextlib.nullcontext()
  watching = Watch('sample', path.parent if hang else None, hang or LogConfig())
  with writing as writer, watching as watch, Progress(
      str(path), work.done.size, unit='records', log=log, done=int(work.done.sum())) as progress:
    for new, tokens, at_limit in watch.each('batch', _sample_missing(
        params, decoder, vocabulary, work, sample, coupled=coupled, mesh=mesh, model=model)):
      if writer is not None:
        writer.append(new)
      work.mark_done(new, model)
      counts.update(records=len(new), tokens=tokens, at_limit=at_limit)
      progress.add(len(new), rate)
  if processes.is_first():
    seal_records(identity, work, sample)
  processes.share()
  log(f'{path}: {work.done.size:,} records, {rate()}, {time.monotonic() - start:.1f} s'
      + (f", {counts['at_limit']:,} at the length limit" if counts['at_limit'] else ''))
  return counts['records']


def check_inputs(
  prefixes: Sequence[Prefix], attribute: Attribute, vocabulary: Vocabulary, *,
  positions: int | None = None, new_tokens: int = 1,
) -> None:
  """Refuses prefixes of one template that the model would read as the same ids.

  Their continuations would be equal whatever the model has learned: a distance of 0 without
  meaning. The `UserError` names the template and the values. It also refuses what is longer with
  its `new_tokens` than the model's `positions`.
  """
  if positions is not None:
    longest = max(len(vocabulary.prompt_ids(p.text)) for p in prefixes)
    if longest + new_tokens > positions:
      raise UserError(
        f'the longest prefix of {attribute.name} has {longest} tokens, max_new_tokens={new_tokens} '
        f'follow, and the model has {positions} positions: lower it, or shorten the template')
  templates: dict[tuple[int, int], list[Prefix]] = {}
  for prefix in prefixes:
    templates.setdefault((prefix.template, prefix.rewording), []).append(prefix)
  for (template, _), found in templates.items():
    for group in same_inputs([p.text for p in found], vocabulary):
      names = [attribute.values[found[i].value].text for i in group]
      known = vocabulary.unk_id not in vocabulary.encode(' '.join(names))
      raise UserError(
        f'template {template} of {attribute.name} ({found[group[0]].text!r}) is the same input for '
        f'{", ".join(names)}: '
        + ('change the template or the values' if known else 'the vocabulary does not know them: '
           'raise data.vocab_size, set data.vocabulary=sentencepiece, or take an attribute without '
           'these values'))


def open_records(
  path: pathlib.Path, identity: dict[str, Any], work: 'Work', sample: SampleConfig, model: str,
  log: Callable[[str], None]) -> tuple[int | None, list[list[bool]]]:
  """Makes the file ready: (records if it is complete, `Work.done` for other processes)."""
  manifest_path = manifest_of(path)
  # The file may be that of the prefixes without their rewordings.
  plain = identity | {'prefixes': _digest([p for p in work.prefixes if not p.rewording])}
  manifest = _check_manifest(path, manifest_path, identity, plain)
  if manifest and manifest['complete']:
    check_complete(path)
    if (manifest['samples'] == sample.samples
        and manifest['identity']['prefixes'] == identity['prefixes']):
      log(f"{path}: complete ({manifest['records']} records)")
      return manifest['records'], []
  if removed := repair(path):
    log(f'{path}: removed {removed} bytes of an interrupted append')
  if path.is_file() and path.stat().st_size:
    work.mark_done(read_records(path, repair=True), model)
    log(f'{path}: {work.done.sum():,} of {work.done.size:,} records were there')
  write_sealed_json(manifest_path, {
    'identity': identity, 'samples': sample.samples, 'batch_size': sample.batch_size,
    'complete': False})
  return None, work.done.tolist()


def seal_records(identity: Mapping[str, Any], work: 'Work', sample: SampleConfig) -> None:
  """Says in the manifest that every record is in the file."""
  write_sealed_json(manifest_of(work.path), {
    'identity': identity, 'samples': sample.samples, 'batch_size': sample.batch_size,
    'complete': True, 'records': int(work.done.size), 'records_sha256': file_sha256(work.path)})


def sentence_end_ids(vocabulary: Vocabulary) -> tuple[int, ...]:
  """Ids that end a sentence: one or more of `.!?`, with closing quotes or brackets.

  'U.S.' and 'Mr.' do not count; a full stop that is an id of its own does, after them too.
  """
  return tuple(
    i for i, surface in enumerate(vocabulary.surfaces)
    if _SENTENCE_END.fullmatch(surface.decode('utf-8', errors='replace').strip()))


def even_batches(samples: int, batch_size: int) -> int:
  """The size, at most `batch_size`, that cuts the samples into as few batches, all but full."""
  count = -(-samples // batch_size)
  return -(-samples // count)


def _sample_missing(
  params: Any, decoder: Decoder, vocabulary: Vocabulary, work: 'Work', sample: SampleConfig, *,
  coupled: bool, mesh: Mesh | None, model: str) -> Iterator[tuple[list[dict[str, Any]], int, int]]:
  """Samples what is not recorded, batch by batch: (records, their tokens, texts at the limit)."""
  stop_ids = sentence_end_ids(vocabulary) if sample.sentence_end else ()
  encoded = {key: vocabulary.prompt_ids(work.texts[i]) for key, i in work.index.items()}
  # Other prefixes of the attribute are padded as its own are, and share their program.
  own = [vocabulary.prompt_ids(p.text) for p in work.attribute.prefixes()]
  longest = max(map(len, [*encoded.values(), *own]))
  batch_size = even_batches(sample.samples, sample.batch_size)
  for (template, rewording), values in work.templates.items():
    group = template, rewording  # a rewording shares the noise of its template
    for samples in work.batches(group, batch_size):
      tokens, lengths = sample_continuations(
        params, decoder, [encoded[group, v] for v in values], template=template,
        samples=samples, seed=sample.seed, max_new_tokens=sample.max_new_tokens,
        temperature=sample.temperature, eos_id=vocabulary.eos_id,
        end_ids=vocabulary.end_ids, stop_ids=stop_ids, values=values,
        coupled=coupled, batch_size=batch_size, prefix_len=longest, mesh=mesh)
      if tokens.max(initial=0) >= vocabulary.size:  # argmax of what is not finite
        raise UserError(f'{model} gives a next token no finite probability: its training diverged, '
                        'or what changes it at decoding time is too strong')
      new, sizes = [], []
      for row, value in enumerate(values):
        for column, number in enumerate(samples):
          if not work.done[work.index[group, value], number]:
            ids = tokens[row, column, :lengths[row, column]]
            text = _continuation(vocabulary, encoded[group, value], ids)
            new.append(work.record(group, value, number, text, model) | _asked(vocabulary))
            sizes.append(len(ids))
      yield new, sum(sizes), sizes.count(sample.max_new_tokens)


class Work:
  """Which (template, rewording), value and sample there are, and which of them are recorded.

  Records of a model without noise of ours are not `numbered`: those of a prefix are counted.
  """

  def __init__(
    self, path: pathlib.Path, prefixes: Sequence[Prefix], attribute: Attribute, samples: int, *,
    numbered: bool = True):
    self.path, self.attribute, self.samples = path, attribute, samples
    self.prefixes, self.numbered = prefixes, numbered
    self.index = {((p.template, p.rewording), p.value): i for i, p in enumerate(prefixes)}
    self.texts = [p.text for p in prefixes]
    self.templates: dict[tuple[int, int], list[int]] = {}
    for prefix in prefixes:
      self.templates.setdefault((prefix.template, prefix.rewording), []).append(prefix.value)
    self.done = np.zeros((len(prefixes), samples), bool)

  def batches(self, template: tuple[int, int], batch_size: int) -> Iterator[range]:
    """Batches of sample indices that some value lacks."""
    # Always whole batches: a sample keeps its place among the same neighbours whatever was
    # recorded, so that a resumed run repeats every rounding of an uninterrupted one.
    rows = [self.index[template, v] for v in self.templates[template]]
    for start in range(0, self.samples, batch_size):
      end = min(start + batch_size, self.samples)
      if not self.done[rows, start:end].all():
        yield range(start, end)

  def mark_done(self, records: Iterable[Mapping[str, Any]], model: str) -> None:
    """Marks records, and checks that they are ours."""
    number_of = {text: i for i, text in enumerate(self.attribute.value_texts)}
    for record in records:
      where = record.get('_where', self.path)
      key = (record['template'], record.get('rewording', 0)), number_of.get(record['value'])
      row = self.index.get(key)
      number = (record.get('sample') if self.numbered or row is None
                else int(self.done[row].sum()))
      if (row is None or record['attribute'] != self.attribute.name or record.get('model') != model
          or record['prefix'] != self.texts[row] or number is None or number < 0):
        raise UserError(f'{where}: not a record of this model and these prefixes: remove the file '
                        'and its manifest, or choose another path')
      if number >= self.samples:
        raise UserError(f'{where}: sample {number}, but {self.samples} samples are wanted: ask for '
                        'as many as the file holds, or choose another path')
      if self.done[row, number]:
        raise UserError(f'{where}: sample {number} of this prefix occurs twice: remove the file '
                        'and its manifest and sample again')
      self.done[row, number] = True

  def record(self, template: tuple[int, int], value: int, number: int, continuation: str,
             model: str) -> dict[str, Any]:
    """The record of a sample."""
    entry = self.attribute.values[value]
    return {
      'attribute': self.attribute.name, 'value': entry.text, 'subgroup': entry.subgroup,
      'template': int(template[0]), **({'sample': int(number)} if self.numbered else {}),
      'prefix': self.texts[self.index[template, value]], 'continuation': continuation,
      'model': model} | _arm(template[1])


def _continuation(
  vocabulary: Vocabulary, prefix: Sequence[int], tokens: Sequence[int] | np.ndarray) -> str:
  """Text that the tokens add to the prefix; NUL becomes U+FFFD, as bytes that are no text do."""
  before = vocabulary.decode(prefix)
  text = vocabulary.decode([*prefix, *map(int, tokens)])
  if text.startswith(before):
    return replace_broken(text[len(before):])
  # A byte that does not go on with the last character of the prefix breaks that character too.
  return replace_broken(
    b''.join(vocabulary.surfaces[int(i)] for i in tokens).decode('utf-8', 'replace'))


def work_identity(
  attribute: Attribute, prefixes: Sequence[Prefix], sample: SampleConfig, *, model: str,
  coupled: bool, **source: Any) -> dict[str, Any]:
  """Settings that must not change between the parts of a file; `source` describes the model."""
  settings = {name: value for name, value in to_dict(sample).items()
              if name not in ('samples', 'batch_size', 'heldout_prefixes', 'rewordings')}
  return {
    'version': SAMPLING_VERSION, 'model': model, **source,
    'attribute': attribute.name, 'attribute_fingerprint': attribute.fingerprint,
    'prefixes': _digest(prefixes), 'sample': settings, 'coupled': coupled}


def _digest(prefixes: Sequence[Prefix]) -> str:
  """SHA-256 (hex) of prefixes."""
  return json_sha256(
    [[p.template, p.value, p.text, *([p.rewording] * bool(p.rewording))] for p in prefixes])


def _check_manifest(path: pathlib.Path, manifest_path: pathlib.Path, *identities: dict[str, Any]
                    ) -> dict[str, Any] | None:
  """The manifest of a file of one of these identities, None when there is nothing yet."""
  if not manifest_path.is_file():
    check_place(path)
    if path.exists():
      raise UserError(f'{path} exists but {manifest_path.name} does not, so the model that '
                      'wrote it is unknown: choose another path or remove the file')
    return None
  manifest = read_manifest(path)
  saved, complete = manifest['identity'], manifest['complete']
  # Through JSON, so that tuples and lists compare equal.
  differences = [config_differences(saved, json.loads(json.dumps(i))) for i in identities]
  if all(differences):
    raise UserError(f'{path} was generated otherwise: ' + '; '.join(differences[0])
                    + '; choose another path, or remove it and its manifest')
  if complete and not path.is_file():
    raise UserError(f'{path} is gone, but {manifest_path} says that it is complete: restore it, or '
                    'remove the manifest')
  return manifest
