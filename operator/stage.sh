#!/usr/bin/env bash
# Builds the operator and lays out its image's root in target/images/operator.
# shellcheck source=tests/support/make/lib.sh
source "$(dirname "$0")/../tests/support/make/lib.sh"
# shellcheck source=tests/support/make/stage.sh
source "$repo/tests/support/make/stage.sh"
[ "${PROGRAMS:-}" = built ] || cargo build --profile "$PROFILE" -p roundhouse-operator
new_root operator
add_programs "$CARGO_TARGET_DIR" roundhouse-operator
add_libraries "$root/usr/local/bin/roundhouse-operator"
du -sh "$root"
