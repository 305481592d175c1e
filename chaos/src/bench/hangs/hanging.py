# SPDX-License-Identifier: Apache-2.0
"""Runs a training script in which a rank hangs when it is told to: hanging.py SCRIPT ARGUMENTS...

The word is a file called KIND-RANK in the directory HANG_FILES, or in the working directory. It is looked for where the
script sleeps within a step, and counts in the first attempt only. Before the rank does as it is told, it writes the
monotonic clock, in nanoseconds, into a file struck-RANK there. With HANG_BEFORE_FIRST_STEP=RANK, that rank does not even
begin.

KIND: `data` waits for data that do not come, `spin` never lets go of the interpreter's lock, `lock`
has another thread keep it, asleep, `skip` leaves out a
collective and goes on to another one, `write` writes to a file in the directory HANG_WRITES_TO, `slow` takes three times as
long for each step, `pause` once takes 1.2 s, `eval` evaluates for 8 s, by itself. `uneven` goes on without a fault: steps of
a third to twice their time, saves of ten times a step, by rank 0, and evaluations of fifty times a step, by all ranks or one.
"""

import os
import random
import re
import runpy
import sys
import threading
import time

rank = os.environ["RANK"]
words = os.environ.get("HANG_FILES", ".")
is_first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
really_sleep = time.sleep


def next_batch():
    while True:
        really_sleep(1000)


def hold_the_lock():
    # Takes longer than the universe will last, within one call that does not let go of the interpreter's lock.
    re.match(r"(a+)+$", "a" * 80 + "b")


def keep_the_lock():
    import ctypes

    # A function of the C library that is called as if it were one of Python's keeps the lock, asleep.
    threading.Thread(target=ctypes.PyDLL(None).sleep, args=(1000000,), daemon=True).start()


def skip_a_collective(training):
    if "torch" in sys.modules:
        sys.modules["torch"].distributed.barrier()
    else:
        training.f_locals["group"].broadcast(None)


def save_sample():
    path = os.path.join(os.environ["HANG_WRITES_TO"], "sample-%s" % rank)
    with open(path, "wb", buffering=0) as file:
        while True:
            file.write(b"0" * 4096)
            os.fsync(file.fileno())


def evaluate():
    import steadfast  # the supervisor brings it along

    with steadfast.evaluating():
        really_sleep(8)


class Uneven:
    """A training without a fault whose steps are of all lengths."""

    def __init__(self):
        self.steps = 0
        self.random = random.Random(int(rank))

    def work(self, seconds):
        import steadfast  # the supervisor brings it along

        self.steps += 1
        if self.steps % 20 == 0 and rank == "0":
            with steadfast.checkpointing():
                really_sleep(10 * seconds)
        # Every second time it is one rank that the others wait for.
        if self.steps % 100 == 0 and (self.steps % 200 == 0 or rank == "1"):
            with steadfast.evaluating():
                really_sleep(50 * seconds)
        really_sleep(seconds * self.random.uniform(1 / 3, 2))


def told_to(kind):
    return is_first and os.path.exists(os.path.join(words, "%s-%s" % (kind, rank)))


def strike():
    path = os.path.join(words, "struck-" + rank)
    if os.path.exists(path):
        return
    with open(path + ".new", "w") as file:
        file.write(str(time.monotonic_ns()))
    os.rename(path + ".new", path)


def sleep(seconds):
    if told_to("data"):
        strike()
        next_batch()
    if told_to("spin"):
        strike()
        hold_the_lock()
    if told_to("lock"):
        strike()
        keep_the_lock()
    if told_to("skip"):
        strike()
        skip_a_collective(sys._getframe(1))
    if told_to("write"):
        strike()
        save_sample()
    if told_to("eval"):
        strike()
        evaluate()
        os.unlink(os.path.join(words, "eval-" + rank))
    if told_to("pause"):
        strike()
        os.unlink(os.path.join(words, "pause-" + rank))
        seconds = 1.2
    if told_to("uneven"):
        strike()
        return unevenly.work(seconds)
    if told_to("slow"):
        strike()
        seconds *= 3
    return really_sleep(seconds)


unevenly = Uneven()
if is_first and os.environ.get("HANG_BEFORE_FIRST_STEP") == rank:
    strike()
    really_sleep(1000000)
time.sleep = sleep
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
