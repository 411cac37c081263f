# `make demo` and `make test` are all that a fresh machine with Python 3.11 or later needs.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: help demo test quick lint docs
help:
	@echo "make demo   train one model on four emulated unequal devices, lose one, write runs/demo/report.html"
	@echo "make test   all tests"
	@echo "make quick  the tests that take no more than a few seconds each"
	@echo "make lint   style, types and import layers"
	@echo "make docs   the documentation, into docs/_build/html"

# Set-up runs once, and again only when the dependencies change.
.venv/.ok: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e ".[dev]"
	@touch $@

demo: .venv/.ok
	@$(BIN)/python examples/mixed/demo.py

test: .venv/.ok
	@$(BIN)/python -m pytest -q

quick: .venv/.ok
	@$(BIN)/python -m pytest -q -m "not slow"

lint: .venv/.ok
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

docs: .venv/.ok
	@$(BIN)/sphinx-build -q -n -W --keep-going -b html docs docs/_build/html
