# shellcheck shell=bash disable=SC2154
# Starts the control plane in the box of node 1. Sourced by box.sh.
supervise etcd "$RH_BIN/etcd" --data-dir "$S/etcd" --unsafe-no-fsync --log-level warn \
  --listen-client-urls http://127.0.0.1:2379 --advertise-client-urls http://127.0.0.1:2379 --listen-peer-urls http://127.0.0.1:2380
for _ in $(seq 300); do curl -sf http://127.0.0.1:2379/health >/dev/null && break; sleep 0.02; done
supervise apiserver "$RH_BIN/kube-apiserver" --etcd-servers=http://127.0.0.1:2379 --bind-address=0.0.0.0 --secure-port=6443 \
  --advertise-address="$RH_BOX_IP" --service-cluster-ip-range="$RH_SVC_CIDR" --allow-privileged=true \
  --tls-cert-file="$P/api.crt" --tls-private-key-file="$P/api.key" --client-ca-file="$P/ca.crt" --token-auth-file="$P/tokens.csv" \
  --service-account-issuer=https://kubernetes.default.svc.cluster.local --service-account-key-file="$P/sa.pub" --service-account-signing-key-file="$P/sa.key" \
  --authorization-mode=Node,RBAC --enable-admission-plugins=NodeRestriction --anonymous-auth=false \
  --kubelet-preferred-address-types=InternalIP --kubelet-client-certificate="$P/api-kubelet.crt" --kubelet-client-key="$P/api-kubelet.key" \
  --default-not-ready-toleration-seconds="$RH_EVICT_AFTER" --default-unreachable-toleration-seconds="$RH_EVICT_AFTER" \
  --audit-policy-file="$here/manifests/audit.yaml" --audit-log-path="$S/audit.log" \
  --max-requests-inflight=1600 --max-mutating-requests-inflight=800 --profiling=false
( for _ in $(seq 600); do KUBECONFIG=$S/admin.kubeconfig "$RH_BIN/kubectl" get --raw /readyz >/dev/null 2>&1 && break; sleep 0.1; done
  touch "$S/run/api.ready"
  supervise controller-manager "$RH_BIN/kube-controller-manager" --kubeconfig="$S/controller-manager.kubeconfig" --leader-elect=false \
    --use-service-account-credentials --service-account-private-key-file="$P/sa.key" --root-ca-file="$P/ca.crt" \
    --cluster-signing-cert-file="$P/ca.crt" --cluster-signing-key-file="$P/ca.key" \
    --node-monitor-grace-period="${RH_NODE_GRACE}s" --node-monitor-period="$((RH_NODE_GRACE/10))s" \
    --kube-api-qps=500 --kube-api-burst=1000 --allocate-node-cidrs=false --pvclaimbinder-sync-period=1s --flex-volume-plugin-dir="$S/volume-plugins"
  supervise scheduler "$RH_BIN/kube-scheduler" --kubeconfig="$S/scheduler.kubeconfig" --leader-elect=false --kube-api-qps=500 --kube-api-burst=1000
  [ ! -x "$RH_BIN/kwok" ] || supervise kwok "$RH_BIN/kwok" --kubeconfig="$S/kwok.kubeconfig" --cidr=10.245.0.1/16 --node-ip="$RH_BOX_IP" \
    --manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake --node-lease-duration-seconds="$((RH_NODE_GRACE*4/5))"
) &
