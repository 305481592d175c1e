#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Shows that the scenarios of the chaos harness can fail: for each file in chaos/planted, puts the bug that it describes
# into a copy of the source tree, builds the supervisor there, and runs the scenario that the file names. The check that the
# file names must fail, and say what it says. Without a bug the same scenarios pass, which `--clean` shows first.
#
#   scripts/planted-bugs.sh --all                all
#   scripts/planted-bugs.sh NAME...              those
#   scripts/planted-bugs.sh --clean --all        their scenarios without a bug, too
#
# Exit codes: 0 all were found, 1 one was not, 2 the command line is wrong or something could not be built.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

clean=false
if [ "${1:-}" = --clean ]; then
    clean=true
    shift
fi
names=("$@")
if [ "${1:-}" = --all ]; then
    names=()
    for file in chaos/planted/*.toml; do
        names+=("$(basename "$file" .toml)")
    done
fi
if [ "${#names[@]}" -eq 0 ]; then
    sed -n '4,12s/^# \{0,1\}//p' "$0" >&2
    exit 2
fi

root=$PWD
target=${CARGO_TARGET_DIR:-$root/target}/planted
tree=$target/tree
# shellcheck source=scripts/planting.sh
. scripts/planting.sh

# build PACKAGE... from the copy, as it is now
build() {
    local packages=()
    for package in "$@"; do
        packages+=(-p "$package")
    done
    # A bug may leave something unused, which is of no interest.
    if ! (cd "$tree" && CARGO_TARGET_DIR="$target" cargo build --quiet --locked "${packages[@]}") 2>"$target/build.txt"; then
        cat "$target/build.txt" >&2
        exit 2
    fi
}

# Runs a scenario; its report goes to a file.
run() {
    "$target/debug/steadfast-chaos" run "$1" --steadfast "$target/debug/steadfast" --json "$target/report.json" \
        >"$target/said.txt" 2>&1 || true
}

# What became of the last run: passed, or the checks that failed, one a line. An old report must not speak for a new run.
failures() {
    python3 - "$target/report.json" <<'PYTHON'
import json, sys
try:
    with open(sys.argv[1]) as file:
        report = json.load(file)
except (OSError, ValueError):
    sys.exit("the harness has left no report")
for result in report["scenarios"]:
    for check in result["checks"]:
        if check["verdict"] not in ("pass", "skipped"):
            print(f'{check["name"]}: {check["words"]}')
    if result["verdict"] == "skipped":
        print("skipped: " + "; ".join(check["words"] for check in result["checks"]))
PYTHON
}

copy_sources
# The harness is the same for all: it is what is put to the test, not what is broken.
build steadfast-chaos steadfast steadfast-fake-nvml

failed=0
if "$clean"; then
    for scenario in $(for name in "${names[@]}"; do field "chaos/planted/$name.toml" scenario; done | sort -u); do
        rm -f "$target/report.json"
        run "$scenario"
        found=$(failures)
        if [ -n "$found" ]; then
            printf '%-34s FAILS WITHOUT A BUG: %s\n' "$scenario" "$found"
            failed=1
        fi
    done
fi
for name in "${names[@]}"; do
    file=chaos/planted/$name.toml
    copy_sources
    plant "$file"
    build steadfast
    rm -f "$target/report.json"
    scenario=$(field "$file" scenario)
    run "$scenario"
    found=$(failures)
    check=$(field "$file" check)
    says=$(field "$file" says)
    reason=$(printf '%s\n' "$found" | grep -F -- "$check: " | grep -F -m 1 -- "$says" || true)
    if [ -n "$reason" ]; then
        printf '%-34s found by %s: %s\n' "$name" "$scenario" "$reason"
    else
        printf '%-34s NOT FOUND by %s, which should fail with "%s: ...%s..."; it said: %s\n' \
            "$name" "$scenario" "$check" "$says" "${found:-passed}"
        failed=1
    fi
done
exit "$failed"
