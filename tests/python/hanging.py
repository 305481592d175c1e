# SPDX-License-Identifier: Apache-2.0
"""Runs a training script in which a rank hangs when the test says so: hanging.py SCRIPT ARGUMENTS...

The word is a file called KIND-RANK in the working directory. It is looked for where the script sleeps within a step, and
counts in the first attempt only. With HANG_BEFORE_FIRST_STEP=RANK, that rank does not even begin.
"""

import os
import re
import runpy
import sys
import time

rank = os.environ["RANK"]
is_first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
really_sleep = time.sleep


def next_batch():
    while True:
        really_sleep(1000)


def hold_the_lock():
    # Takes longer than the universe will last, within one call that does not let go of the interpreter's lock.
    re.match(r"(a+)+$", "a" * 80 + "b")


def told_to(kind):
    return is_first and os.path.exists("%s-%s" % (kind, rank))


def sleep(seconds):
    if told_to("data"):
        next_batch()
    if told_to("spin"):
        hold_the_lock()
    if told_to("pause"):
        os.unlink("pause-" + rank)
        seconds = 1.2
    if told_to("slow"):
        seconds *= 3
    really_sleep(seconds)


if is_first and os.environ.get("HANG_BEFORE_FIRST_STEP") == rank:
    really_sleep(1000000)
time.sleep = sleep
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
