# What a developer runs, CI runs. `make` alone lists the targets.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SOAK ?= 10m

# Without bytecode on disk each process of the tests compiles everything again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup run test test-all test-unit test-changed coverage prepare check fmt bench soak
.PHONY: tools docs release clean

# Old packages without pyproject.toml are built like the others, so pip prints no deprecation notice.
INSTALL = $(BIN)/python -m pip install --disable-pip-version-check --use-pep517 -c constraints.txt

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9.-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(VENV)/.installed  ## prepare .venv, with the command `mooring` in it

$(VENV)/.installed: pyproject.toml constraints.txt
	@echo 'Creating $(VENV) and installing Mooring and its dependencies (about a minute) ...'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(INSTALL) -e '.[all]'
	@touch $@
	@echo 'Done. Start Mooring with: make run'

$(VENV)/.developing: pyproject.toml constraints.txt
	@echo 'Creating $(VENV) and installing the tools for development (about two minutes) ...'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(INSTALL) -e '.[all,dev]'
	@touch $(VENV)/.installed $(VENV)/.documenting $@

$(VENV)/.documenting: pyproject.toml constraints.txt
	@echo 'Creating $(VENV) and installing the tools for the documentation ...'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(INSTALL) -e '.[all,docs]'
	@touch $(VENV)/.installed $@

run: setup  ## start Mooring on the embedded store
	$(BIN)/mooring serve

test: prepare  ## lint, types, tests, and the coverage of the unit tests (under 10 minutes)
	$(BIN)/python tools/run_tests.py

test-all: prepare  ## the same, with the extended tests
	$(BIN)/python tools/run_tests.py --extended

test-unit: $(VENV)/.developing  ## the pure tests (under a minute)
	$(BIN)/pytest -q -n 2 tests/unit

test-changed: tools  ## the tests of what changed since the last commit; FILES=src/… names modules
	files=$$($(BIN)/python tools/tests_of.py $(FILES)) && $(BIN)/pytest -q -n 2 $$files

coverage: prepare  ## the tests again, and the share of lines and branches that they run
	$(BIN)/python tools/run_tests.py --coverage -q

# The downloads wait for the network while the types are checked.
prepare: $(VENV)/.developing
	@$(MAKE) --no-print-directory -j2 check tools

check: $(VENV)/.developing  ## lint and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

fmt: $(VENV)/.developing  ## format the code
	$(BIN)/ruff check --fix --exit-zero --quiet .
	$(BIN)/ruff format .

bench: $(VENV)/.developing  ## compare with the bare driver and the peers (some minutes)
	$(BIN)/python -m bench $(ARGS)

soak: tools  ## long fault campaigns; SOAK=10m says how long
	$(BIN)/pytest -m soak --soak=$(SOAK) -o faulthandler_timeout=0

tools: $(VENV)/.developing  ## download what the tests need beside wheels: etcd, Redis, Chromium, Envoy …
	@$(BIN)/python tools/fetch.py

docs: $(VENV)/.documenting  ## build the documentation site into site/
	$(BIN)/python -m tools.build_docs

release: $(VENV)/.installed  ## build the sdist and the wheel in dist/, and check both
	@$(INSTALL) --quiet -e '.[all,release]'
	$(BIN)/python tools/release.py

clean:  ## remove what the targets above made
	rm -rf $(VENV) .tools .bench dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage*
