// SPDX-License-Identifier: Apache-2.0
//! The block of text at the end of a job: what failed first, what failed because of it, and what to do next.
//!
//! It is laid out as torchrun's, because people and scripts look for those words.

#[cfg(test)]
mod tests;

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use steadfast_core::Opinion;
use steadfast_health::signal_name;
use steadfast_proto::v1::{FaultRole, Finding, Repeatability};

const WIDTH: usize = 60;
/// Below this confidence, in hundredths, the evidence is called thin.
const THIN: u32 = Opinion::THIN;
/// Most other failures that are shown one by one.
const MAX_OTHERS: usize = 8;
/// Most lines shown of a traceback.
const MAX_TRACEBACK_LINES: usize = 40;

/// What is known of a job that failed.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    /// What the job ran, such as the name of the script.
    pub(crate) program: String,
    /// Why the job was not restarted, as one sentence without a full stop.
    pub(crate) reason: String,
    /// The finding that came first, if any worker failed at all.
    pub(crate) cause: Option<Finding>,
    /// The other findings of that generation, in any order.
    pub(crate) others: Vec<Finding>,
    /// Generation that failed last, from 1.
    pub(crate) generation: u64,
    /// Restarts that were made.
    pub(crate) restarts: u32,
    /// Last training step that was seen, if any was.
    pub(crate) step: Option<u64>,
    /// Where the logs of this run are.
    pub(crate) log_dir: PathBuf,
    /// Whether the workers' output is there (it is not if it only went to the console).
    pub(crate) has_logs: bool,
    /// What could not be shown or written, in words.
    pub(crate) dropped: Vec<String>,
    /// Time zone in which times are shown.
    pub(crate) zone: TimeZone,
}

/// What is known of a job that ended well.
#[derive(Clone, Debug)]
pub(crate) struct Success {
    /// From the start of the supervisor to the end of the last worker.
    pub(crate) duration: Duration,
    /// Restarts that were made.
    pub(crate) restarts: u32,
    /// Last training step that was seen, if any was.
    pub(crate) step: Option<u64>,
    /// Where the logs of this run are, if there are any.
    pub(crate) log_dir: Option<PathBuf>,
    /// What could not be shown or written, in words.
    pub(crate) dropped: Vec<String>,
}

/// Renders the summary of a failed job, with a line end after each line. `colour` adds terminal colours.
pub(crate) fn failure(failure: &Failure, colour: bool) -> String {
    let paint = Paint { colour };
    let mut text = String::new();
    let mut line = |content: &str| {
        text.push_str(content);
        text.push('\n');
    };
    line(&"=".repeat(WIDTH));
    line(&paint.red(&format!("{} FAILED", failure.program)));
    line(&"-".repeat(WIDTH));
    line("Root Cause (first observed failure):");
    match &failure.cause {
        Some(finding) => line(&worker(0, finding, failure, true)),
        None => line("  no worker failed"),
    }
    line(&"-".repeat(WIDTH));
    line("Other Failures:");
    if failure.others.is_empty() {
        line("  <NO_OTHER_FAILURES>");
    }
    let mut others: Vec<&Finding> = failure.others.iter().collect();
    others.sort_by_key(|finding| (finding.monotonic_ns, finding.rank));
    for (index, finding) in others.iter().take(MAX_OTHERS).enumerate() {
        line(&worker(index + 1, finding, failure, false));
    }
    if others.len() > MAX_OTHERS {
        line(&format!("  ... and {} more", others.len() - MAX_OTHERS));
    }
    line(&"-".repeat(WIDTH));
    line(&paint.bold(&format!("Ended: {}", failure.reason)));
    line(&format!("  {}", course(failure)));
    for hint in hints(failure) {
        line(&format!("  {hint}"));
    }
    for dropped in &failure.dropped {
        line(&format!("  Output lost: {dropped}"));
    }
    line(&"=".repeat(WIDTH));
    text
}

/// Renders the summary of a job that ended well: one line, and one for each loss of output.
pub(crate) fn success(success: &Success, colour: bool) -> String {
    let paint = Paint { colour };
    let mut parts = vec![format!(
        "{} in {}",
        paint.green("finished"),
        duration(success.duration)
    )];
    if let Some(step) = success.step {
        parts.push(format!("last step {step}"));
    }
    parts.push(match success.restarts {
        0 => "no restarts".to_owned(),
        1 => "1 restart".to_owned(),
        restarts => format!("{restarts} restarts"),
    });
    if let Some(log_dir) = &success.log_dir {
        parts.push(format!("logs in {}", log_dir.display()));
    }
    let mut text = format!("steadfast: {}\n", parts.join(", "));
    for dropped in &success.dropped {
        // Writing to a string cannot fail.
        let _infallible = writeln!(text, "steadfast: output lost: {dropped}");
    }
    text
}

/// One worker's paragraph, without the last line end.
fn worker(index: usize, finding: &Finding, failure: &Failure, is_cause: bool) -> String {
    let local_rank = finding
        .local_rank
        .map_or("?".to_owned(), |rank| rank.to_string());
    let rank = finding.rank.map_or("?".to_owned(), |rank| rank.to_string());
    let exit_code = finding.exit_code.or(finding.signal.map(|signal| -signal));
    let error_file = if finding.error_file.is_empty() {
        "<N/A>"
    } else {
        &finding.error_file
    };
    let mut fields = vec![
        ("time", moment(finding.wall_ms, &failure.zone)),
        ("host", finding.node.clone()),
        ("rank", format!("{rank} (local_rank: {local_rank})")),
        (
            "exitcode",
            format!(
                "{} (pid: {})",
                exit_code.map_or("<N/A>".to_owned(), |code| code.to_string()),
                finding.pid
            ),
        ),
        ("error_file", error_file.to_owned()),
    ];
    if let Some(step) = finding.step {
        fields.push(("step", step.to_string()));
    }
    let kind = match (is_cause, finding.role()) {
        (true, FaultRole::Consequence) => {
            "may itself be the consequence of a failure that nobody saw"
        }
        (false, FaultRole::Consequence) => "a consequence of the root cause",
        _ => "",
    };
    fields.push((
        "what",
        if kind.is_empty() {
            finding.summary.clone()
        } else {
            format!("{} ({kind})", finding.summary)
        },
    ));
    fields.push(("traceback", traceback(finding)));
    let mut text = format!("[{index}]:");
    for (name, value) in fields {
        let _infallible = write!(text, "\n  {name:<10}: {}", indented(&value));
    }
    text
}

/// Of a worker that died without a word, torchrun says at least this.
fn traceback(finding: &Finding) -> String {
    if let Some(trace) = finding
        .evidence
        .first()
        .filter(|trace| trace.contains("File \""))
    {
        return trace.clone();
    }
    let heard = match finding.signal {
        Some(signal) => format!(
            "Signal {signal} ({}) received by PID {}",
            signal_name(signal),
            finding.pid
        ),
        None => "no Python traceback was found".to_owned(),
    };
    match finding.evidence.last() {
        Some(last) if !last.is_empty() => format!("{heard}; its last lines:\n{last}"),
        _ => heard,
    }
}

/// Further lines of a value, below the first, and the middle of a long one left out.
fn indented(value: &str) -> String {
    let lines: Vec<&str> = value.trim_end().lines().collect();
    let cut = lines.len().saturating_sub(MAX_TRACEBACK_LINES);
    let mut shown: Vec<String> = lines
        .iter()
        .take(lines.len().min(3))
        .map(|line| clean(line))
        .collect();
    if cut > 0 {
        shown.push(format!("... {cut} lines left out ..."));
    }
    shown.extend(lines.iter().skip(3 + cut).map(|line| clean(line)));
    shown.join("\n    ")
}

/// A worker's words cannot move the cursor or change colours here.
fn clean(line: &str) -> String {
    line.chars()
        .map(|character| {
            if character.is_control() && character != '\t' {
                ' '
            } else {
                character
            }
        })
        .collect()
}

fn moment(wall_ms: i64, zone: &TimeZone) -> String {
    match Timestamp::from_millisecond(wall_ms) {
        Ok(timestamp) if wall_ms > 0 => timestamp
            .to_zoned_datetime(zone.clone())
            .strftime("%Y-%m-%d_%H:%M:%S")
            .to_string(),
        _ => "<N/A>".to_owned(),
    }
}

fn course(failure: &Failure) -> String {
    let restarts = match failure.restarts {
        0 => "no restart".to_owned(),
        1 => "1 restart".to_owned(),
        restarts => format!("{restarts} restarts"),
    };
    let step = match failure.step {
        Some(step) => format!("last step seen: {step}"),
        None => "no training step was seen".to_owned(),
    };
    format!("generation {}, {restarts}, {step}", failure.generation)
}

/// What to do next.
fn hints(failure: &Failure) -> Vec<String> {
    let mut hints = Vec::new();
    if let Some(cause) = &failure.cause {
        if !cause.advice.is_empty() {
            hints.push(format!("To do: {}", cause.advice));
        }
        if (1..THIN).contains(&cause.confidence) {
            hints.push(format!(
                "The evidence is thin (confidence {} %): look at the logs of the other ranks, too",
                cause.confidence
            ));
        }
        if cause.repeatability() == Repeatability::Certain {
            hints.push("Starting again will fail the same way: mend the error first".to_owned());
        }
        let worker_dir = cause.local_rank.map(|local_rank| {
            let attempt = failure.generation.saturating_sub(1);
            failure
                .log_dir
                .join(format!("attempt_{attempt}"))
                .join(local_rank.to_string())
        });
        if let Some(worker_dir) = worker_dir.filter(|_| failure.has_logs) {
            hints.push(format!("Log of the root cause: {}", worker_dir.display()));
        }
    }
    if failure.has_logs {
        hints.push(format!("All logs: {}", failure.log_dir.display()));
    } else {
        hints.push(
            "The workers' output went to the console only: `--tee 3` keeps it in files too"
                .to_owned(),
        );
    }
    hints
}

/// `1h02m03s`, `2m03s`, `3.4s`.
fn duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0..60 => format!("{:.1}s", duration.as_secs_f64()),
        60..3600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        _ => format!(
            "{}h{:02}m{:02}s",
            seconds / 3600,
            seconds / 60 % 60,
            seconds % 60
        ),
    }
}

struct Paint {
    colour: bool,
}

impl Paint {
    fn red(&self, text: &str) -> String {
        self.wrap("1;31", text)
    }

    fn green(&self, text: &str) -> String {
        self.wrap("32", text)
    }

    fn bold(&self, text: &str) -> String {
        self.wrap("1", text)
    }

    fn wrap(&self, code: &str, text: &str) -> String {
        if self.colour {
            format!("\x1b[{code}m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }
}
