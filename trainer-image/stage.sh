#!/usr/bin/env bash
# Builds agent and trainer and lays out their image's root in target/images/trainer.
# shellcheck source=tests/support/make/lib.sh
source "$(dirname "$0")/../tests/support/make/lib.sh"
# shellcheck source=tests/support/make/stage.sh
source "$repo/tests/support/make/stage.sh"
export LIBTORCH
# Static, so that it runs in any image; the explicit target keeps build scripts dynamic.
target=x86_64-unknown-linux-gnu
RUSTFLAGS='-C target-feature=+crt-static' cargo build --release -p roundhouse-agent --target "$target"
cargo build --release -p roundhouse-trainer
new_root trainer
cp "$CARGO_TARGET_DIR/$target/release/roundhouse-agent" "$CARGO_TARGET_DIR/release/roundhouse-train" "$root/usr/local/bin/"
add_libraries "$root/usr/local/bin/roundhouse-train"
du -sh "$root"
