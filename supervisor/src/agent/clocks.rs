// SPDX-License-Identifier: Apache-2.0
//! By how much the wall clocks of other nodes are ahead of this one's, from the times in their heartbeats.
//!
//! A heartbeat seems to come from a clock that is behind by as long as it was on its way, so the largest of many differences
//! is the best.

use std::collections::{BTreeMap, VecDeque};

use steadfast_core::NodeName;

/// Heartbeats that are looked at together: half a minute's.
const WINDOW: usize = 64;
/// A difference that is not worth a word.
const SAME_MS: i64 = 5;

/// What is known of the clocks of other nodes.
#[derive(Debug, Default)]
pub(super) struct Clocks {
    nodes: BTreeMap<NodeName, Clock>,
}

#[derive(Debug, Default)]
struct Clock {
    newest: VecDeque<i64>,
    told: Option<i64>,
    /// Heartbeats since then.
    since: usize,
}

impl Clocks {
    /// Takes in by how much a heartbeat seemed to be ahead. Returns the best estimate if it is news, or has not been told for a
    /// while: whoever was told may not lead any more.
    pub(super) fn note(&mut self, node: &NodeName, ahead_ms: i64) -> Option<i64> {
        let clock = self.nodes.entry(node.clone()).or_default();
        clock.newest.push_back(ahead_ms);
        if clock.newest.len() > WINDOW {
            clock.newest.pop_front();
        }
        let best = clock.newest.iter().copied().max()?;
        let is_known = |told: i64| told.abs_diff(best) <= SAME_MS.unsigned_abs();
        clock.since += 1;
        if clock.told.is_some_and(is_known) && clock.since < WINDOW {
            return None;
        }
        clock.since = 0;
        Some(*clock.told.insert(best))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_delayed_heartbeat_tells_and_only_news_is_told() {
        let mut clocks = Clocks::default();
        let node = NodeName("n1".to_owned());
        assert_eq!(clocks.note(&node, 1_900), Some(1_900));
        assert_eq!(clocks.note(&node, 1_995), Some(1_995));
        assert_eq!(clocks.note(&node, 400), None);
        assert_eq!(clocks.note(&node, 1_998), None);
        assert_eq!(clocks.note(&NodeName("n2".to_owned()), -5), Some(-5));
        // It is set right while the job runs.
        let told: Vec<i64> = (0..2 * WINDOW)
            .filter_map(|_| clocks.note(&node, 10))
            .collect();
        assert_eq!(told.last(), Some(&10));
        assert!(told.len() <= 4, "{told:?}");
    }
}
