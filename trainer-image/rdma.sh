#!/usr/bin/env bash
# Copies the user libraries of RDMA (rdma-core) into an image's root and checks that they load. NCCL
# opens libibverbs.so.1 by name at run time, which opens a provider for each device in
# /etc/libibverbs.d, so no program links them. Without them NCCL falls back to TCP without an error.
#
# usage: trainer-image/rdma.sh ROOT
# It uses the packages of this machine's Debian or Ubuntu release; apt-get download installs
# nothing.
set -euo pipefail
[ $# = 1 ] || { sed -n '2,8s/^# \{0,1\}//p' "$0" >&2; exit 64; }
root=$(realpath "$1")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"
triplet=$(dpkg-architecture -qDEB_HOST_MULTIARCH 2> /dev/null || echo x86_64-linux-gnu)

# Newer releases have renamed the package of this library.
packages=(libibverbs1 ibverbs-providers libnl-3-200 libnl-route-3-200)
for name in librdmacm1t64 librdmacm1; do
  if apt-cache show "$name" > /dev/null 2>&1; then packages+=("$name"); break; fi
done
(cd "$work" && apt-get download -qq "${packages[@]}" 2> download.log) || {
  cat "$work/download.log" >&2
  echo "error: cannot download ${packages[*]}; does apt-get update work here?" >&2
  exit 1
}
# The package of each library, for make sbom; the file is beside the root.
origins=$(dirname "$root")/origins
: > "$origins"
for package in "$work"/*.deb; do
  dpkg -x "$package" "$work/tree"
  # shellcheck disable=SC2016
  purl=$(dpkg-deb -W --showformat='pkg:deb/debian/${Package}@${Version}?arch=${Architecture}' "$package")
  dpkg -c "$package" | awk -v purl="$purl" '$6 ~ /\.so/ {n = split($6, part, "/"); print part[n], purl}' >> "$origins"
done

# Copy libraries and links unchanged, because providers are links to libraries; then the list of
# drivers and the licences.
for place in lib usr/lib; do
  [ -d "$work/tree/$place/$triplet" ] || continue
  mkdir -p "$root/$place/$triplet"
  cp -a "$work/tree/$place/$triplet/." "$root/$place/$triplet/"
done
rm -rf "$root/usr/lib/$triplet/rsocket" # only for programs that preload it
mkdir -p "$root/etc" "$root/usr/share/doc"
cp -a "$work/tree/etc/libibverbs.d" "$root/etc/"
for licence in "$work"/tree/usr/share/doc/*/copyright; do
  install -Dm644 "$licence" "$root/usr/share/doc/$(basename "$(dirname "$licence")")/copyright"
done

# Their other dependencies, such as the C library, come from this machine.
dirs=$root/usr/lib/$triplet:$root/lib/$triplet
staged=("$root/usr/lib/$triplet"/lib{ibverbs,rdmacm}.so.1 "$root/usr/lib/$triplet"/libibverbs/*.so)
for library in "${staged[@]}"; do
  LD_LIBRARY_PATH=$dirs ldd "$library" | grep -oE '/[^ ]+' | sort -u | while read -r needed; do
    case $needed in
      "$root"/*) ;;
      *) [ -e "$root$needed" ] || { mkdir -p "$root$(dirname "$needed")"; cp -L "$needed" "$root$needed"; } ;;
    esac
  done
done

# Each library must load with only the files in the root, and each listed driver needs its provider.
loader=$(cd "$root" && find . -name 'ld-linux*' | head -n 1)
dirs=$dirs:$root/lib64
for library in "${staged[@]}"; do
  resolved=$("$root/$loader" --inhibit-cache --library-path "$dirs" --list "$library" 2>&1) || {
    printf 'error: %s does not load in the image: %s\n' "${library#"$root"}" "$resolved" >&2
    exit 1
  }
  if outside=$(grep -E 'not found|=> /' <<< "$resolved" | grep -v "=> $root/"); then
    printf 'error: %s needs libraries that are not in the image:\n%s\n' "${library#"$root"}" "$outside" >&2
    exit 1
  fi
done
for driver in "$root"/etc/libibverbs.d/*.driver; do
  name=$(awk '$1 == "driver" {print $2}' "$driver")
  compgen -G "$root/usr/lib/$triplet/libibverbs/lib$(basename "$name")-rdmav*.so" > /dev/null || {
    echo "error: the image has no provider for $driver" >&2
    exit 1
  }
done
echo "RDMA: ${#staged[@]} libraries in $root"
