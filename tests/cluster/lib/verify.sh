#!/usr/bin/env bash
# shellcheck disable=SC1090,SC1091,SC2016,SC2034,SC2154,SC2317
# verify.sh [quick|nodes]: checks a running local cluster, prints a line for each check, and exits
# with 1 if one failed. quick leaves out simulated nodes; nodes checks faults of several real nodes.
set -uo pipefail
for part in env boxes; do . "$(cd "$(dirname "$0")" && pwd)/$part.sh"; done
box_alive || { echo "the cluster is not running"; exit 1; }
fail=0; now() { date +%s.%N; }
check() { local what=$1 t; shift; t=$(now); if "$@" >/tmp/rh-check.$$ 2>&1; then r=ok; else r=FAIL; fail=1; fi
  printf '%-4s %6.1fs  %s\n' "$r" "$(echo "$(now) - $t" | bc)" "$what"; [ $r = ok ] || sed 's/^/       /' /tmp/rh-check.$$ | tail -5; rm -f /tmp/rh-check.$$; }
sh_() { local ns=$1 who=$2; shift 2; kubectl -n "$ns" exec "$who" -- sh -c "$*"; }
get() { sh_ "$1" "$2" "curl -s -m 2 $3"; }
not() { ! "$@"; }
until_() { local n=$1; shift; for _ in $(seq "$((n*5))"); do "$@" && return 0; sleep 0.2; done; return 1; }
field() { kubectl -n "$1" get "$2" -o jsonpath="$3"; }
is() { [ "$(field "$1" "$2" "$3")" = "$4" ]; }
ready='{.status.conditions[?(@.type=="Ready")].status}'
[ "${1:-}" != nodes ] || { . "$here/lib/verify-nodes.sh"; exit $fail; }

mkdir -p "$RH_STATE/volumes/check"; chmod 777 "$RH_STATE/volumes/check"
check "restricted pods with a shared volume start" eval 'sed "s|@STATE@|$RH_STATE|" "$here/manifests/verify.yaml" | kubectl apply -f - && kubectl -n check rollout status sts/peer --timeout=60s && kubectl -n policed wait --for=condition=Available deploy --all --timeout=60s'
check "an unrestricted pod is refused" not kubectl -n check run bad --image=localhost/toolbox:1
ip=$(field check pod/peer-1 '{.status.podIP}')
check "pod to pod by address" get check peer-0 "http://$ip:8080/"
check "headless name of a pod" get check peer-0 http://peer-1.peers.check.svc.cluster.local:8080/
check "ClusterIP by name" get check peer-0 http://web/
check "ClusterIP from a node process (webhooks)" "$here/cluster" exec curl -sf -m 3 "http://$(field check svc/web '{.spec.clusterIP}')/"
check "NodePort from the host" curl -sf -m 3 "http://$RH_BOX_IP:30080/"
kubectl -n check port-forward pod/peer-1 18080:8080 >/dev/null 2>&1 & pf=$!
check "port-forward and logs" eval 'until_ 10 curl -sf -m 3 -o /dev/null http://127.0.0.1:18080/ && kubectl -n check logs peer-1'; kill $pf
check "API from a pod with its service account" sh_ check peer-0 kubectl get pods
check "RBAC refuses other requests" not sh_ check peer-0 kubectl get secrets
check "volume shared by two pods" eval 'sh_ check peer-0 "echo shared > /data/f" && [ "$(sh_ check peer-1 cat /data/f)" = shared ] && [ -s "$RH_STATE/volumes/check/f" ]'
check "/dev/shm is memory of the requested size" eval 'sh_ check peer-0 df -m /dev/shm | grep -qE "tmpfs +64 "'
check "no capabilities, seccomp on, root read-only" eval 'sh_ check peer-0 "grep -q CapEff:.0000000000000000 /proc/1/status && grep -q Seccomp:.2 /proc/1/status && ! touch /x"'
kubectl -n check annotate pod peer-0 step=1 --overwrite >/dev/null
check "annotation reaches the pod's file" until_ 5 eval 'sh_ check peer-0 "grep -qx 1 /info/step"'
check "pods cannot reach the network outside the box" not get check peer-0 "http://$(ip -4 route get 192.0.2.1 2>/dev/null | grep -oE 'src [0-9.]+' | cut -d' ' -f2)/"

server=$(kubectl -n policed get pod -l app=server -o jsonpath='{.items[0].status.podIP}'); peer=$(field check pod/peer-0 '{.status.podIP}')
check "without policies a foreign pod can connect" get policed deploy/foreigner "http://$server:8080/"
kubectl apply -f "$here/manifests/policies.yaml" >/dev/null; sleep 1.5
check "policy: same label passes, by name" get policed deploy/friend http://server.policed/
check "policy: foreign pod is blocked" not get policed deploy/foreigner "http://$server:8080/"
check "policy: egress elsewhere is blocked" not get policed deploy/friend "http://$peer:8080/"
kubectl delete -f "$here/manifests/policies.yaml" >/dev/null

p=$("$here/cluster" pid check peer-0); kill -KILL "$p"
check "kill -9: the container restarts" until_ 30 is check pod/peer-0 '{.status.containerStatuses[0].restartCount}{.status.containerStatuses[0].ready}' 1true
p=$("$here/cluster" pid check peer-0); kill -STOP "$p"
check "SIGSTOP: readiness fails" until_ 15 is check pod/peer-0 "$ready" False
kill -CONT "$p"; check "SIGCONT: ready again" until_ 15 is check pod/peer-0 "$ready" True

set_gpus "$RH_NODE" 8 >/dev/null
kubectl run gpu --image=localhost/toolbox:1 --restart=Never --overrides='{"spec":{"terminationGracePeriodSeconds":0,"containers":[{"name":"gpu","image":"localhost/toolbox:1","resources":{"limits":{"nvidia.com/gpu":"8"}}}]}}' >/dev/null
check "a pod with 8 simulated GPUs runs" kubectl wait --for=condition=Ready pod/gpu --timeout=20s
kubectl delete pod gpu --now >/dev/null
if [ -x "$RH_BIN/kwok" ] && [ "${1:-}" != quick ]; then
  check "200 simulated nodes" "$here/cluster" simulate 200
  kubectl create deploy burst --image=none --replicas=0 >/dev/null
  kubectl patch deploy burst -p '{"spec":{"replicas":1000,"template":{"spec":{"terminationGracePeriodSeconds":0,"nodeSelector":{"type":"kwok"},"tolerations":[{"key":"kwok.x-k8s.io/node","operator":"Exists"}]}}}}' >/dev/null
  check "1,000 simulated pods running" until_ 120 is default deploy/burst '{.status.readyReplicas}' 1000
  check "none of them on a real node" eval 'for n in $(all_nodes); do [ -z "$(kubectl get pods -n default --field-selector "spec.nodeName=$n" -o name)" ] || exit 1; done'
  kubectl delete deploy burst >/dev/null; kubectl delete nodes -l type=kwok --wait=false >/dev/null
fi
check "drain" kubectl drain "$RH_NODE" --ignore-daemonsets --delete-emptydir-data --force --timeout=60s
kubectl uncordon "$RH_NODE" >/dev/null
check "pods return after uncordon" eval 'kubectl -n kube-system rollout status deploy/coredns --timeout=60s && kubectl -n check rollout status sts/peer --timeout=60s'
kubectl delete ns check policed --timeout=60s >/dev/null; kubectl delete pv check --timeout=60s >/dev/null
exit $fail
