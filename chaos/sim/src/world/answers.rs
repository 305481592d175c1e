// SPDX-License-Identifier: Apache-2.0
//! What an agent does with the store's answers, as the product's session does.

use std::collections::BTreeSet;
use std::time::Duration;

use steadfast_core::{
    Held, Leader, LeaderEvent, LeaderSettings, Member, MemberEvent, Outcome, Renewal, View,
};

use super::{Checked, MS, World};
use crate::agent::{Calls, Lockstep, Session, Watch, WriteFate};
use crate::event::{Address, Answer, Call, Event, Listing, Request, Scope};

/// How long to wait before something is tried again that the store refused.
const RETRY: Duration = Duration::from_millis(200);
/// How often the leader's agent looks at what others have told.
pub(super) const DIGEST_MS: u64 = 500;

impl World {
    pub(super) fn answered(&mut self, call: Call, answer: Option<Answer>) -> Checked {
        let (from, number) = (call.from, call.number);
        if !self.is_alive(from) {
            return Ok(());
        }
        if matches!(call.request, Request::Open) {
            return self.opened(from, call.sent, answer);
        }
        let Some(session) = self.session_mut(from) else {
            return Ok(());
        };
        if !session.calls.take(&call.request, number) {
            return Ok(());
        }
        match (call.request, answer) {
            (Request::MemberWrite(transaction), answer) => {
                self.member_written(from, &transaction, outcome(answer.as_ref()))?;
            }
            (Request::OwnRecord, answer) => self.own_record_read(from, answer)?,
            (Request::LeaderWrite(..), answer) => match outcome(answer.as_ref()) {
                Some(outcome) => self.tell_leader(from, LeaderEvent::WriteDone(outcome))?,
                None => self.tell_leader(from, LeaderEvent::WriteFailed)?,
            },
            (Request::Elect(transaction), answer) => {
                self.elected(from, &transaction, outcome(answer.as_ref()));
            }
            (Request::Retire(_), answer) => {
                if outcome(answer.as_ref()).is_some_and(|outcome| outcome.succeeded) {
                    self.elect(from);
                } else {
                    self.campaign_later(from);
                }
            }
            (Request::TakeOffice | Request::LeaderRelist | Request::Relist, answer) => {
                self.relisted(from, answer)?;
            }
            (Request::Renew(first, second), Some(Answer::Renewed(one, two))) => {
                let sent = self.nodes[from.node].clock.show(call.sent);
                let renewal = |lease, replaced_by| Renewal {
                    sent,
                    lease,
                    replaced_by,
                };
                let renewals = [
                    Some(renewal(first, one)),
                    second.map(|lease| renewal(lease, two)),
                ];
                self.renewed(from, renewals)?;
            }
            (Request::Renew(..), _) => {
                let now = self.nodes[from.node].clock.show(self.now);
                if let Some(session) = self.session_mut(from) {
                    session.renew_at = Some(now + RETRY);
                }
            }
            (Request::MoveLeader(transaction), answer) => {
                let lease = transaction.then.iter().find_map(lease_of);
                if outcome(answer.as_ref()).is_some_and(|outcome| outcome.succeeded)
                    && let Some(session) = self.session_mut(from)
                    && let (Some(held), Some(lease)) = (&mut session.lease, lease)
                {
                    held.has_leader(lease);
                }
            }
            (Request::Grant { ttl }, Some(Answer::Granted(lease))) => {
                let sent = self.nodes[from.node].clock.show(call.sent);
                let held = Held::granted(lease, Duration::from_micros(ttl), sent);
                self.move_to_lease(from, held)?;
            }
            (Request::Grant { .. } | Request::Open, _) => {}
        }
        self.settle(from);
        Ok(())
    }

    /// The agent knows what there is: its machines begin.
    fn opened(&mut self, from: Address, sent: u64, answer: Option<Answer>) -> Checked {
        let Some(Answer::Listing(listing)) = answer else {
            // An agent tries again; a supervisor that is only being started is started again by whoever did.
            self.send(from, Request::Open);
            return Ok(());
        };
        let alone = self.schedule.is_alone();
        let Listing {
            entries,
            revision,
            lease,
        } = listing;
        let view = View::load(self.keys.clone(), &entries, revision);
        let node = &self.nodes[from.node];
        let sent = node.clock.show(sent);
        if view.result().is_some() && node.keeper.agents <= 1 {
            // The product would begin a new run once everybody has left this one.
            self.nodes[from.node].left = true;
            self.checker.came_too_late(from.node);
            self.supervisor_ends(from.node);
            return Ok(());
        }
        let mut held = lease.map(|lease| {
            let ttl = Duration::from_millis(self.schedule.pace.lease_ms);
            let own = view.member(&node.name);
            if own.is_some_and(|record| record.lease == Some(lease)) {
                let short = Duration::from_millis(self.schedule.pace.witness_lease_ms);
                Held::granted(lease, ttl.min(short), sent).with_record()
            } else if node.keeper.agents <= 1 {
                Held::granted(lease, ttl, sent).as_first()
            } else {
                Held::granted(lease, ttl, sent)
            }
        });
        let settings = self.member_settings(from.node, lease);
        let now = node.clock.show(self.now);
        let lease = held.take().map(steadfast_core::Lease::new);
        let renew_at = lease.as_ref().map(|lease| now + lease.renewal_interval());
        let session = Session {
            member: Member::new(settings, view),
            leader: None,
            elected: None,
            watch: Watch::none(),
            lease,
            fence: None,
            calls: Calls::default(),
            renew_at,
            campaign_at: None,
            vacant_since: None,
            relist_at: None,
            look_at: None,
            timer: None,
            lockstep: Lockstep::default(),
            silent: BTreeSet::new(),
        };
        let Some(agent) = &mut self.nodes[from.node].agent else {
            return Ok(());
        };
        agent.session = Some(Box::new(session));
        let inbox = std::mem::take(&mut agent.inbox);
        let scope = if alone { Scope::Whole } else { Scope::Common };
        self.begin_watch(from, scope, revision);
        for event in inbox {
            self.tell_member(from, event)?;
        }
        self.settle(from);
        Ok(())
    }

    fn member_written(
        &mut self,
        from: Address,
        transaction: &steadfast_core::Transaction,
        outcome: Option<Outcome>,
    ) -> Checked {
        if let Some(outcome) = outcome.filter(|outcome| outcome.succeeded) {
            let lease = transaction.then.iter().find_map(lease_of);
            if let Some(session) = self.session_mut(from)
                && let (Some(held), Some(lease)) = (&mut session.lease, lease)
            {
                held.has_record(lease);
            }
            return self.tell_member(from, MemberEvent::WriteDone(outcome));
        }
        // Whatever became of it: what stands in the store tells.
        let number = self.send(from, Request::OwnRecord);
        if let Some(session) = self.session_mut(from) {
            session.calls.own_record = number;
            let fate = outcome.map_or(WriteFate::Unknown, WriteFate::Refused);
            session.calls.own_record_for = Some(fate);
        }
        Ok(())
    }

    fn own_record_read(&mut self, from: Address, answer: Option<Answer>) -> Checked {
        let Some(session) = self.session_mut(from) else {
            return Ok(());
        };
        let write = session.calls.own_record_for.take();
        let Some(Answer::Record(record, revision)) = answer else {
            return match write {
                Some(_) => self.tell_member(from, MemberEvent::WriteFailed),
                None => Ok(()),
            };
        };
        self.tell_member(from, MemberEvent::OwnRecord { record, revision })?;
        match write {
            Some(WriteFate::Refused(outcome)) => {
                self.tell_member(from, MemberEvent::WriteDone(outcome))
            }
            Some(WriteFate::Unknown) => self.tell_member(from, MemberEvent::WriteFailed),
            None => Ok(()),
        }
    }

    fn elected(
        &mut self,
        from: Address,
        transaction: &steadfast_core::Transaction,
        outcome: Option<Outcome>,
    ) {
        let Some(outcome) = outcome.filter(|outcome| outcome.succeeded) else {
            return self.campaign_later(from);
        };
        let lease = transaction.then.iter().find_map(lease_of);
        let number = self.send(from, Request::TakeOffice);
        if let Some(session) = self.session_mut(from) {
            if let (Some(held), Some(lease)) = (&mut session.lease, lease) {
                held.has_leader(lease);
            }
            session.elected = Some(outcome.revision);
            session.calls.relisting = number;
        }
    }

    fn campaign_later(&mut self, from: Address) {
        let now = self.nodes[from.node].clock.show(self.now);
        if let Some(session) = self.session_mut(from) {
            session.campaign_at = Some(now + RETRY);
        }
    }

    fn relisted(&mut self, from: Address, answer: Option<Answer>) -> Checked {
        let now = self.nodes[from.node].clock.show(self.now);
        let alone = self.schedule.is_alone();
        let Some(session) = self.session_mut(from) else {
            return Ok(());
        };
        let Some(Answer::Listing(listing)) = answer else {
            session.relist_at = Some(now + RETRY);
            return Ok(());
        };
        let everything = alone || session.elected.is_some() || session.leader.is_some();
        let Listing {
            entries, revision, ..
        } = listing;
        let scope = if everything {
            Scope::Whole
        } else {
            Scope::Common
        };
        self.begin_watch(from, scope, revision);
        let relisted = MemberEvent::Relisted {
            entries: entries.clone(),
            revision,
        };
        self.tell_member(from, relisted)?;
        // Some jobs are asked for checkpoints by their leader.
        let asks = self.schedule.seed.is_multiple_of(3);
        let Some(session) = self.session_mut(from) else {
            return Ok(());
        };
        if let Some(epoch) = session.elected.take() {
            let settings = LeaderSettings {
                save_every: asks.then_some(Duration::from_secs(20)),
                save_timeout: Duration::from_mins(10),
                gather_window: Duration::from_secs(3),
                shared: !alone,
            };
            let view = session.member.view().clone();
            let mut leader = Leader::new(settings, epoch, view);
            if let Some((generation, steps)) = session.member.own_steps() {
                leader.note_own_steps(generation, steps);
            }
            session.leader = Some(leader);
            session.silent.clear();
            self.note(|| format!("node-{}: leads, epoch {epoch}", from.node));
            self.tell_leader(from, LeaderEvent::Tick)?;
            self.after(DIGEST_MS * MS, Event::Digests(from));
        } else {
            self.tell_leader(from, LeaderEvent::Relisted { entries, revision })?;
        }
        Ok(())
    }

    fn renewed(&mut self, from: Address, renewals: [Option<Renewal>; 2]) -> Checked {
        let now = self.nodes[from.node].clock.show(self.now);
        let Some(session) = self.session_mut(from) else {
            return Ok(());
        };
        let Some(lease) = &mut session.lease else {
            return Ok(());
        };
        let mut moved = false;
        let mut sent = now;
        for renewal in renewals.into_iter().flatten() {
            sent = renewal.sent;
            moved |= lease.renewed(renewal);
        }
        let id = lease.id();
        // From when it was sent: a slow store must not cost the lease.
        session.renew_at = Some(sent + lease.renewal_interval());
        if moved {
            self.tell_member(from, MemberEvent::Lease(id))?;
        }
        self.choose_lease(from);
        Ok(())
    }

    fn move_to_lease(&mut self, from: Address, held: Held) -> Checked {
        let now = self.nodes[from.node].clock.show(self.now);
        let Some(session) = self.session_mut(from) else {
            return Ok(());
        };
        let Some(lease) = &mut session.lease else {
            return Ok(());
        };
        let epoch = session.leader.as_ref().map(Leader::epoch);
        lease.move_to(held, epoch.is_some());
        session.renew_at = Some(now);
        if let Some(epoch) = epoch {
            self.move_leader(from, epoch, held.id());
        }
        self.tell_member(from, MemberEvent::Lease(held.id()))
    }
}

fn outcome(answer: Option<&Answer>) -> Option<Outcome> {
    match answer {
        Some(Answer::Outcome(outcome)) => Some(*outcome),
        _ => None,
    }
}

fn lease_of(operation: &steadfast_core::Operation) -> Option<steadfast_core::LeaseId> {
    match operation {
        steadfast_core::Operation::Put { lease, .. } => *lease,
        steadfast_core::Operation::Delete { .. } => None,
    }
}
