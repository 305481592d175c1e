// SPDX-License-Identifier: Apache-2.0
//! The command `steadfast plan`: what failure rates imply for a job of some size.

use std::io::{self, Write as _};
use std::time::Duration;

use serde_json::{Value, json};
use steadfast_core::{Outlook, mtbf, spares};

use crate::exit_code::ExitCode;
use crate::span;

/// How sure it is that the spares are enough.
const SURE: f64 = 0.99;

/// What is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    /// Sizes of the job; each at least 1.
    pub(crate) nodes: Vec<u32>,
    /// After how long one node fails, on average; not 0.
    pub(crate) node_mttf: Duration,
    /// For how long one checkpoint keeps the training from going on; not 0.
    pub(crate) checkpoint_cost: Duration,
    /// From a failure until training goes on.
    pub(crate) restart_time: Duration,
    /// How long a node that has failed is away.
    pub(crate) repair_time: Duration,
    /// The interval between checkpoints, where it is given; not 0.
    pub(crate) interval: Option<Duration>,
    /// Answer in JSON.
    pub(crate) json: bool,
}

/// What follows for one size.
struct Row {
    nodes: u32,
    mtbf: Duration,
    interval: Duration,
    goodput: f64,
    spares: u32,
}

/// Carries out the command, and gives the exit code.
pub(crate) fn run(request: &Request) -> u8 {
    // A reader that went away (`| head`) is no failure.
    drop(io::stdout().write_all(answer(request).as_bytes()));
    ExitCode::Success as u8
}

fn answer(request: &Request) -> String {
    let rows: Vec<Row> = request
        .nodes
        .iter()
        .map(|nodes| row(request, *nodes))
        .collect();
    if request.json {
        in_json(request, &rows)
    } else {
        as_text(&rows)
    }
}

fn row(request: &Request, nodes: u32) -> Row {
    let mtbf = mtbf(nodes, request.node_mttf);
    let outlook = Outlook {
        mtbf,
        checkpoint_cost: request.checkpoint_cost,
        restart_time: request.restart_time,
    };
    let interval = request.interval.unwrap_or_else(|| outlook.interval());
    Row {
        nodes,
        mtbf,
        interval,
        goodput: outlook.goodput(interval),
        spares: spares(nodes, request.node_mttf, request.repair_time, SURE),
    }
}

fn as_text(rows: &[Row]) -> String {
    let heading = format!(
        "{:>8}  {:>14}  {:>14}  {:>8}  {:>6}\n",
        "NODES", "FAILS EVERY", "INTERVAL", "KEPT", "SPARES"
    );
    let line = |row: &Row| {
        format!(
            "{:>8}  {:>14}  {:>14}  {:>6.2} %  {:>6}\n",
            row.nodes,
            span::rounded(row.mtbf),
            span::rounded(row.interval),
            row.goodput * 100.0,
            row.spares
        )
    };
    std::iter::once(heading)
        .chain(rows.iter().map(line))
        .collect()
}

fn in_json(request: &Request, rows: &[Row]) -> String {
    let row = |row: &Row| -> Value {
        json!({
            "nodes": row.nodes,
            "mtbf_seconds": row.mtbf.as_secs_f64(),
            "interval_seconds": row.interval.as_secs_f64(),
            "goodput": row.goodput,
            "spares": row.spares,
        })
    };
    let answer = json!({
        "version": 1,
        "node_mttf_seconds": request.node_mttf.as_secs_f64(),
        "checkpoint_cost_seconds": request.checkpoint_cost.as_secs_f64(),
        "restart_time_seconds": request.restart_time.as_secs_f64(),
        "repair_time_seconds": request.repair_time.as_secs_f64(),
        "spares_probability": SURE,
        "plans": rows.iter().map(row).collect::<Vec<_>>(),
    });
    format!("{answer:#}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(nodes: &[u32]) -> Request {
        Request {
            nodes: nodes.to_vec(),
            node_mttf: Duration::from_hours(150 * 24),
            checkpoint_cost: Duration::from_secs(30),
            restart_time: Duration::from_mins(2),
            repair_time: Duration::from_hours(24),
            interval: None,
            json: false,
        }
    }

    #[test]
    fn a_table_for_people() {
        insta::assert_snapshot!(answer(&request(&[1, 16, 128, 1_024])), @r"
           NODES     FAILS EVERY        INTERVAL      KEPT  SPARES
               1           150 d      7 h 44 min   99.78 %       0
              16         9 d 9 h      1 h 55 min   99.13 %       1
             128         1 d 4 h     40 min 44 s   97.47 %       4
            1024      3 h 30 min     14 min 11 s   92.39 %      14
        ");
    }

    #[test]
    fn one_object_for_programs() {
        let asked = Request {
            json: true,
            interval: Some(Duration::from_hours(1)),
            ..request(&[128])
        };
        let answer: Value = serde_json::from_str(&answer(&asked)).unwrap();
        let plan = &answer["plans"][0];
        assert_eq!(
            (&plan["nodes"], &plan["interval_seconds"]),
            (&128.into(), &3600.0.into())
        );
        let goodput = plan["goodput"].as_f64().unwrap();
        let best = row(&request(&[128]), 128).goodput;
        assert!(goodput < best && best < 1.0, "{goodput} {best}");
    }
}
