// SPDX-License-Identifier: Apache-2.0
//! One fault and what follows, as seen from outside.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use rustix::process::{PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use steadfast_sim::Random;

use super::{Fault, Options};
use crate::bench::job::{Job, Record};
use crate::bench::launch::pid_of;
use crate::bench::waiting::{now_ns, pause, poll_for, wait_for};
use crate::failure::Failure;

/// Steps that a generation makes before the next fault.
const SETTLED_STEPS: usize = 5;
/// The fault comes at a random moment of this long; no launcher that is measured here polls more
/// seldom by default.
const PHASE_MS: u64 = 1_000;
/// A launcher that takes longer is not measured but broken.
const RECOVER_WITHIN: Duration = Duration::from_mins(2);

/// What was measured. Nanoseconds since the fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Episode {
    /// The restart count of the new workers.
    pub(super) restart: u64,
    pub(super) first_worker: u64,
    pub(super) last_worker: u64,
    pub(super) old_gone: u64,
    pub(super) first_step: u64,
}

/// When things happened, on the clock.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Comeback {
    first_worker: u64,
    last_worker: u64,
    first_step: u64,
}

impl Episode {
    /// Waits until the generation has settled, brings one of its workers down, and watches the job
    /// come back.
    pub(super) fn observe(
        job: &mut Job,
        options: &Options,
        restart: u64,
        random: &mut Random,
    ) -> Result<Self, Failure> {
        let pids = wait_for("the workers to step", RECOVER_WITHIN, || {
            job.program.must_run()?;
            Ok(settled(job.records()?, restart, options.workers))
        })?;
        let old = pids
            .values()
            .map(|pid| open(*pid))
            .collect::<Result<Vec<_>, _>>()?;
        pause(Duration::from_micros(random.below(PHASE_MS * 1_000)))?;
        let victim = usize::try_from(random.below(old.len() as u64)).unwrap_or(0);
        let signal = match options.fault {
            Fault::Kill => Signal::KILL,
            Fault::Exit => Signal::USR1,
        };
        let struck = now_ns();
        pidfd_send_signal(&old[victim], signal).map_err(|error| {
            Failure::Unexpected(format!("a worker could not be brought down: {error}"))
        })?;
        let gone = wait_until_gone(job, &old)?;
        let back = wait_for("the job to come back", RECOVER_WITHIN, || {
            job.program.must_run()?;
            Ok(comeback(job.records()?, restart + 1, options.workers))
        })?;
        let fault = match options.fault {
            Fault::Kill => struck,
            Fault::Exit => exit_time(job.records()?, restart).unwrap_or(struck),
        };
        Ok(Self {
            restart: restart + 1,
            first_worker: back.first_worker.saturating_sub(fault),
            last_worker: back.last_worker.saturating_sub(fault),
            old_gone: gone.saturating_sub(fault),
            first_step: back.first_step.saturating_sub(fault),
        })
    }
}

fn open(pid: u32) -> Result<OwnedFd, Failure> {
    let process =
        pid_of(pid).ok_or_else(|| Failure::Unexpected(format!("{pid} is no process id")))?;
    pidfd_open(process, PidfdFlags::empty())
        .map_err(|error| Failure::Unexpected(format!("worker {pid} cannot be watched: {error}")))
}

/// The time at which the last of these processes is gone.
fn wait_until_gone(job: &mut Job, processes: &[OwnedFd]) -> Result<u64, Failure> {
    let mut left: Vec<&OwnedFd> = processes.iter().collect();
    wait_for("the old workers to be gone", RECOVER_WITHIN, || {
        job.program.must_run()?;
        let mut polled: Vec<_> = left
            .iter()
            .map(|fd| PollFd::new(*fd, PollFlags::IN))
            .collect();
        if poll_for(&mut polled, Duration::from_millis(100)) {
            let still: Vec<_> = polled.iter().map(|fd| fd.revents().is_empty()).collect();
            let mut still = still.into_iter();
            left.retain(|_| still.next().unwrap_or(true));
        }
        Ok(left.is_empty().then(now_ns))
    })
}

/// The process ids by rank, once all ranks of that restart have started and made some steps.
fn settled(records: &[Record], restart: u64, workers: u32) -> Option<BTreeMap<u32, u32>> {
    let of = || records.iter().filter(|record| record.restart == restart);
    let pids: BTreeMap<_, _> = of()
        .filter(|record| record.event == "start")
        .map(|record| (record.rank, record.pid))
        .collect();
    let steps = of().filter(|record| record.event == "step").count();
    (pids.len() as u64 == u64::from(workers) && steps >= SETTLED_STEPS).then_some(pids)
}

/// When the workers of that restart started and stepped, once they have.
fn comeback(records: &[Record], restart: u64, workers: u32) -> Option<Comeback> {
    let times = |event: &'static str| {
        records
            .iter()
            .filter(move |record| record.restart == restart && record.event == event)
            .map(|record| record.monotonic_ns)
    };
    if (times("start").count() as u64) < u64::from(workers) {
        return None;
    }
    Some(Comeback {
        first_worker: times("start").min()?,
        last_worker: times("start").max()?,
        first_step: times("step").min()?,
    })
}

/// When a worker of that restart exited because it was asked to.
fn exit_time(records: &[Record], restart: u64) -> Option<u64> {
    let fault = |record: &&Record| record.restart == restart && record.event == "fault";
    records.iter().find(fault).map(|record| record.monotonic_ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(event: &str, restart: u64, rank: u32, monotonic_ns: u64) -> Record {
        Record {
            event: event.to_owned(),
            restart,
            rank,
            pid: 100 + rank,
            monotonic_ns,
            took_ns: None,
        }
    }

    #[test]
    fn a_comeback_needs_every_rank_and_a_step() {
        let mut records = vec![
            record("start", 0, 0, 1),
            record("start", 0, 1, 2),
            record("step", 0, 0, 3),
            record("fault", 0, 1, 4),
            record("start", 1, 1, 20),
            record("step", 1, 0, 40),
        ];
        assert_eq!(comeback(&records, 1, 2), None);
        records.push(record("start", 1, 0, 30));
        let back = comeback(&records, 1, 2).unwrap();
        assert_eq!(
            (back.first_worker, back.last_worker, back.first_step),
            (20, 30, 40)
        );
        assert_eq!(comeback(&records, 2, 2), None);
        assert_eq!(exit_time(&records, 0), Some(4));
    }

    #[test]
    fn a_generation_has_settled_after_some_steps_of_all_ranks() {
        let mut records = vec![record("start", 3, 0, 1), record("start", 3, 1, 2)];
        records.extend((0..SETTLED_STEPS as u64).map(|step| record("step", 3, 0, 10 + step)));
        assert_eq!(settled(&records, 3, 2).unwrap()[&1], 101);
        assert_eq!(settled(&records, 3, 3), None);
        assert_eq!(settled(&records[..3], 3, 2), None);
    }
}
