// SPDX-License-Identifier: Apache-2.0
//! Trainings on two nodes that hang: two ranks on each, and the one that holds up the others is named with its node.

#![expect(clippy::unwrap_used, reason = "this is test code")]

use std::fs;
use std::path::{Path, PathBuf};

use nix::sys::signal::Signal;
use serde_json::Value;
use steadfast_tests::{Direction, FrozenDisk, Nodes, Requirement, name, number, python, send};

/// Steps before anything is disturbed: enough to have learned how long they take.
const LEARNED: u64 = 15;
const SHAPE: [&str; 6] = [
    "--nnodes",
    "2",
    "--nproc-per-node",
    "2",
    "--restart-grace",
    "100ms",
];

/// A training on two nodes.
struct Training {
    nodes: Nodes,
    script: PathBuf,
    options: Vec<String>,
    /// In the order in which they are started.
    order: Vec<u8>,
}

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../examples")
        .join(name)
}

impl Training {
    /// The toy job.
    fn toy(options: &[&str]) -> Option<Training> {
        Some(Training::of(Nodes::new(2, 1)?, vec![1, 2], options))
    }

    fn of(nodes: Nodes, order: Vec<u8>, options: &[&str]) -> Training {
        Training {
            nodes,
            script: example("train_toy.py"),
            options: SHAPE
                .iter()
                .chain(options)
                .map(|&word| word.to_owned())
                .collect(),
            order,
        }
    }

    /// The same with `PyTorch`'s DDP over gloo.
    fn ddp(options: &[&str]) -> Option<Training> {
        if !Requirement::Torch.met() {
            return None;
        }
        let mut training = Training::toy(options)?;
        training.script = example("train_ddp.py");
        Some(training)
    }

    /// Starts it on both nodes. `environment` is that of the workers.
    fn start(&mut self, environment: &[(&str, &str)]) {
        let wrapper =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../chaos/src/bench/hangs/hanging.py");
        let record = format!("--json-log={}", self.nodes.shared("life.jsonl").display());
        let words = [
            "--",
            python(),
            wrapper.to_str().unwrap(),
            self.script.to_str().unwrap(),
            "--steps=1000000",
            "--step-time=0.1",
            "--log-every=1",
            &record,
        ];
        let options: Vec<&str> = self.options.iter().map(String::as_str).collect();
        for &node in &self.order {
            let launch = self.nodes.launch(node, &options).command(&words);
            let launch = launch
                .env("HANG_FILES", self.nodes.shared("").to_str().unwrap())
                .env("GLOO_SOCKET_IFNAME", "eth0");
            let launch = environment
                .iter()
                .fold(launch, |launch, (name, value)| launch.env(name, value));
            self.nodes.adopt(node, launch.start());
            // From then on there is a journal. The first one leads.
            self.nodes.status(node);
            self.nodes.leader();
            if node > 2 {
                // It has no part if the others are there before it looks again.
                self.nodes.signal_supervisor(node, Signal::SIGSTOP);
            }
        }
        for &node in self.order.iter().filter(|&&node| node > 2) {
            for other in 1..=2 {
                let key = format!("/steadfast/job/members/{}", name(other));
                self.nodes
                    .eventually("a member", |nodes| nodes.etcd.value(&key).map(drop));
            }
            self.nodes.signal_supervisor(node, Signal::SIGCONT);
        }
    }

    /// Tells a rank to do something.
    fn tell(&self, word: &str, rank: u64) {
        fs::write(self.nodes.shared(&format!("{word}-{rank}")), "").unwrap();
    }

    /// A rank on the node that does not lead, and one on the node that does.
    fn ranks(&self) -> (u64, u64) {
        let leader = name(self.nodes.leader());
        if self.nodes.places()[0] == leader {
            (3, 1)
        } else {
            (1, 3)
        }
    }

    fn node_of(&self, rank: u64) -> String {
        let places = self.nodes.places();
        let index = usize::try_from(rank).unwrap();
        places[if places.len() == 2 { index / 2 } else { index }].clone()
    }

    /// The first verdict for which that is so.
    #[track_caller]
    fn verdict(&self, wanted: impl Fn(&Value) -> bool) -> Value {
        self.nodes.eventually("a verdict", |nodes| {
            let journals = self.order.iter().map(|&node| nodes.job(node));
            let mut judged = journals.flat_map(|job| job.journal_of("stall.judged"));
            judged.find(&wanted)
        })
    }

    /// Waits until this rank is named and the job goes on. Returns the verdict upon which something was done.
    #[track_caller]
    fn recovers_from(&self, rank: u64, class: &str) -> Value {
        let node = self.node_of(rank);
        let judged = self.verdict(|line| line["restarts"] == true);
        let story = format!("{judged:#}{}", self.nodes.describe());
        assert_eq!(judged["culprit"]["rank"], rank, "{story}");
        assert_eq!(judged["culprit"]["node"], node, "{story}");
        assert_eq!(judged["class"], class, "{story}");
        assert_eq!(self.nodes.generation_after(1), 2, "{story}");
        for node in 1..=2 {
            let starts = self.nodes.job(node).journal_of("generation.starting");
            let why = starts[1]["why"].as_str().unwrap();
            let blame = format!("rank {rank} on {} holds up the others", self.node_of(rank));
            assert!(why.contains(&blame), "{why}");
        }
        judged
    }

    /// What is kept of the verdict has all ranks in it, and each node has kept what it saw itself.
    #[track_caller]
    fn has_kept_evidence(&self, judged: &Value) {
        let directory = Path::new(judged["evidence"].as_str().unwrap());
        let index: Value = self.nodes.eventually("the evidence", |_| {
            serde_json::from_slice(&fs::read(directory.join("index.json")).ok()?).ok()
        });
        assert_eq!(index["ranks"].as_array().unwrap().len(), 4, "{index:#}");
        for file in index["files"].as_array().unwrap() {
            assert!(directory.join(file.as_str().unwrap()).is_file(), "{file}");
        }
        for node in 1..=2 {
            let about = directory.join(format!("node-{}.json", name(node)));
            assert!(about.is_file(), "{index:#}");
        }
        for rank in 0..4 {
            let sockets = fs::read(directory.join(format!("rank-{rank}.sockets.json"))).unwrap();
            let sockets: Value = serde_json::from_slice(&sockets).unwrap();
            assert_eq!(sockets[0]["state"], "established", "{sockets:#}");
        }
        let leader = self.nodes.leader();
        let other = self.nodes.job(3 - leader);
        let given = other.journal_of("stall.evidence_given");
        let own = Path::new(given[0]["evidence"].as_str().unwrap()).join("index.json");
        self.nodes
            .eventually("the other node's evidence", |_| own.is_file().then_some(()));
    }

    fn end(mut self) {
        self.nodes
            .job(1)
            .ask("stop", &["--job", "job"])
            .ended_with(0);
        self.nodes.all_end_with(143, &self.order);
        self.nodes.is_sound();
    }
}

/// The toy job, trained for a while.
fn trained(options: &[&str]) -> Option<Training> {
    let mut training = Training::toy(options)?;
    training.start(&[]);
    training.nodes.reach(LEARNED);
    Some(training)
}

#[test]
fn a_rank_that_is_stopped_on_the_other_node_is_named() {
    let Some(training) = trained(&[]) else {
        return;
    };
    let (rank, _) = training.ranks();
    let pid = training.nodes.life().pid(rank).unwrap();
    assert!(send(pid, Signal::SIGSTOP));
    let judged = training.recovers_from(rank, "hang");
    assert_eq!(judged["confidence"], "strong", "{judged:#}");
    training.has_kept_evidence(&judged);
    training.end();
}

#[test]
fn a_rank_that_waits_for_its_data_on_the_leading_node_is_named() {
    let Some(training) = trained(&[]) else {
        return;
    };
    let (_, rank) = training.ranks();
    training.tell("data", rank);
    let judged = training.recovers_from(rank, "hang");
    assert_eq!(judged["confidence"], "strong", "{judged:#}");
    training.end();
}

#[test]
fn a_rank_that_leaves_out_a_collective_is_named() {
    let Some(training) = trained(&["--stall", "report"]) else {
        return;
    };
    let (rank, _) = training.ranks();
    training.tell("skip", rank);
    let judged = training.verdict(|line| line["culprit"]["rank"] == rank);
    assert_eq!(judged["class"], "hang", "{judged:#}");
    assert_eq!(judged["culprit"]["node"], training.node_of(rank));
    assert_eq!(judged["others"], serde_json::json!([]), "{judged:#}");
    training.end();
}

#[test]
fn a_rank_that_spins_with_the_interpreters_lock_on_the_other_node_is_named() {
    let Some(training) = trained(&["--stall", "report"]) else {
        return;
    };
    let (rank, _) = training.ranks();
    training.tell("spin", rank);
    let judged = training.verdict(|line| line["culprit"]["rank"] == rank);
    assert_eq!(judged["class"], "hang", "{judged:#}");
    training.end();
}

#[test]
fn a_rank_that_never_begins_on_one_of_two_nodes_is_named() {
    let Some(mut training) = Training::toy(&["--stall-after", "init=4s"]) else {
        return;
    };
    training.start(&[("HANG_BEFORE_FIRST_STEP", "2")]);
    let judged = training.verdict(|line| line["restarts"] == true);
    assert_eq!(judged["culprit"]["rank"], 2, "{judged:#}");
    assert_eq!(judged["class"], "hang", "{judged:#}");
    training.nodes.reach(1);
    training.end();
}

#[test]
fn a_node_of_which_nothing_is_heard_any_more_is_named() {
    let Some(training) = trained(&["--stall", "report", "--witness", "off", "--lease", "60s"])
    else {
        return;
    };
    let (rank, _) = training.ranks();
    let node = training.node_of(rank);
    training.nodes.host(number(&node)).cut(Direction::Both, &[]);
    let judged = training.verdict(|line| line["class"] == "node_lost");
    assert_eq!(judged["culprit"]["node"], node, "{judged:#}");
    training.nodes.host(number(&node)).heal();
    training.end();
}

#[test]
fn a_rank_that_writes_to_a_disk_that_does_not_answer_is_named() {
    if !Requirement::Root.met() {
        return;
    }
    let Some(mut training) = Training::toy(&["--stall", "report"]) else {
        return;
    };
    let disk = FrozenDisk::new();
    training.start(&[("HANG_WRITES_TO", disk.path().to_str().unwrap())]);
    training.nodes.reach(LEARNED);
    let (rank, _) = training.ranks();
    disk.freeze();
    training.tell("write", rank);
    let judged = training.verdict(|line| line["culprit"]["rank"] == rank);
    disk.thaw();
    assert_eq!(judged["class"], "storage", "{judged:#}");
    training.end();
}

#[test]
fn a_node_that_leads_without_having_a_part_names_the_rank() {
    let Some(nodes) = Nodes::new(3, 1) else {
        return;
    };
    // Of those that are there at once, the last by name is the spare; it is the first to be there, and leads.
    let options = ["--spares", "1"];
    let mut training = Training::of(nodes, vec![3, 1, 2], &options);
    training.start(&[]);
    training.nodes.reach(LEARNED);
    assert_eq!(training.nodes.leader(), 3);
    let places = training.nodes.places();
    assert!(!places.contains(&name(3)), "{places:?}");
    training.tell("data", 2);
    let judged = training.recovers_from(2, "hang");
    assert_eq!(judged["confidence"], "strong", "{judged:#}");
    training.end();
}

#[test]
fn what_is_slow_or_short_is_left_alone_on_two_nodes() {
    let Some(training) = trained(&[]) else {
        return;
    };
    let (rank, other) = training.ranks();
    training.tell("pause", rank);
    training.tell("slow", other);
    training.nodes.go_on(30);
    training.nodes.was_never_restarted();
    training.end();
}

#[test]
fn a_rank_that_evaluates_while_all_others_wait_for_it_is_left_alone() {
    let Some(training) = trained(&[]) else {
        return;
    };
    let before = training.nodes.life().last_step();
    // The other ranks are in training all the while, and overdue.
    training.tell("eval", 0);
    training
        .nodes
        .eventually("the end of the evaluation", |nodes| {
            let is_over = nodes.life().last_step() > before + 10;
            (is_over && !nodes.shared("eval-0").exists()).then_some(())
        });
    training.nodes.was_never_restarted();
    for node in 1..=2 {
        let judged = training.nodes.job(node).journal_of("stall.judged");
        assert!(judged.is_empty(), "{judged:#?}");
    }
    training.end();
}

#[test]
fn torch_ranks_of_ddp_on_two_nodes_are_named() {
    let Some(mut training) = Training::ddp(&[]) else {
        return;
    };
    training.start(&[]);
    training.nodes.reach(LEARNED);
    let (rank, _) = training.ranks();
    let pid = training.nodes.life().pid(rank).unwrap();
    assert!(send(pid, Signal::SIGSTOP));
    training.recovers_from(rank, "hang");
    training.end();
}

#[test]
fn torch_a_rank_of_ddp_that_leaves_out_a_collective_is_named() {
    let Some(mut training) = Training::ddp(&["--stall", "report"]) else {
        return;
    };
    training.start(&[]);
    training.nodes.reach(LEARNED);
    let (rank, _) = training.ranks();
    training.tell("skip", rank);
    let judged = training.verdict(|line| line["culprit"]["rank"] == rank);
    assert_eq!(judged["class"], "hang", "{judged:#}");
    training.end();
}
