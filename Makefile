# What one does with this checkout. `make help` lists it. Rust and Python 3.10 or newer are all that is needed: the
# AWS SAM command line, cargo-lambda, moto, and Node with kinesis-local are put into .venv when a target asks for them.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
SHELL := /bin/bash

CARGO ?= cargo
export PATH := $(CURDIR)/.venv/bin:$(PATH)

# No telemetry, and nothing that asks AWS for anything: templates are checked without an account or a network.
export SAM_CLI_TELEMETRY := 0
OFFLINE := AWS_DEFAULT_REGION=us-east-1 AWS_EC2_METADATA_DISABLED=true

# Where cargo builds: `interop` is a workspace of its own and shares it.
TARGET := $(abspath $(or $(CARGO_TARGET_DIR),target))

WATCH_PORT ?= 9000
EVENT ?= events/tick.json

.PHONY: help
help: ## Show this list
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{ printf "  make %-14s %s\n", $$1, $$2 }'

##### See it work

.PHONY: demo
demo: tools ## Run the function locally in overlapping invocations, kill one, and count the records (1-2 min after the first build)
	python tools/demo.py $(DEMO)

.PHONY: local
local: ## Start local stand-ins for Kinesis and DynamoDB, with the stream `orders` and the table `leases`
	$(CARGO) run --locked --example local -- $(LOCAL)

.PHONY: watch
watch: tools ## Run the function against `make local` (in a second terminal), under cargo lambda watch
	$(CARGO) lambda watch --bin shard-processor --ignore-changes --concurrency 8 \
		--invoke-address 127.0.0.1 --invoke-port $(WATCH_PORT) --env-file tools/local.env

.PHONY: invoke
invoke: tools ## Start one run of it (in a third terminal); EVENT=events/short-run.json for a short one
	$(CARGO) lambda invoke --invoke-address 127.0.0.1 --invoke-port $(WATCH_PORT) shard-processor --data-file $(EVENT)

##### Check it

.PHONY: test
test: lint unit dependencies template ## All that CI runs; the first build takes some minutes

.PHONY: lint
lint: ## Formatting, clippy and rustdoc, warnings denied
	$(CARGO) fmt --all --check
	$(CARGO) clippy --locked --workspace --all-features --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --locked --workspace --all-features --no-deps

.PHONY: unit
unit: tools ## The tests and doc tests alone
	$(CARGO) test --locked --workspace --all-features --no-fail-fast

.PHONY: dependencies
dependencies: ## Check that the function carries neither the stand-ins nor the legacy TLS stack
	tools/check-dependencies

.PHONY: template
template: tools ## Validate template.yaml (no AWS account, no network)
	$(OFFLINE) sam validate --lint --template template.yaml

.PHONY: bench
bench: ## Measure, and print the table of budgets
	$(CARGO) bench --locked --all-features --bench read $(BENCH)

.PHONY: memory
memory: ## Measure the peak memory with 16 shards, pages of 10 MiB and 128 MB (MEMORY="-- lambda": those scenes)
	MALLOC_MMAP_THRESHOLD_=131072 $(CARGO) bench --locked --all-features --bench memory $(MEMORY)

.PHONY: measure
measure: ## Measure take-over, fairness and 1,000 shards on real processes (some 10 minutes), and print what they must be
	$(CARGO) bench --locked --all-features --bench takeover $(MEASURE)

.PHONY: simulate
simulate: ## Replay a simulated history (SEED=17), or play a range of them (FROM=10000 SEEDS=50000)
	SEED=$(SEED) FROM=$(FROM) SEEDS=$(SEEDS) $(CARGO) test --locked --all-features --test simulation no_history -- --nocapture

.PHONY: chaos
chaos: ## Kill, freeze and cut off the release binary for CHAOS_SECONDS (300); CHAOS_SEED repeats a history
	CHAOS_SECONDS=$${CHAOS_SECONDS:-300} $(CARGO) test --locked --release --all-features --test chaos -- --nocapture

# Pinned, and built beside everything else that is built. On a stable compiler there are no sanitizers: the parser has
# no unsafe code of its own, and the target counts what it allocates.
CARGO_FUZZ_VERSION := 0.13.2
CARGO_FUZZ := $(TARGET)/tools/$(CARGO_FUZZ_VERSION)/bin/cargo-fuzz

$(CARGO_FUZZ):
	$(CARGO) install cargo-fuzz --version $(CARGO_FUZZ_VERSION) --locked --root $(TARGET)/tools/$(CARGO_FUZZ_VERSION)

.PHONY: fuzz
fuzz: $(CARGO_FUZZ) ## Feed the parser of KPL aggregates with FUZZ_RUNS (10 million) random inputs (some minutes; a C++ compiler)
	$(CARGO) fmt --manifest-path fuzz/Cargo.toml --check
	$(CARGO_FUZZ) fuzz run --fuzz-dir fuzz --target-dir $(TARGET)/fuzz --sanitizer none kpl -- \
		-runs=$${FUZZ_RUNS:-10000000} -print_final_stats=1

.PHONY: mutants
mutants: tools ## Break one rule at a time on purpose, and see that its test fails (hours; MUTANTS="6.6 kpl" for some of them)
	python tools/mutants.py $(MUTANTS)

.PHONY: clocks
clocks: ## Run the binary on hosts whose clocks are off (some 4 min; LIBFAKETIME=.../libfaketime.so.1, of Debian's package)
	@test -n "$(LIBFAKETIME)" || { echo "LIBFAKETIME must name libfaketime.so.1 (Debian's package libfaketime)"; exit 1; }
	LIBFAKETIME=$(LIBFAKETIME) $(CARGO) test --locked --all-features --test clocks -- --ignored --nocapture

# The function's binary is the one that the tests use: after `make unit` there is nothing to build for it.
.PHONY: interop
interop: ## Share a lease table with a service built on ruststream-kinesis (2-3 min after the first build; Rust 1.95)
	$(CARGO) test --locked --workspace --all-features --no-run --test function
	$(CARGO) fmt --manifest-path interop/Cargo.toml --check
	SHARD_PROCESSOR=$(TARGET)/debug/shard-processor $(CARGO) test --locked \
		--manifest-path interop/Cargo.toml --target-dir $(TARGET) -- --nocapture

##### Deploy it

.PHONY: build
build: tools ## Build the function for arm64 (cargo-lambda has rustup fetch that target)
	$(OFFLINE) sam build --template template.yaml

.PHONY: tools
tools:
	@tools/bootstrap

.PHONY: clean
clean: ## Remove what was built, and .venv
	$(CARGO) clean
	rm -rf .venv .aws-sam
