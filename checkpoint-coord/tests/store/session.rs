// SPDX-License-Identifier: Apache-2.0
//! A job of two nodes whose sessions meet in a real etcd.

use std::time::Duration;

use steadfast_coord::etcd::EtcdStore;
use steadfast_coord::{HostEffect, SessionPorts, SessionSettings, StatusView, run_session};
use steadfast_core::{
    Generation, Incarnation, Instant, JobOutcome, JobResult, JobSpec, Keys, LeaderSettings,
    LocalRank, MemberEvent, MemberSettings, NodeName, WorkerExit,
};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use crate::server::{DEADLINE, Etcd, Server};

on_each_etcd!(two_nodes_restart_together_although_etcd_is_killed);

/// A node with one worker, which does what it is told to from outside.
struct Node {
    session: JoinHandle<Option<JobResult>>,
    events: mpsc::Sender<MemberEvent>,
    effects: mpsc::UnboundedReceiver<HostEffect>,
    now: u64,
}

impl Node {
    async fn join(name: &str, store: EtcdStore) -> Self {
        let (events, event_receiver) = mpsc::channel(64);
        let (effect_sender, effects) = mpsc::unbounded_channel();
        let ports = SessionPorts {
            events: event_receiver,
            hints: mpsc::channel(1).1,
            peers: watch::channel(steadfast_coord::Peers::default()).0,
            effects: effect_sender,
            status: watch::channel(StatusView::default()).0,
        };
        let started = tokio::time::Instant::now();
        let clock = move || {
            let elapsed = started.elapsed().as_nanos();
            Instant::from_nanos(1_000_000_000 + u64::try_from(elapsed).unwrap())
        };
        let settings = settings(name);
        let session = tokio::spawn(async move {
            Box::pin(run_session(store, settings, clock, ports))
                .await
                .unwrap()
        });
        let node = Self {
            session,
            events,
            effects,
            now: 1_000,
        };
        let resume = MemberEvent::Resume {
            workers: vec![],
            stopping: None,
            next_port: 30_001,
        };
        node.tell(resume).await;
        node
    }

    async fn tell(&self, event: MemberEvent) {
        // A session that has ended has said so by its effects.
        drop(self.events.send(event).await);
    }

    /// Waits for the order to start a generation, and carries it out.
    async fn start(&mut self, expected: Generation) {
        loop {
            match self.next().await {
                HostEffect::Start { plan, .. } if plan.generation == expected => break,
                HostEffect::Stop { generation, .. } => self.stop(generation).await,
                HostEffect::Finish(result) => panic!("{result:?}"),
                _ => {}
            }
        }
        let started = MemberEvent::Started {
            generation: expected,
            failures: vec![],
        };
        self.tell(started).await;
    }

    async fn exit(&mut self, generation: Generation, exit: WorkerExit) {
        self.now += 1_000;
        let exited = MemberEvent::WorkerExited {
            generation,
            local_rank: LocalRank(0),
            exit,
            at: Instant::from_nanos(self.now),
            finding: None,
        };
        self.tell(exited).await;
    }

    async fn stop(&mut self, generation: Generation) {
        self.exit(generation, WorkerExit::Signal(15)).await;
        let stopped = MemberEvent::Stopped {
            generation,
            unkillable: vec![],
            next_port: 30_002,
        };
        self.tell(stopped).await;
    }

    async fn finish(mut self) -> JobResult {
        loop {
            if let HostEffect::Finish(result) = self.next().await {
                assert_eq!(self.session.await.unwrap(), Some(result.clone()));
                return result;
            }
        }
    }

    async fn next(&mut self) -> HostEffect {
        let effect = tokio::time::timeout(DEADLINE, self.effects.recv()).await;
        effect.expect("an order in time").expect("a session")
    }
}

fn settings(name: &str) -> SessionSettings {
    SessionSettings {
        member: MemberSettings {
            shared: true,
            ..MemberSettings::new(
                Keys::new("job"),
                NodeName::from(name),
                Incarnation(7),
                JobSpec::new(2, 2, 3, "digest".to_owned()),
            )
        },
        leader: LeaderSettings {
            shared: true,
            ..LeaderSettings::default()
        },
        jury: None,
        lease_ttl: Duration::from_secs(20),
        witness_lease_ttl: Duration::from_secs(2),
        patience: Duration::ZERO,
        resumed: false,
    }
}

async fn two_nodes_restart_together_although_etcd_is_killed(etcd: Etcd) {
    let mut server = Server::start(&etcd).await;
    let mut one = Node::join("a", server.store().await).await;
    let mut two = Node::join("b", server.store().await).await;
    let (first, second) = (Generation(1), Generation(2));
    tokio::join!(one.start(first), two.start(first));
    server.kill();
    // The fault happens while etcd is away: it is reported, and acted upon, when it is back.
    one.exit(first, WorkerExit::Code(3)).await;
    server.start_again();
    tokio::join!(one.start(second), two.start(second));
    one.exit(second, WorkerExit::Code(0)).await;
    two.exit(second, WorkerExit::Code(0)).await;
    let (one, two) = tokio::join!(one.finish(), two.finish());
    assert_eq!(one, two);
    assert_eq!((one.outcome, one.restarts), (JobOutcome::Succeeded, 1));
}
