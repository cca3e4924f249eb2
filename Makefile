# One command each; `make help` lists them. CMake does the work (CMakePresets.json).

SHELL := /bin/bash
JOBS ?= $(shell nproc)
BUILD ?= build/release
SEED ?=
NODES ?= 4
SEEDS ?= 200
SECONDS ?= 60

VENV = $$(tools/setup/python_env.sh --path)
# What a Python program of ours needs: the package, the binaries, the pinned interpreter.
PY = PYTHONPATH=$(BUILD)/python UNREFT_BIN_DIR=$(CURDIR)/$(BUILD)/bin $(VENV)/bin/python

.PHONY: help setup programs build test test-cluster test-slurm test-frameworks test-kubernetes test-s3 demo bench bench-frameworks bench-s3 deb gpu-bundle sim fuzz sanitize asan tsan lint format clean

help:            ## this list
	@sed -n 's/^\([a-z0-9-]*\):[^#]*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 26

setup:           ## install what is missing (packages, Python environment)
	@tools/setup/setup.sh

programs: setup  ## only what a job runs: unreftd, unreft, the Python package
	@cmake --preset release -B $(BUILD) >/dev/null
	@cmake --build $(BUILD) --parallel $(JOBS) --target programs

build: setup     ## release build, binaries in build/release/bin
	@cmake --preset release -B $(BUILD) >/dev/null
	@cmake --build $(BUILD) --parallel $(JOBS)

test: build      ## every C++ and Python test, totals last
	@JOBS=$(JOBS) tools/setup/run_tests.sh $(BUILD) $(VENV)/bin/python

test-cluster: programs  ## all of the lab: hosts as namespaces, etcd, torchrun (needs root)
	@tools/setup/cluster_tests.sh $(BUILD) $(VENV)/bin/python

test-slurm: programs  ## examples/slurm on a Slurm of four nodes (root; installs no Slurm, says what is missing)
	@tools/setup/slurm_tests.sh $(BUILD) $(VENV)/bin/python

test-frameworks: programs  ## what frameworks restore, killed and compared; writes docs/frameworks.md
	@env=$$(tools/setup/python_env.sh tests/frameworks/requirements.txt) && \
	  UNREFT_BIN_DIR=$(abspath $(BUILD)/bin) PYTHONPATH=$(abspath $(BUILD)/python) \
	  PYTHONDONTWRITEBYTECODE=1 $$env/bin/python tests/frameworks/table.py

test-kubernetes: programs  ## examples/kubernetes against the schemas, and our options
	@env=$$(tools/setup/python_env.sh tests/kubernetes/requirements.txt) && \
	  UNREFT_BIN_DIR=$(BUILD)/bin $$env/bin/python -m pytest -q -p no:cacheprovider tests/kubernetes

test-s3: build   ## durable copies on a server of S3 (part of make test)
	@env=$$(tools/setup/python_env.sh tests/s3/requirements.txt) && \
	  UNREFT_BIN_DIR=$(abspath $(BUILD)/bin) PYTHONPATH=$(abspath $(BUILD)/python) \
	  PYTHONDONTWRITEBYTECODE=1 $$env/bin/python -m pytest -q -p no:cacheprovider tests/s3

demo: programs   ## the main job under kill -9, nodes lost (SEED=n: other victims; NODES=1: one node)
	@$(PY) integrations/python/examples/demo.py $(if $(SEED),--seed $(SEED)) \
	  $(if $(filter-out 1,$(NODES)),--nodes $(NODES) --destroy-nodes)

bench: build     ## capture and restart against memcpy, JSON in build/bench
	@mkdir -p build/bench
	@tools/setup/bench.sh $(BUILD) $(VENV)/bin/python build/bench

bench-frameworks: programs  ## what a snapshot costs the trainer's Python under frameworks
	@mkdir -p build/bench
	@env=$$(tools/setup/python_env.sh tests/frameworks/requirements.txt) && \
	  UNREFT_BIN_DIR=$(abspath $(BUILD)/bin) PYTHONPATH=$(abspath $(BUILD)/python) \
	  PYTHONDONTWRITEBYTECODE=1 $$env/bin/python tests/frameworks/snapshot_cost.py --out build/bench

bench-s3: programs  ## CPU time of durable copies on a server of S3
	@mkdir -p build/bench
	@env=$$(tools/setup/python_env.sh tests/s3/requirements.txt) && \
	  UNREFT_BIN_DIR=$(abspath $(BUILD)/bin) PYTHONPATH=$(abspath $(BUILD)/python) \
	  PYTHONDONTWRITEBYTECODE=1 $$env/bin/python tests/s3/cost.py --out build/bench

deb: programs    ## build/package/unreft_VERSION_ARCH.deb, with a systemd unit
	@tools/setup/deb.sh $(BUILD) build/package

gpu-bundle: programs  ## build/gpu-bundle: tests, benchmarks and demo for a machine with a GPU
	@JOBS=$(JOBS) tools/setup/gpu_bundle.sh $(BUILD) build/gpu-bundle

sim: build       ## one node, then clusters simulated on fresh seeds (SEEDS=n of each)
	@$(BUILD)/bin/unreft_sim --fresh --seeds $(SEEDS) --jobs $(JOBS)
	@$(BUILD)/bin/unreft_sim --cluster --fresh --seeds $(SEEDS) --jobs $(JOBS)

fuzz:            ## every fuzzer for SECONDS=n (libFuzzer, ASan+UBSan; clang)
	@tools/setup/setup.sh sanitize
	@cmake --preset fuzz >/dev/null
	@cmake --build build/fuzz --parallel $(JOBS) --target fuzzers
	@JOBS=$(JOBS) tools/setup/fuzz.sh build/fuzz $(SECONDS)

sanitize: asan tsan  ## the C++ tests under ASan+UBSan, then TSan (clang)

asan tsan: setup
	@tools/setup/setup.sh sanitize
	@cmake --preset $@ >/dev/null
	@cmake --build build/$@ --parallel $(JOBS)
	@ctest --preset $@ --parallel $(JOBS)

lint:            ## clang-format, clang-tidy on changed files (LINT_ALL=1: all)
	@tools/setup/setup.sh lint
	@$(MAKE) --no-print-directory build
	@JOBS=$(JOBS) tools/setup/lint.sh $(BUILD)

format:          ## reformat the changed files
	@tools/setup/setup.sh lint
	@tools/setup/lint.sh --fix

clean:           ## remove every build directory
	rm -rf build
