// SPDX-License-Identifier: Apache-2.0
//! A small simulated world around the machines, and the checker that watches it.
//!
//! Nodes with keepers that tell the truth slowly, agents that crash at any point, several leaders of which at most one
//! is in office, a store that delivers late and whose answers get lost. The same code runs with planted bugs, to show
//! that the checker can fail.

mod checker;
mod keeper;
mod run;

use std::collections::VecDeque;

use steadfast_proto::v1::Finding;

use crate::records::encode;
use crate::{
    ChangeBatch, Incarnation, Instant, JobSpec, Keys, Leader, LeaderEffect, LeaderEvent,
    LeaderRecord, LeaderSettings, Member, MemberEffect, MemberEvent, MemberSettings, NodeName,
    Operation, Revision, StoreState, Transaction, View,
};
use checker::Checker;
use keeper::Keeper;

/// Bugs that the checker must find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Plant {
    None,
    /// The keeper says "stopped" when it has asked the workers to stop.
    StoppedBeforeReaped,
    /// The ledger is not written with the plan.
    LedgerLost,
    /// Leaders write without their guards.
    Unguarded,
}

#[derive(Debug)]
pub(super) struct World {
    plant: Plant,
    now: u64,
    keys: Keys,
    store: StoreState,
    log: Vec<ChangeBatch>,
    nodes: Vec<Node>,
    leaders: Vec<LeaderHost>,
    checker: Checker,
    max_restarts: u32,
    min_nodes: u32,
}

#[derive(Debug)]
struct Node {
    name: NodeName,
    member: Option<Member>,
    seen: usize,
    inbox: VecDeque<MemberEvent>,
    write: Option<Transaction>,
    keeper: Keeper,
    left: bool,
    interrupts: u32,
}

#[derive(Debug)]
struct LeaderHost {
    leader: Leader,
    seen: usize,
    write: Option<Transaction>,
}

/// How a store call ends, as the caller sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    Told,
    DoneButLost,
    Lost,
}

impl World {
    pub(super) fn new(nodes: u32, min_nodes: u32, max_restarts: u32, plant: Plant) -> Self {
        let mut world = Self {
            plant,
            now: 1_000_000_000,
            keys: Keys::new("job"),
            store: StoreState::default(),
            log: Vec::new(),
            nodes: Vec::new(),
            leaders: Vec::new(),
            checker: Checker::new(max_restarts),
            max_restarts,
            min_nodes,
        };
        for index in 0..nodes {
            world.nodes.push(Node {
                name: NodeName(format!("node-{index}")),
                member: None,
                seen: 0,
                inbox: VecDeque::new(),
                write: None,
                keeper: Keeper::new(29_500 + u16::try_from(index * 1_000).unwrap_or(0)),
                left: false,
                interrupts: 0,
            });
        }
        world
    }

    fn instant(&self) -> Instant {
        Instant::from_nanos(self.now)
    }

    fn settings(&self, index: usize) -> MemberSettings {
        let nodes = u32::try_from(self.nodes.len()).unwrap_or(1);
        let spec = JobSpec::new(
            self.min_nodes,
            nodes,
            self.max_restarts,
            "digest".to_owned(),
        );
        let node = self.nodes[index].name.clone();
        MemberSettings {
            address: format!("{node}.test"),
            slots: 2,
            ..MemberSettings::new(self.keys.clone(), node, Incarnation(1), spec)
        }
    }

    fn view(&self) -> View {
        let entries: Vec<_> = self.store.range(self.keys.prefix()).cloned().collect();
        View::load(self.keys.clone(), &entries, self.store.revision())
    }

    /// Starts the agent of a node: all it has is the store and what its keeper tells.
    fn start_agent(&mut self, index: usize) -> Result<(), String> {
        if self.nodes[index].left || self.nodes[index].member.is_some() {
            return Ok(());
        }
        // A keeper reads what the dead agent has sent to the end before it speaks to the next one.
        while self.keeper_step(index)? {}
        let member = Member::new(self.settings(index), self.view());
        let seen = self.log.len();
        let node = &mut self.nodes[index];
        node.member = Some(member);
        node.seen = seen;
        node.inbox.clear();
        node.write = None;
        let resume = node.keeper.resume();
        let count = node.interrupts;
        self.tell_member(index, resume)?;
        if count > 0 {
            self.tell_member(index, MemberEvent::Interrupt { signal: 2, count })?;
        }
        Ok(())
    }

    /// An agent dies. `sent` of the things that it had for the keeper were sent; everything else is forgotten.
    fn crash_agent(&mut self, index: usize, sent: usize) {
        let node = &mut self.nodes[index];
        node.keeper.commands.truncate(sent);
        node.member = None;
        node.inbox.clear();
        node.write = None;
    }

    fn tell_member(&mut self, index: usize, event: MemberEvent) -> Result<(), String> {
        let now = self.instant();
        let Some(member) = &mut self.nodes[index].member else {
            return Ok(());
        };
        let effects = member.handle(now, event);
        if member.reason().is_empty() {
            return Err("a member has no reason for its state".to_owned());
        }
        for effect in effects {
            let node = &mut self.nodes[index];
            match effect {
                MemberEffect::Write(transaction) => {
                    if node.write.replace(transaction).is_some() {
                        return Err("a member has two writes outstanding".to_owned());
                    }
                }
                MemberEffect::Finish(_) => node.left = true,
                MemberEffect::Say(_) => {}
                command => node.keeper.commands.push_back(command),
            }
        }
        Ok(())
    }

    fn tell_leader(&mut self, index: usize, event: LeaderEvent) -> Result<(), String> {
        let now = self.instant();
        let Some(host) = self.leaders.get_mut(index) else {
            return Ok(());
        };
        let effects = host.leader.handle(now, event);
        if host.leader.reason().is_empty() {
            return Err("a leader has no reason for its state".to_owned());
        }
        for effect in effects {
            if let LeaderEffect::Write(transaction) = effect
                && host.write.replace(transaction).is_some()
            {
                return Err("a leader has two writes outstanding".to_owned());
            }
        }
        Ok(())
    }

    /// A new leader takes office. Those before may not know yet.
    fn elect(&mut self, index: usize) -> Result<(), String> {
        let key = self.keys.leader();
        self.transact(&Transaction {
            when: vec![],
            then: vec![Operation::Delete { key: key.clone() }],
        })?;
        let record = LeaderRecord::new(self.nodes[index].name.clone(), Incarnation(1));
        let epoch = self.transact(&Transaction {
            when: vec![],
            then: vec![Operation::Put {
                key,
                value: encode(&record),
                lease: None,
            }],
        })?;
        let leader = Leader::new(LeaderSettings::default(), epoch, self.view());
        if self.leaders.len() > 2 {
            self.leaders.remove(0);
        }
        self.leaders.push(LeaderHost {
            leader,
            seen: self.log.len(),
            write: None,
        });
        self.tell_leader(self.leaders.len() - 1, LeaderEvent::Tick)
    }

    fn transact(&mut self, transaction: &Transaction) -> Result<Revision, String> {
        let (outcome, batch) = self.store.apply(transaction);
        if let Some(batch) = batch {
            self.checker.observe(&self.keys, &batch)?;
            self.log.push(batch);
        }
        Ok(outcome.revision)
    }

    fn write_member(&mut self, index: usize, answer: Answer) -> Result<(), String> {
        let Some(transaction) = self.nodes[index].write.take() else {
            return Ok(());
        };
        let event = match answer {
            Answer::Told => {
                let succeeded = self.store.satisfies(&transaction.when);
                let revision = self.transact(&transaction)?;
                MemberEvent::WriteDone(crate::Outcome {
                    succeeded,
                    revision,
                })
            }
            Answer::DoneButLost => {
                self.transact(&transaction)?;
                MemberEvent::WriteFailed
            }
            Answer::Lost => MemberEvent::WriteFailed,
        };
        self.tell_member(index, event)
    }

    fn write_leader(&mut self, index: usize, answer: Answer) -> Result<(), String> {
        let Some(mut transaction) = self
            .leaders
            .get_mut(index)
            .and_then(|host| host.write.take())
        else {
            return Ok(());
        };
        match self.plant {
            Plant::LedgerLost => {
                let ledger = self.keys.ledger();
                transaction
                    .then
                    .retain(|operation| operation.key() != ledger);
                transaction
                    .when
                    .retain(|condition| condition.key() != ledger);
            }
            Plant::Unguarded => transaction.when.clear(),
            _ => {}
        }
        let event = match answer {
            Answer::Told => {
                let succeeded = self.store.satisfies(&transaction.when);
                let revision = self.transact(&transaction)?;
                LeaderEvent::WriteDone(crate::Outcome {
                    succeeded,
                    revision,
                })
            }
            Answer::DoneButLost => {
                self.transact(&transaction)?;
                LeaderEvent::WriteFailed
            }
            Answer::Lost => LeaderEvent::WriteFailed,
        };
        self.tell_leader(index, event)
    }

    /// Delivers the next change to a member; says whether there was one.
    fn deliver_to_member(&mut self, index: usize) -> Result<bool, String> {
        let node = &mut self.nodes[index];
        let Some(batch) = self.log.get(node.seen).cloned() else {
            return Ok(false);
        };
        if node.member.is_none() {
            return Ok(false);
        }
        node.seen += 1;
        self.tell_member(index, MemberEvent::Changed(batch))?;
        Ok(true)
    }

    fn deliver_to_leader(&mut self, index: usize) -> Result<bool, String> {
        let Some(host) = self.leaders.get_mut(index) else {
            return Ok(false);
        };
        let Some(batch) = self.log.get(host.seen).cloned() else {
            return Ok(false);
        };
        host.seen += 1;
        self.tell_leader(index, LeaderEvent::Changed(vec![batch]))?;
        Ok(true)
    }

    /// The keeper carries out the next thing that it was told.
    fn keeper_step(&mut self, index: usize) -> Result<bool, String> {
        let Some(command) = self.nodes[index].keeper.commands.pop_front() else {
            return Ok(false);
        };
        if let MemberEffect::Start { plan } = &command {
            let place = plan
                .member(&self.nodes[index].name)
                .ok_or("a node was told to start a plan that does not name it")?;
            let ended = self.store.get(&self.keys.result()).is_some();
            let refused = self.nodes[index].keeper.refuses(plan.generation);
            if !refused {
                let ranks = place.base_rank.0..place.base_rank.0 + place.slots;
                let others = self.nodes.iter().map(|node| &node.keeper);
                Checker::starting(plan.generation, &ranks, others, ended)?;
                if self.nodes[index].keeper.fail_next_spawn {
                    self.checker.fault(plan.generation);
                }
            }
        }
        let now = self.instant();
        let early = self.plant == Plant::StoppedBeforeReaped;
        let node = &mut self.nodes[index];
        let name = node.name.clone();
        node.keeper.carry_out(now, &name, command, early);
        node.collect();
        Ok(true)
    }

    /// A member's lease runs out although it lives; it has to register again.
    fn lose_record(&mut self, index: usize) -> Result<(), String> {
        let key = self.keys.member(&self.nodes[index].name);
        let delete = Transaction {
            when: vec![],
            then: vec![Operation::Delete { key }],
        };
        self.transact(&delete).map(drop)
    }

    fn exit_worker(&mut self, index: usize, pick: u32, exit: crate::WorkerExit, told: bool) {
        let now = self.instant();
        let node = &mut self.nodes[index];
        let finding = told.then(|| Finding {
            fingerprint: format!("failure {}", pick % 3),
            summary: "something broke".to_owned(),
            ..Finding::default()
        });
        if let Some(generation) = node.keeper.exit(now, pick, exit, finding)
            && !exit.is_success()
        {
            self.checker.fault(generation);
        }
        self.nodes[index].collect();
    }
}

impl Node {
    /// What the keeper has to say goes to the agent, if there is one; a later one hears it from `Resume`.
    fn collect(&mut self) {
        let said: Vec<_> = self.keeper.outbox.drain(..).collect();
        if self.member.is_some() {
            self.inbox.extend(said);
        }
    }
}
