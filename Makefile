# Everything runs in .venv, which the first target that needs it creates. Another interpreter: make install PYTHON=python3.12
PYTHON ?= python3
# The release of PyTorch to develop and test with; another one gets an environment of its own: make test TORCH=2.15.0
DEFAULT_TORCH := 2.13.0
TORCH ?= $(DEFAULT_TORCH)
VENV := .venv$(if $(filter-out $(DEFAULT_TORCH),$(TORCH)),-torch-$(TORCH))
BIN := $(VENV)/bin
# What the program needs, and on top of it what its development needs: each is installed when a target first asks for it.
PROGRAM := $(VENV)/.program
TOOLS := $(VENV)/.tools
# Long tests stand together: who has none left takes some of the others'.
WORKERS := -n 3 --dist worksteal
RUNS ?= 20000
COUNT ?= 20
SECONDS ?= 600
SEED ?=

.DEFAULT_GOAL := help
.PHONY: help install demo test test-lowest test-newest lint type check golden docs bench bench-page gpu hunt thorough selection frameworks fuzz mutants reproduce wheel clean

help: ## show this list
	@sed -n 's/^\([a-z-]*\):[^#]*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 16

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
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]' torch==$(TORCH)
	@touch $@

demo: $(PROGRAM) ## plan a U-Net's training step in 60 % of its memory
	$(BIN)/remat plan graphs/unet.onnx --dim batch=8 --budget 60%

# Tests start hundreds of processes. Where compiled modules are not kept, each of these compiles all that it imports.
test: export PYTHONDONTWRITEBYTECODE =
test: install ## run the tests of every change; TESTS=tests/unit/pytorch runs all of these, TORCH=2.15.0 takes that release
	$(BIN)/python -m pytest $(WORKERS) $(COVERED) $(or $(TESTS),@tests/left_out.txt)

lint: install ## check style and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

type: install ## check types
	$(BIN)/mypy

# From Python 3.12 on, which lines run is known at no cost that can be measured (6.5 s of CPU for tests that took 6.5 s
# without). Before, it takes half as much again (23.1 s for 15.2 s), and is left to those who ask: make check COVERED=--cov
check: export COVERAGE_CORE = $(MEASURING)
check: MEASURING = $(shell [ ! -x $(BIN)/python ] || $(BIN)/python -c 'import sys; print("sysmon" if sys.version_info >= (3, 12) else "ctrace")')
check: COVERED = $(if $(filter sysmon,$(MEASURING)),--cov --cov-report=)
check: lint type test ## lint, type, test, and hold the lines that tests run to the floor in pyproject.toml

golden: install ## remake the example graphs and what the pages show
	$(BIN)/python graphs/rebuild.py
	$(BIN)/remat check graphs/remat.yaml --update-baseline -q
	$(BIN)/python -m tests.golden.pages

docs: export NO_MKDOCS_2_WARNING = 1
docs: install ## make the site of documents, build/site; a link that leads nowhere ends it
	$(BIN)/python -m mkdocs build --quiet --strict --config-file docs/mkdocs.yml

bench: install ## time the planners on fixed graphs; TABLES="methods scale" prints these only
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m tests.bench $(TABLES)

bench-page: install ## write the pages of results with their tables, into build/bench
	$(BIN)/python -m tests.bench.pages

gpu: install ## train models as planned on a GPU, predicted beside measured, in eight minutes; ROWS="llama*" runs these only
	$(BIN)/python -m tests.bench.gpu $(if $(ROWS),--rows $(ROWS))

hunt: install ## hunt for false claims against an exhaustive search; each run with new seeds; SECONDS=3600 SEED=1 goes on, with these; LARGE=1: graphs of 16 to 400 ops
	$(BIN)/python -m tests.hunt --seconds $(SECONDS) $(if $(SEED),--seed $(SEED)) $(if $(LARGE),--large)

test-lowest: ## run the tests that need no PyTorch with the lowest releases that pyproject.toml declares
	$(PYTHON) -m venv .venv-lowest
	.venv-lowest/bin/python -c "import tests.lowest as of; print(*of.constraints(), sep='\n')" > .venv-lowest/constraints.txt
	.venv-lowest/bin/python -m pip install --quiet --disable-pip-version-check --constraint .venv-lowest/constraints.txt \
		--editable '.[highs,run,plot,cluster]' pytest pytest-xdist hypothesis
	.venv-lowest/bin/python -m pytest $(WORKERS) -W ignore::DeprecationWarning tests/unit tests/contract tests/agreement

test-newest: ## run the same tests with the newest releases there are
	$(PYTHON) -m venv .venv-newest
	.venv-newest/bin/python -m pip install --quiet --disable-pip-version-check --upgrade --upgrade-strategy eager \
		--editable '.[highs,run,plot,cluster]' pytest pytest-xdist hypothesis
	.venv-newest/bin/python -m pytest $(WORKERS) -W ignore::DeprecationWarning tests/unit tests/contract tests/agreement

thorough: install ## run sweeps over all their seeds, and many more examples of the property tests
	$(BIN)/python -m pytest $(WORKERS) --hypothesis-profile=thorough tests/property tests/agreement tests/contract \
		tests/unit/core tests/unit/allocation tests/unit/planners

selection: install ## choose anew which long tests `make test` leaves out; takes an hour
	$(BIN)/python -m tests.selection $(WORKERS) $(if $(MEASURED),--measured)

frameworks: install ## run the page's recipes for Hugging Face Trainer, Lightning, accelerate and PEFT
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[frameworks]' torch==$(TORCH)
	$(BIN)/python -m pytest tests/frameworks

fuzz: install ## mutate files of every format that is read, coverage-guided; RUNS=100000 tries more
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[fuzz]'
	$(BIN)/python -m tests.fuzz --runs $(RUNS)

mutants: install ## plant faults and show those that no test sees; MODULES=remat_cli/core/solve.py COUNT=100 tries these, TESTS=tests/unit/core by those
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[mutants]'
	$(BIN)/python -m tests.mutants $(MODULES) --count $(COUNT) $(if $(TESTS),--tests $(TESTS))

reproduce: install ## print the tables of Kusumoto et al. 2019 beside ours
	$(BIN)/python -m tests.bench.reproduce

wheel: $(PROGRAM) ## build what is released, in dist, and try it where nothing else is installed
	rm -rf dist build/clean
	$(BIN)/python -m pip install --quiet --disable-pip-version-check build
	$(BIN)/python -m build --outdir dist
	$(PYTHON) -m venv build/clean
	build/clean/bin/python -m pip install --quiet --disable-pip-version-check dist/*.whl
	build/clean/bin/remat --version
	build/clean/bin/remat plan graphs/unet.onnx -c auto --device a100 --dim batch=8 --budget 60% --html build/clean/plan.html

clean: ## remove .venv and everything that was built
	rm -rf .venv* build dist *.egg-info .coverage* .pytest_cache .hypothesis .mypy_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
