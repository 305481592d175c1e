#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that the example jobs keep their promises, with plain processes and no supervisor.

For each job: a run that loses a rank and is started again from its checkpoint ends with the very loss of a run that
was left alone; the other ranks notice and fail; a damaged checkpoint is passed over; no rank gets more than one step
ahead of another, also while one is stopped.
"""

import collections
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
DEADLINE_SECONDS = 120


class Failure(Exception):
    """A promise that was not kept."""


class Job:
    """One start of an example with all its ranks."""

    def __init__(self, python, script, directory, ranks, restart_count, arguments):
        self.directory = directory
        self._restart_count = restart_count
        os.makedirs(directory, exist_ok=True)
        port = free_port()
        self.workers = []
        with open(os.path.join(directory, "output-%d.log" % restart_count), "wb") as output:
            for rank in range(ranks):
                environment = dict(
                    os.environ,
                    RANK=str(rank),
                    LOCAL_RANK=str(rank),
                    WORLD_SIZE=str(ranks),
                    MASTER_ADDR="127.0.0.1",
                    MASTER_PORT=str(port),
                    TORCHELASTIC_RESTART_COUNT=str(restart_count),
                )
                command = [python, "-u", os.path.join(HERE, script), *arguments]
                command += ["--json-log", self._log_path(), "--checkpoint-dir", os.path.join(directory, "checkpoints")]
                self.workers.append(subprocess.Popen(command, env=environment, stdout=output, stderr=output))

    def _log_path(self):
        return os.path.join(self.directory, "life.jsonl")

    def records(self):
        if not os.path.exists(self._log_path()):
            return []
        with open(self._log_path()) as file:
            records = [json.loads(line) for line in file if line.endswith("\n")]
        return [record for record in records if record["restart_count"] == self._restart_count]

    def output(self):
        with open(os.path.join(self.directory, "output-%d.log" % self._restart_count), errors="replace") as file:
            return file.read()

    def wait_for(self, what, condition):
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not condition():
            if time.monotonic() > deadline:
                raise Failure("gave up waiting for %s; output so far:\n%s" % (what, self.output()))
            time.sleep(0.02)

    def wait(self):
        self.wait_for("all ranks to end", lambda: all(worker.poll() is not None for worker in self.workers))
        return [worker.returncode for worker in self.workers]

    def finish(self):
        """Waits for success; returns the final loss, on which all ranks have to agree."""
        codes = self.wait()
        losses = {record.get("loss") for record in self.records() if record["event"] == "end"}
        if any(codes) or len(losses) != 1:
            raise Failure("exit codes %s, final losses %s; output:\n%s" % (codes, losses, self.output()))
        return losses.pop()

    def kill_all(self):
        for worker in self.workers:
            worker.kill()
            worker.wait()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def saved(job):
    return [record["step"] for record in job.records() if record["event"] == "save"]


def check_lockstep(records):
    reached = collections.defaultdict(int)
    ranks = {record["rank"] for record in records}
    for record in sorted(records, key=lambda record: record["monotonic_ns"]):
        if record["event"] == "resume":
            reached[record["rank"]] = record["step"]
        if record["event"] != "step":
            continue
        reached[record["rank"]] = record["step"]
        # A rank's record follows its all-reduce, so another that took part in it can be two records behind.
        behind = min(reached[rank] for rank in ranks)
        if record["step"] > behind + 2:
            raise Failure("rank %d was at step %d while another was at %d" % (record["rank"], record["step"], behind))


def check(python, script, directory, ranks, running):
    def start(name, restart_count, step_time):
        arguments = ["--steps", "60", "--checkpoint-every", "5", "--step-time", str(step_time)]
        job = Job(python, script, os.path.join(directory, name), ranks, restart_count, arguments)
        running.append(job)
        return job

    expected = start("undisturbed", 0, 0).finish()

    job = start("disturbed", 0, 0.05)
    job.wait_for("a few checkpoints", lambda: len(saved(job)) >= 3)
    stopped = job.workers[0 if ranks < 3 else 2]
    stopped.send_signal(signal.SIGSTOP)
    time.sleep(0.5)  # gives the others the time to run ahead, which they must not use
    stopped.send_signal(signal.SIGCONT)
    before = len(saved(job))
    job.wait_for("steps after the stop", lambda: len(saved(job)) > before)
    job.workers[-1].kill()
    codes = job.wait()
    if codes[-1] != -signal.SIGKILL or any(code != 1 for code in codes[:-1]):
        raise Failure("exit codes %s after the last rank was killed; output:\n%s" % (codes, job.output()))
    check_lockstep(job.records())

    newest = sorted(os.listdir(os.path.join(job.directory, "checkpoints")))[-1]
    damaged = os.path.join(job.directory, "checkpoints", newest)
    with open(damaged, "r+b") as file:
        file.truncate(os.path.getsize(damaged) // 2)
    job = start("disturbed", 1, 0)
    loss = job.finish()
    check_lockstep(job.records())
    resumed = {record["step"] for record in job.records() if record["event"] == "resume"}
    if len(resumed) != 1 or "passing over" not in job.output():
        raise Failure("resumed at %s from a directory with a damaged checkpoint; output:\n%s" % (resumed, job.output()))
    if loss != expected:
        raise Failure("final loss %s after a restart at step %s, %s without one" % (loss, resumed, expected))
    what = "%d ranks, one killed, resumed at step %d, final loss %s as without a fault"
    print("%s: %s" % (script, what % (ranks, resumed.pop(), loss)), flush=True)


def python_with_torch():
    for python in (sys.executable, "/usr/bin/python3"):
        probe = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"
        if os.path.exists(python) and subprocess.run([python, "-c", probe]).returncode == 0:
            return python
    return None


def main():
    jobs = [(sys.executable, "train_toy.py", 2), (sys.executable, "train_toy.py", 4)]
    torch = python_with_torch()
    if torch is None:
        print("train_ddp.py: left out, no Python with PyTorch was found (Debian: python3-torch)")
    else:
        jobs += [(torch, "train_ddp.py", 2), (torch, "train_ddp.py", 3)]
    directory = tempfile.mkdtemp(prefix="steadfast-examples-")
    running = []
    try:
        for number, (python, script, ranks) in enumerate(jobs):
            check(python, script, os.path.join(directory, str(number)), ranks, running)
    except Failure as failure:
        print("FAILED: %s" % failure, file=sys.stderr)
        return 1
    finally:
        for job in running:
            job.kill_all()
        shutil.rmtree(directory)
    return 0


if __name__ == "__main__":
    sys.exit(main())
