# SPDX-License-Identifier: Apache-2.0
"""What the chaos harness has inside every training process: a witness of its life, and a hand that breaks things.

It is found through PYTHONPATH. In a process with a RANK it writes down that the process was born and, many times a second,
that it lives; and it does what a file of orders says. The orders of rank R are in orders/R.json.
"""

import json
import os
import signal
import sys
import threading
import time

BEAT_SECONDS = 0.02
LEFT_BEHIND = (
    "import os, signal, sys, time\n"
    "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "if sys.argv[1] == 'double-fork' and os.fork() > 0: os._exit(0)\n"
    "time.sleep(100000)\n"
)


class Hand:
    """Writes the records of this process, and carries out its orders."""

    def __init__(self, directory):
        self.rank = int(os.environ["RANK"])
        self.generation = int(os.environ.get("STEADFAST_GENERATION", os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")))
        self.node = os.environ.get("STEADFAST_NODE", os.environ.get("GROUP_RANK", ""))
        self.orders = os.path.join(directory, "orders", "%d.json" % self.rank)
        self.done = set()
        self.each_step = None
        self.sleep = time.sleep
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        self.file = os.open(os.path.join(directory, "life.jsonl"), flags, 0o644)

    def write(self, event, **fields):
        record = {
            "event": event,
            "rank": self.rank,
            "generation": self.generation,
            "node": self.node,
            "pid": os.getpid(),
            "monotonic_ns": time.monotonic_ns(),
        }
        record.update(fields)
        # A single write to a file opened for appending: lines of several ranks do not mix.
        os.write(self.file, (json.dumps(record) + "\n").encode())

    def live(self):
        while True:
            self.write("beat")
            self.look()
            self.sleep(BEAT_SECONDS)

    def look(self):
        try:
            with open(self.orders) as file:
                order = json.load(file)
        except (OSError, ValueError):
            return
        # An order is for one life of the rank: a worker that comes after it has nothing to do with it.
        if order["pid"] != os.getpid() or order["id"] in self.done:
            return
        self.done.add(order["id"])
        self.write("order", order=order["id"], does=order["do"])
        getattr(self, "do_" + order["do"].replace("-", "_"))(order)

    def do_exit(self, order):
        if order["says"]:
            os.write(2, (order["says"] + "\n").encode())
        os._exit(order["code"])

    def do_raise(self, order):
        import ctypes

        message = order["message"]
        error = type("InjectedError", (RuntimeError,), {"__init__": lambda self: RuntimeError.__init__(self, message)})
        main = ctypes.c_ulong(threading.main_thread().ident)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(main, ctypes.py_object(error))

    def do_segfault(self, order):
        import ctypes

        ctypes.string_at(0)

    def do_hang(self, order):
        def for_ever():
            self.write("entered", order=order["id"])
            while True:
                self.sleep(3600)

        self.each_step = for_ever

    def do_spin(self, order):
        def for_ever():
            self.write("entered", order=order["id"])
            while True:
                pass

        self.each_step = for_ever

    def do_hold_lock(self, order):
        import ctypes

        self.write("entered", order=order["id"])
        # A function of the C library that is called as if it were one of Python's keeps the lock.
        ctypes.PyDLL(None).sleep(100000)

    def do_slow(self, order):
        self.each_step = lambda: self.sleep(order["seconds"])
        self.write("entered", order=order["id"])

    def do_no_files(self, order):
        import resource

        self.write("entered", order=order["id"])
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))

    def do_allocate(self, order):
        self.write("entered", order=order["id"])
        held = []
        while True:
            held.append(bytearray(os.urandom(4096) * 256))

    def do_leave_behind(self, order):
        self.leave_behind(order["how"])
        self.write("entered", order=order["id"])

    def do_die_in_save(self, order):
        def die(then=None):
            self.write("entered", order=order["id"])
            os.kill(os.getpid(), signal.SIGKILL)

        moment = order["moment"]
        if moment == "before-fsync":
            os.fsync = lambda *_: die()
        elif moment == "before-rename":
            os.rename = os.replace = lambda *_: die()
        else:
            rename = os.rename
            os.rename = os.replace = lambda *names: die(rename(*names))

    def leave_behind(self, how):
        import subprocess

        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        subprocess.Popen(
            [sys.executable, "-S", "-c", LEFT_BEHIND, how],
            start_new_session=True,
            env=environment,
            stdin=subprocess.DEVNULL,
        )


def begin():
    directory = os.environ.get("STEADFAST_CHAOS_DIRECTORY")
    # What a training process starts has the same environment, and is none.
    if not directory or "RANK" not in os.environ or "STEADFAST_CHAOS_BORN" in os.environ:
        return
    os.environ["STEADFAST_CHAOS_BORN"] = str(os.getpid())
    hand = Hand(directory)
    hand.write("born")
    habits = os.environ.get("STEADFAST_CHAOS_HABITS", "").split(",")
    if "ignore-term" in habits:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "leave-behind" in habits:
        hand.leave_behind("setsid")

    def sleep(seconds):
        # A training step that waits is where a worker can be held up.
        if hand.each_step is not None and threading.current_thread() is threading.main_thread():
            hand.each_step()
        hand.sleep(seconds)

    time.sleep = sleep
    threading.Thread(target=hand.live, daemon=True).start()


def run_next():
    """Runs the sitecustomize that this one hides, if there is one."""
    import importlib.machinery
    import importlib.util

    here = os.path.dirname(os.path.abspath(__file__))
    places = [os.path.abspath(place) for place in sys.path]
    rest = sys.path[places.index(here) + 1 :] if here in places else []
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", rest)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


begin()
run_next()
