# Everything runs from the virtual environment in .venv, which the targets make by themselves.
# PYTHON=... names the Python of that environment; otherwise tools/python.sh finds one, optimised if there is any.
PYTHON ?=
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
STAMP_DOCS := $(VENV)/.installed-docs
# These tests search many schedules, or break rules on purpose; `make check` does without them.
SEARCHES := tests/model tests/storms tests/simulation tests/fuzz tests/mutants

# Only the files with such a test are read: collecting the other twelve thousand tests takes half a minute.
REAL := $(BIN)/pytest -q -n 2 --dist loadfile --no-loadscope-reorder --durations=25 --durations-min=15 -m real $$(grep -rl 'mark\.real\b' tests --include='test_*.py' | sort)

# $(call tried,COMMAND) runs pytest.  AGAIN=1 gives the tests that failed a second try, and the output names them:
# a busy machine may have held one up.
tried = $(1) || { test $$? -eq 1 && test -n "$(AGAIN)" && echo "AGAIN: only the tests that failed above" >&2 && $(1) --last-failed --last-failed-no-failures none; }

.PHONY: help setup demo check test lint docs bench bench-peers bench-spark sim storms mutants mutants-generic check-model fuzz soak interop clean java

help: ## what there is to make
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | sort | while IFS="$$(printf '\t')" read -r t d; do printf '  make %-16s %s\n' "$$t" "$$d"; done

setup: $(STAMP) java ## the virtual environment, and Java

$(STAMP): pyproject.toml
	@test -x $(BIN)/python || { python=$$(sh tools/python.sh $(PYTHON)) && "$$python" -m venv $(VENV); }
	@echo "installing into $(VENV) (a minute or two the first time)"
	@$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

java:
	@sh tools/java.sh

demo: setup ## the main job: a cluster, 336,776 messages, a broker killed, Spark reads it all and writes totals once
	@$(BIN)/python -m examples.flights

ifdef T
test: setup ## lint, types and all tests; T=tests/wire runs that part alone
	@$(BIN)/pytest -q -n 2 --dist loadgroup -m "not interop" $(T)
else
test: check
	@echo "$$(date +%H:%M:%S) searches: simulated clusters, model checker, fuzz corpora, mutants"
	@$(call tried,$(BIN)/pytest -q -n 2 --dist loadgroup $(SEARCHES))
	@echo "$$(date +%H:%M:%S) real processes: ZooKeeper, Spark, the official client"
	@$(call tried,$(REAL))
endif

check: setup lint ## lint, types and unit tests
	@$(call tried,$(BIN)/pytest -q -n 2 --dist loadgroup -m "not real and not interop" $(addprefix --ignore=,$(SEARCHES)))

lint: $(STAMP) ## ruff, mypy, pyright, and sentences without a subject
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check -q . || { echo "run: $(BIN)/ruff format ." >&2; exit 1; }
	@$(BIN)/python tools/tree.py >/dev/null  # fails if a file does not say what it is
	@$(BIN)/mypy
	@$(BIN)/pyright
	@$(BIN)/python tools/prose.py

docs: $(STAMP_DOCS) ## the pages of docs/ as a site in site/, with every link checked
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "the site is in site/: open site/index.html"

$(STAMP_DOCS): $(STAMP)
	@$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev,docs]'
	@touch $@

bench: setup ## the measurements, as a table and JSON
	@$(BIN)/python -m bench

ifdef TOPICS
bench-peers: setup
	@sh tests/interop/fetch.sh $(or $(PULSAR),4.2.4) pulsar-client
	@sh tests/interop/fetch.sh $(or $(PULSAR),4.2.4) pulsar-broker
	@sh tests/interop/fetch.sh $(or $(KAFKA),4.3.1) kafka
	@PULSAR=$(or $(PULSAR),4.2.4) KAFKA=$(or $(KAFKA),4.3.1) $(BIN)/python -m bench.brokers $(if $(QUICK),--quick) $(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(SYSTEMS),--systems "$(SYSTEMS)") $(CASES)
else
bench-peers: setup ## beside Apache BookKeeper's Java client and bookies; QUICK=1 in 3 minutes, SCALE=1 at full size; CASES="latency read"; TOPICS=1 beside Pulsar and Kafka
	@sh tests/interop/fetch.sh $(or $(BOOKKEEPER),4.18.0)
	@BOOKKEEPER=$(or $(BOOKKEEPER),4.18.0) $(BIN)/python -m bench.peers $(if $(QUICK),--quick) $(if $(SCALE),--scale $(SCALE)) $(CASES)
endif

bench-spark: setup ## Spark on Daybook beside Spark on Kafka; ROWS=200000 ROUNDS=1 WARM=0 in 3 minutes; CASES="read-2 stream"
	@sh tests/interop/fetch.sh $(or $(KAFKA),4.3.1) kafka
	@sh tests/interop/fetch.sh $(or $(SPARK_KAFKA),4.2.0) spark-kafka
	@KAFKA=$(or $(KAFKA),4.3.1) SPARK_KAFKA=$(or $(SPARK_KAFKA),4.2.0) $(BIN)/python -m bench.spark $(if $(ROWS),--rows $(ROWS)) $(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(WARM),--warm $(WARM)) $(CASES)

sim: setup ## the simulated cluster: SEEDS=1000 runs; SEED=7 for one, step by step; then exactly-once batches: SINKS=20 runs, and deaths at each write
	@$(BIN)/python -m tests.simulation $(if $(SEED),--seed $(SEED) --trace,--seeds 1..$(or $(SEEDS),100) --jobs 2 --marks --tally docs/tally.jsonl)
	@$(if $(SEED),,$(BIN)/python -m tests.simulation.sinks 1 $(or $(SINKS),20) && $(BIN)/python -m tests.simulation.sinks.points)

storms: setup ## the protocols alone: SCHEDULES=1000000 schedules
	@$(BIN)/python -m tests.storms --schedules $(or $(SCHEDULES),100000) --jobs 2 --marks

mutants: setup ## break each rule of the protocols on purpose; something has to notice
	@$(BIN)/python -m tests.mutants

mutants-generic: setup ## mutants of */protocol/ made by cosmic-ray, some hours; SAMPLE=20 of each module; MODULES="broker/protocol/access.py"
	@$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev,mutants]'
	@$(BIN)/python -m tests.mutants.generic $(MODULES) $(if $(SAMPLE),--sample $(SAMPLE))

check-model: setup ## all states of the larger configurations, up to 20 minutes each
	@$(BIN)/python -m tests.model --all --write

fuzz: setup ## MINUTES=5 of hostile input for every decoder and every session
	@$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev,fuzz]'
	@$(BIN)/python -m tests.fuzz --minutes $(or $(MINUTES),5)

soak: setup ## MINUTES=10 of faults on real processes, LEDGERS=1 without brokers, or KILLS=300 of owners; SEED=7
	@$(BIN)/python -m tests.soak $(if $(KILLS),--kills $(KILLS),--minutes $(or $(MINUTES),10) --workloads $(if $(LEDGERS),ledgers,$(or $(WORKLOADS),topics))) $(if $(SEED),--seed $(SEED))

interop: setup ## with Apache's bookies, client and tools, Pulsar's managed ledgers, broker, Java and Go clients, and Kafka; BOOKKEEPER=4.17.3 for one release, ONLY=bookkeeper
	@sh tests/interop/fetch.sh $(or $(PULSAR),4.2.4) pulsar
	@sh tests/interop/fetch.sh $(or $(PULSAR),4.2.4) pulsar-client
	@sh tests/interop/fetch.sh $(or $(PULSAR),4.2.4) pulsar-broker
	@sh tests/interop/fetch.sh $(or $(PULSAR_ADMIN),4.0.8) pulsar-client-tools
	@sh tests/interop/fetch.sh $(or $(KAFKA),4.3.1) kafka
	@sh tests/interop/fetch.sh $(or $(SPARK_KAFKA),4.2.0) spark-kafka
	@sh tests/interop/fetch_go.sh
	@only=$(or $(ONLY),interop); for version in $(or $(BOOKKEEPER),4.18.0 4.17.3); do \
	  sh tests/interop/fetch.sh $$version || exit 1; \
	  echo "with Apache BookKeeper $$version: the tests of $$only"; \
	  BOOKKEEPER=$$version PULSAR=$(or $(PULSAR),4.2.4) $(BIN)/pytest -q -n 2 --dist loadfile -m $$only tests/interop || exit 1; \
	  only=bookkeeper; done

clean: ## forget the virtual environment and what tools left
	@rm -rf $(VENV) site .mypy_cache .ruff_cache .pytest_cache .hypothesis
