# make run: the main job on the embedded data. make test: formatting, lint, types and the whole suite.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: run test lint suite clean

run: $(STAMP)
	$(BIN)/pmsfl run demo

test: lint suite

lint: $(STAMP)
	$(BIN)/ruff format --check src tests
	$(BIN)/ruff check src tests
	$(BIN)/mypy

suite: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist loadfile -q

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $(STAMP)

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache
