// SPDX-License-Identifier: Apache-2.0
//! Judges a run by its history alone: what must always hold, and what its scenario expects.
//!
//! It shares no code with the product. A history can be judged again at any time, by a newer judge.
//!
//! Rules that must always hold:
//! - J-1: of no rank are there ever two workers in a generation.
//! - J-2: no worker of an older generation runs when one of a newer generation does.
//! - J-3: generations only grow, one by one, and each has one plan.
//! - J-4: the workers of a generation agree on how many they are, and each rank is there once.
//! - J-5: nobody resumes from a step whose checkpoint was never saved.
//! - J-6: no checkpoint that was saved is forgotten.
//! - J-7: a result stays, and nothing starts after it.
//! - J-8: nothing is left behind.
//! - J-9: each fault has landed. If not, the run is invalid: it says nothing about the job.

mod checkpoints;
mod evidence;
mod expectations;
mod figures;
mod lives;
mod load;
mod plans;
#[cfg(test)]
mod planted;

use serde::{Deserialize, Serialize};

pub(crate) use self::evidence::FaultSummary;
pub(crate) use self::expectations::causes;
pub(crate) use self::figures::Figures;
pub(crate) use self::lives::{Worker, workers};
pub(crate) use self::load::{History, load};

/// What a run has shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Verdict {
    /// All that must hold holds.
    Pass,
    /// It was not run, because this machine does not offer what it needs.
    Skipped,
    /// Something that must be known is not.
    Unknown,
    /// A fault has left no evidence.
    Invalid,
    /// Something that must hold does not.
    Fail,
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Check {
    /// Its short name, such as `J-1` or `restarts`.
    pub(crate) name: String,
    /// How it went.
    pub(crate) verdict: Verdict,
    /// In words.
    pub(crate) words: String,
}

/// What was found about a run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Judgement {
    /// The scenario.
    pub(crate) scenario: String,
    /// What the scenario proves.
    pub(crate) description: String,
    /// The worst of all checks.
    pub(crate) verdict: Verdict,
    /// The checks.
    pub(crate) checks: Vec<Check>,
    /// What was injected.
    pub(crate) faults: Vec<FaultSummary>,
    /// Times and counts.
    pub(crate) figures: Figures,
}

impl Check {
    fn pass(name: &str, words: impl Into<String>) -> Self {
        Self::new(name, Verdict::Pass, words)
    }

    fn new(name: &str, verdict: Verdict, words: impl Into<String>) -> Self {
        Self {
            name: name.to_owned(),
            verdict,
            words: words.into(),
        }
    }

    /// Passed if nothing is wrong, else failed with the first few things that are.
    fn of(name: &str, wrong: &[String], right: impl Into<String>) -> Self {
        if wrong.is_empty() {
            return Self::pass(name, right);
        }
        let first: Vec<&str> = wrong.iter().take(3).map(String::as_str).collect();
        let more = match wrong.len() {
            0..=3 => String::new(),
            all => format!("; and {} more", all - 3),
        };
        Self::new(name, Verdict::Fail, first.join("; ") + &more)
    }
}

/// J-8.
fn left_behind(history: &History) -> Check {
    let may_be = |left: &&String| {
        let mut allowed = history.scenario.expect.may_leave.iter();
        allowed.any(|part| left.contains(part.as_str()))
    };
    let left: Vec<String> = history
        .end
        .leftovers
        .iter()
        .filter(|left| !may_be(left))
        .cloned()
        .collect();
    Check::of("J-8", &left, "nothing is left behind")
}

/// Judges a history.
pub(crate) fn judge_history(history: &History) -> Judgement {
    let expect = &history.scenario.expect;
    let workers = workers(&history.signs);
    let figures = figures::figures(history, &workers);
    let mut checks = vec![
        lives::no_twins(&workers),
        lives::no_overlap(&history.signs, &history.samples, expect.overlap_at_most_ms),
        plans::generations_grow(history, &workers),
        lives::ranks_agree(&history.signs),
        checkpoints::resumed_from_saved(history),
        checkpoints::none_forgotten(history),
        plans::result_stays(history, &workers),
        left_behind(history),
    ];
    let faults = evidence::summaries(&history.faults);
    checks.push(evidence::all_landed(&faults, expect.faults_may_come_late));
    checks.extend(expectations::checks(history, &workers, &figures));
    let verdict = checks
        .iter()
        .map(|check| check.verdict)
        .max()
        .unwrap_or(Verdict::Unknown);
    Judgement {
        scenario: history.run.scenario.clone(),
        description: history.scenario.description.clone(),
        verdict,
        checks,
        faults,
        figures,
    }
}
