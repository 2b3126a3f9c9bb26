# Everything here makes its own .venv from a bare clone; Python 3.11 or later is all that must be there.
SHELL := /bin/sh
unexport PYTHONDONTWRITEBYTECODE # tests start hundreds of processes, which would compile all modules each time
.DEFAULT_GOAL := help
.PHONY: help demo test test-live test-kafka test-spark test-slow docs-check coverage check java browser prometheus systemd spin model conformance broker bench bench-live bench-member compare-live examples simulate soak mutation storm upgrade states commands dashboard pictures site clean .venv

BIN := .venv/bin
READY := .venv/.ready
WORKERS ?= 2
SITE ?= out/site
KAFKA ?= 3.3.2 3.9.1 4.4.0
SPARK ?= 4.0.5 4.1.4 4.3.0
OWN_WARNINGS := -W ignore::ResourceWarning -W ignore::pytest.PytestUnraisableExceptionWarning# of pyspark 4.0 itself
LIVE_WORKERS ?= 4# they wait more than they compute
PYTEST := $(BIN)/python -m pytest -q --dist loadgroup $(if $(TURN),--turn $(TURN))
QUICK := not docs and not slow
COVERAGE := --cov --cov-report=term:skip-covered
LIVE_TESTS := tests/live tests/spark
PURE_TESTS := tests/unit/assignors tests/unit/events tests/unit/reference_model tests/unit/statemachine

help: ## what can be made
	@sed -n 's/^\([a-z.-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 20

demo: $(READY) ## a recorded Kafka Streams group: imported, led by equipoise, replayed to the byte, compared
	@$(BIN)/equipoise demo

test: java browser prometheus systemd $(READY) ## check, every test that needs no broker, and one live test of each capability; at most 8 minutes on 2 cores (ALL=1: all tests; TURN=7: of the slow ones a tenth)
	@$(PYTEST) -n $(LIVE_WORKERS) -m "$(if $(ALL),,smoke)" $(LIVE_TESTS) >.venv/live.txt 2>&1 & live=$$!; \
	make --no-print-directory check || { kill $$live; exit 1; }; \
	pure=0; $(if $(ALL),nice $(PYTEST) -n $(WORKERS) $(COVERAGE) $(PURE_TESTS); pure=$$?;) \
	nice $(PYTEST) -n $(WORKERS) $(if $(ALL),,-m "$(QUICK)") $(addprefix --ignore=,$(if $(ALL),$(PURE_TESTS)) $(LIVE_TESTS)); other=$$?; \
	echo "the live tests:"; wait $$live; live=$$?; cat .venv/live.txt; [ "$$pure $$other $$live" = "0 0 0" ]

test-live: java browser prometheus $(READY) ## the other live tests: real brokers, real Spark; ten minutes and more
	@$(PYTEST) -n $(LIVE_WORKERS) -m "not smoke and not docs" $(LIVE_TESTS)

test-kafka: java browser prometheus $(READY) ## the smoke tests of the live parts on other versions of Kafka (KAFKA="3.3.2 3.9.1 4.4.0")
	@for version in $(KAFKA); do \
	  case $$version in 3.*) which="smoke and not new_kafka";; *) which=smoke;; esac; echo "Kafka $$version: $$which"; \
	  KAFKA_VERSION=$$version $(PYTEST) -n $(LIVE_WORKERS) -m "$$which" tests/live || exit 1; \
	done

test-spark: java $(READY) ## the tests on Spark with other releases of it (SPARK="4.0.5 4.1.4 4.3.0"); of 4.3 the batch jobs alone
	@for version in $(SPARK); do \
	  case $$version in 4.3.*) which=tests/spark/test_batch.py;; *) which=tests/spark;; esac; echo "Spark $$version: $$which"; \
	  [ -d .venv/spark/$$version ] || $(BIN)/pip install -q --no-deps --target .venv/spark/$$version pyspark==$$version || exit 1; \
	  PYTHONPATH=.venv/spark/$$version $(PYTEST) -n $(WORKERS) -m "not slow" $(OWN_WARNINGS) $$which || exit 1; \
	done

test-slow: $(READY) ## the tests that `make test` leaves out because they take longest: the largest searches and storms
	@$(PYTEST) -n $(WORKERS) -m slow $(addprefix --ignore=,$(LIVE_TESTS))

docs-check: java browser $(READY) ## numbers, pictures and commands of the pages are what the code gives now
	@$(PYTEST) -n $(WORKERS) -m docs tests/unit tests/live

coverage: $(READY) ## lines and branches of the pure packages that their tests reach; fails below the floor in pyproject.toml
	@$(PYTEST) -n $(WORKERS) $(COVERAGE) $(PURE_TESTS)

check: $(READY) ## style, types (of the pages' scripts, too), import contracts
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet . || { $(BIN)/ruff format --diff --quiet . | head -40; exit 1; }
	@$(BIN)/mypy --no-error-summary
	@$(BIN)/python -m tools.script_types
	@$(BIN)/lint-imports --no-cache >.venv/imports.txt 2>&1 || { cat .venv/imports.txt >&2; exit 1; }
	@echo "check: style, types and import contracts hold"

java: # for the broker that live tests start, and for Kafka's own classes; as root on Debian it is installed, elsewhere tests say what is missing
	@if ! { command -v javac && command -v mvn; } >/dev/null 2>&1 && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "installing a JDK and Maven (once)" >&2; \
	  apt-get update -qq >/dev/null && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends default-jdk-headless maven >/dev/null; \
	fi

browser: # for the tests that lay out pages; as Java
	@if ! { command -v chromium || command -v google-chrome; } >/dev/null 2>&1 && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "installing Chromium (once)" >&2; \
	  apt-get update -qq >/dev/null && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core >/dev/null; \
	fi

prometheus: $(READY) # for the tests of alerts and dashboard: Debian's package is unpacked into .venv and not installed, so that no service starts
	@if ! { command -v prometheus && command -v promtool || [ -x .venv/prometheus/usr/bin/promtool ]; } >/dev/null 2>&1 && command -v apt-get >/dev/null; then \
	  echo "fetching Prometheus (once)" >&2; \
	  { [ "$$(id -u)" != 0 ] || apt-get update -qq >/dev/null; } && cd .venv && apt-get download -qq -o APT::Sandbox::User=root prometheus >/dev/null && \
	  dpkg-deb -x prometheus_*.deb prometheus && rm prometheus_*.deb; \
	fi

systemd: # for the test of deploy/systemd; as Java. In a container it starts nothing: systemd is not its first process
	@if ! command -v systemd-analyze >/dev/null 2>&1 && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "installing systemd (once)" >&2; \
	  apt-get update -qq >/dev/null && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends systemd >/dev/null; \
	fi

spin: # for `make model`; as Java
	@if ! { command -v spin && command -v gcc; } >/dev/null 2>&1 && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "installing SPIN and a C compiler (once)" >&2; \
	  apt-get update -qq >/dev/null && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends spin gcc libc6-dev >/dev/null; \
	fi

model: spin $(READY) ## search the model of the protocol to its end, and with each rule switched off; writes its table (LONG=1: larger ones too)
	@$(BIN)/python -m tests.model $(if $(LONG),--long)

conformance: java $(READY) ## Kafka Streams' own integration tests, stock and led by a worker; an hour (CLASSES=EosIntegrationTest)
	@$(BIN)/python -m tests.live.conformance $(CLASSES)

broker: java $(READY) ## a Kafka on this machine to try things with, until interrupted (PORT=9092)
	@$(BIN)/python -m tools.brokers "$(or $(PORT),9092)"

bench: $(READY) ## ratios that must not get worse
	@$(BIN)/python -m bench

bench-member: java $(READY) ## one member beside its peers: records/s, CPU, latencies, connections, start (TASKS=6,26,100,400)
	@$(BIN)/python -m bench.member_speed $(if $(TASKS),--tasks $(TASKS)) $(OPTIONS)

bench-live: java $(READY) ## how fast and how large a live group may be, on a real Kafka; twenty minutes
	@$(BIN)/python -m bench --live

compare-live: java $(READY) ## equipoise beside Kafka Streams, Faust and a plain consumer group, on a real broker (OPTIONS="--only faust")
	@$(BIN)/python -m bench.peers --out out/peers.json $(OPTIONS)

examples: $(READY) ## new examples for the property tests; what fails becomes an example of its test
	@EXAMPLES=new $(PYTEST) -n $(WORKERS) tests/properties tests/unit

soak: $(READY) ## storms on the simulated cluster, seeds printed (STEPS=10000000 SEEDS=1000 FIRST=0); stopped, it goes on where it was (STATE=out/soak.json)
	@$(BIN)/python -m tools.soak --workers $(WORKERS) $(if $(STEPS),--steps $(STEPS)) $(if $(SEEDS),--seeds $(SEEDS)) $(if $(FIRST),--first $(FIRST),--rolling) $(if $(STATE),--state $(STATE))

simulate: $(READY) ## the deployed hosts in virtual time, under faults (SEEDS=1..1000 FAULTS=members,brokers GUARANTEE=exactly_once JOBS=2)
	@$(BIN)/python -m tests.simulated $(if $(SEEDS),--seeds $(SEEDS)) $(if $(FAULTS),--faults $(FAULTS)) $(if $(GUARANTEE),--guarantee $(GUARANTEE)) $(if $(JOBS),--jobs $(JOBS))

mutation: $(READY) ## mutants of the state machine and the assignors that no test kills; MODULE=statemachine/due.py, or the five with a floor
	@nice -n 19 $(BIN)/python -m tests.mutation $(MODULE) $(OPTIONS)

storm: java $(READY) ## random faults on a real deployment; SEED=7 FAULTS=100 GUARANTEE=exactly_once EVERY=5 TASKS=400 KINDS=kill,led_by or wire, or what is left out
	@$(BIN)/python -m tests.live.storm $(if $(SEED),--seed $(SEED)) $(if $(FAULTS),--faults $(FAULTS)) $(if $(GUARANTEE),--guarantee $(GUARANTEE)) $(if $(EVERY),--every $(EVERY)) $(if $(KINDS),--kinds $(KINDS)) $(if $(TASKS),--tasks $(TASKS))

upgrade: java $(READY) ## another build to this one and back, under load: OTHER=a git ref or a folder; FIRST=workers or members, RETENTION=yes or no (all four)
	@$(BIN)/python -m tests.live.upgrade --other $(OTHER) $(if $(FIRST),--first $(FIRST)) $(if $(RETENTION),--retention $(RETENTION))

states: $(READY) ## write docs/states.md, and the tables of commits in docs/architecture.md
	@$(BIN)/python -m tools.commit_tables
	@$(BIN)/python -c 'from tools.state_diagram import render; print(render(), end="")' >docs/states.md

dashboard: $(READY) ## write deploy/grafana/equipoise.json from tools/dashboard.py
	@$(BIN)/python -c 'from tools.dashboard import render; print(render(), end="")' >deploy/grafana/equipoise.json

commands: $(READY) ## write docs/commands.md from the commands
	@$(BIN)/python -m tools.commands_page >docs/commands.md

site: $(READY) ## the documentation as a site in out/site, which opens offline (LINKS=1: follows the links to other sites instead)
	@$(BIN)/sphinx-build -E -W --keep-going -q -j auto -b $(if $(LINKS),linkcheck,html) -c docs/site -d $(SITE)-doctrees . $(SITE)$(if $(LINKS),-links)
	@$(if $(LINKS),,echo "$(SITE)/index.html")

pictures: java browser $(READY) ## write the numbers of README, of docs/tutorial.md, tuning.md, assignors.md, what-if.md and spark.md, and docs/pictures (the console's on a real broker)
	@$(BIN)/python -m pytest -q --rewrite -k "numbers or pictures or example or exchange" tests/unit/test_protocol_exchange.py tests/unit/test_readme.py tests/unit/test_tuning_docs.py tests/unit/test_assignors_compared.py tests/unit/test_replay_example.py tests/unit/test_what_if_docs.py tests/unit/test_tutorial_docs.py
	@$(BIN)/python -m pytest -q --rewrite tests/live/test_console.py -k without_a_reload

release: $(READY) ## a release up to the step that publishes it: changelog, sdist and wheel tried on every Python here, commit, tag (VERSION=0.1.0; DRY=1: builds and tries alone)
	@$(BIN)/python -m tools.release $(VERSION) $(if $(DRY),--dry-run)

clean: ## remove what was made
	rm -rf .venv build dist out .mypy_cache .pytest_cache .ruff_cache .hypothesis *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv: $(READY) ## the virtual environment with everything below it

$(READY): pyproject.toml constraints.txt
	@python=; for p in $(or $(PYTHON),python3.11 python3); do \
	  "$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && { python=$$p; break; }; done; \
	if [ -z "$$python" ]; then echo "make: no Python 3.11 or later found; install one, or name it: make PYTHON=/path/to/python3" >&2; exit 1; fi; \
	echo "setting up .venv with $$python (once; about a minute)" >&2; \
	"$$python" -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,docs,kafka,otel,spark]'
	@touch $@
