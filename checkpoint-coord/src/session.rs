// SPDX-License-Identifier: Apache-2.0
//! The runtime of the decision core: owns a store, a [`Member`] and, while this node leads, a [`Leader`].
//!
//! One future, one loop: it waits for the next input (an event from the agent, a change of the store, the answer to a
//! store call, a deadline), hands it to the machines, and carries out their effects. Store calls are in flight while the
//! loop goes on, so a store that does not answer never keeps a fault or a signal from being acted upon.
//!
//! A member watches only what concerns every member; a leader watches everything that belongs to the job.

mod calls;
mod earlier_run;
mod host;
mod opening;
mod peers;
mod reading;
mod status;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use steadfast_core::{
    ChangeBatch, Held, Instant, JobResult, Jury, Leader, LeaderEffect, LeaderEvent, LeaderSettings,
    LeaderState, Lease, Member, MemberEvent, MemberSettings, MemberState, Revision,
};

use crate::{Store, StoreError, Watch, WatchError};
use calls::{Calls, Done, Reading};
pub use host::{Hint, HostEffect, SessionPorts};
pub use peers::{Peer, Peers};
pub use status::StatusView;

/// How long to wait before something is tried again that a store refused.
const RETRY: Duration = Duration::from_millis(200);
/// How often to look whether another supervisor under our name is gone.
const NAME_LOOK: Duration = Duration::from_millis(500);

/// Monotonic time. Production reads `CLOCK_MONOTONIC`, as the keeper does; any closure will do.
pub trait Clock: Send {
    /// Now.
    fn now(&self) -> Instant;
}

impl<F: Fn() -> Instant + Send> Clock for F {
    fn now(&self) -> Instant {
        self()
    }
}

/// What a session must know.
#[derive(Debug, Clone)]
pub struct SessionSettings {
    /// The member's. The session gets its own lease; `lease` is ignored. When it is not `shared`, there are no fences.
    pub member: MemberSettings,
    /// The leader's patience.
    pub leader: LeaderSettings,
    /// Who judges the words of the ranks while this session leads.
    pub jury: Option<Arc<dyn Jury>>,
    /// Time after which the store forgets a member that does not renew its lease. On an embedded store it should be
    /// long, since nobody else is there to notice; an hour will do.
    pub lease_ttl: Duration,
    /// The same while training steps vouch for the workers.
    pub witness_lease_ttl: Duration,
    /// How long to try at the start while the store cannot be reached.
    pub patience: Duration,
    /// Whether an earlier life of the agent took part already. What is in the store is then of this very run.
    pub resumed: bool,
}

/// Why a session could not go on.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The store could not be used at the start.
    #[error("failed to {operation} at the start of the session")]
    Store {
        /// What was being done.
        operation: &'static str,
        /// Why it failed.
        #[source]
        source: StoreError,
    },
    /// The agent has dropped its end for effects.
    #[error("failed to hand an effect to the agent: it does not listen any more")]
    HostGone,
}

/// Takes part in a job until it ends. Returns its result, or `None` when the agent dropped its end for events.
///
/// Dropping the future at any point is like the death of the agent: another session on the same store, told by `Resume`
/// what the keeper has, goes on.
pub async fn run_session<S: Store, C: Clock>(
    store: S,
    settings: SessionSettings,
    clock: C,
    ports: SessionPorts,
) -> Result<Option<JobResult>, SessionError> {
    let Some(mut session) = Session::open(store, settings, clock, ports).await? else {
        return Ok(None);
    };
    let result = session.run().await;
    if let Ok(Some(_)) = &result {
        session.leave().await;
    }
    result
}

struct Session<S, C> {
    store: S,
    settings: SessionSettings,
    clock: C,
    ports: SessionPorts,
    /// What the agent told before the store answered.
    early: VecDeque<MemberEvent>,
    member: Member,
    leader: Option<Leader>,
    /// We hold the leader's record of this epoch, and are reading everything that a leader must know.
    elected: Option<Revision>,
    calls: Calls<S>,
    watch: Option<Watch>,
    lease: Lease,
    /// The fence that the agent was told last.
    fence: Option<HostEffect>,
    /// Workers that are to be started as soon as the lease vouches for them: the keeper would start none before.
    held_back: Option<HostEffect>,
    /// When to renew the lease, to campaign again, to watch again.
    renew_at: Instant,
    campaign_at: Option<Instant>,
    /// Since when nobody has led the job, as far as we know.
    vacant_since: Option<Instant>,
    /// The newest revision at which somebody else is known to have led, as an election told that was lost.
    led_at: Revision,
    relist_at: Option<Instant>,
    /// When to look for our own record.
    look_at: Option<Instant>,
    result: Option<JobResult>,
}

/// One thing that happened.
#[expect(
    clippy::large_enum_variant,
    reason = "it lives for one turn of the loop, and there is one at a time"
)]
enum Input {
    Agent(Option<MemberEvent>),
    Hint(Hint),
    Watched(Result<Vec<ChangeBatch>, WatchError>),
    Done(Done),
    Deadline,
}

impl<S: Store, C: Clock> Session<S, C> {
    async fn run(&mut self) -> Result<Option<JobResult>, SessionError> {
        self.show_peers();
        loop {
            self.campaign();
            self.show();
            self.tell_fence()?;
            self.start_held_back()?;
            if let Some(result) = self.result.take() {
                return Ok(Some(result));
            }
            match self.next_input().await {
                Input::Agent(None) => return Ok(None),
                Input::Agent(Some(event)) => self.take_in_event(event)?,
                Input::Hint(hint) => self.take_in_hint(hint)?,
                Input::Watched(Ok(batches)) => {
                    for batch in self.of_concern(&batches) {
                        self.tell_member(MemberEvent::Changed(batch))?;
                    }
                    self.tell_leader(LeaderEvent::Changed(batches))?;
                    self.show_peers();
                }
                Input::Watched(Err(error)) => {
                    tracing::warn!(%error, "The watch of the store has ended; reading it anew.");
                    self.watch = None;
                    self.relist();
                }
                Input::Done(done) => self.take_in(done)?,
                Input::Deadline => self.take_in_deadline()?,
            }
        }
    }

    /// The changes that the member must know of. A leader hears of what every other member writes, too.
    fn of_concern(&self, batches: &[ChangeBatch]) -> Vec<ChangeBatch> {
        let own = &self.settings.member;
        let (common, record) = (own.keys.common(), own.keys.member(&own.node));
        let concerns = |key: &str| !own.shared || key.starts_with(&common) || key == record;
        let is_of_concern =
            |batch: &&ChangeBatch| batch.changes.iter().any(|change| concerns(change.key()));
        batches.iter().filter(is_of_concern).cloned().collect()
    }

    async fn next_input(&mut self) -> Input {
        if let Some(event) = self.early.pop_front() {
            return Input::Agent(Some(event));
        }
        let now = self.clock.now();
        let deadline = [
            self.member.next_deadline(),
            self.leader.as_ref().and_then(Leader::next_deadline),
            self.campaign_at,
            self.relist_at,
            self.look_at,
            Some(self.renew_at),
        ]
        .into_iter()
        .flatten()
        .min()
        .unwrap_or(self.renew_at);
        let watch = &mut self.watch;
        tokio::select! {
            // What was decided comes before what is new, and the store before the agent: fewer decisions on old news.
            biased;
            done = self.calls.next() => Input::Done(done),
            changes = next_changes(watch) => Input::Watched(changes),
            event = self.ports.events.recv() => Input::Agent(event),
            Some(hint) = self.ports.hints.recv() => Input::Hint(hint),
            () = tokio::time::sleep(deadline.saturating_since(now)) => Input::Deadline,
        }
    }

    fn take_in_event(&mut self, event: MemberEvent) -> Result<(), SessionError> {
        if let (MemberEvent::Step { generation, step }, Some(leader)) = (&event, &mut self.leader) {
            leader.note_step(*generation, *step, self.clock.now(), true);
        }
        self.tell_member(event)
    }

    fn take_in_hint(&mut self, hint: Hint) -> Result<(), SessionError> {
        let now = self.clock.now();
        if let Hint::SaveEvery(time) = hint {
            self.settings.leader.save_every = Some(time);
        }
        let Some(leader) = &mut self.leader else {
            return Ok(());
        };
        match hint {
            Hint::SaveEvery(time) => {
                leader.set_save_every(Some(time));
                self.tell_leader(LeaderEvent::Tick)
            }
            Hint::Step { generation, step } => {
                leader.note_step(generation, step, now, false);
                Ok(())
            }
            Hint::Silence { node, silent } => {
                leader.note_silence(&node, silent);
                self.tell_leader(LeaderEvent::Tick)
            }
            Hint::Clock { node, ahead_ms } => {
                leader.note_clock(node, ahead_ms);
                Ok(())
            }
            Hint::Verdict(finding) => {
                leader.note_verdict(*finding);
                self.tell_leader(LeaderEvent::Tick)
            }
        }
    }

    fn take_in(&mut self, done: Done) -> Result<(), SessionError> {
        let now = self.clock.now();
        match done {
            Done::MemberWrite(Ok(outcome), lease) if outcome.succeeded => {
                self.lease.has_record(lease);
                self.tell_member(MemberEvent::WriteDone(outcome))
            }
            Done::MemberWrite(answer, _) => {
                if let Err(error) = &answer {
                    tracing::warn!(%error, "Failed to write the member's report; it is tried again.");
                }
                // Whatever became of it: what stands in the store tells.
                let reading = answer.map_or(Reading::AfterUnknown, Reading::AfterRefusal);
                self.calls.read_own(&self.settings.member, reading);
                Ok(())
            }
            Done::OwnRecord(Ok((record, revision)), reading) => {
                self.tell_member(MemberEvent::OwnRecord { record, revision })?;
                match reading {
                    Reading::AfterRefusal(outcome) => {
                        self.tell_member(MemberEvent::WriteDone(outcome))
                    }
                    Reading::AfterUnknown => self.tell_member(MemberEvent::WriteFailed),
                    Reading::ByItself => Ok(()),
                }
            }
            Done::OwnRecord(Err(error), reading) => {
                tracing::warn!(%error, "Failed to read the member's record; it is tried again.");
                match reading {
                    Reading::ByItself => Ok(()),
                    _ => self.tell_member(MemberEvent::WriteFailed),
                }
            }
            Done::LeaderWrite(Ok(outcome)) => self.tell_leader(LeaderEvent::WriteDone(outcome)),
            Done::LeaderWrite(Err(error)) => {
                tracing::warn!(%error, "Failed to write the leader's decision; it is tried again.");
                self.tell_leader(LeaderEvent::WriteFailed)
            }
            Done::Relisted(Ok((entries, revision, watch))) => {
                self.take_in_listing(entries, revision, watch)
            }
            Done::Relisted(Err(error)) => {
                tracing::warn!(%error, "Failed to read the store anew; it is tried again.");
                self.relist_at = Some(now + RETRY);
                Ok(())
            }
            about_lease @ (Done::Granted(..) | Done::Renewed(_)) => {
                self.take_in_lease(now, about_lease)
            }
            about_election => {
                self.take_in_election(now, about_election);
                Ok(())
            }
        }
    }

    fn take_in_election(&mut self, now: Instant, done: Done) {
        match done {
            Done::Elected(Ok(outcome), lease) if outcome.succeeded => {
                self.lease.has_leader(lease);
                self.elected = Some(outcome.revision);
                self.relist();
            }
            Done::Retired(Ok(outcome)) if outcome.succeeded => {
                self.calls.elect(&self.settings.member, self.lease.id());
            }
            // The watch is about to say who leads. To ask again and again until then would be as many requests from each
            // node of a large job.
            Done::Elected(Ok(outcome), _) if outcome.revision > self.member.view().revision() => {
                self.led_at = outcome.revision;
            }
            Done::Elected(outcome, _) | Done::Retired(outcome) => {
                if let Err(error) = outcome {
                    tracing::warn!(%error, "Failed to take the leadership; it is tried again.");
                }
                self.campaign_at = Some(now + RETRY);
            }
            Done::LeaderMoved(outcome, lease) => {
                if let Err(error) = outcome {
                    tracing::warn!(%error, "Failed to move the leadership to another lease; it may be lost, and taken anew.");
                }
                self.lease.has_leader(lease);
            }
            _ => {}
        }
    }

    fn take_in_lease(&mut self, now: Instant, done: Done) -> Result<(), SessionError> {
        match done {
            Done::Granted(Ok(lease), ttl, sent) => {
                let held = Held::granted(lease, ttl, sent);
                self.lease.move_to(held, self.leader.is_some());
                self.renew_at = now;
                if let Some(leader) = &self.leader {
                    let epoch = leader.epoch();
                    self.calls.move_leader(&self.settings.member, epoch, lease);
                }
                self.tell_member(MemberEvent::Lease(lease))
            }
            Done::Granted(Err(error), ..) => {
                tracing::warn!(%error, "Failed to get another lease; it is tried again.");
                Ok(())
            }
            Done::Renewed(Ok(renewals)) => {
                let mut moved = false;
                let mut sent = now;
                for renewal in renewals {
                    sent = renewal.sent;
                    moved |= self.lease.renewed(renewal);
                }
                // Counted from when it was sent: an answer that takes its time must not cost the lease.
                self.renew_at = sent + self.lease.renewal_interval();
                if moved {
                    self.tell_member(MemberEvent::Lease(self.lease.id()))?;
                }
                self.choose_lease();
                Ok(())
            }
            Done::Renewed(Err(error)) => {
                tracing::warn!(%error, "Failed to renew the lease; it is tried again.");
                self.renew_at = now + RETRY;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn take_in_listing(
        &mut self,
        entries: Vec<steadfast_core::KeyValue>,
        revision: Revision,
        watch: Watch,
    ) -> Result<(), SessionError> {
        self.watch = Some(watch);
        self.tell_member(MemberEvent::Relisted {
            entries: entries.clone(),
            revision,
        })?;
        if let Some(epoch) = self.elected.take() {
            let view = self.member.view().clone();
            let mut leader = Leader::new(self.settings.leader, epoch, view)
                .with_jury(self.settings.jury.clone());
            if let Some((generation, steps)) = self.member.own_steps() {
                leader.note_own_steps(generation, steps);
            }
            self.leader = Some(leader);
            self.tell_leader(LeaderEvent::Tick)?;
        } else {
            self.tell_leader(LeaderEvent::Relisted { entries, revision })?;
        }
        self.show_peers();
        Ok(())
    }

    fn take_in_deadline(&mut self) -> Result<(), SessionError> {
        let now = self.clock.now();
        if self.renew_at <= now {
            // Until it is answered; the answer sets the next time.
            self.renew_at = now + self.settings.lease_ttl;
            self.calls.renew(self.lease.all(), now);
        }
        if self.relist_at.is_some_and(|at| at <= now) {
            self.relist_at = None;
            self.relist();
        }
        if self.campaign_at.is_some_and(|at| at <= now) {
            self.campaign_at = None;
        }
        if self.look_at.is_some_and(|at| at <= now) {
            self.look_at = None;
            self.calls.look_for_own(&self.settings.member);
        }
        self.tell_member(MemberEvent::Tick)?;
        self.tell_leader(LeaderEvent::Tick)
    }

    fn tell_member(&mut self, event: MemberEvent) -> Result<(), SessionError> {
        let effects = self.member.handle(self.clock.now(), event);
        for effect in effects {
            match HostEffect::from_member(effect, self.lease.tenure()) {
                Err(transaction) => self.calls.write_for_member(transaction, self.lease.id()),
                Ok(order) => {
                    if let HostEffect::Finish(result) = &order {
                        self.result = Some(result.clone());
                    }
                    if let HostEffect::Start { .. } = &order {
                        // A plan can name us before our own write is answered; that it does is the answer.
                        self.lease.is_named_by_plan();
                    }
                    // What vouches for the workers must be known before they are started.
                    self.tell_fence()?;
                    let is_about_workers = matches!(
                        order,
                        HostEffect::Start { .. }
                            | HostEffect::Stop { .. }
                            | HostEffect::KillNow { .. }
                            | HostEffect::Finish(_)
                    );
                    if let Some(held_back) = self.held_back.take_if(|_| is_about_workers) {
                        self.order(held_back)?;
                    }
                    if matches!(order, HostEffect::Start { .. }) && !self.is_vouched_for() {
                        self.held_back = Some(order);
                    } else {
                        self.order(order)?;
                    }
                }
            }
        }
        if self.member.awaits_its_name() && self.look_at.is_none() {
            self.look_at = Some(self.clock.now() + NAME_LOOK);
        }
        Ok(())
    }

    fn tell_leader(&mut self, event: LeaderEvent) -> Result<(), SessionError> {
        let Some(leader) = &mut self.leader else {
            return Ok(());
        };
        for effect in leader.handle(self.clock.now(), event) {
            match effect {
                LeaderEffect::Write(transaction) => self.calls.write_for_leader(transaction),
                LeaderEffect::Say(text) => self.order(HostEffect::Say(text))?,
            }
        }
        let deposed = |leader: &Leader| leader.state() == LeaderState::Deposed;
        if self.leader.as_ref().is_some_and(deposed) {
            self.leader = None;
            self.lease.has_leader(self.lease.id());
            self.calls.forget_leader();
            self.relist();
        }
        Ok(())
    }

    fn order(&self, effect: HostEffect) -> Result<(), SessionError> {
        self.ports
            .effects
            .send(effect)
            .map_err(|_| SessionError::HostGone)
    }

    /// Tells the agent until when this node's lease vouches for its workers, and how far their steps do, if that is new.
    fn tell_fence(&mut self) -> Result<(), SessionError> {
        if !self.settings.member.shared {
            return Ok(());
        }
        let plan = self.member.view().plan().map(|plan| &plan.value);
        let fence = HostEffect::Fence {
            lease_until: self.lease.until(),
            tenure: self.lease.tenure(),
            generation: plan.map(|plan| plan.generation).unwrap_or_default(),
            witness: plan.map(|plan| plan.witness()).unwrap_or_default(),
        };
        if self.fence.as_ref() == Some(&fence) {
            return Ok(());
        }
        self.fence = Some(fence.clone());
        self.order(fence)
    }

    /// Whether the lease vouches for workers on this node now. After an outage of the store, a plan can come before the
    /// renewal is answered.
    fn is_vouched_for(&self) -> bool {
        !self.settings.member.shared || self.lease.until() > self.clock.now()
    }

    fn start_held_back(&mut self) -> Result<(), SessionError> {
        if self.held_back.is_some() && self.is_vouched_for() {
            let held_back = self.held_back.take();
            held_back.map_or(Ok(()), |start| self.order(start))
        } else {
            Ok(())
        }
    }

    /// Takes a short lease while steps vouch for the workers, else a long one.
    fn choose_lease(&mut self) {
        let plan = self.member.view().plan().map(|plan| &plan.value);
        let running = match self.member.state() {
            MemberState::Running(generation) => plan
                .filter(|plan| plan.generation == generation && plan.is_run())
                .filter(|_| self.member.best_step().is_some()),
            _ => None,
        };
        let ttl = match running {
            Some(plan) if plan.witness_ms > 0 => self.settings.witness_lease_ttl,
            _ => self.settings.lease_ttl,
        };
        if self.settings.member.shared && self.lease.lacks(ttl) {
            self.calls.grant(ttl, self.clock.now());
        }
    }

    /// Tries to become the leader if nobody is, or if the leader was an earlier life of this node's own agent.
    fn campaign(&mut self) {
        if self.member.view().leader().is_some() {
            self.vacant_since = None;
        }
        let busy = self.calls.is_campaigning() || self.campaign_at.is_some();
        let own = &self.settings.member;
        let may_lead = self.member.may_lead();
        if self.leader.is_some() || self.elected.is_some() || busy || !may_lead {
            return;
        }
        match self.member.view().leader() {
            None if self.member.view().revision() < self.led_at => {}
            None => {
                let now = self.clock.now();
                let since = *self.vacant_since.get_or_insert(now);
                let turn = since + self.member.campaign_delay();
                if now < turn {
                    self.campaign_at = Some(turn);
                } else {
                    self.calls.elect(own, self.lease.id());
                }
            }
            // Of an earlier life, or of an election whose answer was lost.
            Some(leader) if leader.value.node == own.node => {
                self.calls.retire(own, leader.mod_revision);
            }
            Some(_) => {}
        }
    }

    /// Reads anew what we must know, and watches it from there.
    fn relist(&mut self) {
        let everything = self.elected.is_some() || self.leader.is_some();
        let everything = everything || !self.settings.member.shared;
        self.calls.relist(&self.settings.member, everything);
    }

    fn show(&self) {
        let view = StatusView::of(&self.member, self.leader.as_ref(), &self.settings.member);
        self.ports.status.send_if_modified(|shown| {
            let changed = *shown != view;
            if changed {
                *shown = view;
            }
            changed
        });
    }

    /// Shows who leads, and to a leader, who the members are: after every news from the store, where all of it stands.
    fn show_peers(&self) {
        let peers = Peers::of(self.member.view(), self.leader.as_ref());
        self.ports.peers.send_if_modified(|shown| {
            let changed = *shown != peers;
            if changed {
                *shown = peers;
            }
            changed
        });
    }

    /// Leaving is explicit: the others need not wait for the lease to run out.
    async fn leave(&mut self) {
        for (lease, _) in self.lease.all() {
            if let Err(error) = self.store.lease_revoke(lease).await {
                tracing::warn!(%error, "Failed to give the lease back; it will run out by itself.");
            }
        }
    }
}

/// The next changes: all that have arrived.
async fn next_changes(watch: &mut Option<Watch>) -> Result<Vec<ChangeBatch>, WatchError> {
    match watch {
        Some(watch) => {
            let mut batches = vec![watch.next().await?];
            while let Some(batch) = watch.try_next() {
                batches.push(batch);
            }
            Ok(batches)
        }
        None => std::future::pending().await,
    }
}
