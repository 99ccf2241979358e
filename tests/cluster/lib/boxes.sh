# Boxes: nodes as namespaces, their cgroups, and how a box starts and ends. Sourced after env.sh.
# shellcheck shell=bash
# shellcheck disable=SC2119,SC2120,SC2154

# --- nodes: number, name, directory, address, pods -----------------------------------------------
name_of() { if [ "$1" = 1 ]; then echo "$RH_NODE"; else echo "node$1"; fi; }
number_of() { if [ "$1" = "$RH_NODE" ]; then echo 1; else echo "${1#node}"; fi; }
home_of() { if [ "$1" = "$RH_NODE" ]; then echo "$RH_STATE"; else echo "$RH_STATE/$1"; fi; }
ip_of() { if [ "$1" = 1 ]; then echo "$RH_BOX_IP"; else echo "$RH_LAN.$1"; fi; }
pods_of() { echo "$RH_POD_NET.$(($1 - 1))"; }
cgroup_of() { if [ "$1" = "$RH_NODE" ]; then echo "$RH_NAME"; else echo "$RH_NAME.$1"; fi; }
all_nodes() { local i; for i in $(seq "$RH_NODES"); do name_of "$i"; done; }
other_node() { # NODE: fails unless the node has a box of its own
  case " $(all_nodes | tail -n +2 | tr '\n' ' ')" in
    *" ${1:-} "*) ;;
    *) echo "give one of the nodes: $(all_nodes | tail -n +2 | tr '\n' ' ')(node1 holds the control plane)" >&2; exit 2 ;;
  esac
}

# --- life of a box: box.id has "pid starttime" of its PID 1, so a reused pid is not taken for it ---
proc_id() {
  local stat
  stat=$(cat "/proc/$1/stat" 2>/dev/null) || return 1
  stat=${stat##*) }
  # shellcheck disable=SC2086
  set -- "$1" $stat
  echo "$1 ${21}"
}
box_pid() { cut -d' ' -f1 "$(home_of "${1:-$RH_NODE}")/box.id"; }
box_alive() {
  local file
  file=$(home_of "${1:-$RH_NODE}")/box.id
  [ -f "$file" ] && [ "$(proc_id "$(cut -d' ' -f1 "$file")")" = "$(cat "$file")" ]
}
kill_box() {
  local pid
  pid=$(box_pid "$1")
  kill -KILL "$pid"
  thaw "$1" # a frozen process ends only after it is thawed
  while [ -d "/proc/$pid" ] && [ "$(cut -d' ' -f3 "/proc/$pid/stat" 2>/dev/null)" != Z ]; do sleep 0.02; done
}
in_control_net() { nsenter -t "$(box_pid)" -n -- "$@"; }

# --- cgroups -------------------------------------------------------------------------------------
cgroup_mounts() { awk '{for (i = 7; i <= NF; i++) if ($i == "-") {if ($(i+1) == "cgroup" || $(i+1) == "cgroup2") print $5; break}}' /proc/self/mountinfo; }
make_cgroups() {
  local mount controller file
  for mount in $(cgroup_mounts); do
    if [ -f "$mount/cgroup.controllers" ]; then
      for controller in cpuset cpu memory pids io hugetlb; do echo "+$controller" > "$mount/cgroup.subtree_control" 2>/dev/null || true; done
    fi
    mkdir -p "$mount/$1"
    for file in cpuset.cpus cpuset.mems; do
      [ -f "$mount/$file" ] && [ ! -f "$mount/cgroup.controllers" ] && cat "$mount/$file" > "$mount/$1/$file"
    done || true
  done
}
remove_cgroups() { # NAME...: waits until they are empty, and removes them
  local mount name left
  for _ in $(seq 100); do
    left=
    for mount in $(cgroup_mounts); do
      for name in "$@"; do
        [ -d "$mount/$name" ] || continue
        find "$mount/$name" -depth -type d -exec rmdir {} \; 2>/dev/null
        if [ -d "$mount/$name" ]; then left=$name; fi
      done
    done
    [ -n "$left" ] || return 0
    sleep 0.05
  done
  echo "cgroup $left is still in use"
  return 1
}
freeze() { # NODE 1|0: freezes or thaws all processes of the box at once
  local mount
  for mount in $(cgroup_mounts); do
    mount=$mount/$(cgroup_of "$1")
    if [ -f "$mount/freezer.state" ]; then if [ "$2" = 1 ]; then echo FROZEN; else echo THAWED; fi > "$mount/freezer.state"; fi
    if [ -f "$mount/cgroup.freeze" ]; then echo "$2" > "$mount/cgroup.freeze"; fi
  done
}
thaw() { freeze "$1" 0; }

# --- start: one cgroup, one process tree, one mount table, one network -----------------------------
# launch NODE: starts the node's box. The box of node 1 is connected to this host by a veth pair.
# The other boxes are connected to a bridge in the box of node 1 and live in its pid namespace, so
# they end together with it. Sets `outer`, the process to kill when a start fails.
launch() {
  local node=$1 home parent='' box child
  home=$(home_of "$node")
  [ "$node" = "$RH_NODE" ] || parent=$(box_pid)
  rm -rf "$home/run"
  mkdir -p "$home"/{run,logs,varlib,varlog,sysctl,cni}
  make_cgroups "$(cgroup_of "$node")"
  # shellcheck disable=SC2016,SC2046
  setsid bash -c 'script=$1 node=$2 parent=$3 group=$4; shift 4
    for mount in "$@"; do echo $$ > "$mount/$group/cgroup.procs"; done
    exec ${parent:+nsenter -t "$parent" --pid} unshare --net --mount --pid --cgroup --uts --ipc --fork --kill-child --mount-proc bash "$script" "$node"
  ' box "$here/lib/box.sh" "$node" "$parent" "$(cgroup_of "$node")" $(cgroup_mounts) >> "$home/logs/box.log" 2>&1 < /dev/null &
  outer=$!
  box=$outer
  disown
  until [ "$(awk '/^NSpid:/ {print (NF > 2) ? $NF : 0}' "/proc/$box/status" 2>/dev/null)" = 1 ]; do
    [ -d "/proc/$outer" ] || { echo "the box of $node did not start:"; tail -n 20 "$home/logs/box.log"; return 1; }
    sleep 0.02
    child=$(ps -o pid= --ppid "$box" | head -n 1 | tr -d ' ') || true
    box=${child:-$box}
  done
  proc_id "$box" > "$home/box.id"
  # The only connection out: a /30 to this host, which forwards nothing and answers only the box.
  if [ -z "$parent" ]; then
    ip link add "$RH_LINK" type veth peer name uplink netns "$box"
    echo 0 > "/proc/sys/net/ipv4/conf/$RH_LINK/forwarding"
    echo 1 > "/proc/sys/net/ipv4/conf/$RH_LINK/rp_filter"
    echo 1 > "/proc/sys/net/ipv6/conf/$RH_LINK/disable_ipv6" 2>/dev/null || true
    ip addr add "$RH_HOST_IP/$RH_LINK_BITS" dev "$RH_LINK"
    ip link set "$RH_LINK" up
  else
    until in_control_net ip link show lan > /dev/null 2>&1; do box_alive || return 1; sleep 0.02; done
    in_control_net ip link add "to-$node" type veth peer name uplink netns "$box"
    in_control_net ip link set "to-$node" master lan up
  fi
}

# --- nodes in the API ----------------------------------------------------------------------------
set_gpus() { # NODE COUNT
  kubectl patch node "$1" --subresource=status --type=json -p '[
    {"op": "add", "path": "/status/capacity/nvidia.com~1gpu", "value": "'"$2"'"},
    {"op": "add", "path": "/status/allocatable/nvidia.com~1gpu", "value": "'"$2"'"}]'
}
# node_ready NODE: whether it is Ready since this boot. Right after a start, the API may still have
# the state from before.
node_ready() {
  [ "$(kubectl get node "$1" -o jsonpath='{.status.nodeInfo.bootID}{.status.conditions[?(@.type=="Ready")].status}' 2>/dev/null)" \
    = "$(cat "$(home_of "$1")/sysctl/kernel/random/boot_id" 2>/dev/null)True" ]
}

# The settings of a running cluster take precedence over those of the caller.
# shellcheck disable=SC1091
if box_alive; then . "$RH_STATE/settings"; fi
