// SPDX-License-Identifier: Apache-2.0
//! What a scenario file says: nodes, a job, faults, and what must hold in the end.
//!
//! The doc comments of these types are the reference: `steadfast-chaos schema` prints them as a JSON schema.

mod capability;
mod check;
mod expect;
mod fault;
mod injection;
mod read;
mod target;
mod trigger;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub(crate) use self::capability::Capability;
pub(crate) use self::expect::{Expect, ExpectedCause};
pub(crate) use self::fault::Fault;
pub(crate) use self::injection::{
    Damage, Direction, DiskCall, EtcdMembers, GpuVia, Injection, LeftBehind, Place, SaveMoment,
    SignalName,
};
pub(crate) use self::read::{Source, read_file, read_text};
pub(crate) use self::target::{Role, Target};
pub(crate) use self::trigger::{Phase, Trigger};

/// A scenario: one job, the faults that it meets, and what must hold in the end.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Scenario {
    /// What it proves, in one sentence.
    pub(crate) description: String,
    /// Whether it belongs to the short suite (`run --all --quick`).
    #[serde(default)]
    pub(crate) quick: bool,
    /// Words to choose scenarios by, besides their names (`run --all --filter WORD`).
    #[serde(default)]
    pub(crate) tags: Vec<String>,
    /// Chooses everything that is drawn: random targets, delays, whether an improbable fault happens.
    #[serde(default = "one")]
    pub(crate) seed: u64,
    /// Seconds after which the job is ended and counts as one that did not come to an end.
    #[serde(default = "two_minutes")]
    pub(crate) limit_seconds: u64,
    /// The nodes of the job.
    #[serde(default)]
    pub(crate) nodes: Nodes,
    /// The job.
    #[serde(default)]
    pub(crate) job: Job,
    /// The faults, in any order: each waits for its own moment.
    #[serde(default)]
    pub(crate) faults: Vec<Fault>,
    /// What must hold, besides what must always hold.
    #[serde(default)]
    pub(crate) expect: Expect,
}

/// The nodes of a job.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Nodes {
    /// Nodes that run workers.
    pub(crate) count: u32,
    /// Fewest nodes that the job goes on with, if that is fewer than `count`.
    pub(crate) at_least: Option<u32>,
    /// Nodes that stand by.
    pub(crate) spares: u32,
    /// Workers on each node.
    pub(crate) workers: u32,
    /// Members of etcd: by default 1 for several nodes, and none (0) for a single one.
    pub(crate) etcd: Option<u32>,
    /// What a node is.
    pub(crate) mode: Mode,
}

/// What a node is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Mode {
    /// Namespaces where this machine allows them, else processes on the loopback interface.
    Auto,
    /// A network, a host name, mounts and a boot id of its own (needs root).
    Namespaces,
    /// Processes on the loopback interface.
    Loopback,
}

/// The job that is run when no command is given, and how it is run.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Job {
    /// Steps of the training.
    pub(crate) steps: u64,
    /// Seconds that a step takes.
    pub(crate) step_seconds: f64,
    /// Steps between two checkpoints.
    pub(crate) checkpoint_every: u64,
    /// More options of `steadfast run`.
    pub(crate) options: Vec<String>,
    /// More variables for the supervisor and its workers.
    pub(crate) environment: BTreeMap<String, String>,
    /// Whether the supervisor is told where the checkpoints are, so that it looks after them.
    pub(crate) supervised_checkpoints: bool,
    /// How workers behave that is out of the ordinary.
    pub(crate) habits: Vec<Habit>,
    /// Whether each worker has a GPU, as the fake NVML library shows it.
    pub(crate) gpus: bool,
}

/// Something out of the ordinary that all workers do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Habit {
    /// They ignore SIGTERM.
    IgnoreTerm,
    /// Each starts a process in a session of its own that ignores SIGTERM and never ends by itself.
    LeaveBehind,
}

impl Default for Nodes {
    fn default() -> Self {
        Self {
            count: 1,
            at_least: None,
            spares: 0,
            workers: 2,
            etcd: None,
            mode: Mode::Auto,
        }
    }
}

impl Default for Job {
    fn default() -> Self {
        Self {
            steps: 40,
            step_seconds: 0.05,
            checkpoint_every: 5,
            options: Vec::new(),
            environment: BTreeMap::new(),
            supervised_checkpoints: true,
            habits: Vec::new(),
            gpus: false,
        }
    }
}

impl Nodes {
    /// Nodes in all.
    pub(crate) fn all(&self) -> u32 {
        self.count + self.spares
    }

    /// Members of etcd.
    pub(crate) fn etcd_members(&self) -> u32 {
        self.etcd.unwrap_or(u32::from(self.all() > 1))
    }

    /// Workers of the whole job.
    pub(crate) fn ranks(&self) -> u32 {
        self.count * self.workers
    }
}

impl Scenario {
    /// What the machine must offer.
    pub(crate) fn needs(&self) -> Vec<Capability> {
        let mut needs: Vec<Capability> = self
            .faults
            .iter()
            .flat_map(|fault| fault.inject.needs())
            .collect();
        if self.nodes.mode == Mode::Namespaces {
            needs.push(Capability::Namespaces);
        }
        if self.nodes.etcd_members() > 0 {
            needs.push(Capability::Etcd);
        }
        if self.job.gpus {
            needs.push(Capability::FakeNvml);
        }
        needs.push(Capability::Python);
        needs.sort_unstable();
        needs.dedup();
        needs
    }
}

fn one() -> u64 {
    1
}

fn two_minutes() -> u64 {
    120
}

/// The schema of scenario files, for editors and for people.
pub(crate) fn schema() -> schemars::Schema {
    schemars::schema_for!(Scenario)
}
