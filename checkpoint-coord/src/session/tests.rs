// SPDX-License-Identifier: Apache-2.0
//! Whole jobs through a session, with a host that does as it is told.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use steadfast_core::{
    Change, Condition, EndRule, Generation, Incarnation, JobOutcome, JobSpec, KeeperStop, KeyValue,
    Keys, LeaseId, Ledger, LocalRank, NodeName, OperatorRequest, Outcome, Transaction, View,
    WorkerExit, WorkerObservation, WorkerState,
};
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinHandle, yield_now};

use super::*;
use crate::embedded::{EmbeddedStore, MemoryMedium};
use crate::{WatchFeed, watch_channel};

const SLOTS: u32 = 2;

/// What the workers of a generation do by themselves, once they have started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Script {
    /// A step, then rank 1 fails.
    Fail(u64),
    Finish,
    /// Run until they are stopped, then end well.
    Wait,
}

/// A keeper and its workers; outlives any session.
#[derive(Debug)]
struct Host {
    scripts: Vec<Script>,
    generation: Generation,
    workers: BTreeMap<LocalRank, WorkerState>,
    stopping: Option<KeeperStop>,
    starts: Vec<Generation>,
    masters: Vec<u16>,
    port: u16,
    now: u64,
}

impl Host {
    fn new(scripts: &[Script]) -> Self {
        Self {
            scripts: scripts.to_vec(),
            generation: Generation(0),
            workers: BTreeMap::new(),
            stopping: None,
            starts: Vec::new(),
            masters: Vec::new(),
            port: 30_000,
            now: 1_000,
        }
    }

    fn script(&self) -> Script {
        let index = usize::try_from(self.generation.restart_count()).unwrap();
        self.scripts[index]
    }

    fn resume(&mut self) -> Vec<MemberEvent> {
        self.port += 1;
        let mut events = vec![MemberEvent::Resume {
            workers: self
                .workers
                .iter()
                .map(|(local_rank, state)| WorkerObservation {
                    generation: self.generation,
                    local_rank: *local_rank,
                    state: state.clone(),
                })
                .collect(),
            stopping: self.stopping,
            next_port: self.port,
        }];
        if self.generation.0 > 0 && self.stopping.is_none() {
            events.extend(self.play());
        }
        events
    }

    fn carry_out(&mut self, effect: HostEffect) -> Vec<MemberEvent> {
        match effect {
            HostEffect::Start { plan, .. } if plan.generation > self.generation => {
                assert!(
                    !self
                        .workers
                        .values()
                        .any(|state| *state == WorkerState::Alive)
                );
                self.generation = plan.generation;
                self.starts.push(plan.generation);
                self.masters.push(plan.master.port);
                self.stopping = None;
                self.workers = (0..SLOTS)
                    .map(|local| (LocalRank(local), WorkerState::Alive))
                    .collect();
                let mut events = vec![MemberEvent::Started {
                    generation: self.generation,
                    failures: vec![],
                }];
                events.extend(self.play());
                events
            }
            HostEffect::Stop { generation, .. } if generation == self.generation => {
                let began = Instant::from_nanos(self.tick());
                self.stopping
                    .get_or_insert(KeeperStop { generation, began });
                let exit = match self.script() {
                    Script::Wait => WorkerExit::Code(0),
                    _ => WorkerExit::Signal(15),
                };
                let mut events = self.exit_all(exit);
                self.port += 1;
                events.push(MemberEvent::Stopped {
                    generation,
                    unkillable: vec![],
                    next_port: self.port,
                });
                events
            }
            _ => vec![],
        }
    }

    fn play(&mut self) -> Vec<MemberEvent> {
        let generation = self.generation;
        match self.script() {
            Script::Fail(step) => {
                let mut events = vec![MemberEvent::Step { generation, step }];
                events.extend(self.exit(LocalRank(1), WorkerExit::Code(3)));
                events
            }
            Script::Finish => self.exit_all(WorkerExit::Code(0)),
            Script::Wait => vec![],
        }
    }

    fn exit_all(&mut self, exit: WorkerExit) -> Vec<MemberEvent> {
        (0..SLOTS)
            .filter_map(|local| self.exit(LocalRank(local), exit))
            .collect()
    }

    fn exit(&mut self, local_rank: LocalRank, exit: WorkerExit) -> Option<MemberEvent> {
        let at = Instant::from_nanos(self.tick());
        let state = self.workers.get_mut(&local_rank)?;
        if *state != WorkerState::Alive {
            return None;
        }
        *state = WorkerState::Exited {
            exit,
            at,
            finding: None,
        };
        Some(MemberEvent::WorkerExited {
            generation: self.generation,
            local_rank,
            exit,
            at,
            finding: None,
        })
    }

    fn tick(&mut self) -> u64 {
        self.now += 1_000;
        self.now
    }
}

/// A session that runs, and the agent's ends of its channels.
struct Life {
    task: JoinHandle<Result<Option<JobResult>, SessionError>>,
    events: mpsc::Sender<MemberEvent>,
    effects: mpsc::UnboundedReceiver<HostEffect>,
    status: watch::Receiver<StatusView>,
}

impl Life {
    fn begin(medium: &MemoryMedium, max_restarts: u32) -> Self {
        let store = EmbeddedStore::open(medium.clone()).unwrap();
        Self::with(store, settings(max_restarts))
    }

    fn with(store: impl Store, settings: SessionSettings) -> Self {
        let (events, event_receiver) = mpsc::channel(64);
        let (effect_sender, effects) = mpsc::unbounded_channel();
        let (status_sender, status) = watch::channel(StatusView::default());
        let ports = SessionPorts {
            events: event_receiver,
            hints: mpsc::channel(1).1,
            peers: watch::channel(Peers::default()).0,
            effects: effect_sender,
            status: status_sender,
        };
        let started = tokio::time::Instant::now();
        let clock = move || {
            let elapsed = started.elapsed().as_nanos();
            Instant::from_nanos(1_000_000_000 + u64::try_from(elapsed).unwrap())
        };
        let task = tokio::spawn(run_session(store, settings, clock, ports));
        Self {
            task,
            events,
            effects,
            status,
        }
    }

    async fn tell(&self, events: Vec<MemberEvent>) {
        for event in events {
            // The session may have ended meanwhile; what it has to say about that comes by the other channel.
            drop(self.events.send(event).await);
        }
    }

    async fn kill(mut self, host: &mut Host) {
        self.task.abort();
        assert!(self.task.await.is_err_and(|error| error.is_cancelled()));
        // A keeper reads to the end what the agent has sent.
        while let Some(effect) = self.effects.recv().await {
            host.carry_out(effect);
        }
    }
}

fn settings(max_restarts: u32) -> SessionSettings {
    SessionSettings {
        member: MemberSettings {
            slots: SLOTS,
            ..MemberSettings::new(
                Keys::new("job"),
                NodeName::from("here"),
                Incarnation(7),
                JobSpec::new(1, 1, max_restarts, "digest".to_owned()),
            )
        },
        leader: LeaderSettings::default(),
        jury: None,
        lease_ttl: Duration::from_hours(1),
        witness_lease_ttl: Duration::from_hours(1),
        patience: Duration::ZERO,
        resumed: false,
    }
}

async fn ledger(medium: &MemoryMedium) -> Ledger {
    let store = EmbeddedStore::open(medium.clone()).unwrap();
    let (entries, revision) = store.range("").await.unwrap();
    let view = View::load(Keys::new("job"), &entries, revision);
    Ledger::clone(&view.ledger().unwrap().value)
}

/// Runs until the job ends; the session dies after as many effects as `lives` says, again and again.
async fn run_job(host: &mut Host, medium: &MemoryMedium, lives: &[usize]) -> JobResult {
    let mut lives = lives.iter();
    loop {
        let mut life = Life::begin(medium, 3);
        life.tell(host.resume()).await;
        let mut left = lives.next().copied();
        loop {
            if left == Some(0) {
                life.kill(host).await;
                break;
            }
            // A life that is to be short may also end between two effects.
            let effect = match left {
                Some(count) if count % 2 == 1 => {
                    for _ in 0..count {
                        yield_now().await;
                    }
                    life.effects.try_recv().ok()
                }
                _ => Some(life.effects.recv().await.expect("the session ended early")),
            };
            if let Some(HostEffect::Finish(result)) = effect {
                assert_eq!(life.task.await.unwrap().unwrap(), Some(result.clone()));
                return result;
            }
            if let Some(effect) = effect {
                let events = host.carry_out(effect);
                life.tell(events).await;
            }
            left = left.map(|left| left - 1);
        }
    }
}

#[tokio::test]
async fn a_fault_a_restart_and_success() {
    let medium = MemoryMedium::default();
    let mut host = Host::new(&[Script::Fail(5), Script::Finish]);
    let result = run_job(&mut host, &medium, &[]).await;
    assert_eq!(result.outcome, JobOutcome::Succeeded);
    assert_eq!((result.restarts, result.best_step), (1, Some(5)));
    assert_eq!(host.starts, [Generation(1), Generation(2)]);
    assert_ne!(host.masters[0], host.masters[1]);
    assert_eq!(ledger(&medium).await.restarts_charged, 1);
}

#[tokio::test(start_paused = true)]
async fn on_one_node_nothing_ever_waits_for_a_timer() {
    let medium = MemoryMedium::default();
    let mut host = Host::new(&[Script::Fail(5), Script::Fail(6), Script::Finish]);
    // A paused clock moves only when everything waits for it.
    let began = tokio::time::Instant::now();
    let result = run_job(&mut host, &medium, &[]).await;
    assert_eq!(result.restarts, 2);
    assert_eq!(began.elapsed(), Duration::ZERO);
}

#[tokio::test]
async fn two_nodes_restart_together_and_both_learn_the_result() {
    let store = EmbeddedStore::open(MemoryMedium::default()).unwrap();
    let scripts = [
        [Script::Fail(5), Script::Finish],
        [Script::Wait, Script::Finish],
    ];
    let nodes = ["a", "b"].into_iter().zip(scripts).map(|(name, scripts)| {
        let mut settings = settings(3);
        settings.member.node = NodeName::from(name);
        settings.member.spec = JobSpec::new(2, 2, 3, "digest".to_owned());
        let mut life = Life::with(store.clone(), settings);
        let mut host = Host::new(&scripts);
        tokio::spawn(async move {
            life.tell(host.resume()).await;
            loop {
                let effect = life.effects.recv().await.unwrap();
                if let HostEffect::Finish(result) = effect {
                    return (result, host.starts);
                }
                life.tell(host.carry_out(effect)).await;
            }
        })
    });
    let nodes: Vec<_> = nodes.collect();
    for node in nodes {
        let (result, starts) = node.await.unwrap();
        assert_eq!(
            (result.outcome, result.restarts),
            (JobOutcome::Succeeded, 1)
        );
        assert_eq!(starts, [1, 2].map(Generation));
    }
}

#[tokio::test]
async fn the_session_may_die_anywhere() {
    for first in 0..12 {
        for second in 0..12 {
            let medium = MemoryMedium::default();
            let mut host = Host::new(&[Script::Fail(5), Script::Fail(9), Script::Finish]);
            let result = run_job(&mut host, &medium, &[first, second, first / 2]).await;
            assert_eq!(result.outcome, JobOutcome::Succeeded, "{first} {second}");
            assert_eq!(host.starts, [1, 2, 3].map(Generation), "{first} {second}");
            let ledger = ledger(&medium).await;
            assert_eq!(ledger.restarts_charged, 2, "{first} {second}");
        }
    }
}

#[tokio::test]
async fn the_same_failure_without_progress_ends_the_job_with_the_workers_code() {
    let medium = MemoryMedium::default();
    let mut host = Host::new(&[Script::Fail(5); 4]);
    let result = run_job(&mut host, &medium, &[3, 4]).await;
    assert_eq!(result.rule, EndRule::RepeatedFailure);
    assert_eq!(result.exit_code(), 3);
    assert!(result.message.contains("at step 5"), "{}", result.message);
    assert_eq!(host.starts.len(), 3);
}

#[tokio::test]
async fn an_operator_stops_a_running_job() {
    let medium = MemoryMedium::default();
    let mut host = Host::new(&[Script::Wait]);
    let mut life = Life::begin(&medium, 3);
    life.tell(host.resume()).await;
    let start = life.effects.recv().await.unwrap();
    life.tell(host.carry_out(start)).await;
    let running = |status: &StatusView| status.member_state == MemberState::Running(Generation(1));
    life.status.wait_for(running).await.unwrap();
    let stop = OperatorRequest::Stop {
        grace: Some(Duration::from_secs(1)),
        reason: "enough".to_owned(),
    };
    life.tell(vec![MemberEvent::Operator(stop)]).await;
    let effect = life.effects.recv().await.unwrap();
    let HostEffect::Stop { grace, .. } = &effect else {
        panic!("{effect:?}");
    };
    // What of it has gone by since it was asked for is not given again.
    assert!(
        *grace <= Duration::from_secs(1) && !grace.is_zero(),
        "{grace:?}"
    );
    life.tell(host.carry_out(effect)).await;
    let effect = life.effects.recv().await.unwrap();
    let HostEffect::Finish(result) = effect else {
        panic!("{effect:?}");
    };
    assert_eq!(
        (result.outcome, result.exit_code()),
        (JobOutcome::Stopped, 0)
    );
    assert!(result.message.contains("enough"));
}

#[tokio::test]
async fn an_agent_that_drops_its_end_leaves_the_job_as_it_is() {
    let medium = MemoryMedium::default();
    let life = Life::begin(&medium, 3);
    drop(life.events);
    assert_eq!(life.task.await.unwrap().unwrap(), None);
}

/// A store that renews no lease while it is deaf.
#[derive(Clone)]
struct Deaf {
    store: EmbeddedStore,
    is_deaf: Arc<AtomicBool>,
}

impl Store for Deaf {
    async fn range(&self, prefix: &str) -> Result<(Vec<KeyValue>, Revision), StoreError> {
        self.store.range(prefix).await
    }

    async fn get(&self, key: &str) -> Result<(Option<KeyValue>, Revision), StoreError> {
        self.store.get(key).await
    }

    async fn transact(&self, transaction: Transaction) -> Result<Outcome, StoreError> {
        self.store.transact(transaction).await
    }

    async fn watch(&self, prefix: &str, from: Revision) -> Result<Watch, StoreError> {
        self.store.watch(prefix, from).await
    }

    async fn lease_grant(&self, ttl: Duration) -> Result<LeaseId, StoreError> {
        self.store.lease_grant(ttl).await
    }

    async fn lease_keepalive(&self, lease: LeaseId) -> Result<(), StoreError> {
        if self.is_deaf.load(Ordering::Relaxed) {
            return Err(StoreError::Unavailable("deaf".to_owned()));
        }
        self.store.lease_keepalive(lease).await
    }

    async fn lease_revoke(&self, lease: LeaseId) -> Result<(), StoreError> {
        self.store.lease_revoke(lease).await
    }
}

#[tokio::test(start_paused = true)]
async fn a_plan_that_comes_before_the_lease_is_renewed_waits_for_that() {
    let store = EmbeddedStore::open(MemoryMedium::default()).unwrap();
    let is_deaf = Arc::new(AtomicBool::new(false));
    let of_two = |node: &str| {
        let mut settings = settings(3);
        settings.member.node = NodeName::from(node);
        settings.member.spec = JobSpec::new(2, 2, 3, "digest".to_owned());
        settings.member.spec.wait_for_nodes_ms = 3_600_000;
        settings.member.shared = true;
        // The margin is half a second and one part in a hundred.
        settings.lease_ttl = Duration::from_secs(1_000);
        settings
    };
    let resume = || Host::new(&[]).resume();
    let deaf = Deaf {
        store: store.clone(),
        is_deaf: Arc::clone(&is_deaf),
    };
    let mut first = Life::with(deaf, of_two("a"));
    first.tell(resume()).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    is_deaf.store(true, Ordering::Relaxed);
    // The store still has the lease, but the member cannot know that any more.
    tokio::time::sleep(Duration::from_secs(994)).await;
    let mut second = Life::with(store, of_two("b"));
    second.tell(resume()).await;
    let started = loop {
        if let HostEffect::Start { plan, .. } = second.effects.recv().await.unwrap() {
            break plan.generation;
        }
    };
    assert_eq!(started, Generation(1));
    tokio::time::sleep(Duration::from_secs(1)).await;
    while let Ok(effect) = first.effects.try_recv() {
        assert!(!matches!(effect, HostEffect::Start { .. }), "{effect:?}");
    }
    is_deaf.store(false, Ordering::Relaxed);
    let mut vouched_until = Instant::default();
    loop {
        match first.effects.recv().await.unwrap() {
            HostEffect::Fence { lease_until, .. } => vouched_until = lease_until,
            HostEffect::Start { .. } => break,
            _ => {}
        }
    }
    assert!(
        vouched_until > Instant::from_nanos(1_500_000_000_000),
        "{vouched_until:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_new_agent_takes_no_other_lease_because_the_old_one_could_not_be_renewed_at_once() {
    let deaf = Deaf {
        store: EmbeddedStore::open(MemoryMedium::default()).unwrap(),
        is_deaf: Arc::new(AtomicBool::new(false)),
    };
    let mut settings = settings(3);
    settings.member.spec = JobSpec::new(2, 2, 3, "digest".to_owned());
    settings.member.shared = true;
    let record = async || {
        let own = settings.member.keys.member(&settings.member.node);
        deaf.store.get(&own).await.unwrap().0
    };
    let first = Life::with(deaf.clone(), settings.clone());
    first.tell(Host::new(&[]).resume()).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let lease = record().await.unwrap().lease;
    first.task.abort();
    deaf.is_deaf.store(true, Ordering::Relaxed);
    settings.resumed = true;
    let mut second = Life::with(deaf.clone(), settings.clone());
    second.tell(Host::new(&[]).resume()).await;
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert!(second.effects.try_recv().is_err(), "nothing is known yet");
    deaf.is_deaf.store(false, Ordering::Relaxed);
    let HostEffect::Fence { lease_until, .. } = second.effects.recv().await.unwrap() else {
        panic!("no fence");
    };
    assert!(lease_until > Instant::default());
    assert_eq!(record().await.unwrap().lease, lease);
}

/// A store in which somebody else always leads, and whose watch says what the test lets it say.
#[derive(Clone)]
struct Led {
    store: EmbeddedStore,
    elections: Arc<AtomicUsize>,
    feeds: Arc<Mutex<Vec<WatchFeed>>>,
}

/// When somebody else is seen to lead there.
const LED_AT: Revision = Revision(1_000);

impl Store for Led {
    async fn range(&self, prefix: &str) -> Result<(Vec<KeyValue>, Revision), StoreError> {
        self.store.range(prefix).await
    }

    async fn get(&self, key: &str) -> Result<(Option<KeyValue>, Revision), StoreError> {
        self.store.get(key).await
    }

    async fn transact(&self, transaction: Transaction) -> Result<Outcome, StoreError> {
        let leader = Condition::absent(Keys::new("job").leader());
        if transaction.when.contains(&leader) {
            self.elections.fetch_add(1, Ordering::Relaxed);
            return Ok(Outcome {
                succeeded: false,
                revision: LED_AT,
            });
        }
        self.store.transact(transaction).await
    }

    async fn watch(&self, _: &str, _: Revision) -> Result<Watch, StoreError> {
        let (feed, watch) = watch_channel(16);
        self.feeds.lock().unwrap().push(feed);
        Ok(watch)
    }

    async fn lease_grant(&self, ttl: Duration) -> Result<LeaseId, StoreError> {
        self.store.lease_grant(ttl).await
    }

    async fn lease_keepalive(&self, lease: LeaseId) -> Result<(), StoreError> {
        self.store.lease_keepalive(lease).await
    }

    async fn lease_revoke(&self, lease: LeaseId) -> Result<(), StoreError> {
        self.store.lease_revoke(lease).await
    }
}

#[tokio::test(start_paused = true)]
async fn an_election_that_was_lost_is_not_repeated_until_the_watch_has_told_of_it() {
    let led = Led {
        store: EmbeddedStore::open(MemoryMedium::default()).unwrap(),
        elections: Arc::default(),
        feeds: Arc::default(),
    };
    let mut settings = settings(3);
    settings.member.shared = true;
    let life = Life::with(led.clone(), settings);
    life.tell(Host::new(&[]).resume()).await;
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert_eq!(led.elections.load(Ordering::Relaxed), 1);
    // Whoever led is gone by then.
    let gone = ChangeBatch {
        revision: Revision(LED_AT.0 + 1),
        changes: vec![Change::Delete {
            key: Keys::new("job").leader(),
        }],
    };
    assert!(led.feeds.lock().unwrap()[0].deliver(gone));
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(led.elections.load(Ordering::Relaxed) > 1);
}
