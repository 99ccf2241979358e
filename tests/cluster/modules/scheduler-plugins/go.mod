// Only its CustomResourceDefinitions are used.
module roundhouse.dev/tests/cluster/scheduler-plugins

go 1.26.8

require sigs.k8s.io/scheduler-plugins v0.35.4-devel
