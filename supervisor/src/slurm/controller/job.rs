// SPDX-License-Identifier: Apache-2.0
//! What `scontrol show job` says.

/// What a job does, as far as a requeue has to know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JobState {
    /// It waits; `for_its_time` says that nothing but the clock keeps it.
    Pending {
        /// Whether its reason is `BeginTime`.
        for_its_time: bool,
        /// Whether somebody has to release it.
        held: bool,
    },
    /// It is being ended; what is changed now is overwritten when that is done.
    Completing,
    /// It is being started, or runs.
    Running,
    /// It is over.
    Ended,
}

/// A job as the controller sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct JobView {
    /// What it does.
    pub(crate) state: JobState,
    /// How often it was put back into the queue.
    pub(crate) restarts: u32,
}

impl JobView {
    /// Reads the answer; of a job array the first job. `None` when there is no state in it.
    pub(super) fn parse(answer: &str) -> Option<JobView> {
        // A user chooses the job's name, which stands on the first line: only what begins a line is trusted.
        let line = |start: &str| {
            answer
                .lines()
                .map(str::trim_start)
                .find(|line| line.starts_with(start))
        };
        let states = line("JobState=")?;
        let reason = field(states, "Reason=").unwrap_or_default();
        let state = match field(states, "JobState=")? {
            "PENDING" => JobState::Pending {
                for_its_time: reason == "BeginTime",
                held: reason.starts_with("JobHeld") || reason.ends_with("_held"),
            },
            "COMPLETING" | "REQUEUED" | "STAGE_OUT" | "STOPPED" | "SIGNALING" => {
                JobState::Completing
            }
            "RUNNING" | "CONFIGURING" | "SUSPENDED" | "RESIZING" => JobState::Running,
            _ => JobState::Ended,
        };
        Some(JobView {
            state,
            restarts: line("Requeue=")
                .and_then(|line| field(line, "Restarts="))
                .and_then(|text| text.parse().ok())
                .unwrap_or(0),
        })
    }
}

fn field<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    line.split_ascii_whitespace()
        .find_map(|word| word.strip_prefix(name))
}
