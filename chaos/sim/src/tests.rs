// SPDX-License-Identifier: Apache-2.0
use std::path::{Path, PathBuf};

use crate::campaign::Campaign;
use crate::cli::{SimArgs, run};
use crate::recovery::Recovery;
use crate::schedule::{Fault, FaultKind, Schedule};
use crate::world::World;

fn args() -> SimArgs {
    SimArgs {
        schedules: Some(150),
        seed: 1,
        nodes: None,
        recovery: false,
        replay: None,
        save: None,
        trace: false,
    }
}

/// What is printed, and whether every rule was kept.
fn printed(args: &SimArgs) -> (String, bool) {
    let mut out = Vec::new();
    let kept = run(args, &mut out).unwrap();
    (String::from_utf8(out).unwrap(), kept)
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for seed in 0..20 {
        let run = || World::new(Schedule::draw(seed, None), true).run();
        let (first, again) = (run(), run());
        assert_eq!(first.0, again.0);
        assert_eq!(first.1, again.1, "seed {seed}");
    }
}

#[test]
fn no_rule_is_broken() {
    let (report, kept) = printed(&args());
    assert!(kept, "{report}");
    assert!(
        report.starts_with("150 schedules from seed 1 in "),
        "{report}"
    );
}

#[test]
fn a_job_of_many_nodes_keeps_the_rules() {
    let campaign = Campaign::run(1, 1, Some(100));
    assert!(campaign.broken.is_none(), "{:?}", campaign.broken);
}

#[test]
fn what_a_recovery_costs_a_node_does_not_depend_on_how_many_there_are() {
    let cost = |nodes| Recovery::run(nodes, 1).unwrap().for_each_node();
    let (few, many) = (cost(20), cost(200));
    assert!(many < few * 1.2, "{few} for 20 nodes, {many} for 200");
}

/// A lease that somebody revokes by hand is a broken promise, and no schedule is drawn with it; the simulator knows it.
fn broken_promise() -> (Schedule, u64) {
    let found = (1..500).find_map(|seed| {
        let mut schedule = Schedule::draw(seed, Some(3));
        schedule.faults.clear();
        schedule.shape.synchronous = false;
        schedule.shape.witness = crate::schedule::Witness::Off;
        for at_ms in [4_000, 5_500, 7_000] {
            schedule.faults.push(Fault {
                at_ms,
                in_restart: None,
                node: 1,
                kind: FaultKind::LeaseRevoked,
            });
        }
        let (ending, _) = World::new(schedule.clone(), false).run();
        ending.is_err().then_some((schedule, seed))
    });
    found.expect("a schedule that breaks a rule")
}

#[test]
fn a_schedule_that_breaks_a_rule_is_kept_in_a_file_and_shrinks() {
    let (schedule, _) = broken_promise();
    let violation = World::new(schedule.clone(), false).run().0.unwrap_err();
    let smallest = crate::shrink::shrink(schedule.clone(), &violation);
    assert!(smallest.faults.len() < schedule.faults.len());
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("schedule.json");
    std::fs::write(&file, serde_json::to_string(&smallest).unwrap()).unwrap();
    for path in [file, directory.path().to_owned()] {
        let replayed = SimArgs {
            replay: Some(path),
            ..args()
        };
        let (report, kept) = printed(&replayed);
        let rule = format!("broken: {}: ", violation.rule);
        assert!(!kept && report.contains(&rule), "{report}");
    }
}

#[test]
fn a_traced_run_tells_what_happened() {
    let traced = SimArgs {
        trace: true,
        seed: 5,
        ..args()
    };
    let (report, kept) = printed(&traced);
    assert!(
        kept && report.contains("agent 1 starts") && report.contains("/job/plan = "),
        "{report}"
    );
}

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name)
}

#[test]
fn what_was_once_broken_is_kept() {
    let replayed = SimArgs {
        replay: Some(folder("regressions")),
        ..args()
    };
    let (report, kept) = printed(&replayed);
    assert!(kept, "{report}");
    assert!(report.lines().count() >= 5, "{report}");
}

/// Otherwise `scripts/mutants.sh`, which takes long, would be the first to see it.
#[test]
fn every_planted_bug_has_its_place_in_the_sources() {
    let chaos = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut bugs = 0;
    for file in std::fs::read_dir(chaos.join("mutants")).unwrap() {
        let path = file.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        let bug: toml::Table = toml::from_str(&text).unwrap();
        let field = |name: &str| bug[name].as_str().unwrap();
        let source = chaos.parent().unwrap().join(field("file"));
        let source = std::fs::read_to_string(source).unwrap();
        let places = source.matches(field("find")).count();
        assert_eq!(places, 1, "{}", path.display());
        assert!(bug["seed"].as_integer().unwrap() > 0, "{}", path.display());
        bugs += 1;
    }
    assert!(bugs >= 10, "{bugs} planted bugs");
}
