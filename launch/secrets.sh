#!/usr/bin/env bash
# Writes NAME=VALUE lines of exported variables into a file that only the user can read.
#
#   launch/secrets.sh FILE NAME...
#
# The values never stand in an argument; only the names do.
set -euo pipefail

if (( $# < 2 )); then
  echo 'usage: launch/secrets.sh FILE NAME...' >&2
  exit 2
fi
file=$1
shift
umask 077
mkdir -p "$(dirname "$file")"
rm -f "$file"
for name in "$@"; do
  if [[ -z ${!name:-} ]]; then
    echo "launch/secrets.sh: $name is not set: read -rs $name && export $name" >&2
    exit 2
  fi
  if [[ ${!name} == *$'\n'* ]]; then
    echo "launch/secrets.sh: $name holds a line break" >&2
    exit 2
  fi
  printf '%s=%s\n' "$name" "${!name}" >>"$file"
done
