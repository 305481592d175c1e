# SPDX-License-Identifier: Apache-2.0
"""The progress page: a small file in shared memory through which a process shows how far it is.

docs/progress-page.md of Steadfast describes it byte by byte.
"""

import mmap
import os
import struct
from time import monotonic_ns

from _thread import RLock

from .phases import INIT

MAGIC = b"STDFPAGE"
VERSION = 1
SIZE = 4096

# Where the step comes from: nowhere yet, counted since the process began, from the count in an optimizer's state, or
# said by the program.
UNKNOWN, COUNTED, OPTIMIZER, STATED = range(4)

_HEADER = struct.Struct("<8sIIIIiiQQ")
_REQUEST_AT = 64
_ASKED_AT = 256
_STEP = struct.Struct("<QQQQQ")
_STEP_AT = 128
_STATE = struct.Struct("<QIIQQQQdQ")
_STATE_AT = 192
_PATH_AT = 512
_LONGEST_PATH = 1022
_NAN = float("nan")
# A loss that is no number, as opposed to none at all.
_NOT_A_NUMBER = struct.unpack("<d", b"\x01\0\0\0\0\0\xf8\x7f")[0]


def _number(name, default):
    try:
        return int(os.environ[name])
    except (KeyError, ValueError):
        return default


class Page:
    """The page of this process. Only the process that made it may write to it."""

    __slots__ = (
        "step",
        "source",
        "step_ns",
        "phase",
        "phase_ns",
        "changed_ns",
        "checkpoint_done",
        "loss",
        "_step_number",
        "_state_number",
        "_memory",
        "_request",
        "_asked",
        "_lock",
        "_pack_step",
    )

    def __init__(self, directory, stack_signal):
        """Makes the page in `directory`. Raises OSError where that cannot be."""
        now = monotonic_ns()
        self._memory = _create(directory, now, stack_signal)
        self._request = memoryview(self._memory)[_REQUEST_AT : _REQUEST_AT + 16].cast("Q")
        self._asked = memoryview(self._memory)[_ASKED_AT : _ASKED_AT + 8].cast("Q")
        # It can be taken again by a handler that a signal has put in the middle of a write.
        self._lock = RLock()
        self._pack_step = _STEP.pack_into
        self._step_number = 0
        self._state_number = 0
        self.step = 0
        self.source = UNKNOWN
        self.step_ns = 0
        self.phase = INIT
        self.phase_ns = now
        self.changed_ns = now
        self.checkpoint_done = 0
        self.loss = _NAN
        self.publish_step()
        self.publish_state()

    def set_loss(self, loss):
        """Writes down the last loss, which may be infinite or no number."""
        self.loss = loss if loss == loss else _NOT_A_NUMBER
        self.publish_state()

    def publish_step(self):
        """Writes the block of the step, which one thread alone does. It is one call, so no other thread comes between."""
        self._step_number = number = self._step_number + 1
        self._pack_step(self._memory, _STEP_AT, number, self.step, self.step_ns, self.changed_ns, number)

    def publish_state(self):
        """Writes the block of everything else."""
        with self._lock:
            self._state_number = number = self._state_number + 1
            _STATE.pack_into(
                self._memory,
                _STATE_AT,
                number,
                self.phase,
                self.source,
                self.phase_ns,
                0,
                0,
                self.checkpoint_done,
                self.loss,
                number,
            )

    def checkpoint_request(self):
        """The step at which the supervisor wants a checkpoint; 0 when it wants none."""
        return self._request[0]

    def asks(self):
        """Shows that the program asks for it, so that it is worth while to want one."""
        self._asked[0] = monotonic_ns()

    def hold_until(self):
        """Until when a process that has saved is to make no further step, by the monotonic clock; 0: it goes on."""
        return self._request[1]

    def set_checkpoint_path(self, path):
        """Writes where the last checkpoint is. One that is too long for the page counts as unknown."""
        text = os.fsencode(path)
        if len(text) > _LONGEST_PATH:
            text = b""
        with self._lock:
            struct.pack_into("<H%ds" % len(text), self._memory, _PATH_AT, len(text), text)


def _create(directory, now, stack_signal):
    name = "%d-%x" % (os.getpid(), now)
    hidden = os.path.join(directory, "." + name)
    file = os.open(hidden, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        # A write to memory that turns out not to be there would kill the process: it is taken now, or refused.
        os.posix_fallocate(file, 0, SIZE)
        memory = mmap.mmap(file, SIZE)
        _HEADER.pack_into(
            memory,
            0,
            MAGIC,
            VERSION,
            SIZE,
            os.getpid(),
            stack_signal,
            _number("RANK", -1),
            _number("LOCAL_RANK", -1),
            _number("STEADFAST_GENERATION", 0),
            now,
        )
        os.rename(hidden, os.path.join(directory, name + ".page"))
        return memory
    except BaseException:
        os.unlink(hidden)
        raise
    finally:
        os.close(file)
