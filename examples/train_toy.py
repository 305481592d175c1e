#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A small distributed training job that needs nothing but Python 3.8.

It fits a linear model by stochastic gradient descent. Every step, all ranks add up their gradients over TCP through
rank 0, so a rank that dies or stops holds up all the others, as in real synchronous training.

The batch of a step depends on the seed and the step alone, each rank takes its share of it, and gradients are added as
whole numbers. The loss after step N is therefore the same, bit for bit, whatever the number of ranks and however often
the job was restarted from a checkpoint.

RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT and TORCHELASTIC_RESTART_COUNT come from the environment; without
them it runs as a single process.
"""

import argparse
import hashlib
import json
import math
import os
import random
import socket
import struct
import sys
import threading
import time

try:
    import steadfast  # the supervisor brings it along
except ImportError:
    steadfast = None

FEATURES = 8
BATCH = 64
LEARNING_RATE = 0.05
# Gradients are added as multiples of this: whole numbers add up to the same total in any order.
QUANTUM = 2.0**-40
CHECKPOINT_MAGIC = "toy-checkpoint-1"
CHECKPOINTS_KEPT = 3
# A connecting rank can occupy the master's port for an instant (a TCP socket can connect to itself).
BIND_SECONDS = 5.0


class PeerLost(Exception):
    """Another rank cannot be reached any more."""


class Environment:
    """What a launcher tells a worker."""

    def __init__(self, environ):
        self.rank = int(environ.get("RANK", "0"))
        self.world_size = int(environ.get("WORLD_SIZE", "1"))
        self.local_rank = int(environ.get("LOCAL_RANK", str(self.rank)))
        self.restart_count = int(environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
        self.generation = int(environ.get("STEADFAST_GENERATION", "0"))
        self.node = environ.get("STEADFAST_NODE", "")
        self.master = (environ.get("MASTER_ADDR", "127.0.0.1"), int(environ.get("MASTER_PORT", "29500")))
        if not 0 <= self.rank < self.world_size:
            raise SystemExit("RANK %d does not fit WORLD_SIZE %d" % (self.rank, self.world_size))


class LifeLog:
    """Appends one JSON line per event to a file that all ranks share."""

    def __init__(self, path, environment):
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        self._file = os.open(path, flags, 0o644) if path else None
        self._environment = environment

    def write(self, event, **fields):
        if self._file is None:
            return
        record = {
            "event": event,
            "restart_count": self._environment.restart_count,
            "generation": self._environment.generation,
            "node": self._environment.node,
            "rank": self._environment.rank,
            "local_rank": self._environment.local_rank,
            "world_size": self._environment.world_size,
            "pid": os.getpid(),
            "monotonic_ns": time.monotonic_ns(),
        }
        record.update(fields)
        # A single write to a file opened for appending: lines of several ranks do not mix.
        os.write(self._file, (json.dumps(record) + "\n").encode())

    def beat(self, seconds):
        """Writes down, so often, that this process lives, whatever the training does."""

        def run():
            while True:
                self.write("beat")
                time.sleep(seconds)

        threading.Thread(target=run, daemon=True).start()


# --- messages between ranks: a length, then JSON ---


def send(connection, message):
    body = json.dumps(message).encode()
    connection.sendall(struct.pack("!I", len(body)) + body)


def receive(connection):
    return json.loads(receive_bytes(connection, struct.unpack("!I", receive_bytes(connection, 4))[0]))


def receive_bytes(connection, count):
    data = b""
    while len(data) < count:
        part = connection.recv(count - len(data))
        if not part:
            raise ConnectionError("the connection was closed")
        data += part
    return data


class Group:
    """All ranks of the job, joined through rank 0."""

    def __init__(self, environment, connections, timeout):
        self._environment = environment
        # Rank 0 holds one connection per other rank, every other rank holds the one to rank 0.
        self._connections = connections
        for connection in connections.values():
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.settimeout(timeout)

    def broadcast(self, message):
        """Gives every rank the message of rank 0."""
        if self._environment.rank != 0:
            return self._receive(0, "waiting for the state of rank 0")
        for peer in self._connections:
            self._send(peer, message, "sending the state")
        return message

    def all_reduce(self, step, numbers):
        """Adds up, element by element, the whole numbers of all ranks."""
        doing = "in the all-reduce of step %d" % step
        if self._environment.rank != 0:
            self._send(0, [step, numbers], doing)
            return self._receive(0, doing)[1]
        total = list(numbers)
        for peer in self._connections:
            their_step, theirs = self._receive(peer, doing)
            if their_step != step:
                raise PeerLost("rank %d is at step %d, rank 0 is at step %d" % (peer, their_step, step))
            total = [mine + other for mine, other in zip(total, theirs)]
        for peer in self._connections:
            self._send(peer, [step, total], doing)
        return total

    def _send(self, peer, message, doing):
        try:
            send(self._connections[peer], message)
        except OSError as error:
            raise PeerLost("lost rank %d %s: %s" % (peer, doing, error)) from error

    def _receive(self, peer, doing):
        try:
            return receive(self._connections[peer])
        except OSError as error:
            raise PeerLost("lost rank %d %s: %s" % (peer, doing, error)) from error


def join(environment, options):
    """Waits until all ranks have found one another."""
    deadline = time.monotonic() + options.connect_timeout
    if environment.world_size == 1:
        connections = {}
    elif environment.rank == 0:
        connections = accept_peers(environment, deadline)
    else:
        connections = {0: connect_to_master(environment, deadline)}
    return Group(environment, connections, options.timeout)


def accept_peers(environment, deadline):
    with listen(environment.master) as server:
        peers = {}
        while len(peers) < environment.world_size - 1:
            server.settimeout(max(deadline - time.monotonic(), 0.001))
            try:
                connection, _ = server.accept()
            except socket.timeout:
                missing = sorted(set(range(1, environment.world_size)) - set(peers))
                raise PeerLost("ranks %s did not connect in time" % missing) from None
            try:
                connection.settimeout(10)
                hello = receive(connection)
                if hello["restart_count"] != environment.restart_count or hello["world_size"] != environment.world_size:
                    raise ValueError("it belongs to another start of the job")
                peers[hello["rank"]] = connection
            except (OSError, ValueError, KeyError, TypeError) as error:
                print("rank 0: turned a connection away: %s" % error, file=sys.stderr, flush=True)
                connection.close()
        return dict(sorted(peers.items()))


def listen(address):
    family, _, _, _, resolved = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)[0]
    deadline = time.monotonic() + BIND_SECONDS
    while True:
        try:
            return socket.create_server(resolved[:2], family=family, backlog=128)  # sets SO_REUSEADDR
        except OSError as error:
            if time.monotonic() > deadline:
                raise PeerLost("cannot listen on %s port %d: %s" % (*address, error)) from error
            time.sleep(0.02)


def connect_to_master(environment, deadline):
    hello = {
        "rank": environment.rank,
        "world_size": environment.world_size,
        "restart_count": environment.restart_count,
    }
    while True:
        try:
            connection = socket.create_connection(environment.master, timeout=5)
            if connection.getsockname() == connection.getpeername():
                connection.close()
                raise ConnectionRefusedError("nobody listens yet")
            send(connection, hello)
            return connection
        except OSError as error:
            if time.monotonic() > deadline:
                where = "%s port %d" % environment.master
                raise PeerLost("cannot reach rank 0 at %s: %s" % (where, error)) from error
            time.sleep(0.02)


# --- the model ---


def shard_gradient(weights, seed, step, environment):
    """Loss and gradient of this rank's share of the batch, as whole multiples of QUANTUM."""
    totals = [0] * (FEATURES + 1)
    for index in range(environment.rank, BATCH, environment.world_size):
        source = random.Random((seed * 1_000_003 + step) * BATCH + index)
        features = [source.uniform(-1, 1) for _ in range(FEATURES)]
        target = math.fsum((1 + n) * x for n, x in enumerate(features)) + source.uniform(-0.1, 0.1)
        error = math.fsum(w * x for w, x in zip(weights, features)) - target
        totals[0] += round(error * error / 2 / QUANTUM)
        for n, x in enumerate(features):
            totals[n + 1] += round(error * x / QUANTUM)
    return totals


# --- checkpoints ---


def checkpoint_path(directory, step):
    return os.path.join(directory, "step-%08d.toy" % step)


def save_checkpoint(directory, step, seed, weights, loss):
    """Writes a checkpoint that is there whole or not at all, then deletes all but the newest few."""
    body = json.dumps({"step": step, "seed": seed, "weights": [w.hex() for w in weights], "loss": loss.hex()})
    text = "%s %s\n%s\n" % (CHECKPOINT_MAGIC, hashlib.sha256(body.encode()).hexdigest(), body)
    path = checkpoint_path(directory, step)
    temporary = "%s.%d.tmp" % (path, os.getpid())
    with open(temporary, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.rename(temporary, path)
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
    for old in checkpoint_steps(directory)[CHECKPOINTS_KEPT:]:
        if old < step:
            os.unlink(checkpoint_path(directory, old))


def checkpoint_steps(directory):
    """Steps of the checkpoints in the directory, newest first."""
    names = [name for name in os.listdir(directory) if name.startswith("step-") and name.endswith(".toy")]
    steps = [name[len("step-") : -len(".toy")] for name in names]
    return sorted((int(step) for step in steps if step.isdigit()), reverse=True)


def read_checkpoint(path):
    with open(path) as file:
        header, _, body = file.read().partition("\n")
    body = body[:-1]
    if header != "%s %s" % (CHECKPOINT_MAGIC, hashlib.sha256(body.encode()).hexdigest()):
        raise ValueError("its checksum does not fit its contents")
    return json.loads(body)


def newest_checkpoint(directory, seed):
    """The newest checkpoint that is whole, or None; says which ones it passed over."""
    os.makedirs(directory, exist_ok=True)
    for step in checkpoint_steps(directory):
        path = checkpoint_path(directory, step)
        try:
            state = read_checkpoint(path)
        except (OSError, ValueError) as error:
            print("passing over checkpoint %s: %s" % (path, error), flush=True)
            continue
        if state["seed"] != seed:
            raise SystemExit("%s belongs to --seed %d, this run has --seed %d" % (path, state["seed"], seed))
        return state
    return None


# --- the job ---


def train(options, environment, life):
    group = join(environment, options)
    state = None
    if environment.rank == 0 and options.checkpoint_dir:
        state = newest_checkpoint(options.checkpoint_dir, options.seed)
    # Rank 0 says where to go on from, so that all ranks agree whatever each of them can read.
    state = group.broadcast(state)
    first_step, weights, loss = 1, [0.0] * FEATURES, math.nan
    if state is not None:
        first_step = state["step"] + 1
        weights = [float.fromhex(w) for w in state["weights"]]
        loss = float.fromhex(state["loss"])
        life.write("resume", step=state["step"])
        if environment.rank == 0:
            print("resumed from the checkpoint of step %d" % state["step"], flush=True)

    saves = 0
    for step in range(first_step, options.steps + 1):
        totals = shard_gradient(weights, options.seed, step, environment)
        time.sleep(options.step_time)
        totals = group.all_reduce(step, totals)
        loss = totals[0] * QUANTUM / BATCH
        weights = [w - LEARNING_RATE * total * QUANTUM / BATCH for w, total in zip(weights, totals[1:])]
        life.write("step", step=step)
        wanted = False
        if steadfast:
            steadfast.progress(step)
            wanted = bool(options.checkpoint_dir) and steadfast.should_checkpoint()
        if environment.rank == 0 and (step % options.log_every == 0 or step == options.steps):
            print("step %d/%d loss %.6f" % (step, options.steps, loss), flush=True)
        due = options.checkpoint_dir and (step % options.checkpoint_every == 0 or step == options.steps)
        if environment.rank == 0 and (due or wanted):
            time.sleep(options.save_time if saves >= options.quick_saves else 0)
            saves += 1
            save_checkpoint(options.checkpoint_dir, step, options.seed, weights, loss)
            life.write("save", step=step)
        if wanted:
            # The other ranks have nothing to save; each says that its part is done.
            steadfast.checkpoint_done(step, checkpoint_path(options.checkpoint_dir, step))

    if environment.rank == 0:
        done = max(first_step - 1, options.steps)
        print("finished after step %d: loss %.6f (%s)" % (done, loss, loss.hex()), flush=True)
    return loss


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200, help="steps to train for (default: %(default)s)")
    parser.add_argument("--step-time", type=float, default=0.05, help="least seconds per step (default: %(default)s)")
    parser.add_argument("--checkpoint-dir", help="where to save, and to resume from; all off when absent")
    parser.add_argument("--checkpoint-every", type=int, default=10, help="steps between saves (default: %(default)s)")
    parser.add_argument("--save-time", type=float, default=0, help="least seconds per save (default: %(default)s)")
    parser.add_argument("--quick-saves", type=int, default=0, help="the first saves that take no longer than they must")
    parser.add_argument("--seed", type=int, default=1, help="selects the training data (default: %(default)s)")
    parser.add_argument("--log-every", type=int, default=10, help="steps between lines printed (default: %(default)s)")
    parser.add_argument("--json-log", help="append a record of every rank's life to this file, as JSON lines")
    parser.add_argument(
        "--beat", type=float, metavar="SECONDS", help="also record every so many seconds that the rank lives"
    )
    parser.add_argument(
        "--connect-timeout", type=float, default=300, help="seconds to wait for all ranks (default: %(default)s)"
    )
    parser.add_argument("--timeout", type=float, default=1800, help="seconds to wait in a step (default: %(default)s)")
    options = parser.parse_args()
    if options.checkpoint_every < 1 or options.log_every < 1:
        parser.error("--checkpoint-every and --log-every must be at least 1")
    return options


def main():
    options = parse_options()
    environment = Environment(os.environ)
    life = LifeLog(options.json_log, environment)
    life.write("start")
    if options.beat:
        life.beat(options.beat)
    try:
        loss = train(options, environment, life)
    except PeerLost as error:
        life.write("end", status="failed", reason=str(error))
        print("rank %d: %s" % (environment.rank, error), file=sys.stderr, flush=True)
        return 1
    life.write("end", status="finished", loss=loss.hex())
    return 0


if __name__ == "__main__":
    sys.exit(main())
