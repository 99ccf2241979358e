# Runs pytest for the Python package. Sourced after common.sh.
# shellcheck shell=bash

# run_pytest PYTHON TESTS ARGUMENT...: tests the staged package with that interpreter and that
# folder of trainer-image/python. The last line has the form that tests/run/test counts.
run_pytest() {
  local python=$1 tests=$2 output status=0
  shift 2
  output=$logs/py$tests.txt
  PYTHONPATH=$(tests/run/python-stage)
  export PYTHONPATH PYTHONDONTWRITEBYTECODE=1
  "$python" -m pytest -q -p no:cacheprovider -c trainer-image/python/pyproject.toml --rootdir trainer-image/python "trainer-image/python/$tests" "$@" | tee "$output" || status=$?
  awk '/^=* ?[0-9]+ (passed|failed|error)/ {
    for (i = 1; i < NF; i++) {if ($(i + 1) ~ /^passed/) p = $i; if ($(i + 1) ~ /^(failed|error)/) f += $i}
  } END {printf "checks: %d passed, %d failed\n", p, f}' "$output"
  return "$status"
}
