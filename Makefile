# `make help` lists the targets. Everything runs in .venv, which is made on first use.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SERVICE := $(VENV)/.service
STAMP := $(VENV)/.installed
LOCKS := deploy/locks
# Nothing is installed, nor used to build, that the lock files do not name with its hash; but `make pilot` builds with the
# newest setuptools, because it works without .venv.
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-build-isolation

# One BLAS thread: the optimizer's points are then the same, bit for bit, from run to run.
export OMP_NUM_THREADS ?= 1
export OPENBLAS_NUM_THREADS ?= 1

.DEFAULT_GOAL := help
.PHONY: help venv run pilot test test-real check lock release site format schemas bench chaos soak curves pictures horovod clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

venv: $(STAMP)  ## make .venv with everything but torch and Horovod

$(SERVICE): setup.cfg pyproject.toml $(LOCKS)/build.txt $(LOCKS)/service.txt
	@echo "$(VENV): pip installs hpo-pilot and its libraries; it says nothing until that is done, in a minute or two"
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) --requirement $(LOCKS)/build.txt
	$(INSTALL) --requirement $(LOCKS)/service.txt
	PYTHONWARNINGS=ignore $(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

$(STAMP): $(SERVICE) $(LOCKS)/develop.txt
	@echo "$(VENV): pip installs what tests, checks and benchmarks need; it says nothing until that is done"
	$(INSTALL) --requirement $(LOCKS)/develop.txt
	@touch $@

run: $(SERVICE)  ## scan the hyper-parameters of payloads/digits: 48 trials x 3 folds, then a report
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/hpo-pilot run payloads/digits/search.yaml

pilot:  ## build/pilot: the pilot and its libraries in a folder that runs from any place, for deploy/grid/pilot.sh
	rm -rf build/pilot
	$(PYTHON) -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps --target build/pilot --requirement $(LOCKS)/pilot.txt
	rm -rf build/pilot/bin
	$(PYTHON) -m pip install --quiet --disable-pip-version-check --no-deps --target build/pilot .

test: venv  ## all tests that need only Python
	$(BIN)/pytest -n 3 --dist worksteal --durations 15 --ignore tests/chaos --ignore tests/real tests

test-real: venv  ## tests with real parts: PostgreSQL, Pilot 3, prun, pbook, kills; installs what is missing, if root
	tests/real/run

check: venv  ## format, lint, strict typing, import contracts, runner syntax, schemas
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --config setup.cfg
	$(BIN)/vermin --quiet --no-tips --target=3.6- --violations hpo_pilot/runner hpo_pilot/transformation
	$(BIN)/vermin --quiet --no-tips --target=3.9- --violations payloads
	$(BIN)/python -m schemas.write --check schemas
	$(BIN)/python -m schemas.reference --check
	$(BIN)/python deploy/release.py licences

lock: $(STAMP)  ## write deploy/locks/ from setup.cfg; LOCK=--upgrade takes the newest versions
	$(INSTALL) --requirement $(LOCKS)/release.txt
	$(BIN)/python deploy/release.py lock $(LOCK)

release: $(STAMP)  ## dist/: wheel and sdist, tried in a new environment, the SBOM; licences and known vulnerabilities
	$(INSTALL) --requirement $(LOCKS)/release.txt
	$(BIN)/python deploy/release.py make

format: venv  ## mend what can be mended by a tool
	$(BIN)/ruff check --fix --quiet . || true
	$(BIN)/ruff format .

schemas: venv  ## write schemas/ and the manual's reference from models and commands
	$(BIN)/python -m schemas.write schemas
	$(BIN)/python -m schemas.reference

site: venv  ## build/site: the manual as static pages, for any web server
	$(BIN)/python -m schemas.site build/site

bench: venv  ## the benchmarks: how fast, as a ratio to the peer named
	$(BIN)/python -m tests.performance --trials 4000

SEED ?= 1
STORE ?= sqlite
chaos: venv  ## faults on a real service, then all invariants: FAULTS=40 or SECONDS=600, SEED=1, STORE=postgresql; as root all of them
	$(BIN)/python -m tests.chaos --seed $(SEED) --store $(STORE) $(if $(SECONDS),--seconds $(SECONDS)) $(if $(FAULTS),--faults $(FAULTS))

TRIALS ?= 100000
soak: venv  ## TRIALS=100000 fast trials: memory, files, connections and disk stay flat
	$(BIN)/python -m tests.performance soak --trials $(TRIALS)

curves: venv  ## record the learning curves that benchmarks replay anew: an hour; two of them in the Python of `make horovod`
	for name in digits bdt breast_cancer diabetes wine; do $(BIN)/python -m tests.performance.learning_curves.record $$name || exit; done
	for name in calo_gan resnet50; do $(BIN)/python -m tests.performance.learning_curves.record $$name \
	  --python "$$($(PYTHON) deploy/horovod/build.py --where)" || exit; done

pictures: venv  ## take the manual's screenshots anew, from real runs in a real browser
	HPO_PILOT_TEST_REAL=1 HPO_PILOT_PICTURES=build/pictures $(BIN)/pytest tests/real/test_monitor.py
	cp build/pictures/running.png build/pictures/parallel.png hpo_pilot/manual/pictures/

horovod:  ## build Horovod against PyTorch, once, in ~/.cache/hpo_pilot; deploy/horovod/README.md has the variables
	$(PYTHON) deploy/horovod/build.py

clean:  ## remove what make made
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache
