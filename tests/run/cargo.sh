# Runs the test programs that need more than cargo. Sourced after common.sh.
# shellcheck shell=bash

# cargo_test PROGRAM ARGUMENT...: runs the test programs of that name. Packages and features are the
# same for all of them, and the packages are those of `cargo test`. Cargo then resolves the same
# features each time and builds a crate once.
cargo_test() {
  cargo test --no-fail-fast --quiet --test "$1" --features \
    roundhouse-tests/apiserver,roundhouse-tests/cases,roundhouse-tests/e2e,roundhouse-tests/local,kubectl-roundhouse/apiserver -- "${@:2}"
}
