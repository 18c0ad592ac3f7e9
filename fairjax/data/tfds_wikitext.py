"""WikiText-2 and WikiText-103 as TFDS datasets: one example is one article, `{'text': string}`.

An article has its blank lines, that before the title first. Articles keep their order: keys are
numbers and nothing is shuffled. Import this module before
`tfds.load('fairjax_wikitext103:2.0.0', data_dir=...)`, or read through `build_wikitext`.
"""

import contextlib
import functools
import hashlib
import io
import os
import pathlib
from collections.abc import Callable, Iterator, Mapping

os.environ.setdefault('NO_GCE_CHECK', 'true')  # otherwise tfds asks the network who it runs on

import seqio  # noqa: E402
import tensorflow as tf  # noqa: E402
import tensorflow_datasets as tfds  # noqa: E402

from fairjax.data.documents import read_documents  # noqa: E402
from fairjax.data.wikitext import CORPORA, SPLITS, count_wikitext, fetch_wikitext, find_wikitext
from fairjax.errors import UserError  # noqa: E402
from fairjax.files import write_json  # noqa: E402
from fairjax.inputs import open_input  # noqa: E402
from fairjax.vocabulary import read_json  # noqa: E402

VERSION = '2.0.0'  # since 2.0.0 with blank lines
COUNTS = 'fairjax_counts.json'
_CITATION = """@inproceedings{merity2017pointer,
  title={Pointer Sentinel Mixture Models},
  author={Merity, Stephen and Xiong, Caiming and Bradbury, James and Socher, Richard},
  booktitle={ICLR}, year={2017}}"""


class _Wikitext(  # type: ignore[call-arg]  # TFDS declares no skip_registration
  tfds.core.GeneratorBasedBuilder, skip_registration=True,
):
  """Articles of the files in the manual folder."""

  VERSION = tfds.core.Version(VERSION)
  MANUAL_DOWNLOAD_INSTRUCTIONS = (
    'Put wiki.train.tokens, wiki.valid.tokens and wiki.test.tokens (plain or .gz) or the original '
    'zip into the manual folder.')
  corpus: str

  def _info(self) -> tfds.core.DatasetInfo:
    return self.dataset_info_from_configs(
      description=f'{CORPORA[self.corpus].stem}, tokenised, one article per example.',
      features=tfds.features.FeaturesDict({'text': tfds.features.Text()}),
      homepage='https://www.salesforce.com/blog/the-wikitext-long-term-dependency-language-'
               'modeling-dataset/',
      citation=_CITATION, license='CC BY-SA 3.0', disable_shuffling=True)

  def _split_generators(self, dl_manager: tfds.download.DownloadManager):
    manual = pathlib.Path(dl_manager.manual_dir)
    files = find_wikitext(
      self.corpus, manual, unpack_to=pathlib.Path(self.data_dir).parent / 'unpacked')
    return {split: self._generate_examples(files[split]) for split in SPLITS}

  def _generate_examples(self, path):
    for key, text in enumerate(read_documents([path], layout='wikitext', blank_lines=True)):
      yield key, {'text': text}


class FairjaxWikitext103(_Wikitext):
  """WikiText-103: 28,475 / 60 / 60 articles."""

  corpus = 'wikitext103'


class FairjaxWikitext2(_Wikitext):
  """WikiText-2: 600 / 60 / 60 articles."""

  corpus = 'wikitext2'


_BUILDERS = {'wikitext103': FairjaxWikitext103, 'wikitext2': FairjaxWikitext2}


def find_dataset(corpus: str, tfds_dir: str | os.PathLike) -> tfds.core.DatasetBuilder | None:
  """The dataset in a folder, if it was finished there."""
  builder = _BUILDERS[corpus](data_dir=pathlib.Path(tfds_dir).expanduser())
  finished = builder.info.splits and (pathlib.Path(builder.data_dir) / COUNTS).is_file()
  return builder if finished else None


def build_wikitext(
  corpus: str, tfds_dir: str | os.PathLike, *, manual_dir: str | os.PathLike = '',
  download: bool = False, sha256: str = '', num_shards: int | None = None,
  log: Callable[[str], None] = print,
) -> tfds.core.DatasetBuilder:
  """Opens a dataset; a new one is made first, and its counts compared with the published."""
  tfds_dir = pathlib.Path(tfds_dir).expanduser()
  builder = _BUILDERS[corpus](data_dir=tfds_dir)
  folder = pathlib.Path(builder.data_dir)
  unpacked = folder.parent / 'unpacked'
  if found := find_dataset(corpus, tfds_dir):
    files = {}
    with contextlib.suppress(UserError):  # TFDS needs its sources no longer: they may be gone
      files = find_wikitext(corpus, manual_dir, unpack_to=unpacked) if manual_dir else {}
    if files and _digests(files) != read_json(folder / COUNTS)['sha256']:
      raise UserError(f'{folder} was made of other files than those in {manual_dir}: delete it to '
                      'make it anew, or name another data.tfds_dir')
    return found
  if download:
    manual_dir = fetch_wikitext(
      corpus, tfds_dir / 'downloads', sha256=sha256, log=log).parent
  elif not manual_dir:
    raise UserError(f'no dataset {builder.name}:{VERSION} in {tfds_dir}, and nothing to make it '
                    'of: set data.manual_dir to the folder of the official files, or '
                    'data.download=True')
  files = find_wikitext(
    corpus, manual_dir, unpack_to=unpacked, sha256='' if download else sha256)
  counts = {}
  for split in SPLITS:
    counts[split], line = count_wikitext(corpus, split, files[split])
    log(f'[data] {line}')
  if not builder.info.splits:
    tfds.disable_progress_bar()
    with contextlib.redirect_stdout(io.StringIO()):  # it says that it downloads
      builder.download_and_prepare(download_config=tfds.download.DownloadConfig(
        manual_dir=files['train'].parent, num_shards=num_shards))
  for split in SPLITS:
    written = builder.info.splits[split].num_examples
    if written != counts[split]['articles']:
      raise UserError(f'{folder} holds {written} {split} articles of '
                      f'{counts[split]["articles"]}: delete the folder to make it anew')
  write_json(folder / COUNTS, counts | {'sha256': _digests(files)})
  return builder


def _digests(files: Mapping[str, pathlib.Path]) -> dict[str, str]:
  """Split -> SHA-256 (hex) of its text."""
  return {split: _digest(path, path.stat().st_mtime_ns) for split, path in files.items()}


@functools.cache  # by the time of the file's last change
def _digest(path: pathlib.Path, modified: int) -> str:
  with open_input(path) as file:
    return hashlib.file_digest(file, 'sha256').hexdigest()


def tfds_texts(name_and_dir: tuple[str, str], split: str) -> Iterator[str]:
  """Texts of a TFDS dataset in their order, read through seqio."""
  name, folder = name_and_dir
  source = seqio.TfdsDataSource(name, tfds_data_dir=folder, splits=(split,), read_only=True)
  examples = source.get_dataset(split, shuffle=False)
  try:
    for example in examples.prefetch(16).as_numpy_iterator():
      yield example['text'].decode('utf-8')
  except tf.errors.OpError as e:
    place = pathlib.Path(folder) / name.replace(':', '/')
    for path in sorted(place.glob(f'*-{split}.tfrecord-*')):
      check_tfrecords(path)  # its error names the file
    raise UserError(f'{name} in {folder} cannot be read ({_first_line(e)}): '
                    'delete the dataset to make it anew') from None


def check_tfrecords(path: str | os.PathLike) -> int:
  """Reads a TFRecord file to its end and returns the number of records."""
  # TensorFlow does not notice a file that is cut off within the first 12 bytes of a record, or
  # between two: the caller compares the number.
  try:
    return sum(len(batch) for batch in tf.data.TFRecordDataset(os.fspath(path)).batch(64))
  except tf.errors.OpError as e:
    raise UserError(f'{path}: {_first_line(e)}: make or fetch the file again') from None


def _first_line(error: tf.errors.OpError) -> str:
  return error.message.partition('\n')[0].rpartition('}} ')[2].partition(' [Op:')[0]
