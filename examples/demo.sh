#!/usr/bin/env bash
# What `make demo` does once Roundhouse is installed: apply the example, watch it, show what came out.
set -euo pipefail
cd "$(dirname "$0")/.."
: "${NAMESPACE:=default}" "${KUBECTL_ROUNDHOUSE:=kubectl-roundhouse}"
roundhouse() { "$KUBECTL_ROUNDHOUSE" --namespace "$NAMESPACE" "$@"; }
kube() { kubectl --namespace "$NAMESPACE" "$@"; }
started=$(date +%s)

if kube get trainingjob digits > /dev/null 2>&1; then
  echo "==> deleting the digits job of an earlier run"
  kube delete trainingjob digits --wait
fi
echo "==> kubectl apply -f examples/digits.yaml"
kube apply -f examples/digits.yaml

# Metrics are gone with the process, so they are scraped while it trains.
scraped=$(mktemp)
( for _ in $(seq 120); do
    roundhouse metrics digits --filter roundhouse_train_ > "$scraped.new" 2> /dev/null && [ -s "$scraped.new" ] && mv "$scraped.new" "$scraped"
    sleep 2
  done ) &
scraper=$!
trap 'kill "$scraper" 2>/dev/null; rm -f "$scraped" "$scraped.new"' EXIT

echo "==> kubectl roundhouse watch digits"
status=0
roundhouse watch digits --timeout 600 || status=$?

echo
echo "==> kubectl get trainingjob digits -o wide"
kube get trainingjob digits -o wide
echo
echo "==> its conditions"
kube get trainingjob digits -o jsonpath='{range .status.conditions[*]}{.type}={.status}  {.reason}: {.message}{"\n"}{end}'
echo
echo "==> a few lines of a worker's /metrics while it trained"
grep -E '_(step|loss|samples_per_second|world_size|gradient_norm|eval_accuracy)\{' "$scraped" || echo "(none: it was over too soon)"
echo
accuracy=$(kube get trainingjob digits -o jsonpath='{.status.progress.evalAccuracy}')
echo "test accuracy: ${accuracy:-unknown}, $(($(date +%s) - started)) s from apply to the end"
[ "$status" = 0 ] || { echo "the job did not succeed" >&2; exit "$status"; }
