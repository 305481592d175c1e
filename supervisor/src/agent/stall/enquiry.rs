// SPDX-License-Identifier: Apache-2.0
//! One look at the ranks of all nodes: who was asked, who has answered, who is still waited for, and for how long.

use std::collections::BTreeMap;

use steadfast_core::{Instant, KernelState, LocalRank, NodeName, Plan, Rank};

use crate::evidence::{self, NodeEvidence, RankEvidence, Seen};

/// A look that is under way.
#[derive(Debug)]
pub(in crate::agent) struct Enquiry {
    /// Of which stall.
    pub(in crate::agent) number: u64,
    deadline: Instant,
    awaits_own: bool,
    /// By the number of the request.
    awaited: BTreeMap<u64, NodeName>,
    seen: Findings,
}

/// What an enquiry has brought to light.
#[derive(Debug, Default)]
pub(in crate::agent) struct Findings {
    /// What was seen of the nodes as a whole.
    pub(in crate::agent) nodes: Vec<NodeEvidence>,
    /// What was seen of the ranks.
    pub(in crate::agent) ranks: Vec<RankEvidence>,
    /// The nodes that gave no answer.
    pub(in crate::agent) missing: Vec<Missing>,
}

/// A node whose ranks could not be looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::agent) struct Missing {
    /// The node.
    pub(in crate::agent) node: NodeName,
    /// Why, in words.
    pub(in crate::agent) why: String,
}

impl Findings {
    /// Puts what NCCL says of processes beside what was seen of their ranks. The number of a process is one of its node's, so
    /// one that several nodes have counts for none of them.
    pub(in crate::agent) fn heed_nccl(&mut self) {
        let said = self.nodes.iter().flat_map(|node| &node.nccl_processes);
        for (pid, what) in said.cloned().collect::<Vec<_>>() {
            let mut such = self.ranks.iter_mut().filter(|seen| seen.signs.pid == pid);
            if let (Some(seen), None) = (such.next(), such.next()) {
                seen.signs.reported.get_or_insert(what);
            }
        }
    }
}

impl Enquiry {
    /// Begins. `asked` are the other nodes, each with the number of its request or why it was not asked.
    pub(in crate::agent) fn new(
        number: u64,
        deadline: Instant,
        awaits_own: bool,
        asked: Vec<(NodeName, Result<u64, String>)>,
    ) -> Enquiry {
        let mut enquiry = Enquiry {
            number,
            deadline,
            awaits_own,
            awaited: BTreeMap::new(),
            seen: Findings::default(),
        };
        for (node, asked) in asked {
            match asked {
                Ok(id) => drop(enquiry.awaited.insert(id, node)),
                Err(why) => enquiry.seen.missing.push(Missing { node, why }),
            }
        }
        enquiry
    }

    /// What was seen on this node.
    pub(in crate::agent) fn take_own(&mut self, seen: Seen) {
        self.awaits_own = false;
        self.seen.nodes.push(seen.node);
        self.seen.ranks.extend(seen.ranks);
    }

    /// The answer of a node, or why there is none. Answers to older questions are not wanted any more.
    pub(in crate::agent) fn take(
        &mut self,
        (id, node): (u64, &NodeName),
        plan: &Plan,
        answer: Result<&[u8], String>,
    ) {
        let Some(asked) = self.awaited.get(&id).filter(|asked| *asked == node) else {
            return;
        };
        let place = plan.member(asked);
        let theirs = answer.and_then(|text| {
            let place = place.ok_or("it has no part in this generation")?;
            evidence::unpack(text, place).map_err(|error| error.to_string())
        });
        self.awaited.remove(&id);
        match theirs {
            Ok(theirs) => {
                self.seen.nodes.push(theirs.node);
                self.seen.ranks.extend(theirs.ranks);
            }
            Err(why) => self.seen.missing.push(Missing {
                node: node.clone(),
                why,
            }),
        }
    }

    /// Nothing is heard of that node any more.
    pub(in crate::agent) fn lose(&mut self, node: &NodeName) {
        let before = self.awaited.len();
        self.awaited.retain(|_, asked| asked != node);
        if self.awaited.len() < before {
            self.seen.missing.push(Missing {
                node: node.clone(),
                why: "its supervisor fell silent while it was asked".to_owned(),
            });
        }
    }

    /// Whether nobody is waited for (any more).
    pub(in crate::agent) fn is_complete(&self, now: Instant) -> bool {
        now >= self.deadline || (!self.awaits_own && self.awaited.is_empty())
    }

    /// What was seen of all ranks of the plan, and which nodes gave no answer. `is_silent` says of which of them nothing is
    /// heard at all.
    pub(in crate::agent) fn conclude(
        mut self,
        plan: &Plan,
        is_silent: impl Fn(&NodeName) -> bool,
    ) -> Findings {
        let late = std::mem::take(&mut self.awaited);
        self.seen
            .missing
            .extend(late.into_values().map(|node| Missing {
                node,
                why: "it has not answered in time".to_owned(),
            }));
        for place in &plan.members {
            let kernel = if is_silent(&place.node) {
                KernelState::Unheard
            } else {
                KernelState::Unknown
            };
            for local_rank in 0..place.slots {
                let rank = Rank(place.base_rank.0 + local_rank);
                let is_known = self.seen.ranks.iter().any(|seen| seen.signs.rank == rank);
                if !is_known {
                    let at = (rank, LocalRank(local_rank));
                    self.seen
                        .ranks
                        .push(RankEvidence::unknown(&place.node, at, kernel));
                }
            }
        }
        self.seen.ranks.sort_by_key(|seen| seen.signs.rank);
        self.seen
            .missing
            .sort_by(|one, other| one.node.cmp(&other.node));
        self.seen
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const NOW: Instant = Instant::from_nanos(100_000_000_000);

    /// Two ranks on each of three nodes.
    fn plan() -> Plan {
        let member = |node: u32| {
            serde_json::json!({
                "node": format!("n{node}"), "incarnation": 1, "slots": 2, "base_rank": node * 2,
            })
        };
        serde_json::from_value(serde_json::json!({
            "version": 1, "generation": 1, "phase": "run", "members": [member(0), member(1), member(2)],
            "world_size": 6, "master": { "address": "n0", "port": 1 }, "restart_count": 0, "why": "",
        }))
        .unwrap()
    }

    fn name(node: u32) -> NodeName {
        NodeName(format!("n{node}"))
    }

    fn seen(node: u32) -> Seen {
        let rank = |local: u32| (Rank(node * 2 + local), LocalRank(local));
        let stopped = |local| RankEvidence::unknown(&name(node), rank(local), KernelState::Stopped);
        Seen {
            node: NodeEvidence {
                node: name(node).0,
                ..NodeEvidence::default()
            },
            ranks: vec![stopped(0), stopped(1)],
        }
    }

    fn answer(node: u32) -> Vec<u8> {
        evidence::pack(&seen(node), 100_000).unwrap()
    }

    fn kernels(ranks: &[RankEvidence]) -> Vec<KernelState> {
        ranks.iter().map(|seen| seen.signs.kernel).collect()
    }

    #[test]
    fn what_nccl_says_of_a_process_counts_where_it_can_be_one_rank_only() {
        let mut found = Findings::default();
        for node in [0, 1] {
            let mut seen = seen(node);
            (seen.ranks[0].signs.pid, seen.ranks[1].signs.pid) = (100, 101 + node);
            seen.node.nccl_processes = vec![
                (100, "does not answer".to_owned()),
                (102, "has failed".to_owned()),
            ];
            found.nodes.push(seen.node);
            found.ranks.extend(seen.ranks);
        }
        found.heed_nccl();
        let reported = found
            .ranks
            .iter()
            .map(|seen| seen.signs.reported.as_deref());
        let expected = [None, None, None, Some("has failed")];
        assert_eq!(reported.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn it_is_over_when_all_have_answered() {
        use KernelState::Stopped;
        let asked = vec![(name(1), Ok(7)), (name(2), Ok(8))];
        let mut enquiry = Enquiry::new(1, NOW + Duration::from_secs(3), true, asked);
        enquiry.take((8, &name(2)), &plan(), Ok(&answer(2)));
        // Who answers for another, or to what was not asked, is not listened to.
        enquiry.take((7, &name(2)), &plan(), Ok(&answer(2)));
        enquiry.take((9, &name(1)), &plan(), Ok(&answer(1)));
        assert!(!enquiry.is_complete(NOW));
        enquiry.take((7, &name(1)), &plan(), Ok(&answer(1)));
        enquiry.take_own(seen(0));
        assert!(enquiry.is_complete(NOW));
        let Findings {
            ranks,
            missing,
            nodes,
        } = enquiry.conclude(&plan(), |_| false);
        assert_eq!(kernels(&ranks), [Stopped; 6]);
        assert!(missing.is_empty());
        assert_eq!(nodes.len(), 3);
    }

    #[test]
    fn who_does_not_answer_is_waited_for_a_while_and_who_is_silent_not_at_all() {
        use KernelState::{Stopped, Unheard, Unknown};
        let silent = "nothing is heard of its supervisor".to_owned();
        let asked = vec![(name(1), Ok(7)), (name(2), Err(silent))];
        let mut enquiry = Enquiry::new(1, NOW + Duration::from_secs(3), true, asked);
        enquiry.take_own(seen(0));
        assert!(!enquiry.is_complete(NOW + Duration::from_secs(2)));
        assert!(enquiry.is_complete(NOW + Duration::from_secs(3)));
        let Findings {
            ranks,
            missing,
            nodes,
        } = enquiry.conclude(&plan(), |node| *node == name(2));
        assert_eq!(
            kernels(&ranks),
            [Stopped, Stopped, Unknown, Unknown, Unheard, Unheard]
        );
        assert_eq!(missing[0].why, "it has not answered in time");
        assert_eq!((missing.len(), nodes.len()), (2, 1));
    }

    #[test]
    fn who_falls_silent_or_sends_rubbish_is_not_waited_for() {
        let asked = vec![(name(1), Ok(7)), (name(2), Ok(8))];
        let mut enquiry = Enquiry::new(1, NOW + Duration::from_secs(3), false, asked);
        enquiry.lose(&name(1));
        enquiry.lose(&name(0));
        enquiry.take((8, &name(2)), &plan(), Ok(b"{}"));
        assert!(enquiry.is_complete(NOW));
        let Findings {
            ranks,
            missing,
            nodes,
        } = enquiry.conclude(&plan(), |_| false);
        assert_eq!((ranks.len(), missing.len(), nodes.len()), (6, 2, 0));
        assert!(missing[1].why.contains("cannot be read"), "{missing:?}");
    }
}
