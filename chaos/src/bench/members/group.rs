// SPDX-License-Identifier: Apache-2.0
//! A process full of members: the runtime of the decision core as the agent runs it, with a host that has no workers.
//!
//! Each member has a connection of its own, as each agent has. What it is told to do it reports as done at once. What
//! is to happen comes as lines over standard input; what has happened goes out as JSON lines.

use std::cell::RefCell;
use std::io::{self, BufRead, BufWriter, Write};
use std::rc::Rc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use steadfast_coord::etcd::{EtcdSettings, EtcdStore};
use steadfast_coord::{HostEffect, Peers, SessionPorts, SessionSettings, StatusView, run_session};
use steadfast_core::{
    AgentEndpoint, Generation, Incarnation, Instant, JobSpec, Keys, LeaderSettings, LocalRank,
    Location, MemberEvent, MemberSettings, NodeName, OperatorRequest, WorkerExit,
};
use tokio::sync::{Semaphore, mpsc, watch};

use super::super::etcd::{runtime, settings_of};
use super::super::waiting::now_ns;
use crate::failure::Failure;

/// Workers that each member claims to have.
const SLOTS: u32 = 8;
/// Restarts that are allowed: more than any bench needs.
const MAX_RESTARTS: u32 = 1_000_000;
/// The lease's time while steps vouch for the workers.
const WITNESS_LEASE: Duration = Duration::from_secs(2);
/// How long members may take to get through to an etcd that many of them ask at once.
const PATIENCE: Duration = Duration::from_mins(5);
/// How many members of a process come at once. An etcd that has its processors to itself takes more; here those who
/// come have the same ones, and all of them at once would only wait until their patience is over.
const COMING_AT_ONCE: usize = 32;
/// That many answers may be late in a lease's time.
const ANSWERS_IN_A_LEASE: u32 = 3;
/// Events that wait for a member.
const WAITING_EVENTS: usize = 1024;

/// Which members of which job.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct GroupOptions {
    /// Address of etcd
    #[arg(long)]
    pub(super) etcd: String,
    /// Name of the job
    #[arg(long)]
    pub(super) job: String,
    /// Members of the job
    #[arg(long)]
    pub(super) members: u32,
    /// The first one that lives here
    #[arg(long)]
    pub(super) first: u32,
    /// How many of them live here
    #[arg(long)]
    pub(super) count: u32,
    /// Seconds after which etcd forgets a member that is not heard of
    #[arg(long)]
    pub(super) lease: u64,
}

/// One thing that happened to a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) event: What,
    pub(super) member: u32,
    pub(super) generation: u64,
    pub(super) monotonic_ns: u64,
}

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum What {
    /// One of its workers exited: it is about to tell the decision core.
    Fault,
    /// It is to stop its workers.
    Stop,
    /// It is to start the workers of that generation: it holds the plan.
    Start,
    /// It knows that the job has ended.
    End,
}

type Out = Rc<RefCell<BufWriter<io::Stdout>>>;

/// Runs the members until the job has ended or standard input does.
pub(crate) fn run(options: &GroupOptions) -> Result<(), Failure> {
    let mut settings = settings_of(&options.etcd)?;
    // Who has more time to renew its lease has more time for an answer, too.
    let patience =
        (Duration::from_secs(options.lease) / ANSWERS_IN_A_LEASE).max(settings.request_timeout);
    settings.request_timeout = patience;
    settings.lease_timeout = patience;
    settings.keepalive_timeout = patience;
    let (orders, received) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in io::stdin().lock().lines().map_while(Result::ok) {
            if orders.send(line).is_err() {
                break;
            }
        }
    });
    let local = tokio::task::LocalSet::new();
    local.block_on(&runtime()?, all_members(options, &settings, received))
}

async fn all_members(
    options: &GroupOptions,
    settings: &EtcdSettings,
    mut orders: mpsc::UnboundedReceiver<String>,
) -> Result<(), Failure> {
    let out: Out = Rc::new(RefCell::new(BufWriter::new(io::stdout())));
    let door = Rc::new(Semaphore::new(COMING_AT_ONCE));
    let mut tellers = Vec::new();
    let mut members = tokio::task::JoinSet::new();
    for number in options.first..options.first + options.count {
        let (teller, told) = mpsc::unbounded_channel();
        tellers.push(teller);
        let store = EtcdStore::new(settings.clone())
            .map_err(|error| Failure::Unexpected(error.to_string()))?;
        let member = Member {
            number,
            generation: 0,
            out: Rc::clone(&out),
            door: Rc::clone(&door),
        };
        members.spawn_local(member.take_part(store, session_settings(options, number), told));
    }
    loop {
        tokio::select! {
            ended = members.join_next() => match ended {
                Some(Ok(result)) => result?,
                Some(Err(error)) => return Err(Failure::Unexpected(error.to_string())),
                None => return Ok(()),
            },
            order = orders.recv() => match order {
                Some(order) => give(&order, options, &tellers)?,
                // Whoever gives the orders is gone.
                None => return Ok(()),
            },
        }
    }
}

/// Hands an order, `WHAT MEMBER`, to its member.
fn give(
    order: &str,
    options: &GroupOptions,
    tellers: &[mpsc::UnboundedSender<String>],
) -> Result<(), Failure> {
    let parsed = order.split_once(' ').and_then(|(what, member)| {
        let number: u32 = member.parse().ok()?;
        let index = usize::try_from(number.checked_sub(options.first)?).ok()?;
        Some((what, tellers.get(index)?))
    });
    let Some((what, teller)) = parsed else {
        return Err(Failure::Unexpected(format!("no order: {order}")));
    };
    // A member that has ended heeds no orders.
    let _ended = teller.send(what.to_owned());
    Ok(())
}

struct Member {
    number: u32,
    generation: u64,
    out: Out,
    door: Rc<Semaphore>,
}

impl Member {
    async fn take_part(
        mut self,
        store: EtcdStore,
        settings: SessionSettings,
        mut told: mpsc::UnboundedReceiver<String>,
    ) -> Result<(), Failure> {
        let (events, event_receiver) = mpsc::channel(WAITING_EVENTS);
        let (effect_sender, mut effects) = mpsc::unbounded_channel();
        let (status, mut shown) = watch::channel(StatusView::default());
        let door = Rc::clone(&self.door);
        let entering = door.acquire().await;
        let ports = SessionPorts {
            events: event_receiver,
            hints: mpsc::channel(1).1,
            effects: effect_sender,
            status,
            peers: watch::channel(Peers::default()).0,
        };
        let clock = || Instant::from_nanos(now_ns());
        let session = run_session(store, settings, clock, ports);
        let host = async move {
            let resume = MemberEvent::Resume {
                workers: Vec::new(),
                stopping: None,
                next_port: 29_500,
            };
            tell(&events, resume).await;
            loop {
                tokio::select! {
                    effect = effects.recv() => match effect {
                        Some(effect) => self.carry_out(effect, &events).await?,
                        None => return Ok::<_, Failure>(()),
                    },
                    Some(order) = told.recv() => self.obey(&order, &events).await?,
                }
            }
        };
        let enter = async move {
            // Whether it came in or had to give up: the next one may try.
            let _ended = shown.changed().await;
            drop(entering);
        };
        let (ended, hosted, ()) = tokio::join!(Box::pin(session), host, enter);
        ended.map_err(|error| Failure::Unexpected(format!("a member's session: {error}")))?;
        hosted
    }

    async fn carry_out(
        &mut self,
        effect: HostEffect,
        events: &mpsc::Sender<MemberEvent>,
    ) -> Result<(), Failure> {
        match effect {
            HostEffect::Start { plan, .. } => {
                self.generation = plan.generation.0;
                self.note(What::Start)?;
                let started = MemberEvent::Started {
                    generation: plan.generation,
                    failures: Vec::new(),
                };
                tell(events, started).await;
            }
            HostEffect::Stop { generation, .. } => {
                self.note(What::Stop)?;
                let stopped = MemberEvent::Stopped {
                    generation,
                    unkillable: Vec::new(),
                    next_port: 29_500,
                };
                tell(events, stopped).await;
            }
            HostEffect::Finish(_) => self.note(What::End)?,
            HostEffect::Look
            | HostEffect::KillNow { .. }
            | HostEffect::Fence { .. }
            | HostEffect::Save { .. }
            | HostEffect::SaveEnded { .. }
            | HostEffect::Committed { .. }
            | HostEffect::Postpone { .. }
            | HostEffect::Say(_) => {}
        }
        Ok(())
    }

    async fn obey(
        &mut self,
        order: &str,
        events: &mpsc::Sender<MemberEvent>,
    ) -> Result<(), Failure> {
        let generation = Generation(self.generation);
        let event = match order {
            // What was reached before makes the next fault another one, which is not held against the program.
            "step" => MemberEvent::Step {
                generation,
                step: self.generation,
            },
            "fault" => {
                self.note(What::Fault)?;
                MemberEvent::WorkerExited {
                    generation,
                    local_rank: LocalRank(0),
                    exit: WorkerExit::Signal(9),
                    at: Instant::from_nanos(now_ns()),
                    finding: None,
                }
            }
            "stop" => MemberEvent::Operator(OperatorRequest::Stop {
                grace: None,
                reason: "the measurement is over".to_owned(),
            }),
            _ => return Err(Failure::Unexpected(format!("no order: {order}"))),
        };
        tell(events, event).await;
        Ok(())
    }

    fn note(&self, event: What) -> Result<(), Failure> {
        let record = Record {
            event,
            member: self.number,
            generation: self.generation,
            monotonic_ns: now_ns(),
        };
        let mut out = self.out.borrow_mut();
        serde_json::to_writer(&mut *out, &record)
            .map_err(io::Error::from)
            .and_then(|()| writeln!(out))
            .and_then(|()| out.flush())
            .map_err(|error| Failure::write("a record", error))
    }
}

/// A session that has ended has said so by its effects.
async fn tell(events: &mpsc::Sender<MemberEvent>, event: MemberEvent) {
    let _ended = events.send(event).await;
}

/// What a member of a large cluster knows of itself, at the length that such things have.
fn session_settings(options: &GroupOptions, number: u32) -> SessionSettings {
    let node = NodeName(format!("gpu-node-{number:05}"));
    let spec = JobSpec::new(
        options.members,
        options.members,
        MAX_RESTARTS,
        "0123456789abcdef".repeat(4),
    );
    let incarnation = Incarnation(now_ns());
    let lease = Duration::from_secs(options.lease);
    let keys = Keys::new(&options.job);
    SessionSettings {
        member: MemberSettings {
            slots: SLOTS,
            shared: true,
            name_patience: lease * 3,
            boot: format!("9b0c24b0-5f6a-4c43-9c4e-{number:012}"),
            location: Location {
                place: Some(number),
                topology: vec![
                    ("block".to_owned(), format!("b{}", number / 512)),
                    ("rack".to_owned(), format!("r{}", number / 32)),
                ],
            },
            agent: Some(AgentEndpoint {
                address: format!("{node}:40000"),
                certificate: "fedcba9876543210".repeat(4),
            }),
            ..MemberSettings::new(keys, node, incarnation, spec)
        },
        leader: LeaderSettings {
            shared: true,
            // Nobody is left out because the machine is slow.
            gather_window: PATIENCE,
            ..LeaderSettings::default()
        },
        jury: None,
        lease_ttl: lease,
        witness_lease_ttl: WITNESS_LEASE,
        patience: PATIENCE,
        resumed: false,
    }
}
