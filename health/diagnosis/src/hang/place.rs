// SPDX-License-Identifier: Apache-2.0
//! Where in the program a stack is.

/// What a rank does there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Place {
    /// It waits for other ranks.
    Collective,
    /// It waits for its data.
    Data,
    /// It is in a file operation.
    Storage,
    /// It writes or reads a checkpoint.
    Checkpoint,
    /// It waits for its GPU.
    Gpu,
    /// Something else.
    Elsewhere,
}

const COLLECTIVE: [&str; 22] = [
    "all_reduce",
    "allreduce",
    "all_gather",
    "allgather",
    "reduce_scatter",
    "broadcast",
    "barrier",
    "all_to_all",
    "alltoall",
    "distributed_c10d",
    "ncclgroup",
    "nccl",
    "gloo",
    "c10d::",
    "workncclwait",
    "wait_for_work",
    "send_forward",
    "recv_forward",
    "recv_backward",
    "batch_isend_irecv",
    "p2p_communication",
    "horovod",
];
const DATA: [&str; 8] = [
    "dataloader",
    "_try_get_data",
    "_next_data",
    "data_iter",
    "get_batch",
    "__getitem__",
    "collate",
    "tf_data",
];
const STORAGE: [&str; 14] = [
    "nfs",
    "lustre",
    "ptlrpc",
    "fsync",
    "_io.",
    "os.stat",
    "os.open",
    "io.open",
    "posix_read",
    "pread",
    "pwrite",
    "readinto",
    "fuse",
    "mmap",
];
const CHECKPOINT: [&str; 7] = [
    "save_checkpoint",
    "torch.save",
    "serialization.py",
    "load_checkpoint",
    "save_state",
    "checkpoint",
    "dist_checkpointing",
];
const GPU: [&str; 6] = [
    "cudastreamsynchronize",
    "cuda.synchronize",
    "cudadevicesynchronize",
    "cueventsynchronize",
    "cudamemcpy",
    "synchronize (torch/cuda",
];

/// Where the innermost frames are that say anything.
pub(super) fn of(stack: &[String]) -> Place {
    for frame in stack.iter().take(6) {
        let frame = frame.to_ascii_lowercase();
        let is_in = |words: &[&str]| words.iter().any(|word| frame.contains(word));
        if is_in(&GPU) {
            return Place::Gpu;
        }
        if is_in(&COLLECTIVE) {
            return Place::Collective;
        }
        if is_in(&DATA) {
            return Place::Data;
        }
        if is_in(&STORAGE) {
            return Place::Storage;
        }
        if is_in(&CHECKPOINT) {
            return Place::Checkpoint;
        }
    }
    Place::Elsewhere
}
