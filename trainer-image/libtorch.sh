#!/usr/bin/env bash
# Assembles libtorch 2.11.0 from the wheels on PyPI and prints its directory: headers, libraries,
# and the headers of gloo, which the wheel lacks.
#
# usage: trainer-image/libtorch.sh [cpu|cuda|cuda-headers]   (set ROUNDHOUSE_CACHE to keep it elsewhere)
#   cpu            for CPUs; 530 MB to download once
#   cuda           for NVIDIA GPUs: CUDA 13.0, cuDNN, NCCL; 2.5 GB to download once
#   cuda-headers   headers of CUDA 13.0 and NCCL, to compile the feature nccl; prints a list of
#                  directories for LIBTORCH_CUDA_INCLUDE; 970 MB to download once
set -euo pipefail
: "${ROUNDHOUSE_CACHE:=${XDG_CACHE_HOME:-$HOME/.cache}/roundhouse}"
variant=${1:-cpu}
case $variant in
  -h | --help) sed -n '2,10s/^# \{0,1\}//p' "$0"; exit 0 ;;
  cpu) dir=$ROUNDHOUSE_CACHE/libtorch-2.11.0-cpu answer=$dir ;;
  cuda) dir=$ROUNDHOUSE_CACHE/libtorch-2.11.0-cuda answer=$dir ;;
  cuda-headers) dir=$ROUNDHOUSE_CACHE/cuda-headers-13.0 answer=$dir/include:$dir/include/cccl ;;
  *) echo "error: unknown variant $variant; see $0 --help" >&2; exit 64 ;;
esac
[ ! -e "$dir/complete" ] || { echo "$answer"; exit 0; }

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

mkdir -p "$ROUNDHOUSE_CACHE"
work=$(mktemp -d "$ROUNDHOUSE_CACHE/libtorch.XXXXXX")
trap 'rm -rf "$work"' EXIT
# The wheels' Python version does not matter: only their libraries and headers are used.
fetch() { # WHEEL==VERSION...; their checksums on stdin
  say "downloading $* ..."
  python3 -m pip download -q --no-deps --disable-pip-version-check --dest "$work" \
    --only-binary=:all: --implementation cp --python-version 3.11 --abi cp311 --abi none \
    --platform manylinux_2_28_x86_64 --platform manylinux_2_27_x86_64 --platform manylinux_2_25_x86_64 \
    --platform manylinux_2_18_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 \
    --platform manylinux2010_x86_64 --platform manylinux1_x86_64 "$@"
  (cd "$work" && sha256sum --check --quiet --strict)
}
finish() {
  touch "$root/complete"
  rm -rf "$dir"
  mv "$root" "$dir"
  echo "$answer"
}
root=$work/root
mkdir -p "$root"
gloo=/usr/include/gloo
if [ "$variant" != cuda-headers ] && [ ! -e "$gloo/context.h" ]; then
  # Unpacking the headers needs no root if the list of packages exists.
  if (cd "$work" && apt-get download -qq libgloo-dev && dpkg -x libgloo-dev_*.deb gloo) 2> /dev/null; then
    gloo=$work/gloo/usr/include/gloo
  else
    install_missing "$gloo/context.h" libgloo-dev
  fi
fi

if [ "$variant" = cuda-headers ]; then
  # The exact NCCL version of libtorch's build, because its options embed a structure of nccl.h.
  fetch nvidia-nccl-cu13==2.28.9 nvidia-cuda-runtime==13.0.96 nvidia-cuda-crt==13.0.88 nvidia-cuda-cccl==13.0.85 \
    nvidia-cublas==13.1.0.3 nvidia-cusparse==12.6.3.3 nvidia-cusolver==12.0.4.66 << 'SUMS'
ee8722c1f0145ab246bccb9e452153b5e0515fd094c3678df50b2a0888b8b171  nvidia_cublas-13.1.0.3-py3-none-manylinux_2_27_x86_64.whl
0a759da5dea5c0ea10fd307de75cdeb59e7ea4fcb8add0924859b944babf1112  nvidia_cusolver-12.0.4.66-py3-none-manylinux_2_27_x86_64.whl
2b3c89c88d01ee0e477cb7f82ef60a11a4bcd57b6b87c33f789350b59759360b  nvidia_cusparse-12.6.3.3-py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64.whl
e0da7ad981f3a8aff08241b5bfc1af868742a63e2762f53a5171c492ef242649  nvidia_cuda_cccl-13.0.85-py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64.whl
2c8043c7c9e02492716426e9919fc78d2c5b3b2a7a768a88e952676b08aa55a4  nvidia_cuda_crt-13.0.88-py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64.whl
7f82250d7782aa23b6cfe765ecc7db554bd3c2870c43f3d1821f1d18aebf0548  nvidia_cuda_runtime-13.0.96-py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64.whl
e4553a30f34195f3fa1da02a6da3d6337d28f2003943aa0a3d247bbc25fefc42  nvidia_nccl_cu13-2.28.9-py3-none-manylinux_2_18_x86_64.whl
SUMS
  python3 - "$work" "$root/include" << 'PY'
import pathlib, sys, zipfile
work, include = map(pathlib.Path, sys.argv[1:])
for wheel in work.glob("*.whl"):
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.infolist():
            parts = pathlib.PurePosixPath(member.filename).parts
            if member.is_dir() or "include" not in parts:
                continue
            target = include.joinpath(*parts[parts.index("include") + 1:])
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(archive.read(member))
PY
  finish
  exit 0
fi

if [ "$variant" = cuda ]; then
  fetch torch==2.11.0 \
    nvidia-cublas==13.1.0.3 nvidia-cuda-cupti==13.0.85 nvidia-cuda-nvrtc==13.0.88 nvidia-cuda-runtime==13.0.96 nvidia-cudnn-cu13==9.19.0.56 nvidia-cufft==12.0.0.61 \
    nvidia-cufile==1.15.1.6 nvidia-curand==10.4.0.35 nvidia-cusolver==12.0.4.66 nvidia-cusparse==12.6.3.3 nvidia-cusparselt-cu13==0.8.0 \
    nvidia-nccl-cu13==2.28.9 nvidia-nvjitlink==13.0.88 nvidia-nvshmem-cu13==3.4.5 nvidia-nvtx==13.0.85 << 'SUMS'
ee8722c1f0145ab246bccb9e452153b5e0515fd094c3678df50b2a0888b8b171  nvidia_cublas-13.1.0.3-py3-none-manylinux_2_27_x86_64.whl
4eb01c08e859bf924d222250d2e8f8b8ff6d3db4721288cf35d14252a4d933c8  nvidia_cuda_cupti-13.0.85-py3-none-manylinux_2_25_x86_64.whl
ad9b6d2ead2435f11cbb6868809d2adeeee302e9bb94bcf0539c7a40d80e8575  nvidia_cuda_nvrtc-13.0.88-py3-none-manylinux2010_x86_64.manylinux_2_12_x86_64.whl
7f82250d7782aa23b6cfe765ecc7db554bd3c2870c43f3d1821f1d18aebf0548  nvidia_cuda_runtime-13.0.96-py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64.whl
d20e1734305e9d68889a96e3f35094d733ff1f83932ebe462753973e53a572bf  nvidia_cudnn_cu13-9.19.0.56-py3-none-manylinux_2_27_x86_64.whl
6c44f692dce8fd5ffd3e3df134b6cdb9c2f72d99cf40b62c32dde45eea9ddad3  nvidia_cufft-12.0.0.61-py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64.whl
08a3ecefae5a01c7f5117351c64f17c7c62efa5fffdbe24fc7d298da19cd0b44  nvidia_cufile-1.15.1.6-py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64.whl
1aee33a5da6e1db083fe2b90082def8915f30f3248d5896bcec36a579d941bfc  nvidia_curand-10.4.0.35-py3-none-manylinux_2_27_x86_64.whl
0a759da5dea5c0ea10fd307de75cdeb59e7ea4fcb8add0924859b944babf1112  nvidia_cusolver-12.0.4.66-py3-none-manylinux_2_27_x86_64.whl
2b3c89c88d01ee0e477cb7f82ef60a11a4bcd57b6b87c33f789350b59759360b  nvidia_cusparse-12.6.3.3-py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64.whl
25e30a8a7323935d4ad0340b95a0b69926eee755767e8e0b1cf8dd85b197d3fd  nvidia_cusparselt_cu13-0.8.0-py3-none-manylinux2014_x86_64.whl
e4553a30f34195f3fa1da02a6da3d6337d28f2003943aa0a3d247bbc25fefc42  nvidia_nccl_cu13-2.28.9-py3-none-manylinux_2_18_x86_64.whl
13a74f429e23b921c1109976abefacc69835f2f433ebd323d3946e11d804e47b  nvidia_nvjitlink-13.0.88-py3-none-manylinux2010_x86_64.manylinux_2_12_x86_64.whl
290f0a2ee94c9f3687a02502f3b9299a9f9fe826e6d0287ee18482e78d495b80  nvidia_nvshmem_cu13-3.4.5-py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64.whl
4936d1d6780fbe68db454f5e72a42ff64d1fd6397df9f363ae786930fd5c1cd4  nvidia_nvtx-13.0.85-py3-none-manylinux1_x86_64.manylinux_2_5_x86_64.whl
7aa2f9bbc6d4595ba72138026b2074be1233186150e9292865e04b7a63b8c67a  torch-2.11.0-cp311-cp311-manylinux_2_28_x86_64.whl
SUMS
else
  fetch torch==2.11.0 nvidia-cuda-runtime==13.0.96 nvidia-cuda-cupti==13.0.85 << 'SUMS'
4eb01c08e859bf924d222250d2e8f8b8ff6d3db4721288cf35d14252a4d933c8  nvidia_cuda_cupti-13.0.85-py3-none-manylinux_2_25_x86_64.whl
7f82250d7782aa23b6cfe765ecc7db554bd3c2870c43f3d1821f1d18aebf0548  nvidia_cuda_runtime-13.0.96-py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64.whl
7aa2f9bbc6d4595ba72138026b2074be1233186150e9292865e04b7a63b8c67a  torch-2.11.0-cp311-cp311-manylinux_2_28_x86_64.whl
SUMS
fi

say "assembling ..."
mkdir -p "$root/lib" "$root/include-gloo"
# The CPU variant omits libtorch_cuda.so, because torch-sys links it whenever it exists. The CPU
# library itself needs two small CUDA libraries, because the wheel is built with CUDA.
python3 - "$work" "$root" "$variant" << 'PY'
import pathlib, sys, zipfile
work, root, variant = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3]
libraries = {"libc10.so", "libtorch_cpu.so", "libtorch_global_deps.so", "libgomp.so.1", "libcudart.so.13", "libcupti.so.13"}
def is_library(path):
    return ".so" in path.name and "python" not in path.name and "lib" in path.parts
origins = []  # the package of each library, for make sbom
for wheel in work.glob("*.whl"):
    name, version = wheel.name.split("-")[:2]
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.infolist():
            path = pathlib.PurePosixPath(member.filename)
            if member.is_dir():
                continue
            if path.parts[:2] == ("torch", "include"):
                target = root.joinpath(*path.parts[1:])
            elif path.name in libraries or (variant == "cuda" and is_library(path)):
                target = root / "lib" / path.name
                origins.append(f"{path.name} pkg:pypi/{name.replace('_', '-')}@{version}\n")
            elif "licenses" in path.parts or path.name in ("License.txt", "LICENSE"):
                target = root / "licenses" / path.parts[0] / path.name
            else:
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(member) as source, open(target, "wb") as sink:
                while chunk := source.read(1 << 20):
                    sink.write(chunk)
(root / "origins").write_text("".join(sorted(origins)))
PY
ln -s libgomp.so.1 "$root/lib/libgomp.so"
echo 'INPUT(libtorch_cpu.so)' > "$root/lib/libtorch.so" # torch-sys links this name
cp -r "$gloo" "$root/include-gloo/gloo"
finish
