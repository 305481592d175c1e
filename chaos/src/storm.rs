// SPDX-License-Identifier: Apache-2.0
//! A storm: a long job, and faults drawn as large fleets report theirs.
//!
//! Published accounts of large training runs agree in this much: somewhat more than a third of all interruptions begin
//! with a process, a fifth with a GPU, an eighth are hangs, a tenth are network and host; storage, slowness and wrong
//! numbers share the rest with planned ones. And they do not come alone: one in seven follows the one before within
//! minutes, one in four hits a node that was hit lately. Time is compressed here: minutes stand for days.

use steadfast_sim::Random;

use crate::failure::Failure;
use crate::scenario::{
    Direction, EtcdMembers, Expect, Fault, GpuVia, Injection, Job, Mode, Nodes, Scenario,
    SignalName, Source, Target, Trigger, read_text,
};

/// Seconds of a step.
const STEP_SECONDS: f64 = 0.1;
/// The part of the time that is left to the training when all faults are taken off, in percent.
const TRAINING_PERCENT: u64 = 80;
/// In so many of a hundred cases the next fault follows at once.
const BURST_PERCENT: u64 = 15;
/// In so many of a hundred cases a node is hit that was hit lately.
const LEMON_PERCENT: u64 = 26;

/// What a storm is made from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Weather {
    /// Nodes in all.
    pub(crate) nodes: u32,
    /// How many of them stand by.
    pub(crate) spares: u32,
    /// How long it lasts.
    pub(crate) minutes: u32,
    /// Seconds between two faults, in the mean.
    pub(crate) mean_seconds: u32,
    /// Chooses everything.
    pub(crate) seed: u64,
    /// Whether nodes have namespaces of their own, so that networks can be cut.
    pub(crate) namespaces: bool,
}

/// A kind of fault, with its share.
type Kind = (u64, fn(&mut Random) -> Draw);

/// A fault that was drawn.
struct Draw {
    inject: Injection,
    heal_after_seconds: Option<f64>,
    /// Whether it hits a node rather than a rank or nobody.
    hits_a_node: bool,
}

/// The shares, of a hundred.
const KINDS: [Kind; 13] = [
    (16, |random| {
        worker(Injection::Exit {
            code: random.pick(1, &[1, 2]),
            says: random
                .pick(
                    "RuntimeError: CUDA error: an illegal memory access was encountered",
                    &[
                        "torch.OutOfMemoryError: CUDA out of memory.",
                        "RuntimeError: CUDA error: unspecified launch failure",
                    ],
                )
                .to_owned(),
        })
    }),
    (10, |_| signal(SignalName::Kill)),
    (6, |_| signal(SignalName::Abrt)),
    (4, |_| worker(Injection::Segfault)),
    (14, |random| {
        node(
            Injection::Xid {
                code: random.pick(31, &[13, 43, 45, 63, 92]),
                gpu: 0,
                via: GpuVia::KernelLog,
            },
            None,
        )
    }),
    (6, |_| worker(Injection::Hang)),
    (6, |_| signal(SignalName::Stop)),
    (5, |random| {
        healed(signal(SignalName::Stop), random, 200, 900)
    }),
    (12, |random| {
        let off = node(Injection::Reboot, None);
        healed(off, random, 2_000, 15_000)
    }),
    (5, |random| {
        let pulled = node(Injection::LinkDown, None);
        healed(pulled, random, 300, 8_000)
    }),
    (5, |random| {
        let direction = random.pick(Direction::Both, &[Direction::Incoming, Direction::Outgoing]);
        let cut = Injection::Cut {
            direction,
            only_etcd: false,
            only_nodes: false,
            reset: false,
        };
        healed(node(cut, None), random, 500, 10_000)
    }),
    (7, |random| {
        let members = random.pick(
            EtcdMembers::Leader,
            &[EtcdMembers::Follower, EtcdMembers::Majority],
        );
        let etcd = Draw {
            inject: Injection::Etcd {
                signal: random.pick(SignalName::Kill, &[SignalName::Stop]),
                members,
            },
            heal_after_seconds: None,
            hits_a_node: false,
        };
        healed(etcd, random, 1_000, 6_000)
    }),
    (4, |_| {
        node(
            Injection::Agent {
                signal: SignalName::Kill,
            },
            None,
        )
    }),
];

/// Draws a storm.
pub(crate) fn storm(weather: &Weather) -> Result<Source, Failure> {
    let mut random = Random::new(weather.seed);
    let seconds = u64::from(weather.minutes) * 60;
    let mut faults = Vec::new();
    let mut recent: Vec<u32> = Vec::new();
    let mut at_ms = 5_000;
    while at_ms < seconds * 1_000 * 9 / 10 {
        let draw = draw(&mut random, weather);
        let mut on = Target::default();
        if draw.hits_a_node {
            let node = match recent.last() {
                Some(lemon) if random.chance(LEMON_PERCENT) => *lemon,
                _ => random.small(1, weather.nodes),
            };
            recent.push(node);
            on.node = Some(node);
        } else if draw.inject.hits_a_worker() {
            on.rank = Some(random.small(0, weather.nodes - weather.spares - 1));
        }
        faults.push(Fault {
            id: Some(format!("{}-{}", draw.inject.name(), faults.len() + 1)),
            inject: draw.inject,
            on,
            at: Trigger {
                seconds: Some(std::time::Duration::from_millis(at_ms).as_secs_f64()),
                ..Trigger::default()
            },
            delay_seconds: 0.0,
            jitter_seconds: 0.0,
            heal_after_seconds: draw.heal_after_seconds,
            times: 1,
            probability: 1.0,
        });
        at_ms += if random.chance(BURST_PERCENT) {
            random.between(100, 2_000)
        } else {
            let mean = u64::from(weather.mean_seconds) * 1_000;
            random.between(mean / 4, mean * 7 / 4)
        };
    }
    let scenario = scenario(weather, faults);
    let text = toml::to_string(&scenario).map_err(|error| {
        Failure::Unexpected(format!("the storm cannot be written down: {error}"))
    })?;
    // Read again, so that what is kept is what is run.
    read_text(&format!("storm-{}", weather.seed), "storm", &text)
}

fn scenario(weather: &Weather, faults: Vec<Fault>) -> Scenario {
    let seconds = u64::from(weather.minutes) * 60;
    let steps_a_second = 10;
    Scenario {
        description: format!(
            "A storm of {} faults on {} nodes for {} minutes, seed {}.",
            faults.len(),
            weather.nodes,
            weather.minutes,
            weather.seed
        ),
        quick: false,
        tags: vec!["storm".to_owned()],
        seed: weather.seed,
        limit_seconds: seconds * 3 + 120,
        nodes: Nodes {
            count: weather.nodes - weather.spares,
            at_least: Some(1),
            spares: weather.spares,
            workers: 1,
            etcd: Some(3),
            mode: Mode::Auto,
        },
        job: Job {
            steps: (seconds * steps_a_second * TRAINING_PERCENT / 100).max(50),
            step_seconds: STEP_SECONDS,
            checkpoint_every: 20,
            options: [
                "--lease",
                "5s",
                "--max-restarts",
                "1000",
                "--shrink-after",
                "5s",
                "--restart-grace",
                "2s",
            ]
            .map(str::to_owned)
            .to_vec(),
            ..Job::default()
        },
        faults,
        expect: Expect {
            // A node that was cut off may stand still, with all that runs on it.
            faults_may_come_late: true,
            ..Expect::default()
        },
    }
}

fn draw(random: &mut Random, weather: &Weather) -> Draw {
    loop {
        let whole: u64 = KINDS.iter().map(|(share, _)| share).sum();
        let mut left = random.below(whole);
        let mut kinds = KINDS.iter();
        let kind = kinds.find(|(share, _)| match left.checked_sub(*share) {
            Some(rest) => {
                left = rest;
                false
            }
            None => true,
        });
        let Some((_, make)) = kind else { continue };
        let draw = make(random);
        let of_network = draw
            .inject
            .needs()
            .contains(&crate::scenario::Capability::Namespaces);
        if weather.namespaces || !of_network {
            return draw;
        }
    }
}

fn worker(inject: Injection) -> Draw {
    Draw {
        inject,
        heal_after_seconds: None,
        hits_a_node: false,
    }
}

fn signal(signal: SignalName) -> Draw {
    worker(Injection::Signal { signal })
}

fn node(inject: Injection, heal_after_seconds: Option<f64>) -> Draw {
    Draw {
        inject,
        heal_after_seconds,
        hits_a_node: true,
    }
}

fn healed(mut draw: Draw, random: &mut Random, from_ms: u64, to_ms: u64) -> Draw {
    let after = std::time::Duration::from_millis(random.between(from_ms, to_ms));
    draw.heal_after_seconds = Some(after.as_secs_f64());
    draw
}

#[cfg(test)]
mod tests {
    use super::*;

    const WEATHER: Weather = Weather {
        nodes: 8,
        spares: 2,
        minutes: 30,
        mean_seconds: 12,
        seed: 7,
        namespaces: true,
    };

    #[test]
    fn a_storm_is_the_same_for_the_same_seed_and_can_be_read_again() {
        let (one, other) = (storm(&WEATHER).unwrap(), storm(&WEATHER).unwrap());
        assert_eq!(one.text, other.text);
        let faults = one.scenario.faults.len();
        assert!((100..250).contains(&faults), "{faults}");
        assert_ne!(
            one.text,
            storm(&Weather { seed: 8, ..WEATHER }).unwrap().text
        );
    }

    #[test]
    fn without_namespaces_no_network_is_cut() {
        let calm = storm(&Weather {
            namespaces: false,
            ..WEATHER
        });
        let calm = calm.unwrap();
        assert!(
            !calm
                .scenario
                .needs()
                .contains(&crate::scenario::Capability::Namespaces)
        );
    }
}
