#!/usr/bin/env bash
# Builds the operator and lays out its image's root in target/images/operator.
# shellcheck source=scripts/lib/common.sh
source "$(dirname "$0")/../scripts/lib/common.sh"
# shellcheck source=scripts/lib/image-root.sh
source "$repo/scripts/lib/image-root.sh"
[ "${PROGRAMS:-}" = built ] || cargo build --profile "$PROFILE" -p roundhouse-operator
new_root operator
add_programs "$CARGO_TARGET_DIR" roundhouse-operator
add_libraries "$root/usr/local/bin/roundhouse-operator"
du -sh "$root"
