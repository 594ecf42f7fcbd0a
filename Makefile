# Every target sets up .venv by itself. `make PYTHON=python3.12 …` chooses the interpreter.
.DEFAULT_GOAL := help
.PHONY: help demo test verify chaos screenshots check bench dev env compose-test lock clean

BIN   := .venv/bin
READY := .venv/.ready$(subst /,_,$(PYTHON))
PEERS := .venv/.peers
SUITE ?= all

help:            ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "make %-12s %s\n", $$1, $$2}'

demo: $(READY)   ## the whole platform on an embedded stack, with real traffic; Ctrl-C stops it
	@$(BIN)/activity-platform demo

dev: $(READY)    ## the same without the traffic
	@$(BIN)/activity-platform dev

test: $(READY)   ## the fast tests (some 6 minutes on two cores)
	@$(BIN)/pytest -n 2 --dist loadscope

verify: $(READY) ## the heavy proofs: kills, long property tests, large data
	@$(BIN)/pytest -m heavy -n 0 --timeout 1800

chaos: $(READY)  ## kill every process under traffic, with three seeds; SEED=7 for that one
	@$(BIN)/pytest -q -s -m heavy -n 0 --timeout 1800 activity_platform_tests/chaos

screenshots: $(READY) ## the pictures in docs/screenshots, taken anew in Chromium
	@UPDATE_SCREENSHOTS=1 $(BIN)/pytest -q -m heavy -n 0 activity_platform_tests/browser

check: $(READY)  ## lint, types, import contracts, links in the documents
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache
	@$(BIN)/python -m activity_platform_tests.docs.links

bench: $(PEERS)  ## speeds as ratios, in 15 minutes; SUITE=ingest for one
	@$(BIN)/python -m benchmarks $(SUITE)

env:             ## write .env with fresh secrets for docker-compose.yml
	@sh deploy/env .env

compose-test: $(READY) ## the stack of docker-compose.yml in containers, with real traffic (needs Docker)
	@sh deploy/compose-test/run

lock: $(READY)   ## choose versions anew and write constraints.txt
	@$(BIN)/uv pip compile pyproject.toml --extra local --extra dev --extra bench --universal --python-version 3.11 \
	  --upgrade --no-annotate --no-header --no-emit-index-url --quiet --output-file constraints.txt

clean:           ## remove .venv, caches and the embedded stack's data
	@rm -rf .venv .local .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(READY): pyproject.toml constraints.txt .ci/venv .ci/install
	@PYTHON="$(PYTHON)" sh .ci/venv
	@touch $@

# What `make bench` measures beside, which nothing else needs.
$(PEERS): $(READY)
	@sh .ci/install local,dev,bench
	@touch $@
