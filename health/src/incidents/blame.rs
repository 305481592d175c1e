// SPDX-License-Identifier: Apache-2.0
//! What the node reported about a worker that ended: an XID on its GPU, the out-of-memory killer, a crash in NCCL.
//!
//! Errors that the program caused condemn nobody: all that they do is say why the worker ended.

use std::time::Duration;

use steadfast_proto::v1::{FaultClass, FaultRole, Finding};

use super::Judged;
use crate::gpus::{GpuOwners, Owner};
use crate::kernel_log::{SystemKind, What};
use crate::xid::{Action, rank_in_incident};

/// How long before a worker's end an error of its GPU can have brought it about: a collective that waits for a lost peer
/// gives up after half an hour as a rule.
const MEMORY: Duration = Duration::from_mins(35);
/// How much later than the worker's end the report of its cause can come.
const LATENESS: Duration = Duration::from_secs(2);
/// How long before a kill the out-of-memory killer can have announced it.
const KILL: Duration = Duration::from_secs(30);
/// The most events that are quoted.
const QUOTED: usize = 8;

/// A worker that ended.
#[derive(Clone, Copy, Debug)]
pub struct WorkerTrace<'a> {
    /// Its local rank.
    pub local_rank: u32,
    /// Its process, and all that belonged to it, by the numbers that the kernel log uses; empty where those are others.
    pub pids: &'a [u32],
    /// When it was started and when it had ended, on the monotonic clock.
    pub lived_ns: (u64, u64),
}

/// Adds to the finding about a worker's end what the node reported about it. `seen` is in the order of time. Returns
/// whether there was anything.
pub fn blame<'a>(
    finding: &mut Finding,
    worker: WorkerTrace<'_>,
    owners: &GpuOwners,
    seen: impl Iterator<Item = &'a Judged>,
) -> bool {
    let killed = finding.signal == Some(9) || finding.exit_code == Some(137);
    let told: Vec<&Judged> = seen
        .filter(|judged| concerns(judged, worker, owners, killed))
        .collect();
    let Some(cause) = told
        .iter()
        .min_by_key(|judged| (rank_in_incident(&judged.event), judged.at_ns))
    else {
        return false;
    };
    for judged in told.iter().take(QUOTED) {
        finding.evidence.push(format!(
            "{}: {}",
            judged.event.title(),
            judged.event.message
        ));
    }
    let title = cause.event.title();
    finding.summary = format!("{}; {title}: {}", finding.summary, cause.found.meaning);
    let companion = rank_in_incident(&cause.event) >= 2;
    if companion {
        // The GPU's channels were taken down because the process had already failed.
        return true;
    }
    let class = cause.fault_class();
    if class != FaultClass::Unknown {
        finding.class = class.into();
    }
    finding.role = FaultRole::Cause.into();
    finding.fingerprint = cause.fingerprint();
    finding.device = cause.event.uuid.clone().unwrap_or_default();
    if cause.at_ns != 0 && cause.at_ns < finding.monotonic_ns {
        let earlier_ms = (finding.monotonic_ns - cause.at_ns) / 1_000_000;
        finding.monotonic_ns = cause.at_ns;
        finding.wall_ms -= i64::try_from(earlier_ms).unwrap_or(0);
    }
    true
}

/// Whether an event can have to do with a worker's end.
fn concerns(
    judged: &Judged,
    worker: WorkerTrace<'_>,
    owners: &GpuOwners,
    was_killed: bool,
) -> bool {
    let (started, ended) = worker.lived_ns;
    let after_start = judged.at_ns >= started;
    let in_time = judged.at_ns <= ended.saturating_add(nanos(LATENESS));
    let not_older = |than: Duration| judged.at_ns.saturating_add(nanos(than)) >= ended;
    let its_process = judged
        .event
        .pid()
        .is_some_and(|pid| worker.pids.contains(&pid));
    match &judged.event.what {
        What::Xid(_) | What::Driver(_) => {
            let its_gpu = judged
                .event
                .pci()
                .is_some_and(|pci| owners.of(pci) == Owner::Worker(worker.local_rank));
            let asks_for_something = judged.found.action > Action::Report;
            // A GPU that was broken before the worker began is its problem as well.
            let broken = judged.breaks_gpu().is_some() && its_gpu;
            let its_own = after_start && not_older(MEMORY) && (its_gpu || its_process);
            asks_for_something && in_time && (broken || its_own)
        }
        What::System(event) => match event.kind {
            SystemKind::OutOfMemory | SystemKind::GroupOutOfMemory => {
                was_killed && its_process && in_time && not_older(KILL)
            }
            SystemKind::CommunicationCrash => its_process && in_time && not_older(KILL),
            _ => false,
        },
        What::Sxid(_) | What::Malformed(_) => false,
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
