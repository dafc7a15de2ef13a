PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test lint bench docs

$(VENV)/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev,demo]'
	touch $@

demo: $(VENV)/ready
	$(BIN)/steelyard train --demo --out runs/demo --overwrite
	$(BIN)/steelyard search runs/demo "compress a file" -k 5
	@echo "The report is in runs/demo/report.html"

lint: $(VENV)/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint
	$(BIN)/pytest

bench: $(VENV)/ready
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[bench]'
	for file in benchmarks/*.py; do echo "== $$file"; $(BIN)/python $$file || exit 1; done

docs: $(VENV)/ready
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
