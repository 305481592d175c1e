// SPDX-License-Identifier: Apache-2.0
//! What the agent knows of its node's hardware: which GPUs are the job's, what is wrong with them, and what each event
//! asks for. It decides nothing about the job: a GPU that cannot be used any more becomes a finding for the core, and all
//! else explains the ends of workers.

mod processes;
mod report;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use steadfast_health::gpus::{Gpu, GpuOwners, NodeGpus, Owner};
use steadfast_health::incidents::{Incidents, Judged, Sighting, WorkerTrace, blame};
use steadfast_health::kernel_log::PciAddress;
use steadfast_health::nvml::{GpuIdentity, Processes};
use steadfast_health::xid::{Action, Driver, Judge, Policy, Severity};
use steadfast_proto::v1::Finding;

use self::processes::WorkerProcesses;
use self::report::{closed_fields, fields, words};
use super::launch::Inherited;
use crate::clock;
use crate::fault_book::FaultBook;
use crate::keeper::protocol::{ExitRecord, WorkerView};
use crate::settings::{KernelLogSource, Settings};

/// Watches the node of one job.
#[derive(Debug)]
pub(super) struct NodeWatch {
    node: String,
    incidents: Incidents,
    gpus: NodeGpus,
    owners: GpuOwners,
    job_started_ns: u64,
    /// `CUDA_VISIBLE_DEVICES` as the job has it.
    visible: Option<String>,
    workers: u32,
    processes: WorkerProcesses,
    log: LogState,
    gaps: u64,
    injected: u64,
    /// The GPUs that the core has been told about.
    told: BTreeSet<PciAddress>,
    /// Findings that came while no generation ran.
    late: BTreeMap<PciAddress, Finding>,
}

#[derive(Debug)]
enum LogState {
    Off,
    Opening,
    Open(PathBuf),
    Failed(String),
}

/// What follows from one event.
#[derive(Debug, Default)]
pub(super) struct Consequences {
    /// Kind and fields of a line for the journal.
    pub(super) journal: Option<(&'static str, Value)>,
    /// What to tell the user.
    pub(super) say: Option<String>,
    /// What to tell the core.
    pub(super) finding: Option<Finding>,
}

impl NodeWatch {
    pub(super) fn new(
        settings: &Settings,
        job_started_ns: u64,
        inherited: Inherited<'_>,
    ) -> NodeWatch {
        let policy = settings.xid_policy.as_ref();
        // It was read once already, when the job was started.
        let policy = policy.and_then(|policy| Policy::parse(&policy.file, &policy.text).ok());
        let gpus = NodeGpus::read(Path::new("/"));
        let visible = inherited("CUDA_VISIBLE_DEVICES").and_then(|list| list.into_string().ok());
        NodeWatch {
            node: settings.node.clone(),
            incidents: Incidents::new(Judge::new(policy.unwrap_or_default()), gpus.driver),
            owners: gpus.owners(visible.as_deref(), settings.workers),
            gpus,
            job_started_ns,
            visible,
            workers: settings.workers,
            processes: WorkerProcesses::new(),
            log: match settings.kernel_log {
                KernelLogSource::Off => LogState::Off,
                _ => LogState::Opening,
            },
            gaps: 0,
            injected: 0,
            told: BTreeSet::new(),
            late: BTreeMap::new(),
        }
    }

    /// Takes in a worker that was started.
    pub(super) fn watch_worker(&mut self, worker: &WorkerView) {
        self.processes.add_worker(worker);
    }

    /// What the driver's library lists goes before what `/proc` shows: it leaves out what this job may not touch.
    pub(super) fn set_gpus(&mut self, driver: &str, gpus: &[GpuIdentity]) {
        let gpus = gpus.iter().filter_map(|gpu| {
            Some(Gpu {
                pci: PciAddress::parse(&gpu.pci)?,
                uuid: (!gpu.uuid.is_empty()).then(|| gpu.uuid.clone()),
                model: gpu.model.clone(),
                minor: None,
            })
        });
        self.gpus = NodeGpus::new(gpus.collect());
        self.owners = self.gpus.owners(self.visible.as_deref(), self.workers);
        if let Ok(driver) = Driver::parse(driver) {
            self.incidents.set_driver(driver);
        }
    }

    /// Whether the GPU at this address may be the job's.
    pub(super) fn is_ours(&self, gpu: &str) -> bool {
        PciAddress::parse(gpu).is_some_and(|pci| self.owners.of(pci) != Owner::Other)
    }

    /// What earlier faults of the job's GPUs weigh: those of the one that has had most.
    pub(super) fn past_faults(&self, book: &FaultBook) -> u64 {
        let ours = self.gpus.all().iter();
        let ours = ours.filter(|gpu| self.owners.of(gpu.pci) != Owner::Other);
        let weights = ours.filter_map(|gpu| Some(book.of(gpu.uuid.as_ref()?)?.0));
        weights.max().unwrap_or(0)
    }

    /// The addresses of the GPUs that may be the job's; absent while no GPU is known.
    pub(super) fn our_gpus(&self) -> Option<Vec<String>> {
        let ours = self.gpus.all().iter().map(|gpu| gpu.pci);
        let ours = ours.filter(|pci| self.owners.of(*pci) != Owner::Other);
        let ours: Vec<String> = ours.map(|pci| pci.to_string()).collect();
        (!ours.is_empty()).then_some(ours)
    }

    /// The GPUs whose firmware does not answer: a call about one would hang.
    pub(super) fn unresponsive(&self) -> BTreeSet<PciAddress> {
        self.incidents.unresponsive()
    }

    /// Who holds memory of one of the job's GPUs though it is none of the job's workers, in words.
    pub(super) fn strangers(&self, gpu: &str, processes: &Processes) -> Vec<String> {
        let held = processes.iter().filter(|(_, bytes)| *bytes > 0);
        let strangers =
            held.filter(|(pid, _)| self.is_ours(gpu) && self.processes.is_stranger(*pid));
        strangers
            .map(|(pid, bytes)| {
                format!(
                    "GPU {gpu}: {} MiB are held by pid {pid}, which is none of this generation's workers; the next one \
                     may run out of GPU memory",
                    bytes >> 20
                )
            })
            .collect()
    }

    /// The log can be read.
    pub(super) fn log_opened(&mut self, path: PathBuf) {
        self.log = LogState::Open(path);
    }

    /// It cannot. Returns what to tell the user, if the node has anything that would be missed.
    pub(super) fn log_failed(
        &mut self,
        path: &Path,
        error: &dyn std::error::Error,
    ) -> Option<String> {
        let mut reason = error.to_string();
        let mut refused = false;
        let mut source = error.source();
        while let Some(inner) = source {
            refused |= inner
                .downcast_ref::<std::io::Error>()
                .is_some_and(|inner| inner.kind() == std::io::ErrorKind::PermissionDenied);
            reason = format!("{reason}: {inner}");
            source = inner.source();
        }
        self.log = LogState::Failed(reason.clone());
        let asked_for = path != Path::new("/dev/kmsg");
        let remedy = if refused {
            ". Have root run `steadfast health serve` on this node, run as root or with CAP_SYSLOG (in a container also \
             with the device: `--device /dev/kmsg --cap-add SYSLOG`), or give `--kernel-log FILE` a log that can be read"
        } else {
            ""
        };
        (asked_for || !self.gpus.is_empty()).then(|| {
            format!(
                "the kernel log is not watched: {reason}{remedy}. The job goes on; GPU errors (XIDs) and kills for lack \
                 of memory will not be named as causes"
            )
        })
    }

    /// Records were lost: what they said of the GPUs is unknown.
    pub(super) fn log_gap(&mut self, lost: Option<u64>) -> Consequences {
        self.gaps = self.gaps.saturating_add(lost.unwrap_or(1));
        Consequences {
            journal: Some(("kernel_log.gap", json!({ "lost": lost }))),
            ..Consequences::default()
        }
    }

    /// A program wrote to the log. Told once.
    pub(super) fn log_injected(&mut self, title: &str) -> Consequences {
        self.injected += 1;
        Consequences {
            journal: (self.injected == 1).then(|| {
                let fields = json!({ "event": title, "why": "a program wrote it, not the kernel" });
                ("kernel_log.ignored", fields)
            }),
            ..Consequences::default()
        }
    }

    /// What was wrong before the job began, if anything: told once, when the log has been read.
    pub(super) fn old_faults(&self) -> Vec<String> {
        self.incidents
            .faults()
            .filter(|(_, fault)| self.is_old(fault) && self.owner(fault) != Owner::Other)
            .map(|(_, fault)| {
                format!(
                    "note: before this job, the kernel log says {}: {}. If the GPU was not mended since, it will fail \
                     again. {}",
                    fault.event.title(),
                    fault.found.meaning,
                    fault.found.action.advice()
                )
            })
            .collect()
    }

    /// Takes in an event, and says what follows from it. `told` says that an earlier agent has told the user already.
    pub(super) fn take(
        &mut self,
        mut sighting: Sighting,
        told: bool,
        active: Option<u64>,
    ) -> Consequences {
        if sighting.event.uuid.is_none() {
            let pci = sighting.event.pci();
            sighting.event.uuid = pci.and_then(|pci| self.gpus.by_pci(pci)?.uuid.clone());
        }
        let Some(judged) = self.incidents.take(sighting) else {
            return Consequences::default();
        };
        self.processes.note(judged.event.pid());
        if self.is_old(&judged) {
            return Consequences::default();
        }
        let owner = self.owner(&judged);
        let mut follows = Consequences::default();
        if judged.is_news && !told {
            follows.journal = Some(("node.event", fields(&judged, owner)));
            let matters = judged.found.action > Action::FollowCause
                || judged.found.severity > Severity::Warning;
            follows.say = (matters && owner != Owner::Other).then(|| words(&judged, owner));
        }
        if let Some(pci) = judged.breaks_gpu()
            && owner != Owner::Other
        {
            follows.finding = self.tell(pci, &judged, owner, active);
        }
        follows
    }

    /// What the core has to hear about a GPU now. Without a generation that could be stopped for it, it is kept for the
    /// next one.
    fn tell(
        &mut self,
        pci: PciAddress,
        judged: &Judged,
        owner: Owner,
        active: Option<u64>,
    ) -> Option<Finding> {
        let mut finding = judged.finding(owner);
        finding.node.clone_from(&self.node);
        finding.wall_ms = clock::wall_ms_at(judged.at_ns);
        let Some(generation) = active else {
            // Once for each GPU: what came later only asks for more of the same.
            if !self.told.contains(&pci) {
                self.late.entry(pci).or_insert(finding);
            }
            return None;
        };
        self.told.insert(pci);
        finding.generation = generation;
        Some(finding)
    }

    /// The faults that came while no generation ran; the one that begins now cannot use these GPUs.
    pub(super) fn late_faults(&mut self, generation: u64) -> Vec<Finding> {
        let broken: BTreeSet<PciAddress> = self.incidents.faults().map(|(pci, _)| pci).collect();
        let late = std::mem::take(&mut self.late);
        let still = late.into_iter().filter(|(pci, _)| broken.contains(pci));
        still
            .map(|(pci, mut finding)| {
                self.told.insert(pci);
                finding.generation = generation;
                finding.monotonic_ns = clock::monotonic_ns();
                finding
            })
            .collect()
    }

    /// The incidents that are over, for the journal.
    pub(super) fn close_incidents(&mut self) -> Vec<Value> {
        let closed = self.incidents.close_by(clock::monotonic_ns());
        closed.iter().map(closed_fields).collect()
    }

    /// Adds to a finding about a worker's end what the node said about it.
    pub(super) fn explain(&self, finding: &mut Finding, record: &ExitRecord, started_ns: u64) {
        let pids = self.processes.of(record.generation, record.local_rank);
        let worker = WorkerTrace {
            local_rank: record.local_rank,
            pids: &pids,
            lived_ns: (started_ns, record.at_ns),
        };
        blame(finding, worker, &self.owners, self.incidents.seen());
    }

    /// For `steadfast status`: what is watched, and what is wrong.
    pub(super) fn status(&self) -> Vec<String> {
        let mut lines = vec![match &self.log {
            LogState::Off => "the kernel log is not watched (--kernel-log off)".to_owned(),
            LogState::Opening => "the kernel log is being opened".to_owned(),
            LogState::Open(path) => format!("the kernel log is watched ({})", path.display()),
            LogState::Failed(reason) => format!("the kernel log is not watched: {reason}"),
        }];
        if self.gaps > 0 {
            lines.push(format!(
                "{} records of the kernel log were overwritten before they could be read",
                self.gaps
            ));
        }
        for (_, fault) in self.incidents.faults() {
            let owner = self.owner(fault);
            if owner != Owner::Other {
                lines.push(words(fault, owner));
            }
        }
        lines
    }

    fn is_old(&self, judged: &Judged) -> bool {
        judged.at_ns < self.job_started_ns
    }

    /// Whose the device is that the event is about. The address tells; the process can only fill in what it leaves open.
    fn owner(&self, judged: &Judged) -> Owner {
        let by_address = match judged.event.pci() {
            // A switch connects all GPUs of the node.
            Some(_) if judged.is_about_switch() && self.owners.any() => Owner::Job,
            Some(_) if judged.is_about_switch() => Owner::Other,
            Some(pci) => self.owners.of(pci),
            None => Owner::Unknown,
        };
        match by_address {
            Owner::Unknown | Owner::Job => self
                .processes
                .worker_of(judged.event.pid())
                .map_or(by_address, Owner::Worker),
            certain => certain,
        }
    }
}

#[cfg(test)]
mod tests;
