// SPDX-License-Identifier: Apache-2.0
//! What is still to come in a simulated world.

use std::rc::Rc;

use steadfast_core::{
    ChangeBatch, KeyValue, LeaseId, MemberEffect, MemberEvent, Outcome, Revision, Transaction,
    WorkerExit,
};
use steadfast_proto::v1::FaultRole;

/// Which machine on a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Who {
    Member,
    Leader,
}

/// A machine of one agent's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) node: usize,
    pub(crate) life: u64,
    pub(crate) who: Who,
}

/// A store's contents at a revision.
#[derive(Debug, Clone)]
pub(crate) struct Listing {
    pub(crate) entries: Vec<KeyValue>,
    pub(crate) revision: Revision,
    pub(crate) watch: u64,
}

/// Something that happens at a time.
#[derive(Debug, Clone)]
pub(crate) enum Event {
    /// The schedule's fault with this index.
    Fault(usize),
    NodeReturns(usize),
    AgentStarts(usize),
    /// An agent's read arrives at the store.
    ReadArrives(Address),
    /// Its answer arrives at the agent: for the first read of a life, or after a broken watch.
    ReadAnswered(Address, Listing),
    /// A write arrives at the store.
    WriteArrives(Address, u64, Transaction),
    /// A write that its sender has given up arrives after all.
    LateWrite(Transaction),
    /// `None`: nobody knows.
    WriteAnswered(Address, u64, Option<Outcome>),
    /// Somebody wants to lead: tries to write the leader's key.
    ElectionArrives(Address, Transaction),
    ElectionAnswered(Address, Option<(Revision, Listing)>),
    /// Time to look whether to stand for election.
    Candidacy(usize, u64),
    Changed(Address, u64, Rc<ChangeBatch>),
    Timer(Address, u64),
    LeaseEnds(usize, LeaseId),
    ToKeeper(usize, u64, MemberEffect),
    ToAgent(usize, u64, MemberEvent),
    /// A worker process ends.
    Death(usize, u64, WorkerExit, FaultRole),
    Reaped(usize, u64, WorkerExit, u64, FaultRole),
    /// Somebody has found out more about an exit.
    Understood(usize, MemberEvent),
    /// The grace of a stop is over.
    GraceOver(usize, u64),
    /// The keeper gives up on workers that survived SIGKILL.
    GivesUp(usize, u64),
    /// A generation that was complete makes a step.
    Step(u64),
}
