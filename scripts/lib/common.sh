# Sourced by every script of scripts/ and tests/run: paths, settings, and steps with a progress line
# and a time.
# shellcheck shell=bash
set -euo pipefail
repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cd "$repo"
: "${ROUNDHOUSE_CACHE:=${XDG_CACHE_HOME:-$HOME/.cache}/roundhouse}"
: "${CARGO_TARGET_DIR:=$(scripts/lib/target-dir)}"
# A shared lock: while this script runs, target-dir of another checkout does not delete its builds.
if [ -e "$CARGO_TARGET_DIR/.used" ]; then
  exec {in_use}< "$CARGO_TARGET_DIR/.used"
  flock -s "$in_use"
fi
: "${LIBTORCH:=$ROUNDHOUSE_CACHE/libtorch-2.11.0-cpu}"
: "${CLUSTER:=local}" "${NODES:=1}" "${NAMESPACE:=default}"
# The cargo profile of programs in images. The tests build dev anyway: images of dev take seconds.
: "${PROFILE:=release}"
# Most builds happen once in a fresh clone, where data for incremental builds only take space.
export CARGO_INCREMENTAL=${CARGO_INCREMENTAL:-0}
# The native part of the Python package is one library for all versions of Python. It links to none.
export PYO3_BUILD_EXTENSION_MODULE=1 PYO3_NO_PYTHON=1
export ROUNDHOUSE_CACHE CARGO_TARGET_DIR LIBTORCH CLUSTER NODES NAMESPACE PROFILE
case $CLUSTER in
  local) ;;
  current) [ -n "${IMAGE_REPO:-}" ] || { echo "error: CLUSTER=current needs IMAGE_REPO=registry/path, a registry for the images" >&2; exit 1; } ;;
  *) echo "error: CLUSTER=$CLUSTER: set local or current" >&2; exit 1 ;;
esac
logs=$repo/target/logs
mkdir -p "$logs"

now() { date +%s.%N; }
since() { awk -v a="$1" -v b="$(now)" 'BEGIN {printf "%.1f s", b - a}'; }
say() { printf '%s\n' "$*"; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }
need() { command -v "$1" >/dev/null || die "$1 is not installed: $2"; }
# use_cuda: makes the following builds use the libtorch with CUDA. They have a target directory of
# their own: in one directory each variant would rebuild the crates of the other one every time.
use_cuda() {
  LIBTORCH=$(trainer-image/libtorch.sh cuda)
  LIBTORCH_CUDA_INCLUDE=$(trainer-image/libtorch.sh cuda-headers)
  CARGO_TARGET_DIR=$CARGO_TARGET_DIR/cuda
  export LIBTORCH LIBTORCH_CUDA_INCLUDE CARGO_TARGET_DIR
}
# room GIB: fails unless so much of the disk is free. To free it, it deletes builds of other
# checkouts.
room() {
  local place free
  scripts/lib/target-dir --make-room "$1" > /dev/null
  for place in "$repo" "$ROUNDHOUSE_CACHE"; do
    free=$(df --output=avail -B1G "$place" | tail -n 1 | tr -d ' ')
    [ "$free" -ge "$1" ] ||
      die "the disk of $place has $free GiB free, and $1 GiB are needed; you may delete $ROUNDHOUSE_CACHE ($(du -sh "$ROUNDHOUSE_CACHE" | cut -f1)): it is built again when it is needed"
  done
}

# descendants PID: prints the process and all its descendants.
descendants() { local child; echo "$1"; for child in $(ps -o pid= --ppid "$1"); do descendants "$child"; done; }
# log_of NAME: prints the path of the log of a step.
log_of() { say "$logs/$(tr -cs 'a-zA-Z0-9' '-' <<< "$1" | sed 's/-$//').log"; }
# step NAME COMMAND...: runs the command, prints its name first and its time afterwards. Its output
# goes to a log; if it fails, step prints the end of the log. A long step prints a line each minute.
# STEP_LIMIT: seconds after which step ends the command.
step() {
  local name=$1 log started ticker status=0 shell=$BASHPID began=$SECONDS others
  shift
  others=$(ps -o pid= --ppid "$shell" | tr '\n' ' ')
  log=$(log_of "$name")
  started=$(now)
  say "==> $name"
  # The trap also ends the sleep, which would otherwise keep the pipe of the script's output open.
  ( trap 'kill "$nap" 2>/dev/null; exit' TERM
    signal=TERM
    while sleep "${STEP_TICK:-60}" & nap=$!; wait "$nap"; do
      say "    ... $(since "$started")$(tail -n 1 "$log" 2>/dev/null | sed 's/^/: /' | cut -c1-90)"
      [ -n "${STEP_LIMIT:-}" ] && [ $((SECONDS - began)) -gt "$STEP_LIMIT" ] || continue
      say "    not done after $STEP_LIMIT s, which is the limit of a step: its processes get SIG$signal"
      # Background jobs of the script are not part of the step.
      for child in $(ps -o pid= --ppid "$shell"); do
        case " $others $BASHPID " in *" $child "*) continue ;; esac
        # shellcheck disable=SC2046
        kill "-$signal" $(descendants "$child") 2>/dev/null || true
      done
      signal=KILL
    done ) &
  ticker=$!
  "$@" > "$log" 2>&1 < /dev/null || status=$?
  kill "$ticker" 2>/dev/null || true
  wait "$ticker" 2>/dev/null || true
  if [ "$status" -ne 0 ]; then
    tail -n "${STEP_TAIL:-60}" "$log" | sed 's/^/    | /'
    say "    failed after $(since "$started"), exit code $status; all of it: $log"
    return "$status"
  fi
  say "    done in $(since "$started")"
}

cluster() { tests/cluster/cluster "$@"; }
use_cluster() {
  case $CLUSTER in
    local) export KUBECONFIG=$repo/target/cluster/kubeconfig PATH=$repo/target/cluster/bin:$PATH
      # Without this kubectl caches in the home directory.
      export KUBECACHEDIR=$repo/target/cluster/cache ;;
    current) need kubectl "see kubernetes.io/docs/tasks/tools"; need helm "see helm.sh/docs/intro/install" ;;
  esac
}
