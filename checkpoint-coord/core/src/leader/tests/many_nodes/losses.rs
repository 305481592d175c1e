// SPDX-License-Identifier: Apache-2.0
//! From when on the workers of a lost node can run no more, as far as leaders of different kinds can know.

use super::*;

/// A window of four seconds, as the members have agreed on.
const WINDOW: Duration = Duration::from_secs(4);

impl Bench {
    /// Nodes a and b train, c waits.
    fn training() -> Self {
        let mut bench = Self::with(2, 2, &["a", "b", "c"], |_| {});
        bench.report("a", MemberPhase::Running, |_| {});
        bench.report("b", MemberPhase::Running, |_| {});
        bench.vouch(WINDOW);
        bench
    }

    /// Another supervisor leads from here on.
    fn take_over(&mut self, own_steps: Option<OwnSteps>) {
        let settings = LeaderSettings {
            shared: true,
            ..leader_settings(2)
        };
        self.leader = Leader::new(settings, self.leader.epoch, load(&self.store));
        if let Some(steps) = own_steps {
            let generation = self.plan().generation;
            self.leader.note_own_steps(generation, steps);
        }
        self.tell(LeaderEvent::Tick);
    }

    /// How long after `since` the next generation begins.
    fn begins_after(&mut self, since: Instant) -> Duration {
        let before = self.plan().generation;
        for _ in 0..10 {
            if self.plan().generation > before {
                return self.now - since;
            }
            self.pass();
        }
        panic!("no generation begins: {}", self.leader.reason());
    }
}

/// How long after the last step another generation may begin, where steps vouched for workers for so long: half a second for the
/// kill, and a hundredth for clocks that run apart.
fn gone_after(vouched: Duration) -> Duration {
    vouched + Duration::from_millis(500) + vouched / 100
}

#[test]
fn a_leader_that_took_over_knows_as_much_of_its_own_workers_as_one_that_led_before() {
    let mut bench = Bench::training();
    let last = bench.now;
    bench.lose("b");
    bench.wait(3 * SECOND);
    bench.find(failure("the peer is gone"));
    bench.report("a", MemberPhase::Stopped, |_| {});
    let steps = OwnSteps {
        step: 9,
        at: last,
        one_step: Duration::from_millis(200),
    };
    bench.take_over(Some(steps));
    let one_step = Duration::from_millis(200);
    assert_eq!(bench.begins_after(last), gone_after(WINDOW + one_step));
    assert_eq!(bench.nodes(), ["a", "c"]);
}

#[test]
fn a_leader_without_workers_goes_by_what_those_tell_that_have_stopped() {
    let mut bench = Bench::training();
    let last = bench.now;
    bench.lose("b");
    bench.wait(3 * SECOND);
    bench.find(failure("the peer is gone"));
    bench.report("a", MemberPhase::Stopped, |record| {
        record.last_step = Some(LastStep {
            age_ms: 3_000,
            one_step_ms: 200,
        });
    });
    let drift = Duration::from_millis(30);
    let one_step = Duration::from_millis(200);
    let wait = drift + gone_after(WINDOW + one_step);
    assert_eq!(bench.begins_after(last), wait);
}

#[test]
fn a_leader_that_knows_of_no_step_takes_the_last_one_for_as_long_as_the_window() {
    let mut bench = Bench::training();
    bench.lose("b");
    bench.wait(3 * SECOND);
    let seen = bench.now;
    bench.find(failure("the peer is gone"));
    bench.report("a", MemberPhase::Stopped, |_| {});
    assert_eq!(bench.begins_after(seen), gone_after(WINDOW + WINDOW));
}

#[test]
fn when_all_are_lost_one_that_was_started_anew_shows_that_the_generation_is_over() {
    let comes_back = |boot: &str, machine: &str, was: &str| {
        let mut bench = Bench::with(2, 2, &[], |spec| spec.wait_for_nodes_ms = 60_000);
        for node in ["a", "b", "c", "d"] {
            let mut record = idle(node);
            record.machine = was.to_owned();
            bench.member(&record);
        }
        assert_eq!(bench.nodes(), ["a", "b"]);
        bench.vouch(WINDOW);
        bench.lose("a");
        bench.lose("b");
        bench.wait(20 * SECOND);
        assert_eq!(bench.plan().generation, Generation(1));
        let mut back = idle("a");
        back.incarnation = Incarnation(7);
        back.boot = boot.to_owned();
        back.machine = machine.to_owned();
        let seen = bench.now;
        bench.member(&back);
        bench.wait(gone_after(2 * WINDOW));
        (
            bench.plan().generation,
            bench.nodes(),
            bench.now - seen,
            bench,
        )
    };
    for (boot, machine) in [("boot of a", ""), ("a later boot", "that machine")] {
        let (generation, nodes, waited, bench) = comes_back(boot, machine, "that machine");
        assert_eq!(generation, Generation(2), "{}", bench.leader.reason());
        assert_eq!(nodes, ["a", "c"]);
        assert_eq!(waited, gone_after(2 * WINDOW));
    }
    // Another machine that was given the name says nothing of the one that had it.
    for (machine, was) in [("another", "that machine"), ("", ""), ("", "that machine")] {
        let (generation, _, _, bench) = comes_back("another boot", machine, was);
        assert_eq!(generation, Generation(1), "{machine} {was}");
        assert!(bench.leader.reason().contains("nobody that is left"));
    }
}
