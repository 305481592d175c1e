// SPDX-License-Identifier: Apache-2.0
//! The table of messages that tell what kind of failure it was. The first rule that fits applies.

use std::sync::LazyLock;

use regex::{Regex, RegexSet};
use steadfast_proto::v1::{FaultClass, FaultRole, Repeatability};

use FaultClass::{
    GpuHardware, GpuMemory, Hang, HostMemory, Link, Network, Numeric, Preempted, Program, Storage,
    Unknown,
};
use FaultRole::{Cause, Consequence};
use Repeatability::{Certain, MayDiffer};

/// What a message means.
#[derive(Debug)]
pub(super) struct Rule {
    pattern: &'static str,
    pub(super) class: FaultClass,
    pub(super) role: FaultRole,
    pub(super) repeatability: Repeatability,
    strength: Strength,
    /// What happened, in a few words.
    pub(super) words: &'static str,
}

/// How much a message says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Strength {
    /// Enough where it is the last word or the exception itself.
    Any,
    /// Enough even if other messages or an exception came after it.
    Strong,
}

const fn rule(
    pattern: &'static str,
    class: FaultClass,
    role: FaultRole,
    words: &'static str,
) -> Rule {
    Rule {
        pattern,
        class,
        role,
        repeatability: MayDiffer,
        strength: Strength::Any,
        words,
    }
}

const fn certain(pattern: &'static str, words: &'static str) -> Rule {
    Rule {
        pattern,
        class: Program,
        role: Cause,
        repeatability: Certain,
        strength: Strength::Any,
        words,
    }
}

const fn strong(pattern: &'static str, class: FaultClass, words: &'static str) -> Rule {
    Rule {
        pattern,
        class,
        role: Cause,
        repeatability: MayDiffer,
        strength: Strength::Strong,
        words,
    }
}

/// Causes that are printed before their consequences come first, so that they win within one message too.
const RULES: &[Rule] = &[
    // Memory and hardware of the GPU.
    strong(
        r"CUDA out of memory|OutOfMemoryError: (?:CUDA|HIP)|Cuda failure (?:\d+ )?'out of memory'|CUDA_ERROR_OUT_OF_MEMORY|CUBLAS_STATUS_ALLOC_FAILED",
        GpuMemory,
        "the GPU ran out of memory",
    ),
    strong(
        r"RESOURCE_EXHAUSTED: Out of memory",
        GpuMemory,
        "the GPU ran out of memory",
    ),
    strong(
        r"uncorrectable ECC error|CUDA_ERROR_ECC_UNCORRECTABLE",
        GpuHardware,
        "the GPU's memory has an uncorrectable error",
    ),
    strong(
        r"uncorrectable NVLink error|Invalid access of peer GPU memory over nvlink",
        Link,
        "the link between GPUs failed",
    ),
    strong(
        r"CUDA error: hardware stack error|fallen off the bus|Unable to determine the device handle for GPU",
        GpuHardware,
        "the GPU failed",
    ),
    strong(
        r"no CUDA-capable device is detected|CUDA error: system not yet initialized|Failed to initialize NVML: (?:Unknown Error|Driver/library)",
        GpuHardware,
        "the GPU is not usable",
    ),
    rule(
        r"CUDA-capable device\(s\) is/are busy or unavailable",
        GpuHardware,
        Cause,
        "the GPU is in use or unavailable",
    ),
    strong(
        r"CUDA error: device-side assert triggered|Assertion `.*` failed\.?$",
        Program,
        "an assertion in GPU code failed",
    ),
    rule(
        r"illegal memory access was encountered|unspecified launch failure|CUDA error: (?:misaligned address|an illegal instruction|unknown error)|CUBLAS_STATUS_|CUDNN_STATUS_",
        Unknown,
        Cause,
        "GPU code failed, by a fault in the program or in the GPU",
    ),
    certain(
        r"CUDA driver version is insufficient",
        "the CUDA driver is too old for the program",
    ),
    // Memory of the host.
    strong(
        r"^(?:\w+\.)*MemoryError\b|Cannot allocate memory|std::bad_alloc|[Dd]etected \d+ oom[-_]kill event|DefaultCPUAllocator: can't allocate memory",
        HostMemory,
        "the host ran out of memory",
    ),
    strong(
        r"DataLoader worker \(pid \d+\) is killed by signal: Killed",
        HostMemory,
        "a data-loading process was killed, most likely for lack of memory",
    ),
    strong(
        r"Unexpected bus error encountered in worker|DataLoader worker .* killed by signal: Bus error",
        HostMemory,
        "shared memory (/dev/shm) ran out",
    ),
    // Storage.
    strong(
        r"No space left on device|Disk quota exceeded",
        Storage,
        "the disk is full",
    ),
    strong(
        r"PytorchStreamWriter failed writing|inline_container\.cc.*unexpected pos \d+ vs \d+",
        Storage,
        "a checkpoint cannot be written: the disk may be full, or a quota used up",
    ),
    rule(
        r"\[Errno (?:5|30|107|108|116)\]|Stale file handle|Read-only file system|Input/output error",
        Storage,
        Cause,
        "the storage failed",
    ),
    rule(
        r"PytorchStreamReader failed|SafetensorError: Error while deserializing",
        Storage,
        Cause,
        "a checkpoint cannot be read",
    ),
    // Certain to recur.
    certain(
        r"^(?:\[?rank\s?\d+\]?:\s*)?(?:ModuleNotFoundError|ImportError)\b",
        "a module cannot be imported",
    ),
    certain(
        r"^(?:\[?rank\s?\d+\]?:\s*)?(?:SyntaxError|IndentationError|TabError)\b",
        "the program has a syntax error",
    ),
    certain(
        r"can't open file '.*': \[Errno (?:2|13|20)\]",
        "the script cannot be opened",
    ),
    certain(
        r"^\S+: error: (?:unrecognized arguments|the following arguments are required|argument |ambiguous option|invalid choice)",
        "the program does not accept its arguments",
    ),
    certain(r"[Nn]o module named \S+(?:$|;)", "a module was not found"),
    certain(
        r"command not found$|: not found$",
        "a command was not found",
    ),
    certain(
        r"error while loading shared libraries|cannot execute binary file|Exec format error",
        "the program cannot be loaded",
    ),
    // Preemption and numbers.
    rule(
        r"exiting program after receiving SIG\w+|DUE TO (?:PREEMPTION|TIME LIMIT|JOB REQUEUE)|this job is (?:preempted|timed-out)",
        Preempted,
        Cause,
        "the scheduler took the node back",
    ),
    rule(
        r"found (?:NaN|Inf) in local|Bad grad_norm detected|Loss became infinite or NaN|[Ll]oss is (?:nan|inf)\b",
        Numeric,
        Cause,
        "the training diverged",
    ),
    // The network, as a cause.
    rule(
        r"NET/IB\w* ?: ?(?:Got completion from peer .* with|Fatal error|Device \d+ marked as failed|\S+ async fatal event)",
        Network,
        Cause,
        "the network card or its link failed",
    ),
    rule(
        r"EADDRINUSE|[Aa]ddress already in use",
        Network,
        Cause,
        "a port was taken already",
    ),
    rule(
        r"Bootstrap : no socket interface found",
        Network,
        Cause,
        "no usable network interface",
    ),
    rule(
        r"Detected mismatch between collectives on ranks|ncclInvalidUsage|Message truncated : received",
        Program,
        Cause,
        "the ranks disagree about a collective operation",
    ),
    // What a fault elsewhere brings about.
    rule(
        r"watchdog got stuck for \d+ seconds|Heartbeat monitor timed out",
        Hang,
        Consequence,
        "it did not get on any more",
    ),
    rule(
        r"Watchdog caught collective operation timeout|timed out in blocking wait|NCCL operations have failed or timed out|watchdog thread terminated with exception|to (?:avoid data inconsistency|prevent inconsistency), we are taking|collective timeout from",
        Hang,
        Consequence,
        "a collective operation did not end in time",
    ),
    rule(
        r"NCCL communicator was aborted|ncclRemoteError|ncclSystemError|ncclInternalError|ncclUnhandledCudaError|NCCL WARN|NCCL error|failed to pass monitoredBarrier",
        Network,
        Consequence,
        "a collective operation failed, most likely because another worker did",
    ),
    rule(
        r"[Gg]loo connectFullMesh failed|gloo/transport/|Connection closed by peer|Connection reset by peer|Connection refused|Broken pipe|Socket closed|closed by remote peer|ConnectionResetError|BrokenPipeError|ConnectionRefusedError|ConnectionAbortedError|EOFError",
        Network,
        Consequence,
        "the connection to another worker was lost",
    ),
    rule(
        r"TCPStore|\[c10d\]|DistNetworkError|DistStoreError|DistBackendError|[Ff]ailed to recv, got 0 bytes|client socket has timed out|wait timeout after \d+ms, keys|seconds waiting for clients|[Rr]endezvous\w*Error",
        Network,
        Consequence,
        "the meeting point of the workers did not answer",
    ),
    rule(
        r"JAX distributed service detected fatal errors|heartbeat timeout\. This indicates that the remote task|tasks are unhealthy \(stopped sending heartbeats\)|CoordinationService",
        Network,
        Consequence,
        "another worker stopped answering",
    ),
    rule(
        r"RayActorError|ChildFailedError",
        Unknown,
        Consequence,
        "a process inside it failed",
    ),
    rule(
        r"Pin memory thread exited unexpectedly",
        Unknown,
        Consequence,
        "a helper thread was lost",
    ),
];

/// Lines that advise or repeat, and tell nothing.
const ADVICE: &str = r"might be caused by|CUDA_LAUNCH_BLOCKING|TORCH_USE_CUDA_DSA|For debugging consider|To enable traceback see";

static SET: LazyLock<Option<RegexSet>> =
    LazyLock::new(|| RegexSet::new(RULES.iter().map(|rule| rule.pattern)).ok());
static ADVISING: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(ADVICE).ok());

/// The first rule of at least this strength that fits `text`.
pub(super) fn first_match(text: &str, strength: Strength) -> Option<&'static Rule> {
    let found = SET.as_ref()?.matches(text);
    if !found.matched_any() {
        return None;
    }
    let rule = found
        .iter()
        .map(|index| &RULES[index])
        .find(|rule| strength == Strength::Any || rule.strength == strength)?;
    let advises = ADVISING
        .as_ref()
        .is_some_and(|advice| advice.is_match(text));
    // An exception's own message may end in advice: what stands before it still counts.
    (!advises || text.contains("Error")).then_some(rule)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_patterns_compile() {
        RegexSet::new(RULES.iter().map(|rule| rule.pattern)).unwrap();
        Regex::new(ADVICE).unwrap();
    }
}
