# The two commands for a fresh machine: `make run` and `make test`. Both install missing packages.
# `make test-full` adds the tests on Apache Kafka and Apache Cassandra, `make test-brokers` runs the one on
# three brokers that are killed one after the other, and `make test-upgrades` those that mix this version with an
# earlier one, which it builds. `make test-containers` builds the images and runs them, and docker-compose.yml with every
# role: half an hour, most of it the build. `make test-power-cuts CUTS=500` cuts the power that often, two seconds each.
# `make test-planted-bugs` plants bugs in the code that ships and has the simulator find them, a minute each, and
# `make test-exhaustive` tries all interleavings of short runs in the simulator.
# `make test-kubernetes` applies k8s/ to an API server, which it builds, and
# `make test-newcomer` follows README.md on a bare Debian. `make kafka`, `make cassandra`
# and `make cluster` start these servers until Ctrl-C; `make run-cluster` runs two processes of
# every role on them. `make loadtest` measures all goals: docs/loadtest.md. `make docs` builds the
# pages of docs/ as a book in target/book, and checks its links.

# Ports of `make kafka`, `make cassandra` and `make cluster`, and where they keep their data; without
# SERVERS_DIR it is deleted when they are stopped.
KAFKA_PORT ?= 9092
CQL_PORT ?= 9042
SERVERS_DIR ?=

# How many times `make test-power-cuts` cuts the power, and how it chooses what is lost.
CUTS ?= 500
SEED ?= 1

servers = .ci/servers/run --kafka-port $(KAFKA_PORT) --cql-port $(CQL_PORT) $(if $(SERVERS_DIR),--dir '$(SERVERS_DIR)')

.PHONY: run test test-full test-brokers test-upgrades test-power-cuts test-planted-bugs test-exhaustive test-containers test-kubernetes test-newcomer loadtest docs \
	build kafka cassandra cluster run-cluster

run: build
	target/release/waybill up --samples 1000

test:
	.ci/setup tests
	.ci/test

test-full:
	.ci/setup full
	.ci/test full

test-brokers:
	.ci/setup full
	WAYBILL_TEST_THREE_BROKERS=yes .ci/servers/run kafka cassandra -- \
		cargo test --release --locked -p waybill --test cluster brokers:: -- --show-output

test-upgrades:
	.ci/setup full
	WAYBILL_TEST_PREVIOUS=$$(.ci/previous) .ci/servers/run kafka cassandra -- \
		cargo test --release --locked -p waybill --test cluster --test system upgrade:: -- --show-output

test-power-cuts:
	.ci/setup tests
	WAYBILL_TEST_POWER_CUTS=$(CUTS) WAYBILL_TEST_POWER_SEED=$(SEED) \
		cargo test --release --locked --workspace --bin waybill --test power_cuts -- --show-output

test-planted-bugs:
	.ci/setup
	.ci/planted

test-exhaustive:
	.ci/setup
	WAYBILL_TEST_EXHAUSTIVE=1 cargo test --release --locked -p waybill-simulation no_interleaving -- --nocapture

test-containers:
	.ci/containers

test-kubernetes:
	.ci/kubernetes

test-newcomer:
	.ci/newcomer

loadtest:
	.ci/setup
	cargo build --release --locked -p waybill -p waybill-loadtest
	target/release/waybill-loadtest suite --out target/loadtest

docs:
	.ci/book

build:
	.ci/setup
	cargo build --release --locked

kafka:
	.ci/setup servers
	@exec $(servers) kafka

cassandra:
	.ci/setup servers
	@exec $(servers) cassandra

cluster:
	.ci/setup servers
	@exec $(servers) kafka cassandra

run-cluster: build
	.ci/setup servers
	@KAFKA_PORT=$(KAFKA_PORT) CQL_PORT=$(CQL_PORT) exec .ci/run-cluster
