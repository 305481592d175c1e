// SPDX-License-Identifier: Apache-2.0
//! Agents: their start, what their machines are told, and what these want.

use std::rc::Rc;
use std::time::Duration;

use steadfast_core::{
    ChangeBatch, Incarnation, JobSpec, Leader, LeaderEffect, LeaderEvent, LeaderSettings,
    LeaderState, LeaseId, Member, MemberEffect, MemberEvent, MemberSettings, Outcome, Revision,
    View,
};

use super::{Checked, MS, World};
use crate::sim::event::{Address, Event, Listing, Who};
use crate::sim::node::{Agent, Desk, Node};
use crate::sim::plant::Plant;

/// How often a member that sees no leader looks again, in milliseconds.
const CANDIDACY_MS: u64 = 300;

impl Node {
    /// The desk of a machine, if that life of the agent is the present one.
    pub(super) fn desk(&mut self, address: Address) -> Option<&mut Desk> {
        if self.life != address.life {
            return None;
        }
        let agent = self.agent.as_mut()?;
        Some(match address.who {
            Who::Member => &mut agent.member_desk,
            Who::Leader => &mut agent.leader_desk,
        })
    }

    pub(super) fn member(&self) -> Option<&Member> {
        self.agent.as_ref().and_then(|agent| agent.member.as_ref())
    }
}

impl World {
    pub(super) fn agent_starts(&mut self, index: usize) {
        let next_lease = self.next_lease;
        let node = &mut self.nodes[index];
        if !node.up || node.left || node.agent.is_some() {
            return;
        }
        node.life += 1;
        if !node.lease_held {
            node.lease = LeaseId(next_lease);
            node.lease_held = true;
            self.next_lease += 1;
        }
        let node = &mut self.nodes[index];
        node.agent = Some(Agent {
            inbox: node.resume(),
            ..Agent::default()
        });
        let address = Address {
            node: index,
            life: node.life,
            who: Who::Member,
        };
        self.note(|| format!("node-{index}: agent {} starts", address.life));
        let delay = self.delay(self.schedule.pace.store_ms);
        self.after(delay, Event::ReadArrives(address));
    }

    pub(super) fn read_answered(&mut self, address: Address, listing: Listing) -> Checked {
        let Some(desk) = self.nodes[address.node].desk(address).copied() else {
            return Ok(());
        };
        if desk.watch != listing.watch {
            return Ok(());
        }
        let Listing {
            entries, revision, ..
        } = listing;
        if address.who == Who::Leader {
            return self.tell_leader(address, LeaderEvent::Relisted { entries, revision });
        }
        if self.nodes[address.node].member().is_some() {
            return self.tell_member(address, MemberEvent::Relisted { entries, revision });
        }
        let view = View::load(self.keys.clone(), &entries, revision);
        let member = Member::new(self.member_settings(address.node), view);
        let Some(agent) = &mut self.nodes[address.node].agent else {
            return Ok(());
        };
        agent.member = Some(member);
        for event in std::mem::take(&mut agent.inbox) {
            self.tell_member(address, event)?;
        }
        self.after(0, Event::Candidacy(address.node, address.life));
        Ok(())
    }

    pub(super) fn write_answered(
        &mut self,
        address: Address,
        call: u64,
        outcome: Option<Outcome>,
    ) -> Checked {
        let desk = self.nodes[address.node].desk(address);
        let Some(desk) = desk.filter(|desk| desk.call == Some(call)) else {
            return Ok(());
        };
        desk.call = None;
        match (address.who, outcome) {
            (Who::Member, Some(outcome)) => {
                self.tell_member(address, MemberEvent::WriteDone(outcome))
            }
            (Who::Member, None) => self.tell_member(address, MemberEvent::WriteFailed),
            (Who::Leader, Some(outcome)) => {
                self.tell_leader(address, LeaderEvent::WriteDone(outcome))
            }
            (Who::Leader, None) => self.tell_leader(address, LeaderEvent::WriteFailed),
        }
    }

    pub(super) fn changed(
        &mut self,
        address: Address,
        watch: u64,
        batch: &Rc<ChangeBatch>,
    ) -> Checked {
        let desk = self.nodes[address.node].desk(address);
        if desk.is_none_or(|desk| desk.watch != watch) {
            return Ok(());
        }
        let batch = ChangeBatch::clone(batch);
        match address.who {
            Who::Member => self.tell_member(address, MemberEvent::Changed(batch)),
            Who::Leader => self.tell_leader(address, LeaderEvent::Changed(vec![batch])),
        }
    }

    pub(super) fn timer(&mut self, address: Address, at: u64) -> Checked {
        let desk = self.nodes[address.node].desk(address);
        let Some(desk) = desk.filter(|desk| desk.timer == Some(at)) else {
            return Ok(());
        };
        desk.timer = None;
        match address.who {
            Who::Member => self.tell_member(address, MemberEvent::Tick),
            Who::Leader => self.tell_leader(address, LeaderEvent::Tick),
        }
    }

    /// Stands for election if nobody leads, or if an earlier life of this agent did.
    pub(super) fn candidacy(&mut self, index: usize, life: u64) {
        let node = &self.nodes[index];
        let Some(agent) = node.agent.as_ref().filter(|_| node.life == life) else {
            return;
        };
        let Some(member) = &agent.member else {
            return;
        };
        let view = member.view();
        let free = view.leader().is_none_or(|leader| {
            leader.value.node == node.name
                && leader.value.incarnation == Incarnation(node.incarnation)
        });
        let wanted = free && view.result().is_none() && agent.leader.is_none() && !agent.electing;
        if wanted {
            let address = Address {
                node: index,
                life,
                who: Who::Leader,
            };
            let transaction = self.candidature(index);
            let delay = self.delay(self.schedule.pace.store_ms * 2);
            self.after(delay, Event::ElectionArrives(address, transaction));
            if let Some(agent) = &mut self.nodes[index].agent {
                agent.electing = true;
            }
        }
        self.after(CANDIDACY_MS * MS, Event::Candidacy(index, life));
    }

    pub(super) fn election_answered(
        &mut self,
        address: Address,
        won: Option<(Revision, Listing)>,
    ) -> Checked {
        let node = &mut self.nodes[address.node];
        let Some(agent) = node.agent.as_mut().filter(|_| node.life == address.life) else {
            return Ok(());
        };
        agent.electing = false;
        let Some((epoch, listing)) = won else {
            return Ok(());
        };
        let view = View::load(self.keys.clone(), &listing.entries, listing.revision);
        let settings = LeaderSettings {
            gather_window: Duration::from_secs(3),
            // There are no fences here, so no node is ever given up.
            ..LeaderSettings::default()
        };
        agent.leader = Some(Leader::new(settings, epoch, view));
        agent.leader_desk = Desk {
            watch: listing.watch,
            watch_busy: agent.leader_desk.watch_busy,
            ..Desk::default()
        };
        self.note(|| format!("node-{}: leads, epoch {epoch}", address.node));
        self.tell_leader(address, LeaderEvent::Tick)
    }

    pub(super) fn tell_member(&mut self, address: Address, event: MemberEvent) -> Checked {
        let now = self.now;
        let node = &mut self.nodes[address.node];
        let instant = node.instant(now);
        let Some(member) = node.agent.as_mut().and_then(|agent| agent.member.as_mut()) else {
            return Ok(());
        };
        let traced = if self.trace.is_some() {
            format!("{event:?}")
        } else {
            String::new()
        };
        let effects = member.handle(instant, event);
        let (reason, state, deadline) = (member.reason(), member.state(), member.next_deadline());
        let deadline = deadline.map(|deadline| self.nodes[address.node].time_of(deadline));
        self.note(|| {
            format!(
                "node-{}: {traced} -> {state:?} ({reason}), {effects:?}",
                address.node
            )
        });
        if reason.is_empty() {
            let message = format!("node-{} is {state:?} and has no reason", address.node);
            return self.checker.violation("reason", message);
        }
        for effect in effects {
            self.member_effect(address, effect)?;
        }
        self.set_timer(address, deadline);
        Ok(())
    }

    pub(super) fn tell_leader(&mut self, address: Address, event: LeaderEvent) -> Checked {
        let now = self.now;
        let node = &mut self.nodes[address.node];
        let instant = node.instant(now);
        let Some(leader) = node.agent.as_mut().and_then(|agent| agent.leader.as_mut()) else {
            return Ok(());
        };
        let effects = leader.handle(instant, event);
        let (reason, state, deadline) = (leader.reason(), leader.state(), leader.next_deadline());
        let deadline = deadline.map(|deadline| self.nodes[address.node].time_of(deadline));
        self.note(|| format!("node-{}: leader {state:?} ({reason})", address.node));
        if reason.is_empty() {
            let message = format!(
                "the leader on node-{} is {state:?} and has no reason",
                address.node
            );
            return self.checker.violation("reason", message);
        }
        for effect in effects {
            if let LeaderEffect::Write(transaction) = effect {
                self.send_write(address, transaction)?;
            }
        }
        self.set_timer(address, deadline);
        if state == LeaderState::Deposed
            && let Some(agent) = &mut self.nodes[address.node].agent
        {
            agent.leader = None;
            agent.leader_desk = Desk::default();
        }
        Ok(())
    }

    fn member_effect(&mut self, address: Address, effect: MemberEffect) -> Checked {
        match effect {
            MemberEffect::Write(transaction) => self.send_write(address, transaction),
            MemberEffect::Say(_) => Ok(()),
            MemberEffect::Finish(result) => {
                let code = i64::from(result.exit_code());
                self.leave(address.node, code)
            }
            command => {
                let delay = self.delay(self.schedule.pace.link_ms);
                let at = self.link(address.node, 0, delay);
                self.at(at, Event::ToKeeper(address.node, address.life, command));
                Ok(())
            }
        }
    }

    /// The member has left: the agent ends, its lease is revoked.
    fn leave(&mut self, index: usize, exit_code: i64) -> Checked {
        let name = self.nodes[index].name.0.clone();
        self.checker.finished(&name, exit_code)?;
        let node = &mut self.nodes[index];
        node.left = true;
        node.agent = None;
        node.life += 1;
        let lease = node.lease;
        let generation = node.keeper.generation + 1;
        if self.plant == Some(Plant::StartAfterEnd) {
            self.serial += 1;
            return self.checker.spawned(self.serial, &name, generation, 0);
        }
        let delay = self.delay(self.schedule.pace.store_ms);
        self.after(delay, Event::LeaseEnds(index, lease));
        Ok(())
    }

    fn set_timer(&mut self, address: Address, deadline: Option<u64>) {
        let earliest = self.now + 1;
        let Some(desk) = self.nodes[address.node].desk(address) else {
            return;
        };
        let wanted = deadline.map(|deadline| deadline.max(earliest));
        if desk.timer == wanted {
            return;
        }
        desk.timer = wanted;
        if let Some(at) = wanted {
            self.at(at, Event::Timer(address, at));
        }
    }

    fn member_settings(&self, index: usize) -> MemberSettings {
        let shape = &self.schedule.shape;
        let pace = &self.schedule.pace;
        let node = &self.nodes[index];
        let generous = if self.plant == Some(Plant::GenerousBudget) {
            2
        } else {
            0
        };
        let spec = JobSpec::new(
            shape.min_nodes,
            shape.max_nodes,
            shape.max_restarts + generous,
            "command".to_owned(),
        );
        let incarnation = Incarnation(node.incarnation);
        MemberSettings {
            address: format!("{}.simulated", node.name),
            slots: shape.slots,
            restart_grace: Duration::from_millis(pace.restart_grace_ms),
            stop_grace: Duration::from_millis(pace.stop_grace_ms),
            lease: Some(node.lease),
            ..MemberSettings::new(self.keys.clone(), node.name.clone(), incarnation, spec)
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
