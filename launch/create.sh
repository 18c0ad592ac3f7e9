#!/usr/bin/env bash
# Requests a Cloud TPU slice and waits for it, with gcloud alone. `fairjax tpu up` does the same
# and replaces what is taken away.
#
#   launch/create.sh NAME TPU ZONE [FLAG...]
#   launch/create.sh my-run v5litepod-16 us-west4-a --spot
#
# FLAGs go to gcloud compute tpus queued-resources create. For another project, in all scripts:
# export CLOUDSDK_CORE_PROJECT=ID
set -euo pipefail

if (( $# < 3 )); then
  sed -n '5,6p' "$0" >&2
  exit 2
fi
name=$1 tpu=$2 zone=$3
shift 3
project='' last=''
for flag in "$@"; do
  [[ $flag != --project=* ]] || project=$flag
  [[ $last != --project ]] || project=--project=$flag
  last=$flag
done
case $tpu in
  v2-* | v3-* | v4-*) runtime='tpu-ubuntu2204-base' ;;
  v5litepod-*) runtime='v2-alpha-tpuv5-lite' ;;
  v5p-*) runtime='v2-alpha-tpuv5' ;;
  v6e-*) runtime='v2-alpha-tpuv6e' ;;
  *)
    echo "launch/create.sh: no runtime version is known for '$tpu'" >&2
    exit 2
    ;;
esac
gcloud compute tpus queued-resources create "$name" "--zone=$zone" "--accelerator-type=$tpu" \
  "--runtime-version=$runtime" "--node-id=$name" \
  "--labels=managed-by=fairjax,fairjax-name=$name" --valid-until-duration=6h "$@" --async --quiet
echo "delete it with: launch/delete.sh $name $zone $project"
while :; do
  state=$(gcloud compute tpus queued-resources describe "$name" "--zone=$zone" ${project:+"$project"} \
    '--format=value(state.state)')
  echo "$state"
  case $state in
    ACTIVE) break ;;
    SUSPEND* | FAILED | DELETING) exit 1 ;;
  esac
  sleep "${FAIRJAX_POLL_SECONDS:-30}"
done
