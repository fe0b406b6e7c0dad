# Five verbs: install, format, check, test, serve. Python 3.11 or newer and make are all they need.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=

.PHONY: install format check test test-slow serve lock

install: $(VENV)/.dev

format: $(VENV)/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

check: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright

test: $(VENV)/.dev
	$(BIN)/python -m pytest -m "not slow" $(ARGS)

test-slow: $(VENV)/.dev
	$(BIN)/python -m pytest -m slow $(ARGS)

serve: $(VENV)/.serve
	$(BIN)/python -m service $(ARGS)

# After changing dependencies in pyproject.toml. Locks carry hashes and no addresses.
COMPILE := $(BIN)/uv pip compile pyproject.toml --universal --python-version 3.11 \
	--generate-hashes --no-emit-index-url --no-header --no-annotate --quiet
lock: $(VENV)/.dev
	$(COMPILE) --extra serve --extra otel --extra train --extra tensorboard --group dev -o requirements-dev.lock
	$(COMPILE) --extra serve -c requirements-dev.lock -o requirements-serve.lock
	$(COMPILE) --extra serve --extra otel -c requirements-dev.lock -o requirements-otel.lock
	$(COMPILE) --extra train -c requirements-dev.lock -o requirements-train.lock

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "expected Python 3.11 or newer; name one with make PYTHON=/path/to/python3"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.dev: requirements-dev.lock | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r $<
	touch $@ $(VENV)/.serve

$(VENV)/.serve: requirements-serve.lock | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r $<
	touch $@
