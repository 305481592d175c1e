// SPDX-License-Identifier: Apache-2.0
//! What was bad and is good again: errors that the program got over, servers that came back, the noise of an orderly end.

use std::collections::{BTreeMap, BTreeSet};

use crate::answer::Class;
use crate::clock::Moment;
use crate::rules::Role;
use crate::sighting::{Sighting, Sightings};

/// So much later a step has nothing to do with what went wrong: more than clocks are apart.
const LONG_AFTER_S: f64 = 120.0;

/// The sightings that nothing has made good.
pub(super) fn unhealed<'s, 'r>(sightings: &'s Sightings<'r>) -> Vec<&'s Sighting<'r>> {
    let marks = Marks::of(sightings);
    let ended = Ended::of(sightings);
    sightings
        .all
        .iter()
        .filter(|sighting| {
            matches!(
                sighting.rule.role,
                Role::Cause | Role::Sign | Role::Consequence | Role::Summary
            )
        })
        .filter(|sighting| !marks.heal(sighting) && !ended.threw_at_its_end(sighting))
        .collect()
}

/// Where and when the job was ended from outside.
#[derive(Default)]
struct Ended<'s> {
    /// The first line in each file that says so, unless something had failed before it there.
    lines: BTreeMap<&'s str, u32>,
    /// When first.
    at: Option<Moment>,
}

impl<'s> Ended<'s> {
    fn of(sightings: &'s Sightings<'_>) -> Self {
        let mut ended = Self::default();
        let is_end = |sighting: &Sighting<'_>| {
            sighting.rule.class == Class::Preempted && sighting.rule.role == Role::Cause
        };
        let is_failure = |sighting: &Sighting<'_>| {
            sighting.rule.role == Role::Cause && sighting.rule.class != Class::Preempted
                || sighting.is("launcher.summary") && sighting.text.contains("xited with")
        };
        for sighting in sightings.all.iter().filter(|sighting| is_end(sighting)) {
            let failed_before = sightings.all.iter().any(|other| {
                other.file == sighting.file && other.line < sighting.line && is_failure(other)
            });
            if failed_before {
                continue;
            }
            let line = ended.lines.entry(&sighting.file).or_insert(sighting.line);
            *line = sighting.line.min(*line);
            let at = sighting.at.filter(|at| at.is_dated && sighting.is_timed);
            let earlier = at
                .zip(ended.at)
                .is_none_or(|(at, first)| at.seconds < first.seconds);
            if at.is_some() && earlier {
                ended.at = at;
            }
        }
        ended
    }

    /// Whether a program that was being ended threw this: what handlers of signals and interrupted calls leave behind.
    fn threw_at_its_end(&self, sighting: &Sighting<'_>) -> bool {
        let may_be = sighting.rule.role == Role::Cause
            && (sighting.rule.class == Class::ProgramError || sighting.is("host.loader_exited"));
        let below = self
            .lines
            .get(sighting.file.as_str())
            .is_some_and(|line| *line < sighting.line);
        let later = sighting.is_timed
            && self
                .at
                .zip(sighting.at)
                .and_then(|(ended, at)| at.since(ended))
                .is_some_and(|later| later > 0.0);
        may_be && (below || later)
    }
}

/// By file and speaker, the lines that make earlier ones good.
#[derive(Default)]
struct Marks<'s> {
    /// The last step.
    progress: BTreeMap<(&'s str, Option<u32>), u32>,
    /// The first line that says that the program has ended well.
    finished: BTreeMap<(&'s str, Option<u32>), u32>,
    /// The last line that says that something works again, by the rule whose lines it makes good.
    recovered: BTreeMap<(&'s str, &'s str), u32>,
    /// Times of steps, by whichever rank.
    steps: Vec<(f64, u64)>,
}

impl<'s> Marks<'s> {
    fn of(sightings: &'s Sightings<'_>) -> Self {
        let mut marks = Self::default();
        for progress in &sightings.progress {
            let line = marks
                .progress
                .entry((progress.file.as_str(), progress.rank))
                .or_default();
            *line = progress.line.max(*line);
            let dated = progress.at.filter(|at| at.is_dated);
            marks
                .steps
                .extend(dated.map(|at| (at.seconds, progress.step)));
        }
        for sighting in &sightings.all {
            let key = (sighting.file.as_str(), sighting.rank);
            match sighting.rule.role {
                Role::Finished => {
                    let line = marks.finished.entry(key).or_insert(sighting.line);
                    *line = sighting.line.min(*line);
                }
                Role::Recovered => {
                    for rule in &sighting.rule.recovers {
                        let line = marks
                            .recovered
                            .entry((sighting.file.as_str(), rule))
                            .or_default();
                        *line = sighting.line.max(*line);
                    }
                }
                _ => {}
            }
        }
        marks
    }

    /// Whether the job as a whole made steps long after it: ranks that print nothing of their own are still in step.
    fn all_went_on(&self, sighting: &Sighting<'_>) -> bool {
        let Some(at) = sighting.at.filter(|at| at.is_dated) else {
            return false;
        };
        let can_be_passed = !matches!(sighting.rule.class, Class::Preempted | Class::Straggler)
            && sighting.rule.role != Role::Summary;
        let later = self
            .steps
            .iter()
            .filter(|(seconds, _)| *seconds > at.seconds + LONG_AFTER_S);
        can_be_passed && later.map(|(_, step)| step).collect::<BTreeSet<_>>().len() > 1
    }

    fn heal(&self, sighting: &Sighting<'_>) -> bool {
        let key = (sighting.file.as_str(), sighting.rank);
        let later = |line: Option<&u32>| line.is_some_and(|line| *line > sighting.line);
        let rule = (sighting.file.as_str(), sighting.rule.id.as_str());
        if later(self.recovered.get(&rule)) {
            return true;
        }
        let went_on = later(self.progress.get(&key)) || later(self.finished.get(&key));
        if sighting.is_timed && sighting.rule.class != Class::Numeric && self.all_went_on(sighting)
        {
            return true;
        }
        // A launcher that tells of a failure and later of success has started the workers again.
        if sighting.rule.role == Role::Summary
            && sighting.rank.is_none()
            && later(self.finished.get(&key))
        {
            return true;
        }
        let by_progress = !matches!(
            sighting.rule.class,
            Class::Numeric | Class::Preempted | Class::Straggler
        ) && !matches!(sighting.rule.role, Role::Summary);
        if by_progress && went_on {
            return true;
        }
        // After its end a program closes connections in whatever order.
        let after_end = self
            .finished
            .get(&key)
            .is_some_and(|line| *line < sighting.line);
        after_end && sighting.rule.role == Role::Consequence
    }
}
