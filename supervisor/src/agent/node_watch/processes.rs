// SPDX-License-Identifier: Apache-2.0
//! The processes of each worker, by the numbers that the kernel log and the driver use.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use steadfast_process::tree::Process;

use crate::keeper::protocol::WorkerView;

/// The first namespace of process ids has this number in every kernel (`PROC_PID_INIT_INO` in `include/linux/proc_ns.h`).
const FIRST_NAMESPACE: &str = "pid:[4026531836]";
/// Processes of a worker that are remembered, for errors that name one.
const MOST_PIDS: usize = 1024;

/// The processes of the newest generation.
#[derive(Debug)]
pub(super) struct WorkerProcesses {
    /// Whether the kernel log's process ids are those that we see: in a container they are not.
    same_numbers: bool,
    generation: u64,
    /// By local rank.
    pids: BTreeMap<u32, BTreeSet<u32>>,
}

impl WorkerProcesses {
    pub(super) fn new() -> Self {
        let namespace = std::fs::read_link("/proc/self/ns/pid").unwrap_or_default();
        Self::with_numbers(namespace == Path::new(FIRST_NAMESPACE))
    }

    /// `same_numbers` says whether the kernel log's process ids are those that we see.
    pub(super) fn with_numbers(same_numbers: bool) -> Self {
        Self {
            same_numbers,
            generation: 0,
            pids: BTreeMap::new(),
        }
    }

    /// Takes in a worker that was started.
    pub(super) fn add_worker(&mut self, worker: &WorkerView) {
        if worker.generation > self.generation {
            self.generation = worker.generation;
            self.pids.clear();
        }
        if let Ok(pid) = u32::try_from(worker.pid)
            && worker.generation == self.generation
            && pid != 0
        {
            self.pids.entry(worker.local_rank).or_default().insert(pid);
        }
    }

    /// A process that an event names may be a worker's, as a data loader is: while it lives, its session tells.
    pub(super) fn note(&mut self, pid: Option<u32>) {
        let Some(pid) = pid.filter(|_| self.same_numbers) else {
            return;
        };
        let process = i32::try_from(pid).ok().and_then(Process::read);
        let session = process.and_then(|process| u32::try_from(process.session).ok());
        let Some(session) = session else { return };
        for pids in self.pids.values_mut() {
            if pids.contains(&session) && pids.len() < MOST_PIDS {
                pids.insert(pid);
            }
        }
    }

    /// The local rank of the worker that the process belongs to.
    pub(super) fn worker_of(&self, pid: Option<u32>) -> Option<u32> {
        let pid = pid.filter(|_| self.same_numbers)?;
        let mut workers = self.pids.iter();
        workers
            .find(|(_, pids)| pids.contains(&pid))
            .map(|(rank, _)| *rank)
    }

    /// The processes of a worker, as far as they are known.
    pub(super) fn of(&self, generation: u64, local_rank: u32) -> Vec<u32> {
        let pids = self.pids.get(&local_rank);
        pids.filter(|_| self.same_numbers && generation == self.generation)
            .map(|pids| pids.iter().copied().collect())
            .unwrap_or_default()
    }

    /// Whether the process lives and is none of a worker's.
    pub(super) fn is_stranger(&self, pid: u32) -> bool {
        // The driver names processes for a moment longer than they exist.
        let process = i32::try_from(pid).ok().and_then(Process::read);
        let process = process.filter(|process| self.same_numbers && !process.is_dead());
        let ours = |pid: i32| self.worker_of(u32::try_from(pid).ok()).is_some();
        process.is_some_and(|process| !ours(process.pid) && !ours(process.session))
    }
}
