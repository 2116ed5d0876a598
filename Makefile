# Each target makes the virtual environment in .venv if it is missing or out of date, then reuses it.
# Another interpreter: make test PYTHON=/path/to/python3.12
PYTHON ?= $(shell python3.11 -c '' 2>/dev/null && echo python3.11 || echo python3)
BIN := .venv/bin
READY := .venv/.ready
PIP := $(BIN)/python -m pip install --quiet --quiet --disable-pip-version-check -c constraints.txt

.PHONY: help demo test test-all lint format bench

help:
	@echo "make demo      nine methods on simulated ads: a table, and a report for the browser"
	@echo "make test      run the tests (without the slow ones)"
	@echo "make test-all  run all tests"
	@echo "make lint      check style and types"
	@echo "make format    put the code into the style that lint checks"
	@echo "make bench     measure speed and memory (about 25 minutes, alone on the machine); results in benchmarks/results/"

# The build tools come first, from the same pins, so that the project is built with them and pip
# makes no environment of its own for the build.
$(READY): pyproject.toml constraints.txt
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

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY)
	$(BIN)/python -m benchmarks.step
	$(BIN)/python -m benchmarks.methods
	$(BIN)/python -m benchmarks.models
	$(BIN)/python -m benchmarks.tables
	$(BIN)/python -m benchmarks.loop
	$(BIN)/python -m benchmarks.ads
	$(BIN)/python -m benchmarks.data
	$(BIN)/python -m benchmarks.stream
	$(BIN)/python -m benchmarks.distributed
