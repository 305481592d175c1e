// SPDX-License-Identifier: Apache-2.0
//! A job's status for a person.

use std::fmt::Write;

use steadfast_proto::v1::{StatusReply, Worker};

/// Several lines, each ended.
pub(crate) fn status_text(status: &StatusReply) -> String {
    let mut lines = vec![format!(
        "{} on {}: {} (generation {}, {} workers, up {})",
        status.job,
        status.node,
        status.state,
        status.generation,
        status.world_size,
        duration(status.uptime_seconds)
    )];
    if !status.reason.is_empty() {
        lines.push(format!("  why       {}", status.reason));
    }
    lines.push(format!(
        "  progress  {}; {} of {} restarts used",
        status.step.map_or_else(
            || "no step seen yet".to_owned(),
            |step| format!("step {step}")
        ),
        status.restarts_used,
        status.restarts_allowed
    ));
    let committed = status.committed_step;
    let committed = committed.map(|step| format!("step {step} is committed"));
    let saving: Vec<String> = committed
        .into_iter()
        .chain(Some(status.saving.clone()).filter(|text| !text.is_empty()))
        .collect();
    if !saving.is_empty() {
        lines.push(format!("  saving    {}", saving.join("; ")));
    }
    if let Some(fault) = &status.last_fault {
        lines.push(format!(
            "  fault     generation {}: {}",
            fault.generation, fault.summary
        ));
    }
    lines.push(format!("  logs      {}", status.log_dir));
    lines.push(format!("  journal   {}", status.journal));
    let replaced = match status.agent_incarnation {
        0 | 1 => String::new(),
        2 => ", replaced once".to_owned(),
        more => format!(", replaced {} times", more - 1),
    };
    lines.push(format!(
        "  keeper    pid {}; agent pid {}{replaced}",
        status.keeper_pid, status.agent_pid
    ));
    lines.extend(
        status
            .dropped
            .iter()
            .map(|what| format!("  dropped   {what}")),
    );
    lines.extend(
        status
            .health
            .iter()
            .map(|what| format!("  health    {what}")),
    );
    lines.push("  rank  local  pid      state".to_owned());
    lines.extend(status.workers.iter().map(worker));
    lines.into_iter().fold(String::new(), |mut text, line| {
        // Writing into a string cannot fail.
        let _infallible = writeln!(text, "{line}");
        text
    })
}

fn worker(worker: &Worker) -> String {
    let ended = match (worker.exit_code, worker.signal) {
        (Some(code), _) => format!(" (code {code})"),
        (None, Some(signal)) => format!(" (signal {signal})"),
        (None, None) => String::new(),
    };
    let step = worker
        .step
        .map_or_else(String::new, |step| format!(", step {step}"));
    let phase = match worker.phase.as_deref() {
        None | Some("train") => String::new(),
        Some(phase) => format!(", {phase}"),
    };
    format!(
        "  {:<4}  {:<5}  {:<7}  {}{ended}{step}{phase}",
        worker.rank, worker.local_rank, worker.pid, worker.state
    )
}

fn duration(seconds: f64) -> String {
    let whole = std::time::Duration::try_from_secs_f64(seconds)
        .unwrap_or_default()
        .as_secs();
    let (days, hours, minutes) = (whole / 86_400, whole / 3600 % 24, whole / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{whole}s"),
        (0, 0, _) => format!("{minutes}m{:02}s", whole % 60),
        (0, _, _) => format!("{hours}h{minutes:02}m"),
        _ => format!("{days}d{hours:02}h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use steadfast_proto::v1::Finding;

    #[test]
    fn a_person_sees_state_reason_progress_and_every_worker() {
        let status = StatusReply {
            job: "toy".to_owned(),
            node: "n1".to_owned(),
            state: "running".to_owned(),
            reason: "all 2 workers have been started".to_owned(),
            generation: 2,
            world_size: 2,
            restarts_used: 1,
            restarts_allowed: 3,
            step: Some(120),
            uptime_seconds: 75.4,
            keeper_pid: 10,
            agent_pid: 11,
            agent_incarnation: 3,
            log_dir: "/logs".to_owned(),
            journal: "/logs/journal.jsonl".to_owned(),
            last_fault: Some(Finding {
                generation: 1,
                summary: "rank 1 was killed by signal 9 (SIGKILL)".to_owned(),
                ..Finding::default()
            }),
            workers: vec![
                Worker {
                    rank: 0,
                    pid: 20,
                    state: "running".to_owned(),
                    step: Some(120),
                    phase: Some("checkpoint".to_owned()),
                    ..Worker::default()
                },
                Worker {
                    rank: 1,
                    local_rank: 1,
                    pid: 21,
                    state: "exited".to_owned(),
                    exit_code: Some(0),
                    ..Worker::default()
                },
            ],
            ..StatusReply::default()
        };
        insta::assert_snapshot!(status_text(&status), @r"
        toy on n1: running (generation 2, 2 workers, up 1m15s)
          why       all 2 workers have been started
          progress  step 120; 1 of 3 restarts used
          fault     generation 1: rank 1 was killed by signal 9 (SIGKILL)
          logs      /logs
          journal   /logs/journal.jsonl
          keeper    pid 10; agent pid 11, replaced 2 times
          rank  local  pid      state
          0     0      20       running, step 120, checkpoint
          1     1      21       exited (code 0)
        ");
    }
}
