# The one place for commands; CI calls the same ones. A fresh machine needs Python 3.11+ and make.
.DEFAULT_GOAL := help
SHELL := /bin/bash

PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
# Two test processes: what the smallest machine has cores for. Each has a Valkey of its own.
WORKERS ?= 2
CHAOS_MINUTES ?= 1.5
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup

.PHONY: help setup demo test test-slow test-all lint docs demo-picture types stress bench bench-recovery bench-push bench-resume bench-sealing bench-metrics bench-record bench-tracker clean chaos chromium promtool bench-console

help: ## What there is
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

# Everything is installed again when the project's own list of it changes.
$(VENV)/installed: pyproject.toml
	@test -n "$(PYTHON)" || { echo "mcptasks needs Python 3.11 or newer on PATH"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev,encryption,flower,console,metrics,otel]' --group test --group docs
	@touch $@

setup: $(VENV)/installed ## Install everything into .venv

demo: setup ## The tour: durable tasks on an embedded Valkey, in under 90 seconds
	$(BIN)/mcptasks demo

# The console's tests want a browser; Debian's does. Whoever is not root installs it with sudo.
chromium:
	@command -v chromium >/dev/null || { apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium; }

# Prometheus' own tool, which checks and runs the alert rules.
promtool:
	@command -v promtool >/dev/null || { apt-get update -qq && apt-get install -y -qq --no-install-recommends prometheus; }

test: setup chromium promtool ## All tests but the slow rings
	$(PYTEST) -m 'not slow'

test-slow: setup chromium promtool ## The slow rings
	$(PYTEST) -m slow

test-all: test test-slow ## Everything

lint: setup ## ruff and the layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache

docs: setup ## The pages of docs/: those made from the code, and the site, strictly, into build/site
	$(BIN)/python -m tests.docs.pages
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

demo-picture: setup ## Run the tour and draw docs/images/demo.svg from what it printed
	$(BIN)/python -c "from pathlib import Path; from tests.docs.pages import demo_picture as d; Path('docs/images/demo.svg').write_text(d.picture(d.run()))"

types: setup ## pyright, strict
	$(BIN)/pyright

chaos: setup ## Kills, freezes and restarts of a whole fleet under load (CHAOS_MINUTES, default 1.5); exit 1 on a loss
	CHAOS_MINUTES=$(CHAOS_MINUTES) $(BIN)/python -m tests.chaos

stress: setup ## Processes race every pair of transitions on the same tasks; exit 1 on a violation
	$(BIN)/python -m tests.chaos.stress

bench: setup ## Side by side with FastMCP's tasks; prints ratios, writes benchmarks/out/latest.json
	$(BIN)/python -m benchmarks

bench-push: setup ## How soon a client that listens hears of its task's end; exit 1 over 60 ms (median)
	$(BIN)/python -m benchmarks.push

bench-sealing: setup ## What encryption at rest costs the store's calls, in time and in bytes
	$(BIN)/python -m benchmarks.sealing

bench-metrics: setup ## What counting for Prometheus costs the store's calls
	$(BIN)/python -m benchmarks.metrics

bench-resume: setup ## How soon an answered task goes on, beside FastMCP's; exit 1 over 0.6 (held: 0.4) of its time
	$(BIN)/python -m benchmarks.resume

bench-recovery: setup ## How long a killed worker's job stands still, beside bare Celery; exit 1 over 20 s
	$(BIN)/python -m benchmarks.recovery

bench-record: setup ## Bytes of Redis per task, and a store with 1,000,000 ended ones beside a small one; exit 1 over a bound
	$(BIN)/python -m benchmarks.record

bench-console: setup ## The console's list with 10,000 tasks, and how soon an answer is seen; exit 1 over 150 ms or 1 s (medians)
	$(BIN)/python -m benchmarks.console

bench-tracker: setup ## 50,000 tracked tasks at ten-minute intervals on one worker; exit 1 over a bound
	$(BIN)/python -m benchmarks.tracking

clean: ## Remove what the targets made
	rm -rf $(VENV) .venv-fastmcp .mcptasks .pytest_cache .ruff_cache .hypothesis tests/*/node_modules build benchmarks/out tests/chaos/out
