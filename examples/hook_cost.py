#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures what the Python hook costs: steadfast run -- python3 examples/hook_cost.py

Each figure is the best of many short rounds, less the cost of calling a function that does nothing: what the hook costs
where nothing else disturbs it. PyTorch is not needed: its optimizers call the very function that is measured here.
"""

import os
import subprocess
import sys
import time

CALLS = 2000
ROUNDS = 200
STARTS = 20


class Optimizer:
    """As much of an optimizer as the hook looks at."""

    def __init__(self):
        self.state = {}
        self.param_groups = [{}]


def best(call):
    """Nanoseconds of one call in the best round."""
    rounds = []
    for _ in range(ROUNDS):
        began = time.perf_counter_ns()
        for _ in range(CALLS):
            call()
        rounds.append((time.perf_counter_ns() - began) / CALLS)
    return min(rounds)


def start(environment):
    """Milliseconds in which the interpreter starts and ends, at best."""
    times = []
    for _ in range(STARTS):
        began = time.perf_counter_ns()
        subprocess.run([sys.executable, "-c", ""], env=environment, check=True)
        times.append((time.perf_counter_ns() - began) / 1e6)
    return min(times)


def main():
    try:
        import steadfast
        from _steadfast.recorder import recorder
    except ImportError:
        sys.exit("run it under the supervisor: steadfast run -- python3 examples/hook_cost.py")
    if not steadfast.supervised():
        sys.exit("there is no progress page to write to: run it under the supervisor")
    optimizer = Optimizer()
    nothing = best(lambda: None)

    def phase():
        with steadfast.evaluating():
            pass

    for what, call in [
        ("a step of an optimizer", lambda: recorder.optimizer_stepped(optimizer)),
        ("should_checkpoint()", steadfast.should_checkpoint),
        ("progress(step)", lambda: steadfast.progress(1)),
        ("progress(step, loss=...)", lambda: steadfast.progress(1, loss=0.5)),
        ("a phase, both ends", phase),
    ]:
        print("%-26s %6.2f us" % (what, (best(call) - nothing) / 1000))
    plain = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    print("%-26s %6.2f ms more than %.1f ms" % ("the start of Python", start(dict(os.environ)) - start(plain), start(plain)))


main()
