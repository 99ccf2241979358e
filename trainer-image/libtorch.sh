#!/usr/bin/env bash
# Assembles libtorch 2.11.0 for CPUs from the wheels on PyPI and prints its directory: headers,
# libraries and the headers of gloo, which the wheel leaves out. About 530 MB to download once.
#
# usage: trainer-image/libtorch.sh        (set ROUNDHOUSE_CACHE to keep it elsewhere)
set -euo pipefail
: "${ROUNDHOUSE_CACHE:=${XDG_CACHE_HOME:-$HOME/.cache}/roundhouse}"
dir=$ROUNDHOUSE_CACHE/libtorch-2.11.0-cpu
case ${1:-} in -h | --help) sed -n '2,5s/^# \{0,1\}//p' "$0"; exit 0 ;; esac
[ ! -e "$dir/complete" ] || { echo "$dir"; exit 0; }

say() { printf '%s\n' "$*" >&2; }
as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }
install_missing() { # COMMAND-OR-FILE PACKAGE...
  local probe=$1; shift
  [ -e "$probe" ] || command -v "$probe" > /dev/null || {
    say "installing $*"
    as_root apt-get update -qq && as_root apt-get install -y -qq --no-install-recommends "$@" > /dev/null; }
}
install_missing python3 python3
python3 -m pip --version > /dev/null 2>&1 || install_missing /nonexistent python3-pip
install_missing /usr/include/gloo/context.h libgloo-dev

mkdir -p "$ROUNDHOUSE_CACHE"
work=$(mktemp -d "$ROUNDHOUSE_CACHE/libtorch.XXXXXX")
trap 'rm -rf "$work"' EXIT
say "downloading torch 2.11.0 (530 MB) ..."
# The wheel's Python version does not matter: only its libraries and headers are used.
python3 -m pip download -q --no-deps --disable-pip-version-check --dest "$work" \
  --only-binary=:all: --implementation cp --python-version 3.11 --abi cp311 --abi none \
  --platform manylinux_2_28_x86_64 --platform manylinux_2_25_x86_64 --platform manylinux2014_x86_64 \
  torch==2.11.0 nvidia-cuda-runtime==13.0.96 nvidia-cuda-cupti==13.0.85
(cd "$work" && sha256sum --check --quiet --strict) << 'SUMS'
4eb01c08e859bf924d222250d2e8f8b8ff6d3db4721288cf35d14252a4d933c8  nvidia_cuda_cupti-13.0.85-py3-none-manylinux_2_25_x86_64.whl
7f82250d7782aa23b6cfe765ecc7db554bd3c2870c43f3d1821f1d18aebf0548  nvidia_cuda_runtime-13.0.96-py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64.whl
7aa2f9bbc6d4595ba72138026b2074be1233186150e9292865e04b7a63b8c67a  torch-2.11.0-cp311-cp311-manylinux_2_28_x86_64.whl
SUMS

say "assembling ..."
root=$work/root
mkdir -p "$root/lib" "$root/include-gloo"
# libtorch_cuda.so stays behind: torch-sys links it whenever it is there. The CPU library itself needs
# two small CUDA libraries, since the wheel has no build without CUDA.
python3 - "$work" "$root" << 'PY'
import pathlib, sys, zipfile
work, root = map(pathlib.Path, sys.argv[1:])
libraries = {"libc10.so", "libtorch_cpu.so", "libtorch_global_deps.so", "libgomp.so.1", "libcudart.so.13", "libcupti.so.13"}
for wheel in work.glob("*.whl"):
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.infolist():
            path = pathlib.PurePosixPath(member.filename)
            if member.is_dir():
                continue
            if path.parts[:2] == ("torch", "include"):
                target = root.joinpath(*path.parts[1:])
            elif path.name in libraries:
                target = root / "lib" / path.name
            elif "licenses" in path.parts or path.name in ("License.txt", "LICENSE"):
                target = root / "licenses" / path.parts[0] / path.name
            else:
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(member) as source, open(target, "wb") as sink:
                while chunk := source.read(1 << 20):
                    sink.write(chunk)
PY
ln -s libgomp.so.1 "$root/lib/libgomp.so"
echo 'INPUT(libtorch_cpu.so)' > "$root/lib/libtorch.so" # what torch-sys asks the linker for
cp -r /usr/include/gloo "$root/include-gloo/gloo"
touch "$root/complete"
rm -rf "$dir"
mv "$root" "$dir"
echo "$dir"
