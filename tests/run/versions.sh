# The versions of libraries that the tests of the Python package install. Sourced after common.sh.
# shellcheck shell=bash disable=SC2034 # The scripts that source it use them.

# make test uses these. The environment may name others.
USUAL_TORCH=2.11.0
: "${TORCH:=$USUAL_TORCH}" "${TRANSFORMERS:=5.24.0}" "${LIGHTNING:=2.6.6}"
# make test-long also uses the oldest versions that the package supports, and the newest PyTorch.
# The documents and trainer-image/python/pyproject.toml name them: a change shows in
# trainer-image/python/tests/test_versions.py.
OLDEST_TORCH=2.4.1 OLDEST_TORCH_WITH_REPLICAS=2.7.1 NEWEST_TORCH=2.15.0
OLDEST_TRANSFORMERS=5.5.0 OLDEST_LIGHTNING=2.4.0
# What a version of transformers is tested with.
case $TRANSFORMERS in
  "$OLDEST_TRANSFORMERS") ACCELERATE=1.4.0 PEFT=0.18.0 TRL=1.0.0 ;;
  *) ACCELERATE=1.15.0 PEFT=0.21.2 TRL=1.16.0 ;;
esac
# beside_torch: prints what the name of an environment ends in that has another PyTorch.
beside_torch() { [ "$TORCH" = "$USUAL_TORCH" ] || printf -- '-torch-%s' "$TORCH"; }
