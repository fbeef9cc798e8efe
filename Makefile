# What a newcomer and CI need. Everything runs from .venv, which is built on first use.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
# The first interpreter that runs and is new enough: a version manager's shim may exist and not run.
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3.14 python3; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
ARGS ?=
COMPILED := setup.py $(wildcard common/model/native/*.[ch] common/ngrams/*.[ch])

.PHONY: help demo bench test lint protos protos-release clean

help: ## Show these targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 18

demo: $(VENV)/.installed ## Start the services on the bundled models and stream text
	@$(BIN)/paceline demo $(ARGS)

bench: $(VENV)/.installed ## Measure every way to decode, in turns (ARGS=--full: and peers, loads, delays)
	@$(BIN)/paceline bench $(ARGS)

test: $(VENV)/.dev ## Run the tests (CPU, no network; ARGS="-k name" narrows them)
	@$(BIN)/python -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder $(ARGS)

lint: $(VENV)/.dev ## Style, types, import rules and protos
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	cd protos && ../$(BIN)/buf lint

protos: $(VENV)/.dev ## Regenerate the committed stubs in client/ from protos/
	$(BIN)/python -m grpc_tools.protoc -I protos --python_out=client --pyi_out=client \
		--grpc_python_out=client protos/paceline/v1/*.proto

protos-release: $(VENV)/.dev ## At a release: what the breaking-change test compares with from now on
	cd protos && ../$(BIN)/buf build --exclude-source-info -o released.binpb

clean: ## Remove the environment and everything built; bench/results stays
	rm -rf $(VENV) build dist *.egg-info client/*.egg-info client/build
	rm -f common/model/native/*.so common/ngrams/*.so
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.created:
	@if [ -z "$(PYTHON)" ]; then \
		echo "error: Python 3.11 or newer is needed; put it on PATH or name it: make PYTHON=/path/to/python3.11" >&2; \
		exit 1; fi
	@"$(PYTHON)" -c 'import sys; v = sys.version_info; v >= (3, 11) or sys.exit("error: Python 3.11 or newer is needed, $(PYTHON) is %d.%d" % v[:2])'
	@echo "Creating $(VENV) with $$("$(PYTHON)" --version)"
	@"$(PYTHON)" -m venv $(VENV)
	@touch $@

$(VENV)/.installed: $(VENV)/.created constraints.txt pyproject.toml client/pyproject.toml $(COMPILED)
	@echo "Installing Paceline and what it needs (torch is large: minutes the first time) ..."
	@$(PIP) install --quiet -c constraints.txt -e ./client -e '.[all]'
	@touch $@

# The group is read here because pip knows --group only from 25.1 on.
$(VENV)/.dev: $(VENV)/.installed
	@echo "Installing the development tools ..."
	@$(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["dependency-groups"]["dev"], sep="\n")' > $(VENV)/dev.txt
	@$(PIP) install --quiet -c constraints.txt -r $(VENV)/dev.txt
	@touch $@
