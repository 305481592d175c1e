// SPDX-License-Identifier: Apache-2.0

use std::path::Path;

use serde_json::json;

use super::report::Report;
use super::sources::read;

fn dumps() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../health/testdata/flight_recorder")
}

#[test]
fn dumps_are_compared_and_the_rank_that_is_missing_named() {
    let directory = tempfile::tempdir().unwrap();
    for rank in [0, 1] {
        let name = format!("fr_gloo_rank_{rank}");
        std::fs::copy(dumps().join(&name), directory.path().join(&name)).unwrap();
    }
    std::fs::write(directory.path().join("trace_rank_2"), "cut").unwrap();
    std::fs::write(directory.path().join("notes.txt"), "other").unwrap();
    let report = Report::new(&read(directory.path()).unwrap());
    let json = report.json();
    assert_eq!(json["flight_recorder"]["problems"][0]["kind"], "not_joined");
    assert_eq!(json["flight_recorder"]["problems"][0]["ranks"], json!([1]));
    let text = report.to_string();
    assert!(
        text.contains("ranks 1 have not joined gloo:all_reduce"),
        "{text}"
    );
    assert!(text.contains("trace_rank_2 is passed over"), "{text}");
}

#[test]
fn evidence_is_judged_anew() {
    let directory = tempfile::tempdir().unwrap();
    let rank = |number: u32, kernel: &str, doing: &str| {
        json!({
            "node": "n1", "rank": number, "local_rank": number, "pid": 7, "step": 5, "activity": "train",
            "kernel": kernel, "wchan": null, "doing": doing, "stack": [], "still": true, "cpu": 0.0,
        })
    };
    let index = json!({
        "version": 1,
        "incident": { "kind": "stall" },
        "ranks": [rank(0, "sleeping", "network"), rank(1, "stopped", "unknown")],
        "files": [],
    });
    std::fs::write(directory.path().join("index.json"), index.to_string()).unwrap();
    let report = Report::new(&read(directory.path()).unwrap());
    assert_eq!(report.json()["verdict"]["culprit"]["rank"], 1);
    let text = report.to_string();
    assert!(
        text.starts_with("verdict   rank 1 on n1 holds up the others"),
        "{text}"
    );
    std::fs::write(directory.path().join("index.json"), "{}").unwrap();
    let error = read(directory.path()).unwrap_err().to_string();
    assert!(error.contains("is no index of evidence"), "{error}");
}

#[test]
fn where_nothing_is_that_is_said() {
    let directory = tempfile::tempdir().unwrap();
    let error = read(directory.path()).unwrap_err().to_string();
    assert!(error.contains("there is nothing to explain"), "{error}");
    assert!(read(Path::new("/nonexistent/x")).is_err());
    let file = directory.path().join("rank_3");
    std::fs::write(&file, "no dump").unwrap();
    let error = read(&file).unwrap_err().to_string();
    assert!(error.contains("it is no flight-recorder dump"), "{error}");
}
