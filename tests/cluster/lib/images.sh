# cluster images, image, load: builds images FROM scratch with buildah and keeps them as archives.
# Sourced.
# shellcheck shell=bash
# shellcheck disable=SC2154
buildah_here() { buildah --root "$work/store" --runroot "$work/run" --storage-driver "${RH_STORAGE_DRIVER:-overlay}" "$@"; }
with_workspace() { # COMMAND...: runs it with a temporary image store
  mkdir -p "$RH_IMAGES"
  work=$(mktemp -d "$RH_IMAGES/.work.XXXXXX")
  # shellcheck disable=SC2064
  trap "rm -rf '$work'" EXIT
  echo '{"default": [{"type": "insecureAcceptAnything"}]}' > "$work/policy.json"
  "$@"
}
make_image() { # NAME TAG CONTEXT DOCKERFILE [DIR]: builds localhost/NAME:TAG as an archive
  local ref=localhost/$1:$2 archive=${5:-$RH_IMAGES}/$1.tar
  buildah_here bud -q --isolation chroot --signature-policy "$work/policy.json" -t "$ref" -f "$4" "$3" > /dev/null
  rm -f "$archive.new"
  buildah_here push -q --signature-policy "$work/policy.json" "$ref" "docker-archive:$archive.new:$ref"
  mv "$archive.new" "$archive"
  echo "$ref: $archive ($(du -m "$archive" | cut -f1) MiB)"
}
with_libraries() { # PROGRAM ROOT: copies the program and the shared libraries that it needs
  cp "$1" "$2/bin/"
  ldd "$1" | grep -oE '/[^ ]+' | while read -r library; do mkdir -p "$2$(dirname "$library")" && cp -L "$library" "$2$library"; done
}
base_images() {
  local root applet
  root=$work/pause/root && mkdir -p "$root/bin" && cp /bin/busybox "$root/bin/sleep"
  printf 'FROM scratch\nCOPY root /\nUSER 65535\nENTRYPOINT ["/bin/sleep", "2147483647"]\n' > "$work/pause/Dockerfile"
  make_image pause 1 "$work/pause" "$work/pause/Dockerfile"
  root=$work/toolbox/root && mkdir -p "$root"/{bin,etc,tmp} && chmod 1777 "$root/tmp" && cp /bin/busybox "$root/bin/"
  for applet in $(/bin/busybox --list); do [ "$applet" = busybox ] || ln -s busybox "$root/bin/$applet"; done
  printf 'root:x:0:0::/:/bin/sh\nuser:x:1000:1000::/:/bin/sh\n' > "$root/etc/passwd"
  cp "$RH_BIN/kubectl" "$root/bin/"
  # Not busybox's wget: it needs glibc's name service, which a static program lacks.
  with_libraries /usr/bin/curl "$root"
  printf 'FROM scratch\nCOPY root /\nUSER 1000\nENTRYPOINT ["/bin/sleep", "2147483647"]\n' > "$work/toolbox/Dockerfile"
  make_image toolbox 1 "$work/toolbox" "$work/toolbox/Dockerfile"
  root=$work/coredns/root && mkdir -p "$root" && cp "$RH_BIN/coredns" "$root/"
  printf 'FROM scratch\nCOPY root /\nENTRYPOINT ["/coredns"]\n' > "$work/coredns/Dockerfile"
  make_image coredns 1 "$work/coredns" "$work/coredns/Dockerfile"
  echo "$modules_hash" > "$RH_IMAGES/base.version"
}
cluster_images() {
  if [ "$(cat "$RH_IMAGES/base.version" 2>/dev/null)" = "$modules_hash" ]; then echo "the base images are already built"; return 0; fi
  with_workspace base_images
}
cluster_image() { # NAME CONTEXT [DOCKERFILE]
  mkdir -p "$RH_BUILT"
  with_workspace make_image "$1" dev "$2" "${3:-$2/Dockerfile}" "$RH_BUILT"
}
cluster_load() { # ARCHIVE: imports it into every node
  local node archive
  archive=$(readlink -e "$1") || { echo "the archive $1 does not exist: run make images"; return 1; }
  for node in $(all_nodes); do
    cluster_exec -n "$node" ctr images import "$archive" || return 1
  done
}
