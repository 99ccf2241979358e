# Runs pytest for the Python package, with or without libraries. Sourced after common.sh.
# shellcheck shell=bash

# use_packages NAME SIZE PACKAGE...: sets `python` to the interpreter of an environment of that name
# in the cache. The environment also sees the packages of tests/run/torch, among them PyTorch and
# pytest.
use_packages() {
  local name=$1 size=$2
  shift 2
  venv=$ROUNDHOUSE_CACHE/$name torch=$(tests/run/torch)
  [ -e "$venv/complete" ] || step "an environment for $name" make_environment >&2
  # An environment from an earlier commit may lack a package.
  [ "$(cat "$venv/packages" 2>/dev/null)" = "$*" ] || step "$* ($size in $ROUNDHOUSE_CACHE)" install_packages "$@" >&2
  python=$venv/bin/python
}
# shellcheck disable=SC2317 # step calls it.
make_environment() {
  rm -rf "$venv"
  "$torch" -m venv "$venv"
  local site='import sysconfig; print(sysconfig.get_path("purelib"))'
  "$torch" -c "$site" > "$("$venv/bin/python" -c "$site")/pytorch.pth"
  touch "$venv/complete"
}
# shellcheck disable=SC2317 # step calls it.
install_packages() {
  "$venv/bin/python" -m pip install --no-cache-dir --disable-pip-version-check "$@"
  echo "$*" > "$venv/packages"
}

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
