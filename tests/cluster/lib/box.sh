#!/usr/bin/env bash
# shellcheck disable=SC1090,SC1091,SC2013,SC2034,SC2154
# box.sh NODE: PID 1 of a node's box. launch (boxes.sh) starts it in new net, mount, pid, cgroup,
# uts and ipc namespaces. When it ends, the kernel kills all its descendants and removes all its
# mounts, firewall rules and links.
set -euo pipefail
for part in env boxes; do . "$(dirname "$0")/$part.sh"; done
node=$1 i=$(number_of "$1") S=$RH_STATE N=$(home_of "$1") P=$RH_STATE/pki
trap 'exit 0' TERM INT

# --- mounts: private /sys, /run, /var/lib, /var/log and cgroups -----------------------------------
mapfile -t groups < <(awk '{for(i=7;i<=NF;i++) if($i=="-") {if($(i+1)=="cgroup"||$(i+1)=="cgroup2") print $(i+1), $5, $(i+3); break}}' /proc/self/mountinfo)
mount --make-rshared /
mount -t sysfs sysfs /sys
[ "${#groups[@]}" -gt 1 ] && mount -t tmpfs -o mode=755 tmpfs /sys/fs/cgroup
for g in "${groups[@]}"; do
  read -r type dir opts <<< "$g"; mkdir -p "$dir"
  if [ "$type" = cgroup2 ]; then mount -t cgroup2 cgroup2 "$dir"
  else o=$(tr ',' '\n' <<< "$opts" | grep -vE '^(rw|ro|xattr|clone_children)$' | paste -sd,)
    case "$o" in name=*) o="none,$o";; esac; mount -t cgroup -o "$o" cgroup "$dir"; fi
done
if [ -f /sys/fs/cgroup/cgroup.controllers ]; then   # cgroup v2 alone: a group with controllers may have no processes
  mkdir -p /sys/fs/cgroup/init; while read -r p; do echo "$p" > /sys/fs/cgroup/init/cgroup.procs || true; done < /sys/fs/cgroup/cgroup.procs
  for c in $(cat /sys/fs/cgroup/cgroup.controllers); do echo "+$c" > /sys/fs/cgroup/cgroup.subtree_control || true; done
fi
mount -t tmpfs -o mode=755 tmpfs /run; mkdir -p /run/netns /run/lock
mount --bind "$N/varlib" /var/lib; mount --bind "$N/varlog" /var/log
# The kubelet changes these kernel settings, so it gets private copies instead of the host's. A new
# boot_id marks each start as a boot.
for kv in vm/overcommit_memory=1 vm/panic_on_oom=0 kernel/panic=10 kernel/panic_on_oops=1 kernel/keys/root_maxkeys=1000000 kernel/keys/root_maxbytes=25000000 \
  "kernel/random/boot_id=$(cat /proc/sys/kernel/random/uuid)"; do
  f=$N/sysctl/${kv%%=*}; mkdir -p "$(dirname "$f")"; echo "${kv##*=}" > "$f"; mount --bind "$f" "/proc/sys/${kv%%=*}"; done

# --- network: loopback, uplink, pod bridge, routes to the pods of other nodes; no default route ----
hostname "$node"; ip link set lo up
for _ in $(seq 500); do ip link show uplink >/dev/null 2>&1 && break; sleep 0.02; done
if [ "$i" = 1 ]; then
  ip addr add "$RH_BOX_IP/$RH_LINK_BITS" dev uplink; ip link set uplink up
  [ "$RH_NODES" = 1 ] || { ip link add lan type bridge; ip addr add "$RH_LAN.1/24" dev lan; ip link set lan up; }
else ip addr add "$RH_LAN.$i/24" dev uplink; ip link set uplink up; ip route add "$RH_BOX_IP" via "$RH_LAN.1"; fi
for j in $(seq "$RH_NODES"); do [ "$j" = "$i" ] || ip route add "$(pods_of "$j").0/24" via "$RH_LAN.$j"; done
# NetworkPolicies and ClusterIPs between pods of one bridge need netfilter on that bridge. Frames
# between nodes must not pass through the rules of node 1, so netfilter is off by default.
echo 0 > /proc/sys/net/bridge/bridge-nf-call-iptables
ip link add rh0 type bridge nf_call_iptables 1; ip addr add "$(pods_of "$i").1/24" dev rh0; ip link set rh0 up
# Processes of the node reach ClusterIPs only with a route: the kernel looks it up before DNAT.
ip route add "$RH_SVC_CIDR" dev rh0 src "$(ip_of "$i")"
echo 1 > /proc/sys/net/ipv4/ip_forward

# --- supervised daemons: restart after 1 s; `touch run/NAME.down` keeps one stopped ---------------
supervise() { local n=$1; shift
  ( trap - TERM; while :; do while [ -e "$N/run/$n.down" ]; do sleep 0.1; done
      "$@" >> "$N/logs/$n.log" 2>&1 & echo $! > "$N/run/$n.pid"; wait $! || true; sleep 1; done ) & }
[ "$i" != 1 ] || . "$here/lib/box-control.sh"
. "$here/lib/box-node.sh"
while :; do wait || true; sleep 1; done
