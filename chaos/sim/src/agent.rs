// SPDX-License-Identifier: Apache-2.0
//! A simulated agent: the product's machines with a small runtime around them, after the product's own session.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use steadfast_core::{
    ChangeBatch, Generation, Instant, Leader, Lease, LeaseId, Member, MemberEvent, Outcome,
    Revision,
};

use crate::event::{Event, Request, Scope};

/// The agent: lives in memory only.
#[derive(Debug, Default)]
pub(crate) struct Agent {
    /// Set once the store was read.
    pub(crate) session: Option<Box<Session>>,
    /// What the keeper said before the store was read.
    pub(crate) inbox: Vec<MemberEvent>,
    /// Until when the process is stopped.
    pub(crate) paused_until: u64,
    /// What happens to it when it goes on.
    pub(crate) kept: Vec<Event>,
}

/// The machines and what connects them to the store and to the clock.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) member: Member,
    pub(crate) leader: Option<Leader>,
    /// The epoch that was won, while the store is read for the new leader.
    pub(crate) elected: Option<Revision>,
    pub(crate) watch: Watch,
    /// Nothing is bound to a lease on a store of one's own.
    pub(crate) lease: Option<Lease>,
    /// What the keeper was told last.
    pub(crate) fence: Option<(Instant, LeaseId, Generation, Duration)>,
    pub(crate) calls: Calls,
    pub(crate) renew_at: Option<Instant>,
    pub(crate) campaign_at: Option<Instant>,
    /// Since when nobody has led the job, as far as the agent knows.
    pub(crate) vacant_since: Option<Instant>,
    pub(crate) relist_at: Option<Instant>,
    pub(crate) look_at: Option<Instant>,
    /// The timer that is set, on the simulation's clock.
    pub(crate) timer: Option<u64>,
    pub(crate) lockstep: Lockstep,
    /// Nodes of which the leader was told that nothing is heard.
    pub(crate) silent: BTreeSet<usize>,
}

/// What became of a write after which the record was read.
#[derive(Debug, Clone, Copy)]
pub(crate) enum WriteFate {
    Refused(Outcome),
    Unknown,
}

/// The calls that are outstanding, by number; 0 for none.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Calls {
    pub(crate) member_write: u64,
    pub(crate) own_record: u64,
    /// For which answer to a write the own record is read, if for one.
    pub(crate) own_record_for: Option<WriteFate>,
    pub(crate) leader_write: u64,
    pub(crate) election: u64,
    pub(crate) leader_move: u64,
    pub(crate) relisting: u64,
    pub(crate) renewal: u64,
    pub(crate) grant: u64,
}

/// A subscription to the store's changes.
#[derive(Debug)]
pub(crate) struct Watch {
    /// Number of the subscription, 0 for none; changes for another one are not meant for this agent.
    pub(crate) number: u64,
    pub(crate) scope: Scope,
    /// How much of the log has been sent.
    pub(crate) sent: usize,
    /// Until when the stream is taken; changes do not overtake one another.
    pub(crate) busy: u64,
    /// The newest that has arrived: a store tells of changes in their order, and so must its simulation.
    pub(crate) newest: Revision,
    /// What has arrived and was not looked at.
    pub(crate) arrived: Vec<Rc<ChangeBatch>>,
}

/// What this node's steps are worth as a witness. Watches the workers' own steps, as the product's detector does.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Lockstep {
    generation: u64,
    steps: u32,
    last: u64,
    usual: u64,
    longest: u64,
}

impl Calls {
    /// Whether that call is the one whose answer is waited for; it is not any more.
    pub(crate) fn take(&mut self, request: &Request, number: u64) -> bool {
        let slot = match request {
            Request::MemberWrite(_) => &mut self.member_write,
            Request::OwnRecord => &mut self.own_record,
            Request::LeaderWrite(..) => &mut self.leader_write,
            Request::Elect(_) | Request::Retire(_) => &mut self.election,
            Request::MoveLeader(_) => &mut self.leader_move,
            Request::Relist | Request::LeaderRelist | Request::TakeOffice => &mut self.relisting,
            Request::Renew(..) => &mut self.renewal,
            Request::Grant { .. } => &mut self.grant,
            Request::Open => return false,
        };
        let waited_for = *slot == number;
        if waited_for {
            *slot = 0;
        }
        waited_for
    }
}

impl Watch {
    pub(crate) fn none() -> Self {
        Self {
            number: 0,
            scope: Scope::Common,
            sent: 0,
            busy: 0,
            newest: Revision(0),
            arrived: Vec::new(),
        }
    }
}

/// Steps that must have been seen before anything is said about them.
const FEWEST_STEPS: u32 = 3;
/// Shortest window, in milliseconds.
const SHORTEST_WINDOW: u64 = 2_000;

impl Lockstep {
    /// Takes in a step that all workers of the node have made, at this time on the simulation's clock.
    pub(crate) fn step(&mut self, generation: u64, at: u64) {
        if generation != self.generation {
            *self = Self {
                generation,
                ..Self::default()
            };
        }
        if self.steps > 0 {
            let gap = at.saturating_sub(self.last);
            self.longest = self.longest.max(gap);
            self.usual = if self.usual == 0 {
                gap
            } else {
                self.usual.min(gap)
            };
        }
        self.steps += 1;
        self.last = at;
    }

    /// The window that these steps ask for and the usual time between two, in milliseconds.
    pub(crate) fn window_and_step(&self) -> Option<(u64, u64)> {
        if self.steps < FEWEST_STEPS {
            return None;
        }
        let wish = (self.usual * 4).max(self.longest * 3 / 2).div_ceil(1_000);
        let mut window = SHORTEST_WINDOW;
        while window < wish {
            window *= 2;
        }
        Some((window, self.usual.div_ceil(1_000).max(1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_cover_what_was_seen_and_are_powers_of_two_seconds() {
        let mut lockstep = Lockstep::default();
        for at in [0, 500_000] {
            lockstep.step(1, at);
            assert_eq!(lockstep.window_and_step(), None);
        }
        lockstep.step(1, 1_000_000);
        assert_eq!(lockstep.window_and_step(), Some((2_000, 500)));
        lockstep.step(1, 7_000_000);
        assert_eq!(lockstep.window_and_step(), Some((16_000, 500)));
        lockstep.step(2, 8_000_000);
        assert_eq!(lockstep.window_and_step(), None);
    }
}
