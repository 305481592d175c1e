// SPDX-License-Identifier: Apache-2.0
//! What the driver says of the GPUs. It is asked once, in a process of its own, for all checks.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use steadfast_health::nvml::{Absence, GpuIdentity, GpuSnapshot, SnapshotLine};

use crate::node::{Node, Nvml, is_meant};
use crate::outside::{Ended, How, Work};

/// Everything that was said until the end, or until there was no more time.
#[derive(Clone, Debug, Default)]
pub(crate) struct GpuView {
    /// Why there is nothing, or not everything.
    pub(crate) failure: Option<Failure>,
    /// Version of the driver.
    pub(crate) driver: Option<String>,
    /// Version of the library.
    pub(crate) library: Option<String>,
    /// GPUs that the library counts.
    pub(crate) count: Option<u32>,
    /// By the library's number.
    pub(crate) gpus: BTreeMap<u32, GpuAnswer>,
    /// The call about the library, and not about a GPU, that was made last.
    last_call: Option<String>,
}

/// What one GPU has said.
#[derive(Clone, Debug, Default)]
pub(crate) struct GpuAnswer {
    pub(crate) identity: Option<GpuIdentity>,
    pub(crate) snapshot: Option<Box<GpuSnapshot>>,
    /// Why it cannot be asked, and whether it is called lost.
    pub(crate) silent: Option<(String, bool)>,
    last_call: Option<String>,
}

/// Why not everything is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The library is turned off.
    Off,
    /// The library or the driver is not there, or is of no use.
    Absent(Absence, String),
    /// A call has not returned within this time.
    Hangs(Vec<HangingCall>, Duration),
    /// One of an earlier run still hangs.
    Earlier(Option<i32>, Duration),
    /// The asking itself failed.
    Broken(String),
}

/// A call that does not return.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HangingCall {
    /// The GPU; absent for a call about the library.
    pub(crate) gpu: Option<String>,
    /// Name of the function.
    pub(crate) name: String,
}

impl GpuView {
    /// From what the process has said.
    pub(crate) fn new(ended: &Ended, patience: Duration) -> Self {
        let mut view = Self::default();
        for line in ended.stdout.split(|byte| *byte == b'\n') {
            // The last line of a process that hangs may be half of one.
            if let Ok(line) = serde_json::from_slice(line) {
                view.take_in(line);
            }
        }
        let said = String::from_utf8_lossy(&ended.stderr).trim().to_owned();
        let failure = match &ended.how {
            How::Exited(0) => None,
            How::Exited(code) => Some(Failure::Broken(format!(
                "the process that asks the driver ended with code {code}: {said}"
            ))),
            How::Killed(signal) => Some(Failure::Broken(format!(
                "the process that asks the driver was ended by signal {signal}"
            ))),
            How::NotStarted(why) => Some(Failure::Broken(format!(
                "the process that asks the driver could not be started: {why}"
            ))),
            How::TimedOut { .. } => Some(Failure::Hangs(view.hanging(), patience)),
            How::Earlier { pid, age } => Some(Failure::Earlier(*pid, *age)),
        };
        view.failure = view.failure.or(failure);
        view
    }

    /// Whether an index, a UUID or a PCI address means a GPU that has said who it is.
    pub(crate) fn has(&self, wanted: &str) -> bool {
        let mut known = self.gpus.values().filter_map(|gpu| gpu.identity.as_ref());
        known.any(|gpu| is_meant(gpu, wanted))
    }

    fn take_in(&mut self, line: SnapshotLine) {
        match line {
            SnapshotLine::Opened {
                driver,
                library,
                count,
            } => {
                self.driver = Some(driver);
                self.library = Some(library).filter(|library| !library.is_empty());
                self.count = Some(count);
                self.last_call = None;
            }
            SnapshotLine::Absent { absence, reason } => {
                self.failure = Some(Failure::Absent(absence, reason));
            }
            SnapshotLine::Call { gpu: None, name } => self.last_call = Some(name),
            SnapshotLine::Call {
                gpu: Some(gpu),
                name,
            } => self.gpu(gpu).last_call = Some(name),
            SnapshotLine::Found(identity) => {
                let index = identity.index;
                self.gpu(index).identity = Some(identity);
            }
            SnapshotLine::Silent { gpu, lost, reason } => {
                self.gpu(gpu).silent = Some((reason, lost));
            }
            SnapshotLine::Gpu { gpu, snapshot } => self.gpu(gpu).snapshot = Some(snapshot),
        }
    }

    fn gpu(&mut self, index: u32) -> &mut GpuAnswer {
        self.gpus.entry(index).or_default()
    }

    fn hanging(&self) -> Vec<HangingCall> {
        let of_gpus = self.gpus.iter().filter_map(|(index, answer)| {
            let waiting = answer.snapshot.is_none() && answer.silent.is_none();
            let name = answer.last_call.clone().filter(|_| waiting)?;
            let gpu = Some(answer.label(*index));
            Some(HangingCall { gpu, name })
        });
        let of_library = self.last_call.iter().map(|name| HangingCall {
            gpu: None,
            name: name.clone(),
        });
        of_library.chain(of_gpus).collect()
    }
}

impl GpuAnswer {
    /// What people call it.
    pub(crate) fn label(&self, index: u32) -> String {
        match &self.identity {
            Some(identity) => format!("GPU {index} ({})", identity.pci),
            None => format!("GPU {index}"),
        }
    }
}

/// Where checks get it from.
#[derive(Debug, Default)]
pub(crate) struct GpuSource {
    view: Mutex<Option<Arc<GpuView>>>,
    told: Condvar,
}

impl GpuSource {
    /// Asks, and tells all who wait. `patience` is how long that may take.
    pub(crate) fn ask(&self, node: &Node, patience: Duration) {
        let view = match &node.nvml {
            Nvml::Off => GpuView {
                failure: Some(Failure::Off),
                ..GpuView::default()
            },
            nvml => {
                let library = match nvml {
                    Nvml::At(path) => Some(path.clone()),
                    Nvml::Installed | Nvml::Off => None,
                };
                let lock = node.state.as_ref().and_then(|state| state.parent());
                let work = Work::Nvml {
                    library,
                    lock: lock.map(|directory| directory.join("nvml.lock")),
                };
                let ended = node.outside.run(&work, Instant::now() + patience);
                GpuView::new(&ended, patience)
            }
        };
        *self.view.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(view));
        self.told.notify_all();
    }

    /// Waits for the answer, and no longer than until then.
    pub(crate) fn wait(&self, until: Instant) -> Arc<GpuView> {
        let view = self.view.lock().unwrap_or_else(PoisonError::into_inner);
        let left = until.saturating_duration_since(Instant::now());
        let waited = self
            .told
            .wait_timeout_while(view, left, |view| view.is_none());
        let (view, _) = waited.unwrap_or_else(PoisonError::into_inner);
        view.clone().unwrap_or_else(|| {
            Arc::new(GpuView {
                failure: Some(Failure::Broken(
                    "the driver was asked for longer than this check may take".to_owned(),
                )),
                ..GpuView::default()
            })
        })
    }
}
