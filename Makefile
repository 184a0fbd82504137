# Everything runs in .venv, which the first target that needs it creates. Another interpreter: make install PYTHON=python3.12
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# What the program needs, and on top of it what its development needs: each is installed when a target first asks for it.
PROGRAM := $(VENV)/.program
TOOLS := $(VENV)/.tools
RUNS ?= 20000
SECONDS ?= 600
SEED ?= 0

.DEFAULT_GOAL := help
.PHONY: help install demo test lint type check golden bench hunt fuzz reproduce clean

help: ## show this list
	@sed -n 's/^\([a-z]*\):[^#]*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 16

install: $(TOOLS) ## create .venv with remat and the development tools

$(PROGRAM): pyproject.toml
	@command -v $(PYTHON) >/dev/null || { \
		echo "remat needs Python 3.11 or newer, and there is no '$(PYTHON)' here." >&2; \
		echo "Install it, or name another one: make install PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "remat needs Python 3.11 or newer; '$(PYTHON)' is $$($(PYTHON) --version 2>&1)." >&2; \
		echo "Install a newer one, or name it: make install PYTHON=python3.12" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(TOOLS): $(PROGRAM)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

demo: $(PROGRAM) ## plan a U-Net's training step in 60 % of its memory
	$(BIN)/remat plan graphs/unet.onnx --dim batch=8 --budget 60%

# Tests start hundreds of processes. Where compiled modules are not kept, each of these compiles all that it imports.
test: export PYTHONDONTWRITEBYTECODE =
test: install ## run all tests
	$(BIN)/python -m pytest -n 3

lint: install ## check style and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

type: install ## check types
	$(BIN)/mypy

check: lint type test ## lint, type, test

golden: install ## remake the example graphs and what the pages show
	$(BIN)/python graphs/rebuild.py
	$(BIN)/remat check graphs/remat.yaml --update-baseline -q
	$(BIN)/python -m tests.golden.pages

bench: install ## time the planners on fixed graphs; TABLES="methods scale" prints these only
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m tests.bench $(TABLES)

hunt: install ## hunt for false claims against an exhaustive search; SECONDS=3600 SEED=1 goes on, elsewhere
	$(BIN)/python -m tests.hunt --seconds $(SECONDS) --seed $(SEED)

fuzz: install ## mutate files of every format that is read, coverage-guided; RUNS=100000 tries more
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[fuzz]'
	$(BIN)/python -m tests.fuzz --runs $(RUNS)

reproduce: install ## print the tables of Kusumoto et al. 2019 beside ours
	$(BIN)/python -m tests.bench.reproduce

clean: ## remove .venv and everything that was built
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .hypothesis .mypy_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
