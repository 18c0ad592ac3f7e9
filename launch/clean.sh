#!/usr/bin/env bash
# Deletes what fairjax launched and what is dead: it only uses up quota.
#
#   launch/clean.sh queued  --zone=ZONE [--project=ID]
#   launch/clean.sh compute --zone=ZONE [--project=ID]
#   launch/clean.sh gke     --namespace=NAME
#
# Nothing without the label managed-by=fairjax is touched.
set -euo pipefail

case ${1:-} in
  queued)
    shift
    names=$(gcloud compute tpus queued-resources list "$@" '--format=value(name.basename())' \
      '--filter=tpu.nodeSpec.node.labels.managed-by=fairjax AND state.state=(SUSPENDED FAILED)')
    for name in $names; do
      echo "deleting queued resource $name"
      gcloud compute tpus queued-resources delete "$name" "$@" --force --quiet
    done
    ;;
  compute)
    shift
    zone=()
    for word in "$@"; do
      [[ $word != --zone=* ]] || zone=("--zones=${word#--zone=}")
    done
    project=()
    for word in "$@"; do
      [[ $word != --project=* ]] || project=("$word")
    done
    names=$(gcloud compute instances list "${zone[@]}" "${project[@]}" \
      '--format=value(labels.fairjax-name)' \
      '--filter=labels.managed-by=fairjax AND status=(TERMINATED STOPPED SUSPENDED)' | sort -u)
    for name in $names; do
      echo "deleting instance group $name"
      gcloud compute instance-groups managed delete "$name" "$@" --quiet
    done
    ;;
  gke)
    shift
    names=$(kubectl "$@" get jobsets --selector=managed-by=fairjax \
      '--output=jsonpath={range .items[?(@.status.terminalState)]}{.metadata.name}{"\n"}{end}')
    for name in $names; do
      kubectl "$@" delete "jobset/$name"
    done
    ;;
  *)
    sed -n '4,6p' "$0" >&2
    exit 2
    ;;
esac
