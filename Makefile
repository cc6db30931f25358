# Each target makes the virtual environment it needs; PYTHON names the interpreter to make it with.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
INSTALL := $(PIP) -c constraints.txt

.PHONY: help demo test lint docs bench chaos audit lock clean

help: ## what can be made
	@sed -n 's/^\([a-z]*\):.*## /  make \1	/p' Makefile

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# torch first and by itself, so that no other requirement chooses its build
$(VENV)/.run: $(BIN)/python pyproject.toml constraints.txt
	$(INSTALL) torch
	$(INSTALL) -e .
	touch $@

# what the lock of this kind of machine names, by its hashes; then what it leaves to each machine
# before anything else is installed: what is not in it could run code as it is built
$(VENV)/.dev: $(BIN)/python pyproject.toml constraints.txt $(wildcard locks/*.txt)
	@lock=$$($(BIN)/python scripts/lock.py --name); \
	if [ -f $$lock ]; then $(PIP) --no-deps --require-hashes -r $$lock; \
	else echo "$$lock is not there: packages are installed without a look at their hashes"; fi
	$(INSTALL) torch hatchling editables
	$(INSTALL) --no-build-isolation -e '.[dev]'
	touch $@ $(VENV)/.run

demo: $(VENV)/.run ## the main job on the embedded model and sample
	$(BIN)/python examples/demo.py

# bytecode is kept even where an environment would not: the suite's processes would compile everything anew
test: $(VENV)/.dev ## the whole test suite; the browser's part where chromium is, or can be installed
	@sh scripts/install_chromium.sh
	OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile

lint: $(VENV)/.dev ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(VENV)/.dev ## the documents as a site, in site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

bench: $(VENV)/.dev ## timings, as ratios in one run
	$(BIN)/python -m benchmarks.speed measure

MUTATIONS ?= 700
POINTS ?= 1000
REQUESTS ?= 200
MINUTES ?= 0
chaos: $(VENV)/.dev ## faults of the disk, kills, hostile inputs and clients; MINUTES=60 goes on for an hour
	OMP_NUM_THREADS=1 PYTHONWARNINGS=ignore $(BIN)/python -m benchmarks.chaos --mutations $(MUTATIONS) \
		--points $(POINTS) --requests $(REQUESTS) --minutes $(MINUTES)

audit: $(VENV)/.dev ## known vulnerabilities of what is installed, where their data can be reached
	$(BIN)/python scripts/audit.py

lock: $(VENV)/.dev ## the lock of this kind of machine, the licences and the SBOM anew
	$(BIN)/python scripts/lock.py
	$(BIN)/python scripts/licences.py
	$(BIN)/python scripts/sbom.py

clean: ## remove the environment and caches
	rm -rf $(VENV) site .pytest_cache .mypy_cache .ruff_cache .hypothesis
