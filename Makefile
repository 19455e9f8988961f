# The house's few commands. `make help` lists them; `make demo` is the one to try first.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

# uv of this machine, else one in a virtual environment of its own below the cache
UV_HERE := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/dsec/uv
UV := $(or $(shell command -v uv 2>/dev/null),$(UV_HERE)/bin/uv)
BIN := .venv/bin
STEP = @printf '\n── %s\n'

# tests start hundreds of programs: what they import is compiled once, also where the environment
# says that no bytecode is kept; beside the sources, not between them
unexport PYTHONDONTWRITEBYTECODE
export PYTHONPYCACHEPREFIX := $(CURDIR)/.bytecode

# none of them uses more than one core, nor what another writes
PURE_CHECKS := check-types check-style check-arrows check-generated check-changelog check-rust

.PHONY: help setup demo check test cases soak bench-elastic bench-openb bench-snapshot generate clean
.PHONY: $(PURE_CHECKS) check-unit

help: ## Show this list
	@awk -F':.*## ' '/^[a-z%-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(BIN)/.synced ## Install what development needs (uv where it is missing, packages)

$(BIN)/.synced: uv.lock pyproject.toml runtime/pyproject.toml components/pyproject.toml policies/pyproject.toml | $(UV)
	$(STEP) "packages"
	$(UV) sync --locked
	@touch $@

$(UV_HERE)/bin/uv:
	$(STEP) "uv (this machine has none)"
	python3 -m venv $(UV_HERE)
	$(UV_HERE)/bin/pip install --quiet uv

demo: setup ## From nothing to 200 graded programs on a local cluster
	$(BIN)/dsec demo

check: setup ## Fast checks (within a minute, warm)
	@$(MAKE) --no-print-directory --jobs 2 --output-sync=target $(PURE_CHECKS)
	@$(MAKE) --no-print-directory check-unit

check-style:
	$(STEP) "style"
	$(BIN)/ruff check --quiet
	$(BIN)/ruff format --check --quiet

check-types:
	$(STEP) "types"
	$(BIN)/mypy

check-arrows:
	$(STEP) "arrows"
	$(BIN)/lint-imports --no-logo

check-generated:
	$(STEP) "generated files"
	$(BIN)/python -m dsec.api.generate --check

check-changelog:
	$(STEP) "changelog fragments"
	$(BIN)/towncrier build --draft --version next >/dev/null

# cargo rebuilds only what changed; the stamp saves even asking
check-rust: runtime/init/target/.checked
runtime/init/target/.checked: $(shell find runtime/init -name '*.rs' -not -path '*/target/*' 2>/dev/null) $(wildcard runtime/init/Cargo.*)
	$(STEP) "dsec-init"
	cargo check --quiet --manifest-path runtime/init/Cargo.toml
	@mkdir -p $(@D) && touch $@

check-unit:
	$(STEP) "unit tests"
	$(BIN)/pytest tests/unit -n 2 -m "not soak" $(UNIT_OPTIONS)

test: setup ## Everything: tools, checks and all tiers of tests, with the time of each
	$(BIN)/python tests/tiers.py

cases: setup ## Field reports: the test that holds each, and its result (CASES_OPTIONS="--output json")
	@$(BIN)/python tests/cases.py $(CASES_OPTIONS)

soak: setup ## Full counts and long runs (hours)
	$(BIN)/pytest tests -m soak --timeout 7200 --hypothesis-profile soak
	$(BIN)/pytest tests/unit -m "not soak" --timeout 7200 --hypothesis-profile soak

bench-openb: setup ## Placement on a GPU trace against other rules: make bench-openb DATA=folder
	$(BIN)/python tests/bench/bench_openb.py $(or $(DATA),$(error say where the trace is: DATA=folder)) $(OPENB_OPTIONS)

bench-elastic: setup ## Bill and waits of elastic fleets: make bench-elastic DATA=folder
	$(BIN)/python tests/bench/bench_elastic.py $(or $(DATA),$(error say where the trace is: DATA=folder)) $(ELASTIC_OPTIONS)
	$(BIN)/pytest tests/bench/bench_planning.py --timeout 3600

bench-placement: setup ## Decisions a second, their latency, and the same beside kube-scheduler
	$(BIN)/python tests/bench/bench_placement.py
	PYTHONPATH=tests $(BIN)/python tests/bench/bench_kube_scheduler.py

bench-snapshot: setup ## Snapshots beside restic, borg, rclone and a plain copy (SNAPSHOT_OPTIONS="--cases new --runs 5")
	PYTHONPATH=tests $(BIN)/python tests/bench/bench_snapshot.py $(SNAPSHOT_OPTIONS)
	$(BIN)/pytest -q -s tests/sim/test_sim_moves.py -k w02 | grep -E '^(FIGURE|40 |  )|passed|failed'

bench-%: setup ## One benchmark of tests/bench, for example make bench-create
	$(BIN)/pytest tests/bench/bench_$*.py --timeout 3600

generate: setup ## Write CRDs and component arguments from the models
	$(BIN)/python -m dsec.api.generate

clean: ## Stop what runs here and remove what was built in this checkout
	-[ ! -x $(BIN)/dsec ] || $(BIN)/dsec local down
	-[ ! -x $(BIN)/dsec ] || $(BIN)/dsec down
	rm -rf .venv .bytecode .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache runtime/init/target dist build
