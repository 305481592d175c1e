// SPDX-License-Identifier: Apache-2.0
//! Several nodes, a cluster of etcd, and a job on them.
//!
//! Each node is a host of a network of its own (`netns.rs`), with its own directories and supervisor. The workers run the
//! toy job, which ends with a loss that depends on the number of steps alone, and write down every few milliseconds that
//! they live (`nodes/life.rs`). They share a directory, as nodes share a file system.

mod life;

use std::cell::{Ref, RefCell};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::Value;
use tempfile::TempDir;

pub use self::life::Life;
use crate::etcd::Etcd;
use crate::job::Job;
use crate::launch::Launch;
use crate::netns::{Host, Network};
use crate::outcome::Outcome;
use crate::patience::{eventually, pause};
use crate::processes::send;
use crate::requirement::{Requirement, python};

/// Of the toy job; enough for a fault and what follows it.
const STEPS: u64 = 100;
const STEP_SECONDS: &str = "0.05";
/// Many times as long as a step takes.
const STALL: Duration = Duration::from_secs(4);
const BEAT_SECONDS: &str = "0.02";

/// Nodes, numbered from 1, the etcd that they meet in, and their supervisors.
#[derive(Debug)]
pub struct Nodes {
    supervisors: BTreeMap<u8, Job>,
    earlier: Vec<Job>,
    /// The cluster of etcd.
    pub etcd: Etcd,
    network: Network,
    shared: TempDir,
    life: RefCell<Life>,
    steps: u64,
    save_every: u64,
    count: u8,
}

impl Nodes {
    /// So many nodes, and so many members of etcd; `None`, said loudly, where this machine cannot have them.
    pub fn new(nodes: u8, members: u8) -> Option<Nodes> {
        let needed = [
            Requirement::Namespaces,
            Requirement::Etcd,
            Requirement::Python,
        ];
        if !needed.into_iter().all(Requirement::met) {
            return None;
        }
        let network = Network::new(nodes + members);
        let etcd = Etcd::start(&network.hosts()[usize::from(nodes)..]);
        Some(Nodes {
            supervisors: BTreeMap::new(),
            earlier: Vec::new(),
            etcd,
            network,
            shared: tempfile::Builder::new()
                .prefix("shared-")
                .tempdir()
                .unwrap(),
            life: RefCell::default(),
            steps: STEPS,
            save_every: 5,
            count: nodes,
        })
    }

    /// Another number of steps than usual.
    #[must_use]
    pub fn with_steps(mut self, steps: u64) -> Nodes {
        self.steps = steps;
        self
    }

    /// A checkpoint every so many steps, instead of every five.
    #[must_use]
    pub fn saving_every(mut self, steps: u64) -> Nodes {
        self.save_every = steps;
        self
    }

    /// A supervisor for a node, with nothing to run yet.
    pub fn launch(&self, node: u8, options: &[&str]) -> Launch {
        let coord = self.etcd.uri();
        let options = [&["--coord", &coord], options].concat();
        let inside = self.host(node).inside();
        let inside: Vec<&str> = inside.iter().map(String::as_str).collect();
        Launch::run(&options)
            .inside(&inside)
            .env("STEADFAST_NODE_NAME", &name(node))
    }

    /// A supervisor for a node, with the toy job.
    pub fn launch_toy(&self, node: u8, options: &[&str]) -> Launch {
        let words = self.toy(STEP_SECONDS);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let command = [&["--"], &words[..]].concat();
        self.launch(node, options).command(&command)
    }

    /// Starts the toy job on a node, in place of the supervisor that was there, if there was one.
    pub fn start(&mut self, node: u8, options: &[&str]) {
        let job = self.launch_toy(node, options).start();
        self.adopt(node, job);
    }

    /// Starts the toy job on every node.
    pub fn start_all(&mut self, options: &[&str]) {
        for node in 1..=self.count {
            self.start(node, options);
        }
    }

    /// From now on this is the supervisor of the node.
    pub fn adopt(&mut self, node: u8, job: Job) {
        if let Some(old) = self.supervisors.insert(node, job) {
            self.earlier.push(old);
        }
    }

    /// The supervisor of a node.
    pub fn job(&self, node: u8) -> &Job {
        &self.supervisors[&node]
    }

    /// The host of a node.
    pub fn host(&self, node: u8) -> &Host {
        &self.network.hosts()[usize::from(node - 1)]
    }

    /// A path in the directory that all nodes share.
    pub fn shared(&self, name: &str) -> PathBuf {
        self.shared.path().join(name)
    }

    /// Sends a signal to the keeper and the agent of a node at once, as if the whole supervisor stood still.
    pub fn signal_supervisor(&self, node: u8, signal: Signal) {
        let job = self.job(node);
        if let Some(agent) = job.agent() {
            send(agent, signal);
        }
        job.signal(signal);
    }

    /// A line for the report of a test that fails.
    pub fn tell(&self, what: &str) {
        eprintln!("at step {}: {what}", self.life().last_step());
    }

    /// What the workers have written down so far.
    pub fn life(&self) -> Ref<'_, Life> {
        // Where it is being looked at already, what was read for that has to do.
        if let Ok(mut life) = self.life.try_borrow_mut() {
            life.catch_up(&self.shared("life.jsonl"));
        }
        self.life.borrow()
    }

    /// Looks at all of it until `look` gives a value.
    #[track_caller]
    pub fn eventually<Seen>(
        &self,
        what: &str,
        mut look: impl FnMut(&Nodes) -> Option<Seen>,
    ) -> Seen {
        eventually(what, || look(self).ok_or_else(|| self.describe()))
    }

    /// Waits until a rank has made this step.
    #[track_caller]
    pub fn reach(&self, step: u64) {
        self.eventually(&format!("step {step}"), |nodes| {
            (nodes.life().last_step() >= step).then_some(())
        });
    }

    /// Waits until so many steps more have been made than so far.
    #[track_caller]
    pub fn go_on(&self, steps: u64) {
        let so_far = self.life().last_step();
        self.reach(so_far + steps);
    }

    /// Waits until steps are made in a newer generation than this one. Returns its number.
    #[track_caller]
    pub fn generation_after(&self, generation: u64) -> u64 {
        self.eventually(&format!("steps after generation {generation}"), |nodes| {
            let newest = nodes.life().newest_generation_with_steps()?;
            (newest > generation).then_some(newest)
        })
    }

    /// The names of the nodes of the running generation, in the order of their ranks, as the leader has planned it.
    pub fn places(&self) -> Vec<String> {
        self.life().places()
    }

    /// The nodes with the ranks 0 and 1, and the one without, of three.
    #[track_caller]
    pub fn two_and_a_spare(&self) -> (u8, u8, u8) {
        let places = self.life().places();
        assert_eq!(places.len(), 2, "{}", self.describe());
        let (first, second) = (number(&places[0]), number(&places[1]));
        (first, second, 6 - first - second)
    }

    /// Waits until training steps are agreed upon to prove that nodes live.
    #[track_caller]
    pub fn steps_vouch(&self) {
        self.eventually("a witness window in the plan", |nodes| {
            let window = |key| nodes.etcd.value(key)?["witness_ms"].as_u64();
            let windows = [
                window("/steadfast/job/job/plan"),
                window("/steadfast/job/job/course"),
            ];
            (windows.into_iter().flatten().max()? > 0).then_some(())
        });
    }

    /// Waits until the members of the plan have said in the store that their workers can be asked for a checkpoint:
    /// who leads sees it before any request made after this.
    #[track_caller]
    pub fn can_be_asked(&self) {
        self.eventually("workers that can be asked for a checkpoint", |nodes| {
            let can = |place: &String| {
                let record = nodes.etcd.value(&format!("/steadfast/job/members/{place}"));
                record.is_some_and(|record| !record["can_save"].is_null())
            };
            nodes.places().iter().all(can).then_some(())
        });
    }

    /// Waits until etcd has let the lease of a node end.
    #[track_caller]
    pub fn member_is_gone(&self, node: u8) {
        let key = format!("/steadfast/job/members/{}", name(node));
        self.eventually("the end of a lease", |nodes| {
            nodes.etcd.value(&key).is_none().then_some(())
        });
    }

    /// Waits until no step has been made for long enough that one would be missed.
    #[track_caller]
    pub fn steps_stop(&self) {
        self.eventually("steps that stop", |nodes| {
            let before = nodes.life().last_step();
            pause(STALL);
            (nodes.life().last_step() == before).then_some(())
        });
    }

    /// The status that a node gives.
    #[track_caller]
    pub fn status(&self, node: u8) -> Value {
        self.eventually(&format!("the status of node {node}"), |nodes| {
            nodes.job(node).status()
        })
    }

    /// The node whose agent leads.
    #[track_caller]
    pub fn leader(&self) -> u8 {
        self.eventually("a leader of the job", |nodes| {
            let record = nodes.etcd.value("/steadfast/job/job/leader")?;
            (1..=nodes.count).find(|node| record["node"] == name(*node))
        })
    }

    /// Waits for the end of a node's supervisor, which must leave nothing behind.
    #[track_caller]
    pub fn wait(&mut self, node: u8) -> Outcome {
        self.supervisors.get_mut(&node).unwrap().wait()
    }

    /// Waits for the end of these nodes' supervisors; each must have ended with this code.
    #[track_caller]
    pub fn all_end_with(&mut self, code: i32, on: &[u8]) {
        for node in on {
            let outcome = self.wait(*node);
            let ended = outcome.status.code();
            assert_eq!(
                ended,
                Some(code),
                "exit code of node {node}; {}",
                self.describe()
            );
        }
    }

    /// Of no rank were there ever two workers.
    #[track_caller]
    pub fn is_sound(&self) {
        if let Err(error) = self.life().is_sound() {
            panic!("{error}; {}", self.describe());
        }
    }

    /// Every worker that ever was belonged to the first generation.
    #[track_caller]
    pub fn was_never_restarted(&self) {
        let generations = self.life().generations();
        assert!(
            generations.iter().eq([&1]),
            "{generations:?}; {}",
            self.describe()
        );
    }

    /// What comes now is another run, whose workers have nothing to do with those before.
    pub fn forget_life(&mut self) {
        self.is_sound();
        std::fs::remove_file(self.shared("life.jsonl")).unwrap();
        self.life = RefCell::default();
    }

    /// The job has ended well, on so many ranks, with the loss of a run that was left alone; and of no rank were there
    /// ever two.
    #[track_caller]
    pub fn trained_rightly(&self, ranks: u64) {
        self.is_sound();
        let right_loss = self.right_loss();
        if let Err(error) = self.life().finished(ranks, &right_loss) {
            panic!("{error}; {}", self.describe());
        }
    }

    /// Whether any of the supervisors has said a line with all of these texts in it.
    pub fn said(&self, texts: &[&str]) -> bool {
        let has_all = |line: &str| texts.iter().all(|text| line.contains(text));
        let mut jobs = self.supervisors.values().chain(&self.earlier);
        jobs.any(|job| job.stderr().lines().any(has_all))
    }

    /// Everything that helps to understand a failure.
    pub fn describe(&self) -> String {
        let told = |(title, job): (String, &Job)| {
            let stderr = job.stderr();
            let lines: Vec<&str> = stderr.lines().collect();
            let last = &lines[lines.len().saturating_sub(40)..];
            format!("--- {title}, pid {} ---\n{}\n", job.pid(), last.join("\n"))
        };
        let earlier = self
            .earlier
            .iter()
            .map(|job| ("an earlier supervisor".to_owned(), job));
        let now = self
            .supervisors
            .iter()
            .map(|(node, job)| (name(*node), job));
        let supervisors: String = earlier.chain(now).map(told).collect();
        format!(
            "\n{supervisors}--- workers ---\n{}\n{}",
            self.life(),
            self.etcd.describe()
        )
    }

    fn toy(&self, step_seconds: &str) -> Vec<String> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/train_toy.py");
        let path = |name: &str| self.shared(name).to_str().unwrap().to_owned();
        vec![
            python().to_owned(),
            "-u".to_owned(),
            script.to_str().unwrap().to_owned(),
            format!("--steps={}", self.steps),
            format!("--step-time={step_seconds}"),
            "--log-every=1".to_owned(),
            format!("--checkpoint-every={}", self.save_every),
            format!("--checkpoint-dir={}", path("checkpoints")),
            format!("--json-log={}", path("life.jsonl")),
            format!("--beat={BEAT_SECONDS}"),
        ]
    }

    /// The final loss of a run without a supervisor.
    #[expect(clippy::disallowed_methods, reason = "tests create processes")]
    fn right_loss(&self) -> String {
        let mut words = self.toy("0");
        words.retain(|word| {
            !["--checkpoint-", "--json-log", "--beat"]
                .iter()
                .any(|option| word.starts_with(option))
        });
        let output = Command::new(&words[0])
            .args(&words[1..])
            .env_clear()
            .output()
            .unwrap();
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        let last = printed.lines().last().unwrap_or_default();
        let loss = last
            .rsplit_once('(')
            .and_then(|(_, rest)| rest.strip_suffix(')'));
        loss.unwrap_or_else(|| panic!("no loss in `{printed}`"))
            .to_owned()
    }
}

/// Number of a node by its name.
pub fn number(name: &str) -> u8 {
    name[1..].parse().unwrap()
}

/// Name of a node.
pub fn name(node: u8) -> String {
    format!("n{node}")
}
