# cluster build: builds all binaries from Go modules. Their versions and checksums are in modules/.
# Sourced.
# shellcheck shell=bash
# shellcheck disable=SC2154
kubernetes=v1.35.4
# The first version in which Kubernetes' own PodGroups are in beta.
kubernetes_with_groups=v1.37.2
kube=(kube-apiserver kube-controller-manager kube-scheduler kubelet kube-proxy kubectl)
# module_home MODULE: the folder of its binaries. A hash of their sources is in its name, so after a
# change of one module only that one is built again.
module_home() { echo "$ROUNDHOUSE_CACHE/go/$1-$(module_sources "$1" | sha256sum | cut -c1-12)"; }

# build_module MODULE WHAT PROGRAMS PACKAGE...: builds its programs (one word) if one is missing.
build_module() {
  local module=$1 what=$2 home program missing='' flags='-s -w' v=k8s.io/component-base/version of=$kubernetes minor total
  home=$(module_home "$module")
  for program in $3; do [ -x "$home/$program" ] || missing=1; done
  if [ -n "$missing" ]; then
    command -v go > /dev/null || { echo "Go is not installed: https://go.dev/dl (1.26 or newer)"; return 1; }
    [ "$module" != workload-api ] || of=$kubernetes_with_groups
    minor=$(cut -d . -f 2 <<< "$of")
    flags+=" -X $v.gitVersion=$of -X $v.gitMajor=1 -X $v.gitMinor=$minor -X $v.gitTreeState=clean"
    rm -rf "$home.partial"
    mkdir -p "$home.partial"
    echo "$what: counting the packages to compile"
    # Build in another folder and rename it, so that it never has half of the programs.
    (
      cd "$here/modules/$module" || exit
      # GOGC: the compiler collects garbage less often. dwarf=false: it writes no debug information,
      # which the linker would leave out.
      export CGO_ENABLED=0 GOGC=400
      total=$(go list -mod=readonly -gcflags=all=-dwarf=false -deps -f '{{if .Stale}}x{{end}}' "${@:4}" | grep -c x || true)
      go build -v -mod=readonly -gcflags=all=-dwarf=false -ldflags "$flags" -o "$home.partial/" "${@:4}" 2>&1 | "$repo/scripts/lib/progress" lines "$what, packages" "$total"
    )
    # Go names a program after the folder of its package, or after the module's path without the
    # version.
    [ ! -e "$home.partial/server" ] || mv "$home.partial/server" "$home.partial/etcd"
    [ ! -e "$home.partial/scheduler" ] || mv "$home.partial/scheduler" "$home.partial/volcano"
    # The programs of the version that all other tests use have these names in the same folder.
    [ "$module" != workload-api ] || for program in "$home.partial"/kube-*; do mv "$program" "$program-with-groups"; done
    rm -rf "$home"
    mv "$home.partial" "$home"
  fi
  for program in $3; do ln -sf "$home/$program" "$RH_BIN/$program"; done
}
# definitions NAME MODULE PATH FILE...: copies manifests of another project from the Go module with
# this path. A file manifests.yaml has the project's webhooks and becomes webhooks.yaml.
definitions() {
  local home=$RH_BIN/$1-definitions source file name
  [ ! -d "$home" ] || return 0
  source=$(cd "$here/modules/$2" && GOFLAGS=-mod=readonly go mod download -json "$3" | sed -n 's/.*"Dir": "\(.*\)".*/\1/p')
  rm -rf "$home.partial"
  mkdir -p "$home.partial"
  for file in "${@:4}"; do
    name=$(basename "$file")
    install -m 644 "$source/$file" "$home.partial/${name/#manifests/webhooks}"
  done
  mv "$home.partial" "$home"
}
# cluster_build [all|peers]: all adds what tests need: the simulator of nodes, a gang scheduler, the
# chart's unit tests, and definitions of other projects. peers adds controllers of other projects.
cluster_build() {
  mkdir -p "$RH_BIN"
  # One module, because these programs share most packages: separate builds take 50 % longer.
  build_module kube Kubernetes "${kube[*]} etcd coredns helm" "${kube[@]/#/k8s.io/kubernetes/cmd/}" \
    go.etcd.io/etcd/server/v3 ./coredns helm.sh/helm/v4/cmd/helm
  case ${1:-} in all | peers)
    build_module kwok "Simulator of nodes" kwok sigs.k8s.io/kwok/cmd/kwok
    # Not the third file of that folder, which completes pods of Jobs at once.
    definitions kwok kwok sigs.k8s.io/kwok kustomize/stage/pod/fast/pod-{ready,delete}.yaml
    # Most of its packages are shared with the kube-scheduler, in the same versions.
    build_module coscheduling "Scheduler with the plugin Coscheduling" coscheduling .
    build_module helm-unittest "Tests of the chart" helm-unittest github.com/helm-unittest/helm-unittest/cmd/helm-unittest
    definitions prometheus-operator prometheus-operator github.com/prometheus-operator/prometheus-operator \
      example/prometheus-operator-crd/monitoring.coreos.com_{podmonitors,servicemonitors,prometheusrules}.yaml
    definitions coscheduling coscheduling sigs.k8s.io/scheduler-plugins config/crd/bases/scheduling.x-k8s.io_podgroups.yaml
    definitions volcano volcano volcano.sh/volcano \
      config/crd/volcano/bases/{scheduling.volcano.sh_{podgroups,queues},topology.volcano.sh_hypernodes,shard.volcano.sh_nodeshards}.yaml \
      config/crd/volcano/bases/nodeinfo.volcano.sh_numatopologies.yaml ;;
  esac
  if [ "${1:-}" = peers ]; then
    local trainer=github.com/kubeflow/trainer/v2 crds=config/components/crd/bases webhooks=config/components/webhook/manifests.yaml
    build_module peers "JobSet, Kubeflow Trainer and Kueue" "jobset trainer-controller-manager kueue" \
      sigs.k8s.io/jobset $trainer/cmd/trainer-controller-manager sigs.k8s.io/kueue/cmd/kueue
    build_module kueue "TrainingJobs in Kueue" roundhouse-kueue .
    local with_groups=(kube-apiserver kube-controller-manager kube-scheduler)
    build_module workload-api "Kubernetes with the Workload API" "${with_groups[*]/%/-with-groups}" \
      "${with_groups[@]/#/k8s.io/kubernetes/cmd/}"
    build_module volcano "Scheduler of Volcano" volcano volcano.sh/volcano/cmd/scheduler
    definitions jobset peers sigs.k8s.io/jobset $crds/jobset.x-k8s.io_jobsets.yaml $webhooks
    definitions trainer-controller-manager peers $trainer manifests/base/webhook/manifests.yaml \
      manifests/base/crds/trainer.kubeflow.org_{clustertrainingruntimes,trainingruntimes,trainjobs}.yaml
    definitions kueue peers sigs.k8s.io/kueue $webhooks \
      $crds/kueue.x-k8s.io_{clusterqueues,localqueues,resourceflavors,workloads,admissionchecks,cohorts,topologies}.yaml \
      $crds/kueue.x-k8s.io_{workloadpriorityclasses,multikueueclusters,multikueueconfigs,provisioningrequestconfigs}.yaml
  fi
  echo "$RH_BIN"
}
