#!/usr/bin/env bash
# Packs the files that git tracks, as they are in the work tree now; of an installed fairjax the
# package.
#
#   launch/pack.sh OUTPUT.tar.gz
#
# Files that git does not track stay here, so that no secret travels by accident; they are named.
set -euo pipefail

if (( $# != 1 )); then
  echo 'usage: launch/pack.sh OUTPUT.tar.gz' >&2
  exit 2
fi
output=$1
package=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
if [[ -f $package/__init__.py ]]; then
  mkdir -p "$(dirname "$output")"
  tar --create --gzip --file="$output" --exclude=__pycache__ \
    --directory="$package" launch configs --directory=.. "${package##*/}"
  echo "packed $package: $(wc -c <"$output") bytes"
  exit
fi
if [[ -z $(git ls-files 2>/dev/null | head -n 1) ]]; then
  echo 'launch/pack.sh: git tracks no file here: run it in a clone of fairjax' >&2
  exit 2
fi
mkdir -p "$(dirname "$output")"
untracked=$(git ls-files --others --exclude-standard)
if [[ -n $untracked ]]; then
  printf 'launch/pack.sh: not tracked by git, so not packed:\n%s\n' "$untracked" >&2
fi
# A tracked file that was deleted here is not there to be packed.
git ls-files -z | while IFS= read -r -d '' file; do
  if [[ -e $file || -L $file ]]; then
    printf '%s\0' "$file"
  fi
done | tar --create --gzip --file="$output" --null --no-recursion --files-from=-
size=$(wc -c <"$output")
if (( size > 100000000 )); then
  echo "launch/pack.sh: $output has $size bytes, and every worker would get them" >&2
  exit 2
fi
echo "packed $(git describe --always --dirty): $size bytes"
