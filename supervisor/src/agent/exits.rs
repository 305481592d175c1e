// SPDX-License-Identifier: Apache-2.0
//! What the end of a worker means, from all that it left behind.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};
use steadfast_health::{WorkerExit, diagnose, read_error_file};
use steadfast_process::exit::Exit;
use steadfast_proto::v1::Finding;

use crate::clock;
use crate::keeper::protocol::ExitRecord;
use crate::output::{LastLines, error_file};
use crate::redact;
use crate::settings::Settings;

/// How much of a log file's end is read.
const LAST_BYTES: u64 = 32 * 1024;
/// Most lines of it that are kept.
const LAST_LINES: usize = 100;
/// Lines of one stream that are kept as evidence, and characters of each.
const EVIDENCE_LINES: usize = 20;
const LONGEST_LINE: usize = 400;
/// How long the log disk may take.
const LOG_PATIENCE: Duration = Duration::from_secs(1);

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
        // A program that prints its errors with everything else has said why there.
        stderr: if has_words(&tail.stderr) {
            &tail.stderr
        } else {
            &tail.stdout
        },
        pid: u32::try_from(record.pid).unwrap_or(0),
    });
    finding.generation = record.generation;
    finding.node.clone_from(&settings.node);
    finding.local_rank = Some(record.local_rank);
    finding.rank = Some(record.rank);
    place_in_time(&mut finding, record.at_ns);
    redact::finding(finding)
}

/// The end of a log file, for an agent that has not seen what its predecessor read. A disk that does not answer is given
/// up on: no last lines then.
pub(super) async fn last_lines(log: PathBuf) -> Vec<String> {
    let read = tokio::task::spawn_blocking(move || read_end(&log).unwrap_or_default());
    match tokio::time::timeout(LOG_PATIENCE, read).await {
        Ok(Ok(end)) => lines_of(&end),
        Ok(Err(_)) | Err(_) => Vec::new(),
    }
}

/// The last of these lines as one piece of evidence; `None` without any.
pub(super) fn lines_as_evidence(lines: &[String]) -> Option<String> {
    let last = &lines[lines.len().saturating_sub(EVIDENCE_LINES)..];
    let shortened = last
        .iter()
        .map(|line| match line.char_indices().nth(LONGEST_LINE) {
            Some((end, _)) => &line[..end],
            None => line,
        });
    let text = shortened.collect::<Vec<_>>().join("\n");
    (!text.is_empty()).then_some(text)
}

fn has_words(lines: &[String]) -> bool {
    lines.iter().any(|line| !line.trim().is_empty())
}

fn read_end(log: &Path) -> io::Result<Vec<u8>> {
    let mut file = File::open(log)?;
    let length = file.seek(SeekFrom::End(0))?;
    file.seek(SeekFrom::Start(length.saturating_sub(LAST_BYTES)))?;
    let mut end = Vec::new();
    file.take(LAST_BYTES).read_to_end(&mut end)?;
    Ok(end)
}

fn lines_of(end: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(end);
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    lines.split_off(lines.len().saturating_sub(LAST_LINES))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_end_of_a_log_is_read_however_long_it_is() {
        let directory = tempfile::tempdir().unwrap();
        let log = directory.path().join("stderr.log");
        let lines: Vec<String> = (0..50_000).map(|number| format!("line {number}")).collect();
        let text = lines.join("\n");
        std::fs::write(&log, text).unwrap();
        let lines = last_lines(log).await;
        assert_eq!(lines.len(), LAST_LINES);
        assert_eq!(lines.last().unwrap(), "line 49999");
        assert!(
            last_lines(directory.path().join("missing"))
                .await
                .is_empty()
        );
    }

    #[test]
    fn a_fault_is_never_placed_after_the_exit_that_it_led_to() {
        let exited = clock::monotonic_ns();
        let mut finding = Finding {
            wall_ms: clock::wall_ms() + 60_000,
            ..Finding::default()
        };
        place_in_time(&mut finding, exited);
        assert_eq!(finding.monotonic_ns, exited);
        let mut finding = Finding {
            wall_ms: clock::wall_ms() - 5_000,
            ..Finding::default()
        };
        place_in_time(&mut finding, exited);
        assert!(finding.monotonic_ns < exited);
    }
}
