# Every target sets up by itself and works on a machine that has only Python 3.11+, make and a package index.

.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS += --no-print-directory

BIN := .venv/bin
SOURCES := hotdelta exporter loader server tests benchmarks examples scripts
BENCHMARKS = $(filter-out __init__ _%,$(basename $(notdir $(wildcard benchmarks/*.py))))

# A file of tests keeps to one process, because its fixtures are expensive. In the order of their names: with the files
# of few tests at the end, the longest of all would begin when the others are done. PARALLEL= runs them in one. Three for
# two cores, because tests wait a third of their time: for the disk, for processes, for pauses that must be as long.
PARALLEL ?= -n 3 --dist loadfile --no-loadscope-reorder

# What chance decides is the same in every run of the tests, so that CI fails only for what changed. To search:
# make test PROFILE=default HOTDELTA_CHAOS_SEED= (make soak always searches, and prints the seed of what fails).
PROFILE ?= ci
test test-newest: export HOTDELTA_CHAOS_SEED ?= 1

# Debian packages that the tests need beside Python: promtool is in prometheus, and a browser.
DEBIAN_PACKAGES := chromium fish openssl prometheus zsh

export PYTHONUNBUFFERED := 1
export TF_CPP_MIN_LOG_LEVEL ?= 2
# A hundred processes of the tests import the same modules: one compiles them.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help
help: ## show the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-11s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

.PHONY: setup
setup: ## create .venv from the locked versions (does nothing when nothing changed)
	@scripts/setup

.PHONY: packages
packages:
	@scripts/debian-packages $(DEBIAN_PACKAGES)

.PHONY: demo
demo: setup ## train, export and serve on this machine, and watch the lag (DEMO_SECONDS=60 to stop by itself)
	@$(BIN)/python -m examples.demo

.PHONY: test
test: setup packages ## run the tests; ARGS="tests/chain -k hole" for some of them
	@$(BIN)/python -m pytest -m "not soak and not hdfs" --hypothesis-profile $(PROFILE) $(PARALLEL) $(ARGS)

.PHONY: test-newest
test-newest: packages ## run them with the newest releases, in .venv-newest: do the upper bounds of pyproject.toml still hold?
	@scripts/setup newest
	@.venv-newest/bin/python -m pytest -m "not soak and not hdfs" --hypothesis-profile $(PROFILE) $(PARALLEL) $(ARGS)

.PHONY: test-hdfs
test-hdfs: setup ## run the tests of stores in HDFS on a real NameNode and DataNode (downloads 220 MB once; needs java and apt-get)
	@scripts/hdfs-jars build/hdfs
	@HOTDELTA_HDFS_JARS=build/hdfs/jars $(BIN)/python -m pytest -m hdfs tests/remote $(ARGS)

.PHONY: check
check: setup ## format, lint, types, import rules, links of the pages
	@$(BIN)/ruff format --check $(SOURCES)
	@$(BIN)/ruff check $(SOURCES)
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo
	@said=$$(scripts/make_site 2>&1) || { echo "$$said"; exit 1; }

.PHONY: format
format: setup ## rewrite the sources in the house format
	@$(BIN)/ruff format $(SOURCES)
	@$(BIN)/ruff check --fix $(SOURCES)

.PHONY: contracts
contracts: setup ## compile the messages that are spoken by gRPC (server/rpc/contracts) again
	@$(BIN)/python scripts/make_contracts.py

.PHONY: bench
bench: setup ## run every benchmark in turn
	@for name in $(BENCHMARKS); do echo "== $$name"; $(BIN)/python -m benchmarks.$$name; done

.PHONY: soak
soak: setup packages ## run the tests that are too long for CI
	@$(BIN)/python -m pytest -m soak --timeout 0 $(ARGS)

.PHONY: site
site: ## write the pages as a site to build/site; refuses links that lead nowhere
	@scripts/make_site

.PHONY: dist
dist: setup ## build the wheel into dist/; scripts/try_wheel uses it in an environment of its own
	@rm -rf dist
	@$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir dist .

.PHONY: clean
clean: ## remove .venv and everything that the tools left behind
	@rm -rf .venv .venv-newest .venv-docs .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
