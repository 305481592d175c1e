// SPDX-License-Identifier: Apache-2.0
//! What the end of a worker means, from all that it left behind.

use serde_json::{Value, json};
use steadfast_health::{WorkerExit, diagnose, read_error_file};
use steadfast_process::exit::Exit;
use steadfast_proto::v1::Finding;

use crate::clock;
use crate::keeper::protocol::ExitRecord;
use crate::output::{LastLines, error_file};
use crate::settings::Settings;

/// The finding for a worker that has failed. `tail` is what its output ended with, as far as this agent has seen it.
pub(super) fn explain(settings: &Settings, record: &ExitRecord, tail: &LastLines) -> Finding {
    let restart_count = u32::try_from(record.generation.saturating_sub(1)).unwrap_or(u32::MAX);
    let path = error_file(&settings.log.run_dir, restart_count, record.local_rank);
    // An error file that cannot be read is as good as none: the last lines tell then.
    let error = read_error_file(&path).ok().flatten();
    let shown_path = if error.is_some() {
        path.display().to_string()
    } else {
        String::new()
    };
    let mut finding = diagnose(&WorkerExit {
        exit: match record.exit {
            Exit::Code(code) => steadfast_health::Exit::Code(code),
            Exit::Signal { signal, .. } => steadfast_health::Exit::Signal(signal),
        },
        error: error.as_ref(),
        error_file: &shown_path,
        stderr: &tail.stderr,
        pid: u32::try_from(record.pid).unwrap_or(0),
    });
    finding.generation = record.generation;
    finding.node.clone_from(&settings.node);
    finding.local_rank = Some(record.local_rank);
    finding.rank = Some(record.rank);
    place_in_time(&mut finding, record.at_ns);
    finding
}

/// The error file's time says when the fault happened; the exit came later. Its clock is this node's.
fn place_in_time(finding: &mut Finding, exited_ns: u64) {
    let exited_ms = clock::wall_ms_at(exited_ns);
    finding.monotonic_ns = exited_ns;
    if finding.wall_ms == 0 {
        finding.wall_ms = exited_ms;
        return;
    }
    // Whole seconds, rounded down: a fault is never placed after the exit that it led to, nor long before it by rounding.
    let earlier_ms = u64::try_from(exited_ms - finding.wall_ms).unwrap_or(0);
    finding.monotonic_ns = exited_ns.saturating_sub(earlier_ms.saturating_mul(1_000_000));
}

/// The journal's fields for the end of a worker.
pub(super) fn journal_fields(record: &ExitRecord) -> Value {
    json!({
        "rank": record.rank,
        "local_rank": record.local_rank,
        "pid": record.pid,
        "exit": record.exit,
        "spawn_error": record.spawn_error,
        "while_stopping": record.while_stopping,
        "reaped_mono_ns": record.at_ns,
    })
}

/// What is said the moment that a worker has failed.
pub(super) fn first_words(record: &ExitRecord, step: Option<u64>) -> String {
    let how = match (&record.spawn_error, record.exit) {
        (Some(reason), _) => format!("could not be started ({reason})"),
        (None, Exit::Code(code)) => format!("exited with code {code}"),
        (
            None,
            Exit::Signal {
                signal,
                core_dumped,
            },
        ) => {
            let core = if core_dumped { ", core dumped" } else { "" };
            format!("was killed by {}{core}", signal_name(signal))
        }
    };
    let when = step.map_or_else(
        || "before any step was seen".to_owned(),
        |step| format!("at step {step}"),
    );
    let pid = if record.pid == 0 {
        String::new()
    } else {
        format!(" (pid {})", record.pid)
    };
    format!(
        "generation {}: rank {}{pid} {how} {when}",
        record.generation, record.rank
    )
}

/// `SIGTERM` and so on; the number for one without a name.
pub(super) fn signal_name(signal: i32) -> String {
    nix::sys::signal::Signal::try_from(signal).map_or_else(
        |_| format!("signal {signal}"),
        |name| name.as_str().to_owned(),
    )
}
