# The checks of several real nodes. Sourced by verify.sh. They wait most of their time until silent
# nodes are NotReady.
[ "$RH_NODES" -gt 1 ] || { echo "needs RH_NODES=2 or more"; exit 1; }
cut=$(name_of 2) lost=$(name_of "$RH_NODES") silent=$((RH_NODE_GRACE + 20))
on() { kubectl -n nodes get pod -l "app=$1" --field-selector "spec.nodeName=$2" -o jsonpath='{.items[*].metadata.name}'; }
ip_() { field nodes "pod/$1" '{.status.podIP}'; }
members() { seq -f 'member-%g' 0 $((RH_NODES-1)); }
each_pair() { local a b; for a in $(members); do for b in $(members); do [ "$(get nodes "$a" "$("$1" "$b")")" = "$b" ] || { echo "$a to $b"; return 1; }; done; done; }
by_ip() { echo "http://$(ip_ "$1"):8080/"; }
by_name() { echo "http://$1.members.nodes.svc.cluster.local:8080/"; }
spread_() { local n; for n in $(all_nodes); do [ "$(on "$1" "$n" | wc -w)" = 1 ] || return 1; done; }
rebalance() { kubectl -n nodes scale deploy/spare --replicas=0 && until_ 20 eval '[ -z "$(kubectl -n nodes get pod -l app=spare -o name)" ]' && kubectl -n nodes scale deploy/spare --replicas="$RH_NODES" && kubectl -n nodes rollout status deploy/spare --timeout=30s; }
unready() { [ "$(kubectl get node "$1" -o jsonpath="$ready")" != True ]; }
settled() { is nodes "sts/member" '{.status.readyReplicas}' "$RH_NODES"; }
deleted() { [ -n "$(field nodes "pod/$1" '{.metadata.deletionTimestamp}')" ]; }
gone() { ! kubectl -n nodes get pod "$1"; }
replaced() { [ "$(kubectl -n nodes get pod -l app=spare -o jsonpath='{range .items[*]}{.spec.nodeName} {.status.phase} {.metadata.deletionTimestamp}{"\n"}{end}' | grep -v "^$1 " | grep -c 'Running $')" = "$RH_NODES" ]; }
same() { [ "$(proc_id "${1%% *}")" = "$1" ]; }
gpus() { [ -z "$RH_GPUS" ] || [ "$(kubectl get node "$1" -o jsonpath='{.status.allocatable.nvidia\.com/gpu}')" = "$RH_GPUS" ]; }

check "topologySpread: one pod of each kind on every node" eval 'sed "s/@N@/$RH_NODES/" "$here/manifests/verify-nodes.yaml" | kubectl apply -f - && kubectl -n nodes rollout status sts/member --timeout=60s && kubectl -n nodes rollout status deploy/spare --timeout=60s && spread_ member && spread_ spare'
check "pod to pod by address, every pair of nodes" each_pair by_ip
check "headless names, every pair of nodes" each_pair by_name
check "ClusterIP from every node reaches the pods of all" eval 'for m in $(members); do [ "$(sh_ nodes "$m" "for i in \$(seq 40); do curl -s -m 2 http://any/; done | sort -u | wc -l")" = "$RH_NODES" ] || exit 1; done'
check "ClusterIP and pods from every node's own processes" eval 'for n in $(all_nodes); do "$here/cluster" exec -n "$n" curl -sf -m 3 "http://$(field nodes svc/any "{.spec.clusterIP}")/" "$(by_ip member-0)" "$(by_ip member-1)" || exit 1; done'
check "logs and exec on every node" eval 'for m in $(members); do kubectl -n nodes logs "$m" && sh_ nodes "$m" true || exit 1; done'
check "API from the pods' side: DNS and TLS on every node" eval 'for m in $(members); do sh_ nodes "$m" "curl -s -m 2 -o /dev/null -w %{http_code} --cacert /var/run/secrets/kubernetes.io/serviceaccount/ca.crt https://kubernetes.default.svc/" | grep -q 401 || exit 1; done'
check "simulated GPUs on every node" eval 'for n in $(all_nodes); do gpus "$n" || exit 1; done'
there=$(on member "$lost"); here_=$(on spare "$RH_NODE"); friend=$(on member "$RH_NODE")
check "without policies a spare can connect to another node" get nodes "$here_" "$(by_ip "$there")"
kubectl apply -f "$here/manifests/members-only.yaml" >/dev/null; sleep 1.5
check "policy across nodes: foreign pod is blocked" not get nodes "$here_" "$(by_ip "$there")"
check "policy across nodes: same label passes" get nodes "$friend" "$(by_name "$there")"
kubectl delete -f "$here/manifests/members-only.yaml" >/dev/null

m=$(on member "$cut"); s=$(on spare "$cut"); mp=$(proc_id "$("$here/cluster" pid nodes "$m")"); sp=$(proc_id "$("$here/cluster" pid nodes "$s")")
"$here/cluster" node partition "$cut" on; friend=$(on member "$RH_NODE")
check "partition: API server unreachable from the node" not "$here/cluster" exec -n "$cut" curl -sk -m 2 -o /dev/null "https://$RH_BOX_IP:6443/"
check "partition: its pods unreachable from other nodes" not get nodes "$friend" "$(by_ip "$m")"
check "partition: node NotReady" until_ "$silent" unready "$cut"
check "partition: spare Terminating, replacement runs elsewhere" until_ 30 eval 'deleted "$s" && replaced "$cut"'
sleep 3; check "partition: both old processes still run, the pod answers its node" eval 'same "$mp" && same "$sp" && "$here/cluster" exec -n "$cut" curl -sf -m 2 "$(by_ip "$m")"'
"$here/cluster" node partition "$cut" off
check "healed: node Ready" until_ 30 not unready "$cut"
check "healed: evicted spare and its process end" until_ 30 eval 'gone "$s" && ! same "$sp"'
check "healed: the other pod Ready, same process, no restart" eval 'until_ 30 settled && same "$mp" && is nodes "pod/$m" "{.status.containerStatuses[0].restartCount}" 0 && each_pair by_name'

rebalance >/dev/null; m=$(on member "$lost"); s=$(on spare "$lost"); uid=$(field nodes "pod/$m" '{.metadata.uid}'); mp=$(proc_id "$("$here/cluster" pid nodes "$m")")
check "machine lost" "$here/cluster" node kill "$lost"
check "lost: process gone at once, the API still says Ready" eval '! same "$mp" && ! unready "$lost" && is nodes "pod/$m" "$ready" True'
check "lost: node NotReady" until_ "$silent" unready "$lost"
check "lost: spare Terminating, replacement runs elsewhere" until_ 30 eval 'deleted "$s" && replaced "$lost"'
check "lost: both pod objects stay" eval 'sleep 5; deleted "$s" && is nodes "pod/$m" "{.metadata.uid}$ready" "${uid}False"'
check "boot: node Ready, GPUs back" eval '"$here/cluster" node start "$lost" && gpus "$lost"'
check "boot: evicted spare gone" until_ 60 gone "$s"
check "boot: the other pod restarts in place, same object" until_ 60 eval 'settled && is nodes "pod/$m" "{.metadata.uid}{.status.containerStatuses[0].restartCount}" "${uid}1"'
check "boot: every pair of nodes by name again" until_ 10 each_pair by_name

mp=$(proc_id "$("$here/cluster" pid nodes "$m")"); "$here/cluster" node pause "$lost" on
check "paused: node NotReady" until_ "$silent" unready "$lost"
"$here/cluster" node pause "$lost" off
check "resumed: Ready, same process" eval 'until_ 30 not unready "$lost" && until_ 30 settled && same "$mp"'

rebalance >/dev/null
check "drain of one node" kubectl drain "$cut" --ignore-daemonsets --delete-emptydir-data --force --timeout=60s
check "its pods run on the others" until_ 30 eval 'settled && replaced "$cut"'
kubectl uncordon "$cut" >/dev/null; kubectl delete ns nodes --wait=false >/dev/null
