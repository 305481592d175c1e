// SPDX-License-Identifier: Apache-2.0
//! What is still to come in a simulated world.

use std::rc::Rc;

use steadfast_core::{
    ChangeBatch, KeyValue, LeaseId, MemberEffect, MemberEvent, Outcome, Revision, Transaction,
    WorkerExit,
};
use steadfast_proto::v1::FaultRole;

/// One life of a node's agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) node: usize,
    pub(crate) life: u64,
}

/// Which of an agent's two watches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    /// What every member watches.
    Common,
    /// Everything; the leader's.
    Whole,
}

/// What an agent asks the store for.
#[derive(Debug, Clone)]
pub(crate) enum Request {
    /// The job's common keys, the own record and findings, and a lease: where an agent begins.
    Open,
    MemberWrite(Transaction),
    /// With the leader's epoch.
    LeaderWrite(Transaction, Revision),
    Elect(Transaction),
    /// Takes away the leader's key that an earlier life of this agent has left.
    Retire(Transaction),
    /// Everything, for a new leader.
    TakeOffice,
    /// What the member must know, anew.
    Relist,
    /// What the leader must know, anew.
    LeaderRelist,
    OwnRecord,
    /// All leases that the agent has: one, or two while it changes from one to the other.
    Renew(LeaseId, Option<LeaseId>),
    /// Binds the leader's key to another lease.
    MoveLeader(Transaction),
    Grant {
        ttl: u64,
    },
}

/// What the store has to say.
#[derive(Debug, Clone)]
pub(crate) enum Answer {
    Outcome(Outcome),
    Listing(Listing),
    Record(Option<KeyValue>, Revision),
    Granted(LeaseId),
    /// For each lease that had ended, the one that takes its place.
    Renewed(Option<LeaseId>, Option<LeaseId>),
}

/// A store's contents at a revision.
#[derive(Debug, Clone)]
pub(crate) struct Listing {
    pub(crate) entries: Vec<KeyValue>,
    pub(crate) revision: Revision,
    /// For [`Request::Open`]: the lease that was renewed or granted.
    pub(crate) lease: Option<LeaseId>,
}

/// A request to the store, from when it is sent until it is answered or given up.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    pub(crate) from: Address,
    pub(crate) number: u64,
    pub(crate) sent: u64,
    pub(crate) request: Request,
}

/// Something that happens at a time.
#[derive(Debug)]
pub(crate) enum Event {
    /// The schedule's fault with this index.
    Fault(usize),
    /// Everything is well from now on.
    Heal,
    /// Nodes that were cut off have a link again: watches go on.
    Mended,
    StoreBack,
    NodeReturns(usize),
    NodeWakes(usize),
    AgentWakes(Address),
    AgentStarts(usize, u64),
    /// The keeper's watchdog has had enough of an agent that does nothing.
    Watchdog(Address),
    /// A request arrives at the store.
    Arrives(Box<Call>),
    /// A request that its sender has given up arrives after all.
    LateWrite(Box<Call>),
    /// `None`: nobody knows.
    Answered(Box<Call>, Option<Answer>),
    LeaseDue(LeaseId),
    Changed(Address, Scope, u64, Rc<ChangeBatch>),
    /// The agent looks at what its watch of everything has brought.
    Looks(Address, u64),
    /// A lease was given back.
    Revoked(LeaseId),
    /// A watch has ended for want of history.
    Missed(Address, Scope, u64),
    /// The agent's timer, set for this time.
    Timer(Address, u64),
    /// What the leader's agent hears of the others.
    Digests(Address),
    /// The agent looks at its node if that is due.
    LooksAround(Address),
    /// A look at the node shows how it is.
    LookEnds(Address),
    /// A command, and the tenure in which it was given.
    ToKeeper(Address, Box<MemberEffect>, LeaseId),
    ToAgent(Address, Box<MemberEvent>),
    /// The agent sees a step of its workers.
    Stepped(Address, u64, u64),
    /// A worker process ends.
    Death(usize, u64, WorkerExit, FaultRole),
    Reaped(usize, u64, WorkerExit, u64, FaultRole),
    /// Somebody has found out more about an exit.
    Understood(usize, Box<MemberEvent>),
    /// A worker that did nothing goes on.
    Unhangs(usize, u64),
    /// The grace of a stop is over.
    GraceOver(usize, u64),
    /// The keeper gives up on workers that survived SIGKILL.
    GivesUp(usize, u64),
    /// The keeper looks whether its workers may live on.
    FenceDue(usize, u64),
    /// The workers of a node can make steps.
    Ready(usize, u64),
    /// A generation makes a step; alone on one node if its ranks do not wait for each other.
    Step(u64, Option<usize>),
}
