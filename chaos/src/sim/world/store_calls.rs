// SPDX-License-Identifier: Apache-2.0
//! Calls to the store, on their way there and back.

use std::rc::Rc;

use steadfast_core::{
    Change, ChangeBatch, Condition, Incarnation, LeaderRecord, LeaseId, Operation, Outcome,
    Transaction,
};

use super::{Checked, MS, World};
use crate::sim::checker::Violation;
use crate::sim::event::{Address, Event, Listing, Who};
use crate::sim::plant::Plant;

/// How long a caller waits for an answer, in milliseconds.
const CALL_TIMEOUT_MS: u64 = 1_000;

impl World {
    /// Sends a write of a machine on its way.
    pub(super) fn send_write(&mut self, address: Address, transaction: Transaction) -> Checked {
        self.sequence += 1;
        let call = self.sequence;
        let node = &mut self.nodes[address.node];
        let Some(desk) = node.desk(address) else {
            return Ok(());
        };
        if desk.call.replace(call).is_some() {
            let message = format!(
                "{} has two writes outstanding ({:?})",
                self.nodes[address.node].name, address.who
            );
            return self.checker.violation("one write at a time", message);
        }
        let delay = self.delay(self.schedule.pace.store_ms);
        self.after(delay, Event::WriteArrives(address, call, transaction));
        Ok(())
    }

    pub(super) fn write_arrives(
        &mut self,
        address: Address,
        call: u64,
        transaction: Transaction,
    ) -> Checked {
        let transaction = self.tampered(address, transaction);
        let lost = self.random.chance(self.schedule.pace.lost_percent);
        let down = self.now < self.store_down_until;
        if lost || down {
            self.note(|| format!("store: no answer for {address:?}"));
            match self.random.below(if down { 1 } else { 3 }) {
                0 => {}
                1 => drop(self.transact(&transaction)?),
                _ => {
                    let late = self.random.between(1, 2 * CALL_TIMEOUT_MS) * MS;
                    self.after(late, Event::LateWrite(transaction));
                }
            }
            let wait = self.random.between(50, CALL_TIMEOUT_MS) * MS;
            self.after(wait, Event::WriteAnswered(address, call, None));
            return Ok(());
        }
        let outcome = self.transact(&transaction)?;
        let delay = self.delay(self.schedule.pace.store_ms);
        self.after(delay, Event::WriteAnswered(address, call, Some(outcome)));
        Ok(())
    }

    pub(super) fn election_arrives(
        &mut self,
        address: Address,
        transaction: &Transaction,
    ) -> Checked {
        let lost = self.random.chance(self.schedule.pace.lost_percent);
        let down = self.now < self.store_down_until;
        let mut won = None;
        if !down {
            let outcome = self.transact(transaction)?;
            let epoch = self
                .store
                .get(&self.keys.leader())
                .map(|entry| entry.create_revision);
            if let Some(epoch) = epoch.filter(|_| outcome.succeeded && !lost) {
                won = Some((epoch, self.listing(address)));
            }
        }
        let delay = self.delay(self.schedule.pace.store_ms);
        self.answer_watch(address, delay);
        self.after(delay, Event::ElectionAnswered(address, won));
        Ok(())
    }

    pub(super) fn read_arrives(&mut self, address: Address) {
        if self.nodes[address.node].desk(address).is_none() {
            return;
        }
        if self.now < self.store_down_until {
            self.after(200 * MS, Event::ReadArrives(address));
            return;
        }
        let listing = self.listing(address);
        let delay = self.delay(self.schedule.pace.store_ms);
        self.answer_watch(address, delay);
        self.after(delay, Event::ReadAnswered(address, listing));
    }

    /// Does a transaction at the store, and tells everybody who watches.
    pub(super) fn transact(&mut self, transaction: &Transaction) -> Result<Outcome, Violation> {
        let (outcome, batch) = self.store.transact(transaction);
        if let Some(batch) = batch {
            self.publish(batch)?;
        }
        Ok(outcome)
    }

    pub(super) fn end_lease(&mut self, lease: LeaseId) -> Checked {
        match self.store.end_lease(lease) {
            Some(batch) => self.publish(batch),
            None => Ok(()),
        }
    }

    /// The transaction by which a node stands for election: it takes a free seat, or one that an
    /// earlier life of the same keeper's agent held.
    pub(super) fn candidature(&self, index: usize) -> Transaction {
        let node = &self.nodes[index];
        let key = self.keys.leader();
        let record = LeaderRecord::new(node.name.clone(), Incarnation(node.incarnation));
        let seat = node
            .member()
            .and_then(|member| member.view().leader())
            .map(|leader| leader.mod_revision);
        Transaction {
            when: vec![Condition::ModRevision {
                key: key.clone(),
                revision: seat.unwrap_or_default(),
            }],
            then: vec![Operation::Put {
                key,
                value: serde_json::to_string(&record).unwrap_or_default(),
                lease: Some(node.lease),
            }],
        }
    }

    fn publish(&mut self, batch: ChangeBatch) -> Checked {
        for change in &batch.changes {
            let (key, value) = match change {
                Change::Put(entry) => (&entry.key, Some(entry.value.as_str())),
                Change::Delete { key } => (key, None),
            };
            self.note(|| format!("store: {key} = {}", value.unwrap_or("(gone)")));
            self.checker.stored(batch.revision.0, key, value)?;
        }
        let batch = Rc::new(batch);
        for node in 0..self.nodes.len() {
            for who in [Who::Member, Who::Leader] {
                let life = self.nodes[node].life;
                self.publish_to(Address { node, life, who }, &batch);
            }
        }
        Ok(())
    }

    fn publish_to(&mut self, address: Address, batch: &Rc<ChangeBatch>) {
        let delay = self.delay(self.schedule.pace.store_ms);
        let earliest = self.now + delay;
        let Some(desk) = self.nodes[address.node]
            .desk(address)
            .filter(|desk| desk.watch != 0)
        else {
            return;
        };
        desk.watch_busy = desk.watch_busy.max(earliest);
        let (at, watch) = (desk.watch_busy, desk.watch);
        self.at(at, Event::Changed(address, watch, Rc::clone(batch)));
    }

    /// Everything in the store, and a subscription to what comes after it.
    fn listing(&mut self, address: Address) -> Listing {
        self.sequence += 1;
        let watch = self.sequence;
        if let Some(desk) = self.nodes[address.node].desk(address) {
            desk.watch = watch;
        }
        Listing {
            entries: self.store.list(),
            revision: self.store.revision(),
            watch,
        }
    }

    /// No change may arrive before the listing that it follows.
    fn answer_watch(&mut self, address: Address, delay: u64) {
        let at = self.now + delay;
        if let Some(desk) = self.nodes[address.node].desk(address) {
            desk.watch_busy = desk.watch_busy.max(at);
        }
    }

    /// The planted bugs that change what a leader writes.
    fn tampered(&mut self, address: Address, mut transaction: Transaction) -> Transaction {
        if address.who != Who::Leader {
            return transaction;
        }
        let (plan, ledger) = (self.keys.plan(), self.keys.ledger());
        for operation in &mut transaction.then {
            let Operation::Put { key, value, .. } = operation else {
                continue;
            };
            let Ok(mut record) = serde_json::from_str::<serde_json::Value>(value) else {
                continue;
            };
            let generation = record["generation"].as_u64().unwrap_or(0);
            if self.plant == Some(Plant::ReuseGeneration) && *key == plan && generation > 1 {
                record["generation"] = (generation - 1).into();
                record["restart_count"] = (generation - 2).into();
            } else if self.plant == Some(Plant::DoubleCharge) && *key == ledger {
                let charged = record["restarts_charged"].as_u64().unwrap_or(0);
                record["restarts_charged"] = (charged * 2).into();
            } else {
                continue;
            }
            *value = record.to_string();
        }
        transaction
    }
}
