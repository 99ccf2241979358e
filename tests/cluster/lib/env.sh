# Settings of the local cluster. The caller may set any of these variables.
# shellcheck shell=bash
repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd)
here=$repo/tests/cluster
: "${ROUNDHOUSE_CACHE:=${XDG_CACHE_HOME:-$HOME/.cache}/roundhouse}"
# The folder of links to the binaries has a hash of all their sources in its name, so another
# version is never used by mistake.
module_sources() { (cd "$here/modules/$1" && find . -name go.mod -o -name '*.go' | LC_ALL=C sort | xargs cat); }
modules_hash=$(for module in "$here"/modules/*/; do module_sources "$(basename "$module")"; done | sha256sum | cut -c1-12)
: "${RH_BIN:=$ROUNDHOUSE_CACHE/bin-$modules_hash}"  # binaries                       (kept by down)
: "${RH_IMAGES:=$ROUNDHOUSE_CACHE/images}"          # archives of base images        (kept by down)
: "${RH_TARGET:=$repo/target/cluster}"              # kubeconfig, bin/ and the state (removed by down)
# Per checkout, so that images of another checkout are never used by mistake.
: "${RH_BUILT:=$RH_TARGET/images}"                  # archives of all other images   (kept by down)
RH_STATE=$RH_TARGET/state
: "${RH_NAME:=roundhouse}"             # cgroup name; one cluster per name
: "${RH_NODES:=${NODES:-1}}"           # real nodes: node 1 in the control plane's box, each other in a box of its own
: "${RH_NODE:=node1}"                  # name of node 1; the others are node2, node3, ...
: "${RH_GPUS:=}"                       # simulated nvidia.com/gpu per real node; empty: none
: "${RH_NODE_GRACE:=50}"               # seconds of silence until a node is NotReady (10 or more; Kubernetes' default is 50)
: "${RH_EVICT_AFTER:=300}"             # seconds until pods without tolerations of their own leave a NotReady node
: "${RH_LINK:=rh-host}"                # host end of the veth pair (at most 15 characters)
: "${RH_HOST_IP:=10.200.0.1}" "${RH_BOX_IP:=10.200.0.2}" "${RH_LINK_BITS:=30}"
: "${RH_LAN:=10.201.0}"                # node i has $RH_LAN.i on the wire between the boxes
: "${RH_POD_NET:=10.244}"              # pods of node i: $RH_POD_NET.(i-1).0/24
: "${RH_SVC_CIDR:=10.96.0.0/16}" "${RH_SVC_API:=10.96.0.1}" "${RH_SVC_DNS:=10.96.0.10}"
: "${RH_PROXY_MODE:=iptables}"         # or nftables
: "${RH_CNI_BIN:=/usr/lib/cni}"        # Debian's containernetworking-plugins
export ROUNDHOUSE_CACHE RH_BIN RH_IMAGES RH_TARGET RH_BUILT RH_NAME RH_NODES RH_NODE RH_GPUS RH_NODE_GRACE RH_EVICT_AFTER RH_LINK \
  RH_HOST_IP RH_BOX_IP RH_LINK_BITS RH_LAN RH_POD_NET RH_SVC_CIDR RH_SVC_API RH_SVC_DNS RH_PROXY_MODE RH_CNI_BIN
export KUBECONFIG=$RH_STATE/admin.kubeconfig KUBECACHEDIR=$RH_STATE/cache
case ":$PATH:" in *":$RH_BIN:"*) ;; *) export PATH=$RH_BIN:$PATH ;; esac
export HELM_CACHE_HOME=$RH_STATE/helm HELM_CONFIG_HOME=$RH_STATE/helm HELM_DATA_HOME=$RH_STATE/helm
