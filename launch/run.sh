#!/usr/bin/env bash
# Ships the code to every worker of a slice and starts a command of fairjax there, detached; with
# gcloud alone. `fairjax tpu run` does the same, repeats what fails and follows the command.
#
#   launch/run.sh NAME ZONE COMMAND...
#   launch/run.sh my-run us-west4-a run --config=configs/wmt19.py --workdir=/mnt/disk/run --distributed=auto
set -euo pipefail

if (( $# < 3 )); then
  sed -n '5,6p' "$0" >&2
  exit 2
fi
name=$1 zone=$2
shift 2
if [[ " $*" == *gs://* ]]; then
  echo "launch/run.sh: it mounts no bucket: gs:// works with fairjax tpu run" >&2
  exit 2
fi
cd "$(dirname "$0")/.."
archive=fairjax-launch-$name.tar.gz
code=fairjax-launch/$name/code
on_all=("--zone=$zone" --node=all --worker=all)

launch/pack.sh ".launch/$name/$archive"
gcloud compute tpus queued-resources scp ".launch/$name/$archive" "$name:" \
  "${on_all[@]}" --quiet
gcloud compute tpus queued-resources ssh "$name" "${on_all[@]}" \
  "--command=bash $code/launch/worker.sh running $name 2>/dev/null || { rm -rf $code && mkdir -p $code && tar -xzf $archive -C $code && bash $code/launch/worker.sh setup $name; }" \
  --quiet
# Quoted for one shell, that of the worker.
words=$(printf ' %q' env JAX_COORDINATOR_PORT=8476 fairjax "$@")
gcloud compute tpus queued-resources ssh "$name" "${on_all[@]}" \
  "--command=bash $code/launch/worker.sh start $name 20$words" --quiet
echo "see how it stands: gcloud compute tpus queued-resources ssh $name --zone=$zone --node=all --worker=all --command='bash $code/launch/worker.sh status $name'"
