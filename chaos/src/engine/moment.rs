// SPDX-License-Identifier: Apache-2.0
//! Whether a fault's moment has come.

use super::plan::Planned;
use super::seconds;
use crate::scenario::{Phase, Trigger};
use crate::world::World;

/// What has been seen so far.
#[derive(Debug, Clone, Default)]
pub(super) struct Seen {
    pub(super) now_ns: u64,
    pub(super) generation: u64,
    pub(super) is_stepping: bool,
    pub(super) is_stopping: bool,
    pub(super) first_step_ns: Option<u64>,
    pub(super) last_step: u64,
    pub(super) last_step_ns: u64,
    /// Faults that were injected, and those that were healed, with the time.
    pub(super) injected: Vec<(String, u64)>,
    pub(super) healed: Vec<(String, u64)>,
    /// Kinds of the journals' lines, with the time at which they were read.
    pub(super) journal: Vec<(String, u64)>,
}

impl Seen {
    pub(super) fn of(world: &World, planned: &[Planned], now_ns: u64) -> Self {
        let generation = world.life.generation();
        let kind = |line: &serde_json::Value| line["kind"].as_str().unwrap_or_default().to_owned();
        let injected = planned.iter().filter(|fault| fault.was_injected);
        let healed = planned
            .iter()
            .filter_map(|fault| Some((fault.name.clone(), fault.healed_ns?)));
        Self {
            now_ns,
            generation,
            is_stepping: world.life.is_stepping(),
            is_stopping: world.journal.iter().any(|line| {
                line.line["kind"] == "generation.stopping" && line.line["generation"] == generation
            }),
            first_step_ns: world.life.first_step_ns,
            last_step: world.life.last_step,
            last_step_ns: world.life.last_step_ns,
            injected: injected
                .map(|fault| (fault.name.clone(), fault.injected_ns))
                .collect(),
            healed: healed.collect(),
            journal: world
                .journal
                .iter()
                .map(|line| (kind(&line.line), line.at_ns))
                .collect(),
        }
    }

    fn phase(&self) -> Phase {
        match (self.generation, self.is_stopping, self.is_stepping) {
            (0, _, _) => Phase::Gather,
            (_, true, _) => Phase::Restart,
            (_, false, true) => Phase::Train,
            (_, false, false) => Phase::Init,
        }
    }
}

/// Whether all that the trigger says holds.
pub(super) fn has_come(trigger: &Trigger, seen: &Seen) -> bool {
    if trigger.is_empty() {
        return seen.last_step > 0;
    }
    let when = |of: &[(String, u64)], name: &str| {
        of.iter()
            .find(|(known, _)| known == name)
            .map(|(_, at_ns)| *at_ns)
    };
    let after_ns = match &trigger.after {
        None => Some(0),
        Some(name) => when(&seen.injected, name),
    };
    let Some(after_ns) = after_ns else {
        return false;
    };
    let in_time = trigger.seconds.is_none_or(|wanted| {
        let begun = seen.first_step_ns;
        begun.is_some_and(|begun| seconds(seen.now_ns.saturating_sub(begun)) >= wanted)
    });
    let in_journal = trigger.journal.as_ref().is_none_or(|kind| {
        let mut lines = seen.journal.iter();
        lines.any(|(of, at_ns)| of == kind && *at_ns >= after_ns)
    });
    in_time
        && in_journal
        && trigger.step.is_none_or(|step| seen.last_step >= step)
        && trigger
            .generation
            .is_none_or(|generation| seen.generation >= generation)
        && trigger.phase.is_none_or(|phase| seen.phase() == phase)
        && trigger
            .healed
            .as_ref()
            .is_none_or(|name| when(&seen.healed, name).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn training() -> Seen {
        Seen {
            now_ns: 5_000_000_000,
            generation: 2,
            is_stepping: true,
            first_step_ns: Some(1_000_000_000),
            last_step: 10,
            injected: vec![("first".to_owned(), 2_000_000_000)],
            journal: vec![("generation.stopping".to_owned(), 1_500_000_000)],
            ..Seen::default()
        }
    }

    #[test]
    fn all_that_is_said_must_hold() {
        let seen = training();
        let trigger = Trigger {
            step: Some(10),
            seconds: Some(4.0),
            phase: Some(Phase::Train),
            generation: Some(2),
            after: Some("first".to_owned()),
            ..Trigger::default()
        };
        assert!(has_come(&trigger, &seen));
        for other in [
            Trigger {
                step: Some(11),
                ..trigger.clone()
            },
            Trigger {
                seconds: Some(4.1),
                ..trigger.clone()
            },
            Trigger {
                phase: Some(Phase::Restart),
                ..trigger.clone()
            },
            Trigger {
                generation: Some(3),
                ..trigger.clone()
            },
            Trigger {
                after: Some("other".to_owned()),
                ..trigger.clone()
            },
            Trigger {
                healed: Some("first".to_owned()),
                ..trigger.clone()
            },
        ] {
            assert!(!has_come(&other, &seen), "{other:?}");
        }
    }

    #[test]
    fn the_journal_counts_from_the_fault_on_that_it_follows() {
        let mut seen = training();
        let trigger = Trigger {
            journal: Some("generation.stopping".to_owned()),
            after: Some("first".to_owned()),
            ..Trigger::default()
        };
        assert!(!has_come(&trigger, &seen));
        seen.journal
            .push(("generation.stopping".to_owned(), 2_500_000_000));
        assert!(has_come(&trigger, &seen));
    }

    #[test]
    fn a_trigger_that_says_nothing_waits_for_the_first_step() {
        assert!(!has_come(&Trigger::default(), &Seen::default()));
        assert!(has_come(&Trigger::default(), &training()));
    }
}
