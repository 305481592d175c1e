// SPDX-License-Identifier: Apache-2.0
//! From how a worker ended to a finding: what kind of failure, whether it can be the cause, whether it must recur.

mod rules;
#[cfg(test)]
mod tests;

use steadfast_proto::v1::{FaultClass, FaultRole, Finding, Repeatability};

use self::rules::{Rule, Strength};
use crate::error_file::WorkerError;
use crate::fingerprint::{exception_fingerprint, exit_fingerprint};
use crate::python_traceback::{Traceback, last_traceback, parse_text};

/// Most last lines that are looked at.
const MAX_LINES: usize = 200;
/// Most bytes of a line that are looked at.
const MAX_LINE_BYTES: usize = 2048;
/// Most last lines that are kept as evidence.
const EVIDENCE_LINES: usize = 20;
/// Most bytes of one piece of evidence.
const EVIDENCE_BYTES: usize = 8 * 1024;

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// By itself, with this code, 0 to 255.
    Code(i32),
    /// By this signal.
    Signal(i32),
}

/// All that is known of a worker that ended.
#[derive(Clone, Copy, Debug)]
pub struct WorkerExit<'a> {
    /// How it ended.
    pub exit: Exit,
    /// What its error file said, if it left one.
    pub error: Option<&'a WorkerError>,
    /// Where that file is; empty if there is none.
    pub error_file: &'a str,
    /// Its last lines on standard error, oldest first.
    pub stderr: &'a [String],
    /// Its process id.
    pub pid: u32,
}

/// Says what the end of a worker means.
///
/// Fills in kind, class, role, repeatability, exit code or signal, fingerprint, summary, evidence, error file, pid, and,
/// if the error file tells, the wall-clock time. The caller adds generation, node, ranks, monotonic time and step.
pub fn diagnose(worker: &WorkerExit<'_>) -> Finding {
    let exit = effective(worker.exit);
    let start = worker.stderr.len().saturating_sub(MAX_LINES);
    let lines: Vec<&str> = worker.stderr[start..]
        .iter()
        .map(|line| start_of(line, MAX_LINE_BYTES))
        .collect();
    let traceback = traceback(worker, &lines);
    let told_by_itself = traceback
        .as_ref()
        .filter(|found| found.exception != CHOSEN_EXIT);
    let judgement = judge(exit, &lines, told_by_itself);
    let (exit_code, signal) = match worker.exit {
        Exit::Code(code) => (Some(code), None),
        Exit::Signal(signal) => (None, Some(signal)),
    };
    Finding {
        kind: "worker.exited".to_owned(),
        class: judgement.class.into(),
        role: judgement.role.into(),
        repeatability: judgement.repeatability.into(),
        wall_ms: worker
            .error
            // When the program chose to end is no earlier sign of a fault than its end.
            .filter(|error| error.exception != CHOSEN_EXIT)
            .and_then(|error| error.raised_ms)
            .unwrap_or_default(),
        exit_code,
        signal,
        fingerprint: fingerprint(exit, &lines, traceback.as_ref(), &judgement),
        summary: summary(worker.exit, &lines, traceback.as_ref(), &judgement),
        evidence: evidence(worker, &lines, traceback.as_ref()),
        error_file: worker.error_file.to_owned(),
        pid: worker.pid,
        ..Finding::default()
    }
}

struct Judgement {
    class: FaultClass,
    role: FaultRole,
    repeatability: Repeatability,
    /// In a few words, if a rule had any.
    words: Option<&'static str>,
    /// The line that told.
    line: Option<String>,
}

/// A shell that ran the worker's program reports a signal as 128 plus its number.
fn effective(exit: Exit) -> Exit {
    match exit {
        Exit::Code(code @ (129 | 130 | 132 | 134..=137 | 139 | 143)) => Exit::Signal(code - 128),
        other => other,
    }
}

/// An exit that the program chose. What it had to say about why, it has printed.
const CHOSEN_EXIT: &str = "SystemExit";

/// The traceback of the error file, or else the last one on standard error.
fn traceback(worker: &WorkerExit<'_>, lines: &[&str]) -> Option<Traceback> {
    let from_file = worker
        .error
        .filter(|error| error.note.is_none())
        .map(|error| {
            let mut found = parse_text(&error.traceback).unwrap_or_default();
            if !error.exception.is_empty() {
                found.exception.clone_from(&error.exception);
                found.message.clone_from(&error.message);
            } else if found.exception.is_empty() {
                found.message.clone_from(&error.message);
            }
            if found.text.is_empty() {
                found.text.clone_from(&error.traceback);
            }
            found
        });
    from_file.or_else(|| match effective(worker.exit) {
        // An old traceback on standard error did not kill it.
        Exit::Signal(9) => None,
        _ => last_traceback(lines),
    })
}

fn judge(exit: Exit, lines: &[&str], traceback: Option<&Traceback>) -> Judgement {
    let thrown = traceback.map(thrown_text);
    let by_exception = thrown
        .as_deref()
        .and_then(|text| rules::first_match(text, Strength::Any).map(|rule| (rule, text)));
    let strong = || newest_match(lines, Strength::Strong);
    let any = || newest_match(lines, Strength::Any);
    let told = match (by_exception, exit) {
        // Many a wrapper's error hides the reason, which was printed before.
        (Some((rule, text)), _) if rule.role == FaultRole::Consequence => {
            strong().or(Some((rule, text)))
        }
        (Some(found), _) => Some(found),
        (None, Exit::Signal(9 | 15 | 1 | 2)) => strong(),
        (None, _) if traceback.is_some() => strong(),
        (None, _) => any(),
    };
    if let Some((rule, line)) = told {
        return Judgement {
            class: rule.class,
            role: rule.role,
            repeatability: rule.repeatability,
            words: Some(rule.words),
            line: Some(line.to_owned()),
        };
    }
    let (class, repeatability, words) = match exit {
        Exit::Code(126) => (
            FaultClass::Program,
            Repeatability::Certain,
            Some("the program cannot be executed"),
        ),
        Exit::Code(127) => (
            FaultClass::Program,
            Repeatability::Certain,
            Some("the program was not found"),
        ),
        Exit::Code(_) => (FaultClass::Program, Repeatability::MayDiffer, None),
        Exit::Signal(9) => (
            FaultClass::Killed,
            Repeatability::MayDiffer,
            Some("somebody killed it, or the kernel did for lack of memory"),
        ),
        Exit::Signal(1 | 2 | 15) => (
            FaultClass::Killed,
            Repeatability::MayDiffer,
            Some("somebody asked it to end"),
        ),
        Exit::Signal(_) => (FaultClass::Program, Repeatability::MayDiffer, None),
    };
    Judgement {
        class,
        role: FaultRole::Cause,
        repeatability,
        words,
        line: None,
    }
}

/// The rule for the newest line that one applies to.
fn newest_match<'a>(lines: &[&'a str], strength: Strength) -> Option<(&'static Rule, &'a str)> {
    let mut recent = lines.iter().rev().take(EVIDENCE_LINES * 2);
    recent.find_map(|line| rules::first_match(line, strength).map(|rule| (rule, *line)))
}

fn thrown_text(traceback: &Traceback) -> String {
    match traceback.exception.as_str() {
        "" => traceback.message.clone(),
        exception => format!("{exception}: {}", traceback.message),
    }
}

fn fingerprint(
    exit: Exit,
    lines: &[&str],
    traceback: Option<&Traceback>,
    judgement: &Judgement,
) -> String {
    if let Some(found) = traceback {
        return exception_fingerprint(
            &found.exception,
            &found.message,
            found.innermost_user_frame(),
        );
    }
    let last = match (exit, judgement.line.as_deref()) {
        (_, Some(line)) => Some(line),
        (Exit::Code(_), None) => last_message(lines),
        (Exit::Signal(_), None) => None,
    };
    exit_fingerprint(exit, last)
}

/// The last line on standard error that says anything.
fn last_message<'a>(lines: &[&'a str]) -> Option<&'a str> {
    lines
        .iter()
        .rev()
        .map(|line| line.trim())
        .find(|line| line.chars().any(char::is_alphabetic))
}

fn summary(
    exit: Exit,
    lines: &[&str],
    traceback: Option<&Traceback>,
    judgement: &Judgement,
) -> String {
    let how = match exit {
        Exit::Code(code) => format!("exited with code {code}"),
        Exit::Signal(signal) => format!("was killed by {}", signal_name(signal)),
    };
    let place = traceback
        .and_then(Traceback::innermost_user_frame)
        .map(|frame| {
            let function = if frame.function.is_empty() {
                String::new()
            } else {
                format!(" in {}", frame.function)
            };
            format!(" ({}:{}{function})", frame.file, frame.line)
        });
    let thrown = traceback
        .map(|found| first_line(&thrown_text(found)))
        .filter(|thrown| !thrown.is_empty());
    let what = thrown.map(|thrown| format!("{thrown}{}", place.unwrap_or_default()));
    let line = judgement
        .line
        .as_deref()
        .map(|line| first_line(line.trim()));
    let last = matches!(exit, Exit::Code(_))
        .then(|| last_message(lines).map(first_line))
        .flatten();
    match (what, judgement.words, line.or(last)) {
        (Some(what), _, _) => format!("{how}: {what}"),
        (None, Some(words), Some(line)) => format!("{how}: {words}: {line}"),
        (None, Some(words), None) => format!("{how}: {words}"),
        (None, None, Some(line)) => format!("{how}; its last message: {line}"),
        (None, None, None) => how,
    }
}

fn first_line(text: &str) -> String {
    const MAX_CHARACTERS: usize = 300;
    let line = text.lines().next().unwrap_or_default();
    match line.char_indices().nth(MAX_CHARACTERS) {
        Some((end, _)) => format!("{}...", &line[..end]),
        None => line.to_owned(),
    }
}

fn evidence(worker: &WorkerExit<'_>, lines: &[&str], traceback: Option<&Traceback>) -> Vec<String> {
    let mut evidence = Vec::new();
    if let Some(found) = traceback.filter(|found| !found.text.is_empty()) {
        evidence.push(bounded(&found.text));
    }
    if let Some(note) = worker.error.and_then(|error| error.note.as_ref()) {
        evidence.push(note.clone());
    }
    let last = lines[lines.len().saturating_sub(EVIDENCE_LINES)..].join("\n");
    if !last.is_empty() {
        evidence.push(bounded(&last));
    }
    evidence
}

fn start_of(text: &str, bytes: usize) -> &str {
    let mut end = text.len().min(bytes);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// The end of a long text, which says more than its start.
fn bounded(text: &str) -> String {
    let mut start = text.len().saturating_sub(EVIDENCE_BYTES);
    while !text.is_char_boundary(start) {
        start += 1;
    }
    text[start..].to_owned()
}

/// `SIGKILL`, or `signal 40` for one without a name.
pub fn signal_name(signal: i32) -> String {
    const NAMES: [&str; 31] = [
        "SIGHUP",
        "SIGINT",
        "SIGQUIT",
        "SIGILL",
        "SIGTRAP",
        "SIGABRT",
        "SIGBUS",
        "SIGFPE",
        "SIGKILL",
        "SIGUSR1",
        "SIGSEGV",
        "SIGUSR2",
        "SIGPIPE",
        "SIGALRM",
        "SIGTERM",
        "SIGSTKFLT",
        "SIGCHLD",
        "SIGCONT",
        "SIGSTOP",
        "SIGTSTP",
        "SIGTTIN",
        "SIGTTOU",
        "SIGURG",
        "SIGXCPU",
        "SIGXFSZ",
        "SIGVTALRM",
        "SIGPROF",
        "SIGWINCH",
        "SIGIO",
        "SIGPWR",
        "SIGSYS",
    ];
    let index = usize::try_from(signal)
        .ok()
        .and_then(|signal| signal.checked_sub(1));
    match index.and_then(|index| NAMES.get(index)) {
        Some(name) => (*name).to_owned(),
        None => format!("signal {signal}"),
    }
}
