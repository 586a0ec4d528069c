# What a developer runs, CI runs. `make` alone lists the targets.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SOAK ?= 10m

.DEFAULT_GOAL := help
.PHONY: help setup run test test-all check fmt bench soak tools clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9.-]+:.*## /{printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(VENV)/.installed  ## prepare .venv, with the command `mooring` in it

$(VENV)/.installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[all]'
	touch $@

$(VENV)/.developing: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[all,dev]'
	touch $@

run: setup  ## start Mooring on the embedded store
	$(BIN)/mooring serve

test: check tools  ## lint, types and tests; brings what they need
	$(BIN)/python tools/run_tests.py

test-all: check tools  ## the same, and the extended tests (half an hour)
	$(BIN)/python tools/run_tests.py --extended

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

tools: $(VENV)/.developing  ## what the tests need beside wheels: etcd 3.4, Redis 7.0, Chromium, Envoy, Node.js, older protobufs
	@$(BIN)/python tools/fetch.py

clean:  ## remove what the targets above made
	rm -rf $(VENV) .tools .bench .mypy_cache .ruff_cache .pytest_cache .hypothesis
