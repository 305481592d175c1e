// SPDX-License-Identifier: Apache-2.0
//! The small world in which a scenario takes place: virtual nodes, an etcd, a job, and everything that is seen of them.

pub(crate) mod cgroup;
pub(crate) mod etcd;
pub(crate) mod host;
mod layout;
pub(crate) mod life;
pub(crate) mod node;
mod places;
mod roles;
mod sampler;
pub(crate) mod sick_disk;
mod steps;
pub(crate) mod witness;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use steadfast_sim::Random;

use self::etcd::Etcd;
use self::host::Network;
pub(crate) use self::layout::Layout;
use self::life::{Life, Sign};
use self::node::{Node, Wishes};
pub(crate) use self::roles::Victim;
use self::sampler::Sampler;
use self::sick_disk::{SickDisk, Sickness};
use self::steps::StepsSeen;
use self::witness::Witness;
use crate::bench::lines::Lines;
use crate::failure::Failure;
use crate::history::{JournalLine, Recorder};
use crate::scenario::{Injection, Mode, Place, Scenario};
use crate::tools::Environment;
use crate::undo::{MARK, Undo, UndoJournal};

/// What a world is made from.
#[derive(Debug, Clone)]
pub(crate) struct Tools {
    /// The supervisor.
    pub(crate) steadfast: PathBuf,
    /// The interpreter of the default job.
    pub(crate) python: PathBuf,
    /// The fake NVML library, if it is there.
    pub(crate) fake_nvml: Option<PathBuf>,
    /// What is run on each node instead of the default job.
    pub(crate) command: Vec<OsString>,
    /// Whether nodes can have namespaces of their own.
    pub(crate) namespaces: bool,
}

/// A world.
#[derive(Debug)]
pub(crate) struct World {
    /// How to undo what is done.
    pub(crate) undo: UndoJournal,
    /// What is written down.
    pub(crate) recorder: Recorder,
    /// The nodes, the spares last.
    pub(crate) nodes: Vec<Node>,
    /// The etcd, if there is one.
    pub(crate) etcd: Option<Etcd>,
    /// What the workers have told.
    pub(crate) life: Life,
    /// What the journals of the nodes say, in the order in which it was read.
    pub(crate) journal: Vec<JournalLine>,
    /// Everything that is drawn.
    pub(crate) random: Random,
    /// Where things lie.
    pub(crate) layout: Layout,
    witness: Option<Witness>,
    sampler: Sampler,
    /// Where the job does not write its steps down itself.
    steps: Option<StepsSeen>,
    signs: Lines<Sign>,
    journals: BTreeMap<String, Lines<serde_json::Value>>,
    network: Option<Network>,
    wishes: Wishes,
    /// File systems that can be made to fail.
    sick_disks: BTreeMap<Place, SickDisk>,
}

impl World {
    /// Makes the world of a scenario; nothing of the job is started yet.
    pub(crate) fn new(
        scenario: &Scenario,
        tools: &Tools,
        run: &str,
        mut undo: UndoJournal,
    ) -> Result<Self, Failure> {
        let layout = Layout::new(run)?;
        undo.will_do(Undo::RemoveDirectory {
            path: layout.root.clone(),
        })?;
        layout.make(scenario, tools)?;
        let sick_disks = places::mount(scenario, &layout, &mut undo)?;
        let environment = surroundings(run, &layout);
        let namespaces = match scenario.nodes.mode {
            Mode::Namespaces => true,
            Mode::Loopback => false,
            Mode::Auto => tools.namespaces,
        };
        let (all, members) = (scenario.nodes.all(), scenario.nodes.etcd_members());
        let network = if namespaces {
            let names = (1..=all).map(|n| format!("n{n}"));
            let names: Vec<String> = names
                .chain((1..=members).map(|m| format!("m{m}")))
                .collect();
            Some(Network::new(&names, &environment, &layout.root)?)
        } else {
            None
        };
        let hosts = network.as_ref().map_or(&[][..], Network::hosts);
        let (node_hosts, etcd_hosts) = hosts.split_at_checked(all as usize).unwrap_or_default();
        let small = scenario
            .faults
            .iter()
            .any(|fault| matches!(fault.inject, Injection::EtcdFull));
        let etcd = if members > 0 {
            let directory = layout.root.join("etcd");
            Some(Etcd::start(
                etcd_hosts,
                members,
                &directory,
                &environment,
                small,
            )?)
        } else {
            None
        };
        let recorder = Recorder::new(&layout.history)?;
        let witness = match &etcd {
            Some(etcd) => Some(Witness::start(etcd, etcd_hosts, &layout.history)?),
            None => None,
        };
        let wishes = Wishes::of(scenario, tools, etcd.as_ref(), &environment);
        let nodes = (1..=all).map(|number| Node::new(number, node_hosts, &layout));
        let nodes: Vec<Node> = nodes.collect::<Result<_, _>>()?;
        let journals = nodes
            .iter()
            .map(|node| (node.name.clone(), Lines::of(node.journal())));
        Ok(Self {
            undo,
            recorder,
            journals: journals.collect(),
            nodes,
            etcd,
            life: Life::default(),
            journal: Vec::new(),
            random: Random::new(scenario.seed),
            witness,
            sampler: Sampler::new(run),
            steps: (!tools.command.is_empty()).then(|| StepsSeen::new(layout.life())),
            signs: Lines::of(layout.life()),
            layout,
            network,
            wishes,
            sick_disks,
        })
    }

    /// Starts the supervisor of a node.
    pub(crate) fn start_node(&mut self, index: usize) -> Result<(), Failure> {
        let host = self
            .network
            .as_ref()
            .and_then(|network| network.hosts().get(index));
        match self.nodes.get_mut(index) {
            Some(node) => node.start(&self.wishes, &self.layout, host),
            None => Err(Failure::Unexpected(format!("there is no node {index}"))),
        }
    }

    /// The host of a node, where nodes have one.
    pub(crate) fn host(&self, index: usize) -> Result<&host::Host, Failure> {
        self.network
            .as_ref()
            .and_then(|network| network.hosts().get(index))
            .ok_or_else(|| Failure::Unexpected("the nodes have no network of their own".to_owned()))
    }

    /// Reads what has come since the last time.
    pub(crate) fn look(&mut self) -> Result<(), Failure> {
        if let Some(mut steps) = self.steps.take() {
            steps.look(self)?;
            self.steps = Some(steps);
        }
        self.life.add(self.signs.fresh()?);
        for (node, lines) in &mut self.journals {
            // A journal on a disk that fails may hold a line that is cut short.
            let Ok(fresh) = lines.fresh() else { continue };
            let at_ns = crate::bench::waiting::now_ns();
            let fresh = fresh.into_iter().map(|line| JournalLine {
                node: node.clone(),
                at_ns,
                line,
            });
            self.journal.extend(fresh);
        }
        for node in &mut self.nodes {
            node.look()?;
        }
        self.sampler.look();
        Ok(())
    }

    /// What makes the file system fail on which something lies.
    pub(crate) fn sickness(&self, place: Place) -> Result<&Arc<Sickness>, Failure> {
        let disk = self.sick_disks.get(&place);
        disk.map(|disk| &disk.sickness)
            .ok_or_else(|| Failure::Unexpected(format!("{place:?} lie on no disk that can fail")))
    }

    /// Runs a command of `steadfast` on a node, for the job, to its end.
    pub(crate) fn ask(&self, index: usize, words: &[&str]) -> Result<String, Failure> {
        let node = self
            .nodes
            .get(index)
            .ok_or_else(|| Failure::Unexpected(format!("there is no node {index}")))?;
        node.ask(&self.wishes, words)
    }

    /// Ends everything, takes down what is known of it, and undoes what was done. Gives what could not be undone.
    pub(crate) fn end(mut self, copy_to: Option<&Path>) -> Result<Vec<String>, Failure> {
        self.sampler.write(&self.layout.history)?;
        if let Some(witness) = self.witness.take() {
            witness.stop();
        }
        self.layout.gather(&self.nodes)?;
        for node in &mut self.nodes {
            node.kill();
        }
        drop(self.etcd.take());
        drop(self.network.take());
        for disk in self.sick_disks.values() {
            disk.sickness.set(None);
        }
        if let Some(place) = copy_to {
            copy(&self.layout.history, place)?;
        }
        Ok(self.undo.undo_all())
    }
}

/// The variables that everything in a world has.
fn surroundings(run: &str, layout: &Layout) -> Environment {
    let kept = [
        "LANG",
        "LC_ALL",
        "TERM",
        "USER",
        "LOGNAME",
        "SHELL",
        "CI",
        "VIRTUAL_ENV",
    ];
    let mut environment: Environment = kept
        .iter()
        .filter_map(|name| Some(((*name).into(), std::env::var_os(name)?)))
        .collect();
    let path = std::env::var("PATH").unwrap_or_default();
    environment.insert("PATH".into(), format!("{path}:/usr/sbin:/sbin").into());
    environment.insert(MARK.into(), run.into());
    environment.insert("ETCD_LOGGER".into(), "zap".into());
    environment.insert("HOME".into(), layout.root.join("home").into());
    environment.insert("TMPDIR".into(), layout.temporary().into());
    environment
}

/// Copies a directory of files, and the directories in it.
fn copy(from: &Path, to: &Path) -> Result<(), Failure> {
    let failed = |error| Failure::write(to.display(), error);
    fs::create_dir_all(to).map_err(failed)?;
    for entry in fs::read_dir(from).map_err(failed)?.flatten() {
        let target = to.join(entry.file_name());
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            copy(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), &target).map_err(failed)?;
        }
    }
    Ok(())
}
