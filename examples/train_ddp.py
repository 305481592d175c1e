#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A small PyTorch DistributedDataParallel job on the CPU (gloo backend, env:// rendezvous, PyTorch 1.13 or newer).

The batch of a step depends on the seed and the step alone, and each rank takes its share of it. For a given number of
ranks the loss after step N is therefore the same, bit for bit, however often the job was restarted from a checkpoint.
(With another number of ranks it differs in the last digits: floating-point sums depend on how they are split.)

Checkpoints are written by rank 0 and read by all ranks: with several machines the directory has to be a shared one.
"""

import argparse
import datetime
import json
import os
import sys
import time
import zipfile

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

try:
    import steadfast  # the supervisor brings it along
except ImportError:
    steadfast = None

FEATURES = 16
BATCH = 48
CHECKPOINTS_KEPT = 3


class LifeLog:
    """Appends one JSON line per event to a file that all ranks share."""

    def __init__(self, path):
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        self._file = os.open(path, flags, 0o644) if path else None
        self._fixed = {
            "restart_count": int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")),
            "generation": int(os.environ.get("STEADFAST_GENERATION", "0")),
            "node": os.environ.get("STEADFAST_NODE", ""),
            "rank": int(os.environ["RANK"]),
            "local_rank": int(os.environ.get("LOCAL_RANK", os.environ["RANK"])),
            "world_size": int(os.environ["WORLD_SIZE"]),
            "pid": os.getpid(),
        }

    def write(self, event, **fields):
        if self._file is None:
            return
        record = {"event": event, **self._fixed, "monotonic_ns": time.monotonic_ns(), **fields}
        # A single write to a file opened for appending: lines of several ranks do not mix.
        os.write(self._file, (json.dumps(record) + "\n").encode())


# --- checkpoints ---


def checkpoint_path(directory, step):
    return os.path.join(directory, "step-%08d.pt" % step)


def checkpoint_steps(directory):
    """Steps of the checkpoints in the directory, newest first."""
    names = [name for name in os.listdir(directory) if name.startswith("step-") and name.endswith(".pt")]
    steps = [name[len("step-") : -len(".pt")] for name in names]
    return sorted((int(step) for step in steps if step.isdigit()), reverse=True)


def save_checkpoint(directory, state):
    """Writes a checkpoint that is there whole or not at all, then deletes all but the newest few."""
    path = checkpoint_path(directory, state["step"])
    temporary = "%s.%d.tmp" % (path, os.getpid())
    with open(temporary, "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    os.rename(temporary, path)
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
    for old in checkpoint_steps(directory)[CHECKPOINTS_KEPT:]:
        if old < state["step"]:
            os.unlink(checkpoint_path(directory, old))


def read_checkpoint(path):
    # torch.save writes a zip file; torch.load does not look at its checksums.
    with zipfile.ZipFile(path) as archive:
        damaged = archive.testzip()
    if damaged is not None:
        raise ValueError("the checksum of %s does not fit its contents" % damaged)
    return torch.load(path, map_location="cpu")


def newest_checkpoint(directory):
    """Step of the newest checkpoint that can be read whole, or None; says which ones it passed over."""
    os.makedirs(directory, exist_ok=True)
    for step in checkpoint_steps(directory):
        path = checkpoint_path(directory, step)
        try:
            read_checkpoint(path)
        except Exception as error:  # a damaged file makes torch.load raise nearly anything
            print("passing over checkpoint %s: %s" % (path, str(error).splitlines()[0]), flush=True)
            continue
        return step
    return None


# --- the job ---


def shard(seed, step):
    """This rank's share of the batch of a step."""
    source = torch.Generator().manual_seed(seed * 1_000_003 + step)
    features = torch.randn(BATCH, FEATURES, generator=source)
    targets = torch.tanh(features.sum(dim=1, keepdim=True)) + 0.1 * torch.randn(BATCH, 1, generator=source)
    return features[dist.get_rank() :: dist.get_world_size()], targets[dist.get_rank() :: dist.get_world_size()]


def build_model(seed):
    torch.manual_seed(seed)
    layers = (torch.nn.Linear(FEATURES, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    return DistributedDataParallel(torch.nn.Sequential(*layers))


def backward(model, seed, step):
    """Leaves the gradients of a step in the model and returns the loss over the whole batch."""
    features, targets = shard(seed, step)
    loss = torch.nn.functional.mse_loss(model(features), targets)
    loss.backward()
    total = loss.detach().clone()
    dist.all_reduce(total)
    return (total / dist.get_world_size()).item()


def resume(options, model, optimizer):
    """Loads the newest checkpoint that rank 0 finds; returns its step and loss."""
    choice = [newest_checkpoint(options.checkpoint_dir) if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(choice, src=0)
    if choice[0] is None:
        return 0, float("nan")
    state = read_checkpoint(checkpoint_path(options.checkpoint_dir, choice[0]))
    model.module.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    if dist.get_rank() == 0:
        print("resumed from the checkpoint of step %d" % state["step"], flush=True)
    return state["step"], state["loss"]


def train(options, life):
    model = build_model(options.seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)

    # DDP sorts its buckets anew after the first step, which changes in what order numbers are added up. A step that
    # is thrown away gets this done before the first real one, so that a resumed run adds in the same order.
    for _ in range(2):
        backward(model, options.seed, 0)
        optimizer.zero_grad()

    done, loss = 0, float("nan")
    if options.checkpoint_dir:
        done, loss = resume(options, model, optimizer)
    if done:
        life.write("resume", step=done)

    for step in range(done + 1, options.steps + 1):
        time.sleep(options.step_time)
        optimizer.zero_grad()
        loss = backward(model, options.seed, step)
        optimizer.step()
        life.write("step", step=step)
        wanted = False
        if steadfast:
            steadfast.progress(step)
            wanted = bool(options.checkpoint_dir) and steadfast.should_checkpoint()
        is_first = dist.get_rank() == 0
        if is_first and (step % options.log_every == 0 or step == options.steps):
            print("step %d/%d loss %.6f" % (step, options.steps, loss), flush=True)
        due = options.checkpoint_dir and (step % options.checkpoint_every == 0 or step == options.steps)
        if is_first and (due or wanted):
            state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}
            save_checkpoint(options.checkpoint_dir, {"step": step, "loss": loss, **state})
            life.write("save", step=step)
        if wanted:
            # The other ranks have nothing to save; each says that its part is done.
            steadfast.checkpoint_done(step, checkpoint_path(options.checkpoint_dir, step))

    if dist.get_rank() == 0:
        print("finished after step %d: loss %.6f (%s)" % (max(done, options.steps), loss, loss.hex()), flush=True)
    return loss


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=100, help="steps to train for (default: %(default)s)")
    parser.add_argument("--step-time", type=float, default=0.05, help="least seconds per step (default: %(default)s)")
    parser.add_argument("--checkpoint-dir", help="where to save, and to resume from; all off when absent")
    parser.add_argument("--checkpoint-every", type=int, default=10, help="steps between saves (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="selects data and first weights (default: %(default)s)")
    parser.add_argument("--log-every", type=int, default=10, help="steps between lines printed (default: %(default)s)")
    parser.add_argument("--json-log", help="append a record of every rank's life to this file, as JSON lines")
    parser.add_argument("--timeout", type=float, default=1800, help="seconds to wait for a rank (default: %(default)s)")
    options = parser.parse_args()
    if options.checkpoint_every < 1 or options.log_every < 1:
        parser.error("--checkpoint-every and --log-every must be at least 1")
    return options


def main():
    options = parse_options()
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "1"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "29500")):
        os.environ.setdefault(name, value)
    # A model this small gains nothing from threads, and several ranks share the machine.
    torch.set_num_threads(1)
    life = LifeLog(options.json_log)
    life.write("start")
    try:
        dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=options.timeout))
        loss = train(options, life)
        dist.barrier()
    except RuntimeError as error:  # gloo's way to say that a rank is gone
        life.write("end", status="failed", reason=str(error))
        raise
    dist.destroy_process_group()
    life.write("end", status="finished", loss=loss.hex())
    return 0


if __name__ == "__main__":
    sys.exit(main())
