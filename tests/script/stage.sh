#!/usr/bin/env bash
# Builds the counting script and lays out its image's root in target/images/counting-script.
# shellcheck source=scripts/lib/common.sh
source "$(dirname "$0")/../../scripts/lib/common.sh"
# shellcheck source=scripts/lib/image-root.sh
source "$repo/scripts/lib/image-root.sh"
cargo build -p roundhouse-script --bin counting-script
new_root counting-script
PROFILE=dev add_programs "$CARGO_TARGET_DIR" counting-script
add_libraries "$root/usr/local/bin/counting-script"
