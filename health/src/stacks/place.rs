// SPDX-License-Identifier: Apache-2.0
//! What a thread is doing, by the names on its stack.

use serde::{Deserialize, Serialize};

use super::{StackFrame, ThreadStack};

/// What a thread is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// In a collective operation, or meeting the others.
    Collective,
    /// Getting its next batch.
    Data,
    /// Saving or loading a checkpoint.
    Checkpoint,
    /// Something that its names do not tell.
    Other,
}

/// Names of functions that are, or contain, an operation of several ranks: those of PyTorch's and MPI's interfaces, and
/// what programs of their own are wont to call them.
const COLLECTIVES: [&str; 28] = [
    "all_reduce",
    "allreduce",
    "all_gather",
    "allgather",
    "all_to_all",
    "alltoall",
    "reduce_scatter",
    "broadcast",
    "bcast",
    "barrier",
    "gather_object",
    "scatter_object",
    "irecv",
    "isend",
    "recv",
    "send",
    "wait_tensor",
    "init_process_group",
    "rendezvous",
    "new_group",
    "destroy_process_group",
    "accept",
    "connect",
    "join_group",
    "store_based_barrier",
    "reduce_gradients",
    "sync_gradients",
    "wait_for_everyone",
];
/// Files in which only operations of several ranks are.
const COLLECTIVE_FILES: [&str; 6] = [
    "torch/distributed/distributed_c10d.py",
    "torch/distributed/rendezvous.py",
    "torch/distributed/_functional_collectives.py",
    "torch/nn/parallel/distributed.py",
    "horovod/torch/mpi_ops.py",
    "deepspeed/comm/comm.py",
];
/// Parts of names of files and functions that bring data.
const DATA: [&str; 7] = [
    "dataloader",
    "data_loader",
    "dataset",
    "next_batch",
    "get_batch",
    "load_batch",
    "torch/utils/data",
];
const CHECKPOINTS: [&str; 6] = [
    "save_checkpoint",
    "load_checkpoint",
    "torch/serialization.py",
    "torch/distributed/checkpoint",
    "checkpointing.py",
    "safetensors",
];

/// The innermost call that says anything decides: a collective inside of a data loader is one.
pub(super) fn of(thread: &ThreadStack) -> Place {
    let found = thread.frames.iter().find_map(of_frame);
    found.unwrap_or(Place::Other)
}

fn of_frame(frame: &StackFrame) -> Option<Place> {
    let function = frame.function.to_ascii_lowercase();
    let name = function.trim_start_matches('_');
    let file = frame.file.to_ascii_lowercase();
    let contains = |parts: &[&str]| {
        parts
            .iter()
            .any(|part| function.contains(part) || file.contains(part))
    };
    if COLLECTIVES.iter().any(|&collective| {
        name == collective
            || name
                .strip_prefix(collective)
                .is_some_and(|rest| rest.starts_with('_'))
    }) || COLLECTIVE_FILES.iter().any(|part| file.ends_with(part))
    {
        return Some(Place::Collective);
    }
    if contains(&CHECKPOINTS) {
        return Some(Place::Checkpoint);
    }
    contains(&DATA).then_some(Place::Data)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(frames: &[(&str, &str)]) -> Place {
        let frames = frames.iter().map(|&(function, file)| StackFrame {
            file: file.to_owned(),
            line: None,
            function: function.to_owned(),
        });
        of(&ThreadStack {
            thread: String::new(),
            frames: frames.collect(),
        })
    }

    #[test]
    fn the_innermost_name_that_tells_anything_decides() {
        let c10d = "/x/torch/distributed/distributed_c10d.py";
        let loader = "/x/torch/utils/data/dataloader.py";
        assert_eq!(
            place(&[("wrapper", c10d), ("train", "/t.py")]),
            Place::Collective
        );
        assert_eq!(
            place(&[("receive", "/t.py"), ("all_reduce", "/t.py")]),
            Place::Collective
        );
        assert_eq!(place(&[("_recv", "/t.py")]), Place::Collective);
        assert_eq!(place(&[("accept_peers", "/t.py")]), Place::Collective);
        assert_eq!(
            place(&[("wait", "/threading.py"), ("_next_data", loader)]),
            Place::Data
        );
        assert_eq!(
            place(&[("barrier", "/t.py"), ("__next__", loader)]),
            Place::Collective
        );
        assert_eq!(
            place(&[("save_checkpoint", "/t.py"), ("train", "/t.py")]),
            Place::Checkpoint
        );
        assert_eq!(
            place(&[("receiver_loop", "/t.py"), ("train", "/t.py")]),
            Place::Other
        );
        assert_eq!(place(&[]), Place::Other);
    }
}
