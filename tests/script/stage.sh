#!/usr/bin/env bash
# Builds the counting script and lays out its image's root in target/images/counting-script.
# shellcheck source=tests/support/make/lib.sh
source "$(dirname "$0")/../support/make/lib.sh"
# shellcheck source=tests/support/make/stage.sh
source "$repo/tests/support/make/stage.sh"
cargo build -p roundhouse-script --bin counting-script
new_root counting-script
PROFILE=dev add_programs "$CARGO_TARGET_DIR" counting-script
add_libraries "$root/usr/local/bin/counting-script"
