// SPDX-License-Identifier: Apache-2.0
//! How the members of a plan are doing, as the leader sees it.

use crate::{Instant, Leader, MemberPhase, NodeName, Plan};

/// How one member of a plan is doing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Standing {
    /// Starts or runs its workers.
    Working,
    /// All its workers have exited with code 0.
    Completed,
    /// Stops its workers.
    Draining,
    /// Its workers are gone.
    Stopped,
    /// Its record is gone, but it may come back.
    Missing,
    /// It will not come back with the workers of this generation; why, in words.
    Lost(String),
}

impl Standing {
    /// Whether none of the member's workers run any more, whatever their end.
    pub(super) fn is_over(&self) -> bool {
        matches!(self, Self::Stopped | Self::Lost(_))
    }

    /// Whether the member shows that the generation cannot go on.
    pub(super) fn is_ending(&self) -> bool {
        matches!(self, Self::Draining | Self::Stopped | Self::Lost(_))
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
        let mut standings = Vec::new();
        for place in &plan.members {
            let record = self.view.member(&place.node).map(|record| &record.value);
            let standing = match record {
                None => self.absence(now, &place.node),
                Some(record) if record.incarnation != place.incarnation => {
                    // Workers die with their keeper, so a new keeper proves that none is left.
                    Standing::Lost(format!("the supervisor of {} was started anew", place.node))
                }
                Some(record) if record.generation != plan.generation => Standing::Working,
                Some(record) => match record.phase {
                    MemberPhase::Idle | MemberPhase::Running => Standing::Working,
                    MemberPhase::Completed => Standing::Completed,
                    MemberPhase::Draining => Standing::Draining,
                    MemberPhase::Stopped => Standing::Stopped,
                },
            };
            if record_is_back(&standing) {
                self.missing_since.remove(&place.node);
            }
            standings.push((place.node.clone(), standing));
        }
        standings
    }

    fn absence(&mut self, now: Instant, node: &NodeName) -> Standing {
        let since = *self.missing_since.entry(node.clone()).or_insert(now);
        let until = since + self.settings.lost_after;
        if now >= until {
            let seconds = self.settings.lost_after.as_secs();
            return Standing::Lost(format!("{node} has not been heard of for {seconds} s"));
        }
        self.wake(until);
        Standing::Missing
    }
}

fn record_is_back(standing: &Standing) -> bool {
    !matches!(standing, Standing::Missing | Standing::Lost(_))
}
