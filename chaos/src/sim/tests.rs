// SPDX-License-Identifier: Apache-2.0
use super::plant::Plant;
use super::schedule::Schedule;
use super::world::World;
use super::{Options, run};

fn options() -> Options {
    Options {
        schedules: 300,
        seed: 1,
        nodes: None,
        replay: None,
        save: None,
        trace: false,
        plant: None,
    }
}

/// What is printed, and whether every rule was kept.
fn printed(options: &Options) -> (String, bool) {
    let mut out = Vec::new();
    let kept = run(options, &mut out).unwrap();
    (String::from_utf8(out).unwrap(), kept)
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for seed in 0..20 {
        let run = || World::new(Schedule::draw(seed, None), None, true).run();
        let (first, again) = (run(), run());
        assert_eq!(first.0, again.0);
        assert_eq!(first.1, again.1, "seed {seed}");
    }
}

#[test]
fn no_rule_is_broken() {
    let (report, kept) = printed(&options());
    assert!(kept, "{report}");
    assert!(
        report.starts_with("300 schedules from seed 1 in "),
        "{report}"
    );
}

#[test]
fn every_planted_bug_is_caught_by_the_rule_that_it_breaks() {
    let rules = [
        (Plant::StartTwice, "twin ranks"),
        (Plant::IgnoreStop, "generations overlap"),
        (Plant::ReuseGeneration, "one plan a generation"),
        (Plant::UnguardedStore, "terminal"),
        (Plant::FalseExit, "false alarm"),
        (Plant::MuteKeeper, "liveness"),
        (Plant::DoubleCharge, "charged once"),
        (Plant::StartAfterEnd, "terminal"),
        (Plant::GenerousBudget, "restart budget"),
    ];
    for (plant, rule) in rules {
        let caught = (0..1_000).find_map(|seed| {
            let (ending, _) = World::new(Schedule::draw(seed, None), Some(plant), false).run();
            ending.err().filter(|violation| violation.rule == rule)
        });
        assert!(caught.is_some(), "{plant:?} broke no rule named {rule}");
    }
}

#[test]
fn a_broken_rule_is_reported_with_what_repeats_it() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("schedule.json");
    let planted = Options {
        plant: Some(Plant::IgnoreStop),
        save: Some(file.clone()),
        ..options()
    };
    let (report, kept) = printed(&planted);
    assert!(!kept && report.contains("broken: "), "{report}");
    let seed = report
        .split("--seed ")
        .nth(1)
        .and_then(|rest| rest.split(' ').next());
    let again = Options {
        seed: seed.unwrap().parse().unwrap(),
        schedules: 1,
        ..planted.clone()
    };
    assert!(!printed(&again).1);
    let replayed = Options {
        replay: Some(file.clone()),
        ..planted
    };
    assert!(!printed(&replayed).1);
    // The bug is in the world, not in the schedule.
    let honest = Options {
        replay: Some(file),
        ..options()
    };
    assert!(printed(&honest).1);
}

#[test]
fn a_traced_run_tells_what_happened() {
    let traced = Options {
        trace: true,
        seed: 5,
        ..options()
    };
    let (report, kept) = printed(&traced);
    assert!(
        kept && report.contains("agent 1 starts") && report.contains("/plan = "),
        "{report}"
    );
}
