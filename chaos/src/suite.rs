// SPDX-License-Identifier: Apache-2.0
//! Runs scenarios one after the other, and judges each.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use crate::doctor::Machine;
use crate::engine;
use crate::failure::Failure;
use crate::judge::{self, Check, Figures, History, Judgement, Verdict};
use crate::scenario::Source;
use crate::world::Tools;

/// What a suite has shown.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// The judgement of each scenario.
    pub(crate) results: Vec<Scored>,
    /// What the harness could not do.
    pub(crate) failures: Vec<String>,
}

/// A scenario that was run, or skipped.
#[derive(Debug)]
pub(crate) struct Scored {
    /// What was found.
    pub(crate) judgement: Judgement,
    /// Its history, if it was run.
    pub(crate) history: Option<History>,
}

/// How scenarios are run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Conditions<'a> {
    /// What worlds are made from.
    pub(crate) tools: &'a Tools,
    /// What the machine can do.
    pub(crate) machine: &'a Machine,
    /// The history of each scenario goes to a directory of its own below this one.
    pub(crate) directory: &'a Path,
    /// So many at once.
    pub(crate) jobs: usize,
}

/// Runs them.
pub(crate) fn run(
    sources: &[Source],
    conditions: Conditions<'_>,
    out: &mut (impl Write + Send),
) -> Result<Outcome, Failure> {
    let (next, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
    let out = Mutex::new(out);
    let ran = thread::scope(|scope| {
        let work = || some(sources, conditions, (&next, &stop), &out);
        // Whatever is started dies with the thread that has started it: each lives as long as its scenarios.
        let others: Vec<_> = (1..conditions.jobs).map(|_| scope.spawn(work)).collect();
        let mut ran = vec![work()];
        for other in others {
            let lost = || Failure::Unexpected("a thread of the harness has failed".to_owned());
            ran.push(other.join().unwrap_or_else(|_| Err(lost())));
        }
        ran
    });
    let mut results = Vec::new();
    let mut failures = Vec::new();
    for part in ran {
        let (part, troubles) = part?;
        results.extend(part);
        failures.extend(troubles);
    }
    results.sort_by_key(|(index, _)| *index);
    Ok(Outcome {
        results: results.into_iter().map(|(_, scored)| scored).collect(),
        failures,
    })
}

/// What one thread has run, by place in the list, and what went wrong with the harness.
type Ran = (Vec<(usize, Scored)>, Vec<String>);

/// Takes the next one again and again.
fn some(
    sources: &[Source],
    conditions: Conditions<'_>,
    (next, stop): (&AtomicUsize, &AtomicBool),
    out: &Mutex<impl Write>,
) -> Result<Ran, Failure> {
    let mut ran = (Vec::new(), Vec::new());
    let say = |line: &str| {
        let mut out = out
            .lock()
            .map_err(|_| Failure::Unexpected("a thread of the harness has failed".to_owned()))?;
        writeln!(out, "{line}").map_err(|error| Failure::write("the report", error))
    };
    loop {
        let index = next.fetch_add(1, Ordering::Relaxed);
        let Some(source) = sources.get(index) else {
            return Ok(ran);
        };
        let title = format!("[{}/{}] {}", index + 1, sources.len(), source.name);
        if let Some(reason) = obstacle(source, conditions.machine) {
            say(&format!("{title}: skipped: {reason}"))?;
            let judgement = skipped(source, &reason);
            ran.0.push((
                index,
                Scored {
                    judgement,
                    history: None,
                },
            ));
            continue;
        }
        let history = conditions.directory.join(&source.name);
        let run_name = format!("sc-{}-{index}", std::process::id());
        match one(source, conditions.tools, (&run_name, stop), &history) {
            Ok((scored, left)) => {
                ran.1.extend(left);
                say(&format!("{title}: {}", told(&scored.judgement)))?;
                ran.0.push((index, scored));
            }
            Err(interrupted @ Failure::Interrupted(_)) => {
                stop.store(true, Ordering::Relaxed);
                return Err(interrupted);
            }
            Err(failure) => {
                say(&format!("{title}: HARNESS ERROR: {failure}"))?;
                ran.1.push(format!("{}: {failure}", source.name));
            }
        }
    }
}

/// Judges histories that are there already.
pub(crate) fn judge_again(directories: &[PathBuf]) -> Result<Vec<Scored>, Failure> {
    directories
        .iter()
        .map(|directory| {
            let history = judge::load(directory)?;
            Ok(Scored {
                judgement: judge::judge_history(&history),
                history: Some(history),
            })
        })
        .collect()
}

/// What was found of one scenario, for the terminal.
pub(crate) fn told(judgement: &Judgement) -> String {
    let figures = &judgement.figures;
    let restarts = figures.generations.saturating_sub(1);
    let recoveries = figures
        .outages
        .iter()
        .map(|outage| format!("{:.2}", outage.to_step));
    let recoveries: Vec<String> = recoveries.collect();
    let recovered = match recoveries.as_slice() {
        [] => String::new(),
        times => format!(", trained again after {} s", times.join(", ")),
    };
    let mut text = format!(
        "{} ({:.1} s, {restarts} restarts{recovered})",
        judgement.verdict.word(),
        figures.seconds
    );
    let wrong = judgement
        .checks
        .iter()
        .filter(|check| check.verdict != Verdict::Pass);
    for check in wrong {
        text.push_str("\n    ");
        text.push_str(&[check.verdict.word(), &check.name, &check.words].join(": "));
    }
    text
}

fn one(
    source: &Source,
    tools: &Tools,
    (run_name, stop): (&str, &AtomicBool),
    history: &Path,
) -> Result<(Scored, Vec<String>), Failure> {
    let left = engine::run(source, tools, (run_name, stop), history)?;
    let read = judge::load(history)?;
    let judgement = judge::judge_history(&read);
    crate::history::write_json(&history.join("verdict.json"), &judgement)?;
    let scored = Scored {
        judgement,
        history: Some(read),
    };
    Ok((scored, left))
}

fn obstacle(source: &Source, machine: &Machine) -> Option<String> {
    source.scenario.needs().into_iter().find_map(|capability| {
        let reason = machine.obstacle(capability)?;
        Some(format!("{capability}: {reason}"))
    })
}

fn skipped(source: &Source, reason: &str) -> Judgement {
    Judgement {
        scenario: source.name.clone(),
        description: source.scenario.description.clone(),
        verdict: Verdict::Skipped,
        checks: vec![Check {
            name: "requirements".to_owned(),
            verdict: Verdict::Skipped,
            words: reason.to_owned(),
        }],
        faults: Vec::new(),
        figures: Figures::default(),
    }
}

impl Verdict {
    /// The word for it.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Skipped => "skipped",
            Self::Unknown => "UNKNOWN",
            Self::Invalid => "INVALID",
            Self::Fail => "FAIL",
        }
    }
}
