// SPDX-License-Identifier: Apache-2.0
//! The report as CI systems read it.

use super::escaped;
use crate::judge::{Judgement, Verdict};
use crate::suite::Scored;

/// The report.
pub(super) fn text(results: &[Scored]) -> String {
    let count = |such: fn(Verdict) -> bool| {
        results
            .iter()
            .filter(|scored| such(scored.judgement.verdict))
            .count()
    };
    let seconds: f64 = results
        .iter()
        .map(|scored| scored.judgement.figures.seconds)
        .sum();
    let counts = format!(
        "tests=\"{}\" failures=\"{}\" errors=\"{}\" skipped=\"{}\" time=\"{seconds:.3}\"",
        results.len(),
        count(|verdict| verdict == Verdict::Fail),
        count(|verdict| matches!(verdict, Verdict::Invalid | Verdict::Unknown)),
        count(|verdict| verdict == Verdict::Skipped)
    );
    let cases: String = results
        .iter()
        .map(|scored| case(&scored.judgement))
        .collect();
    format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites name=\"steadfast-chaos\" {counts}>\n<testsuite \
         name=\"scenarios\" {counts}>\n{cases}</testsuite>\n</testsuites>\n"
    )
}

fn case(judgement: &Judgement) -> String {
    let wrong = judgement
        .checks
        .iter()
        .filter(|check| check.verdict != Verdict::Pass);
    let reasons: Vec<String> = wrong
        .map(|check| format!("{}: {}", check.name, check.words))
        .collect();
    let first = escaped(reasons.first().map_or("", String::as_str));
    let inner = match judgement.verdict {
        Verdict::Pass => String::new(),
        Verdict::Skipped => format!("<skipped message=\"{first}\"/>\n"),
        Verdict::Fail => {
            format!(
                "<failure message=\"{first}\">{}</failure>\n",
                escaped(&reasons.join("\n"))
            )
        }
        Verdict::Invalid | Verdict::Unknown => {
            format!(
                "<error message=\"{first}\">{}</error>\n",
                escaped(&reasons.join("\n"))
            )
        }
    };
    let faults: Vec<String> = judgement
        .faults
        .iter()
        .map(|fault| {
            let evidence = fault.evidence.as_deref().unwrap_or("no evidence");
            format!("{} ({}): {evidence}", fault.fault, fault.inject)
        })
        .collect();
    format!(
        "<testcase classname=\"chaos\" name=\"{}\" time=\"{:.3}\">\n{inner}<system-out>{}\n{}</system-out>\n</testcase>\n",
        escaped(&judgement.scenario),
        judgement.figures.seconds,
        escaped(&judgement.description),
        escaped(&faults.join("\n"))
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge::{Check, Figures};

    #[test]
    fn each_verdict_is_told_as_junit_knows_it() {
        let result = |verdict| Scored {
            judgement: Judgement {
                scenario: "a<b".to_owned(),
                description: "It proves nothing.".to_owned(),
                verdict,
                checks: vec![Check {
                    name: "J-1".to_owned(),
                    verdict,
                    words: "two & two".to_owned(),
                }],
                faults: Vec::new(),
                figures: Figures::default(),
            },
            history: None,
        };
        let text = text(&[
            result(Verdict::Pass),
            result(Verdict::Fail),
            result(Verdict::Invalid),
            result(Verdict::Skipped),
        ]);
        assert!(
            text.contains("tests=\"4\" failures=\"1\" errors=\"1\" skipped=\"1\""),
            "{text}"
        );
        assert!(
            text.contains("<failure message=\"J-1: two &amp; two\">"),
            "{text}"
        );
        assert!(
            text.contains("name=\"a&lt;b\"") && text.contains("<skipped"),
            "{text}"
        );
    }
}
