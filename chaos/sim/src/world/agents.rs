// SPDX-License-Identifier: Apache-2.0
//! Agents: their start, what their machines are told, and what these want.

use std::rc::Rc;
use std::time::Duration;

use steadfast_core::{
    ChangeBatch, Condition, Grow, Incarnation, JobSpec, LeaderEffect, LeaderEvent, LeaderRecord,
    LeaderState, Lease, LeaseId, MemberEffect, MemberEvent, MemberSettings, MemberState, Operation,
    Revision, Transaction, WitnessMode,
};

use super::looking::EVERY_MS;
use super::{Checked, MS, World};
use crate::agent::{Agent, Session};
use crate::event::{Address, Event, Request, Scope};
use crate::schedule::{Growth, Witness};

/// How often to look whether another supervisor still stands under our name, in milliseconds.
const NAME_LOOK: Duration = Duration::from_millis(500);
/// How long another supervisor of that name is waited for: two leases.
const LEASES_OF_PATIENCE: u64 = 2;

impl World {
    pub(super) fn is_alive(&self, address: Address) -> bool {
        let node = &self.nodes[address.node];
        node.life == address.life && node.agent.is_some()
    }

    /// The session of that life of the agent, if it is the present one and has begun.
    pub(super) fn session(&self, address: Address) -> Option<&Session> {
        let node = &self.nodes[address.node];
        if node.life != address.life {
            return None;
        }
        node.agent.as_ref()?.session.as_deref()
    }

    pub(super) fn session_mut(&mut self, address: Address) -> Option<&mut Session> {
        let node = &mut self.nodes[address.node];
        if node.life != address.life {
            return None;
        }
        node.agent.as_mut()?.session.as_deref_mut()
    }

    pub(super) fn agent_starts(&mut self, index: usize, incarnation: u64) -> Checked {
        let seen = self.checkpoints_seen();
        let node = &mut self.nodes[index];
        if !node.served || node.incarnation != incarnation || node.agent.is_some() {
            return Ok(());
        }
        node.life += 1;
        node.keeper.agents += 1;
        node.agent = Some(Agent {
            inbox: seen.into_iter().chain(node.resume()).collect(),
            ..Agent::default()
        });
        let address = Address {
            node: index,
            life: node.life,
        };
        self.note(|| format!("node-{index}: agent {} starts", address.life));
        if self.schedule.has_looks() {
            self.nodes[index].looked_at = false;
            self.after(MS, Event::LooksAround(address));
        }
        self.send(address, Request::Open);
        Ok(())
    }

    // --- what comes in ---

    pub(super) fn heard(&mut self, address: Address, event: MemberEvent) -> Checked {
        let node = &mut self.nodes[address.node];
        let Some(agent) = node.agent.as_mut().filter(|_| node.life == address.life) else {
            return Ok(());
        };
        if agent.session.is_none() {
            agent.inbox.push(event);
            return Ok(());
        }
        self.tell_member(address, event)?;
        self.settle(address);
        Ok(())
    }

    pub(super) fn changed(
        &mut self,
        address: Address,
        scope: Scope,
        number: u64,
        batch: Rc<ChangeBatch>,
    ) -> Checked {
        let busy = self.time_to_look();
        let Some(session) = self.session_mut(address) else {
            return Ok(());
        };
        if session.watch.number != number {
            return Ok(());
        }
        let before = std::mem::replace(&mut session.watch.newest, batch.revision);
        if batch.revision < before {
            let message = format!("{} came after {}", batch.revision.0, before.0);
            return self.checker.violation("order of changes", message);
        }
        if scope == Scope::Whole {
            // All that has come while it looked at what came before is looked at together.
            session.watch.arrived.push(batch);
            if session.watch.arrived.len() == 1 {
                self.after(busy, Event::Looks(address, number));
            }
            return Ok(());
        }
        self.tell_member(address, MemberEvent::Changed(ChangeBatch::clone(&batch)))?;
        self.settle(address);
        Ok(())
    }

    pub(super) fn looks(&mut self, address: Address, number: u64) -> Checked {
        let Some(session) = self.session_mut(address) else {
            return Ok(());
        };
        if session.watch.number != number {
            return Ok(());
        }
        let arrived = std::mem::take(&mut session.watch.arrived);
        let batches: Vec<ChangeBatch> = arrived
            .iter()
            .map(|batch| ChangeBatch::clone(batch))
            .collect();
        for batch in &batches {
            self.tell_member(address, MemberEvent::Changed(batch.clone()))?;
        }
        self.tell_leader(address, LeaderEvent::Changed(batches))?;
        self.settle(address);
        Ok(())
    }

    pub(super) fn missed(&mut self, address: Address, _: Scope, number: u64) -> Checked {
        let is_it = |session: &&mut Session| session.watch.number == number;
        if let Some(session) = self.session_mut(address).filter(is_it) {
            session.watch.number = 0;
            self.relist(address);
        }
        Ok(())
    }

    pub(super) fn timer(&mut self, address: Address, at: u64) -> Checked {
        let now = self.nodes[address.node].clock.show(self.now);
        let Some(session) = self.session_mut(address) else {
            return Ok(());
        };
        if session.timer != Some(at) {
            return Ok(());
        }
        session.timer = None;
        let due = |time: Option<steadfast_core::Instant>| time.is_some_and(|time| time <= now);
        let renew = due(session.renew_at);
        let relist = due(session.relist_at);
        let campaign = due(session.campaign_at);
        let look = due(session.look_at);
        let member = due(session.member.next_deadline());
        let leader = session
            .leader
            .as_ref()
            .is_some_and(|leader| due(leader.next_deadline()));
        if renew {
            session.renew_at = None;
            self.renew_leases(address);
        }
        if relist {
            self.relist(address);
        }
        if campaign && let Some(session) = self.session_mut(address) {
            session.campaign_at = None;
        }
        if look {
            self.look_for_own(address);
        }
        if member {
            self.tell_member(address, MemberEvent::Tick)?;
        }
        if leader {
            self.tell_leader(address, LeaderEvent::Tick)?;
        }
        self.settle(address);
        Ok(())
    }

    // --- the machines ---

    pub(super) fn tell_member(&mut self, address: Address, event: MemberEvent) -> Checked {
        let now = self.nodes[address.node].clock.show(self.now);
        let traced = self.trace.is_some().then(|| format!("{event:?}"));
        let Some(session) = self.session_mut(address) else {
            return Ok(());
        };
        let effects = session.member.handle(now, event);
        if session.member.awaits_its_name() && session.look_at.is_none() {
            session.look_at = Some(now + NAME_LOOK);
        }
        if let Some(event) = traced {
            let (state, reason) = (session.member.state(), session.member.reason());
            let line = format!(
                "node-{}: {event} -> {state:?} ({reason}), {effects:?}",
                address.node
            );
            if reason.is_empty() {
                let message = format!("node-{} is {state:?} and has no reason", address.node);
                return self.checker.violation("reason", message);
            }
            self.note(|| line);
        }
        for effect in effects {
            self.member_effect(address, effect)?;
        }
        Ok(())
    }

    pub(super) fn tell_leader(&mut self, address: Address, event: LeaderEvent) -> Checked {
        let now = self.nodes[address.node].clock.show(self.now);
        let Some(session) = self.session_mut(address) else {
            return Ok(());
        };
        let Some(leader) = &mut session.leader else {
            return Ok(());
        };
        let effects = leader.handle(now, event);
        let epoch = leader.epoch();
        let (reason, state) = (leader.reason(), leader.state());
        if state == LeaderState::Deposed {
            session.leader = None;
            session.calls.leader_write = 0;
            if let Some(lease) = &mut session.lease {
                lease.has_leader(lease.id());
            }
            self.relist(address);
        }
        self.note(|| {
            let index = address.node;
            format!("node-{index}: leader {state:?} ({reason}), {effects:?}")
        });
        if reason.is_empty() {
            let message = format!(
                "the leader on node-{} is {state:?} and has no reason",
                address.node
            );
            return self.checker.violation("reason", message);
        }
        for effect in effects {
            if let LeaderEffect::Write(transaction) = effect {
                self.one_write(address, |session| session.calls.leader_write)?;
                let number = self.send(address, Request::LeaderWrite(transaction, epoch));
                if let Some(session) = self.session_mut(address) {
                    session.calls.leader_write = number;
                }
            }
        }
        Ok(())
    }

    fn member_effect(&mut self, address: Address, effect: MemberEffect) -> Checked {
        match effect {
            MemberEffect::Write(transaction) => {
                self.one_write(address, |session| session.calls.member_write)?;
                let number = self.send(address, Request::MemberWrite(transaction));
                if let Some(session) = self.session_mut(address) {
                    session.calls.member_write = number;
                }
                Ok(())
            }
            MemberEffect::Say(_) => Ok(()),
            MemberEffect::Look => {
                self.looks_at_itself(address);
                Ok(())
            }
            MemberEffect::Finish(result) => {
                let code = i64::from(result.exit_code());
                let rule = serde_json::to_value(result.rule).unwrap_or_default();
                self.leaves(address.node, code, rule.as_str().unwrap_or_default())
            }
            command => {
                if let MemberEffect::Stop { reason, .. } = &command {
                    self.checker.stops_on_request(address.node, reason)?;
                }
                if let MemberEffect::Start { plan } = &command
                    && self.nodes[address.node].seen_unfit
                {
                    // The leader cannot have known.
                    self.checker.seen_unfit(plan.generation.0);
                }
                if matches!(command, MemberEffect::Start { .. })
                    && let Some(session) = self.session_mut(address)
                    && let Some(lease) = &mut session.lease
                {
                    // A plan can name us before our own write is answered; that it does is the answer.
                    lease.is_named_by_plan();
                }
                // What vouches for the workers must be known before they are started.
                self.tell_fence(address);
                let delay = self.delay(self.schedule.pace.link_ms);
                let at = self.link(address.node, 0, delay);
                let session = self.session(address);
                let lease = session.and_then(|session| session.lease.as_ref());
                let tenure = lease.map(Lease::tenure).unwrap_or_default();
                self.at(at, Event::ToKeeper(address, Box::new(command), tenure));
                Ok(())
            }
        }
    }

    fn one_write(&self, address: Address, outstanding: impl Fn(&Session) -> u64) -> Checked {
        if self.session(address).is_some_and(|s| outstanding(s) != 0) {
            let message = format!("node-{} has two writes outstanding", address.node);
            return self.checker.violation("one write at a time", message);
        }
        Ok(())
    }

    /// After everything that an agent does: the keeper knows the fence, and the timer is set.
    pub(super) fn settle(&mut self, address: Address) {
        self.campaign(address);
        self.tell_fence(address);
        let clock = self.nodes[address.node].clock;
        let earliest = self.now + 1;
        let Some(session) = self.session_mut(address) else {
            return;
        };
        let deadline = [
            session.member.next_deadline(),
            session
                .leader
                .as_ref()
                .and_then(steadfast_core::Leader::next_deadline),
            session.campaign_at,
            session.relist_at,
            session.look_at,
            session.renew_at,
        ];
        let wanted = deadline
            .into_iter()
            .flatten()
            .min()
            .map(|deadline| clock.time_of(deadline).max(earliest));
        let Some(at) = wanted else {
            return;
        };
        // One that is set too early looks again.
        if session.timer.is_none_or(|set| at < set) {
            session.timer = Some(at);
            self.at(at, Event::Timer(address, at));
        }
    }

    // --- what a session does besides ---

    /// Tries to become the leader if nobody is, or if the leader was an earlier life of this node's own agent.
    pub(super) fn campaign(&mut self, address: Address) {
        let now = self.nodes[address.node].clock.show(self.now);
        if let Some(session) = self.session_mut(address)
            && session.member.view().leader().is_some()
        {
            session.vacant_since = None;
        }
        let node = &self.nodes[address.node];
        let Some(session) = self.session(address) else {
            return;
        };
        let busy = session.calls.election != 0 || session.campaign_at.is_some();
        if session.leader.is_some()
            || session.elected.is_some()
            || busy
            || !session.member.may_lead()
        {
            return;
        }
        match session.member.view().leader() {
            None => {
                let delay = session.member.campaign_delay();
                let since = session.vacant_since.unwrap_or(now);
                if let Some(session) = self.session_mut(address) {
                    session.vacant_since = Some(since);
                    session.campaign_at = (now < since + delay).then_some(since + delay);
                    if session.campaign_at.is_none() {
                        self.elect(address);
                    }
                }
            }
            Some(leader) if leader.value.node == node.name => {
                let (key, revision) = (self.keys.leader(), leader.mod_revision);
                let transaction = Transaction {
                    when: vec![Condition::ModRevision {
                        key: key.clone(),
                        revision,
                    }],
                    then: vec![Operation::Delete { key }],
                };
                let number = self.send(address, Request::Retire(transaction));
                if let Some(session) = self.session_mut(address) {
                    session.calls.election = number;
                }
            }
            Some(_) => {}
        }
    }

    pub(super) fn elect(&mut self, address: Address) {
        let transaction = Transaction {
            when: vec![Condition::absent(self.keys.leader())],
            then: vec![self.put_leader(address)],
        };
        let number = self.send(address, Request::Elect(transaction));
        if let Some(session) = self.session_mut(address) {
            session.calls.election = number;
        }
    }

    pub(super) fn move_leader(&mut self, address: Address, epoch: Revision, lease: LeaseId) {
        let mut operation = self.put_leader(address);
        if let Operation::Put { lease: bound, .. } = &mut operation {
            *bound = Some(lease);
        }
        let transaction = Transaction {
            when: vec![Condition::CreateRevision {
                key: self.keys.leader(),
                revision: epoch,
            }],
            then: vec![operation],
        };
        let number = self.send(address, Request::MoveLeader(transaction));
        if let Some(session) = self.session_mut(address) {
            session.calls.leader_move = number;
        }
    }

    fn put_leader(&self, address: Address) -> Operation {
        let node = &self.nodes[address.node];
        let lease = self
            .session(address)
            .and_then(|session| Some(session.lease.as_ref()?.id()));
        Operation::Put {
            key: self.keys.leader(),
            value: LeaderRecord::new(node.name.clone(), Incarnation(node.incarnation)).to_json(),
            lease,
        }
    }

    pub(super) fn relist(&mut self, address: Address) {
        let alone = self.schedule.is_alone();
        let Some(session) = self.session_mut(address) else {
            return;
        };
        session.relist_at = None;
        let everything = alone || session.elected.is_some() || session.leader.is_some();
        let request = if everything {
            Request::LeaderRelist
        } else {
            Request::Relist
        };
        let number = self.send(address, request);
        if let Some(session) = self.session_mut(address) {
            session.calls.relisting = number;
        }
    }

    fn renew_leases(&mut self, address: Address) {
        let leases: Vec<_> = self
            .session(address)
            .and_then(|session| session.lease.as_ref())
            .map(|lease| lease.all().iter().map(|(id, _)| *id).collect())
            .unwrap_or_default();
        let Some(first) = leases.first() else {
            return;
        };
        let number = self.send(address, Request::Renew(*first, leases.get(1).copied()));
        if let Some(session) = self.session_mut(address) {
            session.calls.renewal = number;
        }
    }

    fn look_for_own(&mut self, address: Address) {
        let Some(session) = self.session_mut(address) else {
            return;
        };
        session.look_at = None;
        if session.calls.own_record != 0 {
            return;
        }
        session.calls.own_record_for = None;
        let number = self.send(address, Request::OwnRecord);
        if let Some(session) = self.session_mut(address) {
            session.calls.own_record = number;
        }
    }

    /// A short lease while steps vouch for the workers, a long one otherwise.
    pub(super) fn choose_lease(&mut self, address: Address) {
        let pace = &self.schedule.pace;
        let (long, short) = (pace.lease_ms, pace.witness_lease_ms);
        let Some(session) = self.session_mut(address) else {
            return;
        };
        let plan = session.member.view().plan().map(|plan| &plan.value);
        let running = match session.member.state() {
            MemberState::Running(generation) => plan
                .filter(|plan| plan.generation == generation && plan.is_run())
                .filter(|_| session.member.best_step().is_some()),
            _ => None,
        };
        let wanted = match running {
            Some(plan) if plan.witness_ms > 0 => short,
            _ => long,
        };
        let lacks = session
            .lease
            .as_ref()
            .is_some_and(|lease| lease.lacks(Duration::from_millis(wanted)));
        if lacks && session.calls.grant == 0 {
            let number = self.send(address, Request::Grant { ttl: wanted * MS });
            if let Some(session) = self.session_mut(address) {
                session.calls.grant = number;
            }
        }
    }

    /// The supervisor has ended by itself: its lease is revoked.
    fn leaves(&mut self, index: usize, exit_code: i64, rule: &str) -> Checked {
        self.checker.finished(index, exit_code, rule)?;
        let life = self.nodes[index].life;
        let address = Address { node: index, life };
        let leases: Vec<_> = self
            .session(address)
            .and_then(|session| session.lease.as_ref())
            .map(|lease| lease.all().iter().map(|(id, _)| *id).collect())
            .unwrap_or_default();
        if self.nodes[index].sends_to_store(self.now) && self.now >= self.outage.down_until {
            let delay = self.delay(self.schedule.pace.store_ms);
            for lease in leases {
                self.after(delay, Event::Revoked(lease));
            }
        }
        self.nodes[index].left = true;
        self.supervisor_ends(index);
        Ok(())
    }

    pub(super) fn member_settings(&self, index: usize, lease: Option<LeaseId>) -> MemberSettings {
        let (shape, pace) = (&self.schedule.shape, &self.schedule.pace);
        let node = &self.nodes[index];
        let mut spec = JobSpec::new(
            shape.min_nodes,
            shape.max_nodes,
            shape.max_restarts,
            "command".to_owned(),
        );
        spec.node_multiple = shape.node_multiple;
        spec.wait_for_nodes_ms = shape.wait_for_nodes_ms;
        spec.shrink_after_ms = shape.shrink_after_ms;
        spec.grow = match shape.grow {
            Growth::Never => Grow::Never,
            Growth::AtCheckpoint => Grow::AtCheckpoint,
            Growth::Immediately => Grow::Immediately,
        };
        spec.witness = match shape.witness {
            Witness::Off => WitnessMode::Off,
            Witness::Auto => WitnessMode::Auto,
            Witness::On => WitnessMode::On,
        };
        let name = node.name.clone();
        MemberSettings {
            slots: shape.slots,
            restart_grace: Duration::from_millis(pace.restart_grace_ms),
            stop_grace: Duration::from_millis(pace.stop_grace_ms),
            lease,
            name_patience: Duration::from_millis(pace.lease_ms * LEASES_OF_PATIENCE),
            shared: !self.schedule.is_alone(),
            boot: format!("{index}-{}", node.boot),
            machine: format!("{index}"),
            looks_every: self
                .schedule
                .has_looks()
                .then(|| Duration::from_millis(EVERY_MS)),
            ..MemberSettings::new(self.keys.clone(), name, Incarnation(node.incarnation), spec)
        }
    }

    /// When a message that is sent now on this side of the link arrives: after those before it.
    pub(super) fn link(&mut self, index: usize, direction: usize, delay: u64) -> u64 {
        let at = self.now + delay;
        let busy = &mut self.nodes[index].link_busy[direction];
        *busy = (*busy).max(at);
        *busy
    }
}
