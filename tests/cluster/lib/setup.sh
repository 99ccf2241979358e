# cluster setup: installs the Debian or Ubuntu packages that are missing. Sourced.
# shellcheck shell=bash
cluster_setup() {
  local packages=(containerd runc containernetworking-plugins iptables nftables iproute2 util-linux procps openssl prometheus
    curl bc buildah busybox-static python3 shellcheck) missing=() package
  command -v apt-get > /dev/null || { echo "apt-get is not available: install what Debian calls ${packages[*]}"; return 1; }
  for package in "${packages[@]}"; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
  done
  [ ${#missing[@]} -gt 0 ] || { echo "all packages are installed"; return 0; }
  echo "installing ${missing[*]}"
  apt-get update -qq
  # RUNLEVEL=1: the cluster starts the daemons of these packages itself, so the host must not.
  DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 apt-get install -y -qq --no-install-recommends "${missing[@]}" > /dev/null
}
