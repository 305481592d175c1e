// SPDX-License-Identifier: Apache-2.0
//! What the kernel log has said since the machine started: which GPUs are out of order, and what happened to a job.

use std::collections::BTreeMap;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use steadfast_health::gpus::NodeGpus;
use steadfast_health::incidents::{Incidents, Judged, Reporter, Sighting};
use steadfast_health::kernel_log::{
    FollowError, Follower, KernelLog, Line, Next, PciAddress, Stamp,
};
use steadfast_health::xid::{Action, Judge, Policy, PolicyError};

use super::decision::{Found, Problem};
use super::site::{Site, Trust};
use crate::clock;

/// What keys of problems that the kernel log tells of begin with.
pub(crate) const KEY: &str = "kernel-log:";
/// How long reading it may take. A whole buffer of the kernel takes some hundredths of a second.
const PATIENCE: Duration = Duration::from_secs(5);
/// The most events of a job that are told.
const MOST_EVENTS: usize = 100;

/// The log, read once.
#[derive(Debug)]
pub(crate) struct KernelFaults {
    incidents: Incidents,
    /// When each device that is out of order was last said to be.
    newest: BTreeMap<PciAddress, u64>,
    events: Vec<Judged>,
    gpus: NodeGpus,
}

/// Why nothing is known from the log.
#[derive(Debug, thiserror::Error)]
pub(crate) enum KernelFaultsError {
    /// The site does not want it.
    #[error("the kernel log is turned off")]
    Off,
    /// The log cannot be read.
    #[error(transparent)]
    Follow(#[from] FollowError),
    /// The policy cannot be used.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// A pipe would be emptied by looking into it.
    #[error("{} is a pipe: the hooks need a log that can be read more than once", .0.display())]
    Pipe(PathBuf),
    /// It does not end.
    #[error("reading {} took longer than {} s", path.display(), PATIENCE.as_secs())]
    TooLong {
        /// The log.
        path: PathBuf,
    },
}

impl KernelFaults {
    /// Reads all that is there.
    pub(crate) fn read(site: &Site) -> Result<KernelFaults, KernelFaultsError> {
        let path = match site.kernel_log.as_str() {
            "off" => return Err(KernelFaultsError::Off),
            "auto" => Path::new("/dev/kmsg"),
            path => Path::new(path),
        };
        if std::fs::metadata(path).is_ok_and(|found| found.file_type().is_fifo()) {
            return Err(KernelFaultsError::Pipe(path.to_owned()));
        }
        let policy = match &site.xid_policy {
            Some(file) => Policy::read(file)?,
            None => Policy::default(),
        };
        let gpus = NodeGpus::read(Path::new("/"));
        let mut faults = KernelFaults {
            incidents: Incidents::new(Judge::new(policy), gpus.driver),
            newest: BTreeMap::new(),
            events: Vec::new(),
            gpus,
        };
        let mut log = KernelLog::new();
        let mut follower = Follower::open(path, clock::monotonic_ns)?;
        let deadline = clock::monotonic_ns() + nanos(PATIENCE);
        loop {
            match follower.next(Duration::ZERO)? {
                Next::Line(line) => faults.take(&mut log, &line, site.kernel_log_trust),
                Next::Gap { .. } => {}
                Next::Nothing => return Ok(faults),
            }
            if clock::monotonic_ns() > deadline {
                let path = path.to_owned();
                return Err(KernelFaultsError::TooLong { path });
            }
        }
    }

    fn take(&mut self, log: &mut KernelLog, line: &Line, trust: Trust) {
        let Some(event) = log.push(&line.bytes) else {
            return;
        };
        if event.header.injected() && trust == Trust::Kernel {
            return;
        }
        let stamp = match event.header.stamp {
            Some(Stamp::SinceBoot(time)) => Some(time),
            _ => None,
        };
        let judged = self.incidents.take(Sighting {
            at_ns: line.logged_ns(stamp),
            event,
            reporter: Reporter::KernelLog,
        });
        let Some(judged) = judged else { return };
        if let Some(pci) = judged.breaks_gpu() {
            let newest = self.newest.entry(pci).or_default();
            *newest = judged.at_ns.max(*newest);
        }
        if judged.is_news {
            self.events.push(judged);
        }
    }

    /// The devices that are out of order, as problems. With `gpus` only what those GPUs are part of: `None` is all.
    pub(crate) fn problems(&self, gpus: Option<&[u32]>, found: &mut Found) {
        for (pci, fault) in self.incidents.faults() {
            if !self.concerns(fault, gpus) {
                continue;
            }
            let text = format!("{}: {}", fault.event.title(), fault.found.meaning);
            let newest = self.newest.get(&pci).copied().unwrap_or(fault.at_ns);
            found
                .problems
                .insert(format!("{KEY}{pci}"), Problem { text, newest });
        }
    }

    /// What happened to these GPUs, and to the node, since an instant; what matters to nobody is left out.
    pub(crate) fn since(&self, began_ns: u64, gpus: Option<&[u32]>) -> Vec<String> {
        let told = self.events.iter().filter(|judged| {
            judged.at_ns >= began_ns
                && judged.found.action > Action::Ignore
                && self.concerns(judged, gpus)
        });
        told.take(MOST_EVENTS)
            .map(|judged| {
                let process = judged
                    .event
                    .process()
                    .map_or_else(String::new, |process| format!(", {process}"));
                format!(
                    "{}{process}: {}. {}",
                    judged.event.title(),
                    judged.found.meaning,
                    judged.found.action.advice()
                )
            })
            .collect()
    }

    /// Whether it is about one of these GPUs, about all, or about one that nobody can place.
    fn concerns(&self, judged: &Judged, gpus: Option<&[u32]>) -> bool {
        let (Some(numbers), Some(pci)) = (gpus, judged.event.pci()) else {
            return true;
        };
        let minor = self.gpus.by_pci(pci).and_then(|gpu| gpu.minor);
        judged.is_about_switch() || minor.is_none_or(|minor| numbers.contains(&minor))
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOST: &str = "[   10.000000] NVRM: Xid (PCI:0000:18:00): 79, pid=1, name=python, GPU has fallen off the bus.\n";
    const MMU: &str = "[   20.000000] NVRM: Xid (PCI:0000:2a:00): 31, pid=7, name=python, Ch 00000003, MMU Fault: ENGINE GRAPHICS\n";
    const CLEARED: &str = "[   30.000000] NVRM: Xid (PCI:0000:18:00): 154, GPU recovery action changed from 0x2 (Node Reboot Required) to 0x0 (None)\n";

    fn read(text: &str) -> Result<KernelFaults, KernelFaultsError> {
        let directory = tempfile::tempdir().unwrap();
        let log = directory.path().join("kern.log");
        std::fs::write(&log, text).unwrap();
        KernelFaults::read(&Site {
            kernel_log: log.to_str().unwrap().to_owned(),
            ..Site::default()
        })
    }

    fn found(faults: &KernelFaults) -> Found {
        let mut found = Found::default();
        faults.problems(None, &mut found);
        found
    }

    #[test]
    fn a_lost_gpu_is_a_problem_until_it_is_mended() {
        let faults = read(&format!("{LOST}{MMU}")).unwrap();
        let problems = found(&faults).problems;
        assert_eq!(
            problems.len(),
            1,
            "what the program caused is none: {problems:?}"
        );
        let (key, problem) = problems.first_key_value().unwrap();
        assert_eq!(key, "kernel-log:0000:18:00");
        assert!(
            problem.text.starts_with("XID 79 at 0000:18:00: "),
            "{}",
            problem.text
        );
        assert_eq!(problem.newest, 10_000_000_000);
        let later = LOST.replace("10.0", "15.0");
        let problems = found(&read(&format!("{LOST}{later}")).unwrap()).problems;
        assert_eq!(problems["kernel-log:0000:18:00"].newest, 15_000_000_000);
        assert!(
            found(&read(&format!("{LOST}{CLEARED}")).unwrap())
                .problems
                .is_empty()
        );
    }

    #[test]
    fn only_what_a_job_saw_is_told() {
        let faults = read(&format!("{LOST}{MMU}")).unwrap();
        assert_eq!(faults.since(0, None).len(), 2);
        let told = faults.since(15_000_000_000, None);
        assert_eq!(told.len(), 1);
        assert!(
            told[0].starts_with("XID 31 at 0000:2a:00, pid 7 (python): "),
            "{told:?}"
        );
        assert!(faults.since(25_000_000_000, None).is_empty());
    }

    #[test]
    fn what_programs_wrote_does_not_count() {
        let injected = LOST.replace("[   10.000000] ", "<12>[   10.000000] ");
        assert!(found(&read(&injected).unwrap()).problems.is_empty());
    }

    #[test]
    fn a_log_that_cannot_be_read_is_an_error_with_its_name() {
        let site = |log: &str| Site {
            kernel_log: log.to_owned(),
            ..Site::default()
        };
        let error = KernelFaults::read(&site("/nowhere/kmsg")).unwrap_err();
        assert_eq!(error.to_string(), "cannot open /nowhere/kmsg");
        assert!(matches!(
            KernelFaults::read(&site("off")),
            Err(KernelFaultsError::Off)
        ));
    }
}
