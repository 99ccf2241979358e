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
  "helm-unittest helm-unittest github.com/helm-unittest/helm-unittest/cmd/helm-unittest"
)
cluster_build() {
  local entry name module package flags built number=0 started
  mkdir -p "$RH_BIN"
  for entry in "${binaries[@]}"; do
    read -r name module package <<< "$entry"
    number=$((number + 1))
    # Kept by what it is built from, so that a change of one module builds that one anew.
    built=$ROUNDHOUSE_CACHE/go/$module-$(sha256sum "$here/modules/$module/go.mod" | cut -c1-12)/$name
    if [ ! -x "$built" ]; then
      command -v go > /dev/null || { echo "Go is not installed: https://go.dev/dl (1.26 or newer)"; return 1; }
      mkdir -p "${built%/*}"
      started=$SECONDS
      flags='-s -w'
      if [ "$module" = kube ]; then
        local v=k8s.io/component-base/version
        flags+=" -X $v.gitVersion=$kubernetes -X $v.gitMajor=1 -X $v.gitMinor=35 -X $v.gitTreeState=clean"
      fi
      # Built beside its place and renamed: an interrupted build never passes for a finished one.
      (cd "$here/modules/$module" && CGO_ENABLED=0 go build -mod=readonly -ldflags "$flags" -o "$built.partial" "$package")
      mv "$built.partial" "$built"
      echo "[$number/${#binaries[@]}] $name: $((SECONDS - started)) s"
    fi
    ln -sf "$built" "$RH_BIN/$name"
  done
  echo "$RH_BIN"
}
