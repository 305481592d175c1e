// SPDX-License-Identifier: Apache-2.0
//! Workers that are about to be gone: seen before they are reaped, which takes seconds for a large process.

use std::collections::BTreeMap;
use std::path::Path;

use steadfast_core::kinds;
use steadfast_health::{ExitWatch, Vitality};
use steadfast_proto::v1::{FaultClass, Finding};

use super::exits::signal_name;
use crate::clock;
use crate::keeper::protocol::WorkerView;
use crate::settings::{CoreSize, Settings};

/// Watches the workers of the newest generation.
#[derive(Debug, Default)]
pub(super) struct DyingWatch {
    watched: BTreeMap<u32, Watched>,
    generation: u64,
}

#[derive(Debug)]
struct Watched {
    watch: ExitWatch,
    pid: u32,
    rank: u32,
}

/// A worker that was seen dying.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sign {
    pub(super) generation: u64,
    pub(super) rank: u32,
    pub(super) local_rank: u32,
    pub(super) pid: u32,
    pub(super) dumps_core: bool,
    /// How it will be said to have ended, in the form of `waitpid`, if the kernel tells already.
    pub(super) status: Option<i32>,
}

impl DyingWatch {
    /// Begins to watch a worker that lives.
    pub(super) fn watch(&mut self, settings: &Settings, worker: &WorkerView) {
        if worker.generation > self.generation {
            self.generation = worker.generation;
            self.watched.clear();
        }
        let Ok(pid) = u32::try_from(worker.pid) else {
            return;
        };
        if worker.generation < self.generation || worker.exit.is_some() || pid == 0 {
            return;
        }
        let core_dumps = settings.core_size != CoreSize::Limit(0);
        // One that is gone by now will be reported by the keeper.
        if let Ok(watch) = ExitWatch::open(Path::new("/proc"), pid, core_dumps) {
            self.watched.insert(
                worker.local_rank,
                Watched {
                    watch,
                    pid,
                    rank: worker.rank,
                },
            );
        }
    }

    /// The worker was reaped: there is nothing to watch any more.
    pub(super) fn forget(&mut self, generation: u64, local_rank: u32) {
        if generation == self.generation {
            self.watched.remove(&local_rank);
        }
    }

    /// Whether there is anything to look at.
    pub(super) fn has_workers(&self) -> bool {
        !self.watched.is_empty()
    }

    /// Looks at every worker. Each is reported once.
    pub(super) fn look(&mut self) -> Vec<Sign> {
        let generation = self.generation;
        let mut signs = Vec::new();
        self.watched.retain(|&local_rank, watched| {
            let dumps_core = match watched.watch.poll() {
                Vitality::Alive => return true,
                Vitality::Gone => return false,
                Vitality::Dying => false,
                Vitality::DumpingCore => true,
            };
            let status = watched.watch.exit_status();
            let (rank, pid) = (watched.rank, watched.pid);
            signs.push(Sign {
                generation,
                rank,
                local_rank,
                pid,
                dumps_core,
                status,
            });
            false
        });
        signs
    }
}

impl Sign {
    /// The finding that the core acts on: at once if it says that the worker did not end well.
    pub(super) fn finding(&self, settings: &Settings) -> Finding {
        let now = clock::monotonic_ns();
        let signal = self
            .status
            .map(|status| status & 0x7f)
            .filter(|&signal| signal != 0);
        let exit_code = self
            .status
            .filter(|_| signal.is_none())
            .map(|status| (status >> 8) & 0xff);
        let how = match (signal, exit_code) {
            (Some(signal), _) => format!("killed by {}", signal_name(signal)),
            (None, Some(code)) => format!("exiting with code {code}"),
            (None, None) => "exiting".to_owned(),
        };
        let what = if self.dumps_core {
            "is writing a core dump"
        } else {
            "is being taken down by the kernel"
        };
        Finding {
            kind: kinds::WORKER_DYING.to_owned(),
            class: FaultClass::Unknown.into(),
            generation: self.generation,
            node: settings.node.clone(),
            local_rank: Some(self.local_rank),
            rank: Some(self.rank),
            monotonic_ns: now,
            wall_ms: clock::wall_ms(),
            exit_code,
            signal,
            summary: format!("{what} ({how})"),
            pid: self.pid,
            ..Finding::default()
        }
    }
}
