// SPDX-License-Identifier: Apache-2.0
//! What the keeper and the agent say to each other, as JSON packets over their socket pair.
//!
//! Every request may be repeated: an agent that was respawned does not know what its predecessor still sent.

use std::ffi::OsString;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use steadfast_process::exit::Exit;

/// The variable that every process of a job inherits: the tokens of all keepers above it, separated by commas. A job
/// may run inside another one.
pub(crate) const MARK: &str = "STEADFAST_KEEPER";

/// From the agent to the keeper.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Request {
    /// The agent is well. Its absence makes the keeper replace it.
    Alive,
    /// The agent has taken over everything that the welcome told it.
    InCharge,
    /// Start all workers of a generation on this node. Descriptors that come along are held until the generation has
    /// ended: they reserve its ports.
    Start(StartRequest),
    /// End every process of the job on this node: `first_signal`, then SIGKILL when the grace is over.
    Stop(StopRequest),
    /// A signal that asks for the end is being taken care of, but the workers are asked for a checkpoint first. When this
    /// time is over and no stop has come, the keeper stops them by itself.
    Postpone {
        /// Milliseconds from now.
        within_ms: u64,
    },
    /// Start a process that the job needs on this node beside its workers. Comes with at most one descriptor: what gets
    /// its output. Answered by [`Notice::Companion`], whether it was started now, before or not at all.
    StartCompanion(CompanionRequest),
    /// End that process: SIGTERM, then SIGKILL when the grace is over.
    StopCompanion {
        /// Milliseconds until SIGKILL; 0 kills at once.
        grace_ms: u64,
    },
    /// Every exit record up to this number was dealt with.
    Acknowledge {
        /// [`ExitRecord::sequence`].
        sequence: u64,
    },
    /// The output of this generation has been read to its end: its pipes can go.
    Release {
        /// The generation.
        generation: u64,
    },
    /// How long the workers may live without a further word; see [`super::fence`]. Of the lease the newest word counts;
    /// within a generation the longest witness window and the newest step stand.
    Fence {
        /// Until when this node's lease surely holds, on the monotonic clock.
        lease_until_ns: u64,
        /// Another number than before when leases were lost in between: a start that was decided before is refused then.
        tenure: i64,
        /// The generation of the newest plan, of which the window speaks; it need not have been started yet.
        generation: u64,
        /// For how long a synchronised step shows that nobody has gone on without this node, in milliseconds; 0 when the
        /// lease alone decides.
        witness_ms: u64,
        /// The newest synchronised step, if one was seen.
        progress: Option<Progress>,
    },
    /// A probe of the agent: it can sleep in the kernel beyond SIGKILL. It is not the job's, and nothing waits for it.
    Probe {
        /// Its process id.
        pid: i32,
    },
    /// The job is over: clean up and exit with this code.
    Finish {
        /// Exit code of `steadfast` itself.
        exit_code: u8,
    },
}

/// The newest step that all ranks of this node whose output tells steps have reached.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Progress {
    /// The generation.
    pub(crate) generation: u64,
    /// When it was reached at the earliest, on the monotonic clock: when its output was last known not to be there yet.
    pub(crate) at_ns: u64,
    /// The step.
    pub(crate) step: u64,
    /// The local ranks whose output tells steps: what the keeper sees by itself counts only when all of them get on.
    pub(crate) local_ranks: Vec<u32>,
}

/// The workers of one generation on this node.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct StartRequest {
    /// The generation; must be greater than any started before.
    pub(crate) generation: u64,
    /// The tenure in which that was decided; see `Request::Fence`. Without a fence it is not looked at.
    pub(crate) tenure: i64,
    /// One entry per worker.
    pub(crate) workers: Vec<WorkerRequest>,
}

/// One worker to start.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct WorkerRequest {
    /// Rank in the whole job.
    pub(crate) rank: u32,
    /// Local rank, unique on the node.
    pub(crate) local_rank: u32,
    /// File to execute.
    pub(crate) program: PathBuf,
    /// All arguments, the program's name first.
    pub(crate) arguments: Vec<OsString>,
    /// Variables set on top of the keeper's own environment.
    pub(crate) environment: Vec<(String, OsString)>,
    /// Working directory.
    pub(crate) directory: PathBuf,
    /// Whether the worker reads the keeper's standard input.
    pub(crate) inherit_stdin: bool,
    /// Limit of core dumps in bytes; the keeper's own limit when absent.
    pub(crate) core_limit: Option<u64>,
}

/// A process beside the workers. There is one at a time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CompanionRequest {
    /// Number of the launch. Nothing is started unless it is greater than any before and nothing runs any more.
    pub(crate) launch: u64,
    /// File to execute.
    pub(crate) program: PathBuf,
    /// All arguments, the program's name first.
    pub(crate) arguments: Vec<OsString>,
    /// Its whole environment, but for [`MARK`].
    pub(crate) environment: Vec<(OsString, OsString)>,
    /// Working directory.
    pub(crate) directory: PathBuf,
}

/// The process beside the workers as the keeper sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CompanionView {
    /// [`CompanionRequest::launch`] of the newest one.
    pub(crate) launch: u64,
    /// Process id; 0 when it could not be created.
    pub(crate) pid: i32,
    /// How it ended, if it has.
    pub(crate) exit: Option<Exit>,
    /// Why its program never ran, if it did not.
    pub(crate) spawn_error: Option<String>,
}

/// How to end the processes of a generation.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct StopRequest {
    /// The generation that shall end. Nothing happens when a newer one runs.
    pub(crate) generation: u64,
    /// First signal to the workers.
    pub(crate) first_signal: i32,
    /// Milliseconds until SIGKILL; 0 kills at once.
    pub(crate) grace_ms: u64,
}

/// From the keeper to the agent.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Notice {
    /// First notice to every agent. Comes with one descriptor: the memory file of the embedded store. The notices that
    /// follow at once repeat, in this order, the workers with their output, the fence if it has passed, the exits that
    /// were not acknowledged, and the stop if the newest generation has been stopped.
    Welcome(Welcome),
    /// A worker and its output. Comes with six descriptors: for stdout, then stderr, the worker's pipe (read end) and
    /// the spool (read end, write end).
    Attached(WorkerView),
    /// All workers of the generation exist (or have an exit record that says why not).
    Started {
        /// The generation.
        generation: u64,
        /// Why the request was turned down, if it was.
        refused: Option<String>,
    },
    /// A worker has ended; repeated to each new agent until acknowledged.
    Exited(ExitRecord),
    /// Nothing of the generation runs on this node any more.
    Stopped {
        /// The generation.
        generation: u64,
        /// What could not be ended.
        unkillable: Vec<Unkillable>,
    },
    /// The fence has passed: the workers of the generation are being killed, or were never started. `Stopped` follows.
    /// Repeated to each new agent, as long as no newer generation was started.
    Fenced {
        /// The generation; it can be started no more.
        generation: u64,
        /// When it was found, on the monotonic clock.
        at_ns: u64,
    },
    /// The process beside the workers was started, or has ended.
    Companion(CompanionView),
    /// The user or the scheduler wants the job to end.
    Interrupt {
        /// Number of the signal.
        signal: i32,
        /// Whether somebody insists: the keeper kills at once, whatever the agent does.
        insists: bool,
    },
    /// The scheduler's signal says that the job's time is nearly up. Told once; a new agent finds it in its welcome.
    TimeUp,
    /// A signal that is meant for the workers was passed on to them.
    Forwarded {
        /// Number of the signal.
        signal: i32,
    },
    /// The job was suspended (Ctrl-Z) and goes on: no silence from before counts.
    Resumed,
}

/// What a new agent must know.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Welcome {
    /// 1 for the first agent of the job.
    pub(crate) incarnation: u32,
    /// How the previous agent ended, in words.
    pub(crate) predecessor: Option<String>,
    /// When the keeper started, on the monotonic clock.
    pub(crate) started_ns: u64,
    /// The keeper's process id.
    pub(crate) keeper_pid: i32,
    /// Private directory of the job on this node.
    pub(crate) runtime_dir: PathBuf,
    /// This keeper's token in [`MARK`], in every process of the job on this node.
    pub(crate) token: String,
    /// The cgroup of the workers, where there is one.
    pub(crate) cgroup: Option<PathBuf>,
    /// Why there is no cgroup, in words.
    pub(crate) cgroup_reason: Option<String>,
    /// All workers of the newest generation, whether they live or not; empty before the first one.
    pub(crate) workers: Vec<WorkerView>,
    /// When the stop of the newest generation began, if it has, on the monotonic clock.
    pub(crate) stop_began_ns: Option<u64>,
    /// Signals by which somebody asked for the end of the job.
    pub(crate) interrupts: Vec<i32>,
    /// Whether the scheduler's signal has said that the job's time is nearly up.
    pub(crate) time_is_up: bool,
    /// The process beside the workers, if there ever was one.
    pub(crate) companion: Option<CompanionView>,
    /// Bytes of output that were dropped while there was no agent.
    pub(crate) dropped_bytes: u64,
}

/// A worker as the keeper sees it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct WorkerView {
    /// Its generation.
    pub(crate) generation: u64,
    /// Its rank in the whole job.
    pub(crate) rank: u32,
    /// Its local rank.
    pub(crate) local_rank: u32,
    /// Process id; 0 when it could not be created.
    pub(crate) pid: i32,
    /// When it was created, on the monotonic clock.
    pub(crate) started_ns: u64,
    /// How it ended, if it has.
    pub(crate) exit: Option<Exit>,
    /// When it was reaped, if it has ended, on the monotonic clock.
    pub(crate) ended_ns: Option<u64>,
    /// Why its program never ran, if it did not.
    pub(crate) spawn_error: Option<String>,
}

/// The end of a worker.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct ExitRecord {
    /// Number of the record, counted from 1 through the life of the keeper.
    pub(crate) sequence: u64,
    /// Its generation.
    pub(crate) generation: u64,
    /// Its rank in the whole job.
    pub(crate) rank: u32,
    /// Its local rank.
    pub(crate) local_rank: u32,
    /// Its process id; 0 when it could not be created.
    pub(crate) pid: i32,
    /// How it ended.
    pub(crate) exit: Exit,
    /// Why its program never ran, if it did not.
    pub(crate) spawn_error: Option<String>,
    /// Whether the keeper had already begun to stop this generation.
    pub(crate) while_stopping: bool,
    /// When it was reaped, on the monotonic clock.
    pub(crate) at_ns: u64,
}

/// A process that SIGKILL does not end: it sleeps uninterruptibly in the kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Unkillable {
    /// Process id.
    pub(crate) pid: i32,
    /// Name of the executable.
    pub(crate) name: String,
    /// State letter, normally `D`.
    pub(crate) state: char,
    /// The kernel function in which it sleeps, if known.
    pub(crate) waits_in: Option<String>,
    /// Local rank of the worker that it is, or in whose session it runs.
    pub(crate) local_rank: Option<u32>,
}
