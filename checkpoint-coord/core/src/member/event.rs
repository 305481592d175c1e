// SPDX-License-Identifier: Apache-2.0
//! What a member is told, and what it wants done.

use std::sync::Arc;
use std::time::Duration;

use steadfast_proto::v1::Finding;

use crate::{
    AgentEndpoint, ChangeBatch, CheckpointReport, Generation, Incarnation, Instant, JobResult,
    JobSpec, KeyValue, Keys, LeaseId, LocalRank, Location, NodeName, Outcome, Plan, Revision,
    SaveMeans, SaveOrder, SaveOutcome, Transaction, WitnessReport, WorkerExit,
};

/// What a finding's `kind` can be, as far as the core cares.
pub mod kinds {
    /// A worker has ended with a non-zero code or by a signal.
    pub const WORKER_EXITED: &str = "worker.exited";
    /// A worker is on its way out but not yet reaped. Acted on only when it carries a signal or a non-zero exit code:
    /// without one it may be a worker that has finished its work.
    pub const WORKER_DYING: &str = "worker.dying";
    /// A worker could not be started.
    pub const WORKER_SPAWN_FAILED: &str = "worker.spawn_failed";
    /// What a worker that did not fail by itself had said before it was stopped, where that may explain the failure.
    pub const WORKER_SAID: &str = "worker.said";
    /// A worker survived SIGKILL.
    pub const WORKER_UNKILLABLE: &str = "worker.unkillable";
    /// A worker makes no progress and will not make any.
    pub const WORKER_HUNG: &str = "worker.hung";
    /// The loss is no number any more, or runs away, and the user wants the generation to end for that.
    pub const LOSS_BROKEN: &str = "loss.broken";
    /// The same, where it is only reported.
    pub const LOSS_SUSPECT: &str = "loss.suspect";
    /// Where to resume cannot be told, since checkpoints cannot be read. No worker was started.
    pub const CHECKPOINT_UNREADABLE: &str = "checkpoint.unreadable";
    /// A GPU that the job uses is lost, or must be reset before it can be used again.
    pub const GPU_FAULT: &str = "gpu.fault";
    /// A fault of the switches that connect GPUs. It takes out all nodes that hang on them.
    pub const SWITCH_FAULT: &str = "switch.fault";
    /// A look at the node has shown that it is unfit. It gets no ranks as long as that is so.
    pub const NODE_CHECK_FAILED: &str = "node.check_failed";
    /// A member of the generation is gone.
    pub const MEMBER_LOST: &str = "member.lost";
    /// The workers of a node were killed because nobody could say any more whether the generation goes on without them.
    pub const WORKER_FENCED: &str = "worker.fenced";
    /// The node must not be used any more, such as when one of its GPUs is gone.
    pub const NODE_UNFIT: &str = "node.unfit";
}

/// What a member must know beforehand.
#[derive(Debug, Clone)]
pub struct MemberSettings {
    /// The job's keys.
    pub keys: Keys,
    /// This node.
    pub node: NodeName,
    /// This life of the keeper.
    pub incarnation: Incarnation,
    /// Host name or address at which other nodes reach this one.
    pub address: String,
    /// Number of workers on this node, at least 1.
    pub slots: u32,
    /// What this member believes the job to be.
    pub spec: JobSpec,
    /// Time from the first signal to SIGKILL after a fault.
    pub restart_grace: Duration,
    /// Time from the first signal to SIGKILL when somebody asked for the stop.
    pub stop_grace: Duration,
    /// How long a checkpoint may take that is made before something which can wait for it.
    pub save_timeout: Duration,
    /// The lease that the member's record is bound to, if the store has leases for it.
    pub lease: Option<LeaseId>,
    /// How long another supervisor that goes by this node's name is waited for until it is gone: longer than its lease.
    pub name_patience: Duration,
    /// Whether other supervisors take part. A signal then takes this member out of the job instead of ending the job.
    pub shared: bool,
    /// Which start of the machine this is; empty where it is not known.
    pub boot: String,
    /// Which machine this is, however often it is started; empty unless no other machine can say the same.
    pub machine: String,
    /// Where this node stands in the cluster.
    pub location: Location,
    /// Where the member's agent can be reached by other agents.
    pub agent: Option<AgentEndpoint>,
    /// How often this node looks at itself while it runs nothing; absent if it never does.
    pub looks_every: Option<Duration>,
}

impl MemberSettings {
    /// Settings of a member with one worker on a store of its own, known by its node's name; change what differs.
    pub fn new(keys: Keys, node: NodeName, incarnation: Incarnation, spec: JobSpec) -> Self {
        Self {
            keys,
            address: node.0.clone(),
            node,
            incarnation,
            slots: 1,
            spec,
            restart_grace: Duration::from_secs(5),
            stop_grace: Duration::from_secs(30),
            save_timeout: Duration::from_mins(10),
            lease: None,
            name_patience: Duration::from_secs(30),
            shared: false,
            boot: String::new(),
            machine: String::new(),
            location: Location::default(),
            agent: None,
            looks_every: None,
        }
    }
}

/// What a member is told. The first event must be [`MemberEvent::Resume`]; nothing is done before it.
#[derive(Debug, Clone, PartialEq)]
pub enum MemberEvent {
    /// What the keeper really has, at the start (nothing) and after a respawn of the agent. The keeper reports *every*
    /// worker of the generation that it started last, those that have exited included, acknowledged or not. Before it
    /// speaks, it has carried out everything that the dead agent had sent.
    Resume {
        /// All workers of the last started generation.
        workers: Vec<WorkerObservation>,
        /// Set when the keeper has been told to stop that generation.
        stopping: Option<KeeperStop>,
        /// A free port, for the master of the next generation.
        next_port: u16,
    },
    /// The store changed. A member need not be told of more than the keys below [`Keys::common`].
    Changed(ChangeBatch),
    /// The store was read anew, because changes had been missed.
    Relisted {
        /// At least the keys below [`Keys::common`], this member's own record, and its findings of its generation.
        entries: Vec<KeyValue>,
        /// The revision at which they were read.
        revision: Revision,
    },
    /// This member's own record was read anew, because a write of it did not succeed. Comes before the answer to it.
    OwnRecord {
        /// As it is in the store, if it is there.
        record: Option<KeyValue>,
        /// The revision at which it was read.
        revision: Revision,
    },
    /// The keeper has started the workers of a generation, except those that failed to start.
    Started {
        /// Which generation.
        generation: Generation,
        /// Workers that could not be started.
        failures: Vec<SpawnFailure>,
    },
    /// A worker was reaped. May come more than once; send it again with a finding once one can be made.
    WorkerExited {
        /// Its generation.
        generation: Generation,
        /// Which worker.
        local_rank: LocalRank,
        /// How it ended.
        exit: WorkerExit,
        /// When it was reaped, on this node's clock.
        at: Instant,
        /// What is known about why. `monotonic_ns` is when the fault happened: for an error file, its time. Fields
        /// that place it (generation, node, ranks, step) are filled in by the core.
        finding: Option<Finding>,
    },
    /// Some detector saw something.
    Finding(Finding),
    /// All workers of a generation are gone, with their whole process trees, except the unkillable ones.
    Stopped {
        /// Which generation.
        generation: Generation,
        /// Workers that survived SIGKILL.
        unkillable: Vec<LocalRank>,
        /// A free port, for the master of the next generation.
        next_port: u16,
    },
    /// A training step was seen.
    Step {
        /// Generation of the worker that made it.
        generation: Generation,
        /// The step.
        step: u64,
    },
    /// What this node's steps are worth as a witness has changed; `None` when they are worth nothing (any more).
    Witness {
        /// Generation of the workers.
        generation: Generation,
        /// What they show.
        report: Option<WitnessReport>,
    },
    /// A whole checkpoint was seen to have been made.
    Checkpoint {
        /// Generation that made it.
        generation: Generation,
        /// Its step.
        step: u64,
    },
    /// A whole checkpoint that was seen to have been made has been flushed to stable storage.
    Durable {
        /// Generation that made it.
        generation: Generation,
        /// Its step.
        step: u64,
    },
    /// What this member can vouch for in its checkpoint directory; `None` when that cannot be said. Comes before
    /// [`MemberEvent::Stopped`], with what the workers have left behind.
    Checkpoints(Option<CheckpointReport>),
    /// Whether the workers can be asked for a checkpoint, and how, has become known.
    CanSave {
        /// Generation of the workers.
        generation: Generation,
        /// How; `None` when they cannot.
        means: Option<SaveMeans>,
    },
    /// The workers have made the checkpoint that they were asked for, and it is on stable storage.
    Saved {
        /// Generation of the workers.
        generation: Generation,
        /// Its step.
        step: u64,
    },
    /// When the workers were asked for a checkpoint at this step, one of them had made it already.
    ToldLate {
        /// Generation of the workers.
        generation: Generation,
        /// The step of the order.
        step: u64,
    },
    /// This node has been looked at, and this makes it unfit; nothing does if there is nothing, or nothing could be seen. The
    /// class and the words of each fault are taken as they are, its kind and its place are filled in by the core. Comes
    /// before [`MemberEvent::Stopped`] if it is known by then, and may come at any time.
    Looked(Vec<Finding>),
    /// What earlier faults of this node's GPUs weigh, in thousandths of a fault: those of the GPU that has had most.
    PastFaults(u64),
    /// The keeper has killed a generation's workers, or has refused to start them, because the time was over for which
    /// the lease or the training's progress vouched for them. [`MemberEvent::Stopped`] follows.
    Fenced {
        /// Which generation.
        generation: Generation,
        /// When.
        at: Instant,
    },
    /// A signal that asks the job to end (SIGTERM, SIGINT, SIGHUP). After a respawn of the agent the keeper repeats the
    /// last one, with its count, since the dead agent may not have written it down.
    Interrupt {
        /// Signal number.
        signal: i32,
        /// How many of these there have been, this one included.
        count: u32,
    },
    /// Somebody asks over the control socket.
    Operator(OperatorRequest),
    /// The lease had to be replaced; the record moves to this one.
    Lease(LeaseId),
    /// The last [`MemberEffect::Write`] was carried out; its guards held or did not.
    WriteDone(Outcome),
    /// It is not known whether the last [`MemberEffect::Write`] was carried out.
    WriteFailed,
    /// Time has passed; see [`crate::Member::next_deadline`].
    Tick,
}

/// A worker as the keeper has it.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkerObservation {
    /// Its generation.
    pub generation: Generation,
    /// Which worker.
    pub local_rank: LocalRank,
    /// How it is.
    pub state: WorkerState,
}

/// How a worker is.
#[derive(Debug, Clone, PartialEq)]
#[expect(
    clippy::large_enum_variant,
    reason = "there are a handful of them, for the time of one event"
)]
pub enum WorkerState {
    /// Not reaped yet.
    Alive,
    /// Reaped.
    Exited {
        /// How it ended.
        exit: WorkerExit,
        /// When it was reaped.
        at: Instant,
        /// What is known about why, as in [`MemberEvent::WorkerExited`].
        finding: Option<Finding>,
    },
    /// Could not be started.
    SpawnFailed(SpawnFailure),
}

/// A stop that the keeper has been told to carry out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeeperStop {
    /// Which generation is being, or has been, stopped.
    pub generation: Generation,
    /// When it began.
    pub began: Instant,
}

/// A worker that could not be started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpawnFailure {
    /// Which worker.
    pub local_rank: LocalRank,
    /// Why, in words.
    pub message: String,
    /// Whether trying again is bound to fail, as when the program does not exist.
    pub certain: bool,
    /// The exit code that a shell would give (126, 127), if there is one.
    pub exit_code: Option<i32>,
}

/// What an operator can ask for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OperatorRequest {
    /// End the job.
    Stop {
        /// Time until SIGKILL; the stop grace when absent.
        grace: Option<Duration>,
        /// Why, in words.
        reason: String,
    },
    /// End the job before a scheduler does; it is to be run again.
    TimeUp {
        /// Time until SIGKILL, a checkpoint before included.
        grace: Duration,
        /// Why, in words.
        reason: String,
    },
    /// Take this member out of the job; others take its ranks over.
    Leave {
        /// Time until SIGKILL; the stop grace when absent.
        grace: Option<Duration>,
        /// Why, in words.
        reason: String,
    },
    /// Start a new generation on purpose.
    Restart {
        /// Why, in words.
        reason: String,
    },
    /// Make a checkpoint, and go on; [`MemberEffect::SaveEnded`] tells what has become of it.
    Checkpoint {
        /// Another one for each time that somebody asks; not 0.
        number: u64,
        /// Why, in words.
        reason: String,
    },
}

/// What a member wants done, in this order.
#[derive(Debug, Clone, PartialEq)]
#[expect(
    clippy::large_enum_variant,
    reason = "the large one comes once in a life"
)]
pub enum MemberEffect {
    /// Write to the store and answer with `WriteDone` or `WriteFailed`. There is never more than one outstanding.
    Write(Transaction),
    /// Start this node's workers as the plan says; answer with `Started`. A generation that is not newer than the one
    /// that was started or stopped last must not be started.
    Start {
        /// The plan; it names this node.
        plan: Arc<Plan>,
    },
    /// Stop this node's workers: first signal, grace, SIGKILL; answer with `Stopped` when they are gone. May be repeated
    /// for a generation; the keeper then goes on with what it is doing, and answers (again) when they are gone. For a
    /// generation that was never started the answer comes at once, and it can be started no more.
    Stop {
        /// Which generation.
        generation: Generation,
        /// First signal.
        first_signal: i32,
        /// Time until SIGKILL.
        grace: Duration,
        /// Why, in words.
        reason: String,
    },
    /// Look at this node, which may be why its workers are about to be stopped; answer with `Looked`. `Stopped` had better
    /// wait a moment for that.
    Look,
    /// Send SIGKILL now to what is left of a generation that is being stopped.
    KillNow {
        /// Which generation.
        generation: Generation,
    },
    /// Ask this node's workers for a checkpoint, and answer with `Saved` when it is there; `None`: it is not wanted any more.
    Save {
        /// Their generation.
        generation: Generation,
        /// What is wanted.
        order: Option<SaveOrder>,
    },
    /// What has become of a checkpoint that was asked for.
    SaveEnded {
        /// The generation that was asked.
        generation: Generation,
        /// What has become of it.
        outcome: SaveOutcome,
    },
    /// The leader has committed a checkpoint: every member of the generation has vouched for it.
    Committed {
        /// The generation that made it.
        generation: Generation,
        /// Its step.
        step: u64,
    },
    /// A stop that was asked for waits so long at most, for a checkpoint: whoever would stop the workers if nobody else does
    /// is to wait, too.
    Postpone {
        /// At most so long.
        within: Duration,
    },
    /// Tell the user.
    Say(String),
    /// The job has ended, nothing of ours runs any more: leave. Comes once.
    Finish(JobResult),
}
