# SPDX-License-Identifier: Apache-2.0
"""Keeps failures of the hook away from the training."""

import os
import sys


def report(what):
    """Says on standard error what went wrong, where somebody looks for it (STEADFAST_HOOK_DEBUG=1). Call it in `except`."""
    if os.environ.get("STEADFAST_HOOK_DEBUG") != "1":
        return
    try:
        import traceback

        sys.stderr.write("steadfast hook: %s failed\n%s" % (what, traceback.format_exc()))
    except Exception:
        pass


def attempt(what, call, *args):
    """Calls something of the hook's own. Returns None when that fails."""
    try:
        return call(*args)
    except Exception:
        report(what)
        return None
