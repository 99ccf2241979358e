#!/usr/bin/env bash
# Builds the program, and writes the files that its image adds to the trainer's to
# target/images/own-model. VARIANT=cuda is for the trainer's image with CUDA and writes to
# target/images/own-model-cuda. PROFILE=quick is the profile of make try.
# shellcheck source=scripts/lib/common.sh
source "$(dirname "$0")/../../scripts/lib/common.sh"
: "${VARIANT:=cpu}"
name=own-model features=()
case $VARIANT in
  cpu) trainer-image/libtorch.sh > /dev/null ;;
  cuda)
    name=own-model-cuda features=(--features roundhouse-trainer/nccl)
    use_cuda
    ;;
  *) die "VARIANT=$VARIANT: give cpu or cuda" ;;
esac
export LIBTORCH
cargo build --profile "$PROFILE" --locked --manifest-path examples/own-model/Cargo.toml "${features[@]}"
root=target/images/$name/root
rm -rf "$root"
mkdir -p "$root/usr/local/bin"
# The agent starts the program roundhouse-train.
program=$CARGO_TARGET_DIR/$PROFILE/own-model
cp "$program" "$root/usr/local/bin/roundhouse-train"
say "built $program; files for its image: $root ($(du -sh "$root" | cut -f1))"
