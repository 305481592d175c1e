// SPDX-License-Identifier: Apache-2.0
//! Findings about workers, as files that the rules can be applied to.

use std::fmt::Write as _;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use steadfast_core::{ClocksAhead, NodeName, Plan, kinds};
use steadfast_diagnosis::{Evidence, EvidenceFile};
use steadfast_proto::v1::Finding;
use toml::{Table, Value};

pub(super) fn gather(
    plan: &Plan,
    findings: &[&Finding],
    clocks: &ClocksAhead,
    zone: &TimeZone,
) -> Evidence {
    let mut files = vec![file("context.toml", context(plan, findings, clocks))];
    let mut launcher = String::new();
    for finding in findings {
        let Some(rank) = finding.rank else {
            continue;
        };
        let at = moment(finding.wall_ms, zone);
        let has_ended = finding.kind != kinds::WORKER_SAID;
        let mut text = String::new();
        // The last words of a process that has ended are about as old as its end. For others nobody knows.
        if let Some(at) = at.as_ref().filter(|_| has_ended) {
            let _infallible = writeln!(text, "{at} last words");
        }
        text.push_str(&finding.evidence.join("\n"));
        files.push(file(&format!("rank-{rank}.log"), text));
        if has_ended {
            end(&mut launcher, finding, rank, at.as_deref());
        }
    }
    files.push(file("launcher.log", launcher));
    Evidence::new(files)
}

fn file(name: &str, text: String) -> EvidenceFile {
    EvidenceFile {
        name: name.to_owned(),
        text,
        skipped_lines: 0,
    }
}

/// How a process has ended, as torchrun would say it.
fn end(text: &mut String, finding: &Finding, rank: u32, at: Option<&str>) {
    let Some(code) = finding.exit_code.or(finding.signal.map(|signal| -signal)) else {
        return;
    };
    if let Some(at) = at {
        let _infallible = writeln!(text, "  time      : {at}");
    }
    let local_rank = finding.local_rank.unwrap_or_default();
    let _infallible = writeln!(
        text,
        "  host      : {}\n  rank      : {rank} (local_rank: {local_rank})\n  exitcode  : {code} (pid: {})",
        finding.node, finding.pid
    );
}

fn moment(wall_ms: i64, zone: &TimeZone) -> Option<String> {
    let timestamp = Timestamp::from_millisecond(wall_ms)
        .ok()
        .filter(|_| wall_ms > 0)?;
    let zoned = timestamp.to_zoned_datetime(zone.clone());
    Some(zoned.strftime("%Y-%m-%d %H:%M:%S.%3f").to_string())
}

fn context(plan: &Plan, findings: &[&Finding], clocks: &ClocksAhead) -> String {
    let nodes = plan.members.iter().map(|member| {
        let ranks = member.base_rank.0..member.base_rank.0.saturating_add(member.slots);
        let mut node = Table::new();
        node.insert("name".to_owned(), member.node.0.clone().into());
        let ranks: Vec<Value> = ranks.map(|rank| i64::from(rank).into()).collect();
        node.insert("ranks".to_owned(), ranks.into());
        node.insert(
            "clock_ahead_s".to_owned(),
            ahead(clocks, &member.node).into(),
        );
        Value::Table(node)
    });
    let mut pids = Table::new();
    for finding in findings {
        if let Some(rank) = finding.rank.filter(|_| finding.pid != 0) {
            pids.insert(rank.to_string(), i64::from(finding.pid).into());
        }
    }
    let mut context = Table::new();
    context.insert("world_size".to_owned(), i64::from(plan.world_size).into());
    context.insert("node".to_owned(), nodes.collect::<Vec<Value>>().into());
    context.insert("pids".to_owned(), pids.into());
    context.to_string()
}

#[expect(clippy::cast_precision_loss, reason = "clocks are not that wrong")]
fn ahead(clocks: &ClocksAhead, node: &NodeName) -> f64 {
    clocks.get(node).map_or(0.0, |&ms| ms as f64 / 1000.0)
}
