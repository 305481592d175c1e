# SPDX-License-Identifier: Apache-2.0
"""Writes a whole checkpoint of each layout into DIR/<layout>/, as the framework would.

Files of torch.save are made by PyTorch itself. The metadata of distributed checkpoints is pickled from classes of the same
names and fields as those of PyTorch 2; safetensors, Orbax and JSON files follow their documented formats.
"""

import argparse
import dataclasses
import json
import os
import pickle
import struct
import sys
import types
from typing import Any, Optional

import torch

WORLD = 2


def stand_in(name):
    module = types.ModuleType(name)
    sys.modules[name] = module
    return module


METADATA = stand_in("torch.distributed.checkpoint.metadata")
FILESYSTEM = stand_in("torch.distributed.checkpoint.filesystem")


def belongs_to(module):
    def place(found):
        found.__module__ = module.__name__
        setattr(module, found.__name__, found)
        return found

    return place


@belongs_to(METADATA)
@dataclasses.dataclass(frozen=True)
class MetadataIndex:
    fqn: str
    offset: Optional[torch.Size] = None
    index: Optional[int] = None


@belongs_to(METADATA)
@dataclasses.dataclass
class BytesStorageMetadata:
    pass


@belongs_to(METADATA)
@dataclasses.dataclass
class Metadata:
    state_dict_metadata: dict
    planner_data: Any = None
    storage_data: Any = None


@belongs_to(FILESYSTEM)
@dataclasses.dataclass
class _StorageInfo:
    relative_path: str
    offset: int
    length: int


def save(value, *path):
    path = os.path.join(*path)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    torch.save(value, path)


def text(words, *path):
    path = os.path.join(*path)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as file:
        file.write(words)


def tensor():
    return torch.rand(3000)


def distributed(directory, ranks=WORLD):
    """What torch.distributed.checkpoint.save leaves behind."""
    os.makedirs(directory, exist_ok=True)
    storage = {}
    for rank in range(ranks):
        name = "__%d_0.distcp" % rank
        with open(os.path.join(directory, name), "wb") as file:
            for part in ("weight", "moment"):
                begin = file.tell()
                torch.save(tensor(), file)
                index = MetadataIndex("layer.%s" % part, torch.Size([3000 * rank]), rank)
                storage[index] = _StorageInfo(name, begin, file.tell() - begin)
    known = {"layer.weight": BytesStorageMetadata(), "layer.moment": BytesStorageMetadata()}
    with open(os.path.join(directory, ".metadata"), "wb") as file:
        pickle.dump(Metadata(known, known, storage), file)


def safetensors(*path):
    values = [tensor(), tensor()]
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for number, value in enumerate(values):
        header["layer.%d" % number] = {"dtype": "F32", "shape": [3000], "data_offsets": [at, at + 12000]}
        at += 12000
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)
    with open(os.path.join(*path), "wb") as file:
        file.write(struct.pack("<Q", len(encoded)) + encoded)
        for value in values:
            file.write(value.numpy().tobytes())


def dcp(root):
    distributed(os.path.join(root, "step-100"))


def torch_files(root):
    save({"model": tensor(), "step": 100}, root, "ckpt_100.pt")


def megatron_arguments(**more):
    return argparse.Namespace(world_size=4, tensor_model_parallel_size=2, pipeline_model_parallel_size=1, **more)


def megatron(root):
    directory = os.path.join(root, "iter_0000100")
    distributed(directory)
    save({"args": megatron_arguments(), "iteration": 100}, directory, "common.pt")
    text('{"sharded_backend": "torch_dist", "sharded_backend_version": 1, "common_backend": "torch"}', directory, "metadata.json")
    text("100", root, "latest_checkpointed_iteration.txt")


def megatron_legacy(root):
    directory = os.path.join(root, "iter_0000100")
    arguments = megatron_arguments(use_distributed_optimizer=True)
    for rank in range(2):
        place = os.path.join(directory, "mp_rank_%02d" % rank)
        save({"args": arguments, "model": tensor(), "iteration": 100}, place, "model_optim_rng.pt")
        save({"param_state": tensor()}, place, "distrib_optim.pt")
    text("100", root, "latest_checkpointed_iteration.txt")


def deepspeed(root):
    directory = os.path.join(root, "global_step100")
    state = {"module": tensor(), "optimizer": None, "dp_world_size": WORLD, "mp_world_size": 1, "global_steps": 100}
    save(state, directory, "mp_rank_00_model_states.pt")
    for rank in range(WORLD):
        save({"optimizer_state_dict": tensor()}, directory, "bf16_zero_pp_rank_%d_mp_rank_00_optim_states.pt" % rank)
    text("global_step100", root, "latest")


def huggingface(root):
    directory = os.path.join(root, "checkpoint-100")
    os.makedirs(directory)
    shards = ["model-0000%d-of-00002.safetensors" % shard for shard in (1, 2)]
    for shard in shards:
        safetensors(directory, shard)
    weights = {"a.weight": shards[0], "b.weight": shards[1]}
    text(json.dumps({"metadata": {"total_size": 48000}, "weight_map": weights}), directory, "model.safetensors.index.json")
    for name in ("optimizer.pt", "scheduler.pt", "training_args.bin", "rng_state_0.pth", "rng_state_1.pth"):
        save({"state": tensor()}, directory, name)
    text('{"model_type": "llama"}', directory, "config.json")
    text('{"global_step": 100, "log_history": []}', directory, "trainer_state.json")


def lightning(root):
    save({"state_dict": tensor(), "global_step": 100}, root, "epoch=1-step=100.ckpt")


def lightning_sharded(root):
    directory = os.path.join(root, "epoch=1-step=100.ckpt")
    distributed(directory)
    save({"global_step": 100}, directory, "meta.pt")


def orbax(root):
    directory = os.path.join(root, "100")
    text('{"item_handlers": {"default": "PyTreeCheckpointHandler"}, "commit_timestamp_nsecs": 1}', directory, "_CHECKPOINT_METADATA")
    text('{"tree_metadata": {}, "use_zarr3": false}', directory, "default", "_METADATA")
    for place in [("default",)] + [("default", "ocdbt.process_%d" % process) for process in range(WORLD)]:
        text("\x0c" + "manifest" * 8, directory, *place, "manifest.ocdbt")
        text("data" * 3000, directory, *place, "d", "0123abcd")


def nemo(root):
    directory = os.path.join(root, "llama--val_loss=2.31-step=100-consumed_samples=6400.0")
    weights = os.path.join(directory, "weights")
    distributed(weights)
    save({"args": megatron_arguments()}, weights, "common.pt")
    text('{"sharded_backend": "torch_dist"}', weights, "metadata.json")
    text("{}", directory, "context", "io.json")
    text("seed: 1", directory, "context", "model.yaml")


LAYOUTS = [dcp, torch_files, megatron, megatron_legacy, deepspeed, huggingface, lightning, lightning_sharded, orbax, nemo]

if __name__ == "__main__":
    torch.manual_seed(1)
    for layout in LAYOUTS:
        made = os.path.join(sys.argv[1], layout.__name__)
        os.makedirs(made)
        layout(made)
