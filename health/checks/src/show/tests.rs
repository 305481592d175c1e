// SPDX-License-Identifier: Apache-2.0
//! The forms of a report, as text, so that a change is seen.

use std::time::Duration;

use crate::outcome::Outcome;
use crate::report::{CheckResult, Report};
use crate::{CHECKS, Profile, Status};

fn result(name: &str, mut outcome: Outcome) -> CheckResult {
    outcome.evidence(format!("evidence of {name}"));
    CheckResult::new(name.to_owned(), outcome, None, Duration::from_millis(20))
}

fn report(results: Vec<CheckResult>) -> Report {
    Report {
        profile: Profile::Prolog,
        node: "gpu012".to_owned(),
        results,
        notes: vec!["a note".to_owned()],
        took: Duration::from_millis(120),
    }
}

fn sick() -> Report {
    let mut ecc = Outcome::default();
    ecc.warn("GPU 1 had many errors", "have it tested");
    ecc.fail("GPU 0 had 2 | errors", "reset it");
    report(vec![
        result("gpu-ecc", ecc),
        result("mounts", Outcome::ok("3 mounts asked, all answer")),
        result("infiniband", Outcome::unknown("there is no adapter")),
        result(
            "infiniband-counters",
            Outcome::unknown("there is no adapter"),
        ),
        result("edac", Outcome::unknown("no EDAC driver")),
        result("own", Outcome::broken("it panicked")),
    ])
}

fn well() -> Report {
    report(vec![
        result("mounts", Outcome::ok("3 mounts asked, all answer")),
        result("edac", Outcome::unknown("no EDAC driver")),
    ])
}

#[test]
fn text_tells_what_is_wrong_first_and_groups_what_could_not_be_seen() {
    insta::assert_snapshot!(super::text(&sick(), false, false), @r"
    fail     gpu-ecc              GPU 0 had 2 | errors
                                  -> reset it
    warn     gpu-ecc              GPU 1 had many errors
                                  -> have it tested
    broken   own                  it panicked
    ok       mounts               3 mounts asked, all answer
    unknown  edac                 no EDAC driver
    unknown  2 checks             there is no adapter
                                     infiniband, infiniband-counters
    note: a note
    gpu012 is not fit for jobs: of 6 checks (prolog) 1 failed, 1 broke, 3 could not be made, 1 well, in 0.12 s
    ");
    let verbose = super::text(&well(), true, true);
    assert!(
        verbose.contains("\x1b[32mok      \x1b[0m mounts"),
        "{verbose}"
    );
    assert!(verbose.contains("evidence of edac"), "{verbose}");
    assert!(verbose.contains("took 0.020 s"), "{verbose}");
    assert!(verbose.contains("gpu012 is fit for jobs"), "{verbose}");
}

#[test]
fn json_is_versioned_and_says_whether_the_node_is_fit() {
    let json: serde_json::Value = serde_json::from_str(&super::json(&sick()).unwrap()).unwrap();
    assert_eq!(json["version"], 1);
    assert_eq!(json["fit"], false);
    assert_eq!(json["reason"], "gpu-ecc: GPU 0 had 2 | errors");
    assert_eq!(json["profile"], "prolog");
    assert_eq!(json["checks"][0]["status"], "fail");
    assert_eq!(json["checks"][0]["problems"][0]["next_step"], "reset it");
    assert_eq!(json["checks"][5]["status"], "broken");
    assert_eq!(json["checks"][1]["evidence"][0], "evidence of mounts");
}

#[test]
fn nagios_has_its_codes_and_one_line() {
    insta::assert_snapshot!(super::nagios(&sick()).trim_end(), @"STEADFAST CRITICAL - gpu-ecc: GPU 0 had 2 / errors; GPU 1 had many errors; own: it panicked | time=0.120s");
    insta::assert_snapshot!(super::nagios(&well()).trim_end(), @"STEADFAST OK - 1 checks well, 1 could not be made | time=0.120s");
    let warns = |outcome: fn(&mut Outcome)| {
        let mut found = Outcome::ok("fine");
        outcome(&mut found);
        super::nagios_exit_code(&report(vec![result("c", found)]))
    };
    assert_eq!(super::nagios_exit_code(&sick()), 2);
    assert_eq!(warns(|_| {}), 0);
    assert_eq!(warns(|outcome| outcome.warn("w", "n")), 1);
    assert_eq!(warns(|outcome| outcome.unsure("u")), 3);
    assert_eq!(warns(|outcome| outcome.add(Status::Broken, "b", None)), 3);
    assert_eq!(super::nagios_exit_code(&report(Vec::new())), 3);
}

#[test]
fn metrics_have_base_units_and_one_status_each() {
    let text = super::prometheus(&sick(), Duration::from_millis(1_700_000_000_500));
    for line in [
        "# TYPE steadfast_check_fit gauge",
        "steadfast_check_fit{profile=\"prolog\"} 0",
        "steadfast_check_status{profile=\"prolog\",check=\"gpu-ecc\",status=\"fail\"} 1",
        "steadfast_check_status{profile=\"prolog\",check=\"gpu-ecc\",status=\"ok\"} 0",
        "steadfast_check_duration_seconds{profile=\"prolog\",check=\"mounts\"} 0.020000",
        "steadfast_check_run_duration_seconds{profile=\"prolog\"} 0.120000",
        "steadfast_check_run_timestamp_seconds{profile=\"prolog\"} 1700000000.500",
    ] {
        assert!(
            text.lines().any(|found| found == line),
            "{line} is not in\n{text}"
        );
    }
    let ones = text
        .lines()
        .filter(|line| line.contains("check_status{") && line.ends_with(" 1"));
    assert_eq!(ones.count(), 6);
}

#[test]
fn the_list_explains_every_check_and_every_threshold() {
    let text = super::list();
    let json: serde_json::Value = serde_json::from_str(&super::list_json().unwrap()).unwrap();
    assert_eq!(json.as_array().unwrap().len(), CHECKS.len());
    for (spec, shown) in CHECKS.iter().zip(json.as_array().unwrap()) {
        assert!(text.contains(&format!("{}  (", spec.name)), "{}", spec.name);
        assert_eq!(shown["name"], spec.name);
        assert_eq!(
            shown["thresholds"].as_array().unwrap().len(),
            spec.thresholds.len()
        );
        for threshold in spec.thresholds {
            assert!(threshold.doc().ends_with('.'), "{}", threshold.name());
        }
        assert!(
            spec.doc.ends_with('.') && !spec.profiles.is_empty(),
            "{}",
            spec.name
        );
    }
    assert!(
        text.lines().all(|line| line.chars().count() <= 130),
        "{text}"
    );
}
