# SPDX-License-Identifier: Apache-2.0
"""The workers that the benches measure. The first thing that one does is to look at the clock."""

import time

BORN = time.monotonic_ns()

import json
import os
import signal
import socket
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
RANK = int(os.environ.get("RANK", "0"))
WORLD_SIZE = int(os.environ.get("WORLD_SIZE", "1"))
RESTART = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
STEP_SECONDS = 0.02
RECORDS = os.open(os.path.join(HERE, "records.jsonl"), os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)


def record(event, at=None, **fields):
    at = time.monotonic_ns() if at is None else at
    line = dict(event=event, restart=RESTART, rank=RANK, pid=os.getpid(), monotonic_ns=at, **fields)
    # One write to a file opened for appending: lines of several ranks do not mix.
    os.write(RECORDS, (json.dumps(line) + "\n").encode())


def fail(_signal, _frame):
    record("fault")
    os._exit(1)


def replace(name, text):
    temporary = os.path.join(HERE, "%s.%d" % (name, os.getpid()))
    with open(temporary, "w") as file:
        file.write(text)
    os.replace(temporary, os.path.join(HERE, name))


def read(name):
    try:
        with open(os.path.join(HERE, name)) as file:
            return file.read()
    except FileNotFoundError:
        return None


def join():
    """Connections to all other ranks for rank 0, to rank 0 for the others.

    The port goes through a file, since torchrun's MASTER_PORT is taken by its own store: it is the same way for every
    launcher, and each restart has a port of its own.
    """
    name = "port-%d" % RESTART
    if RANK == 0:
        with socket.create_server(("127.0.0.1", 0), backlog=WORLD_SIZE) as server:
            replace(name, str(server.getsockname()[1]))
            return [server.accept()[0] for _ in range(WORLD_SIZE - 1)]
    while (port := read(name)) is None:
        time.sleep(0.002)
    return [socket.create_connection(("127.0.0.1", int(port)))]


def barrier(peers):
    if RANK == 0:
        for peer in peers:
            if not peer.recv(1):
                raise ConnectionError
        for peer in peers:
            peer.sendall(b".")
    else:
        peers[0].sendall(b".")
        if not peers[0].recv(1):
            raise ConnectionError


def train():
    peers = join()
    # "Checkpoint": the step that was reached, so that steps go on after a restart.
    step = int(read("step") or 0)
    while True:
        time.sleep(STEP_SECONDS)
        try:
            barrier(peers)
        except OSError:
            # As in a collective on GPUs: nobody tells the survivors, they wait until somebody stops them.
            while True:
                signal.pause()
        step += 1
        if RANK == 0:
            replace("step", str(step))
            record("step")
            print("step %d loss %.4f" % (step, 1 / step), flush=True)


def write_lines(lines_per_second):
    line = 0
    while True:
        line += 1
        print("rank %d line %d: nothing to see here" % (RANK, line), flush=True)
        time.sleep(1 / lines_per_second)


def flood(megabytes):
    """Lines of 100 bytes in blocks of 8000, about what Python's own buffering makes of print()."""
    block = (b"x" * 99 + b"\n") * 80
    left = megabytes * 1_000_000
    began = time.monotonic_ns()
    while left > 0:
        left -= os.write(1, block[: min(left, len(block))])
    record("end", took_ns=time.monotonic_ns() - began)


signal.signal(signal.SIGUSR1, fail)
record("start", BORN)
if sys.argv[1] == "train":
    train()
elif sys.argv[1] == "print":
    write_lines(int(sys.argv[2]))
else:
    flood(int(sys.argv[2]))
