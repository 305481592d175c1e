// SPDX-License-Identifier: Apache-2.0
//! What the keeper must know to hold the fence, and what this node's steps are worth as a witness.

use std::time::Duration;

use steadfast_core::{Generation as CoreGeneration, Instant, LeaseId, MemberEvent, WitnessReport};
use steadfast_health::Lockstep;

use super::generation::Generation;
use crate::keeper::protocol::{Progress, Request};
use crate::settings::Witness;

/// The keeper hears of new steps no more often than that.
const TELL_EVERY_NS: u64 = 100_000_000;

/// The fence as the agent sees it.
#[derive(Debug)]
pub(super) struct Fencing {
    witness: Witness,
    lease: Option<Lease>,
    /// When the keeper was told last, and of which step's time.
    told: (u64, u64),
    /// What the decision core has heard of the steps.
    reported: (u64, Option<WitnessReport>),
    /// The last two looks at the output: what is read now was not there yet at the one before the last.
    looks: (u64, u64),
}

#[derive(Debug, Clone, Copy)]
struct Lease {
    until: Instant,
    tenure: LeaseId,
    generation: CoreGeneration,
    window: Duration,
}

impl Fencing {
    pub(super) fn new(witness: Witness) -> Fencing {
        Fencing {
            witness,
            lease: None,
            told: (0, 0),
            reported: (0, None),
            looks: (0, 0),
        }
    }

    /// This task has come round: everything that there was to read has been read.
    pub(super) fn look(&mut self, now_ns: u64) {
        self.looks = (self.looks.1, now_ns);
    }

    /// When something that has just been read was made at the earliest.
    pub(super) fn read_since_ns(&self) -> u64 {
        self.looks.0
    }

    /// What vouches for the workers has changed.
    pub(super) fn renew(
        &mut self,
        (tenure, until): (LeaseId, Instant),
        generation: CoreGeneration,
        window: Duration,
    ) {
        self.lease = Some(Lease {
            until,
            tenure,
            generation,
            window,
        });
    }

    /// Whether the lease vouches for nothing at present.
    pub(super) fn has_no_lease(&self, now_ns: u64) -> bool {
        self.lease
            .is_some_and(|lease| lease.until.as_nanos() <= now_ns)
    }

    /// What the keeper must be told, if there is a fence.
    pub(super) fn request(&mut self, workers: &Generation, now_ns: u64) -> Option<Request> {
        let lease = self.lease?;
        let newest = workers.lockstep.newest();
        self.told = (now_ns, newest.map_or(0, |step| step.at_ns));
        Some(Request::Fence {
            lease_until_ns: lease.until.as_nanos(),
            tenure: lease.tenure.0,
            generation: lease.generation.0,
            witness_ms: u64::try_from(lease.window.as_millis()).unwrap_or(u64::MAX),
            progress: newest.map(|newest| Progress {
                generation: workers.number,
                at_ns: newest.at_ns,
                step: newest.step,
                local_ranks: workers.lockstep.local_ranks().collect(),
            }),
        })
    }

    /// Whether the keeper has not heard of the newest step yet, and it is time.
    pub(super) fn has_news(&self, workers: &Generation, now_ns: u64) -> bool {
        let (told_ns, step_ns) = self.told;
        let newest = workers.lockstep.newest();
        self.lease.is_some()
            && newest.is_some_and(|newest| newest.at_ns > step_ns)
            && now_ns.saturating_sub(told_ns) >= TELL_EVERY_NS
    }

    /// What the core must hear of the steps of this node, if that has changed.
    pub(super) fn report(&mut self, workers: &Generation) -> Option<MemberEvent> {
        let report = self.worth(&workers.lockstep);
        let window = |report: Option<WitnessReport>| report.map(|report| report.window_ms);
        let (generation, before) = self.reported;
        let before = before.filter(|_| generation == workers.number);
        if window(report) == window(before) {
            return None;
        }
        self.reported = (workers.number, report);
        Some(MemberEvent::Witness {
            generation: CoreGeneration(workers.number),
            report,
        })
    }

    fn worth(&self, lockstep: &Lockstep) -> Option<WitnessReport> {
        let trusted = match self.witness {
            Witness::Off => false,
            Witness::Auto => lockstep.is_kept(),
            Witness::On => true,
        };
        let window = lockstep.wanted_window().filter(|_| trusted)?;
        let step = lockstep.typical_gap()?;
        Some(WitnessReport {
            window_ms: u64::try_from(window.as_millis()).unwrap_or(u64::MAX),
            step_ms: u64::try_from(step.as_millis())
                .unwrap_or(u64::MAX)
                .saturating_add(1),
            step: lockstep.newest()?.step,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keeper::protocol::WorkerView;

    const SECOND: u64 = 1_000_000_000;

    fn workers(steps: u64) -> Generation {
        let mut workers = Generation::default();
        for local_rank in 0..2 {
            workers.attach(WorkerView {
                generation: 3,
                rank: local_rank,
                local_rank,
                pid: 100,
                started_ns: 0,
                exit: None,
                ended_ns: None,
                spawn_error: None,
            });
        }
        for step in 1..=steps {
            for local_rank in 0..2 {
                workers.printed(3, local_rank, step, step * SECOND);
            }
        }
        workers
    }

    #[test]
    fn steps_are_reported_once_they_are_worth_something_and_when_that_changes() {
        let mut fencing = Fencing::new(Witness::Auto);
        assert_eq!(fencing.report(&workers(2)), None);
        let report = WitnessReport {
            window_ms: 4_000,
            step_ms: 1_001,
            step: 9,
        };
        let event = MemberEvent::Witness {
            generation: CoreGeneration(3),
            report: Some(report),
        };
        assert_eq!(fencing.report(&workers(9)), Some(event));
        assert_eq!(fencing.report(&workers(10)), None, "the window is the same");
        let mut apart = workers(10);
        apart.printed(3, 0, 30, 11 * SECOND);
        apart.printed(3, 1, 20, 11 * SECOND);
        let none = MemberEvent::Witness {
            generation: CoreGeneration(3),
            report: None,
        };
        assert_eq!(fencing.report(&apart), Some(none));
        assert_eq!(Fencing::new(Witness::Off).report(&workers(9)), None);
        assert!(Fencing::new(Witness::On).report(&apart).is_some());
    }

    #[test]
    fn the_keeper_hears_of_new_steps_now_and_then() {
        let mut fencing = Fencing::new(Witness::Auto);
        assert!(fencing.request(&workers(4), SECOND).is_none());
        fencing.renew(
            (LeaseId(1), Instant::from_nanos(7)),
            CoreGeneration(3),
            Duration::from_secs(2),
        );
        let Some(Request::Fence {
            witness_ms,
            progress,
            ..
        }) = fencing.request(&workers(4), SECOND)
        else {
            panic!("no request");
        };
        assert_eq!(witness_ms, 2_000);
        let progress = progress.unwrap();
        assert_eq!((progress.step, progress.at_ns), (4, 4 * SECOND));
        assert!(!fencing.has_news(&workers(4), 9 * SECOND));
        assert!(!fencing.has_news(&workers(5), SECOND + 1));
        assert!(fencing.has_news(&workers(5), 2 * SECOND));
    }
}
