# Five verbs: install, format, check, test, serve. Python 3.11 or newer and make are all they need.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=
# How many processes run tests side by side: one a core, at most 4; 0 is none beside pytest's own.
WORKERS ?= logical

.PHONY: install format check test test-slow browser serve bench lock lock-peers audit sbom

install: $(VENV)/.dev

format: $(VENV)/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

check: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright

# A file stays with one process, for its fixtures; files go in order, so that the services of later
# ones load what an earlier one has compiled.
SIDE_BY_SIDE := -n $(WORKERS) --maxprocesses 4 --dist loadfile --no-loadscope-reorder
test: $(VENV)/.dev
	$(BIN)/python -m pytest -m "not slow" $(SIDE_BY_SIDE) $(ARGS)

test-slow: $(VENV)/.dev
	$(BIN)/python -m pytest -m slow $(ARGS)

# What the tests of the page need beside Python; without it they are skipped.
browser:
	@command -v chromium >/dev/null && command -v chromedriver >/dev/null \
		|| apt-get install --yes --no-install-recommends chromium chromium-driver \
		|| { echo "expected chromium and chromedriver; install them with your system's packages"; exit 1; }

serve: $(VENV)/.serve
	$(BIN)/python -m service $(ARGS)

# Everything beside its peers, for docs/benchmarks.md: an hour of a machine that does nothing else.
bench: $(VENV)/.dev
	$(BIN)/python -m benchmarks $(ARGS)

# What is locked, against the databases of known faults; and the bill of materials of each variant
# of the image, in CycloneDX.
LOCKS := serve otel cuda train
audit: $(VENV)/.audit
	for lock in $(LOCKS); do \
		$(BIN)/pip-audit --strict --disable-pip --require-hashes -r requirements-$$lock.lock || exit 1; done

sbom: $(VENV)/.audit
	mkdir -p sbom
	for lock in $(LOCKS); do \
		$(BIN)/cyclonedx-py requirements --pyproject pyproject.toml --output-reproducible \
			-o sbom/$$lock.cdx.json requirements-$$lock.lock || exit 1; done

# After changing dependencies in pyproject.toml. Locks carry hashes and no addresses.
LOCK := $(BIN)/uv pip compile --universal --python-version 3.11 --generate-hashes \
	--no-emit-index-url --no-header --no-annotate --quiet
COMPILE := $(LOCK) pyproject.toml
lock: $(VENV)/.dev
	$(COMPILE) --extra serve --extra otel --extra train --extra tensorboard --group dev --group build \
		-o requirements-dev.lock
	$(COMPILE) --extra serve -c requirements-dev.lock -o requirements-serve.lock
	$(COMPILE) --extra serve --extra otel -c requirements-dev.lock -o requirements-otel.lock
	$(COMPILE) --extra train -c requirements-dev.lock -o requirements-train.lock
	$(COMPILE) --extra serve --extra cuda -c requirements-dev.lock -o requirements-cuda.lock
	$(LOCK) --group audit -c requirements-dev.lock -o requirements-audit.lock
	$(LOCK) --group build -c requirements-dev.lock -o requirements-build.lock

# What benchmarks measure beside ours. torch-cpu is PyTorch's own CPU build, which PyPI does not have
# for Linux: its lock is renewed where uv finds it, by UV_FIND_LINKS or UV_EXTRA_INDEX_URL.
PEERS := $(filter-out torch-cpu,$(basename $(notdir $(wildcard benchmarks/peers/*.in))))
PEER_LOCK := $(LOCK) --no-emit-find-links
lock-peers: $(VENV)/.dev
	for peer in $(PEERS); do \
		$(PEER_LOCK) benchmarks/peers/$$peer.in -o benchmarks/peers/$$peer.lock || exit 1; done
	$(PEER_LOCK) -c benchmarks/peers/torch.lock benchmarks/peers/torch-cpu.in \
		-o benchmarks/peers/torch-cpu.lock \
		|| echo "torch-cpu.lock stays as it was: uv found no torch of that version for CPUs"

$(VENV)/.audit: requirements-audit.lock $(VENV)/.dev
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r $<
	touch $@

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "expected Python 3.11 or newer; name one with make PYTHON=/path/to/python3"; exit 1; }
	$(PYTHON) -m venv $(VENV)

# The command `triwire`, in an environment whose packages are there already: nothing is fetched.
LINK := $(BIN)/python -m pip install --quiet --disable-pip-version-check \
	--no-index --no-deps --no-build-isolation --editable .

$(VENV)/.dev: requirements-dev.lock | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r $<
	$(LINK)
	touch $@ $(VENV)/.serve

$(VENV)/.serve: requirements-serve.lock requirements-build.lock | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes \
		-r requirements-serve.lock -r requirements-build.lock
	$(LINK)
	touch $@
