# cluster up, down, status, free. Sourced.
# shellcheck shell=bash
# shellcheck disable=SC2119,SC2154
say() { printf '%6.1fs  %s\n' "$(echo "$(date +%s.%N) - $t0" | bc)" "$*"; }

# --- keys, certificates, kubeconfigs -------------------------------------------------------------
private_key() { openssl ecparam -name prime256v1 -genkey -noout -out "$1.key"; }
certificate() { # NAME SUBJECT EXTENSION
  private_key "$1"
  openssl req -new -key "$1.key" -subj "$2" | openssl x509 -req -CA ca.crt -CAkey ca.key \
    -CAcreateserial -days 365 -out "$1.crt" -extfile <(echo "$3") 2>/dev/null
}
user() { # FILE USER GROUP
  local token
  token=$(head -c 16 /dev/urandom | od -An -tx1 | tr -d ' \n')
  echo "$token,$2,$2${3:+,\"$3\"}" >> tokens.csv
  cat > "$RH_STATE/$1.kubeconfig" << K
apiVersion: v1
kind: Config
clusters: [{name: local, cluster: {server: "https://$RH_BOX_IP:6443", certificate-authority-data: "$(base64 -w0 ca.crt)"}}]
users: [{name: $1, user: {token: $token}}]
contexts: [{name: local, context: {cluster: local, user: $1}}]
current-context: local
K
  chmod 600 "$RH_STATE/$1.kubeconfig"
}
make_identities() {
  local node file
  cd "$RH_STATE/pki"
  private_key ca
  openssl req -x509 -new -key ca.key -out ca.crt -days 365 -subj /CN=roundhouse-local 2>/dev/null
  private_key sa
  openssl ec -in sa.key -pubout -out sa.pub 2>/dev/null
  certificate api /CN=kube-apiserver "subjectAltName=IP:127.0.0.1,IP:$RH_SVC_API,IP:$RH_BOX_IP,DNS:localhost,DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,DNS:kubernetes.default.svc.cluster.local"
  certificate api-kubelet /O=system:masters/CN=kube-apiserver-kubelet-client "extendedKeyUsage=clientAuth"
  : > tokens.csv
  user admin admin system:masters
  for node in $(all_nodes); do
    mkdir -p "$(home_of "$node")"
    file=$(home_of "$node")/kubelet
    user "${file#"$RH_STATE/"}" "system:node:$node" system:nodes
  done
  user controller-manager system:kube-controller-manager ""
  user scheduler system:kube-scheduler ""
  user proxy system:kube-proxy ""
  user netpol netpol ""
  user kwok kwok ""
}

# --- waiting, and what to print after a timeout --------------------------------------------------
explain() { # prints the end of each log that ends with an error
  local node log
  for node in $(all_nodes); do
    for log in "$(home_of "$node")"/logs/*.log; do
      [ -s "$log" ] || continue
      grep -qiE 'panic|fatal|error|failed|cannot' <(tail -n 8 "$log") || continue
      echo "--- $node: $(basename "$log" .log), last lines of $log"
      tail -n 8 "$log" | cut -c1-300
    done
  done
}
wait_for() { # SECONDS WHAT COMMAND...
  local left=$(($1 * 10)) what=$2
  shift 2
  while [ "$left" -gt 0 ]; do
    "$@" > /dev/null 2>&1 && return 0
    box_alive || { echo "the box died while waiting for: $what"; explain; return 1; }
    sleep 0.1
    left=$((left - 1))
  done
  echo "timed out waiting for: $what"
  explain
  return 1
}
cluster_free() { # fails if another cluster holds the network link
  box_alive && return 0
  if ip link show "$RH_LINK" > /dev/null 2>&1; then
    echo "another cluster uses the link $RH_LINK ($(cat "/run/roundhouse-$RH_NAME.owner" 2>/dev/null || echo 'its checkout is unknown')):"
    echo "run make cluster-down there, or ip link del $RH_LINK if that cluster no longer runs"
    return 1
  fi
}
check_place() {
  local binary
  box_alive && { echo "the cluster is already running: $RH_STATE"; return 1; }
  cluster_free || return 1
  case "$RH_STATE/" in
    /var/lib/* | /var/log/* | /run/* | /var/run/* | /sys/* | /proc/*) echo "the cluster cannot live under $RH_STATE"; return 1 ;;
  esac
  for binary in etcd kube-apiserver kube-controller-manager kube-scheduler kubelet kube-proxy kubectl coredns helm; do
    [ -x "$RH_BIN/$binary" ] || { echo "missing $RH_BIN/$binary: run tests/cluster/cluster build"; return 1; }
  done
  [ -e "$RH_IMAGES/pause.tar" ] || { echo "missing base images: run tests/cluster/cluster images"; return 1; }
}

cluster_up() {
  local node
  # Not local, because the trap below runs after this function has returned.
  t0=$(date +%s.%N) outer='' failed=1
  check_place || return 1
  modprobe -a br_netfilter overlay nf_conntrack 2>/dev/null || true # built into some kernels, modules of others
  rm -rf "$RH_STATE"
  mkdir -p "$RH_STATE/pki" "$RH_TARGET/bin"
  chmod 700 "$RH_STATE/pki"
  export -p | grep ' RH_' > "$RH_STATE/settings"
  (make_identities)
  say "keys and kubeconfigs"
  # After a failed or interrupted start only its logs are kept.
  trap 'if [ "$failed" = 1 ]; then
      [ -z "$outer" ] || kill -KILL "$outer" 2>/dev/null
      cp -r "$RH_STATE/logs" "$RH_TARGET/failed-logs" 2>/dev/null
      cluster_down > /dev/null 2>&1; echo "the cluster did not start; its logs: $RH_TARGET/failed-logs"
    fi' EXIT
  trap 'exit 130' INT TERM
  echo "$repo" > "/run/roundhouse-$RH_NAME.owner"
  for node in $(all_nodes); do
    launch "$node"
    say "box of $node (pid $(box_pid "$node"))"
  done
  wait_for 60 "the API server" test -e "$RH_STATE/run/api.ready"
  say "API server ready"
  kubectl apply -f "$here/manifests/base.yaml" > /dev/null
  for node in $(all_nodes); do
    wait_for 60 "the base images on $node" test -e "$(home_of "$node")/images.done"
    wait_for 60 "$node to be Ready" node_ready "$node"
    wait_for 60 "NetworkPolicies to be in force on $node" grep -q 'rules in force' "$(home_of "$node")/logs/netpol.log"
    say "$node Ready"
    [ -z "$RH_GPUS" ] || set_gpus "$node" "$RH_GPUS" > /dev/null
  done
  sed "s/@DNS@/$RH_SVC_DNS/; s/@NODE@/$RH_NODE/" "$here/manifests/coredns.yaml" | kubectl apply -f - > /dev/null
  kubectl -n kube-system rollout status deploy/coredns --timeout=60s > /dev/null || { explain; return 1; }
  say "CoreDNS ready"
  cp "$KUBECONFIG" "$RH_TARGET/kubeconfig"
  ln -sf "$(readlink -f "$RH_BIN/kubectl")" "$(readlink -f "$RH_BIN/helm")" "$RH_TARGET/bin/"
  failed=0
}

cluster_down() {
  local node mount group names=$RH_NAME nodes result="this checkout has no local cluster: nothing to remove"
  if box_alive; then
    nodes=$(all_nodes | wc -l)
    result="removed the local cluster: $nodes node$([ "$nodes" = 1 ] || echo s), network and state"
  elif [ -e "$RH_STATE" ]; then
    result="removed the state of a local cluster that was not running: $RH_STATE"
  fi
  for node in $(all_nodes | tail -n +2); do thaw "$node"; done
  if box_alive; then kill_box "$RH_NODE"; fi
  if [ "$(cat "/run/roundhouse-$RH_NAME.owner" 2>/dev/null)" = "$repo" ]; then
    ip link del "$RH_LINK" 2>/dev/null || true
    rm -f "/run/roundhouse-$RH_NAME.owner"
    for mount in $(cgroup_mounts); do
      for group in "$mount/$RH_NAME".node[0-9]*; do if [ -d "$group" ]; then names="$names $(basename "$group")"; fi; done
    done
    # shellcheck disable=SC2046
    remove_cgroups $(tr ' ' '\n' <<< "$names" | sort -u) || return 1
  fi
  cd /
  rm -rf "$RH_STATE" "$RH_TARGET/kubeconfig" "$RH_TARGET/bin"
  echo "$result"
}

cluster_status() {
  box_alive || { echo "the local cluster is down"; return 1; }
  kubectl get nodes -o wide
}
