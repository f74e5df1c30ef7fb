# Two commands do everything: `make demo` and `make test`. Each target prints what it does.
SHELL := /bin/bash
CARGO ?= scripts/cargo
# Kernel tests make network namespaces and real traffic: more threads than this only make them wait for each other.
TEST_THREADS ?= 3
DURATION ?= 10m
SEEDS ?= 10000..100000
MINUTES ?= 1
BENCH ?= full

.PHONY: help demo test test-uml test-systemd bench lint fmt build image soak simulate fuzz upgrade-test other-kernel setup clean

help:
	@echo "make demo    build, and watch Portwarden serve a small cluster in network namespaces (needs root)"
	@echo "make test    the whole test suite (needs root)"
	@echo "make bench   benchmarks with their baselines; BENCH=quick for a short run (needs root)"
	@echo "make soak    random events, faults and restarts under traffic for DURATION=$(DURATION) (needs root)"
	@echo "make simulate    more schedules of events, faults and crashes than make test has: SEEDS=$(SEEDS)"
	@echo "make fuzz    random input to every decoder, MINUTES=$(MINUTES) for each target (needs a nightly compiler)"
	@echo "make upgrade-test    v0.1.0 is replaced by the present program and back, under traffic (needs root)"
	@echo "make other-kernel    scenarios on Debian's kernels 5.10, 6.1, 6.12 and newest, in virtual machines (needs root)"
	@echo "make test-uml    the part of make test that needs IPVS or SCTP, in user-mode Linux (needs root)"
	@echo "make test-systemd    the systemd unit under a systemd that boots in a container (needs root)"
	@echo "make lint    format, clippy, licences"
	@echo "make fmt     format the code"
	@echo "make image   container images for this architecture, as OCI archives in target/image/release, with lists of their contents"
	@echo "make build   the release binary, target/release/portwarden, with its symbols in portwarden.debug"

setup:
	@scripts/setup

build:
	@scripts/setup build
	@echo "== building the release binary"
	@scripts/build

image:
	@scripts/image

# Root is asked for before anything is built.
demo:
	@scripts/need-root
	@scripts/setup
	@echo "== building the release binary (a few minutes the first time)"
	@scripts/build
	@scripts/demo

test:
	@scripts/setup test
	@scripts/need-root
	@echo "== the eBPF object"
	@scripts/build-ebpf --check
	@scripts/deploy-tools
	@echo "== building the tests"
	@if $(CARGO) nextest --version >/dev/null 2>&1; then \
	    set -e; $(CARGO) nextest run --workspace --locked --no-fail-fast --test-threads $(TEST_THREADS) \
	        -E 'not binary(scenarios)'; \
	    echo "== the profiler"; \
	    $(CARGO) nextest run --locked -p portwarden --features profiling --test profiling; \
	    echo "== the container images"; \
	    scripts/image --debug; \
	    $(CARGO) nextest run --locked -p portwarden --features profiling --test image; \
	    echo "== scenarios"; \
	    $(CARGO) test --locked --quiet -p portwarden-testkit --test scenarios -- --quiet --test-threads $(TEST_THREADS); \
	    echo "== doc tests"; $(CARGO) test --workspace --locked --doc --quiet; \
	else \
	    set -e; $(CARGO) test --workspace --locked --no-fail-fast -- --test-threads $(TEST_THREADS); \
	    $(CARGO) test --locked -p portwarden --features profiling --test profiling; \
	    scripts/image --debug; \
	    $(CARGO) test --locked -p portwarden --features profiling --test image; \
	fi
	@scripts/test-demo
	@scripts/test-uml

bench: setup
	@scripts/need-root
	@BENCH=$(BENCH) scripts/bench

soak: setup build
	@scripts/need-root
	@DURATION=$(DURATION) scripts/soak

simulate:
	@echo "== simulating schedules $(SEEDS)"
	@$(CARGO) run --quiet --locked -p portwarden-simulation --bin simulate -- $(SEEDS)

fuzz:
	@MINUTES=$(MINUTES) scripts/fuzz

upgrade-test: setup
	@scripts/upgrade-test

test-uml: setup
	@scripts/test-uml

test-systemd: build
	@scripts/test-systemd

other-kernel: setup
	@scripts/other-kernel

lint:
	@scripts/setup lint
	@echo "== format"
	$(CARGO) fmt --all --check
	@echo "== clippy"
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	$(CARGO) clippy -p portwarden --all-targets --features profiling --locked -- -D warnings
	@echo "== licences, bans, sources"
	$(CARGO) deny --log-level error check licenses bans sources

fmt:
	$(CARGO) fmt --all

clean:
	$(CARGO) clean
