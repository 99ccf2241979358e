# Sourced by the scripts beside it: where things are, and steps with a progress line and a time.
# shellcheck shell=bash
set -euo pipefail
repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cd "$repo"
: "${ROUNDHOUSE_CACHE:=${XDG_CACHE_HOME:-$HOME/.cache}/roundhouse}"
: "${CARGO_TARGET_DIR:=$(scripts/lib/target-dir)}"
# While a script runs, its programs are not deleted to make room for those of another checkout: see target-dir.
if [ -e "$CARGO_TARGET_DIR/.used" ]; then
  exec {in_use}< "$CARGO_TARGET_DIR/.used"
  flock -s "$in_use"
fi
: "${LIBTORCH:=$ROUNDHOUSE_CACHE/libtorch-2.11.0-cpu}"
: "${CLUSTER:=local}" "${NODES:=1}" "${NAMESPACE:=default}"
# Of what images hold. With dev, which the tests have built already, an image takes seconds; see make images.
: "${PROFILE:=release}"
# What is built here is built in many clones, seldom twice in one: incremental data only take room.
export CARGO_INCREMENTAL=${CARGO_INCREMENTAL:-0}
# The native part of the Python package is one library for all versions of Python; it is linked to none.
export PYO3_BUILD_EXTENSION_MODULE=1 PYO3_NO_PYTHON=1
export ROUNDHOUSE_CACHE CARGO_TARGET_DIR LIBTORCH CLUSTER NODES NAMESPACE PROFILE
case $CLUSTER in
  local) ;;
  current) [ -n "${IMAGE_REPO:-}" ] || { echo "error: CLUSTER=current needs IMAGE_REPO=registry/path, where the images are pushed" >&2; exit 1; } ;;
  *) echo "error: CLUSTER=$CLUSTER: give local or current" >&2; exit 1 ;;
esac
logs=$repo/target/logs
mkdir -p "$logs"

now() { date +%s.%N; }
since() { awk -v a="$1" -v b="$(now)" 'BEGIN {printf "%.1f s", b - a}'; }
say() { printf '%s\n' "$*"; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }
need() { command -v "$1" >/dev/null || die "$1 is not installed: $2"; }
# use_cuda: from here on builds are against the libtorch with CUDA. They lie beside those of the other variant: the two
# would rebuild each other for ever.
use_cuda() {
  LIBTORCH=$(trainer-image/libtorch.sh cuda)
  LIBTORCH_CUDA_INCLUDE=$(trainer-image/libtorch.sh cuda-headers)
  CARGO_TARGET_DIR=$CARGO_TARGET_DIR/cuda
  export LIBTORCH LIBTORCH_CUDA_INCLUDE CARGO_TARGET_DIR
}
# room GIB: that much of the disk is free, for which builds of other checkouts may have to go.
room() {
  local place free
  scripts/lib/target-dir --make-room "$1" > /dev/null
  for place in "$repo" "$ROUNDHOUSE_CACHE"; do
    free=$(df --output=avail -B1G "$place" | tail -n 1 | tr -d ' ')
    [ "$free" -ge "$1" ] || die "$free GiB are free where $place is, and $1 are needed; what Roundhouse keeps and builds anew when needed is in $ROUNDHOUSE_CACHE ($(du -sh "$ROUNDHOUSE_CACHE" | cut -f1))"
  done
}

# log_of NAME: where the output of a step goes.
log_of() { say "$logs/$(tr -cs 'a-zA-Z0-9' '-' <<< "$1" | sed 's/-$//').log"; }
# step NAME COMMAND...: one line while it runs and its time after; its output goes to a log, whose end
# is shown if it fails. A line a minute says that a long one is alive.
step() {
  local name=$1 log started ticker status=0
  shift
  log=$(log_of "$name")
  started=$(now)
  say "==> $name"
  # Its sleep goes with it: it would keep a pipe open that somebody reads from.
  ( trap 'kill "$nap" 2>/dev/null; exit' TERM
    while sleep 60 & nap=$!; wait "$nap"; do say "    ... $(since "$started")$(tail -n 1 "$log" 2>/dev/null | sed 's/^/: /' | cut -c1-90)"; done ) &
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
      # Debian's own defaults for caches would leave files in the home directory.
      export KUBECACHEDIR=$repo/target/cluster/cache ;;
    current) need kubectl "see kubernetes.io/docs/tasks/tools"; need helm "see helm.sh/docs/intro/install" ;;
  esac
}
