# cluster build: every binary, from Go modules whose versions and checksums are committed. Sourced.
# shellcheck shell=bash
# shellcheck disable=SC2154
kubernetes=v1.35.4
# name, module directory, package
binaries=(
  "kube-apiserver kube k8s.io/kubernetes/cmd/kube-apiserver"
  "kube-controller-manager kube k8s.io/kubernetes/cmd/kube-controller-manager"
  "kube-scheduler kube k8s.io/kubernetes/cmd/kube-scheduler"
  "kubelet kube k8s.io/kubernetes/cmd/kubelet"
  "kube-proxy kube k8s.io/kubernetes/cmd/kube-proxy"
  "kubectl kube k8s.io/kubernetes/cmd/kubectl"
  "etcd etcd go.etcd.io/etcd/server/v3"
  "coredns coredns github.com/coredns/coredns"
  "helm helm helm.sh/helm/v4/cmd/helm"
  "kwok kwok sigs.k8s.io/kwok/cmd/kwok"
)
cluster_build() {
  local entry name module package flags number=0 started
  mkdir -p "$RH_BIN"
  for entry in "${binaries[@]}"; do
    read -r name module package <<< "$entry"
    number=$((number + 1))
    [ ! -x "$RH_BIN/$name" ] || continue
    command -v go > /dev/null || { echo "Go is not installed: https://go.dev/dl (1.26 or newer)"; return 1; }
    started=$SECONDS
    flags='-s -w'
    if [ "$module" = kube ]; then
      local v=k8s.io/component-base/version
      flags+=" -X $v.gitVersion=$kubernetes -X $v.gitMajor=1 -X $v.gitMinor=35 -X $v.gitTreeState=clean"
    fi
    # Built beside its place and renamed: an interrupted build never passes for a finished one.
    (cd "$here/modules/$module" && CGO_ENABLED=0 go build -mod=readonly -ldflags "$flags" -o "$RH_BIN/.$name" "$package")
    mv "$RH_BIN/.$name" "$RH_BIN/$name"
    echo "[$number/${#binaries[@]}] $name: $((SECONDS - started)) s"
  done
  echo "$RH_BIN"
}
