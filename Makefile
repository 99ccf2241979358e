# The commands of this repository. `make help` lists them in groups: `##@` starts a group, and `##`
# describes a target.
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
	@awk -F ':.*## ' '/^##@ / {printf "\n%s\n", substr($$0, 5)} /^[a-z-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo
	@echo "CLUSTER=current IMAGE_REPO=registry/path: demo, images and install use your cluster and registry."
	@echo "Start with make try, then make check. CONTRIBUTING.md has the conventions."

##@ Use

.PHONY: try
try: ## Train a real model on this machine, without a cluster (FILE=another.yaml ARGS="--dir DIR")
	@scripts/try

.PHONY: demo
demo: ## Create a cluster, install Roundhouse and train a model on it (CLUSTER=current: on yours)
	@scripts/demo

.PHONY: cluster
cluster: ## Start the local Kubernetes cluster (NODES=3 for three real nodes)
	@scripts/cluster

.PHONY: install
install: ## Build the images and helm install Roundhouse into the cluster
	@scripts/install

.PHONY: cluster-down
cluster-down: ## Remove the local cluster
	@tests/cluster/cluster down

.PHONY: images
images: ## Build the images of operator and trainer (CLUSTER=current pushes them; VARIANT=cuda for GPUs)
	@scripts/images

.PHONY: wheel
wheel: ## Build the Python package roundhouse as a wheel: target/wheels
	@scripts/wheel

.PHONY: gpu-bundle
gpu-bundle: ## Pack trainer and tests for a machine with an NVIDIA GPU (fetches 2.5 GB the first time)
	@scripts/gpu-bundle

##@ Develop

.PHONY: check
check: ## Check format, clippy and the tests without libtorch and cluster: run it before every commit
	@tests/run/check

.PHONY: test
test: ## Run everything CI runs, least powerful layer first (an hour; Debian or Ubuntu, Rust, Go, root)
	@tests/run/test

.PHONY: test-long
test-long: ## Run what is too long for make test: a thousand faults in each job, and more (six hours)
	@tests/run/test-long

.PHONY: test-python
test-python: ## Test the Python package with PyTorch (fetches 3 GB the first time)
	@tests/run/python

.PHONY: test-cases
test-cases: ## Replay situations that users met: tests/cases (after make test; ARGS=13- for one)
	@tests/run/cases $(ARGS)

.PHONY: test-ui
test-ui: ## Test the page of kubectl roundhouse ui in Chromium (PICTURES=docs/pictures takes pictures)
	@tests/run/test-ui

.PHONY: lint
lint: ## Check format, clippy of every crate, scripts and generated files, as make test does first
	@tests/run/lint

.PHONY: deny
deny: ## Check licences, sources and known vulnerabilities of the dependencies
	@tests/run/deny

.PHONY: fuzz
fuzz: ## Feed random bytes to every parser of foreign input (TARGETS="idx ledger" RUNS=1000000)
	@tests/run/fuzz

##@ Benchmark

.PHONY: bench
bench: ## Measure the numbers of jobs and commands in docs/measured.md (a few minutes)
	@tests/run/bench

.PHONY: bench-cold
bench-cold: ## Time make try and make demo with nothing downloaded or built (half an hour; WHAT=try for one)
	@tests/run/bench-cold

.PHONY: bench-elastic
bench-elastic: ## Compare recovery and growth with torchrun and torchft (30 min; fetches 3 GB the first time)
	@tests/run/bench-elastic

.PHONY: bench-join
bench-join: ## Time how long a worker with a large state takes to join over a slow link (2 min; root)
	@tests/run/bench-join

.PHONY: bench-operator
bench-operator: ## Compare the cost of many and large jobs with JobSet and Kubeflow Trainer (30 min)
	@tests/run/bench-operator

.PHONY: bench-python
bench-python: ## Measure what the Python package adds to a step (13 min; fetches 3 GB the first time; PEERS=fsdp, trainer or lightning)
	@tests/run/bench-python

.PHONY: bench-trainer
bench-trainer: ## Compare steps per second with PyTorch's (40 min; WHAT=shards: shared optimizers, 15 min; WHAT=copies: local copies, 15 min)
	@tests/run/bench-trainer

##@ Generate

.PHONY: generate
generate: ## Write the files that come from the sources: CRD, chart, pages ... (PARTS="crd pages" for some)
	@scripts/generate $(PARTS)

.PHONY: check-generated
check-generated: ## Fail with the difference if a generated file is out of date (PARTS for some)
	@scripts/generate --check $(PARTS)

.PHONY: docs
docs: ## Build the documentation as a book: target/docs/book
	@scripts/docs

.PHONY: sbom
sbom: ## List the content of the built images, as CycloneDX: target/sbom (after make images)
	@scripts/sbom
