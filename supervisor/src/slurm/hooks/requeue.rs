// SPDX-License-Identifier: Apache-2.0
//! Putting a job back into the queue so that it starts again in seconds.
//!
//! Slurm lets a job that was requeued wait until its old credential has expired, two minutes unless `cred_expire` says
//! otherwise. `StartTime=now` ends that, but only once the job is pending: what is changed while it is still being ended is
//! overwritten at the end. By then a process of the job itself is dead as a rule; so somebody outside of it has to wait.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use super::Run;
use super::site::Site;
use super::surroundings::{HookJob, for_programs};
use crate::clock;
use crate::config::Host;
use crate::console_line::say;
use crate::exit_code::ExitCode;
use crate::slurm::controller::{Controller, ControllerError, JobState, JobView};
use crate::slurm::hostlist::HostList;

/// Between two looks at the job.
const PAUSE: Duration = Duration::from_millis(500);
/// How long a job may take to end: `KillWait` and processes that do not die.
const PATIENCE: Duration = Duration::from_mins(5);
/// Exit code when the controller does not want it.
const FAILED: u8 = 1;

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Requeue {
    /// The job; absent for the one that this process belongs to.
    pub(crate) job: Option<String>,
    /// Only see to it that a job that somebody else puts back starts at once.
    pub(crate) hasten_only: bool,
    /// Nothing is hastened that was put back more often than this.
    pub(crate) at_most: Option<u32>,
    /// The settings; absent for the usual file.
    pub(crate) config: Option<PathBuf>,
}

/// What there is to do about a job.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    /// Look again later.
    Wait,
    /// Let it start.
    Start,
    /// Nothing more, because of this.
    Done(&'static str),
}

pub(super) fn run(host: &Host, request: &Requeue) -> u8 {
    let own = host
        .variable("SLURM_JOB_ID")
        .or_else(|| host.variable("SLURM_JOBID"));
    let Some(job) = request.job.as_deref().or(own) else {
        say("error: which job? Give --job, or run this in a job (SLURM_JOB_ID)");
        return ExitCode::Configuration as u8;
    };
    // A wrong file of the site is no reason to leave a job where it is.
    let site = Site::read(request.config.as_deref()).unwrap_or_default();
    let done = site.controller(host).and_then(|controller| {
        let before = controller.job(job)?;
        if request.hasten_only {
            return hasten(&controller, job, before.as_ref(), request.at_most);
        }
        let is_own = own == Some(job);
        if is_own {
            hasten_from_outside(host, request, job);
        }
        controller.requeue(job)?;
        say(&format!("job {job} goes back into the queue"));
        if is_own {
            return Ok("it starts again as soon as there is room");
        }
        hasten(&controller, job, before.as_ref(), request.at_most)
    });
    match done {
        Ok(text) => {
            say(&format!("job {job}: {text}"));
            ExitCode::Success as u8
        }
        Err(error) => {
            let mut text = error.to_string();
            let mut cause = std::error::Error::source(&error);
            while let Some(inner) = cause {
                text = format!("{text}: {inner}");
                cause = inner.source();
            }
            say(&format!("error: {text}"));
            FAILED
        }
    }
}

/// From the epilog: leaves a process behind that waits until the job is pending, if it ever is. One node of the job does it.
pub(super) fn hasten_later(run: &Run, job: &HookJob) {
    let nodes = job.nodes.as_deref().unwrap_or_default();
    let first = HostList::parse(nodes.as_bytes(), usize::MAX)
        .ok()
        .and_then(|list| list.hosts().next());
    if first.is_some_and(|first| first != run.surroundings.node) {
        return;
    }
    let at_most = run.site.epilog.hasten_at_most.to_string();
    let mut arguments: Vec<OsString> = ["slurm", "requeue", "--hasten-only", "--at-most"]
        .map(Into::into)
        .to_vec();
    arguments.push(at_most.into());
    arguments.extend(["--job".into(), job.id.clone().into()]);
    if let Some(config) = &run.config {
        arguments.extend(["--config".into(), config.into()]);
    }
    if let Err(error) = crate::detach::start(&arguments, for_programs(&run.host)) {
        run.log.say_error(
            "should the job be put back, it waits for two minutes",
            &error,
        );
    }
}

/// From inside of the job: a process that is nobody's child when this one has ended, and so outlives the job unless cgroups
/// hold it.
fn hasten_from_outside(host: &Host, request: &Requeue, job: &str) {
    let mut arguments: Vec<OsString> = ["slurm", "requeue", "--hasten-only", "--job"]
        .map(Into::into)
        .to_vec();
    arguments.push(job.into());
    if let Some(config) = &request.config {
        arguments.extend(["--config".into(), config.into()]);
    }
    if let Err(error) = crate::detach::start(&arguments, for_programs(host)) {
        say(&format!("the job will wait for two minutes: {error}"));
    }
}

/// Waits until the job is pending, and lets it start.
fn hasten(
    controller: &Controller,
    job: &str,
    before: Option<&JobView>,
    at_most: Option<u32>,
) -> Result<&'static str, ControllerError> {
    // What ends the job may end what it has left, this process among it: that is then how it is.
    let deadline = clock::monotonic_ns() + u64::try_from(PATIENCE.as_nanos()).unwrap_or(u64::MAX);
    loop {
        let now = controller.job(job)?;
        match step(before, now.as_ref(), at_most) {
            Step::Done(text) => return Ok(text),
            Step::Start => match controller.start_now(job) {
                Ok(()) | Err(ControllerError::Refused { .. }) => {}
                Err(error) => return Err(error),
            },
            Step::Wait => {}
        }
        if clock::monotonic_ns() > deadline {
            return Ok("it is still being ended; it starts when Slurm lets it");
        }
        std::thread::park_timeout(PAUSE);
    }
}

fn step(before: Option<&JobView>, now: Option<&JobView>, at_most: Option<u32>) -> Step {
    let Some(now) = now else {
        return Step::Done("the controller does not know it any more");
    };
    if at_most.is_some_and(|most| now.restarts > most) {
        return Step::Done("it was put back so often that it waits for two minutes each time");
    }
    match now.state {
        JobState::Pending { held: true, .. } => {
            Step::Done("it is held: somebody has to release it")
        }
        JobState::Pending {
            for_its_time: true, ..
        } => Step::Start,
        JobState::Pending { .. } => Step::Done("it starts as soon as there is room"),
        JobState::Running if before.is_some_and(|before| now.restarts > before.restarts) => {
            Step::Done("it runs again")
        }
        JobState::Running | JobState::Completing => Step::Wait,
        JobState::Ended => Step::Done("it has ended, and was not put back"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(state: JobState, restarts: u32) -> JobView {
        JobView { state, restarts }
    }

    fn pending(for_its_time: bool, held: bool) -> JobView {
        job(JobState::Pending { for_its_time, held }, 1)
    }

    fn next(now: &JobView) -> Step {
        step(Some(&job(JobState::Running, 0)), Some(now), Some(3))
    }

    #[test]
    fn it_is_started_only_once_it_is_pending_for_its_time() {
        assert_eq!(next(&job(JobState::Running, 0)), Step::Wait);
        assert_eq!(next(&job(JobState::Completing, 1)), Step::Wait);
        assert_eq!(next(&pending(true, false)), Step::Start);
        for over in [
            pending(false, false),
            pending(true, true),
            job(JobState::Running, 1),
            job(JobState::Ended, 0),
        ] {
            assert!(matches!(next(&over), Step::Done(_)), "{over:?}");
        }
        assert!(matches!(step(None, None, None), Step::Done(_)));
    }

    #[test]
    fn one_that_comes_back_again_and_again_is_not_hastened() {
        let again = job(
            JobState::Pending {
                for_its_time: true,
                held: false,
            },
            4,
        );
        assert!(matches!(next(&again), Step::Done(_)));
    }
}
