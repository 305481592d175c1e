// SPDX-License-Identifier: Apache-2.0
//! Where the things of a world lie. Paths are short: the control sockets of supervisors are below them.

use std::fs;
use std::path::{Path, PathBuf};

use super::Tools;
use super::node::Node;
use crate::bench::launch::write;
use crate::failure::Failure;
use crate::scenario::{Place, Scenario};

const HAND: &str = include_str!("sitecustomize.py");
/// For the supervisor, which could take its files for others otherwise.
const RULE: &str = "name = 'step-(?<step>[0-9]+)\\.[a-z]+'\n";
const TOY: &str = include_str!("../../../examples/train_toy.py");

/// The directories of a world.
#[derive(Debug, Clone)]
pub(crate) struct Layout {
    /// All of it.
    pub(crate) root: PathBuf,
    /// What is kept for the judge.
    pub(crate) history: PathBuf,
}

impl Layout {
    /// The layout of a run; nothing is made yet.
    pub(super) fn new(run: &str) -> Result<Self, Failure> {
        let root = std::env::temp_dir().join(run);
        let root =
            std::path::absolute(&root).map_err(|error| Failure::read(root.display(), error))?;
        Ok(Self {
            history: root.join("history"),
            root,
        })
    }

    /// What the workers write down.
    pub(crate) fn life(&self) -> PathBuf {
        self.shared().join("life.jsonl")
    }

    /// The orders of a rank.
    pub(crate) fn orders(&self, rank: u32) -> PathBuf {
        self.shared().join("orders").join(format!("{rank}.json"))
    }

    /// What all nodes share.
    pub(super) fn shared(&self) -> PathBuf {
        self.root.join("shared")
    }

    /// The default training program.
    pub(super) fn toy(&self) -> PathBuf {
        self.shared().join("train_toy.py")
    }

    /// How the checkpoints of the default training program are laid out.
    pub(super) fn rule(&self) -> PathBuf {
        self.shared().join("layout.toml")
    }

    /// Where temporary files go.
    pub(super) fn temporary(&self) -> PathBuf {
        self.root.join("tmp")
    }

    /// Where something lies that may have a file system of its own.
    pub(crate) fn place(&self, place: Place) -> PathBuf {
        self.root.join(match place {
            Place::Checkpoints => "checkpoints",
            Place::Logs => "logs",
        })
    }

    /// The state of the GPUs of a node, for the fake NVML library.
    pub(crate) fn gpus(&self, node: &str) -> PathBuf {
        self.shared().join(format!("{node}-gpus.json"))
    }

    /// The kernel log of a node.
    pub(crate) fn kernel_log(&self, node: &str) -> PathBuf {
        self.shared().join(format!("{node}-kernel.log"))
    }

    pub(super) fn make(&self, scenario: &Scenario, tools: &Tools) -> Result<(), Failure> {
        let made = |path: &Path| {
            fs::create_dir_all(path).map_err(|error| Failure::write(path.display(), error))
        };
        for directory in [
            self.history.clone(),
            self.shared().join("orders"),
            self.root.join("home"),
            self.temporary(),
            self.place(Place::Checkpoints),
            self.place(Place::Logs),
        ] {
            made(&directory)?;
        }
        write(&self.life(), "")?;
        write(&self.shared().join("sitecustomize.py"), HAND)?;
        write(&self.toy(), TOY)?;
        write(&self.rule(), RULE)?;
        for number in 1..=scenario.nodes.all() {
            let node = format!("n{number}");
            write(&self.kernel_log(&node), "")?;
            if scenario.job.gpus && tools.fake_nvml.is_some() {
                write(&self.gpus(&node), &gpus(scenario.nodes.workers))?;
            }
        }
        Ok(())
    }

    /// Copies what the judge needs of the workers and the nodes to the history.
    pub(super) fn gather(&self, nodes: &[Node]) -> Result<(), Failure> {
        let keep = |from: &Path, to: PathBuf| match fs::copy(from, &to) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(Failure::write(to.display(), error))
            }
            _ => Ok(()),
        };
        keep(&self.life(), self.history.join("life.jsonl"))?;
        for node in nodes {
            for (from, to) in [
                (node.journal(), format!("{}-journal.jsonl", node.name)),
                (node.stderr(), format!("{}-stderr.txt", node.name)),
                (node.stdout(), format!("{}-stdout.txt", node.name)),
            ] {
                keep(&from, self.history.join(to))?;
            }
        }
        Ok(())
    }
}

/// So many healthy GPUs, as the fake library wants them.
fn gpus(count: u32) -> String {
    let gpus: Vec<serde_json::Value> = (0..count)
        .map(|index| serde_json::json!({ "profile": "h100", "bus": 0x18 + index }))
        .collect();
    serde_json::json!({ "gpus": gpus, "events": [] }).to_string()
}
