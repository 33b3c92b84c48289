PYTHON ?= python3
BIN := .venv/bin

.DEFAULT_GOAL := help
.PHONY: help demo test test-long lint bench docs clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

# The environment is rebuilt when pyproject.toml changes; pip alone is needed.
.venv/.installed: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -e '.[dev]'
	touch $@

demo: .venv/.installed  ## run the main job on real data, on a LocalCluster of its own
	$(BIN)/python examples/elastic_scaling.py

test: .venv/.installed  ## run the tests
	@$(BIN)/python -m pytest -m "clusters and not long" > .clusters.log 2>&1 & clusters=$$!; \
	$(BIN)/python -m pytest -m "not clusters and not long" tests/dataframe > .dataframe.log 2>&1 & dataframe=$$!; \
	$(BIN)/python -m pytest -m "not clusters and not long" --ignore=tests/dataframe; others=$$?; \
	wait $$dataframe; dataframe=$$?; cat .dataframe.log; \
	wait $$clusters; clusters=$$?; cat .clusters.log; exit $$((clusters | dataframe | others))

test-long: .venv/.installed  ## run the tests and the long campaigns
	$(BIN)/python -m pip install --quiet -e '.[bench]'
	$(BIN)/python -m pytest -m '' --timeout 3600

lint: .venv/.installed  ## check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: .venv/.installed  ## print ratios against peers
	$(BIN)/python -m pip install --quiet -e '.[bench]'
	for b in benchmarks/*.py; do $(BIN)/python $$b || exit 1; done

docs: .venv/.installed  ## run the examples in docs/ and in docstrings
	$(BIN)/python -m pytest -q --doctest-glob='*.md' docs/ring-and-plans.md chash_partition

clean:  ## remove the environment and caches
	rm -rf .clusters.log .dataframe.log .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis
