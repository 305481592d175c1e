// SPDX-License-Identifier: Apache-2.0
//! A real Slurm cluster on this machine: slurmctld, several slurmd that each are a node to it, and a munged of their own.
//!
//! Everything is below one directory and on ports that the kernel has chosen. Debian's packages are built for several
//! slurmd on one machine.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use tempfile::TempDir;

use crate::binaries::steadfast;
use crate::patience::{DEADLINE, eventually, pause};
use crate::processes::{Found, send, with_variable};

/// Where slurmd keeps the processes of jobs with version 1 of cgroups.
const FREEZER: &str = "/sys/fs/cgroup/freezer";

/// What the site's settings say beside where everything is.
#[derive(Clone, Copy, Debug, Default)]
pub struct SlurmSite<'a> {
    /// Lines of `slurm.toml`.
    pub settings: &'a str,
    /// Lines of `slurm.conf`.
    pub slurm_conf: &'a str,
    /// Whether Slurm keeps each job's processes in a cgroup of its own, as most sites have it.
    pub cgroups: bool,
}

/// A running cluster. Dropping it ends all of it.
#[derive(Debug)]
pub struct SlurmCluster {
    directory: TempDir,
    nodes: u16,
    cgroups: bool,
    daemons: Vec<Child>,
}

impl SlurmCluster {
    /// Starts a cluster with the nodes `n1`, `n2` and so on, whose hooks are Steadfast's, and waits until they are idle.
    pub fn start(nodes: u16, site: SlurmSite<'_>) -> SlurmCluster {
        let directory = tempfile::Builder::new().prefix("slurm-").tempdir().unwrap();
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let mut cluster = SlurmCluster {
            directory,
            nodes,
            cgroups: site.cgroups,
            daemons: Vec::new(),
        };
        cluster.configure(site);
        cluster.start_daemons();
        let idle = format!("{nodes} idle");
        eventually("idle nodes", || {
            let seen = cluster.ask(&["sinfo", "-h", "-o", "%D %T"]);
            if seen.trim() == idle {
                Ok(())
            } else {
                Err(seen)
            }
        });
        cluster
    }

    /// Starts an etcd beside the cluster. Returns what `--coord` takes.
    pub fn start_etcd(&mut self) -> String {
        let ports = free_ports(2);
        let client = format!("http://127.0.0.1:{}", ports[0]);
        let peer = format!("http://127.0.0.1:{}", ports[1]);
        let cluster = format!("--initial-cluster=default={peer}");
        self.start_daemon(&[
            "etcd",
            "--data-dir=etcd",
            &format!("--listen-client-urls={client}"),
            &format!("--advertise-client-urls={client}"),
            &format!("--listen-peer-urls={peer}"),
            &format!("--initial-advertise-peer-urls={peer}"),
            &cluster,
        ]);
        let address = format!("127.0.0.1:{}", ports[0]);
        eventually("etcd", || {
            std::net::TcpStream::connect(&address)
                .map(drop)
                .map_err(|error| error.to_string())
        });
        format!("etcd://{address}")
    }

    /// A file in the cluster's directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Its content; empty when it is not there.
    pub fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    /// A command that speaks to this cluster.
    #[expect(clippy::disallowed_methods, reason = "tests create processes")]
    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(words[0]);
        command
            .args(&words[1..])
            .env("SLURM_CONF", self.path("slurm.conf"))
            .current_dir(self.directory.path())
            .stdin(Stdio::null());
        command
    }

    /// Runs a command and gives what it prints, errors too.
    pub fn ask(&self, words: &[&str]) -> String {
        let output = self.command(words).output().unwrap();
        let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.push_str(&String::from_utf8_lossy(&output.stderr));
        text
    }

    /// Submits a batch script. Its output is in `job.ID.out`. Returns the job's number.
    pub fn submit(&self, options: &[&str], script: &str) -> String {
        let file = self.path("job.sh");
        fs::write(&file, format!("#!/bin/bash\n{script}\n")).unwrap();
        let mut words = vec![
            "sbatch",
            "--parsable",
            "--open-mode=append",
            "--output=job.%j.out",
        ];
        words.extend_from_slice(options);
        words.push("job.sh");
        let answer = self.ask(&words);
        let id = answer.trim();
        assert!(
            !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_digit()),
            "sbatch: {answer}"
        );
        id.to_owned()
    }

    /// State and reason of a node, as one line.
    pub fn node(&self, name: &str) -> String {
        let shown = self.ask(&["scontrol", "show", "node", name]);
        let lines = shown.lines().map(str::trim);
        let lines = lines.filter(|line| line.starts_with("State=") || line.starts_with("Reason="));
        lines.collect::<Vec<_>>().join(" ")
    }

    /// State and reason of a job, and how often it was put back; empty when it is forgotten.
    pub fn job(&self, id: &str) -> String {
        let shown = self.ask(&["scontrol", "show", "job", id]);
        let lines = shown.lines().map(str::trim);
        let lines =
            lines.filter(|line| line.starts_with("JobState=") || line.starts_with("Requeue="));
        lines.collect::<Vec<_>>().join(" ")
    }

    /// Waits until a node shows this.
    #[track_caller]
    pub fn node_shows(&self, name: &str, parts: &[&str]) {
        self.shows(&format!("{parts:?} at {name}"), parts, || self.node(name));
    }

    /// Waits until a job shows this.
    #[track_caller]
    pub fn job_shows(&self, id: &str, parts: &[&str]) {
        self.shows(&format!("{parts:?} at job {id}"), parts, || self.job(id));
    }

    /// Waits until a file holds this.
    #[track_caller]
    pub fn file_shows(&self, name: &str, parts: &[&str]) {
        self.shows(&format!("{parts:?} in {name}"), parts, || self.read(name));
    }

    #[track_caller]
    fn shows(&self, what: &str, parts: &[&str], look: impl Fn() -> String) {
        eventually(what, || {
            let seen = look();
            if parts.iter().all(|part| seen.contains(part)) {
                Ok(())
            } else {
                let log = self.read("hooks.log");
                Err(format!("{seen}\n--- hooks.log ---\n{log}"))
            }
        });
    }

    /// Adds a line to a node's kernel log, as of now.
    pub fn kernel_says(&self, node: &str, line: &str) {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let (seconds, micros) = (now.tv_sec, now.tv_nsec / 1000);
        let name = format!("kern.{node}.log");
        let mut log = self.read(&name);
        log.extend([format!("[{seconds:>5}.{micros:06}] {line}\n")]);
        fs::write(self.path(&name), log).unwrap();
    }

    /// The living processes of a node: its slurmd, and all that it has started for jobs.
    pub fn processes_of(&self, node: &str) -> Vec<Found> {
        let mine = self.processes();
        let of_node = with_variable("SLURMD_NODENAME", node);
        let mut found: Vec<Found> = of_node
            .into_iter()
            .filter(|process| mine.iter().any(|other| other.pid == process.pid))
            .collect();
        let slurmd = mine.into_iter().filter(|process| {
            let words = &process.arguments;
            words.iter().any(|word| word == "-N") && words.iter().any(|word| word == node)
        });
        found.extend(slurmd);
        found
    }

    /// Takes the power from a node.
    pub fn power_off(&self, node: &str) {
        let deadline = Instant::now() + DEADLINE;
        loop {
            let processes = self.processes_of(node);
            if processes.is_empty() {
                return;
            }
            assert!(Instant::now() < deadline, "{processes:?}");
            for process in processes {
                send(process.pid, Signal::SIGKILL);
            }
            pause(Duration::from_millis(10));
        }
    }

    /// All living processes of the cluster and its jobs.
    fn processes(&self) -> Vec<Found> {
        let conf = self.path("slurm.conf");
        with_variable("SLURM_CONF", conf.to_str().unwrap())
    }

    fn configure(&self, site: SlurmSite<'_>) {
        let root = self.directory.path().display();
        fs::create_dir(self.path("state")).unwrap();
        let settings = format!(
            "state-dir = \"{root}/hook-state\"\nlog-file = \"{root}/hooks.log\"\nkernel-log = \"{root}/kern.%n.log\"\n\
             slurm-conf = \"{root}/slurm.conf\"\nchecks = \"off\"\n{}",
            site.settings
        );
        fs::write(self.path("slurm.toml"), settings).unwrap();
        for node in 1..=self.nodes {
            fs::write(self.path(&format!("kern.n{node}.log")), "").unwrap();
        }
        let mut key = vec![0; 128];
        let mut random = fs::File::open("/dev/urandom").unwrap();
        std::io::Read::read_exact(&mut random, &mut key).unwrap();
        fs::write(self.path("munge.key"), key).unwrap();
        fs::set_permissions(self.path("munge.key"), fs::Permissions::from_mode(0o400)).unwrap();
        let config = self.path("slurm.toml");
        let installed = self
            .command(&[
                steadfast().to_str().unwrap(),
                "slurm",
                "install",
                "--dir",
                "hooks",
            ])
            .arg("--config")
            .arg(config)
            .status()
            .unwrap();
        assert!(installed.success());
        let ports = free_ports(usize::from(self.nodes) + 1);
        let cgroup_conf =
            "CgroupPlugin=cgroup/v1\nCgroupAutomount=no\nCgroupMountpoint=/sys/fs/cgroup\n";
        fs::write(self.path("cgroup.conf"), cgroup_conf).unwrap();
        fs::write(self.path("slurm.conf"), self.slurm_conf(&ports, site)).unwrap();
    }

    fn slurm_conf(&self, ports: &[u16], site: SlurmSite<'_>) -> String {
        let root = self.directory.path().display();
        let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
        let host = host.trim().split('.').next().unwrap().to_owned();
        let tracking = if site.cgroups { "cgroup" } else { "linuxproc" };
        let mut text = format!(
            "ClusterName=steadfast\nSlurmctldHost={host}(127.0.0.1)\nSlurmUser=root\nSlurmdUser=root\n\
             AuthType=auth/munge\nCredType=cred/munge\nAuthInfo=socket={root}/munge.sock\n\
             StateSaveLocation={root}/state\nSlurmdSpoolDir={root}/spool.%n\n\
             SlurmctldPidFile={root}/slurmctld.pid\nSlurmdPidFile={root}/%n.pid\n\
             SlurmctldLogFile={root}/slurmctld.log\nSlurmdLogFile={root}/%n.log\nSlurmctldPort={}\n\
             ProctrackType=proctrack/{tracking}\nTaskPlugin=task/none\nJobAcctGatherType=jobacct_gather/none\n\
             AccountingStorageType=accounting_storage/none\nSelectType=select/cons_tres\nSelectTypeParameters=CR_Core\n\
             SwitchType=switch/none\nMpiDefault=none\nSlurmdParameters=config_overrides\nReturnToService=2\n\
             SlurmdTimeout=10\nKillWait=5\nInactiveLimit=0\nMinJobAge=300\nJobRequeue=1\nRequeueExit=75,76\n\
             PrologFlags=Alloc\nProlog={root}/hooks/prolog\nEpilog={root}/hooks/epilog\n\
             TaskProlog={root}/hooks/task-prolog\nHealthCheckProgram={root}/hooks/health\nHealthCheckInterval=2\n\
             HealthCheckNodeState=ANY\n{}\n",
            ports[0], site.slurm_conf
        );
        for node in 1..=self.nodes {
            let port = ports[usize::from(node)];
            text.extend([format!(
                "NodeName=n{node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=2 RealMemory=500 State=UNKNOWN\n"
            )]);
        }
        text.extend(["PartitionName=p Nodes=ALL Default=YES MaxTime=INFINITE State=UP\n"]);
        text
    }

    fn start_daemons(&mut self) {
        let root = self.directory.path().to_str().unwrap().to_owned();
        let munge = [
            format!("--key-file={root}/munge.key"),
            format!("--socket={root}/munge.sock"),
            format!("--pid-file={root}/munge.pid"),
            format!("--log-file={root}/munge.log"),
            format!("--seed-file={root}/munge.seed"),
        ];
        let mut words = vec!["munged", "--foreground", "--force", "--num-threads=2"];
        words.extend(munge.iter().map(String::as_str));
        self.start_daemon(&words);
        eventually("munged", || {
            let socket = Path::new(&root).join("munge.sock");
            std::os::unix::net::UnixStream::connect(socket)
                .map(drop)
                .map_err(|error| error.to_string())
        });
        self.start_daemon(&["slurmctld", "-D"]);
        for node in 1..=self.nodes {
            self.start_daemon(&["slurmd", "-D", "-N", &format!("n{node}")]);
        }
    }

    fn start_daemon(&mut self, words: &[&str]) {
        let child = self
            .command(words)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        self.daemons.push(child);
    }
}

impl Drop for SlurmCluster {
    fn drop(&mut self) {
        let deadline = Instant::now() + DEADLINE;
        loop {
            let processes = self.processes();
            for process in &processes {
                send(process.pid, Signal::SIGKILL);
            }
            for daemon in &mut self.daemons {
                // Reaped or not: a failure to wait could only hide the test's own message.
                drop(daemon.try_wait());
            }
            if processes.is_empty() || Instant::now() > deadline {
                break;
            }
            pause(Duration::from_millis(10));
        }
        for daemon in &mut self.daemons {
            drop(daemon.wait());
        }
        if self.cgroups {
            for node in 1..=self.nodes {
                remove_cgroups(&Path::new(FREEZER).join(format!("slurm_n{node}")));
            }
        }
    }
}

/// Removes a cgroup and all below it; what still has processes stays, and is seen as left behind.
fn remove_cgroups(path: &Path) {
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_cgroups(&entry.path());
        }
    }
    drop(fs::remove_dir(path));
}

/// Ports that were free a moment ago.
fn free_ports(count: usize) -> Vec<u16> {
    let bound: Vec<TcpListener> = (0..count)
        .map(|_| TcpListener::bind(("127.0.0.1", 0)).unwrap())
        .collect();
    let ports = bound
        .iter()
        .map(|listener| listener.local_addr().unwrap().port());
    ports.collect()
}
