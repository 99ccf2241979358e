// Only its CustomResourceDefinitions are used.
module roundhouse.dev/tests/cluster/volcano

go 1.26.8

require volcano.sh/volcano v1.10.0
