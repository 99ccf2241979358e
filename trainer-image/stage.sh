#!/usr/bin/env bash
# Builds the agent and the trainer, and creates the root of their image in target/images/trainer
# (VARIANT=cuda: in target/images/trainer-cuda, with CUDA, cuDNN, NCCL and the RDMA libraries).
# shellcheck source=scripts/lib/common.sh
source "$(dirname "$0")/../scripts/lib/common.sh"
# shellcheck source=scripts/lib/image-root.sh
source "$repo/scripts/lib/image-root.sh"
: "${VARIANT:=cpu}"
name=trainer features=()
case $VARIANT in
  cpu) ;;
  cuda)
    name=trainer-cuda features=(--features nccl)
    use_cuda
    ;;
  *) die "VARIANT=$VARIANT: set it to cpu or cuda" ;;
esac
export LIBTORCH
# The agent is static, so it runs in any image; the explicit target keeps build scripts dynamic.
target=x86_64-unknown-linux-gnu
if [ "${PROGRAMS:-}" != built ]; then
  RUSTFLAGS='-C target-feature=+crt-static' cargo build --profile "$PROFILE" -p roundhouse-agent --target "$target"
  cargo build --profile "$PROFILE" -p roundhouse-trainer-image "${features[@]}"
fi
new_root "$name"
add_programs "$CARGO_TARGET_DIR/$target" roundhouse-agent
add_programs "$CARGO_TARGET_DIR" roundhouse-train
# CUDA's libraries open each other by name at run time, so copy all of them.
if [ "$VARIANT" = cuda ]; then cp -L "$LIBTORCH"/lib/*.so* "$root/usr/local/lib/"; fi
add_libraries "$root/usr/local/bin/roundhouse-train"
if [ "$VARIANT" = cuda ]; then trainer-image/rdma.sh "$root"; fi
du -sh "$root"
