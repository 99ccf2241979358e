# cluster exec, pid, node, simulate: what tests do with a running cluster. Sourced.
# shellcheck shell=bash
# shellcheck disable=SC2119,SC2154
cluster_exec() { # [-n NODE] COMMAND...: runs it inside the box of a node
  local node=$RH_NODE
  if [ "${1:-}" = -n ]; then node=$2; shift 2; fi
  box_alive "$node" || { echo "$node is not running" >&2; return 1; }
  CONTAINERD_ADDRESS=/run/containerd/containerd.sock CONTAINERD_NAMESPACE=k8s.io \
    nsenter -t "$(box_pid "$node")" -n -m -p -C -u -i -- "$@"
}

# pids_in_box PLACE PID [PROC]: the pids on this host of the processes that have the pid PID in the
# PLACE-th pid namespace, where the first is the one of this host.
pids_in_box() {
  # NSpid lists the pids of a process from the outermost namespace to the innermost. A process may
  # end before its file is read: grep then continues with the next file, while awk would stop.
  { grep -shE '^NSpid:' "${3:-/proc}"/[0-9]*/status || true; } | awk -v place="$1" -v want="$2" '$(place + 1) == want {print $2}'
}

cluster_pid() { # NAMESPACE POD [CONTAINER]: the pid on this host of a container's main process
  local node box container id inner place pid up
  node=$(kubectl -n "$1" get pod "$2" -o jsonpath='{.spec.nodeName}')
  box=$(box_pid "$node")
  container=${3:-$(kubectl -n "$1" get pod "$2" -o jsonpath='{.spec.containers[0].name}')}
  id=$(kubectl -n "$1" get pod "$2" -o jsonpath="{.status.containerStatuses[?(@.name=='$container')].containerID}")
  inner=$(cluster_exec -n "$node" ctr task ls | awk -v id="${id#containerd://}" '$1 == id {print $2}')
  [ -n "$inner" ] || { echo "$1/$2 has no running container $container" >&2; return 1; }
  place=$(awk '/^NSpid:/ {print NF - 1}' "/proc/$box/status") # of the box's PID 1
  for pid in $(pids_in_box "$place" "$inner"); do
    up=$pid
    while [ "$up" -gt 1 ] && [ "$up" != "$box" ]; do
      up=$(awk '/^PPid:/ {print $2}' "/proc/$up/status" 2>/dev/null) || up=0
      up=${up:-0}
    done
    if [ "$up" = "$box" ]; then echo "$pid"; return; fi
  done
  echo "container $container of $1/$2 has ended" >&2
  return 1
}

cluster_node() { # kill|start NODE, partition|pause|kubelet NODE on|off
  local action=${1:-} node=${2:-} switch=${3:-}
  case $action in kill | start | partition | pause | kubelet) ;; *) echo "give kill, start, partition, pause or kubelet" >&2; return 2 ;; esac
  other_node "$node"
  case $action:$switch in
    kill:) # Cut the network first, so that no closing packet gets out: a power cut sends none.
      box_alive "$node" || { echo "$node is not running"; return 1; }
      in_control_net ip link set "to-$node" down
      kill_box "$node"
      in_control_net ip link del "to-$node" 2>/dev/null || true
      remove_cgroups "$(cgroup_of "$node")" ;;
    start:) # The node boots again with its disk unchanged.
      box_alive "$node" && { echo "$node is already running"; return 1; }
      rm -f "$(home_of "$node")/sysctl/kernel/random/boot_id"
      launch "$node"
      wait_for 60 "$node to be Ready" node_ready "$node"
      [ -z "$RH_GPUS" ] || set_gpus "$node" "$RH_GPUS" > /dev/null ;;
    partition:on) in_control_net ip link set "to-$node" down ;;
    partition:off) in_control_net ip link set "to-$node" up ;;
    pause:on) freeze "$node" 1 ;;
    pause:off) thaw "$node" ;;
    kubelet:off) # Containers keep running.
      touch "$(home_of "$node")/run/kubelet.down"
      cluster_exec -n "$node" bash -c "kill -KILL $(cat "$(home_of "$node")/run/kubelet.pid")" ;;
    kubelet:on) rm -f "$(home_of "$node")/run/kubelet.down" ;;
    *) echo "usage: cluster node kill|start NODE, cluster node partition|pause|kubelet NODE on|off" >&2; return 2 ;;
  esac
}

cluster_simulate() { # COUNT: adds simulated nodes with 8 GPUs each; KWOK moves their pods to Running
  local i node count=${1:-200}
  [ -x "$RH_BIN/kwok" ] || { echo "the simulator is not built: run tests/cluster/cluster build all, then start the cluster again"; return 1; }
  for i in $(seq 0 $((count - 1))); do
    node=$(printf 'sim-%03d' "$i")
    cat << Y
---
apiVersion: v1
kind: Node
metadata:
  name: $node
  annotations: {kwok.x-k8s.io/node: fake, node.alpha.kubernetes.io/ttl: "0"}
  labels: {type: kwok, kubernetes.io/hostname: $node, kubernetes.io/os: linux, kubernetes.io/arch: amd64, topology.kubernetes.io/zone: zone-$((i / 50))}
spec: {taints: [{key: kwok.x-k8s.io/node, value: fake, effect: NoSchedule}]}
status:
  capacity: {cpu: "96", memory: 1Ti, pods: "110", nvidia.com/gpu: "8"}
  allocatable: {cpu: "96", memory: 1Ti, pods: "110", nvidia.com/gpu: "8"}
  nodeInfo: {architecture: amd64, operatingSystem: linux, kubeletVersion: v1.35.4, bootID: "", containerRuntimeVersion: "", kernelVersion: "", kubeProxyVersion: "", machineID: "", osImage: "", systemUUID: ""}
Y
  done | kubectl create -f - > /dev/null
  # kubectl wait asks for the nodes one by one, which takes 20 s for 200.
  for _ in $(seq 300); do
    [ "$(kubectl get nodes -l type=kwok --no-headers | grep -cw Ready)" -lt "$count" ] || return 0
    sleep 0.3
  done
  echo "not all simulated nodes became Ready"
  return 1
}
