# Everything starts from Python 3.11, pip, make and gcc; `.venv` and what is in it are made here.
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
PIP := $(VENV)/bin/pip install --quiet --disable-pip-version-check -c constraints.txt

.DEFAULT_GOAL := help
<<<<<<< HEAD
.PHONY: help demo test test-browser test-long lint types format bench experiments reproduce chromium clean
=======
.PHONY: help demo test test-long lint types format bench mutants experiments reproduce chromium clean
>>>>>>> metrics
PROTOCOL ?= quick
RESULTS ?= runs/$(PROTOCOL)

help: ## show what there is
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

$(VENV)/.experiments: $(VENV)/.run
	$(PIP) -e '.[experiments]'
	touch $@

demo: $(VENV)/.run ## simulated rows to CSV, then dspp fit, predict, evaluate: a report in demo/ (about a minute)
	$(PY) -m dspp demo --folder demo --overwrite

test: lint types ## lint, types and tests (about 6 minutes)
	OMP_NUM_THREADS=1 $(PY) -m pytest -m "not long and not browser" -n 2

test-browser: $(VENV)/.dev chromium ## the report in a headless Chromium
	$(PY) -m pytest -m browser tests/report

test-long: $(VENV)/.ray ## the tests that take minutes each
	$(PY) -m pytest -m long

chromium: ## install Chromium from Debian's packages if there is none
	@command -v chromium >/dev/null || { apt-get update -qq && apt-get install -y -qq chromium >/dev/null; } || \
		echo "Chromium could not be installed; the browser tests will fail in CI and be skipped elsewhere"

lint: $(VENV)/.dev ## ruff
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

types: $(VENV)/.dev ## mypy, strict
	$(VENV)/bin/mypy

format: $(VENV)/.dev ## let ruff format and mend
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

bench: $(VENV)/.dev ## speed and memory against GPyTorch, and growth exponents
	$(PY) -m benchmarks.step
	$(PY) -m benchmarks.predict
	$(PY) -m benchmarks.scaling

mutants: $(VENV)/.dev ## whether the tests can fail: faults put into the numerical core, a sample of them (hours)
	$(PY) -m benchmarks.mutants

experiments: $(VENV)/.experiments ## what the paper's experiments need: boosted trees to compare with

# quick leaves out the data sets of over 100,000 rows; what is in results/ is not touched
reproduce: $(VENV)/.experiments ## every experiment of the paper, in runs/: PROTOCOL=quick (hours) or paper (months)
	$(PY) -m experiments run all --protocol $(PROTOCOL) --results $(RESULTS) $(if $(filter quick,$(PROTOCOL)),--max-rows 1e5); \
		status=$$?; $(PY) -m experiments report --results $(RESULTS) && exit $$status # what failed does not hide the rest

clean: ## remove the environment and caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
