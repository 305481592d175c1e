# SPDX-License-Identifier: Apache-2.0
"""The stacks of all threads on a signal, written by Python's faulthandler, whoever holds the interpreter's lock."""

import atexit
import faulthandler
import os

import _signal

from . import guard

# A real-time signal (SIGRTMIN+10) that nothing else is known to use. SIGUSR1 and SIGUSR2 belong to the training.
_SIGNAL = 44
# Programs that close "all" descriptors mostly mean the low ones.
_HIGH_DESCRIPTOR = 500

_registered = 0


def signal_number():
    """The signal that writes the stacks; 0 when none does."""
    return _registered


def install(directory):
    """Writes the stacks to PID.stacks in `directory` when the signal comes. A handler that is there already stays."""
    global _registered
    if _signal.getsignal(_SIGNAL) != _signal.SIG_DFL:
        return
    path = os.path.join(directory, "%d.stacks" % os.getpid())
    file = _high(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600))
    faulthandler.register(_SIGNAL, file=file, all_threads=True)
    _registered = _SIGNAL
    atexit.register(_tidy, os.getpid(), file, path)


def _high(file):
    try:
        import fcntl

        high = fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, _HIGH_DESCRIPTOR)
    except (ImportError, OSError):
        return file
    os.close(file)
    return high


def _tidy(pid, file, path):
    """Removes the file at the end when nobody has asked for stacks."""
    try:
        # A forked child has it from its parent, who needs it.
        if os.getpid() == pid and os.fstat(file).st_size == 0:
            os.unlink(path)
    except OSError:
        guard.report("removing the empty file for stacks")
