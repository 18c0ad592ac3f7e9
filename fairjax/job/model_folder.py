"""A trained model as a folder of fairjax's own: what `fairjax export` writes and `import` reads.

    config.json              the configuration of the run, versions, and the card under `export`
    model.safetensors        parameters under fairjax's names, in their own dtype, padding included
    vocabulary/              as `fairjax.vocabulary` writes it: byte for byte that of the run
    README.md                the model card

The card holds the name of the model, its identity, the digests of parameters and vocabulary and
the size. No file is executed when it is read.
"""

import dataclasses
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fairjax import processes
from fairjax.config import Config, ModelConfig
from fairjax.config_files import from_dict, read_config_json, read_saved, to_dict
from fairjax.errors import Damaged, UserError
from fairjax.files import atomic_folder, refuse_existing, write_json
from fairjax.job.exchange import check_fields
from fairjax.job.main_job import Job
from fairjax.job.model_facts import METHODS, known_names, measured_rows, origin_rows
from fairjax.versions import installed_versions
from fairjax.vocabulary import Vocabulary, load_vocabulary

WEIGHTS, CONFIG, VOCABULARY, CARD = 'model.safetensors', 'config.json', 'vocabulary', 'README.md'
_FORMAT = 1  # of the folder
# Beyond what weights depend on, their padding does on this.
_PADDING = ('vocab_multiple',)


@dataclasses.dataclass(frozen=True)
class ModelFolder:
  """What such a folder holds, checked.

  Attributes:
    config: of the run that trained it, with the size of its vocabulary.
    card: the entry `export` of config.json.
    vocabulary: of the model.
    params: NumPy parameters.
  """

  config: Config
  card: Mapping[str, Any]
  vocabulary: Vocabulary
  params: Any


def export_folder(
  job: Job, *, model: str, output: str, languages: Sequence[str] = (), license: str | None = None,
  datasets: Sequence[str] = (),
) -> None:
  """Writes a trained model as a folder. A group of processes calls it together.

  Args:
    job: of the workdir.
    model: its name, e.g. `baseline` or `country-embedding-10`.
    output: the folder; must not exist.
    languages: of the training text, codes; (): known of the corpora that fairjax brings.
    license: identifier for the model card; None: the card states none.
    datasets: names for the model card; (): as `languages`.

  Raises:
    UserError: unknown or unfinished model, an output that exists, measures of other parameters, or
      something that no model card can hold.
  """
  from fairjax.model import parameter_counts, parameter_words
  from fairjax.report.model_card import front_matter, model_card
  from fairjax.train import done_card
  refuse_existing(output)
  language, dataset = known_names(job.config.data)
  tags = ['fairjax', 'jax', 'transformer-xl', 'fairness', 'counterfactual-sentiment-bias']
  params, found = job.params(model), next(m for m in job.models if m.name == model)
  rows = measured_rows(job, found)
  front = front_matter(
    languages=languages or language, license=license,
    datasets=datasets or dataset, tags=tags,
    metrics=['perplexity', *(['individual-fairness', 'group-fairness'] * bool(rows))])
  done = done_card(found.directory)
  assert done is not None  # else there are no parameters
  counts, vocabulary = parameter_counts(job.model_config), job.prepared.vocabulary
  tensors = to_tensors(params)  # a collective in a group
  if processes.is_first():
    card = {
      'format': _FORMAT, 'model': model, 'identity': done['identity'], 'digest': done['digest'],
      'step': done['step'], 'summary': done['summary'], 'parameters': counts,
      'vocabulary': {'kind': vocabulary.kind, 'size': vocabulary.size,
                     'fingerprint': vocabulary.fingerprint}}
    with atomic_folder(output) as folder:
      write_tensors(folder / WEIGHTS, tensors)
      vocabulary.save(folder / VOCABULARY)
      write_json(folder / CONFIG, {'config': to_dict(job.config), 'versions': installed_versions(),
                                   'export': card})
      text = model_card(
        front, title=f'{job.config.name}: {model}',
        what=f'Transformer-XL with {parameter_words(counts)}; {METHODS[found.method]}. Trained '
        'with fairjax, which implements Huang et al. 2020 (arXiv:1911.03064).',
        usage=f'fairjax import --config={CONFIG} --workdir=DIR --from=.   # then: sample, measure',
        origin=origin_rows(job, found, done), rows=rows,
        validation={k: v for k, v in done['summary'].items() if k in ('loss', 'perplexity')},
        files=[(WEIGHTS, f'{len(tensors)} tensors, digest {done["digest"]}'),
               (CONFIG, 'configuration, versions, identity; JSON, not executed'),
               (f'{VOCABULARY}/{vocabulary.filename}',
                f'{vocabulary.kind}, {vocabulary.size} ids, SHA-256 {vocabulary.fingerprint}')])
      (folder / CARD).write_text(text, encoding='utf-8')
    job.log(f'[export] {model}: {len(tensors)} tensors, configuration, vocabulary and model card '
            f'in {output}')
  processes.share()


def import_folder(job: Job, found: ModelFolder, source: str) -> dict[str, float]:
  """Puts the model of a folder in the place of step 1, with its vocabulary.

  Args:
    job: a workdir without a language model.
    found: of `read_matching` for the model of its config.
    source: folder that it was read from, for messages.

  Returns:
    Validation loss and perplexity.

  Raises:
    UserError: the vocabulary of the workdir is another one.
  """
  from fairjax.train import StopSignal, params_digest
  place = job.workdir / 'data' / 'vocabulary'
  if processes.is_first():
    if not place.exists():
      found.vocabulary.save(place)
  processes.share()
  if job.prepared.vocabulary != found.vocabulary:
    raise UserError(f'{source} has the vocabulary {found.vocabulary!r}, {place} is '
                    f'{job.prepared.vocabulary!r}: import into a workdir whose data are not '
                    'prepared yet; it takes over the vocabulary')
  card = found.card
  made = job.curriculum(StopSignal()).import_lm(found.params, source={
    'form': 'fairjax', 'model': card['model'], 'digest': card['digest'],
    'identity': card['identity']})
  digest = params_digest(job.params(job.models[0].name))
  if digest != card['digest']:
    raise Damaged(f'{job.workdir / "lm"} holds parameters with digest {digest[:12]}, not '
                  f'{card["digest"][:12]} as {source}: remove it and import again')
  job.log(f'[lm] imported from {source} ({card["model"]}, digest {digest[:12]}): validation '
          f'perplexity {made["perplexity"]:.4g} by token')
  return made


def read_matching(wanted: ModelConfig, source: str) -> ModelFolder:
  """`read_folder`, compared with the model of a run; writes nothing.

  Raises:
    UserError: as `read_folder`; or the configured model is another one.
  """
  found = read_folder(source)
  check_fields(wanted, found.config.model, _PADDING)
  return found


def read_folder(directory: str | os.PathLike) -> ModelFolder:
  """Reads and checks a folder that `export_folder` wrote; nothing in it is executed.

  Raises:
    Damaged: parameters or vocabulary are not those that were exported.
    UserError: a file is missing or is something else; tensors that the configuration does not have,
      lacks, or has in another shape or dtype (they are named).
  """
  directory = pathlib.Path(directory)
  path = directory / CONFIG
  if not path.is_file():
    raise UserError(f'{directory} holds no exported model: {CONFIG} is missing (fairjax export '
                    '--form=fairjax writes such a folder)')
  try:
    card = read_saved(path)['export']
    config = from_dict(read_config_json(path))
    format, digest = card['format'], card['digest']
    saved = card['vocabulary']['fingerprint']
    card['model'], card['identity']
  except (KeyError, TypeError) as e:
    raise UserError(f'{path} is no configuration of an exported model ({e} is missing): export it '
                    'again') from None
  except UserError as e:
    raise UserError(f'{path}: {e}') from None
  if format != _FORMAT:
    raise UserError(f'{path} has format {format!r}, this version reads {_FORMAT}: read it with the '
                    'version that it names')
  vocabulary = load_vocabulary(directory / VOCABULARY)
  if vocabulary.fingerprint != saved:
    raise Damaged(f'{directory / VOCABULARY} has fingerprint {vocabulary.fingerprint[:12]}, {path} '
                  f'names {str(saved)[:12]}: copy the folder again')
  config = dataclasses.replace(
    config, model=dataclasses.replace(config.model, vocab_size=vocabulary.size))
  params = to_params(read_tensors(directory / WEIGHTS), config.model,
                     where=str(directory / WEIGHTS))
  _check_digest(params, digest, directory / WEIGHTS)
  return ModelFolder(config, card, vocabulary, params)


def to_tensors(params: Any) -> dict[str, np.ndarray]:
  """Parameters by name, e.g. `layers.query`; of a group of processes all call it together."""
  import jax

  from fairjax.train.sharding import to_host

  # In C order: safetensors writes the memory of an array as it lies, whatever its strides.
  return {_name(path): np.ascontiguousarray(to_host(leaf)).reshape(leaf.shape)
          for path, leaf in jax.tree_util.tree_leaves_with_path(params)}


def to_params(tensors: Mapping[str, np.ndarray], model: ModelConfig, *, where: str) -> Any:
  """The inverse of `to_tensors`.

  Args:
    tensors: by name.
    model: with its vocabulary size.
    where: the file, for messages.

  Raises:
    UserError: tensors that lack, are too many, or of another shape or dtype; they are named.
  """
  import jax

  from fairjax.config import MeshConfig
  from fairjax.train import make_mesh, params_template
  template = params_template(model, make_mesh(MeshConfig()))
  wanted = {_name(path): (leaf.dtype.name, leaf.shape)
            for path, leaf in jax.tree_util.tree_leaves_with_path(template)}
  saved = {name: (tensor.dtype.name, tensor.shape) for name, tensor in tensors.items()}

  def words(found):
    return 'nothing' if found is None else f'{found[0]} {found[1]}'

  wrong = [f'{name} is {words(saved.get(name))} instead of {words(wanted.get(name))}'
           for name in sorted(saved.keys() | wanted.keys()) if saved.get(name) != wanted.get(name)]
  if wrong:
    more = f' and {len(wrong) - 4} more' if len(wrong) > 4 else ''
    raise UserError(f'{where} does not fit its configuration: {"; ".join(wrong[:4])}{more}')
  return jax.tree_util.tree_map_with_path(lambda path, _: tensors[_name(path)], template)


def write_tensors(path: pathlib.Path, tensors: Mapping[str, np.ndarray]) -> None:
  """Writes contiguous arrays of any floating-point dtype, bfloat16 too."""
  from safetensors.numpy import save_file
  save_file(dict(tensors), path)


def read_tensors(path: pathlib.Path) -> dict[str, np.ndarray]:
  """Reads a safetensors file.

  Raises:
    UserError: it is missing or no such file.
  """
  from safetensors import SafetensorError
  from safetensors.numpy import load_file
  try:
    return load_file(path)
  except (OSError, SafetensorError, KeyError, TypeError) as e:
    raise UserError(f'{path} cannot be read as safetensors ({e}): copy the folder again') from None


def _check_digest(params: Any, digest: str, path: pathlib.Path) -> None:
  from fairjax.train import params_digest
  found = params_digest(params)
  if found != digest:
    raise Damaged(f'{path} is damaged: its parameters have digest {found[:12]}, exported were '
                  f'{str(digest)[:12]}: copy the folder again')


def _name(path: tuple[Any, ...]) -> str:
  import jax
  return jax.tree_util.keystr(path, simple=True, separator='.')
