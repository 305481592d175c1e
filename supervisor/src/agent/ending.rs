// SPDX-License-Identifier: Apache-2.0
//! The end of a job: what it says, what it leaves for a launcher around it, and its exit code.

use std::io::{self, IsTerminal};
use std::path::Path;
use std::time::Duration;

use jiff::tz::TimeZone;
use steadfast_core::{ExitReason, JobOutcome, JobResult};
use steadfast_health::{WorkerError, copy_error_file, write_error_file};
use steadfast_proto::v1::Finding;

use super::launch::Inherited;
use crate::clock;
use crate::exit_code::ExitCode;
use crate::settings::{Mode, Settings};
use crate::summary::{self, Failure, Success};

/// The exit code of `steadfast` for this result, as the user may have remapped it.
pub(super) fn exit_code(settings: &Settings, result: &JobResult) -> u8 {
    let codes = &settings.exit_codes;
    let own = || u8::try_from(result.exit_code()).unwrap_or(1);
    match result.exit {
        ExitReason::Success => ExitCode::Success as u8,
        ExitReason::Worker(_) => codes.program.unwrap_or_else(own),
        // torchrun knows only 0 and 1.
        ExitReason::Interrupted(_) if settings.mode == Mode::Torchrun => {
            codes.program.unwrap_or_else(own)
        }
        ExitReason::Interrupted(_) => own(),
        ExitReason::Infrastructure => codes.infrastructure,
        ExitReason::Node => codes.node,
        ExitReason::Configuration => ExitCode::Configuration as u8,
    }
}

/// What was seen of a job, beside its result.
#[derive(Debug)]
pub(super) struct Circumstances {
    /// When the supervisor started, on the monotonic clock.
    pub(super) started_ns: u64,
    /// Output that was lost, in words.
    pub(super) dropped: Vec<String>,
    /// What checkpoints have cost, and how often they should be made, in words, if it is known.
    pub(super) saving: Option<String>,
}

/// The last words of a job, in whole lines.
pub(super) fn summary(settings: &Settings, result: &JobResult, seen: Circumstances) -> String {
    let saving = seen.saving.as_ref();
    let saving = saving.map(|what| format!("steadfast: checkpoints: {what}\n"));
    let result = outcome(settings, result, seen);
    format!("{result}{}", saving.unwrap_or_default())
}

fn outcome(settings: &Settings, result: &JobResult, seen: Circumstances) -> String {
    let restarts = u32::try_from(result.restarts).unwrap_or(u32::MAX);
    let colour = io::stderr().is_terminal() && super::launch::own_environment("NO_COLOR").is_none();
    let has_logs = keeps_logs(settings);
    match result.outcome {
        JobOutcome::Succeeded => summary::success(
            &Success {
                duration: Duration::from_nanos(
                    clock::monotonic_ns().saturating_sub(seen.started_ns),
                ),
                restarts,
                step: result.best_step,
                log_dir: has_logs.then(|| settings.log.run_dir.clone()),
                dropped: seen.dropped,
            },
            colour,
        ),
        JobOutcome::Stopped => {
            let step = result
                .best_step
                .map_or_else(String::new, |step| format!(", last step {step}"));
            let lost = seen
                .dropped
                .iter()
                .map(|what| format!("steadfast: output lost: {what}\n"));
            let logs = if has_logs {
                format!(", logs in {}", settings.log.run_dir.display())
            } else {
                String::new()
            };
            format!(
                "steadfast: {}{step}{logs}\n{}",
                result.message,
                lost.collect::<String>()
            )
        }
        JobOutcome::Failed => summary::failure(
            &Failure {
                program: program_name(settings),
                reason: result.message.clone(),
                cause: result.root_cause.clone(),
                others: result.others.clone(),
                generation: result.generation.0,
                restarts,
                step: result.best_step,
                log_dir: settings.log.run_dir.clone(),
                has_logs,
                dropped: seen.dropped,
                zone: TimeZone::system(),
            },
            colour,
        ),
    }
}

/// Leaves the root cause where a launcher around this one looks for it: `TORCHELASTIC_ERROR_FILE`.
///
/// # Errors
///
/// In words, when the file cannot be written.
pub(super) fn pass_on_error_file(
    settings: &Settings,
    result: &JobResult,
    inherited: Inherited<'_>,
) -> Result<(), String> {
    let (Some(cause), Some(target)) = (&result.root_cause, inherited("TORCHELASTIC_ERROR_FILE"))
    else {
        return Ok(());
    };
    let code = i32::from(exit_code(settings, result));
    let written = if cause.error_file.is_empty() {
        write_error_file(
            Path::new(&target),
            &as_worker_error(cause),
            cause.exit_code.unwrap_or(code),
        )
    } else {
        let code = cause
            .exit_code
            .or(cause.signal.map(|signal| -signal))
            .unwrap_or(code);
        copy_error_file(Path::new(&cause.error_file), Path::new(&target), code)
    };
    written.map_err(|error| match std::error::Error::source(&error) {
        Some(reason) => format!("{error}: {reason}"),
        None => error.to_string(),
    })
}

fn as_worker_error(cause: &Finding) -> WorkerError {
    WorkerError {
        exception: String::new(),
        message: cause.summary.clone(),
        traceback: cause.evidence.join("\n"),
        raised_ms: Some(cause.wall_ms),
        exit_code: cause.exit_code,
        note: None,
    }
}

/// The script, where the command names one; else the command itself.
fn program_name(settings: &Settings) -> String {
    let shown = |text: &std::ffi::OsString| text.to_string_lossy().into_owned();
    let arguments = &settings.command.argv;
    let script = arguments.iter().find(|each| {
        Path::new(each)
            .extension()
            .is_some_and(|ending| ending == "py")
    });
    script.or(arguments.first()).map(shown).unwrap_or_default()
}

/// Whether any stream of any worker goes to a file.
fn keeps_logs(settings: &Settings) -> bool {
    (0..settings.workers).any(|rank| {
        let (redirect, tee) = (settings.log.redirects.get(rank), settings.log.tee.get(rank));
        redirect.out() || redirect.err() || tee.out() || tee.err()
    })
}
