# Functions that lay out the root of an image `FROM scratch`. Sourced after common.sh.
# shellcheck shell=bash

# new_root NAME: creates a root with the files of every image, and sets `root`.
new_root() {
  root=$repo/target/images/$1/root
  rm -rf "$root"
  mkdir -p "$root"/{etc/ssl/certs,tmp,usr/local/bin,usr/local/lib}
  chmod 1777 "$root/tmp"
  printf 'root:x:0:0:root:/:/sbin/nologin\nroundhouse:x:65532:65532:roundhouse:/tmp:/sbin/nologin\n' > "$root/etc/passwd"
  printf 'root:x:0:\nroundhouse:x:65532:\n' > "$root/etc/group"
  if [ -e /etc/ssl/certs/ca-certificates.crt ]; then cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"; fi
}

# add_programs DIRECTORY NAME...: adds programs of PROFILE from a target directory, stripped.
add_programs() {
  local from=$1/$PROFILE
  shift
  [ "$PROFILE" != dev ] || from=${from%dev}debug
  for name in "$@"; do strip -o "$root/usr/local/bin/$name" "$from/$name"; done
}

# add_libraries PROGRAM: adds the shared libraries of the program where its loader looks for them.
add_libraries() {
  local library
  LD_LIBRARY_PATH=$LIBTORCH/lib ldd "$1" | grep -oE '/[^ ]+' | sort -u | while read -r library; do
    case $library in
      "$LIBTORCH"/*) cp -L "$library" "$root/usr/local/lib/" ;;
      *) mkdir -p "$root$(dirname "$library")" && cp -L "$library" "$root$library" ;;
    esac
  done
}
