#!/usr/bin/env bash
# Writes seqio's offline cache of a prepared corpus with Apache Beam, in an environment of its own.
#
#   launch/cache_tasks.sh DATA CACHE [OPTION...]
#
#   DATA    folder that `fairjax step data` made (the folder `data` of the workdir)
#   CACHE   folder for the cache; give it to seqio.add_global_cache_dirs
#   OPTION  options of seqio_cache_tasks, e.g.
#     --pipeline_options=--runner=DirectRunner,--direct_num_workers=8,--direct_running_mode=multi_processing
#     --pipeline_options=--runner=DataflowRunner,--project=P,--region=R,--temp_location=gs://B/tmp,--setup_file=./setup.py
#
# On Dataflow the workers must see DATA and the corpus' files under the same paths (a shared disk or
# a container image), and need FAIRJAX_CACHE_DATA in their environment (a container image again):
# the readers open local files. A single machine needs no Beam: fairjax step data --seqio-cache=CACHE.
#
# The environment is $FAIRJAX_BEAM_VENV (default: .venv-beam in the current folder); it is made at
# the first call. It cannot be the one that trains: Beam needs protobuf below 7, SentencePiece above
# 0.2.2 needs 7.
set -euo pipefail

if (( $# < 2 )); then
  sed -n '4,10p' "$0" >&2
  exit 2
fi
root=$(cd "$(dirname "$0")/.." && pwd)
data=$(cd "$1" && pwd)
cache=$2
shift 2
venv=${FAIRJAX_BEAM_VENV:-$PWD/.venv-beam}

if [[ ! -e $venv/fairjax-ready ]]; then
  "${PYTHON:-python3}" -m venv "$venv"
  "$venv/bin/pip" install --quiet 'apache-beam[tfrecord]==2.77.*' 'seqio==0.0.20' \
    'sentencepiece<=0.2.2' 'protobuf==6.33.*' 'importlib_resources>=6' 'PyYAML>=6.0.2,<7' \
    'ml-collections>=1.1,<2' 'msgspec>=0.19,<1' 'backports.zstd>=1,<2'
  touch "$venv/fairjax-ready"
fi

if [[ -f $root/__init__.py ]]; then  # installed: the packages beside it are not for Beam
  mkdir -p "$venv/code"
  ln -sfn "$root" "$venv/code/fairjax"
  root=$(cd "$venv/code" && pwd)
fi

source=$("$venv/bin/python" -c '
import json, pathlib, sys
print(json.loads((pathlib.Path(sys.argv[1]) / "manifest.json").read_text())["inputs"]["source"])
' "$data")

FAIRJAX_CACHE_DATA=$data NO_GCE_CHECK=true PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH} \
  exec "$venv/bin/seqio_cache_tasks" --module_import=fairjax.data.seqio_cache \
  "--tasks=fairjax_$source" "--output_cache_dir=$cache" --min_shards=16 "$@"
