# Requires Python 3.11, pip, make and gcc. Creates `.venv` and everything in it.
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
PIP := $(VENV)/bin/pip install --quiet --disable-pip-version-check -c constraints.txt

.DEFAULT_GOAL := help
.PHONY: help demo test test-browser test-long lint types format bench mutants experiments reproduce docs chromium clean
PROTOCOL ?= quick
RESULTS ?= runs/$(PROTOCOL)

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(VENV)/.made:
	$(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/.run: $(VENV)/.made pyproject.toml constraints.txt
	$(PIP) torch==2.13.0
	$(PIP) -e .
	touch $@

$(VENV)/.dev: $(VENV)/.run
	$(PIP) -e '.[dev]'
	touch $@

$(VENV)/.ray: $(VENV)/.dev
	$(PIP) -e '.[ray]'
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

test-long: $(VENV)/.ray ## run the tests that take minutes each
	$(PY) -m pytest -m long

docs: $(VENV)/.docs ## build the documentation in docs/_build/html, tutorials and examples included (about 5 minutes)
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
	$(PY) -m benchmarks.step
	$(PY) -m benchmarks.predict
	$(PY) -m benchmarks.scaling
	$(PY) -m benchmarks.bars

mutants: $(VENV)/.dev ## check that the tests notice faults in the numerical core (a sample; hours)
	$(PY) -m benchmarks.mutants

experiments: $(VENV)/.experiments ## install what the paper's experiments need: boosted trees to compare with

# results/ is not touched.
reproduce: $(VENV)/.experiments ## run every experiment of the paper into runs/: PROTOCOL=quick (hours) or paper (months)
	$(PY) -m experiments run all --protocol $(PROTOCOL) --results $(RESULTS); \
		status=$$?; $(PY) -m experiments report --results $(RESULTS) && exit $$status # report even if some fits failed

clean: ## remove the environment and caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
