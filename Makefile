PYTHON ?= python3
BIN := .venv/bin
# Processes of a test run: more than cores, as tests of clusters wait a lot.
N ?= 4
PYTEST := -m pytest -n $(N) --dist loadgroup --no-loadscope-reorder
# The older end of what is tested; `make test` has the newest of everything.
OLDEST := dask==2025.7.0 distributed==2025.7.0 'pandas==2.3.*'

# Often set in containers: every process would compile every module again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test test-all test-thorough test-oldest test-wheel test-long lint bench docs clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

# The environment grows by one extra of pyproject.toml at a time, and is made anew when that file changes.
ifneq ($(shell command -v uv 2>/dev/null),)
new-venv = uv venv --quiet --clear --seed --no-project --python "$$(command -v $(PYTHON))" .venv
install = uv pip install --quiet --python $(BIN)/python -e
else
new-venv = $(PYTHON) -m venv --clear .venv
install = $(BIN)/python -m pip install --quiet --disable-pip-version-check -e
endif

.venv/.examples: pyproject.toml
	$(new-venv)
	$(install) '.[examples]'
	@touch $@

.venv/.test .venv/.lint .venv/.bench: .venv/.%: .venv/.examples
	$(install) '.[$*]'
	@touch $@

.venv-oldest/.test: .venv/.test
	$(BIN)/uv venv --quiet --clear --no-project --python $(BIN)/python .venv-oldest
	$(BIN)/uv pip install --quiet --python .venv-oldest/bin/python -e '.[test]' $(OLDEST)
	@touch $@

demo: .venv/.examples  ## run the main job on real data, on a LocalCluster of its own
	$(BIN)/python examples/elastic_scaling.py

test: .venv/.test  ## run the tests: every behaviour once
	$(BIN)/python $(PYTEST)

test-all: test-thorough test-oldest test-wheel  ## run what `make test` leaves out

test-thorough: .venv/.test  ## run more cases of each test than `make test` does
	$(BIN)/python $(PYTEST) -m '(thorough or hypothesis) and not long' --hypothesis-profile=thorough --timeout 1200

test-oldest: .venv-oldest/.test  ## run the tests of frames and clusters with the oldest Dask and pandas
	.venv-oldest/bin/python $(PYTEST) tests/dataframe tests/cluster

test-wheel: .venv/.test  ## install the wheel on each Python that is found, and try it there
	$(BIN)/python tests/installed.py

test-long: .venv/.test  ## run the long campaigns, for hours
	$(BIN)/python $(PYTEST) -m 'long or hypothesis' --hypothesis-profile=long --timeout 3600

lint: .venv/.lint  ## check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: .venv/.bench  ## print ratios against peers
	for b in benchmarks/*.py; do $(BIN)/python $$b || exit 1; done

docs: .venv/.test  ## run the examples in docs/ and in docstrings
	$(BIN)/python -m pytest -q --doctest-glob='*.md' docs/ring-and-plans.md chash_partition

clean:  ## remove the environments and caches
	rm -rf .venv .venv-oldest .pytest_cache .mypy_cache .ruff_cache .hypothesis
