// Only its CustomResourceDefinitions are used.
module roundhouse.dev/tests/cluster/prometheus-operator

go 1.26.8

require github.com/prometheus-operator/prometheus-operator v0.85.0
