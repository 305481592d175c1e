// SPDX-License-Identifier: Apache-2.0
//! One node's stream, from its first message to its end.

use std::sync::Arc;
use std::time::Duration;

use steadfast_core::{Incarnation, Instant};
use steadfast_proto::v1::{
    EvidenceRequest, Heartbeat, Hello, Order, Report, Welcome, order, report,
};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{sleep, timeout};
use tonic::{Status, Streaming};

use super::answers::{Answer, Answers};
use super::connection::Caller;
use super::registry::{Ask, Entry, SessionId};
use super::{Shared, now};
use crate::clock;
use crate::peers::violation::cut_short;
use crate::peers::{
    CloseReason, Digest, GREET_WITHIN, MOST_OPEN_REQUESTS, PEER_PROTOCOL_VERSION, PeerEvent,
    Violation,
};

/// How long a connection stays after its session, so that the other end can read why.
const LINGER: Duration = Duration::from_secs(1);
/// So many heartbeats more than agreed are forgiven.
const EXTRA_HEARTBEATS: u128 = 20;
/// How many characters of a foreign name are repeated.
const LONGEST_NAME: usize = 64;

/// A stream whose other end has shown a member's certificate.
pub(super) struct Session {
    caller: Caller,
    reports: Streaming<Report>,
    replies: mpsc::Sender<Result<Order, Status>>,
    shared: Arc<Shared>,
}

/// What a session keeps once the node has introduced itself.
struct Standing {
    id: SessionId,
    answers: Answers,
    opened_at: Instant,
    heartbeats: u128,
}

impl Session {
    pub(super) const fn new(
        caller: Caller,
        reports: Streaming<Report>,
        replies: mpsc::Sender<Result<Order, Status>>,
        shared: Arc<Shared>,
    ) -> Self {
        Self {
            caller,
            reports,
            replies,
            shared,
        }
    }

    /// Until the stream is over, for whatever reason.
    pub(super) async fn run(mut self) {
        let reason = match timeout(GREET_WITHIN, self.greeting()).await {
            Ok(Ok(incarnation)) => self.attend(incarnation).await,
            Ok(Err(reason)) => self.refuse(reason),
            Err(_) => self.refuse(Violation::NoIntroduction(GREET_WITHIN).into()),
        };
        if let CloseReason::Violation(violation) = reason {
            // Whoever does not read does not read this either.
            drop(self.replies.try_send(Err(violation.to_status())));
            let cut = self.caller.cut.clone();
            // Ends the stream, and all that is kept for it.
            drop(self);
            cut.run_until_cancelled(sleep(LINGER)).await;
            cut.cancel();
        } else {
            self.caller.cut.cancel();
        }
    }

    /// The node's first message.
    async fn greeting(&mut self) -> Result<Incarnation, CloseReason> {
        match self.next_report().await? {
            report::Kind::Hello(hello) => self.check(&hello),
            report::Kind::Heartbeat(_) | report::Kind::Evidence(_) => {
                Err(Violation::Unexpected("something else than its introduction").into())
            }
        }
    }

    fn check(&self, hello: &Hello) -> Result<Incarnation, CloseReason> {
        let violation = if hello.protocol_version != PEER_PROTOCOL_VERSION {
            Violation::Version {
                theirs: hello.protocol_version,
            }
        } else if hello.job != self.shared.settings.job {
            Violation::Job {
                theirs: cut_short(&hello.job, LONGEST_NAME),
            }
        } else if hello.node != self.caller.node.0 {
            Violation::Node {
                claimed: cut_short(&hello.node, LONGEST_NAME),
                owner: cut_short(&self.caller.node.0, LONGEST_NAME),
            }
        } else {
            return Ok(Incarnation(hello.incarnation));
        };
        Err(violation.into())
    }

    fn refuse(&self, reason: CloseReason) -> CloseReason {
        if let CloseReason::Violation(violation) = &reason {
            let refused = PeerEvent::Refused {
                node: self.caller.node.clone(),
                at: now(),
                violation: violation.clone(),
            };
            // A hint for a person only.
            drop(self.shared.events.try_send(refused));
        }
        reason
    }

    /// The time between the introduction and the end.
    async fn attend(&mut self, incarnation: Incarnation) -> CloseReason {
        let (asks, mut questions) = mpsc::channel(MOST_OPEN_REQUESTS);
        let (end, mut ended) = oneshot::channel();
        let entry = Entry {
            certificate: self.caller.certificate,
            heard_at: now(),
            asks,
            end: Some(end),
        };
        let Some(id) = self.open(entry, incarnation).await else {
            return CloseReason::ServerClosed;
        };
        let mut standing = Standing {
            id,
            answers: Answers::default(),
            opened_at: now(),
            heartbeats: 0,
        };
        let welcome = Welcome {
            protocol_version: PEER_PROTOCOL_VERSION,
            heartbeat_ms: u32::try_from(self.shared.settings.heartbeat.as_millis())
                .unwrap_or(u32::MAX),
        };
        let mut outcome = self.order(order::Kind::Welcome(welcome));
        let stop = self.shared.stop.clone();
        let reason = loop {
            if let Err(reason) = outcome {
                break reason;
            }
            tokio::select! {
                reason = &mut ended => break reason.unwrap_or(CloseReason::Replaced),
                () = stop.cancelled() => break CloseReason::ServerClosed,
                report = self.next_report() => {
                    outcome = match report {
                        Ok(report) => self.take(&mut standing, report).await,
                        Err(reason) => Err(reason),
                    };
                }
                Some(ask) = questions.recv(), if standing.answers.has_room() => {
                    outcome = self.ask(&mut standing, ask);
                }
            }
        };
        self.close(id, reason.clone()).await;
        reason
    }

    /// Says `Connected`, and first `Closed` for a session that is replaced. `None` when nobody takes events any more.
    async fn open(&self, entry: Entry, incarnation: Incarnation) -> Option<SessionId> {
        let mut permits = self.shared.events.reserve_many(2).await.ok()?;
        let at = now();
        let node = &self.caller.node;
        let mut registry = self.shared.registry();
        let (id, replaces) = registry.open(node, entry);
        if replaces {
            permits.next()?.send(PeerEvent::Closed {
                node: node.clone(),
                at,
                reason: CloseReason::Replaced,
            });
        }
        permits.next()?.send(PeerEvent::Connected {
            node: node.clone(),
            incarnation,
            at,
        });
        Some(id)
    }

    /// Says `Closed`, unless the session that replaces this one has said it.
    async fn close(&self, id: SessionId, reason: CloseReason) {
        let permit = self.shared.events.reserve().await;
        let node = &self.caller.node;
        let mut registry = self.shared.registry();
        if registry.close(node, id)
            && let Ok(permit) = permit
        {
            permit.send(PeerEvent::Closed {
                node: node.clone(),
                at: now(),
                reason,
            });
        }
    }

    async fn next_report(&mut self) -> Result<report::Kind, CloseReason> {
        match self.reports.message().await {
            Ok(Some(Report { kind: Some(kind) })) => Ok(kind),
            Ok(Some(Report { kind: None })) => Err(Violation::Empty.into()),
            Ok(None) => Err(CloseReason::ByPeer),
            Err(status) => Err(Violation::of_read(&status).map_or_else(
                || CloseReason::Broken(cut_short(&status.to_string(), 200)),
                CloseReason::Violation,
            )),
        }
    }

    async fn take(&self, standing: &mut Standing, report: report::Kind) -> Result<(), CloseReason> {
        match report {
            report::Kind::Heartbeat(heartbeat) => self.heartbeat(standing, &heartbeat),
            report::Kind::Evidence(piece) => match standing.answers.take(&piece)? {
                Some(answer) => self.pass_on(standing.id, answer).await,
                None => self.note_life(standing.id, now()),
            },
            report::Kind::Hello(_) => Err(Violation::Unexpected("a second introduction").into()),
        }
    }

    fn heartbeat(&self, standing: &mut Standing, heartbeat: &Heartbeat) -> Result<(), CloseReason> {
        let now = now();
        standing.heartbeats += 1;
        let open_for = now.saturating_since(standing.opened_at).as_millis();
        let agreed = open_for / self.shared.settings.heartbeat.as_millis().max(1);
        if standing.heartbeats > 2 * agreed + EXTRA_HEARTBEATS {
            return Err(Violation::Flood.into());
        }
        self.note_life(standing.id, now)?;
        let event = PeerEvent::Digest {
            node: self.caller.node.clone(),
            at: now,
            digest: Digest::from_heartbeat(heartbeat, now),
            clock_ahead_ms: (heartbeat.wall_ms != 0)
                .then(|| heartbeat.wall_ms.saturating_sub(clock::wall_ms())),
        };
        // When events are not taken in time, the next heartbeat says it all again.
        drop(self.shared.events.try_send(event));
        Ok(())
    }

    fn note_life(&self, id: SessionId, now: Instant) -> Result<(), CloseReason> {
        if self.shared.registry().heard(&self.caller.node, id, now) {
            Ok(())
        } else {
            Err(CloseReason::Replaced)
        }
    }

    async fn pass_on(&self, id: SessionId, (request, outcome): Answer) -> Result<(), CloseReason> {
        self.note_life(id, now())?;
        let event = PeerEvent::Evidence {
            node: self.caller.node.clone(),
            id: request,
            outcome,
        };
        let sent = self.shared.events.send(event).await;
        sent.map_err(|_| CloseReason::ServerClosed)
    }

    fn ask(&self, standing: &mut Standing, ask: Ask) -> Result<(), CloseReason> {
        let request = EvidenceRequest {
            id: ask.id,
            generation: ask.bounds.generation.0,
            max_bytes: ask.bounds.max_bytes,
            within_ms: u32::try_from(ask.bounds.within.as_millis()).unwrap_or(u32::MAX),
        };
        standing.answers.expect(ask);
        self.order(order::Kind::Evidence(request))
    }

    fn order(&self, kind: order::Kind) -> Result<(), CloseReason> {
        let order = Order { kind: Some(kind) };
        match self.replies.try_send(Ok(order)) {
            Ok(()) => Ok(()),
            Err(mpsc::error::TrySendError::Full(_)) => Err(Violation::NotReading.into()),
            Err(mpsc::error::TrySendError::Closed(_)) => Err(CloseReason::ByPeer),
        }
    }
}
