# SPDX-License-Identifier: Apache-2.0
"""Leaves the error that ends the program in the file that the launcher named, in the format of torchelastic.

`sys.excepthook` is wrapped, not replaced. Where the program puts its own in place, the end of the process is early enough
to find the exception in `sys.last_value`. An exit code is seen where it goes through `sys.exit`.
"""

import atexit
import os
import sys
import time

from . import guard

_VARIABLE = "TORCHELASTIC_ERROR_FILE"
# The error file that a Python process above this one has in its hands.
_OWNER = "STEADFAST_ERROR_FILE_OWNER"
_FRAMEWORKS = ("torch", "jax", "tensorflow")
# They tell that somebody else has failed, who may have left an error with more in it.
_SECOND_HAND = ("SystemExit", "ChildFailedError", "CalledProcessError", "ProcessRaisedException", "ProcessExitedException")
_LONGEST = 64 * 1024


class Errors:
    """The one of this process is `errors`."""

    def __init__(self):
        self._pid = 0
        self._owner = None
        self._written = None
        self._exit = None
        self._next_hook = None
        self._plain_exit = None

    def install(self):
        """Begins to watch."""
        path = os.environ.get(_VARIABLE)
        if not path:
            return
        self._pid = os.getpid()
        self._owner = os.environ.get(_OWNER)
        os.environ[_OWNER] = path
        self._next_hook = sys.excepthook
        sys.excepthook = self._on_exception
        self._plain_exit = sys.exit
        sys.exit = self._on_exit
        atexit.register(self._at_end)

    def _on_exception(self, kind, value, trace):
        guard.attempt("noting an exception", self._exception, kind, value, trace)
        self._next_hook(kind, value, trace)

    def _on_exit(self, *status):
        guard.attempt("noting an exit", self._note_exit, *status)
        self._plain_exit(*status)

    def _exception(self, kind, value, trace):
        # Interrupted by somebody: nothing is wrong with the program.
        if issubclass(kind, KeyboardInterrupt) or value is self._written:
            return
        self._written = value
        self._write(_describe(kind, value), _stack(kind, value, trace), kind.__name__, None)

    def _note_exit(self, status=None):
        if status is None or status == 0:
            self._exit = None
            return
        code = status if isinstance(status, int) else 1
        kind, value, trace = sys.exc_info()
        if kind is not None and not issubclass(kind, (SystemExit, KeyboardInterrupt)):
            self._exit = (_describe(kind, value), _stack(kind, value, trace), kind.__name__, code)
            return
        import traceback

        said = "SystemExit: %s" % (status,)
        lines = traceback.format_list(traceback.extract_stack()[:-3])
        stack = "Traceback (most recent call last):\n" + "".join(lines) + said
        self._exit = (said, stack, "SystemExit", code)

    def _at_end(self):
        guard.attempt("writing the error file at the end", self._last_chance)

    def _last_chance(self):
        value = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
        if isinstance(value, BaseException) and value is not self._written:
            self._exception(type(value), value, value.__traceback__)
        elif self._written is None and self._exit is not None:
            self._write(*self._exit)

    def _write(self, message, stack, kind, code):
        path = os.environ.get(_VARIABLE)
        if not path or os.getpid() != self._pid:
            return
        below_another = path == self._owner
        if below_another and not any(name in sys.modules for name in _FRAMEWORKS):
            # Some tool that a training has started; whether its failure matters, the training knows.
            return
        if kind in _SECOND_HAND and os.path.exists(path) and os.path.getsize(path) > 0:
            return
        import json

        now_ms = int(time.time() * 1000)
        # Whole seconds for those who know nothing finer: that can be before what brought this failure about.
        times = {"timestamp": str(now_ms // 1000), "timestamp_ms": now_ms}
        inner = {
            "message": message[:_LONGEST],
            "extraInfo": dict(times, py_callstack=stack[-_LONGEST:]),
        }
        if code is not None:
            inner["errorCode"] = code
        temporary = "%s.%d.new" % (path, os.getpid())
        with open(temporary, "w", encoding="utf-8", errors="backslashreplace") as file:
            json.dump({"message": inner}, file)
        os.replace(temporary, path)


def _describe(kind, value):
    try:
        text = str(value)
    except Exception:
        text = "<no message: its __str__ failed>"
    return "%s: %s" % (kind.__name__, text) if text else kind.__name__


def _stack(kind, value, trace):
    import traceback

    try:
        return "".join(traceback.format_exception(kind, value, trace))
    except Exception:
        return "".join(traceback.format_tb(trace))


errors = Errors()
