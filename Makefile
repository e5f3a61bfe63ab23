# SPDX-License-Identifier: Apache-2.0
# Short names for what CMake and the scripts do. `make check` is the developer's inner loop.
PREFIX ?= /usr/local

all: build/build.ninja
	@cmake --build --preset release

build/build.ninja:
	@cmake --preset release

install: all
	@cmake --install build --prefix "$(PREFIX)"

check:
	@scripts/test quick

test:
	@scripts/test

asan tsan tidy soak model fuzz-long:
	@scripts/test $@

bench:
	@bench/run

debug planted fuzz:
	@cmake --preset $@ && cmake --build --preset $@

format:
	@scripts/check-format --fix

clean:
	rm -rf build build-test build-debug build-asan build-tsan build-planted build-fuzz

.PHONY: all install check test asan tsan tidy soak model bench debug planted fuzz fuzz-long format clean
