#!/usr/bin/env bash
# Does the same on every host of an instance group of Compute Engine, all at a time.
#
#   launch/on_hosts.sh ssh GROUP --zone=ZONE [FLAG...] -- COMMAND
#   launch/on_hosts.sh scp GROUP --zone=ZONE [FLAG...] -- FILE...
#
# The hosts are asked from the group. FLAGs go to gcloud compute ssh and scp. Exit code: the first
# one that is not 0.
set -euo pipefail

verb=$1
group=$2
shift 2
flags=()
where=()
while (( $# )) && [[ $1 != -- ]]; do
  flags+=("$1")
  case $1 in
    --zone=* | --project=*) where+=("$1") ;;
  esac
  shift
done
shift
hosts=$(gcloud compute instance-groups managed list-instances "$group" "${where[@]}" \
  '--format=value(instance.basename())')
if [[ -z $hosts ]]; then
  echo "launch/on_hosts.sh: $group has no hosts" >&2
  exit 1
fi
pids=()
for host in $hosts; do
  case $verb in
    ssh) gcloud compute ssh "$host" "${flags[@]}" "--command=$1" --quiet & ;;
    scp) gcloud compute scp "$@" "$host:" "${flags[@]}" --quiet & ;;
    *) echo "launch/on_hosts.sh: unknown verb '$verb'" >&2; exit 2 ;;
  esac
  pids+=($!)
done
code=0
for pid in "${pids[@]}"; do
  one=0
  wait "$pid" || one=$?
  if (( code == 0 )); then
    code=$one
  fi
done
exit "$code"
