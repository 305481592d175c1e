// SPDX-License-Identifier: Apache-2.0
//! What all checks together have found.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::outcome::{Outcome, Problem, Status};
use crate::profile::Profile;
use crate::settings::Severity;

/// The result of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The occasion.
    pub profile: Profile,
    /// Name of the node.
    pub node: String,
    /// One for each check that was made, in the order of the table; commands of the site come last.
    pub results: Vec<CheckResult>,
    /// What there is to say about the run itself, such as a memory that cannot be written.
    pub notes: Vec<String>,
    /// How long all of it took.
    pub took: Duration,
}

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CheckResult {
    /// Name of the check.
    pub name: String,
    /// How it stands.
    pub status: Status,
    /// One line: what is wrong, or that nothing is.
    pub summary: String,
    /// All that is not as it should be, the worst first.
    pub problems: Vec<Problem>,
    /// What it was concluded from.
    pub evidence: Vec<String>,
    /// How long it took.
    pub took: Duration,
}

/// Characters of a reason.
const MOST_REASON: usize = 200;

impl Report {
    /// Whether jobs may run on the node: nothing failed. What could not be looked at, and checks that broke, count against
    /// nobody.
    pub fn is_fit(&self) -> bool {
        self.with(Status::Fail).next().is_none()
    }

    /// The results with this status.
    pub fn with(&self, status: Status) -> impl Iterator<Item = &CheckResult> {
        let results = self.results.iter();
        results.filter(move |result| result.status == status)
    }

    /// Why the node is not fit, in one short line without quotation marks, as for a scheduler; empty when it is fit.
    pub fn reason(&self) -> String {
        let texts: Vec<String> = self
            .with(Status::Fail)
            .flat_map(|result| {
                let failed = result.problems.iter();
                let failed = failed.filter(|problem| problem.status == Status::Fail);
                failed.map(|problem| format!("{}: {}", result.name, problem.text))
            })
            .collect();
        let line = texts.join("; ").replace(['\'', '"', '`', '\\'], "");
        match line.char_indices().nth(MOST_REASON) {
            Some((end, _)) => format!("{}...", &line[..end]),
            None => line,
        }
    }
}

impl CheckResult {
    pub(crate) fn new(
        name: String,
        outcome: Outcome,
        severity: Option<Severity>,
        took: Duration,
    ) -> Self {
        let mut problems = outcome.problems;
        for problem in &mut problems {
            if let Some(severity) = severity {
                problem.status = severity.apply(problem.status);
            }
        }
        problems.sort_by_key(|problem| std::cmp::Reverse(problem.status));
        let status = problems.first().map_or(Status::Ok, |worst| worst.status);
        let texts: Vec<&str> = problems
            .iter()
            .map(|problem| problem.text.as_str())
            .collect();
        Self {
            name,
            status,
            summary: if texts.is_empty() {
                outcome.fine
            } else {
                texts.join("; ")
            },
            problems,
            evidence: outcome.evidence,
            took,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(name: &str, outcome: Outcome, severity: Option<Severity>) -> CheckResult {
        CheckResult::new(name.to_owned(), outcome, severity, Duration::ZERO)
    }

    fn report(results: Vec<CheckResult>) -> Report {
        Report {
            profile: Profile::Prolog,
            node: "n1".to_owned(),
            results,
            notes: Vec::new(),
            took: Duration::ZERO,
        }
    }

    #[test]
    fn only_failures_make_a_node_unfit_and_the_reason_can_be_quoted() {
        let mut bad = Outcome::default();
        bad.warn("a bit \"warm\"", "wait");
        bad.fail("GPU 3's memory", "reset");
        let broken = result("broken", Outcome::broken("bug"), None);
        let fit = report(vec![
            broken,
            result("absent", Outcome::unknown("no GPU"), None),
        ]);
        assert!(fit.is_fit());
        assert_eq!(fit.reason(), "");
        let unfit = report(vec![result("gpu-ecc", bad.clone(), None)]);
        assert!(!unfit.is_fit());
        assert_eq!(unfit.results[0].summary, "GPU 3's memory; a bit \"warm\"");
        assert_eq!(unfit.reason(), "gpu-ecc: GPU 3s memory");
        let softened = report(vec![result("gpu-ecc", bad.clone(), Some(Severity::Warn))]);
        assert!(softened.is_fit());
        let hardened = report(vec![result("gpu-ecc", bad, Some(Severity::Fail))]);
        assert_eq!(
            hardened.reason(),
            "gpu-ecc: a bit warm; gpu-ecc: GPU 3s memory"
        );
    }

    #[test]
    fn a_reason_is_short() {
        let mut bad = Outcome::default();
        for _ in 0..20 {
            bad.fail("ä".repeat(40), "n");
        }
        let reason = report(vec![result("c", bad, None)]).reason();
        assert_eq!(reason.chars().count(), MOST_REASON + 3);
    }
}
