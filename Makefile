# Each target makes the virtual environment in .venv if it is missing or out of date, then reuses it.
# Another interpreter: make test PYTHON=/path/to/python3.12
PYTHON ?= $(shell python3.11 -c '' 2>/dev/null && echo python3.11 || echo python3)
BIN := .venv/bin
READY := .venv/.ready
PIP := $(BIN)/python -m pip install --quiet --quiet --disable-pip-version-check -c constraints.txt
FRESH_PIP := $(subst $(BIN),build/fresh/bin,$(PIP))

.PHONY: help demo test test-all faults coverage lint format docs package bench

help:
	@echo "make demo      nine methods on simulated ads: a table, and a report for the browser"
	@echo "make test      run the tests (without the slow ones)"
	@echo "make test-all  run all tests"
	@echo "make faults    kill, damage and fill up what the commands work on (about 20 minutes), and count what survives"
	@echo "make coverage  run the tests of make test and say which lines they never reach"
	@echo "make lint      check style and types"
	@echo "make format    put the code into the style that lint checks"
	@echo "make docs      build the documentation; open site/index.html"
	@echo "make package   build the wheel and the sdist, and try them in fresh environments"
	@echo "make bench     measure speed and memory (about 40 minutes, alone on the machine); results in benchmarks/results/"

# The build tools come first, from the same pins, so that the project is built with them and pip
# makes no environment of its own for the build.
$(READY): pyproject.toml constraints.txt $(wildcard src/gdod/_kernels/*.[ch])
	@echo "Setting up .venv (a few minutes the first time)"
	@$(PYTHON) -m venv .venv
	@$(PIP) setuptools
	@$(PIP) --no-build-isolation --editable '.[dev]'
	@touch $@

demo: $(READY)
	@$(BIN)/gdod demo

test: $(READY)
	$(BIN)/pytest -q -m "not slow" -n 2 --dist worksteal

test-all: $(READY)
	$(BIN)/pytest -q

faults: $(READY)
	$(BIN)/pytest -q -m faults tests/faults

coverage: $(READY)
	$(BIN)/pytest -q -m "not slow" -n 2 --dist worksteal --cov --cov-report=term:skip-covered --cov-report=html

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Strict (mkdocs.yml): a broken link, a page without a place or a docstring that names no parameter ends it.
docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

# The wheel is built from the sdist. It is then tried in an environment that holds nothing else: the library
# without extras, then the command line.
package: $(READY)
	rm -rf dist build src/*.egg-info  # a list of files from an earlier build would hide one that is missing now
	$(BIN)/python -m build --no-isolation
	$(PYTHON) -m venv build/fresh
	$(FRESH_PIP) dist/*.whl
	cd build && fresh/bin/python -c 'from gdod import *; print(method("gdod"), models)'
	cd build && fresh/bin/python ../examples/train.py
	$(FRESH_PIP) "$$(echo dist/*.whl)[cli]"
	cd build && fresh/bin/gdod --help

bench: $(READY)
	$(BIN)/python -m benchmarks.step
	$(BIN)/python -m benchmarks.methods
	$(BIN)/python -m benchmarks.models
	$(BIN)/python -m benchmarks.tables
	$(BIN)/python -m benchmarks.loop
	$(BIN)/python -m benchmarks.ads
	$(BIN)/python -m benchmarks.data
	$(BIN)/python -m benchmarks.estimator
	$(BIN)/python -m benchmarks.stream
	$(BIN)/python -m benchmarks.distributed
	$(BIN)/python -m benchmarks.serve
