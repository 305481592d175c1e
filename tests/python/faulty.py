# SPDX-License-Identifier: Apache-2.0
"""Runs a training script that ends with exit code 1 when the test says so: faulty.py SCRIPT ARGUMENTS...

The word is a file called exit-now-RANK in the working directory. It counts in the first attempt only.
"""

import os
import runpy
import sys
import threading
import time


def watch(path):
    while not os.path.exists(path):
        time.sleep(0.002)
    os._exit(1)


if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    threading.Thread(target=watch, args=("exit-now-" + os.environ["RANK"],), daemon=True).start()
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
