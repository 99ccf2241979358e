# The commands a person needs. `make help` lists them.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

export ROUNDHOUSE_CACHE ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/roundhouse
export LIBTORCH ?= $(ROUNDHOUSE_CACHE)/libtorch-2.11.0-cpu
export CLUSTER ?= local
export NODES ?= 1
export NAMESPACE ?= default

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo
	@echo "  CLUSTER=current IMAGE_REPO=registry/path: demo and install use your kubeconfig and registry"
	@echo "  NODES=3: make cluster with three real nodes"

.PHONY: try
try: ## Train a real model on this machine: no cluster, no root (FILE=another.yaml ARGS="--dir DIR")
	@tests/support/make/try

.PHONY: demo
demo: ## Train a real model on a real cluster, from nothing (add CLUSTER=current for yours)
	@tests/support/make/demo

.PHONY: test
test: ## Everything CI runs
	@tests/support/make/test

.PHONY: test-long
test-long: ## What is too long for make test: cluster tests of optimized images, a thousand faults in each job (three hours)
	@tests/support/make/test-long

.PHONY: test-python
test-python: ## The Python package with PyTorch: processes that are killed, stopped, added (fetches 3 GB the first time)
	@tests/support/make/python

.PHONY: test-cases
test-cases: ## Situations that users met, a folder each in tests/cases (needs what make test builds; ARGS=13- for one)
	@tests/support/make/cases $(ARGS)

.PHONY: test-ui
test-ui: ## The page of kubectl roundhouse ui in Chromium (PICTURES=docs/pictures takes those of the docs)
	@tests/support/make/test-ui

.PHONY: cluster
cluster: ## Bring up the local Kubernetes cluster (NODES=1)
	@tests/support/make/cluster

.PHONY: install
install: ## Build the images and helm install Roundhouse
	@tests/support/make/install

.PHONY: images
images: ## Build the operator's and the trainer's image
	@tests/support/make/images

.PHONY: cluster-down
cluster-down: ## Remove the local cluster, and all it started
	@tests/cluster/cluster down

.PHONY: bench
bench: ## Print the figures of docs/measured.md (needs a few minutes)
	@tests/support/make/bench

.PHONY: bench-cold
bench-cold: ## How long make try and make demo take with nothing downloaded or built (half an hour; WHAT=try for one)
	@tests/support/make/bench-cold

.PHONY: bench-elastic
bench-elastic: ## Recovery and growth beside torchrun's, on this machine (30 min; fetches 3 GB the first time)
	@tests/support/make/bench-elastic

.PHONY: bench-join
bench-join: ## How long a worker with a large state takes to join over links of a limited rate (2 min; root; ARGS="--mib 1024 --rate 1gbit")
	@tests/support/make/bench-join

.PHONY: bench-operator
bench-operator: ## What the operator costs with many jobs and with large ones, beside JobSet and Kubeflow Trainer (30 min; ARGS="--pods 6400")
	@tests/support/make/bench-operator

.PHONY: bench-python
bench-python: ## What the Python package adds to a step of plain DDP, on this machine (13 min; fetches 3 GB the first time)
	@tests/support/make/bench-python

.PHONY: bench-trainer
bench-trainer: ## Steps per second beside PyTorch's, on this machine (40 min; fetches 3 GB the first time)
	@tests/support/make/bench-trainer

.PHONY: gpu-bundle
gpu-bundle: ## The trainer for tests/gpu/run on a machine with an NVIDIA GPU (fetches 2.5 GB the first time)
	@tests/support/make/gpu-bundle

.PHONY: fuzz
fuzz: ## Random bytes for everything that reads what others wrote (TARGETS="idx ledger" RUNS=1000000; hours without)
	@tests/support/make/fuzz

.PHONY: deny
deny: ## Licences, sources and known vulnerabilities of the dependencies
	@tests/support/make/deny

.PHONY: wheel
wheel: ## Build the Python package roundhouse as a wheel: target/wheels
	@tests/support/make/wheel

.PHONY: sbom
sbom: ## What is in the images that make images has laid out, as CycloneDX: target/sbom (4 min the first time)
	@tests/support/make/sbom

.PHONY: lint
lint: ## Format, clippy, shellcheck, generated files
	@tests/support/make/lint

.PHONY: docs-reference
docs-reference: ## Generate the page that lists the metrics
	@mkdir -p docs/reference target
	@CARGO_TARGET_DIR=$$(tests/support/make/target-dir) cargo run -q -p roundhouse-tests --example metrics-page > target/metrics.md
	@mv target/metrics.md docs/reference/metrics.md

.PHONY: crds
crds: ## Generate the CustomResourceDefinition, and the chart's schema and table of values
	@CARGO_TARGET_DIR=$$(tests/support/make/target-dir) cargo run -q -p roundhouse-api --bin crdgen > crds/trainingjobs.yaml
	@mkdir -p charts/roundhouse/files && cp crds/trainingjobs.yaml charts/roundhouse/files/crd.yaml
	@tests/support/make/chart-reference

.PHONY: docs
docs: ## Build the documentation as a book: target/docs/book
	@tests/support/make/docs

.PHONY: docs-pictures
docs-pictures: ## Draw the dashboards with the data of a run: tests/monitoring/recorded into docs/pictures
	@python3 tests/monitoring/pictures/make.py tests/monitoring/recorded docs/pictures

.PHONY: docs-pages
docs-pages: ## Write the generated pages of docs/
	@tests/support/make/docs-pages
