// SPDX-License-Identifier: Apache-2.0
//! A run as a picture: a row for each node's ranks, the faults above, one colour for each generation.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use super::escaped;
use crate::engine::seconds;
use crate::judge::{FaultSummary, History, Judgement, Worker, workers};

const WIDTH: f64 = 960.0;
const LEFT: f64 = 110.0;
const ROW: f64 = 20.0;
const COLOURS: [&str; 8] = [
    "#4e79a7", "#59a14f", "#b07aa1", "#76b7b2", "#edc948", "#9c755f", "#ff9da7", "#bab0ac",
];

/// What places times on the picture.
#[derive(Debug, Clone, Copy)]
struct Scale {
    began_ns: u64,
    seconds: f64,
}

impl Scale {
    fn x(&self, at_ns: u64) -> f64 {
        let since = seconds(at_ns.saturating_sub(self.began_ns));
        LEFT + (since / self.seconds).min(1.0) * (WIDTH - LEFT - 10.0)
    }
}

/// Draws it.
pub(super) fn svg(history: &History, judgement: &Judgement) -> String {
    let workers = workers(&history.signs);
    let rows: BTreeSet<(String, u32)> = workers
        .iter()
        .map(|worker| (worker.node.clone(), worker.rank))
        .collect();
    let rows: BTreeMap<(String, u32), u32> = rows.into_iter().zip(0..).collect();
    let scale = Scale {
        began_ns: history.run.began_ns,
        seconds: judgement.figures.seconds.max(0.1),
    };
    let fault_rows = u32::try_from(judgement.faults.len().min(40)).unwrap_or(0);
    let top = 10.0 + f64::from(fault_rows) * ROW;
    let leaders_top = top + f64::from(u32::try_from(rows.len()).unwrap_or(0)) * ROW + 6.0;
    let height = leaders_top + 2.0 * ROW + 24.0;
    let mut text = format!(
        "<svg viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\" role=\"img\" \
         aria-label=\"timeline\" font-size=\"11\" font-family=\"sans-serif\">\n"
    );
    for (fault, row) in judgement.faults.iter().zip(0..fault_rows) {
        draw_fault(
            &mut text,
            fault,
            10.0 + f64::from(row) * ROW,
            (&scale, height),
        );
    }
    for ((node, rank), row) in &rows {
        let y = top + f64::from(*row) * ROW;
        put(
            &mut text,
            &format!(
                "<text x=\"4\" y=\"{:.1}\">{} rank {rank}</text>\n",
                y + 13.0,
                escaped(node)
            ),
        );
    }
    for worker in &workers {
        let Some(row) = rows.get(&(worker.node.clone(), worker.rank)) else {
            continue;
        };
        draw_worker(&mut text, worker, top + f64::from(*row) * ROW, &scale);
    }
    for sign in history.signs.iter().filter(|sign| sign.event == "save") {
        let Some(row) = rows.get(&(sign.node.clone(), sign.rank)) else {
            continue;
        };
        let (x, y) = (scale.x(sign.monotonic_ns), top + f64::from(*row) * ROW);
        put(
            &mut text,
            &format!(
                "<circle cx=\"{x:.1}\" cy=\"{:.1}\" r=\"2.2\" fill=\"#fff\" stroke=\"#222\"><title>checkpoint of step \
                 {}</title></circle>\n",
                y + 9.0,
                sign.step.unwrap_or(0)
            ),
        );
    }
    draw_leaders(&mut text, history, leaders_top, &scale);
    draw_axis(&mut text, height - 16.0, &scale);
    text.push_str("</svg>\n");
    text
}

fn draw_fault(text: &mut String, fault: &FaultSummary, y: f64, (scale, height): (&Scale, f64)) {
    let x = scale.x(fault.injected_ns);
    let until = fault
        .healed_ns
        .map_or(x + 3.0, |healed| scale.x(healed).max(x + 3.0));
    let colour = if fault.evidence.is_some() {
        "#d62728"
    } else {
        "#ff9800"
    };
    let whom = match (&fault.node, fault.rank) {
        (_, Some(rank)) => format!("rank {rank}"),
        (Some(node), None) => node.clone(),
        (None, None) => String::new(),
    };
    let evidence = fault
        .evidence
        .as_deref()
        .or(fault.trouble.as_deref())
        .unwrap_or("no evidence");
    // A name that does not fit behind its bar is written before it, or else into it.
    let (anchor, label_x, label) = if until < WIDTH * 0.82 {
        ("start", until + 4.0, colour)
    } else if x > WIDTH * 0.3 {
        ("end", x - 4.0, colour)
    } else {
        ("start", x + 6.0, "#fff")
    };
    put(
        text,
        &format!(
            "<line x1=\"{x:.1}\" y1=\"{y:.1}\" x2=\"{x:.1}\" y2=\"{height:.1}\" stroke=\"{colour}\" \
             stroke-dasharray=\"2 3\" opacity=\"0.6\"/>\n<rect x=\"{x:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"13\" \
             fill=\"{colour}\" opacity=\"0.8\"><title>{}</title></rect>\n<text x=\"{label_x:.1}\" y=\"{:.1}\" \
             text-anchor=\"{anchor}\" fill=\"{label}\">{} {}</text>\n",
            y + 2.0,
            until - x,
            escaped(evidence),
            y + 12.0,
            escaped(&fault.fault),
            escaped(&whom)
        ),
    );
}

fn draw_worker(text: &mut String, worker: &Worker, y: f64, scale: &Scale) {
    let (x, end) = (scale.x(worker.first_ns), scale.x(worker.last_ns));
    let colour = usize::try_from(worker.generation)
        .ok()
        .and_then(|number| COLOURS.get(number.saturating_sub(1) % COLOURS.len()))
        .unwrap_or(&"#888");
    put(
        text,
        &format!(
            "<rect x=\"{x:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"14\" rx=\"2\" fill=\"{colour}\"><title>generation \
             {} rank {} process {} on {}: {:.2} s to {:.2} s</title></rect>\n",
            y + 2.0,
            (end - x).max(1.0),
            worker.generation,
            worker.rank,
            worker.pid,
            escaped(&worker.node),
            seconds(worker.first_ns.saturating_sub(scale.began_ns)),
            seconds(worker.last_ns.saturating_sub(scale.began_ns))
        ),
    );
    if end - x > 24.0 {
        put(
            text,
            &format!(
                "<text x=\"{:.1}\" y=\"{:.1}\" fill=\"#fff\" font-size=\"10\">{}</text>\n",
                x + 4.0,
                y + 12.5,
                worker.generation
            ),
        );
    }
}

/// Who led the job, and the plans.
fn draw_leaders(text: &mut String, history: &History, y: f64, scale: &Scale) {
    put(
        text,
        &format!("<text x=\"4\" y=\"{:.1}\">leader</text>\n", y + 13.0),
    );
    put(
        text,
        &format!("<text x=\"4\" y=\"{:.1}\">plan</text>\n", y + ROW + 13.0),
    );
    let (mut shown, mut leading, mut free_from) = (None, String::new(), 0.0);
    for change in &history.store {
        let x = scale.x(change.monotonic_ns);
        let Some(value) = &change.value else { continue };
        if change.key.ends_with("/job/leader") {
            let node = value["node"].as_str().unwrap_or_default();
            if leading == node {
                continue;
            }
            node.clone_into(&mut leading);
            put(
                text,
                &format!(
                    "<text x=\"{x:.1}\" y=\"{:.1}\">▸{}</text>\n",
                    y + 13.0,
                    escaped(node)
                ),
            );
        }
        // Where a generation stands is beside its plan, or in it.
        let of_plan = change.key.ends_with("/job/plan") || change.key.ends_with("/job/course");
        if of_plan {
            let phase = if value["phase"] == "run" {
                "run"
            } else {
                "drain"
            };
            let now = (value["generation"].as_u64().unwrap_or(0), phase);
            if shown == Some(now) {
                continue;
            }
            shown = Some(now);
            // Plans that follow each other at once are written as far apart as they need.
            let label_x = x.max(free_from);
            free_from = label_x + 52.0;
            put(
                text,
                &format!(
                    "<line x1=\"{x:.1}\" y1=\"{:.1}\" x2=\"{x:.1}\" y2=\"{:.1}\" stroke=\"#222\"/><text x=\"{:.1}\" y=\"{:.1}\">{} \
                     {phase}<title>{}</title></text>\n",
                    y + ROW,
                    y + ROW + 14.0,
                    label_x + 3.0,
                    y + ROW + 13.0,
                    now.0,
                    escaped(value["why"].as_str().unwrap_or_default())
                ),
            );
        }
    }
}

fn draw_axis(text: &mut String, y: f64, scale: &Scale) {
    let step = [0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0]
        .into_iter()
        .find(|step| scale.seconds / step <= 16.0)
        .unwrap_or(600.0);
    let mut at = 0.0;
    while at <= scale.seconds {
        let x = LEFT + at / scale.seconds * (WIDTH - LEFT - 10.0);
        put(
            text,
            &format!(
                "<line x1=\"{x:.1}\" y1=\"{:.1}\" x2=\"{x:.1}\" y2=\"{y:.1}\" stroke=\"#999\"/><text x=\"{x:.1}\" y=\"{:.1}\" \
                 text-anchor=\"middle\" fill=\"#555\">{at} s</text>\n",
                y - 5.0,
                y + 12.0
            ),
        );
        at += step;
    }
}

fn put(text: &mut String, part: &str) {
    // Writing to a string cannot fail.
    let _infallible = text.write_str(part);
}
