// SPDX-License-Identifier: Apache-2.0
//! A virtual node: a supervisor, and everything below it.

use std::ffi::OsString;
use std::fs;
use std::net::Ipv4Addr;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;

use nix::sys::signal::Signal;
use steadfast_process::tree::{Process, with_mark};

use super::etcd::Etcd;
use super::host::Host;
use super::{Layout, Tools};
use crate::bench::waiting::now_ns;
use crate::failure::Failure;
use crate::history::Ending;
use crate::scenario::{Habit, Place, Scenario};
use crate::tools::{Environment, Started, run};

/// The variable by which the processes of a node are found.
const NODE_MARK: &str = "STEADFAST_CHAOS_NODE";

/// How supervisors are started.
#[derive(Debug)]
pub(super) struct Wishes {
    steadfast: PathBuf,
    python: PathBuf,
    command: Vec<OsString>,
    options: Vec<OsString>,
    environment: Environment,
    job: Scenario,
    fake_nvml: Option<PathBuf>,
}

/// A node.
#[derive(Debug)]
pub(crate) struct Node {
    /// Its name: n1, n2 and so on.
    pub(crate) name: String,
    /// Its address.
    pub(crate) address: Ipv4Addr,
    /// Whether it is meant to be off, so that its end is no news.
    pub(crate) is_off: bool,
    /// How its supervisors have ended so far.
    pub(crate) endings: Vec<Ending>,
    directory: PathBuf,
    logs: PathBuf,
    inside: Vec<OsString>,
    keeper: Option<Started>,
    started_ns: u64,
    boots: u32,
}

impl Wishes {
    pub(super) fn of(
        scenario: &Scenario,
        tools: &Tools,
        etcd: Option<&Etcd>,
        environment: &Environment,
    ) -> Self {
        let mut environment = environment.clone();
        let nodes = &scenario.nodes;
        let range = match nodes.at_least {
            Some(least) if least < nodes.count => format!("{least}:{}", nodes.count),
            _ => nodes.count.to_string(),
        };
        let mut set = |name: &str, value: String| {
            environment.insert(name.into(), value.into());
        };
        set("STEADFAST_JOB", "chaos".to_owned());
        set("STEADFAST_NNODES", range);
        set("STEADFAST_NPROC_PER_NODE", nodes.workers.to_string());
        if nodes.spares > 0 {
            set("STEADFAST_SPARES", nodes.spares.to_string());
        }
        if let Some(etcd) = etcd {
            set("STEADFAST_COORD", etcd.uri());
        }
        let habits: Vec<&str> = scenario
            .job
            .habits
            .iter()
            .map(|habit| match habit {
                Habit::IgnoreTerm => "ignore-term",
                Habit::LeaveBehind => "leave-behind",
            })
            .collect();
        set("STEADFAST_CHAOS_HABITS", habits.join(","));
        for (name, value) in &scenario.job.environment {
            set(name, value.clone());
        }
        Self {
            steadfast: tools.steadfast.clone(),
            python: tools.python.clone(),
            command: tools.command.clone(),
            options: scenario.job.options.iter().map(OsString::from).collect(),
            environment,
            job: scenario.clone(),
            fake_nvml: tools.fake_nvml.clone(),
        }
    }

    /// The whole command line of a supervisor.
    fn command(&self, layout: &Layout) -> Vec<OsString> {
        if !self.command.is_empty() {
            let mut command = self.command.clone();
            if let Some(first) = command.first_mut()
                && first == "steadfast"
            {
                *first = self.steadfast.clone().into();
            }
            return command;
        }
        let mut command: Vec<OsString> = vec![self.steadfast.clone().into(), "run".into()];
        command.extend(self.options.iter().cloned());
        let job = &self.job.job;
        let with = |name: &str, path: PathBuf| {
            let mut word = OsString::from(name);
            word.push(path);
            word
        };
        command.extend([
            "--".into(),
            self.python.clone().into(),
            "-u".into(),
            layout.toy().into(),
            format!("--steps={}", job.steps).into(),
            format!("--step-time={}", job.step_seconds).into(),
            format!("--checkpoint-every={}", job.checkpoint_every).into(),
            "--log-every=1".into(),
            with("--checkpoint-dir=", layout.place(Place::Checkpoints)),
            with("--json-log=", layout.life()),
        ]);
        command
    }
}

impl Node {
    pub(super) fn new(number: u32, hosts: &[Host], layout: &Layout) -> Result<Self, Failure> {
        let name = format!("n{number}");
        let directory = layout.root.join(&name);
        let logs = layout.place(Place::Logs).join(&name);
        for path in [&directory, &logs] {
            fs::create_dir_all(path).map_err(|error| Failure::write(path.display(), error))?;
        }
        let host = usize::try_from(number - 1)
            .ok()
            .and_then(|index| hosts.get(index));
        Ok(Self {
            name,
            address: host.map_or(Ipv4Addr::LOCALHOST, |host| host.address),
            is_off: false,
            endings: Vec::new(),
            directory,
            logs,
            inside: host.map(Host::inside).unwrap_or_default(),
            keeper: None,
            started_ns: 0,
            boots: 0,
        })
    }

    /// Its journal.
    pub(crate) fn journal(&self) -> PathBuf {
        self.logs.join("journal.jsonl")
    }

    /// What its supervisors say.
    pub(crate) fn stderr(&self) -> PathBuf {
        self.directory.join("stderr.txt")
    }

    /// What its workers print.
    pub(crate) fn stdout(&self) -> PathBuf {
        self.directory.join("stdout.txt")
    }

    /// Where its control sockets are.
    pub(crate) fn runtime(&self) -> PathBuf {
        self.directory.join("run")
    }

    /// Starts its supervisor. Where it has a host of its own, that gets a boot id of its own, too.
    pub(super) fn start(
        &mut self,
        wishes: &Wishes,
        layout: &Layout,
        host: Option<&Host>,
    ) -> Result<(), Failure> {
        if let Some(host) = host {
            self.boots += 1;
            host.boot(&boot_id(&self.name, self.boots), &self.directory)?;
        }
        let environment = self.environment(wishes, layout);
        let mut words = self.inside.clone();
        words.extend(wishes.command(layout));
        self.is_off = false;
        self.started_ns = now_ns();
        self.keeper = Some(Started::new(
            &words,
            &environment,
            &self.directory,
            (&self.stdout(), &self.stderr()),
        )?);
        Ok(())
    }

    /// Process id of the keeper, if it has not ended.
    pub(crate) fn keeper(&self) -> Option<u32> {
        self.keeper.as_ref().map(Started::pid)
    }

    /// Process id of the agent, if there is one.
    pub(crate) fn agent(&self) -> Option<Process> {
        let keeper = i32::try_from(self.keeper()?).ok()?;
        self.processes().into_iter().find(|process| {
            let is_child = process.parent == keeper && !process.is_dead();
            is_child && is_agent(process.pid)
        })
    }

    /// All processes of the node.
    pub(crate) fn processes(&self) -> Vec<Process> {
        with_mark(NODE_MARK, &self.mark())
    }

    /// Sends a signal to every process of the node, and returns how many there were.
    pub(crate) fn signal_all(&self, signal: Signal) -> usize {
        let processes = self.processes();
        processes
            .iter()
            .filter(|process| !process.is_dead() && process.signal(signal))
            .count()
    }

    /// Whether its supervisor has been started and has not been seen to end.
    pub(crate) fn is_running(&self) -> bool {
        self.keeper.is_some()
    }

    /// Sees whether the supervisor has ended.
    pub(super) fn look(&mut self) -> Result<(), Failure> {
        let Some(keeper) = &mut self.keeper else {
            return Ok(());
        };
        if let Some(status) = keeper.ended()? {
            self.endings.push(Ending {
                node: self.name.clone(),
                started_ns: self.started_ns,
                ended_ns: now_ns(),
                code: status.code(),
                signal: status.signal(),
                off: self.is_off,
            });
            self.keeper = None;
        }
        Ok(())
    }

    pub(super) fn kill(&mut self) {
        self.keeper = None;
    }

    pub(super) fn ask(&self, wishes: &Wishes, words: &[&str]) -> Result<String, Failure> {
        let inside: Vec<String> = self
            .inside
            .iter()
            .map(|word| word.to_string_lossy().into_owned())
            .collect();
        let steadfast = wishes.steadfast.to_string_lossy();
        let runtime = self.runtime().to_string_lossy().into_owned();
        let (first, rest) = words.split_at_checked(1).unwrap_or_default();
        let mut all: Vec<&str> = inside.iter().map(String::as_str).collect();
        all.push(&steadfast);
        all.extend(first);
        all.extend(["--job", "chaos", "--runtime-dir", &runtime]);
        all.extend(rest);
        run(&all, "")
    }

    fn mark(&self) -> String {
        self.directory.to_string_lossy().into_owned()
    }

    fn environment(&self, wishes: &Wishes, layout: &Layout) -> Environment {
        let mut environment = wishes.environment.clone();
        let mut set = |name: &str, value: OsString| {
            environment.entry(name.into()).or_insert(value);
        };
        set(NODE_MARK, self.mark().into());
        set("STEADFAST_NODE_NAME", self.name.clone().into());
        set("STEADFAST_ADDRESS", self.address.to_string().into());
        set("STEADFAST_JOURNAL", self.journal().into());
        set("STEADFAST_LOG_DIR", self.logs.join("workers").into());
        set("STEADFAST_RUNTIME_DIR", self.runtime().into());
        set("STEADFAST_KERNEL_LOG", layout.kernel_log(&self.name).into());
        if wishes.job.job.supervised_checkpoints && wishes.command.is_empty() {
            set(
                "STEADFAST_CHECKPOINT_DIR",
                layout.place(Place::Checkpoints).into(),
            );
            set("STEADFAST_CHECKPOINT_LAYOUT", layout.rule().into());
        }
        match &wishes.fake_nvml {
            Some(library) if wishes.job.job.gpus => {
                set("STEADFAST_NVML", library.clone().into());
                set("STEADFAST_FAKE_NVML", layout.gpus(&self.name).into());
                let gpus: Vec<String> = (0..wishes.job.nodes.workers)
                    .map(|n| n.to_string())
                    .collect();
                set("CUDA_VISIBLE_DEVICES", gpus.join(",").into());
            }
            _ => set("STEADFAST_NVML", "off".into()),
        }
        set("PYTHONPATH", layout.shared().into());
        set("STEADFAST_CHAOS_DIRECTORY", layout.shared().into());
        environment
    }
}

/// A boot id that is made up from name and number.
fn boot_id(name: &str, boots: u32) -> String {
    let number: u64 = name.bytes().map(u64::from).sum();
    format!(
        "00000000-c4a0-4000-8000-{:012x}",
        number * 1000 + u64::from(boots)
    )
}

fn is_agent(pid: i32) -> bool {
    let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    command
        .split(|byte| *byte == 0)
        .any(|word| word == b"__agent")
}
