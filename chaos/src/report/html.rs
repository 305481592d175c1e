// SPDX-License-Identifier: Apache-2.0
//! The page for people: everything at a glance, each run as a timeline. It needs nothing from elsewhere.

use super::{Scorecard, escaped, timeline};
use crate::judge::{Check, Judgement, Verdict};
use crate::suite::Scored;

const STYLE: &str = "body{font:14px/1.45 sans-serif;margin:2em auto;max-width:1020px;color:#222;padding:0 1em}\
h1{font-size:1.5em}h2{font-size:1.1em;margin:0}table{border-collapse:collapse;margin:.6em 0}\
td,th{padding:.15em .8em .15em 0;text-align:left;vertical-align:top}td.n{text-align:right}\
details{border-top:1px solid #ddd;padding:.5em 0}summary{cursor:pointer}\
.v{display:inline-block;min-width:5.2em;font-weight:bold}.pass{color:#2e7d32}.fail{color:#c62828}\
.invalid,.unknown{color:#e65100}.skipped{color:#777}.grid{display:flex;flex-wrap:wrap;gap:3px;margin:1em 0}\
.grid a{width:14px;height:14px;border-radius:2px;background:currentColor}svg{max-width:100%;height:auto;background:#fafafa}\
@media(prefers-color-scheme:dark){body{background:#181818;color:#ddd}svg{background:#eee}}";

/// The page.
pub(super) fn page(results: &[Scored], scorecard: &Scorecard) -> String {
    let squares: Vec<String> = results
        .iter()
        .map(|scored| {
            let judgement = &scored.judgement;
            format!(
                "<a class=\"{}\" href=\"#{1}\" title=\"{1}: {2}\"></a>",
                class(judgement.verdict),
                escaped(&judgement.scenario),
                judgement.verdict.word()
            )
        })
        .collect();
    let sections: String = results.iter().map(section).collect();
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>Chaos report</title><meta name=\"viewport\" \
         content=\"width=device-width\"><style>{STYLE}</style></head><body>\n<h1>Chaos report</h1>\n{}<div \
         class=\"grid\">{}</div>\n{sections}</body></html>\n",
        numbers(scorecard),
        squares.concat()
    )
}

fn numbers(scorecard: &Scorecard) -> String {
    let verdicts: Vec<String> = scorecard
        .verdicts
        .iter()
        .map(|(name, count)| format!("{count} {name}"))
        .collect();
    let rows: Vec<String> = scorecard
        .recovery
        .iter()
        .map(|(what, times)| {
            format!(
                "<tr><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{:.2} s</td><td class=\"n\">{:.2} s</td></tr>\n",
                escaped(what),
                times.count,
                times.median,
                times.p99
            )
        })
        .collect();
    format!(
        "<p><b>{}</b> in {:.0} s. {} faults have landed. {} restarts, {} of them without a fault. {} causes named, {} of \
         them wrong. {:.1} % of the steps counted.</p>\n<table><tr><th>after</th><th>times</th><th>median to the next \
         step</th><th>p99</th></tr>\n{}</table>\n",
        verdicts.join(", "),
        scorecard.seconds,
        scorecard.faults,
        scorecard.restarts,
        scorecard.false_restarts,
        scorecard.causes_named,
        scorecard.causes_wrong,
        scorecard.useful_steps_percent,
        rows.concat()
    )
}

fn section(scored: &Scored) -> String {
    let judgement = &scored.judgement;
    let open = if judgement.verdict > Verdict::Skipped {
        " open"
    } else {
        ""
    };
    let picture = match &scored.history {
        Some(history) => timeline::svg(history, judgement),
        None => String::new(),
    };
    format!(
        "<details id=\"{0}\"{open}><summary><span class=\"v {1}\">{2}</span> <b>{0}</b> {3}</summary>\n{picture}{4}{5}\
         </details>\n",
        escaped(&judgement.scenario),
        class(judgement.verdict),
        judgement.verdict.word(),
        escaped(&judgement.description),
        checks(&judgement.checks),
        faults(judgement)
    )
}

fn checks(checks: &[Check]) -> String {
    let rows: Vec<String> = checks
        .iter()
        .map(|check| {
            format!(
                "<tr><td class=\"{}\">{}</td><td>{}</td><td>{}</td></tr>\n",
                class(check.verdict),
                check.verdict.word(),
                escaped(&check.name),
                escaped(&check.words)
            )
        })
        .collect();
    format!("<table>{}</table>\n", rows.concat())
}

fn faults(judgement: &Judgement) -> String {
    let rows: Vec<String> = judgement
        .faults
        .iter()
        .map(|fault| {
            let evidence = fault.evidence.as_deref().or(fault.trouble.as_deref());
            format!(
                "<tr><td>{}</td><td>{}</td><td>{}</td></tr>\n",
                escaped(&fault.fault),
                escaped(fault.node.as_deref().unwrap_or("")),
                escaped(evidence.unwrap_or("no evidence"))
            )
        })
        .collect();
    if rows.is_empty() {
        return String::new();
    }
    format!(
        "<table><tr><th>fault</th><th>node</th><th>evidence</th></tr>\n{}</table>\n",
        rows.concat()
    )
}

fn class(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Pass => "pass",
        Verdict::Skipped => "skipped",
        Verdict::Unknown => "unknown",
        Verdict::Invalid => "invalid",
        Verdict::Fail => "fail",
    }
}
