// SPDX-License-Identifier: Apache-2.0
//! Where a worker's files lie, as torchrun lays them out, and which stream goes where.

use std::path::{Path, PathBuf};

use super::{OutputSettings, Stream, StreamKind};
use crate::settings::{Mode, Std};

/// Directory of one generation's files: `<run_dir>/attempt_<restart_count>`.
pub(crate) fn attempt_dir(run_dir: &Path, restart_count: u32) -> PathBuf {
    run_dir.join(format!("attempt_{restart_count}"))
}

/// Directory of one worker's files.
pub(crate) fn worker_dir(run_dir: &Path, restart_count: u32, local_rank: u32) -> PathBuf {
    attempt_dir(run_dir, restart_count).join(local_rank.to_string())
}

/// The file in which a worker leaves its uncaught exception (`TORCHELASTIC_ERROR_FILE`).
pub(crate) fn error_file(run_dir: &Path, restart_count: u32, local_rank: u32) -> PathBuf {
    worker_dir(run_dir, restart_count, local_rank).join("error.json")
}

/// The log file of one stream, if it gets one.
pub(crate) fn stream_log(run_dir: &Path, stream: Stream) -> PathBuf {
    worker_dir(run_dir, stream.restart_count, stream.local_rank)
        .join(format!("{}.log", stream.kind.name()))
}

/// How a stream appears on the console.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConsoleStyle {
    /// As it comes, bytes untouched.
    Raw,
    /// Line by line, each whole, without a prefix.
    Plain,
    /// Line by line, each with a prefix.
    Prefixed,
}

/// Where a stream goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Destination {
    /// To its log file.
    pub(super) file: bool,
    /// To the console, and how.
    pub(super) console: Option<ConsoleStyle>,
}

impl Destination {
    /// A stream that is teed goes to both, one that is redirected to the file alone, any other to the console alone.
    pub(super) fn of(settings: &OutputSettings, stream: Stream) -> Self {
        let log = &settings.log;
        let chosen = |std: Std| match stream.kind {
            StreamKind::Stdout => std.out(),
            StreamKind::Stderr => std.err(),
        };
        let teed = chosen(log.tee.get(stream.local_rank));
        let redirected = chosen(log.redirects.get(stream.local_rank));
        let wanted = log
            .local_ranks_filter
            .as_ref()
            .is_none_or(|ranks| ranks.contains(&stream.local_rank));
        let alone = settings.workers <= 1;
        let style = match (settings.mode, teed) {
            (Mode::Torchrun, true) => ConsoleStyle::Prefixed,
            (Mode::Run, _) if !alone || log.prefix_template.is_some() => ConsoleStyle::Prefixed,
            (_, false) if alone => ConsoleStyle::Raw,
            _ => ConsoleStyle::Plain,
        };
        let visible = log.console && wanted && (teed || !redirected);
        Self {
            file: teed || redirected,
            console: visible.then_some(style),
        }
    }
}
