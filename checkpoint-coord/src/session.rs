// SPDX-License-Identifier: Apache-2.0
//! The runtime of the decision core: owns a store, a [`Member`] and, while this node leads, a [`Leader`].
//!
//! One future, one loop: it waits for the next input (an event from the agent, a change of the store, the answer to a
//! store call, a deadline), hands it to the machines, and carries out their effects. Store calls are in flight while the
//! loop goes on, so a store that does not answer never keeps a fault or a signal from being acted upon.

mod calls;
mod status;
#[cfg(test)]
mod tests;

use std::time::Duration;

use steadfast_core::{
    Instant, JobResult, Leader, LeaderEffect, LeaderEvent, LeaderSettings, LeaderState, LeaseId,
    Member, MemberEffect, MemberEvent, MemberSettings, Plan, Revision, View,
};
use tokio::sync::{mpsc, watch};

use crate::{Store, StoreError, Watch};
use calls::{Calls, Done};
pub use status::StatusView;

/// How long to wait before something is tried again that a store refused.
const RETRY: Duration = Duration::from_millis(200);

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
    /// The member's. The session gets its own lease; `lease` is ignored.
    pub member: MemberSettings,
    /// The leader's patience.
    pub leader: LeaderSettings,
    /// Time after which the store forgets a member that does not renew its lease. On an embedded store it should be
    /// long, since nobody else is there to notice; an hour will do.
    pub lease_ttl: Duration,
}

/// The session's ends of the channels between it and the agent.
#[derive(Debug)]
pub struct SessionPorts {
    /// What happened on this node; [`MemberEvent::Resume`] first. Events about the store come from the session itself.
    /// When the other end is dropped, the session ends without leaving the job.
    pub events: mpsc::Receiver<MemberEvent>,
    /// What the agent is to do, in this order. Unbounded, so that the two can never wait for each other.
    pub effects: mpsc::UnboundedSender<HostEffect>,
    /// How things stand.
    pub status: watch::Sender<StatusView>,
}

/// What the agent is to do. See [`MemberEffect`] for what each asks for in answer.
#[derive(Debug, Clone, PartialEq)]
pub enum HostEffect {
    /// Start this node's workers as the plan says.
    Start {
        /// The plan; it names this node.
        plan: Plan,
    },
    /// Stop this node's workers. May be repeated.
    Stop {
        /// Which generation.
        generation: steadfast_core::Generation,
        /// First signal.
        first_signal: i32,
        /// Time until SIGKILL.
        grace: Duration,
        /// Why, in words.
        reason: String,
    },
    /// Send SIGKILL now to what is left of a generation.
    KillNow {
        /// Which generation.
        generation: steadfast_core::Generation,
    },
    /// Tell the user.
    Say(String),
    /// The job has ended. The last effect.
    Finish(JobResult),
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
    let mut session = Session::open(store, settings, clock, ports).await?;
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
    member: Member,
    leader: Option<Leader>,
    calls: Calls<S>,
    watch: Option<Watch>,
    lease: LeaseId,
    /// What was in the store at this revision was there before us.
    opened_at: Revision,
    /// When to renew the lease, to campaign again, to watch again.
    renew_at: Instant,
    campaign_at: Option<Instant>,
    relist_at: Option<Instant>,
    result: Option<JobResult>,
}

/// One thing that happened.
#[expect(clippy::large_enum_variant, reason = "there is one at a time")]
enum Input {
    Agent(Option<MemberEvent>),
    Watched(Result<steadfast_core::ChangeBatch, crate::WatchError>),
    Done(Done),
    Deadline,
}

impl<S: Store, C: Clock> Session<S, C> {
    async fn open(
        store: S,
        mut settings: SessionSettings,
        clock: C,
        ports: SessionPorts,
    ) -> Result<Self, SessionError> {
        let failed = |operation| move |source| SessionError::Store { operation, source };
        let keys = settings.member.keys.clone();
        let (entries, revision) = store
            .range(keys.prefix())
            .await
            .map_err(failed("read the job's keys"))?;
        let view = View::load(keys.clone(), &entries, revision);
        let lease = take_lease(&store, &settings, &view)
            .await
            .map_err(failed("get a lease"))?;
        settings.member.lease = Some(lease);
        let watch = store
            .watch(keys.prefix(), Revision(revision.0 + 1))
            .await
            .map_err(failed("watch the job's keys"))?;
        let renew_at = clock.now() + settings.lease_ttl / 3;
        let member = Member::new(settings.member.clone(), view);
        Ok(Self {
            calls: Calls::new(store.clone()),
            store,
            settings,
            clock,
            ports,
            member,
            leader: None,
            watch: Some(watch),
            lease,
            opened_at: revision,
            renew_at,
            campaign_at: None,
            relist_at: None,
            result: None,
        })
    }

    async fn run(&mut self) -> Result<Option<JobResult>, SessionError> {
        self.campaign();
        loop {
            self.show();
            if let Some(result) = self.result.take() {
                return Ok(Some(result));
            }
            match self.next_input().await {
                Input::Agent(None) => return Ok(None),
                Input::Agent(Some(event)) => self.tell_member(event)?,
                Input::Watched(Ok(batch)) => {
                    self.tell_member(MemberEvent::Changed(batch.clone()))?;
                    self.tell_leader(LeaderEvent::Changed(batch))?;
                    self.campaign();
                }
                Input::Watched(Err(error)) => {
                    tracing::warn!(%error, "The watch of the store has ended; reading it anew.");
                    self.watch = None;
                    self.calls.relist(self.settings.member.keys.prefix());
                }
                Input::Done(done) => self.take_in(done)?,
                Input::Deadline => self.take_in_deadline()?,
            }
        }
    }

    async fn next_input(&mut self) -> Input {
        let now = self.clock.now();
        let deadline = [
            self.member.next_deadline(),
            self.leader.as_ref().and_then(Leader::next_deadline),
            self.campaign_at,
            self.relist_at,
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
            change = next_change(watch) => Input::Watched(change),
            event = self.ports.events.recv() => Input::Agent(event),
            () = tokio::time::sleep(deadline.saturating_since(now)) => Input::Deadline,
        }
    }

    fn take_in(&mut self, done: Done) -> Result<(), SessionError> {
        let now = self.clock.now();
        match done {
            Done::MemberWrite(Ok(outcome)) => self.tell_member(MemberEvent::WriteDone(outcome)),
            Done::MemberWrite(Err(error)) => {
                tracing::warn!(%error, "Failed to write the member's report; it is tried again.");
                self.tell_member(MemberEvent::WriteFailed)
            }
            Done::LeaderWrite(Ok(outcome)) => self.tell_leader(LeaderEvent::WriteDone(outcome)),
            Done::LeaderWrite(Err(error)) => {
                tracing::warn!(%error, "Failed to write the leader's decision; it is tried again.");
                self.tell_leader(LeaderEvent::WriteFailed)
            }
            Done::Elected(Ok(outcome)) if outcome.succeeded => self.take_office(outcome.revision),
            Done::Retired(Ok(outcome)) if outcome.succeeded => {
                self.calls.elect(&self.settings.member, self.lease);
                Ok(())
            }
            Done::Elected(outcome) | Done::Retired(outcome) => {
                if let Err(error) = outcome {
                    tracing::warn!(%error, "Failed to take the leadership; it is tried again.");
                }
                self.campaign_at = Some(now + RETRY);
                Ok(())
            }
            Done::Renewed(Ok(lease)) => {
                self.renew_at = now + self.settings.lease_ttl / 3;
                if lease == self.lease {
                    return Ok(());
                }
                self.lease = lease;
                self.tell_member(MemberEvent::Lease(lease))
            }
            Done::Renewed(Err(error)) => {
                tracing::warn!(%error, "Failed to renew the lease; it is tried again.");
                self.renew_at = now + RETRY;
                Ok(())
            }
            Done::Relisted(Ok((entries, revision, watch))) => {
                self.watch = Some(watch);
                self.tell_member(MemberEvent::Relisted {
                    entries: entries.clone(),
                    revision,
                })?;
                self.tell_leader(LeaderEvent::Relisted { entries, revision })?;
                self.campaign();
                Ok(())
            }
            Done::Relisted(Err(error)) => {
                tracing::warn!(%error, "Failed to read the store anew; it is tried again.");
                self.relist_at = Some(now + RETRY);
                Ok(())
            }
        }
    }

    fn take_in_deadline(&mut self) -> Result<(), SessionError> {
        let now = self.clock.now();
        if self.renew_at <= now {
            // Until it is answered; the answer sets the next time.
            self.renew_at = now + self.settings.lease_ttl;
            self.calls.renew(self.lease, self.settings.lease_ttl);
        }
        if self.relist_at.is_some_and(|at| at <= now) {
            self.relist_at = None;
            self.calls.relist(self.settings.member.keys.prefix());
        }
        if self.campaign_at.is_some_and(|at| at <= now) {
            self.campaign_at = None;
            self.campaign();
        }
        self.tell_member(MemberEvent::Tick)?;
        self.tell_leader(LeaderEvent::Tick)
    }

    fn tell_member(&mut self, event: MemberEvent) -> Result<(), SessionError> {
        let effects = self.member.handle(self.clock.now(), event);
        for effect in effects {
            let order = match effect {
                MemberEffect::Write(transaction) => {
                    self.calls.write_for_member(transaction);
                    continue;
                }
                MemberEffect::Start { plan } => HostEffect::Start { plan },
                MemberEffect::Stop {
                    generation,
                    first_signal,
                    grace,
                    reason,
                } => HostEffect::Stop {
                    generation,
                    first_signal,
                    grace,
                    reason,
                },
                MemberEffect::KillNow { generation } => HostEffect::KillNow { generation },
                MemberEffect::Say(text) => HostEffect::Say(text),
                MemberEffect::Finish(result) => {
                    self.result = Some(result.clone());
                    HostEffect::Finish(result)
                }
            };
            self.order(order)?;
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
            self.calls.forget_leader();
        }
        Ok(())
    }

    fn order(&self, effect: HostEffect) -> Result<(), SessionError> {
        self.ports
            .effects
            .send(effect)
            .map_err(|_| SessionError::HostGone)
    }

    /// Tries to become the leader if nobody is, or if the leader was an earlier life of this node's own agent.
    fn campaign(&mut self) {
        if self.leader.is_some() || self.calls.is_campaigning() || self.campaign_at.is_some() {
            return;
        }
        let own = &self.settings.member;
        match self.member.view().leader() {
            None => self.calls.elect(own, self.lease),
            Some(leader)
                if leader.value.node == own.node && leader.mod_revision <= self.opened_at =>
            {
                self.calls.retire(own, leader.mod_revision);
            }
            Some(_) => {}
        }
    }

    fn take_office(&mut self, epoch: Revision) -> Result<(), SessionError> {
        let view = self.member.view().clone();
        self.leader = Some(Leader::new(self.settings.leader, epoch, view));
        self.tell_leader(LeaderEvent::Tick)
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

    /// Leaving is explicit: the others need not wait for the lease to run out.
    async fn leave(&mut self) {
        if let Err(error) = self.store.lease_revoke(self.lease).await {
            tracing::warn!(%error, "Failed to give the lease back; it will run out by itself.");
        }
    }
}

/// The lease of an earlier life of the same agent, if it still holds; a new one otherwise.
async fn take_lease<S: Store>(
    store: &S,
    settings: &SessionSettings,
    view: &View,
) -> Result<LeaseId, StoreError> {
    let own = view
        .member(&settings.member.node)
        .filter(|record| record.value.incarnation == settings.member.incarnation);
    if let Some(lease) = own.and_then(|record| record.lease)
        && store.lease_keepalive(lease).await.is_ok()
    {
        return Ok(lease);
    }
    store.lease_grant(settings.lease_ttl).await
}

async fn next_change(
    watch: &mut Option<Watch>,
) -> Result<steadfast_core::ChangeBatch, crate::WatchError> {
    match watch {
        Some(watch) => watch.next().await,
        None => std::future::pending().await,
    }
}
