// SPDX-License-Identifier: Apache-2.0
//! Does the training move on any node? What the agent of the node that leads knows of the others.
//!
//! Each node judges by what its own ranks are busy with: one of them may evaluate for an hour while all others wait for it.
//! So the training has stalled when nobody who can tell says that it moves, and somebody says that it does not.

use std::collections::BTreeMap;

use steadfast_core::{Activity, Instant, NodeName, Stall, StallState};

use crate::peers::{Digest, Movement};

/// What the nodes tell of one generation.
#[derive(Debug, Default)]
pub(in crate::agent) struct Council {
    generation: u64,
    heard: BTreeMap<NodeName, Heard>,
}

#[derive(Debug, Clone, Copy)]
struct Heard {
    movement: Movement,
    step: Option<u64>,
}

impl Council {
    /// Takes in what another node tells. What is about an older generation means nothing any more.
    pub(in crate::agent) fn note(&mut self, node: &NodeName, digest: &Digest) {
        let generation = digest.generation.0;
        if generation > self.generation {
            *self = Council {
                generation,
                ..Council::default()
            };
        }
        if generation == self.generation {
            let heard = Heard {
                movement: digest.movement,
                step: digest.step.map(|(step, _)| step),
            };
            self.heard.insert(node.clone(), heard);
        }
    }

    /// Whether any other node has made a step in that generation.
    pub(in crate::agent) fn has_stepped(&self, generation: u64) -> bool {
        self.generation == generation && self.heard.values().any(|heard| heard.step.is_some())
    }

    /// How the training gets on. `own` is how it does on this node, if it takes part; `others` are the other nodes of the
    /// generation that are heard of.
    pub(in crate::agent) fn judge<'a>(
        &self,
        generation: u64,
        own: Option<StallState>,
        others: impl Iterator<Item = &'a NodeName>,
        now: Instant,
    ) -> StallState {
        let mut worst = match own {
            Some(StallState::Moving { due }) => return StallState::Moving { due },
            Some(StallState::Stalled(stall)) => Some(stall),
            Some(StallState::NoSignal) | None => None,
        };
        for node in others.filter(|_| self.generation == generation) {
            let Some(heard) = self.heard.get(node) else {
                continue;
            };
            match heard.movement {
                // It says so again and again.
                Movement::Moving => return StallState::Moving { due: now },
                Movement::Unseen => {}
                Movement::Overdue {
                    since,
                    bound,
                    typical,
                } => {
                    let theirs = Stall {
                        since,
                        bound,
                        activity: Activity::Train,
                        step: heard.step,
                        typical,
                    };
                    worst = Some(worst.map_or(theirs, |before| later(before, theirs)));
                }
            }
        }
        worst.map_or(StallState::NoSignal, StallState::Stalled)
    }
}

/// What both say together: the training stands still since the later of the two, and for the more patient.
fn later(one: Stall, other: Stall) -> Stall {
    Stall {
        since: one.since.max(other.since),
        bound: one.bound.max(other.bound),
        activity: one.activity,
        step: one.step.max(other.step),
        typical: one.typical.max(other.typical),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use steadfast_core::Generation;

    use super::*;

    const NOW: Instant = Instant::from_nanos(100_000_000_000);

    fn overdue(ago: u64, bound: u64) -> Movement {
        Movement::Overdue {
            since: NOW - Duration::from_secs(ago),
            bound: Duration::from_secs(bound),
            typical: None,
        }
    }

    fn stalled(ago: u64, bound: u64) -> StallState {
        StallState::Stalled(Stall {
            since: NOW - Duration::from_secs(ago),
            bound: Duration::from_secs(bound),
            activity: Activity::Train,
            step: Some(7),
            typical: None,
        })
    }

    fn judge(own: Option<StallState>, others: &[Movement]) -> StallState {
        let names: Vec<NodeName> = (0..others.len()).map(|n| NodeName(n.to_string())).collect();
        let mut council = Council::default();
        for (node, &movement) in names.iter().zip(others) {
            let digest = Digest {
                generation: Generation(2),
                step: Some((7, NOW)),
                movement,
                ..Digest::default()
            };
            council.note(node, &digest);
            let stale = Digest {
                generation: Generation(1),
                movement: Movement::Moving,
                ..digest
            };
            council.note(node, &stale);
        }
        council.judge(2, own, names.iter(), NOW)
    }

    #[test]
    fn who_moves_speaks_for_all() {
        let own = Some(stalled(5, 2));
        assert_eq!(judge(own, &[]), stalled(5, 2));
        assert!(matches!(
            judge(own, &[overdue(4, 2), Movement::Moving]),
            StallState::Moving { .. }
        ));
        let moving = Some(StallState::Moving { due: NOW });
        assert!(matches!(
            judge(moving, &[overdue(4, 2)]),
            StallState::Moving { .. }
        ));
    }

    #[test]
    fn who_cannot_tell_does_not_stand_in_the_way() {
        let both = judge(Some(stalled(5, 2)), &[overdue(4, 3), Movement::Unseen]);
        assert_eq!(both, stalled(4, 3));
        // A node without workers leads.
        assert_eq!(judge(None, &[overdue(4, 3)]), stalled(4, 3));
        assert_eq!(judge(None, &[Movement::Unseen]), StallState::NoSignal);
    }
}
