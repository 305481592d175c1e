// SPDX-License-Identifier: Apache-2.0
//! One stream to the leader, from the introduction to its end.

use std::time::Duration;

use steadfast_proto::v1::node_client::NodeClient;
use steadfast_proto::v1::{Heartbeat, Hello, Order, Report, order, report};
use tokio::sync::{mpsc, watch};
use tokio::time::{Interval, MissedTickBehavior, interval, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tonic::transport::Channel;

use super::evidence::Evidence;
use super::failure::StreamFailure;
use super::{ANSWER_WITHIN, PeerOrder};
use crate::clock;
use crate::peers::{Digest, Introduction, LARGEST_MESSAGE, PEER_PROTOCOL_VERSION, now};

/// How many reports wait to be sent. Few, so that a heartbeat is not old when it leaves.
const WAITING_REPORTS: usize = 2;
/// No leader may ask for heartbeats quicker than this, in milliseconds...
const QUICKEST_HEARTBEAT: u32 = 50;
/// ... or slower than this.
const SLOWEST_HEARTBEAT: u32 = 10_000;

/// A stream on which the leader has said welcome.
pub(super) struct Session<'a> {
    orders: Streaming<Order>,
    reports: mpsc::Sender<Report>,
    beats: Interval,
    digests: &'a watch::Receiver<Digest>,
    order_sink: &'a mpsc::Sender<PeerOrder>,
    evidence: Evidence,
}

impl<'a> Session<'a> {
    /// Introduces this node.
    pub(super) async fn open(
        channel: Channel,
        introduction: &Introduction,
        digests: &'a watch::Receiver<Digest>,
        order_sink: &'a mpsc::Sender<PeerOrder>,
    ) -> Result<Self, StreamFailure> {
        let (reports, outgoing) = mpsc::channel(WAITING_REPORTS);
        let hello = report::Kind::Hello(Hello {
            protocol_version: PEER_PROTOCOL_VERSION,
            job: introduction.job.clone(),
            node: introduction.node.0.clone(),
            incarnation: introduction.incarnation.0,
        });
        // The channel is new and has room.
        drop(reports.try_send(Report { kind: Some(hello) }));
        let greeting = async {
            let mut client = NodeClient::new(channel).max_decoding_message_size(LARGEST_MESSAGE);
            let reply = client.session(ReceiverStream::new(outgoing)).await;
            let mut orders = reply.map_err(StreamFailure::of_status)?.into_inner();
            let first = next(&mut orders).await?;
            Ok((orders, first))
        };
        let (orders, first) = timeout(ANSWER_WITHIN, greeting)
            .await
            .map_err(|_| StreamFailure::NoAnswer(ANSWER_WITHIN))??;
        let order::Kind::Welcome(welcome) = first else {
            return Err(StreamFailure::Order("it does not begin with a welcome"));
        };
        if welcome.protocol_version != PEER_PROTOCOL_VERSION {
            return Err(StreamFailure::Version {
                theirs: welcome.protocol_version,
            });
        }
        let pace = welcome
            .heartbeat_ms
            .clamp(QUICKEST_HEARTBEAT, SLOWEST_HEARTBEAT);
        let mut beats = interval(Duration::from_millis(pace.into()));
        beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Ok(Self {
            orders,
            reports,
            beats,
            digests,
            order_sink,
            evidence: Evidence::default(),
        })
    }

    /// Until the stream ends. While the leader does not read, heartbeats are left out.
    pub(super) async fn run(mut self) -> StreamFailure {
        let mut is_due = false;
        let reports = self.reports.clone();
        let mut news = self.digests.clone();
        let mut was_overdue = false;
        loop {
            let has_report = is_due || self.evidence.has_piece();
            tokio::select! {
                _ = self.beats.tick() => is_due = true,
                // That the training stands still is not kept back until the next heartbeat.
                turned = turns(&mut news, was_overdue) => {
                    was_overdue = turned;
                    is_due = true;
                }
                room = reports.reserve(), if has_report => {
                    let Ok(room) = room else {
                        return self.ending().await;
                    };
                    // A heartbeat goes first: a large answer must not look like silence.
                    let kind = if std::mem::take(&mut is_due) {
                        let digest = *self.digests.borrow();
                        Some(report::Kind::Heartbeat(Heartbeat {
                            wall_ms: clock::wall_ms(),
                            ..digest.to_heartbeat(now())
                        }))
                    } else {
                        self.evidence.next_piece().map(report::Kind::Evidence)
                    };
                    room.send(Report { kind });
                }
                order = next(&mut self.orders) => {
                    let begun = match order {
                        Ok(order::Kind::Evidence(request)) => {
                            self.evidence.begin(request, self.order_sink)
                        }
                        Ok(order::Kind::Welcome(_)) => {
                            Err(StreamFailure::Order("a second welcome"))
                        }
                        Err(failure) => Err(failure),
                    };
                    if let Err(failure) = begun {
                        return failure;
                    }
                }
                () = self.evidence.collected() => {}
            }
        }
    }

    /// The leader takes no more reports; what it says last may tell why.
    async fn ending(&mut self) -> StreamFailure {
        let last = async {
            loop {
                if let Err(failure) = next(&mut self.orders).await {
                    return failure;
                }
            }
        };
        timeout(ANSWER_WITHIN, last)
            .await
            .unwrap_or(StreamFailure::Closed)
    }
}

/// Waits until the next step is overdue, or is no longer. Says which; for ever when nobody tells any more.
async fn turns(news: &mut watch::Receiver<Digest>, was_overdue: bool) -> bool {
    let turned = news.wait_for(|digest| digest.movement.is_overdue() != was_overdue);
    if turned.await.is_ok() {
        return !was_overdue;
    }
    std::future::pending().await
}

async fn next(orders: &mut Streaming<Order>) -> Result<order::Kind, StreamFailure> {
    match orders.message().await {
        Ok(Some(Order { kind: Some(kind) })) => Ok(kind),
        Ok(Some(Order { kind: None })) => Err(StreamFailure::Order("it says nothing")),
        Ok(None) => Err(StreamFailure::Closed),
        Err(status) => Err(StreamFailure::of_status(status)),
    }
}
