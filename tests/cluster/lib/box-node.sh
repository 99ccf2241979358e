# shellcheck shell=bash disable=SC2154
# Starts what every node runs: containerd, kubelet, kube-proxy and the enforcer of NetworkPolicies.
# Sourced by box.sh.
cat > "$N/containerd.toml" <<K
version = 2
root = "$N/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.aufs", "io.containerd.tracing.processor.v1.otlp", "io.containerd.internal.v1.tracing"]
[grpc]
address = "/run/containerd/containerd.sock"
[plugins."io.containerd.internal.v1.opt"]
path = "$N/opt"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "localhost/pause:1"
restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "overlayfs"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "$RH_CNI_BIN"
conf_dir = "$N/cni"
K
cat > "$N/cni/10-bridge.conflist" <<K
{"cniVersion": "0.4.0", "name": "rh", "plugins": [
 {"type": "bridge", "bridge": "rh0", "isGateway": true, "hairpinMode": true,
  "ipam": {"type": "host-local", "ranges": [[{"subnet": "$(pods_of "$i").0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
 {"type": "portmap", "capabilities": {"portMappings": true}}]}
K
supervise containerd containerd -c "$N/containerd.toml"
[ -e "$N/images.done" ] || ( for _ in $(seq 300); do ctr -a /run/containerd/containerd.sock version >/dev/null 2>&1 && break; sleep 0.05; done
  for f in "$RH_IMAGES"/{pause,coredns,toolbox}.tar; do ctr -a /run/containerd/containerd.sock -n k8s.io images import "$f"; done >> "$N/logs/images.log" 2>&1
  touch "$N/images.done" ) &

: > "$N/resolv.conf"
cat > "$N/kubelet.yaml" <<K
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: "$P/ca.crt"}}
authorization: {mode: Webhook}
cgroupDriver: cgroupfs
failCgroupV1: false
failSwapOn: false
containerRuntimeEndpoint: "unix:///run/containerd/containerd.sock"
clusterDNS: [$RH_SVC_DNS]
clusterDomain: cluster.local
resolvConf: "$N/resolv.conf"
podLogsDir: "$N/podlogs"
volumePluginDir: "$N/volume-plugins"
enforceNodeAllocatable: []
# In bytes: with a percentage of a large disk the kubelet would reject pods that fit.
evictionHard: {memory.available: 100Mi, nodefs.available: 300Mi, imagefs.available: 300Mi}
imageGCHighThresholdPercent: 100
nodeStatusUpdateFrequency: 5s
nodeLeaseDurationSeconds: $((RH_NODE_GRACE*4/5))
maxPods: 250
oomScoreAdj: 0
serializeImagePulls: false
shutdownGracePeriod: 0s
K
for _ in $(seq 1200); do [ -e "$S/run/api.ready" ] && break; sleep 0.05; done
supervise kubelet "$RH_BIN/kubelet" --config="$N/kubelet.yaml" --kubeconfig="$N/kubelet.kubeconfig" \
  --root-dir="$N/kubelet" --cert-dir="$N/kubelet/pki" --hostname-override="$node" --node-ip="$(ip_of "$i")" \
  --maximum-dead-containers-per-container=5 # keeps their logs for the analysis of a failed test
supervise proxy "$RH_BIN/kube-proxy" --kubeconfig="$S/proxy.kubeconfig" --hostname-override="$node" --oom-score-adj=0 \
  --proxy-mode="$RH_PROXY_MODE" --cluster-cidr="$RH_POD_NET.0.0/16" --conntrack-max-per-core=0
# shellcheck disable=SC2046
supervise netpol python3 "$here/lib/netpol.py" "$S/netpol.kubeconfig" "$node" $(all_nodes)
