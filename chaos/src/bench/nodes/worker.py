# SPDX-License-Identifier: Apache-2.0
"""Says when it was born, in its first line, and becomes the training script that its arguments name."""

import time

BORN = time.monotonic_ns()

import json
import os
import runpy
import sys

record = {"event": "start", "rank": int(os.environ["RANK"]), "pid": os.getpid(), "monotonic_ns": BORN}
handle = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
os.write(handle, (json.dumps(record) + "\n").encode())
os.close(handle)
sys.argv = sys.argv[2:]
runpy.run_path(sys.argv[0], run_name="__main__")
