# `make` lists the targets. Required: Python 3.11 to 3.14, Rust (cargo), a compiler for C and C++. Each target builds
# what is missing, into .venv and target/, and nothing twice.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
.PHONY: help demo docs test test-all lint setup bench stress fuzz gpu gputests wheels release-check clean

# The first of these that is fit to use; `make PYTHON=/path/to/python3.12` overrides.
PYTHON ?= python3.14 python3.13 python3.12 python3.11 python3
# Passed on to the program behind demo, test, bench, stress, gpu and gputests: `make test ARGS="-k loader"`.
ARGS ?=
# `make test ROOM=loader` runs the tests of one room: tests/loader, its crates, and tests/gpu if it has a CUDA side.
ROOM ?=
CRATES_codecs := softs-codec
CRATES_dataflow := softs-proto softs-net
CRATES_loader := softs-shm
CRATES_market := softs-shm softs-proto softs-net
CUDA_ROOMS := collectives gpu tensors
CRATES = $(addprefix -p ,$(CRATES_$(ROOM)))
HAS_RUST = $(or $(if $(ROOM),,yes),$(CRATES))
HAS_LOOM = $(or $(if $(ROOM),,yes),$(filter softs-shm,$(CRATES)))
# What runs beside pytest.
BESIDE = $(strip $(if $(HAS_RUST),.tested-rust) $(if $(ROOM),$(if $(filter $(ROOM),$(CUDA_ROOMS)),.tested-standin),.tested-standin))
LOOM := cargo test -p softs-shm --features loom --lib loom_tests
# Most tests wait for other processes: four at a time keep two cores busy. The number is the same on every machine.
SIDE_BY_SIDE := -n 4 --dist loadfile --no-loadscope-reorder
# Those on the stand-in are few files, of which some take minutes.
STANDIN_SIDE_BY_SIDE := -n 4 --dist worksteal
# How long `make fuzz` runs.
SECONDS := 600

# A Python that is named gets an environment of its own, beside .venv: `make test PYTHON=python3.12` uses .venv-python3.12.
VENV := .venv$(if $(filter-out file,$(origin PYTHON)),-$(notdir $(firstword $(PYTHON))))
RUN := $(VENV)/bin/python
NATIVE := Cargo.toml Cargo.lock $(shell find rust -name target -prune -o \( -name '*.rs' -o -name Cargo.toml \) -print)
CSRC := $(shell find csrc -name '*.[ch]pp' -o -name '*.cu' -o -name '*.cuh' -o -path '*/standin/*.h')
# As in build-system.requires of pyproject.toml.
BUILD_PACKAGES := 'cmake>=3.22' 'maturin>=1.9,<2' 'ninja>=1.11' 'pybind11>=2.13'

# Clippy and rustdoc also build rust/py, which needs the path of its Python.
export PYO3_PYTHON := $(CURDIR)/$(RUN)
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Tests start thousands of interpreters. Where this is set, each would compile all modules of the package anew.
unexport PYTHONDONTWRITEBYTECODE
# Tests and demo run several processes; more than one thread in each would only make them wait for each other.
export OMP_NUM_THREADS ?= 1

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# The demo needs fewer packages than the tests; if those of the tests are installed, it uses them.
demo: $(VENV)/.installed-$(if $(wildcard $(VENV)/.installed-dev),dev,demo) ## distil a teacher into a student, live; draws demo-output/distill_digits.png
	$(RUN) examples/distill_digits.py $(ARGS)

docs: $(VENV)/.installed-dev ## the documentation site, into target/site/html; fails on a dead link, and on a page that no journey lists
	$(RUN) -m docs.site target/site

test: TIER := -m 'not slow and not full'
test: $(VENV)/.installed-dev ## each guarantee once: cargo test, pytest, and the CUDA side on a stand-in
	@$(TESTS)

test-all: $(VENV)/.installed-dev ## all tests but the slow ones, whole examples, pages and builds too; before a release
	@$(TESTS)

# One that fails does not keep the others from running. Tests in Rust wait for half of their time, and those on the
# stand-in for most: they run beside pytest, and what they say comes after its report. A job of the background would
# ignore Ctrl-C.
define TESTS
	failed=0; \
	run() { echo "$$*"; "$$@" || failed=1; }; \
	$(if $(HAS_RUST),run cargo test --tests --no-run $(CRATES);) \
	$(if $(BESIDE),said=$$(mktemp); trap 'rm -f $$said' EXIT; \
		env --default-signal=INT $(MAKE) --no-print-directory --keep-going $(BESIDE) >$$said 2>&1 & pid=$$!;) \
	run $(RUN) -m pytest $(addprefix tests/,$(ROOM)) $(SIDE_BY_SIDE) $(TIER) $(ARGS); \
	$(if $(BESIDE),wait $$pid || failed=1; cat $$said;) \
	exit $$failed
endef

# These files are never made.
.tested-rust: .tested-crates $(if $(HAS_LOOM),.tested-loom)

.tested-standin:
	$(RUN) tests/gpu/standin $(STANDIN_SIDE_BY_SIDE) $(ARGS)

.tested-crates:
	cargo test --tests --no-fail-fast $(CRATES)

# With at most four preemptions in an execution loom takes seconds; `make stress` has no bound, and takes two minutes.
.tested-loom:
	LOOM_MAX_PREEMPTIONS=4 $(LOOM)

lint: $(VENV)/.installed-dev ## formatting, clippy, rustdoc, ruff, mypy, the stubs, the arrows between rooms
	@cargo fmt --version >/dev/null 2>&1 || { echo 'rustfmt is missing: rustup component add rustfmt, or install the package rustfmt' >&2; exit 1; }
	@cargo clippy --version >/dev/null 2>&1 || { echo 'clippy is missing: rustup component add clippy, or install the package rust-clippy' >&2; exit 1; }
	cargo fmt --all --check
	@# mypy has one thread, and cargo waits for single crates.
	@$(MAKE) --no-print-directory --jobs=3 --output-sync=target .linted-types .linted-native .linted-python

.linted-native:
	cargo clippy --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS='-D warnings' cargo doc --workspace --no-deps
	$(VENV)/bin/clang-format --dry-run -Werror $(CSRC)

.linted-types:
	$(RUN) -m mypy

.linted-python:
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy.stubtest softs_fast._core softs_fast._kernels
	$(VENV)/bin/lint-imports

# What `make test` runs of Rust, compiled; it needs no Python, so .ci/run does this while packages are installed.
.compiled-tests:
	cargo test --tests --no-run
	cargo test -p softs-shm --features loom --lib --no-run

# Modules of tests, compiled once: each process of pytest would do that at the same time.
.compiled-python:
	@$(RUN) -m pytest --collect-only -qq >/dev/null || :

setup: $(VENV)/.installed-dev ## .venv with everything that test, lint and bench need

bench: $(VENV)/.installed-dev ## measure against softs 0.1.2; results go to benches/results and docs/benchmarks.md
	PATH="$(CURDIR)/$(VENV)/bin:$$PATH" $(RUN) -m maturin develop --quiet --release --skip-install
	$(RUN) -m benches $(ARGS)

stress: $(VENV)/.installed-dev ## the slow tests, minutes each
	SOFTS_FAST_STRESS_S=120 cargo test -p softs-shm --release --test lane_stress
	$(LOOM)
	$(RUN) -m pytest -m slow $(ARGS)
	$(RUN) tests/gpu/standin -m slow $(ARGS)

# The first Python that has softs_fast with CUDA, built in python/ or installed, is taken as it is; without one it is built.
HAS_CUDA := 'from softs_fast import _kernels; import sys, torch; sys.exit(_kernels.cuda_build() is None)'
define CHOOSE_PYTHON
	found=; \
	for python in $(RUN) $(PYTHON); do \
		for paths in "$(CURDIR)/python$${PYTHONPATH:+:$$PYTHONPATH}" "$${PYTHONPATH:-}"; do \
			if PYTHONPATH="$$paths" $$python -c $(HAS_CUDA) 2>/dev/null; then found=yes; break 2; fi; \
		done; \
	done; \
	if [ -n "$$found" ]; then export PYTHONPATH="$$paths"; echo "$$python has softs_fast with CUDA: nothing is built"; \
	else $(MAKE) $(VENV)/.with-cuda; python=$(RUN); fi
endef

gpu: ## check and measure the GPU of this machine (softs-fast gpu); results go to benches/results/gpu-*.json
	@$(CHOOSE_PYTHON); $$python -m softs_fast gpu --output benches/results $(ARGS)

gputests: ## all tests of the CUDA side, on a machine with a GPU and pytest; those of kernels under compute-sanitizer too
	@$(CHOOSE_PYTHON); \
	$$python -c 'import sys; from softs_fast.tensors import cuda; sys.exit(0 if cuda.n_devices() else "no device that can be used: make gpu tells why")'; \
	$$python -m pytest tests/gpu $(ARGS); \
	if command -v compute-sanitizer >/dev/null; \
		then compute-sanitizer --error-exitcode 1 $$python -m pytest -q tests/gpu/test_pack.py tests/gpu/test_devices.py tests/gpu/test_cuda_all_reduce.py; \
		else echo 'compute-sanitizer is not on PATH: accesses of the kernels were not checked' >&2; fi

# What has not changed is not compiled again, so this file is never made.
$(VENV)/.with-cuda: $(VENV)/.installed-dev
	@if ! command -v nvcc >/dev/null; then $(RUN) -m pip install --quiet $$($(RUN) -c 'import build_backend; print(*build_backend.NVCC)'); fi
	PATH="$(CURDIR)/$(VENV)/bin:$$PATH" SOFTS_CUDA="$$(command -v nvcc >/dev/null || echo pip)" $(RUN) build_backend.py

fuzz: ## random bytes and random schedules against the protocol; SECONDS=600
	cargo run -p softs-proto --release --example fuzz -- --seconds $(SECONDS)

wheels: .venv-wheels/.installed ## the files of a release, into dist: an sdist, and a wheel for each Python 3.11 to 3.14 of this machine
	@command -v cargo >/dev/null || { echo 'cargo is missing: install Rust 1.88 or newer (rustup, or the package cargo)' >&2; exit 1; }
	.venv-wheels/bin/python -m wheels $(ARGS)

release-check: $(VENV)/.installed-dev ## what a user does first, with the wheel of this Python in dist, in an empty environment without a compiler
	$(RUN) -m wheels.release_check $(ARGS)

clean: ## remove everything that was built; .venv stays, its packages are large
	rm -rf target dist demo-output .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache .benchmarks
	rm -f $(VENV)/.installed-* .venv*/.installed-* python/softs_fast/_core*.so python/softs_fast/_kernels*.so
	find python tests benches examples -name __pycache__ -prune -exec rm -rf {} +

# softs_fast itself, editable, and the packages of an extra of pyproject.toml.
$(VENV)/.installed-%: pyproject.toml build_backend.py csrc/CMakeLists.txt $(NATIVE) $(CSRC) | $(VENV)/bin/python
	@command -v cargo >/dev/null || { echo 'cargo is missing: install Rust 1.88 or newer (rustup, or the package cargo)' >&2; exit 1; }
	@command -v cc >/dev/null || { echo 'a C compiler is missing: Rust links with cc (the package gcc or clang)' >&2; exit 1; }
	@command -v "$${CXX:-c++}" >/dev/null || { echo 'a C++ compiler is missing: gcc 11, clang 14 or newer (the package g++ or clang)' >&2; exit 1; }
	@# The build tools of softs_fast, and setuptools for packages without wheels: Python 3.12 has none, that of
	@# Python 3.11 cannot make wheels by itself.
	$(RUN) -m pip install --quiet $(BUILD_PACKAGES) 'setuptools>=70.1'
	@# Where there is none, pip does its work.
	@$(RUN) -m pip install --quiet 'uv>=0.9' || :
	@$(RUN) -c 'import build_backend; print(*build_backend.requirements("$*"), sep="\n")' > $(VENV)/requirements-$*.txt
	@# Compilers keep the cores busy while packages are downloaded. They are started by their names. uv takes a third of
	@# the processor time of pip, whose settings, such as a mirror, it does not read. Modules are compiled when they are
	@# first imported: those of torch here, or each process of the tests would compile them at the same time.
	@echo 'compiling the native modules, and installing the packages of pyproject.toml[$*] meanwhile: takes minutes'; \
	export PATH="$(CURDIR)/$(VENV)/bin:$$PATH"; \
	rm -rf $(VENV)/editable; mkdir $(VENV)/editable; \
	(while sleep 30; do echo "  busy for $$SECONDS s"; done) & ticks=$$!; \
	$(RUN) -c 'import build_backend; build_backend.build_editable("$(VENV)/editable")' & compiled=$$!; \
	trap 'kill $$ticks $$compiled 2>/dev/null || :' EXIT; \
	requirements="--quiet --requirement $(VENV)/requirements-$*.txt"; \
	if $(RUN) -m pip config list | grep 'constraint\|index' >/dev/null \
		|| ! $(RUN) -m uv pip install --python $(RUN) $${PIP_FIND_LINKS:+--find-links $$PIP_FIND_LINKS} $$requirements; \
		then $(RUN) -m pip install --no-compile $$requirements; fi; \
	$(RUN) -c 'import torch'; \
	echo "  packages are installed after $$SECONDS s"; \
	wait $$compiled; \
	$(RUN) -m pip install --quiet --no-deps --force-reinstall $(VENV)/editable/*.whl
	@# softs and an older version of it, which cannot be installed beside it: peers of the interop tests, opponents
	@# of the benches.
	@if [ $* = dev ]; then $(RUN) -m pip install --quiet --no-deps --ignore-requires-python softs==0.1.2; fi
	@if [ $* = dev ] && [ ! -d $(VENV)/peers/softs-0.1.0 ]; then $(RUN) -m pip install --quiet --no-deps --ignore-requires-python --target $(VENV)/peers/softs-0.1.0 softs==0.1.0; fi
	@touch $@

# Compilers and build tools of exact versions, apart from those that tests and bench are built with.
.venv-wheels/.installed: wheels/requirements.txt
	@$(MAKE) --no-print-directory VENV=.venv-wheels .venv-wheels/bin/python
	.venv-wheels/bin/python -m pip install --quiet --requirement $<
	@touch $@

$(VENV)/bin/python:
	@for python in $(PYTHON); do \
		if $$python -c 'import ensurepip, sys, venv; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' 2>/dev/null; then \
			echo "$$python -m venv $(VENV)"; \
			$$python -m venv --clear $(VENV); \
			exit 0; \
		fi; \
	done; \
	echo 'no fit Python among: $(PYTHON). softs-fast needs 3.11 to 3.14 with venv (Debian, Ubuntu: the package python3-venv);' >&2; \
	echo 'another one can be named: make PYTHON=/path/to/python3' >&2; \
	exit 1
