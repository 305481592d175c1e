#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Shows that the simulator can fail: for each file in chaos/mutants, puts the bug that it describes into a copy of the
# source tree, builds the simulator there, and runs the schedule of the seed that the file names. It must break the rule
# that the file names.
#
#   scripts/mutants.sh [NAME...]           all, or those
#   scripts/mutants.sh --find NAME...      look for the first seed that catches it, and write it into the file;
#                                          keep the smallest schedule in chaos/regressions
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

find_seeds=false
if [ "${1:-}" = --find ]; then
    find_seeds=true
    shift
fi
names=("$@")
if [ "${#names[@]}" -eq 0 ]; then
    for file in chaos/mutants/*.toml; do
        names+=("$(basename "$file" .toml)")
    done
fi

root=$PWD
target=${CARGO_TARGET_DIR:-$root/target}/mutants
tree=$target/tree
# shellcheck source=scripts/planting.sh
. scripts/planting.sh

failed=0
for name in "${names[@]}"; do
    copy_sources
    file=$root/chaos/mutants/$name.toml
    plant "$file"
    (cd "$tree" && RUSTFLAGS="${RUSTFLAGS:-} -Awarnings" CARGO_TARGET_DIR="$target" cargo build --quiet --locked --profile sim -p steadfast-sim)
    rule=$(field "$file" rule)
    if "$find_seeds"; then
        run=(--schedules 300000 --seed 1 --save "$root/chaos/regressions/$name.json")
    else
        run=(--schedules 1 --seed "$(field "$file" seed)")
    fi
    said=$("$target/sim/steadfast-sim" "${run[@]}" || true)
    broken=$(printf '%s\n' "$said" | sed -n 's/^broken: \([a-z ]*\): .*/\1/p')
    seed=$(printf '%s\n' "$said" | sed -n 's/^  seed \([0-9]*\), .*/\1/p')
    if [ "$broken" = "$rule" ]; then
        printf '%-36s caught by "%s", seed %s\n' "$name" "$rule" "$seed"
        if "$find_seeds"; then
            sed -i "s/^seed = .*/seed = $seed/" "chaos/mutants/$name.toml"
        fi
    else
        printf '%-36s NOT CAUGHT by "%s"; broken: "%s", seed %s\n' "$name" "$rule" "${broken:-nothing}" "${seed:-none}"
        failed=1
    fi
done
exit "$failed"
