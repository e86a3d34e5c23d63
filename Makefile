# Everything a developer does, on a machine with Python 3.11 to 3.13, make, and the package registries.
# Nothing here needs root, a system Java, or anything in HOME.

PYTHON ?= $(firstword $(foreach each,python3.12 python3.13 python3.11 python3,$(shell $(each) -c 'import sys; print(sys.executable) if (3, 11) <= sys.version_info[:2] <= (3, 13) else None' 2>/dev/null)))
BIN := .venv/bin
STAMP := .venv/.installed
LOCKS := requirements/dev.lock
QUIX := tests/clients/python/quix
# Its tests have one id in common, and pytest-xdist runs only one test of an id: it runs beside the others.
SHARED_ID := tests/clients/test_rest_schemathesis.py
# Two processes share the quick tests: pytest-xdist would cost each test more than most take.
QUICK := $(BIN)/python -m pytest -q -n 0 -m "not slow"
ONE_HALF := tests/vectors tests/unit/broker tests/unit/kafka_api
OTHER_HALF := tests/tidy tests/unit $(ONE_HALF:%=--ignore=%)
LONG := $(BIN)/python -m pytest -q --timeout 3600 -o faulthandler_timeout=7200
COMPILE := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
	--no-emit-index-url

# Tests start hundreds of processes, and a start without compiled modules takes three times as long.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo demo-etl test sweep check sim crashes fuzz frames faults transactions rolling secured bench stalls etl-hashes serve package lock format clean

help: ## List these targets.
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/\1|\2/' | while IFS='|' read -r name what; do printf '  make %-8s %s\n' "$$name" "$$what"; done

setup: $(STAMP) ## Install everything, as locked, into .venv.

$(STAMP): $(LOCKS) pyproject.toml
	@test -n "$(PYTHON)" || { echo "No Python 3.11, 3.12 or 3.13 found: install one, or say make PYTHON=/path/to/python3"; exit 1; }
	@test -x $(BIN)/python || { echo "Creating .venv with $(PYTHON)"; "$(PYTHON)" -m venv .venv; }
	@echo "Installing the locked dependencies into .venv (some minutes the first time: Spark and its Java are large)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r requirements/dev.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $(STAMP)

demo: setup ## Run the main job: flights through a broker into a lake, and a picture of their delays.
	@$(BIN)/conveyor demo

demo-etl: setup ## Run the second job: extract, transform, enrich and load over topics, with dead letters.
	@$(BIN)/conveyor demo --etl --to ./conveyor-demo-etl

test: check ## Run every test there is, after the quick ones.
	@$(BIN)/python -m pytest -q -n 0 $(SHARED_ID) & shared=$$!; \
	$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder -m "slow and not sweep" tests --ignore=tests/vectors --ignore=tests/tidy --ignore=$(SHARED_ID); \
	slow=$$?; wait $$shared && exit $$slow

sweep: setup ## Run the tests that `test` leaves out, because it has a part of the same kind; some fifteen minutes.
	@$(BIN)/python -m pytest -n 3 --dist loadfile -m sweep tests

check: setup ## The quick loop, under a minute: lint, types, layers, unit tests.
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo >.venv/lint-imports.log || { cat .venv/lint-imports.log; exit 1; }
	@$(QUICK) $(ONE_HALF) & half=$$!; $(QUICK) $(OTHER_HALF); other=$$?; wait $$half && exit $$other

sim: setup ## Play simulated crashes, power cuts and disk failures: SEED=7, or SEEDS=1000 on all CPUs; BROKERS=1 or 3.
	@$(BIN)/python -m simulation $(if $(SEED),--seed $(SEED),--seeds $(or $(SEEDS),200)) $(if $(BROKERS),--brokers $(BROKERS)) $(if $(PROCESSES),--processes $(PROCESSES)) $(if $(KEEP),--keep $(KEEP))

crashes: setup ## Play CRASH_STORIES (20,000) stories of one log that is killed, loses power or finds a file damaged; some minutes.
	@CRASH_STORIES=$(or $(CRASH_STORIES),20000) $(BIN)/python -m pytest -q tests/properties/test_log_crashes.py

fuzz: setup ## Try FUZZ_EXAMPLES (20,000) lying record batches, and STRANGERS (10,000) and hostile users at each listener; some minutes.
	@FUZZ_EXAMPLES=$(or $(FUZZ_EXAMPLES),20000) $(LONG) tests/faults/test_produce_fuzz.py
	@STRANGERS=$(or $(STRANGERS),10000) $(LONG) tests/faults/test_hostile_strangers.py tests/faults/test_hostile_users.py tests/faults/test_hostile_peers.py

frames: setup ## Send each API the largest frames that are permitted, of items of every kind; some minutes.
	@ALL_FRAMES=1 $(BIN)/python -m pytest -q -n 2 --dist load tests/faults/test_largest_frames.py

faults: setup ## Run three brokers under load and real faults for SECONDS (1800): kills, pauses, cuts, bad disks.
	@$(BIN)/python -m tests.cluster.fault_run --seconds $(or $(SECONDS),1800) --seed $(or $(SEED),1) $(if $(REPORT),--report $(REPORT))

transactions: setup ## Run 8 transactional workers over kills and freezes for SECONDS (300), of BROKERS (1) brokers too.
	@$(BIN)/python -m tests.cluster.transaction_run --seconds $(or $(SECONDS),300) --seed $(or $(SEED),1) --brokers $(or $(BROKERS),1) $(if $(REPORT),--report $(REPORT))

rolling: setup ## Run the scenarios of every client while one of three brokers is being restarted, and cut connections; some fifteen minutes.
	@$(BIN)/python -m pytest -v -p no:randomly tests/clients/rolling/cut_connections.py tests/clients/rolling/every_client.py \
		-o timeout=1200

secured: setup ## Run every client and application by each way to log in, with ACLs, on three brokers; some twenty minutes.
	@$(BIN)/python -m pytest -n 2 --dist loadfile -o timeout=900 \
		tests/clients/secured/every_client.py tests/clients/secured/every_application.py tests/pipeline/every_way.py

bench: setup ## Measure this machine, with Apache Kafka and its connector for Spark beside it: throughput, latency, memory.
	@$(BIN)/python -m benchmarks
	@$(BIN)/python -m benchmarks.spark

stalls: setup ## Measure the longest stops of the event loop, with segments of 1 GiB: some minutes.
	@$(BIN)/python -m benchmarks --only stalls

etl-hashes: setup ## Compare 10 million records of a topic with their copies in a lake and in a replayed topic.
	@$(BIN)/python -m benchmarks.etl

serve: setup ## Start a broker on the default ports, data in ./conveyor-data.
	@$(BIN)/conveyor serve

package: setup ## Build the wheel and the source archive into dist, with a bill of materials (CycloneDX) of what users get.
	@rm -rf dist .cache/package && mkdir -p dist .cache/package
	@$(BIN)/python -m venv .cache/package/tools
	@.cache/package/tools/bin/python -m pip install --quiet --disable-pip-version-check build==1.3.0 cyclonedx-bom==7.5.0 uv
	@.cache/package/tools/bin/python -m build --outdir dist . >.cache/package/build.log || { cat .cache/package/build.log; exit 1; }
	@$(COMPILE:$(BIN)/%=.cache/package/tools/bin/%) --constraint requirements/dev.lock \
		pyproject.toml -o .cache/package/users.txt
	@$(BIN)/python -m venv .cache/package/users
	@.cache/package/users/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r .cache/package/users.txt
	@.cache/package/users/bin/python -m pip install --quiet --disable-pip-version-check --no-deps dist/*.whl
	@.cache/package/users/bin/python -m pip uninstall --quiet --disable-pip-version-check --yes setuptools pip
	@.cache/package/tools/bin/cyclonedx-py environment --output-reproducible -o dist/conveyor.cdx.json .cache/package/users/bin/python
	@$(BIN)/python -m tests.tidy.bill_of_materials dist/conveyor.cdx.json .cache/package/users.txt
	@ls dist

lock: ## Resolve the dependencies anew and write the lock.
	@test -x $(BIN)/python || "$(PYTHON)" -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	@$(COMPILE) --all-extras --group dev --group clients --no-emit-package conveyor \
		pyproject.toml requirements/build.in -o requirements/dev.lock
	@$(COMPILE) $(QUIX)/requirements.in -o $(QUIX)/requirements.txt

format: setup ## Let the formatter and the linter fix what they can.
	@$(BIN)/ruff check --fix . ; $(BIN)/ruff format .

clean: ## Remove what the other targets made, data included.
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache dist conveyor-data conveyor-demo conveyor-demo-etl .cache
