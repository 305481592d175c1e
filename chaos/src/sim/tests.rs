// SPDX-License-Identifier: Apache-2.0
use super::plant::Plant;
use super::schedule::Schedule;
use super::world::World;

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
fn no_invariant_is_broken() {
    for seed in 0..300 {
        let (ending, _) = World::new(Schedule::draw(seed, None), None, false).run();
        assert!(ending.is_ok(), "seed {seed}: {ending:?}");
    }
}

#[test]
fn every_planted_bug_is_caught() {
    for plant in Plant::ALL {
        let caught = (0..500).find_map(|seed| {
            let (ending, _) = World::new(Schedule::draw(seed, None), Some(plant), false).run();
            ending.err()
        });
        assert!(caught.is_some(), "{plant:?} was not caught");
    }
}
