// SPDX-License-Identifier: Apache-2.0
//! The beginning of a session: what is in the store, a lease, a watch.

use std::collections::VecDeque;

use steadfast_core::{Held, Lease, Member, MemberEvent, Revision, View};

use tokio::sync::mpsc;

use super::earlier_run::{self, EarlierRun};
use super::host::{HostEffect, SessionPorts};
use super::{Calls, Clock, Session, SessionError, SessionSettings, reading};
use crate::retry::RetryPolicy;
use crate::{Store, StoreError, Watch};

/// What there is once the store has answered.
struct Opened {
    view: View,
    lease: Held,
    watch: Watch,
}

impl<S: Store, C: Clock> Session<S, C> {
    /// Opens a session. `None` when the agent has dropped its end for events meanwhile. An agent whose predecessor took part
    /// already tries until the store answers; the training goes on meanwhile.
    pub(super) async fn open(
        store: S,
        mut settings: SessionSettings,
        clock: C,
        mut ports: SessionPorts,
    ) -> Result<Option<Self>, SessionError> {
        let mut early = VecDeque::new();
        let give_up_at = clock.now() + settings.patience;
        let mut delays = RetryPolicy::SessionBeginning.delays();
        let opened = loop {
            let answer = {
                let opening = open(&store, &settings, &clock, &ports.effects);
                tokio::pin!(opening);
                loop {
                    tokio::select! {
                        answer = &mut opening => break answer,
                        event = ports.events.recv() => match event {
                            Some(event) => keep(&mut early, event),
                            None => return Ok(None),
                        },
                    }
                }
            };
            match answer {
                Ok(opened) => break opened,
                Err(error)
                    if settings.resumed || (is_temporary(&error) && clock.now() < give_up_at) =>
                {
                    tracing::warn!(%error, "The store cannot be used yet; it is tried again.");
                    tokio::time::sleep(delays.next_delay()).await;
                }
                Err(error) => return Err(error),
            }
        };
        settings.member.lease = Some(opened.lease.id());
        let lease = Lease::new(opened.lease);
        let renew_at = clock.now() + lease.renewal_interval();
        let member = Member::new(settings.member.clone(), opened.view);
        Ok(Some(Self {
            calls: Calls::new(store.clone()),
            store,
            settings,
            clock,
            ports,
            early,
            member,
            leader: None,
            elected: None,
            watch: Some(opened.watch),
            lease,
            fence: None,
            held_back: None,
            renew_at,
            campaign_at: None,
            vacant_since: None,
            led_at: Revision(0),
            relist_at: None,
            look_at: None,
            result: None,
        }))
    }
}

/// Whether the store may answer if it is asked again.
fn is_temporary(error: &SessionError) -> bool {
    matches!(
        error,
        SessionError::Store {
            source: StoreError::Unavailable(_),
            ..
        }
    )
}

/// Keeps an event for later. Of steps only the last one matters.
fn keep(early: &mut VecDeque<MemberEvent>, event: MemberEvent) {
    let is_step = |event: &MemberEvent| matches!(event, MemberEvent::Step { .. });
    if is_step(&event) && early.back().is_some_and(is_step) {
        early.pop_back();
    }
    early.push_back(event);
}

async fn open<S: Store, C: Clock>(
    store: &S,
    settings: &SessionSettings,
    clock: &C,
    effects: &mpsc::UnboundedSender<HostEffect>,
) -> Result<Opened, SessionError> {
    let failed = |operation| move |source| SessionError::Store { operation, source };
    let member = &settings.member;
    if member.shared && !settings.resumed {
        let found = earlier_run::clear(store, &member.keys, &member.spec)
            .await
            .map_err(failed("look for an earlier run of the job"))?;
        let text = match found {
            EarlierRun::None => None,
            EarlierRun::Ended(result) => Some(format!(
                "an earlier run of the job under this name has ended ({}); this is a new one",
                result.message
            )),
            EarlierRun::Abandoned(difference) => Some(format!(
                "an earlier run of a job under this name was abandoned ({difference}); this is a new one"
            )),
        };
        if let Some(text) = text {
            effects
                .send(HostEffect::Say(text))
                .map_err(|_| SessionError::HostGone)?;
        }
    }
    let prefix = if member.shared {
        member.keys.common()
    } else {
        member.keys.prefix().to_owned()
    };
    let (entries, revision) = if member.shared {
        reading::read_own(store, &member.keys, &member.node).await
    } else {
        store.range(&prefix).await
    }
    .map_err(failed("read the job's keys"))?;
    let view = View::load(member.keys.clone(), &entries, revision);
    let lease = take_lease(store, settings, &view, clock)
        .await
        .map_err(failed("get a lease"))?;
    let watch = store
        .watch(&prefix, Revision(revision.0 + 1))
        .await
        .map_err(failed("watch the job's keys"))?;
    Ok(Opened { view, lease, watch })
}

/// The lease of an earlier life of the same agent, if it still holds; a new one otherwise.
async fn take_lease<S: Store, C: Clock>(
    store: &S,
    settings: &SessionSettings,
    view: &View,
    clock: &C,
) -> Result<Held, StoreError> {
    let own = view
        .member(&settings.member.node)
        .filter(|record| record.value.incarnation == settings.member.incarnation);
    let sent = clock.now();
    if let Some(lease) = own.and_then(|record| record.lease) {
        match store.lease_keepalive(lease).await {
            Ok(()) => {
                // It may be one of the short ones.
                let ttl = if settings.member.shared {
                    settings.lease_ttl.min(settings.witness_lease_ttl)
                } else {
                    settings.lease_ttl
                };
                return Ok(Held::granted(lease, ttl, sent).with_record());
            }
            Err(StoreError::LeaseNotFound(_)) => {}
            // The record may well be bound to it still. Another lease would vouch for nothing, and cost the workers.
            Err(error) => return Err(error),
        }
    }
    let sent = clock.now();
    let lease = store.lease_grant(settings.lease_ttl).await?;
    let held = Held::granted(lease, settings.lease_ttl, sent);
    Ok(if settings.resumed {
        held
    } else {
        held.as_first()
    })
}
