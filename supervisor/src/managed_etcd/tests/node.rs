// SPDX-License-Identifier: Apache-2.0
//! A node: the keeper's part of it on a thread of its own, and an agent that passes things on between the two.

use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::mpsc as thread_channel;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle as Thread;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use steadfast_coord::etcd::{EtcdMember, EtcdStore};
use steadfast_process::exit::Exit;
use tempfile::TempDir;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::keeper::companion::Companion;
use crate::keeper::protocol::{CompanionView, Request};
use crate::managed_etcd::layout::EtcdHost;
use crate::managed_etcd::secret::{SecretSources, SecretText};
use crate::managed_etcd::{
    Departure, Event, Layout, ManagedEtcd, ManagedEtcdSettings, Pace, Surroundings,
};

/// How long anything may take before a test gives up: the machine may be busy.
const DEADLINE: Duration = Duration::from_secs(50);

/// Waits for something that gets true by itself.
pub(super) async fn wait_for(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !condition().await {
        assert!(Instant::now() < deadline, "not within {DEADLINE:?}: {what}");
        sleep(Duration::from_millis(50)).await;
    }
}

/// Hosts that are all this machine, at an address that only this process uses.
pub(super) fn hosts(count: usize) -> Vec<EtcdHost> {
    let [_, high, middle, low] = std::process::id().to_be_bytes();
    let address = Ipv4Addr::new(127, 128 + high % 64, middle, low.max(1));
    let listeners: Vec<_> = (0..2 * count)
        .map(|_| TcpListener::bind((address, 0)).unwrap())
        .collect();
    let port = |index: usize| listeners[index].local_addr().unwrap().port();
    (0..count)
        .map(|index| EtcdHost {
            host: address.to_string(),
            client_port: port(index),
            peer_port: port(count + index),
        })
        .collect()
}

pub(super) const SECRET: &str = "a secret of the tests";

/// A pace for tests: nobody is replaced unless they say so.
pub(super) fn pace() -> Pace {
    Pace {
        round: Duration::from_millis(200),
        turn: Duration::from_millis(300),
        replace_after: Duration::from_hours(1),
        ..Pace::default()
    }
}

/// A node with a keeper and, most of the time, an agent.
pub(super) struct Node {
    settings: ManagedEtcdSettings,
    secret: String,
    directory: TempDir,
    keepers: u32,
    keeper: Option<Keeper>,
    agent: Option<Agent>,
}

struct Agent {
    store: watch::Receiver<Option<EtcdStore>>,
    trouble: watch::Receiver<Option<String>>,
    news: Arc<Mutex<Vec<String>>>,
    leave: Option<oneshot::Sender<(Departure, String)>>,
    task: JoinHandle<()>,
}

impl Node {
    pub(super) async fn start(layout: Layout, pace: Pace, secret: &str) -> Node {
        let directory = tempfile::tempdir().unwrap();
        let settings = ManagedEtcdSettings {
            layout,
            job: "job".to_owned(),
            restart_count: 0,
            lease: Duration::from_secs(10),
            log: directory.path().join("logs/etcd.log"),
            pace,
        };
        let mut node = Node {
            settings,
            secret: secret.to_owned(),
            directory,
            keepers: 0,
            keeper: None,
            agent: None,
        };
        node.new_keeper();
        node.new_agent().await;
        node
    }

    /// One node for each host.
    pub(super) async fn start_all(hosts: &[EtcdHost], servers: usize, pace: &Pace) -> Vec<Node> {
        let mut nodes = Vec::new();
        for this_node in 0..hosts.len() {
            let layout = Layout {
                hosts: hosts.to_vec(),
                servers,
                this_node,
            };
            nodes.push(Node::start(layout, pace.clone(), SECRET).await);
        }
        nodes
    }

    fn runtime_dir(&self) -> PathBuf {
        self.directory.path().join("runtime")
    }

    pub(super) fn new_keeper(&mut self) {
        assert!(self.keeper.is_none(), "there is one");
        std::fs::create_dir_all(self.runtime_dir()).unwrap();
        self.keepers += 1;
        self.keeper = Some(Keeper::start());
    }

    /// Replaces the agent, as the keeper would after its death.
    pub(super) async fn new_agent(&mut self) {
        self.stop_agent().await;
        let keeper = self.keeper.as_ref().expect("a keeper");
        let here = Surroundings {
            runtime_dir: self.runtime_dir(),
            keeper_token: format!("keeper{}", self.keepers),
            companion: keeper.view.lock().unwrap().clone(),
            secrets: SecretSources {
                text: Some(SecretText(self.secret.clone().into_bytes())),
                ..SecretSources::default()
            },
            search_path: std::env::var_os("PATH").unwrap_or_default(),
        };
        let managed = ManagedEtcd::start(self.settings.clone(), here)
            .await
            .unwrap();
        let (view_sender, views) = mpsc::unbounded_channel();
        *keeper.views.lock().unwrap() = Some(view_sender);
        let news = Arc::new(Mutex::new(Vec::new()));
        let (leave, leaving) = oneshot::channel();
        self.agent = Some(Agent {
            store: managed.store(),
            trouble: managed.trouble(),
            news: Arc::clone(&news),
            leave: Some(leave),
            task: tokio::spawn(pass_on(
                managed,
                keeper.requests.clone(),
                views,
                news,
                leaving,
            )),
        });
    }

    pub(super) async fn stop_agent(&mut self) {
        if let Some(agent) = self.agent.take() {
            agent.task.abort();
            let _aborted = agent.task.await;
        }
    }

    /// Everything on this node dies; what is on its disk stays, or goes with the agent that cleans up.
    pub(super) async fn die(&mut self, cleans_up: bool) {
        self.stop_agent().await;
        self.keeper = None;
        if cleans_up {
            std::fs::remove_dir_all(self.runtime_dir()).unwrap();
        }
    }

    /// The agent says farewell.
    pub(super) async fn leave(&mut self, departure: Departure, members: &str) {
        let mut agent = self.agent.take().expect("an agent");
        let leave = agent.leave.take().expect("it has not left");
        leave.send((departure, members.to_owned())).unwrap();
        agent.task.await.unwrap();
    }

    pub(super) async fn store(&self) -> EtcdStore {
        let mut store = self.agent.as_ref().expect("an agent").store.clone();
        let there = tokio::time::timeout(DEADLINE, store.wait_for(Option::is_some)).await;
        let Ok(there) = there else {
            panic!(
                "no store within {DEADLINE:?}: {:?} {:?}\n{}",
                self.trouble(),
                self.news(),
                self.log()
            );
        };
        there.unwrap().clone().unwrap()
    }

    pub(super) fn news(&self) -> Vec<String> {
        let agent = self.agent.as_ref().expect("an agent");
        agent.news.lock().unwrap().clone()
    }

    /// Why etcd is not to be had.
    pub(super) fn trouble(&self) -> Option<String> {
        let agent = self.agent.as_ref().expect("an agent");
        agent.trouble.borrow().clone()
    }

    pub(super) fn log(&self) -> String {
        std::fs::read_to_string(&self.settings.log).unwrap_or_default()
    }

    /// Pid of the etcd that runs on this node.
    pub(super) fn etcd(&self) -> Option<i32> {
        let keeper = self.keeper.as_ref()?;
        let view = keeper.view.lock().unwrap().clone()?;
        (view.pid != 0 && view.exit.is_none()).then_some(view.pid)
    }

    pub(super) fn kill_etcd(&self) -> i32 {
        let pid = self.etcd().expect("it runs");
        kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap();
        pid
    }

    /// The directories with etcd's data.
    pub(super) fn data(&self) -> Vec<PathBuf> {
        let token = format!("etcd-keeper{}", self.keepers);
        let entries = std::fs::read_dir(self.runtime_dir().join(token)).unwrap();
        entries
            .map(|entry| entry.unwrap().path())
            .filter(|path| {
                path.file_name()
                    .unwrap()
                    .to_string_lossy()
                    .starts_with("data")
            })
            .collect()
    }

    /// This node's member, if it takes part in the cluster.
    pub(super) fn member<'a>(&self, members: &'a [EtcdMember]) -> Option<&'a EtcdMember> {
        let url = self.settings.layout.own().peer_url();
        members
            .iter()
            .find(|member| member.peer_urls.contains(&url) && !member.client_urls.is_empty())
    }
}

async fn pass_on(
    mut managed: ManagedEtcd,
    requests: thread_channel::Sender<(Request, Vec<OwnedFd>)>,
    mut views: mpsc::UnboundedReceiver<CompanionView>,
    news: Arc<Mutex<Vec<String>>>,
    mut leaving: oneshot::Receiver<(Departure, String)>,
) {
    loop {
        tokio::select! {
            Some(event) = managed.next() => match event {
                Event::Ask(request, descriptors) => requests.send((request, descriptors)).unwrap(),
                Event::News { name, text } => {
                    // Shown where a test fails.
                    eprintln!("{name}: {text}");
                    news.lock().unwrap().push(format!("{name}: {text}"));
                }
            },
            Some(view) = views.recv() => managed.observe(view),
            Ok((departure, members)) = &mut leaving => {
                managed.leave(departure, &members).await;
                return;
            }
        }
    }
}

/// What the keeper does about the companion.
struct Keeper {
    requests: thread_channel::Sender<(Request, Vec<OwnedFd>)>,
    view: Arc<Mutex<Option<CompanionView>>>,
    /// To the agent of the moment.
    views: Arc<Mutex<Option<mpsc::UnboundedSender<CompanionView>>>>,
    end: thread_channel::Sender<()>,
    thread: Option<Thread<()>>,
}

impl Keeper {
    fn start() -> Keeper {
        let (requests, request_receiver) = thread_channel::channel::<(Request, Vec<OwnedFd>)>();
        let (end, end_receiver) = thread_channel::channel::<()>();
        let view = Arc::new(Mutex::new(None));
        let views = Arc::new(Mutex::new(None));
        let (known, heard) = (Arc::clone(&view), Arc::clone(&views));
        // The process ends with the thread that started it.
        let thread = std::thread::spawn(move || {
            let mut companion = Companion::default();
            let tell = |companion: &Companion| {
                *known.lock().unwrap() = companion.view().cloned();
                let sender: &Option<mpsc::UnboundedSender<CompanionView>> = &heard.lock().unwrap();
                if let (Some(sender), Some(view)) = (sender, companion.view()) {
                    drop(sender.send(view.clone()));
                }
            };
            while end_receiver.try_recv().is_err() {
                let request = request_receiver.recv_timeout(Duration::from_millis(10));
                let now = std::time::Instant::now();
                match request {
                    Ok((Request::StartCompanion(request), output)) => {
                        companion.start(&request, output.first(), None);
                        tell(&companion);
                    }
                    Ok((Request::StopCompanion { grace_ms }, _)) => {
                        companion.stop(Duration::from_millis(grace_ms), now);
                    }
                    Ok((other, _)) => panic!("{other:?}"),
                    Err(_) => {}
                }
                companion.step(now);
                if reap(&mut companion, WaitPidFlag::WNOHANG) {
                    tell(&companion);
                }
            }
            companion.stop(Duration::ZERO, std::time::Instant::now());
            reap(&mut companion, WaitPidFlag::empty());
        });
        Keeper {
            requests,
            view,
            views,
            end,
            thread: Some(thread),
        }
    }
}

/// Of this one process alone: other tests may have children as well.
fn reap(companion: &mut Companion, flag: WaitPidFlag) -> bool {
    let Some(pid) = companion.pid() else {
        return false;
    };
    let exit = match waitpid(pid, Some(flag)).unwrap() {
        WaitStatus::Exited(_, code) => Exit::Code(code),
        WaitStatus::Signaled(_, signal, core_dumped) => Exit::Signal {
            signal: signal as i32,
            core_dumped,
        },
        _ => return false,
    };
    assert!(companion.reaped(pid, exit));
    true
}

impl Drop for Keeper {
    fn drop(&mut self) {
        let _thread_has_ended = self.end.send(());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
            && !std::thread::panicking()
        {
            panic!("the keeper's thread has panicked");
        }
    }
}
