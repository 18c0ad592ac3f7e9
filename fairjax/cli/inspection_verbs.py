"""What looks and changes nothing: `attributes`, `step config`, `doctor`."""

import argparse
import importlib.metadata
import os
import pathlib
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping

from fairjax.cli.options import add_shared
from fairjax.cli.verb import Command
from fairjax.errors import UserError, first_line, printable
from fairjax.files import installed_versions
from fairjax.tpu.launch.spec import MOUNTS


def _add_check_options(parser: argparse.ArgumentParser) -> None:
  parser.add_argument('file', help='attribute name or YAML file')
  parser.add_argument('--vocabulary', metavar='DIR', help='also check pieces in a vocabulary')
  parser.add_argument('--lexicon', nargs='+', action='extend', metavar='FILE', default=[],
                      help='also check against word lists of a scorer')


def _list_attributes(options: argparse.Namespace) -> None:
  from fairjax.counterfactual import list_attributes, load_attribute
  from fairjax.counterfactual.attributes import list_crossed
  for name in (*list_attributes(), *list_crossed()):
    attribute = load_attribute(name)
    print(f'{name}: {len(attribute.values)} values, {len(attribute.templates)} templates, '
          f'{len(attribute.subgroups)} subgroups')


def _check_attribute(options: argparse.Namespace) -> int:
  from fairjax.counterfactual import lint_attribute, load_attribute, render_findings
  from fairjax.measure.scorers.lexicon import lexicon_files, read_lexicon
  from fairjax.vocabulary import load_vocabulary
  files = lexicon_files(options.lexicon)
  words = {word.lower() for path in files for word in read_lexicon(path)} if files else None
  findings = lint_attribute(
    load_attribute(options.file), lexicon_words=words,
    vocabulary=load_vocabulary(options.vocabulary) if options.vocabulary else None)
  print(printable('\n'.join(render_findings(findings))))
  return 2 if any(f.level == 'error' for f in findings) else 0


def _config(options: argparse.Namespace) -> None:
  from fairjax.config_io import describe, load_config
  config = load_config(options.config, options.overrides)
  print('\n'.join(describe(config)))
  if config.model.vocab_size:
    from fairjax.model import format_parameters, parameter_counts
    print(format_parameters(parameter_counts(config.model)))


LARGE_PAGES = pathlib.Path('/sys/kernel/mm/transparent_hugepage/enabled')


def _add_options(parser: argparse.ArgumentParser) -> None:
  parser.add_argument('--workdir', metavar='DIR',
                      help='also try to write there, and show where the time of its stages went')
  parser.add_argument('--kernel', action='store_true',
                      help='also compare the attention kernel with blocks on this device, in the '
                      'sizes of the run in --workdir')
  parser.add_argument('--bucket', metavar='gs://BUCKET', help='also try to write there (gcloud)')
  parser.add_argument('--pretrained', metavar='MODEL',
                      help='also rate a published decoder (folder, FILE.gguf, '
                      "hf:ORG/NAME[@REVISION], pip:PACKAGE or an adapter's folder) on a short "
                      'text: a wrong conversion gives fluent nonsense and no error')


def kernel_state(workdir: str | None) -> tuple[list[tuple[str, str]], str]:
  """The comparison of the attention kernel with `blocks`, in a run's sizes, and what is wrong."""
  import jax

  from fairjax.config import Config, ModelConfig
  from fairjax.config_io import from_dict, read_config_json
  from fairjax.model.kernel_check import kernel_fault
  from fairjax.run.kernel_verdict import kernel_branches, verdict_key
  if jax.default_backend() == 'cpu':
    return [('kernel', 'not for cpu')], ''
  config = Config(model=ModelConfig(segment_len=512, memory_len=512))
  if workdir and (saved := pathlib.Path(workdir) / 'config.json').is_file():
    config = from_dict(read_config_json(saved))
  branches = kernel_branches(config)
  key = verdict_key(config.model, branches, jax.local_devices()[0].device_kind)
  fault = kernel_fault(config.model, branches)
  return [('kernel', f'{key}: {"not " if fault else ""}as blocks')], fault and (
    f'the attention kernel cannot be used here: {fault}; runs take model.attention=blocks')


def doctor(options: argparse.Namespace) -> int:
  """Prints versions, devices, memory pages and free space; 2 if a line begins with !."""
  import jax
  found = installed_versions()
  lines = list(found.items())
  lines += [(name, "missing: training needs it: pip install -e '.[train]' in fairjax's folder")
            for name in ('tensorflow', 'tensorflow-text', 'seqio') if name not in found]
  faults = [libtpu_fault(found, importlib.metadata.requires('jax') or ())]
  devices = []
  try:
    devices = jax.devices()
    lines.append(('devices', f'{len(devices)} x {devices[0].device_kind} '
                  f'({jax.default_backend()}), process {jax.process_index()} of '
                  f'{jax.process_count()}'))
  except (RuntimeError, AssertionError) as e:  # another process may hold them
    lines.append(('devices', 'none'))
    faults.append(f'JAX opens no device: {first_line(e)}')
  workdir, bucket = options.workdir, options.bucket
  place = pathlib.Path(workdir or pathlib.Path.cwd())
  free = shutil.disk_usage(_existing(place)).free
  lines.append(('cores, free disk', f'{os.cpu_count()}, {free / 2**30:.0f} GiB'))
  lines.append(('large pages', large_pages(LARGE_PAGES)))
  if workdir:
    faults.append(folder_fault(place))
    lines.append(('workdir', f'{place}: {"not " if faults[-1] else ""}writable'))
    from fairjax.train.goodput import read_goodput
    lines += [(f'[{path.parent.relative_to(place)}]', times.format()) for path in
              sorted(place.rglob('times.jsonl'), key=os.path.getmtime)
              if (times := read_goodput(path.parent))]
  if bucket:
    faults.append(bucket_fault(bucket))
    lines.append(('bucket', f'{bucket}: {"not " if faults[-1] else ""}writable'))
  for state, fault in (
      *([model_state(options.pretrained)] if options.pretrained else []),
      *([kernel_state(workdir)] if options.kernel and devices else [])):
    lines += state
    faults.append(fault)
  for name, value in lines:
    print(f'{name:18s} {value}')
  faults = [fault for fault in faults if fault]
  print(''.join(f'! {fault}\n' for fault in faults), end='')
  return 2 if faults else 0


def model_state(path: str) -> tuple[list[tuple[str, str]], str]:
  """Lines on a published decoder, and what is wrong with it or ''."""
  import jax

  from fairjax.pretrained import load_pretrained
  from fairjax.pretrained.plain_english import MOST_BITS, rate_plain_english
  model = load_pretrained(path, 'lm')
  perplexity, bits = rate_plain_english(model)
  count = sum(x.size for x in jax.tree.leaves(model.params))
  lines = [
    ('model', f"{model.directory}: {model.config['model_type']}, {count:,} parameters in "
     f"{', '.join(model.stored)}"),
    ('vocabulary', f'{model.arch.vocab_size:,} ids, texts of up to {model.max_length:,} tokens'),
    ('plain English', f'perplexity {perplexity:.4g} a token, {bits:.2f} bits a character')]
  fault = ''
  if not bits <= MOST_BITS:
    fault = (f'{path} writes no English: {bits:.2f} bits a character, language models need less '
             f'than {MOST_BITS}: its weights are not those of its config.json or tokenizer, it was '
             'converted wrongly, or it is a model of another language')
  return lines, fault


def libtpu_fault(found: Mapping[str, str], requirements: Iterable[str]) -> str:
  """What is wrong with the installed libtpu (package -> version), or ''.

  >>> libtpu_fault({'jax': '0.10.2', 'libtpu': '0.0.41'}, ['libtpu==0.0.42.*; extra == "tpu"'])
  "libtpu 0.0.41 is not that of jax 0.10.2 (0.0.42.*): pip install 'jax[tpu]==0.10.2'"
  """
  pinned = (re.match(r'libtpu==([\d.*]+)', r) for r in requirements)
  wanted = next((match[1] for match in pinned if match), '')
  have = found.get('libtpu')
  if not have or not wanted:
    return ''
  pattern = re.escape(wanted).replace(r'\.\*', r'(\..*)?')
  if re.fullmatch(pattern, have):
    return ''
  jax = found['jax']
  return f"libtpu {have} is not that of jax {jax} ({wanted}): pip install 'jax[tpu]=={jax}'"


def large_pages(path: pathlib.Path) -> str:
  """How transparent huge pages are set, and what TPUs want."""
  if not path.exists():
    return 'not on this system'
  chosen = re.sub(r'.*\[(\w+)\].*', r'\1', path.read_text().strip())
  hint = '' if chosen == 'always' else (
    f'; TPU v5e and later start slowly unless always: echo always | sudo tee {path}')
  return chosen + hint


def _existing(place: pathlib.Path) -> pathlib.Path:
  """Where a folder is, or will be."""
  place = place.absolute()
  return next(p for p in (place, *place.parents) if p.exists())


def folder_fault(folder: pathlib.Path) -> str:
  """Why a folder cannot be written to, or made, or ''; removes what it makes."""
  trial = _existing(folder) / f'.fairjax-doctor-{os.getpid()}'
  try:
    trial.mkdir()
    trial.rename(trial.with_suffix('.renamed')).rmdir()  # as checkpoints are
  except OSError as e:
    return f'{folder} cannot be written to: {e.strerror}'
  return ''


def bucket_fault(bucket: str) -> str:
  """Why a bucket cannot be written to with gcloud's account, or ''."""
  if bucket.startswith(f'{MOUNTS}/'):  # as workers of `tpu run` have it
    mounted = os.path.ismount('/'.join(bucket.split('/')[:4]))
    return folder_fault(pathlib.Path(bucket)) if mounted else f'{bucket} is not mounted'
  if not re.fullmatch(r'gs://[a-z0-9][-_.a-z0-9]+[a-z0-9](/.*)?', bucket):
    raise UserError(f"--bucket='{bucket}' must be gs://BUCKET")
  if not shutil.which('gcloud'):
    raise UserError('--bucket needs gcloud, which is not installed')
  trial = f'{bucket.rstrip("/")}/fairjax-doctor-{os.getpid()}'
  for argv, text in ((('gcloud', 'storage', 'cp', '-', trial), 'fairjax doctor was here\n'),
                     (('gcloud', 'storage', 'rm', trial), None)):
    done = subprocess.run(argv, input=text, capture_output=True, text=True)
    if done.returncode:
      last = (done.stderr.strip() or 'no reason given').splitlines()[-1]
      return f'{" ".join(argv[:3])} {bucket}: {last}'
  return ''


COMMANDS = {
  'attributes list': Command(lambda parser: None, _list_attributes, 'the built-in attributes'),
  'attributes check': Command(
    _add_check_options, _check_attribute, 'what is wrong with an attribute',
    'fairjax attributes check country'),
  'step config': Command(
    lambda parser: add_shared(parser, 'config', required=True), _config,
    'show every field of a configuration with type and documentation',
    'fairjax step config --config=configs/quickstart.py --config.lm.steps=100'),
  'doctor': Command(_add_options, doctor, example='fairjax doctor'),
}
