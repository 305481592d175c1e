// SPDX-License-Identifier: Apache-2.0
//! Faults of the store and of the links, and their end.

use steadfast_core::{LeaseId, Operation, Revision, Transaction};

use super::{Checked, MS, Outage, World};
use crate::checker::Author;
use crate::event::{Address, Event};
use crate::schedule::FaultKind;

impl World {
    /// Says whether the fault is one of the store.
    pub(super) fn fault_of_store(
        &mut self,
        kind: FaultKind,
    ) -> Result<bool, crate::checker::Violation> {
        let now = self.now;
        let outage = &mut self.outage;
        match kind {
            FaultKind::StoreDown { for_ms } => {
                outage.down_until = outage.down_until.max(now + for_ms * MS);
                let until = outage.down_until;
                self.at(until, Event::StoreBack);
                self.checker.causes().disturbed(for_ms * MS);
            }
            FaultKind::StoreLeaderChange => {
                self.etcd.change_leader(now);
                self.checker.causes().disturbed(0);
            }
            FaultKind::StoreSlow { for_ms, way_ms } => {
                outage.slow_until = outage.slow_until.max(now + for_ms * MS);
                outage.slow_way_ms = way_ms;
                self.checker
                    .causes()
                    .disturbed(for_ms * MS + 4 * way_ms * MS);
            }
            FaultKind::StaleReads { for_ms, behind } => {
                outage.stale_until = outage.stale_until.max(now + for_ms * MS);
                outage.stale_behind = behind.into();
                self.checker.causes().disturbed(for_ms * MS);
            }
            FaultKind::Compaction => {
                let newest = self.etcd.revision();
                self.etcd.compact(Revision(newest.0 - 1));
                self.resume_watches();
            }
            FaultKind::LeadershipLost => {
                let key = self.keys.leader();
                let then = vec![Operation::Delete { key }];
                self.transact(&Transaction { when: vec![], then }, &Author::Hand)?;
                self.checker.causes().disturbed(0);
            }
            _ => return Ok(false),
        }
        self.note(|| format!("FAULT {kind:?}"));
        self.count(kind.name());
        Ok(true)
    }

    /// Says whether the fault is one of a node's links, or of its lease.
    pub(super) fn fault_of_link(&mut self, index: usize, kind: FaultKind) -> bool {
        let now = self.now;
        if matches!(kind, FaultKind::CutFromAll { .. }) {
            self.last_step_of_one(index);
        }
        let links = &mut self.nodes[index].links;
        let longer = |until: &mut u64, for_ms: u64, wanted: bool| {
            if wanted {
                *until = (*until).max(now + for_ms * MS);
            }
        };
        match kind {
            FaultKind::CutFromStore {
                for_ms,
                sends,
                hears,
            } => {
                longer(&mut links.to_store, for_ms, sends);
                longer(&mut links.from_store, for_ms, hears);
                self.checker.causes().disturbed(for_ms * MS);
                self.after(for_ms * MS, Event::Mended);
            }
            FaultKind::CutFromAll {
                for_ms,
                sends,
                hears,
            } => {
                longer(&mut links.to_all, for_ms, sends);
                longer(&mut links.from_all, for_ms, hears);
                self.checker.causes().disturbed(for_ms * MS);
                self.after(for_ms * MS, Event::Mended);
            }
            FaultKind::DataCut { to, for_ms } => {
                let until = now + for_ms * MS;
                self.cuts.push((index, to as usize, until));
            }
            FaultKind::WatchBroken { gap_ms } => {
                self.watch_broken(index, gap_ms);
                self.checker.causes().disturbed(gap_ms * MS);
            }
            FaultKind::LeaseRevoked => {
                let lease = self.lease_of(index);
                if let Some(lease) = lease {
                    self.after(0, Event::Revoked(lease));
                    self.checker.causes().disturbed(0);
                }
            }
            _ => return false,
        }
        self.landed(index, kind);
        true
    }

    fn lease_of(&self, index: usize) -> Option<LeaseId> {
        let key = self.keys.member(&self.nodes[index].name);
        self.etcd.get(&key)?.lease
    }

    fn watch_broken(&mut self, index: usize, gap_ms: u64) {
        let life = self.nodes[index].life;
        let address = Address { node: index, life };
        let Some(session) = self.session_mut(address) else {
            return;
        };
        // Nothing more comes until somebody notices.
        let (scope, number) = (session.watch.scope, session.watch.number);
        session.watch.sent = usize::MAX / 2;
        self.after(gap_ms * MS, Event::Missed(address, scope, number));
    }

    /// Whether what the ranks of these nodes send to one another gets lost somewhere.
    pub(super) fn is_data_cut(&self, nodes: &[usize]) -> bool {
        self.cuts.iter().any(|(from, to, until)| {
            *until > self.now && from != to && nodes.contains(from) && nodes.contains(to)
        })
    }

    pub(super) fn mended(&mut self) -> Checked {
        self.resume_watches();
        Ok(())
    }

    /// The store answers again. Its cluster has elected a leader, so leases begin anew.
    pub(super) fn store_back(&mut self) -> Checked {
        if self.now >= self.outage.down_until {
            self.etcd.change_leader(self.now);
            self.resume_watches();
        }
        Ok(())
    }

    /// Nothing breaks any more; what is to come back does.
    pub(super) fn heal(&mut self) -> Checked {
        self.note(|| "HEAL".to_owned());
        self.healed = true;
        let was_down = self.now < self.outage.down_until;
        self.outage = Outage::default();
        self.cuts.clear();
        if was_down {
            self.etcd.change_leader(self.now);
        }
        for index in 0..self.nodes.len() {
            let now = self.now;
            let node = &mut self.nodes[index];
            node.links = crate::node::Links::default();
            node.unfit_until = node.unfit_until.min(now);
            let was_paused = node.is_paused(now);
            node.paused_until = node.paused_until.min(now);
            let life = node.life;
            if let Some(agent) = &mut node.agent {
                agent.paused_until = agent.paused_until.min(now);
            }
            for worker in &mut node.keeper.workers {
                worker.hangs = false;
            }
            // First: what an agent has missed while the whole node stood still comes after what it had missed before.
            self.agent_wakes(Address { node: index, life })?;
            if was_paused {
                self.node_wakes(index)?;
            }
            if self.nodes[index].returning {
                let delay = self.random.between(0, 2_000 * MS);
                self.after(delay, Event::NodeReturns(index));
            }
        }
        self.resume_watches();
        Ok(())
    }
}
