#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# scripts/test.sh          what every change must pass
# scripts/test.sh --all    also licences and bans, the long suites, and the benchmarks
#
# Installs what is missing, goes from cheap to dear, and stops at the first stage that fails.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/setup.sh
. scripts/setup.sh

all=false
case "${1:-}" in
    "") ;;
    --all) all=true ;;
    *) give_up "usage: scripts/test.sh [--all]" ;;
esac

# Every test gets its temporary files below one directory and this variable in its environment, so that what tests
# leave behind, files or processes, can be told from everybody else's.
temporary=$(mktemp -d "${TMPDIR:-/tmp}/steadfast-test.XXXXXX")
export STEADFAST_TEST_RUN="$temporary"
# Some tests have other users look for what is theirs.
chmod 711 "$temporary"

current_stage=setup
finish() {
    local status=$? left
    if [ "$status" -ne 0 ]; then
        say ""
        say "test.sh: FAILED in stage: $current_stage (after $SECONDS s)"
    fi
    left=$(left_processes)
    if [ -n "$left" ]; then
        say "killing what the tests left running:"
        say "$left"
        printf '%s\n' "$left" | while read -r pid _; do kill -KILL "$pid" || true; done
    fi
    rm -rf "$temporary"
}
trap finish EXIT

stage() {
    current_stage=$1
    shift
    printf '\n=== %s (at %d s)\n' "$current_stage" "$SECONDS"
    "$@"
}

# with_temporary COMMAND...: compilers keep the usual TMPDIR, tests get the one that is checked afterwards.
with_temporary() { TMPDIR="$temporary" "$@"; }

left_processes() {
    local directory
    for directory in /proc/[0-9]*; do
        # The environment as it was when the program was started, so this script itself does not match.
        if grep -qzxF "STEADFAST_TEST_RUN=$temporary" "$directory/environ" 2>/dev/null; then
            printf '%s ' "${directory#/proc/}"
            { tr '\0' ' ' <"$directory/cmdline" || true; } 2>/dev/null
            printf '\n'
        fi
    done
}

nothing_is_left() {
    local left attempt
    for attempt in 1 2 3 4 5 6 7 8 9 10; do
        left=$(left_processes)
        [ -n "$left" ] || break
        [ "$attempt" -eq 10 ] || sleep 0.5
    done
    if [ -n "$left" ]; then
        say "the tests left processes running"
        return 1
    fi
    left=$(find "$temporary" -mindepth 1)
    if [ -n "$left" ]; then
        say "files that the tests left behind:"
        say "$left"
        return 1
    fi
    say "no process and no temporary file is left"
}

# The simulator is a small crate of its own, so that it is soon built with all optimisations.
simulation() {
    cargo build --release --locked -p steadfast-sim
    target/release/steadfast-sim --replay chaos/regressions
    target/release/steadfast-sim --nodes 8 --schedules "$1"
    target/release/steadfast-sim --nodes 1000 --schedules "$2"
}

# That the benchmarks work. What they measure on a debug build beside other stages means nothing.
benchmarks_in_short() {
    with_temporary target/debug/steadfast-chaos bench recovery --workers 2 --reps 2 --alone
    with_temporary target/debug/steadfast-chaos bench idle --workers 2 --seconds 1
    with_temporary target/debug/steadfast-chaos bench output --megabytes 5 --reps 1
    with_temporary target/debug/steadfast-chaos bench parser --inputs 100000
}

benchmarks() {
    cargo build --release --locked -p steadfast -p steadfast-chaos -p steadfast-fake-nvml
    with_temporary target/release/steadfast-chaos bench xid
    with_temporary target/release/steadfast-chaos bench parser --inputs 10000000
    with_temporary target/release/steadfast-chaos bench recovery
    with_temporary target/release/steadfast-chaos bench idle
    with_temporary target/release/steadfast-chaos bench output
}

# Real jobs that are broken on purpose, on virtual nodes where this machine allows them.
chaos_in_short() { with_temporary target/debug/steadfast-chaos run --all --quick --jobs 2; }
chaos_in_full() { with_temporary target/debug/steadfast-chaos run --all --jobs 2; }

doc_pages() { RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked; }
long_suites() { with_temporary env STEADFAST_LONG_TESTS=1 cargo nextest run --workspace --locked --profile ci; }

stage "setup" setup_test
stage "format" cargo fmt --all --check
stage "lints" cargo clippy --workspace --all-targets --locked -- -D warnings
stage "build" cargo build --workspace --bins --locked
stage "tests" with_temporary cargo nextest run --workspace --locked --profile ci
stage "documentation tests" with_temporary cargo test --workspace --doc --locked
stage "documentation" doc_pages
stage "example jobs" with_temporary python3 examples/self_check.py
stage "simulation" simulation 100000 20
stage "benchmarks in short" benchmarks_in_short
stage "chaos in short" chaos_in_short
if "$all"; then
    stage "setup for the long suites" setup_long
    stage "setup of cargo-deny" setup_cargo_deny
    stage "licences, bans, sources" cargo deny --locked check --hide-inclusion-graph licenses bans sources
    stage "long suites" long_suites
    stage "chaos in full" chaos_in_full
    stage "long simulation" simulation 2000000 100
    stage "planted bugs" scripts/mutants.sh
    stage "planted bugs of the product" scripts/planted-bugs.sh --all
    stage "benchmarks" benchmarks
fi
stage "leftovers" nothing_is_left

printf '\ntest.sh: all stages passed in %d s\n' "$SECONDS"
