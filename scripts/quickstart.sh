#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# From a fresh Debian or Ubuntu machine to a training job that survives `kill -9`: installs what is missing, builds the
# release binaries, runs the toy job on four workers, kills one of them, and checks that the job went on from its
# checkpoint and ended with the very loss of a run that was left alone. Fails if it did not.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/setup.sh
. scripts/setup.sh

STEPS=200
VICTIM_RANK=2

heading() { printf '\n=== %s\n' "$*"; }

# life LOG EVENT FIELD [RANK]: the field of every such record in a log that the toy job wrote, oldest first.
life() {
    local log="$directory/$1.jsonl"
    shift
    [ -f "$log" ] || return 0
    python3 - "$log" "$@" <<'PYTHON'
import json, sys

path, event, field, *rank = sys.argv[1:]
with open(path) as lines:
    for record in (json.loads(line) for line in lines if line.endswith("\n")):
        if record["event"] == event and field in record and rank in ([], [str(record["rank"])]):
            print(record[field])
PYTHON
}

# wait_until WHAT CONDITION...: gives up when the job has ended or two minutes have passed.
wait_until() {
    local what=$1 deadline=$((SECONDS + 120))
    shift
    until "$@"; do
        kill -0 "$job" 2>/dev/null || give_up "the job ended before $what"
        [ "$SECONDS" -lt "$deadline" ] || give_up "gave up waiting for $what"
        sleep 0.1
    done
}

three_checkpoints() { [ "$(life disturbed save step | wc -l)" -ge 3 ]; }

directory=
job=
cleanup() {
    local status=$?
    if [ -n "$job" ] && kill -0 "$job" 2>/dev/null; then
        kill -TERM "$job"
        wait "$job" || true
    fi
    if [ "$status" -eq 0 ] || [ -z "$directory" ]; then
        [ -z "$directory" ] || rm -rf "$directory"
    else
        say "quickstart.sh: did not get to its end; what the job wrote is kept in $directory"
    fi
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

heading "1. What is needed"
setup_build
say "everything is there"

heading "2. Build (the first time takes some minutes)"
cargo build --release --locked -p steadfast -p steadfast-chaos
steadfast="${CARGO_TARGET_DIR:-target}/release/steadfast"

directory=$(mktemp -d "${TMPDIR:-/tmp}/steadfast-quickstart.XXXXXX")
toy=(python3 -u examples/train_toy.py --steps "$STEPS")

heading "3. A run that is left alone, for comparison"
"${toy[@]}" --step-time 0 --log-every 100 --json-log "$directory/undisturbed.jsonl"

heading "4. The same under Steadfast on four workers; rank $VICTIM_RANK gets kill -9 after three checkpoints"
command=("$steadfast" run --nproc-per-node 4 --max-restarts 3 --log-dir "$directory/logs" --
    "${toy[@]}" --checkpoint-dir "$directory/checkpoints" --json-log "$directory/disturbed.jsonl")
printf '$ %s\n' "${command[*]}"
"${command[@]}" &
job=$!
wait_until "three checkpoints were written" three_checkpoints
victim=$(life disturbed start pid "$VICTIM_RANK" | tail -n 1)
printf '$ kill -9 %s   # the worker of rank %s\n' "$victim" "$VICTIM_RANK"
kill -9 "$victim"
status=0
wait "$job" || status=$?
job=
[ "$status" -eq 0 ] || give_up "the job did not recover: exit code $status"

heading "5. What came of it"
resumed=$(life disturbed resume step 0 | tail -n 1)
[ -n "$resumed" ] || give_up "the job succeeded, but it never resumed from a checkpoint"
expected=$(life undisturbed end loss)
found=$(life disturbed end loss 0 | tail -n 1)
[ "$found" = "$expected" ] || give_up "final loss $found, but $expected in the run that was left alone"
cat <<END
The worker of rank $VICTIM_RANK was killed; the job went on from the checkpoint of step $resumed and finished all
$STEPS steps.
Its final loss is that of the run that was left alone, to the last bit: $found

Next:
  your own job         $steadfast run --nproc-per-node 4 -- python3 train.py
  instead of torchrun  $steadfast torchrun --nproc-per-node 4 --max-restarts 3 train.py
  look at it           $steadfast status        (from another terminal; also: stop, restart)
  all options          $steadfast run --help
  the test suite       scripts/test.sh
END
