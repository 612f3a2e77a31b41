# Every target builds what it needs in .venv; stamp files there keep a second call from reinstalling.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
ARGS ?=

BIN := .venv/bin
PAGES := tests/test_examples.py tests/test_notebooks.py tests/test_pages.py tests/test_parts_page.py tests/test_readme.py tests/test_site.py
INSTALL := $(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test test-deploy test-docs lint bench mutants docs evidence data clean

help: ## Show the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' Makefile

demo: .venv/.core ## Compare eight methods on digits while two clients lie, and write the report
	$(BIN)/counterpoise compare demo --seeds 6

test: lint ## Lint, then run the whole suite (ARGS="-m 'not slow'" for a part of it)
	$(BIN)/python -m pytest -n auto --dist worksteal $(ARGS)

test-deploy: .venv/.dev ## Run a real deployment on this machine: TLS, node keys, crashes (minutes)
	timeout 1200 $(BIN)/python -m pytest -m deploy -n 2 tests/flower/test_deployment.py $(ARGS)

test-docs: .venv/.dev ## Run the code blocks, commands, notebooks and examples of README and site
	$(BIN)/python -m pytest -n auto --dist worksteal $(PAGES) $(ARGS)

lint: .venv/.dev ## Check style, format and types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

bench: .venv/.core ## Measure the engine against a bare torch loop
	$(BIN)/python benchmarks/run.py $(ARGS)

mutants: .venv/.dev ## Break the rules one at a time and show that the tests notice
	$(BIN)/python tests/mutants.py $(ARGS)

docs: .venv/.docs ## Build the documentation site into build/docs; a dead link is an error
	$(BIN)/python -m sphinx -b html -E -W -n -q --keep-going -c docs -d build/doctrees . build/docs
	@echo "The site is in build/docs/index.html."

evidence: .venv/.core ## Write docs/evidence.md, docs/worlds.md and the README's table anew from the results of the studies
	$(BIN)/python studies/evidence.py
	$(BIN)/python studies/worlds.py

data: .venv/.core ## Fetch the small real data sets for the tests marked `data`
	$(BIN)/counterpoise data get mnist fashion-mnist organamnist bloodmnist

clean: ## Remove what the other targets made, .venv included; runs/ and data/ stay
	rm -rf .venv build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find benchmarks src tests -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/.made:
	@"$(PYTHON)" -c 'import sys; sys.exit("Counterpoise needs Python 3.11 or newer: make PYTHON=..." if sys.version_info < (3, 11) else 0)'
	"$(PYTHON)" -m venv --clear .venv
	@touch $@

.venv/.core: .venv/.made pyproject.toml constraints.txt
	$(INSTALL) -e .
	@touch $@

.venv/.dev: .venv/.made pyproject.toml constraints.txt
	$(INSTALL) -e '.[dev,dask,datasets,flower,ray,tensorboard,mlflow,wandb]'
	@touch .venv/.core $@

.venv/.docs: .venv/.made pyproject.toml constraints.txt
	$(INSTALL) -e '.[docs,flower]'
	@touch .venv/.core $@
