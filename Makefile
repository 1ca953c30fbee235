# Requires Python 3.11, pip, make and gcc. Creates `.venv` and everything in it.
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
PIP := $(VENV)/bin/pip install --quiet --disable-pip-version-check -c constraints.txt

.DEFAULT_GOAL := help
.PHONY: help demo test test-browser test-long test-oldest test-python test-integrations dist lint types format bench mutants \
	experiments reproduce docs chromium clean
PROTOCOL ?= quick
RESULTS ?= runs/$(PROTOCOL)
OLDEST := .venv-oldest
OTHER := .venv-python
# Where other versions of libraries would show: tables, frames, files, figures, searches, estimators, the command line.
FAST := tests/cli/test_csv_options.py tests/cli/test_same_numbers.py tests/encoding tests/estimators/test_estimators.py \
	tests/estimators/test_sklearn_tools.py tests/plots tests/predictive tests/table tests/tuning tests/test_extras.py \
	tests/test_metrics.py tests/test_notebook.py tests/test_storage.py tests/test_trees.py

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 20

$(VENV)/.made:
	$(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/.run: $(VENV)/.made pyproject.toml constraints.txt
	$(PIP) torch==2.13.0
	$(PIP) -e '.[report,tune]'
	touch $@

$(VENV)/.dev: $(VENV)/.run
	$(PIP) -e '.[dev]'
	touch $@

$(VENV)/.release: $(VENV)/.made constraints.txt
	$(PIP) build twine
	touch $@

# torch alone is not the oldest: see release/oldest.py.
$(OLDEST)/.made: pyproject.toml release/oldest.py
	$(PYTHON) -m venv --clear $(OLDEST)
	$(PYTHON) -m release.oldest > $(OLDEST)/oldest.txt
	$(OLDEST)/bin/pip install --quiet --disable-pip-version-check -c $(OLDEST)/oldest.txt torch==2.13.0
	$(OLDEST)/bin/pip install --quiet --disable-pip-version-check -c $(OLDEST)/oldest.txt -e '.[report,tune]' \
		hypothesis pandas polars pytest pytest-xdist scoringrules
	touch $@

$(VENV)/.ray: $(VENV)/.dev
	$(PIP) -e '.[ray]'
	touch $@

# skpro without its dependencies, of which all are there: it declares pandas < 3.1, but passes with the one pinned here.
$(VENV)/.integrations: $(VENV)/.dev
	$(PIP) -e '.[mlflow]'
	$(PIP) --no-deps skpro scikit-base
	-$(PIP) shap # for explanations; numba, which it needs, is late for new versions of NumPy
	touch $@

$(VENV)/.docs: $(VENV)/.dev
	$(PIP) -e '.[docs]'
	touch $@

$(VENV)/.experiments: $(VENV)/.run
	$(PIP) -e '.[experiments]'
	touch $@

demo: $(VENV)/.run ## run dspp fit, predict and evaluate on simulated data; writes a report to demo/ (about a minute)
	$(PY) -m dspp demo --folder demo --overwrite

test: lint types ## run lint, types and tests (about 6 minutes)
	OMP_NUM_THREADS=1 $(PY) -m pytest -m "not long and not browser" -n 2

test-browser: $(VENV)/.dev chromium ## test the HTML report in a headless Chromium
	$(PY) -m pytest -m browser tests/report

# `make test` skips these tests where the packages are not installed.
test-integrations: $(VENV)/.integrations ## test MLflow and skpro, which it installs
	$(PY) -m pytest tests/test_mlflow_flavour.py tests/test_skpro_adapter.py tests/docs

test-long: $(VENV)/.ray ## run the tests that take minutes each
	$(PY) -m pytest -m long

dist: $(VENV)/.release ## build sdist and wheel into dist/, check them, and try the wheel in a clean environment (minutes)
	rm -rf dist
	PIP_CONSTRAINT=$(CURDIR)/constraints.txt $(PY) -m build --outdir dist
	$(VENV)/bin/twine check --strict dist/*
	$(PY) -m release.check dist

test-oldest: $(OLDEST)/.made ## run fast tests with the oldest versions of libraries that pyproject.toml allows
	OMP_NUM_THREADS=1 $(OLDEST)/bin/python -m pytest -m "not long and not browser" -n 2 $(FAST) \
		-W default::DeprecationWarning -W default::FutureWarning

test-python: ## run fast tests with another version of Python: make test-python PYTHON=python3.13
	$(PYTHON) -m venv --clear $(OTHER)
	$(OTHER)/bin/pip install --quiet --disable-pip-version-check -c constraints.txt torch==2.13.0
	$(OTHER)/bin/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[report,tune,mlflow]' \
		hypothesis pandas polars pytest pytest-xdist scoringrules
	OMP_NUM_THREADS=1 $(OTHER)/bin/python -m pytest -m "not long and not browser" -n 2 $(FAST) tests/modelfile \
		tests/docs/test_documentation.py tests/test_mlflow_flavour.py

docs: $(VENV)/.docs $(VENV)/.integrations ## build the documentation in docs/_build/html, tutorials and examples included (about 5 minutes)
	OMP_NUM_THREADS=1 $(PY) -m sphinx -E -W --keep-going -b html -d docs/_build/doctrees docs docs/_build/html
	OMP_NUM_THREADS=1 $(PY) -m pytest tests/docs tests/test_readme.py tests/test_contributing.py

chromium: ## install Chromium from Debian's packages if it is missing
	@command -v chromium >/dev/null || { apt-get update -qq && apt-get install -y -qq chromium >/dev/null; } || \
		echo "Chromium could not be installed; the browser tests will fail in CI and be skipped elsewhere"

lint: $(VENV)/.dev ## run ruff
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

types: $(VENV)/.dev ## run mypy, strict
	$(VENV)/bin/mypy

format: $(VENV)/.dev ## format and fix with ruff
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

bench: $(VENV)/.dev ## measure every speed that has a bar, and say which bars are met (half an hour)
	$(PY) -m benchmarks.bars

mutants: $(VENV)/.dev ## check that the tests notice faults in the numerical core (a sample; hours)
	$(PY) -m benchmarks.mutants

experiments: $(VENV)/.experiments ## install what the paper's experiments need: boosted trees to compare with

# results/ is not touched.
reproduce: $(VENV)/.experiments ## run every experiment of the paper into runs/: PROTOCOL=quick (hours) or paper (months)
	$(PY) -m experiments run all --protocol $(PROTOCOL) --results $(RESULTS); \
		status=$$?; $(PY) -m experiments report --results $(RESULTS) && exit $$status # report even if some fits failed

clean: ## remove the environments, builds and caches
	rm -rf $(VENV) $(OLDEST) $(OTHER) dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
