// SPDX-License-Identifier: Apache-2.0
//! What the store does with a write: it changes, everybody who watches is told, the checker looks; and leases end.

use std::rc::Rc;

use steadfast_core::{Change, ChangeBatch, LeaseId, Outcome, Revision, Transaction};

use super::{Checked, MS, World};
use crate::checker::{Author, Violation};
use crate::etcd::narrow;
use crate::event::{Address, Event, Scope};

/// How late the store may be with ending a lease, in milliseconds: it looks twice a second.
const LEASE_LATENESS_MS: u64 = 600;
/// Time that a leader's agent needs for each member when it looks at what has changed.
const LOOK_MICROS_PER_MEMBER: u64 = 5;

impl World {
    /// Does a transaction at the store. `None` when it was refused.
    pub(super) fn transact(
        &mut self,
        transaction: &Transaction,
        author: &Author,
    ) -> Result<Option<Outcome>, Violation> {
        match self.etcd.transact(transaction) {
            Ok((outcome, batch)) => {
                if let Some(batch) = batch {
                    self.publish(&batch, author)?;
                }
                Ok(Some(outcome))
            }
            Err(refusal) => {
                self.refused(&refusal);
                Ok(None)
            }
        }
    }

    pub(super) fn publish(&mut self, batch: &Rc<ChangeBatch>, author: &Author) -> Checked {
        for change in &batch.changes {
            let (key, value) = match change {
                Change::Put(entry) => (&entry.key, Some(entry)),
                Change::Delete { key } => (key, None),
            };
            let text = value.map(|entry| entry.value.as_str());
            self.note(|| format!("store: {key} = {}", text.unwrap_or("(gone)")));
            self.checker.stored(batch.revision.0, key, value, author)?;
        }
        let drains = self.checker.drains();
        if drains > self.restarts {
            self.restarts = drains;
            self.faults_in_restart(drains);
        }
        let narrowed = narrow(batch, &self.common).map(Rc::new);
        let is_common = narrowed.is_some();
        self.common_log.extend(narrowed);
        for index in 0..self.nodes.len() {
            let life = self.nodes[index].life;
            let address = Address { node: index, life };
            let scope = self
                .session(address)
                .filter(|session| session.watch.number != 0)
                .map(|session| session.watch.scope);
            if scope == Some(Scope::Whole) || (is_common && scope.is_some()) {
                self.pump(address);
            }
        }
        Ok(())
    }

    /// Sends a watcher what it has not been sent, if there is a way to it.
    pub(super) fn pump(&mut self, address: Address) {
        let now = self.now;
        let there = now >= self.outage.down_until;
        if !there || !self.nodes[address.node].hears_store(now) {
            return;
        }
        let slow = if now < self.outage.slow_until {
            self.outage.slow_way_ms
        } else {
            self.schedule.pace.store_ms
        };
        let mut delay = self.delay(slow);
        if now < self.outage.stale_until {
            delay += self.random.between(0, 1_000 * MS);
        }
        let Some(agent) = self.nodes[address.node].agent.as_mut() else {
            return;
        };
        let Some(session) = agent.session.as_mut() else {
            return;
        };
        let watch = &mut session.watch;
        watch.busy = watch.busy.max(now + delay);
        let (at, number, scope) = (watch.busy, watch.number, watch.scope);
        let batches: Vec<_> = match scope {
            Scope::Common => self
                .common_log
                .get(watch.sent..)
                .map(<[_]>::to_vec)
                .unwrap_or_default(),
            Scope::Whole => {
                let from = i64::try_from(watch.sent)
                    .unwrap_or(i64::MAX)
                    .saturating_add(2);
                self.etcd
                    .changes_since(Revision(from))
                    .map(<[_]>::to_vec)
                    .unwrap_or_default()
            }
        };
        watch.sent += batches.len();
        self.traffic.changes += batches.len() as u64;
        for batch in batches {
            self.at(at, Event::Changed(address, scope, number, batch));
        }
    }

    /// Begins a watch after `revision`. If that is forgotten, the watch ends at once.
    pub(super) fn begin_watch(&mut self, address: Address, scope: Scope, revision: Revision) {
        let number = self.number();
        let after = usize::try_from(revision.0 - 1).unwrap_or(0);
        let sent = match scope {
            Scope::Whole => after,
            Scope::Common => self
                .common_log
                .partition_point(|batch| batch.revision <= revision),
        };
        let forgotten = self.etcd.changes_since(Revision(revision.0 + 1)).is_err();
        let now = self.now;
        if let Some(session) = self.session_mut(address) {
            let watch = &mut session.watch;
            watch.number = number;
            watch.newest = Revision(0);
            watch.scope = scope;
            watch.sent = sent;
            watch.busy = watch.busy.max(now);
            watch.arrived.clear();
        }
        if forgotten {
            self.after(MS, Event::Missed(address, scope, number));
        } else {
            self.pump(address);
        }
    }

    /// Watches that had no way go on where they were, unless that is forgotten.
    pub(super) fn resume_watches(&mut self) {
        for node in 0..self.nodes.len() {
            let life = self.nodes[node].life;
            let address = Address { node, life };
            let Some(session) = self.session(address).filter(|s| s.watch.number != 0) else {
                continue;
            };
            let (scope, number, sent) = (
                session.watch.scope,
                session.watch.number,
                session.watch.sent,
            );
            let next = match scope {
                Scope::Common => self.common_log.get(sent).map(|batch| batch.revision.0),
                // A watch that is broken is far beyond all that there is.
                Scope::Whole => i64::try_from(sent)
                    .ok()
                    .and_then(|sent| sent.checked_add(2)),
            };
            let behind = next.is_some_and(|next| next <= self.etcd.revision().0);
            if !behind {
                continue;
            }
            let forgotten = next.is_some_and(|next| next <= self.etcd.oldest().0);
            if forgotten && self.nodes[node].hears_store(self.now) {
                self.after(MS, Event::Missed(address, scope, number));
            } else {
                self.pump(address);
            }
        }
    }

    /// When the leader's agent is done with looking at what it has been told.
    pub(super) fn time_to_look(&self) -> u64 {
        self.nodes.len() as u64 * LOOK_MICROS_PER_MEMBER
    }

    // --- leases ---

    /// Looks again when the lease is due.
    pub(super) fn watch_lease(&mut self, lease: LeaseId) {
        if let Some(deadline) = self.etcd.deadline(lease) {
            let late = self.random.between(1, LEASE_LATENESS_MS * MS);
            self.at(deadline + late, Event::LeaseDue(lease));
        }
    }

    pub(super) fn lease_due(&mut self, lease: LeaseId) -> Checked {
        let Some(deadline) = self.etcd.deadline(lease) else {
            return Ok(());
        };
        if deadline > self.now || self.now < self.outage.down_until {
            // Renewed meanwhile; or nobody is there to end it, and whoever leads the store next begins it anew.
            let at = deadline.max(self.outage.down_until) + MS;
            self.at(at, Event::LeaseDue(lease));
            return Ok(());
        }
        self.end_lease(lease, &Author::Expiry)
    }

    pub(super) fn end_lease(&mut self, lease: LeaseId, author: &Author) -> Checked {
        match self.etcd.revoke(lease) {
            Ok(Some(batch)) => self.publish(&batch, author),
            Ok(None) | Err(_) => Ok(()),
        }
    }
}
