// SPDX-License-Identifier: Apache-2.0
//! How the members of a plan are doing, as the leader sees it.

use std::collections::BTreeMap;

use crate::member::{is_fatal, kinds};
use crate::{Generation, Instant, Leader, MemberPhase, MemberRecord, NodeName, Plan, PlanMember};

/// How one member of a plan is doing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Standing {
    /// Starts or runs its workers.
    Working,
    /// Nothing is heard of its agent, and the training has stopped; its lease has not ended yet.
    Silent,
    /// All its workers have exited with code 0.
    Completed,
    /// Stops its workers.
    Draining,
    /// Its workers are gone.
    Stopped,
    /// Its record is gone, but the training goes on, so its workers live.
    Missing,
    /// It will not come back with the workers of this generation.
    Lost {
        /// In words.
        why: String,
        /// Whether it is certain that none of its workers run; otherwise its keeper may still be about to kill them.
        proven: bool,
    },
}

impl Standing {
    /// Whether none of the member's workers count any more, whatever their end.
    pub(super) fn is_over(&self) -> bool {
        matches!(self, Self::Stopped | Self::Lost { .. })
    }

    /// Whether the member shows that the generation cannot go on.
    pub(super) fn is_ending(&self) -> bool {
        matches!(
            self,
            Self::Draining | Self::Stopped | Self::Silent | Self::Lost { .. }
        )
    }
}

/// What was seen of the members of one generation and is not in the store any more once they have left.
#[derive(Debug, Default)]
pub(super) struct Seen {
    generation: Generation,
    /// Members whose workers have ended. Nothing that becomes of their records can change that.
    settled: BTreeMap<NodeName, Standing>,
    /// Since when a member's record has been missing.
    absent_since: BTreeMap<NodeName, Instant>,
    /// Since when it has not been known whether the generation is over.
    pub(super) in_doubt_since: Option<Instant>,
    /// The step in each member's report as a witness, and when it was first heard of.
    pub(super) reported: BTreeMap<NodeName, (u64, Instant)>,
}

impl Seen {
    pub(super) fn note_report(&mut self, node: &NodeName, step: u64, now: Instant) {
        let entry = self.reported.entry(node.clone());
        let (known, at) = entry.or_insert((step, now));
        if *known != step {
            (*known, *at) = (step, now);
        }
    }
}

/// The nodes whose standing is such, for a sentence; at most four by name.
pub(super) fn list(standings: &[(NodeName, Standing)], such: impl Fn(&Standing) -> bool) -> String {
    let names: Vec<_> = standings
        .iter()
        .filter(|(_, standing)| such(standing))
        .map(|(node, _)| node.to_string())
        .collect();
    match names.len() {
        0..=4 => names.join(", "),
        many => format!("{} and {} others", names[..4].join(", "), many - 4),
    }
}

impl Leader {
    /// How each member of the plan is doing, in rank order.
    pub(super) fn standings(&mut self, now: Instant, plan: &Plan) -> Vec<(NodeName, Standing)> {
        if self.seen.generation != plan.generation {
            self.seen = Seen {
                generation: plan.generation,
                ..Seen::default()
            };
        }
        self.progress.begin(plan.generation);
        let mut standings: Vec<(NodeName, Standing)> = plan
            .members
            .iter()
            .map(|place| (place.node.clone(), self.standing(now, plan, place)))
            .collect();
        let shows_death = |standing: &Standing| {
            matches!(
                standing,
                Standing::Stopped | Standing::Lost { proven: true, .. }
            )
        };
        let dead = standings.iter().any(|(_, standing)| shows_death(standing))
            || self.view.has_finding(plan.generation, |finding| {
                finding.kind == kinds::WORKER_EXITED
            });
        if dead {
            self.progress.note_death(plan.generation, now);
        }
        self.give_up_missing(now, plan, &mut standings);
        standings
    }

    fn standing(&mut self, now: Instant, plan: &Plan, place: &PlanMember) -> Standing {
        let record = self.view.member(&place.node).map(|record| &record.value);
        let Some(record) = record.filter(|record| record.incarnation == place.incarnation) else {
            if let Some(settled) = self.seen.settled.get(&place.node) {
                // Nobody is left there to say of workers that finished by themselves that they are stopped.
                let finished = *settled == Standing::Completed && !plan.is_run();
                return if finished {
                    Standing::Stopped
                } else {
                    settled.clone()
                };
            }
            if self.view.has_left(plan.generation, &place.node) {
                return Standing::Stopped;
            }
            let anew = record.and_then(|record| started_anew(record, place));
            self.seen
                .absent_since
                .entry(place.node.clone())
                .or_insert(now);
            return match anew {
                Some(what) => Standing::Lost {
                    why: format!("{what} of {} was started anew", place.node),
                    proven: true,
                },
                None => Standing::Missing,
            };
        };
        self.seen.absent_since.remove(&place.node);
        if record.generation != plan.generation {
            return Standing::Working;
        }
        let standing = match record.phase {
            MemberPhase::Idle | MemberPhase::Running => Standing::Working,
            MemberPhase::Completed => Standing::Completed,
            MemberPhase::Draining => Standing::Draining,
            MemberPhase::Stopped => Standing::Stopped,
        };
        if standing == Standing::Stopped
            && self.seen.settled.get(&place.node) != Some(&Standing::Stopped)
            && let Some(last) = record.last_step
        {
            self.progress.note_last_step(now, last);
        }
        if matches!(standing, Standing::Completed | Standing::Stopped) {
            let settled = &mut self.seen.settled;
            settled.insert(place.node.clone(), standing.clone());
        }
        standing
    }

    /// A member whose record is gone, or whose agent is silent, lives as long as the training goes on. When it has
    /// stopped, or leases alone decide, it does not count any more.
    fn give_up_missing(
        &mut self,
        now: Instant,
        plan: &Plan,
        standings: &mut [(NodeName, Standing)],
    ) {
        if !self.settings.shared {
            return;
        }
        let window = plan.witness();
        let is_over = !plan.is_run()
            || standings.iter().any(|(_, standing)| standing.is_ending())
            || self.view.has_finding(plan.generation, is_fatal);
        let heard_at = self.progress.heard_at();
        let mut wake_at = None;
        for (node, standing) in standings {
            let heard_at = match standing {
                Standing::Missing => heard_at.or_else(|| self.seen.absent_since.get(node).copied()),
                Standing::Working if self.progress.is_silent(node) && !is_over => heard_at,
                _ => None,
            };
            let Some(until) = heard_at.map(|at| at + window) else {
                continue;
            };
            if !is_over && !window.is_zero() && now < until {
                wake_at = Some(wake_at.map_or(until, |at: Instant| at.min(until)));
            } else if *standing == Standing::Missing {
                *standing = Standing::Lost {
                    why: format!("nothing is heard of {node} any more: its lease has ended"),
                    proven: window.is_zero(),
                };
            } else if !window.is_zero() {
                *standing = Standing::Silent;
            }
        }
        if let Some(at) = wake_at {
            self.wake(at);
        }
    }

    /// The earliest time at which none of the workers of lost members can run any more. `None` when nobody can say.
    pub(super) fn safe_start(
        &self,
        plan: &Plan,
        standings: &[(NodeName, Standing)],
    ) -> Option<Instant> {
        let in_doubt =
            |standing: &Standing| matches!(standing, Standing::Lost { proven: false, .. });
        if !standings.iter().any(|(_, standing)| in_doubt(standing)) {
            return Some(Instant::default());
        }
        let window = plan.witness();
        self.progress.gone_since(window)
    }
}

/// What was started anew where that member of the plan ran its workers, if the record that is there now proves that they
/// are gone. That it bears the node's name is no proof: another machine may have been given it.
fn started_anew(record: &MemberRecord, place: &PlanMember) -> Option<&'static str> {
    let known = |id: &str| !id.is_empty();
    if !known(&record.boot) || !known(&place.boot) {
        return None;
    }
    if record.boot == place.boot {
        // Workers die with their keeper, and a machine has one keeper for a node's name at a time.
        return Some("the supervisor");
    }
    let is_same_machine = known(&record.machine) && record.machine == place.machine;
    is_same_machine.then_some("the machine")
}
