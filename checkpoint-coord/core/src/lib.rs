// SPDX-License-Identifier: Apache-2.0
//! What shall the job do? The decision core of Steadfast.
//!
//! Owns two pure state machines and the records that they exchange through a key-value store:
//! [`Member`] (one per node: starts and stops that node's workers, reports what happened to them) and
//! [`Leader`] (one per job: gathers members, publishes plans, judges faults, ends the job).
//!
//! Both are fed with `handle(now, event)` and answer with effects. They are level-triggered: each keeps a
//! [`View`] of the store and compares what is with what should be, so that a repeated, late or missed event
//! does no harm, and a machine that is rebuilt from the store goes on where its predecessor stopped.
//!
//! Invariants (the simulated world in `world.rs` checks them after every event):
//! - CORE-1: generations only grow, and a generation has one plan.
//! - CORE-2: no worker of an older generation is alive when a newer one with the same rank starts.
//! - CORE-3: an incident is charged to the restart budget exactly once, and the budget is never exceeded.
//! - CORE-4: a result is final; nothing starts after it.
//! - CORE-5: once faults cease, the job runs or has ended within a bounded number of events, and says why.
//!
//! There is no clock, no I/O, no async and no randomness here; time comes in as [`Instant`].

mod exit;
mod formation;
mod ids;
mod judgement;
mod jury;
mod keys;
mod leader;
mod lease;
mod member;
mod numeric;
mod outlook;
mod own_steps;
mod records;
mod stall;
mod store;
mod time;
mod verdict;
mod view;
#[cfg(test)]
mod world;

pub use exit::{ExitReason, WorkerExit};
pub use ids::{Generation, Incarnation, LeaseId, LocalRank, NodeName, Rank, Revision};
pub use judgement::SAME_FAILURE_LIMIT;
pub use jury::{ClocksAhead, Jury, Opinion};
pub use keys::Keys;
pub use leader::{Leader, LeaderEffect, LeaderEvent, LeaderSettings, LeaderState};
pub use lease::{Held, Lease, Renewal};
pub use member::{
    KeeperStop, Member, MemberEffect, MemberEvent, MemberSettings, MemberState, OperatorRequest,
    SpawnFailure, WorkerObservation, WorkerState, kinds,
};
pub use numeric::{LossFinding, LossTrouble, LossWatch};
pub use outlook::{NODE_MTTF, Outlook, mtbf, observed_mtbf, spares};
pub use own_steps::OwnSteps;
pub use records::{
    AgentEndpoint, CheckpointReport, CommitRecord, Course, EndRule, Endpoint, Exclusion,
    FaultScore, FindingsRecord, Fitness, Grow, JobOutcome, JobResult, JobSpec, LastStep,
    LeaderRecord, Ledger, Location, MemberPhase, MemberRecord, PROTOCOL_VERSION, Place, Places,
    Plan, PlanMember, PlanPhase, RECORD_VERSION, RecordError, Request, RequestKind, Resume,
    ResumePoint, SaveMeans, SaveOrder, SaveOutcome, WholeCheckpoint, WitnessMode, WitnessReport,
};
pub use stall::{
    Activity, Confidence, Culprit, Doing, KernelState, RankSigns, Stall, StallSettings, StallState,
    StallVerdict, StallWatch, find_culprit,
};
pub use store::{
    Change, ChangeBatch, Condition, KeyValue, Operation, Outcome, StoreState, Text, Transaction,
};
pub use time::Instant;
pub use view::{Versioned, View};
