#!/usr/bin/env bash
# Deletes the requests of fairjax that failed or were taken away: they only use up quota.
#
#   launch/clean.sh --zone=ZONE [--project=ID]
#
# Nothing without the label managed-by=fairjax is touched.
set -euo pipefail

if (( $# < 1 )); then
  sed -n '4p' "$0" >&2
  exit 2
fi
names=$(gcloud compute tpus queued-resources list "$@" '--format=value(name.basename())' \
  '--filter=tpu.nodeSpec.node.labels.managed-by=fairjax AND state.state=(SUSPENDED FAILED)')
failed=0
for name in $names; do
  echo "deleting queued resource $name"
  gcloud compute tpus queued-resources delete "$name" "$@" --force --quiet || failed=1
done
exit $failed
