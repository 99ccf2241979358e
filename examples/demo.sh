#!/usr/bin/env bash
# The second half of `make demo`, after Roundhouse is installed: it applies the example digits,
# watches it until its end and shows the result.
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

# A worker serves metrics only while its process runs, so a background loop keeps the last scrape.
scraped=$(mktemp)
( for _ in $(seq 120); do
    roundhouse metrics digits --filter roundhouse_train_ > "$scraped.new" 2> /dev/null &&
      [ -s "$scraped.new" ] && mv "$scraped.new" "$scraped"
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
echo "==> the conditions of the job"
conditions='{range .status.conditions[*]}{.type}={.status}  {.reason}: {.message}{"\n"}{end}'
kube get trainingjob digits -o jsonpath="$conditions"
echo
echo "==> metrics of a worker during the training"
grep -E '_(step|loss|samples_per_second|world_size|gradient_norm|eval_accuracy)\{' "$scraped" ||
  echo "(none: the job ended before the first scrape)"
echo
accuracy=$(kube get trainingjob digits -o jsonpath='{.status.progress.evalAccuracy}')
echo "test accuracy: ${accuracy:-unknown}, $(($(date +%s) - started)) s from apply to the job's end"
[ "$status" = 0 ] || { echo "the job did not succeed" >&2; exit "$status"; }
