#!/usr/bin/env bash
# Deletes a slice and its request.
#
#   launch/delete.sh NAME ZONE [FLAG...]
#
# FLAGs go to gcloud compute tpus queued-resources delete.
set -euo pipefail

if (( $# < 2 )); then
  sed -n '4p' "$0" >&2
  exit 2
fi
name=$1 zone=$2
shift 2
gcloud compute tpus queued-resources delete "$name" "--zone=$zone" "$@" --force --quiet
