# Each target sets itself up: a machine needs python3 (3.11 or newer), pip and make.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
BASE   := $(VENV)/.ready-base
, := ,
READY  := $(VENV)/.ready

# What needs more than a checkout has: another program, a cluster, a browser, minutes of everything it can get.
SEPARATE := not compat and not kubernetes and not ray and not attacks and not browser and not chaos and not train and not terminal

# OpenEnv, to be compared with: in an environment of its own, never in ours.
OPENENV       := .venvs/openenv
OPENENV_READY := $(OPENENV)/.ready-0.10.0

.PHONY: test-train test-terminal demo docs screenshots test test-slow test-all test-browser test-attacks test-chaos test-faults test-model test-k8s test-ray test-versions check format bench compat clean corpus bench-quick bench-scaling bench-flame
# What only the benchmark needs: plots, a profiler, and what is fast in others' servers too.
BENCH_READY         := $(VENV)/.ready-bench
OPENENV_BENCH_READY := $(OPENENV)/.ready-bench

.DEFAULT_GOAL := help

# Playwright drives a browser that is installed already: Debian's Chromium, say.
BROWSER_READY := $(VENV)/.ready-browser
SCREENSHOTS   ?= .artefacts/screenshots

$(BROWSER_READY): $(READY)
	$(BIN)/python -m pip install --quiet --group browser
	@touch $@

DOCS_READY := $(VENV)/.ready-docs

$(DOCS_READY): $(READY)
	$(BIN)/python -m pip install --quiet --group docs
	@touch $@

help:  ## what there is to run
	@grep -E '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(BASE): pyproject.toml
	$(PYTHON) -m venv $(VENV) 2>/dev/null || { $(PYTHON) -m pip install --quiet --user virtualenv && $(PYTHON) -m virtualenv --quiet $(VENV); }
	$(BIN)/python -m pip install --quiet --editable .
	@touch $@

$(READY): $(BASE)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --editable . --group dev
	@touch $@

demo: $(BASE)  ## start an echo server and play three episodes on it
	$(BIN)/envtorch demo

test: $(READY)  ## the suite without its slow tests, in parallel
	$(BIN)/python -m pytest -n auto --dist worksteal -m "not slow and $(SEPARATE)"

test-slow: $(READY)  ## the slow tests alone: installations, images, long runs
	$(BIN)/python -m pytest -n auto --dist worksteal -m "slow and $(SEPARATE)"

test-all: test test-slow  ## the whole suite

test-chaos: $(READY)  ## 200 sessions on a bad line, servers killed; then 20,000 sessions and what they leave
	$(BIN)/python -m pytest -s -m chaos tests/chaos $(if $(SECONDS),--chaos-seconds $(SECONDS))

# The lowest and the newest versions of what we depend on, each set in an environment of its own. Extras ask for
# newer versions of what the package itself needs: so the lowest ones are tested with and without them.
VERSIONS := lowest lowest-extras newest-extras

test-versions: $(VERSIONS:%=.venvs/%/.ready)  ## the core of the suite with the lowest and the newest dependencies
	failed=0; for set in $(VERSIONS); do .venvs/$$set/bin/python -m tests.versions || failed=1; done; exit $$failed

.venvs/%/.ready: pyproject.toml $(READY)
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python $(@D)
	$(BIN)/uv pip install --quiet --python $(@D) --resolution $(if $(findstring lowest,$*),lowest-direct,highest) \
		--editable ".$(if $(findstring extras,$*),[mcp$(,)web])" --group versions
	@touch $@

test-browser: $(BROWSER_READY)  ## the web page in a real browser; pictures in .artefacts/screenshots
	$(BIN)/python -m pytest -n 2 -m browser tests/web --screenshots $(SCREENSHOTS)

screenshots: test-browser  ## the pictures in docs/images, taken anew
	for picture in docs/images/*.png; do cp $(SCREENSHOTS)/$$(basename $$picture) docs/images/; done

docs: $(DOCS_READY)  ## the documentation, in .artefacts/site; a warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

test-k8s: $(READY)  ## the provider contract, and a fleet updated and killed under load, on the cluster of KUBECONFIG
	$(BIN)/python -m pytest -n 2 -m kubernetes tests/providers

test-terminal: $(READY)  ## every task of terminal_env with every cheat
	$(BIN)/python -m pytest -s -m terminal tests/envs/terminal_env tests/bench

.PHONY: test-harbor
test-harbor: $(READY)  ## every task of TASKS=dir with its solution, with nothing done, with every cheat; ROOT=dir to play on, GRADING=plan
	test -d "$(TASKS)" || { echo "say where the tasks are: make test-harbor TASKS=dir [ROOT=dir] [GRADING=plan]"; exit 2; }
	$(BIN)/python -m pytest -s -m terminal tests/envs/terminal_env/test_given_tasks.py --harbor-tasks "$(TASKS)" $(if $(ROOT),--harbor-root "$(ROOT)") $(if $(GRADING),--harbor-grading "$(GRADING)")

# Ray, in an environment of its own: its agents start with every node, and share no version with ours.
RAY_READY := .venvs/ray/.ready-2.60.0

$(RAY_READY): pyproject.toml $(READY)
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python .venvs/ray
	$(BIN)/uv pip install --quiet --python .venvs/ray --editable . --group versions "ray==2.60.0"
	@touch $@

test-ray: $(RAY_READY)  ## the provider contract and 500 sessions on a Ray cluster of four nodes, which die
	RAY_USAGE_STATS_ENABLED=0 .venvs/ray/bin/python -m pytest -s -m ray tests/cluster

test-attacks: $(READY)  ## every attack on live servers: as root, as an ordinary user, in containers
	$(BIN)/python -m pytest -s -m attacks tests/envs

test-faults: $(READY)  ## break connections at every byte, and at random for a minute
	$(BIN)/python -m pytest -s tests/faults --fault-stride 1 --fault-seconds 60

test-model: $(READY)  ## every interleaving of a bounded episode of the session protocol
	$(BIN)/python -m tests.model

test-train: $(READY)  ## each trainer, installed by itself, drives its adapter; ONLY=trl,verl for some, RESUME=1 after a stop
	$(BIN)/python -m tests.train $(if $(ONLY),--only "$(ONLY)") $(if $(RESUME),--resume)

compat: $(READY) $(OPENENV_READY)  ## play against OpenEnv 0.10.0, both ways, over real sockets
	$(BIN)/python -m pytest -m compat tests/compat

$(OPENENV_READY):
	$(PYTHON) -m venv $(OPENENV) 2>/dev/null || { $(PYTHON) -m pip install --quiet --user virtualenv && $(PYTHON) -m virtualenv --quiet $(OPENENV); }
	$(OPENENV)/bin/python -m pip install --quiet openenv==0.10.0
	@touch $@

# Environments written for OpenEnv, fetched from public repositories: none of them is in this tree.
LIST   ?= tests/compat/openenv_corpus.json
CORPUS ?= $(HOME)/.cache/envtorch-corpus

corpus:  ## serve and play the environments of LIST, unmodified; they are fetched to CORPUS
	$(PYTHON) tests/compat/checkouts.py $(LIST) $(CORPUS) $(if $(SOURCE),--source "$(SOURCE)")
	test -d $(CORPUS)/.venv || $(PYTHON) -m venv $(CORPUS)/.venv
	$(CORPUS)/.venv/bin/python -m pip install --quiet --editable ".[docker,mcp]" $$($(PYTHON) tests/compat/checkouts.py --packages $(LIST))
	$(CORPUS)/.venv/bin/python tests/compat/fixtures.py $(CORPUS)
	$(CORPUS)/.venv/bin/python tests/compat/corpus.py $(LIST) $(CORPUS)

.PHONY: openenv-tests
openenv-tests:  ## OpenEnv's own tests on our alias; its repository is fetched to CORPUS
	$(PYTHON) tests/compat/checkouts.py tests/compat/openenv_corpus.json $(CORPUS) $(if $(SOURCE),--source "$(SOURCE)")
	test -d $(CORPUS)/.venv-tests || $(PYTHON) -m venv $(CORPUS)/.venv-tests
	$(CORPUS)/.venv-tests/bin/python -m pip install --quiet --upgrade --upgrade-strategy eager pytest pytest-asyncio \
		--editable ".[anthropic,daytona,docker,mcp,openai,smolagents,web]"
	$(CORPUS)/.venv-tests/bin/python tests/compat/openenv_tests.py $(CORPUS)

$(BENCH_READY): $(READY)
	$(BIN)/python -m pip install --quiet --group bench
	@touch $@

$(OPENENV_BENCH_READY): $(OPENENV_READY)
	$(OPENENV)/bin/python -m pip install --quiet uvloop httptools numpy smolagents
	@touch $@

bench: $(BENCH_READY) $(OPENENV_BENCH_READY)  ## all measurements beside OpenEnv, in one run: bench/results.md
	$(BIN)/python -m bench

bench-quick: $(BENCH_READY) $(OPENENV_BENCH_READY)  ## steps, CPU per step and round trips, in two minutes
	$(BIN)/python -m bench --quick

bench-scaling: $(BENCH_READY) $(OPENENV_BENCH_READY)  ## up to 16,384 sessions at once: OpenEnv's experiment
	$(BIN)/python -m bench --only scaling together --rounds 1

.PHONY: bench-rollouts
bench-rollouts: $(BENCH_READY) $(OPENENV_BENCH_READY)  ## rollouts beside a serial loop and OpenEnv's harness; then 1,000 coding rollouts
	$(BIN)/python -m bench.rollouts
	$(BIN)/python -m bench.rollouts --coding 1000

.PHONY: bench-ray
bench-ray: $(RAY_READY)  ## rollouts on Ray beside one process; one, two and three drivers
	.venvs/ray/bin/python -m bench.ray_rollouts

bench-flame: $(BENCH_READY)  ## where the hot path spends its time: bench/flame.svg
	$(BIN)/python -m bench.flame

check: $(READY)  ## format, lint, types, import contracts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(READY)  ## rewrite the sources in the house style
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:  ## remove what the targets made
	rm -rf $(VENV) .venvs .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
