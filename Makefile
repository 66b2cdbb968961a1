# The two commands of a fresh machine: `make run` and `make test`. Both install what is missing.

.PHONY: run test build

run: build
	target/release/waybill up --samples 1000

test:
	.ci/setup tests
	.ci/test

build:
	.ci/setup
	cargo build --release --locked
