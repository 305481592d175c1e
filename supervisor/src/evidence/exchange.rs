// SPDX-License-Identifier: Apache-2.0
//! What a node sees of its workers, as it goes to the leader: JSON, within the size that was asked for.

use serde::{Deserialize, Serialize};
use steadfast_core::PlanMember;

use super::{NodeEvidence, RankEvidence};

/// Version of the text.
const VERSION: u32 = 1;

/// Why what a node has sent cannot be used.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unusable {
    /// It is not what a supervisor of this version writes.
    #[error("its answer cannot be read: {0}")]
    Malformed(String),
    /// It is about another node, or about ranks that the node does not have.
    #[error("its answer is about rank {rank} on {node}, which is not one of its own")]
    NotItsOwn {
        /// The node that is meant.
        node: String,
        /// The rank.
        rank: u32,
    },
}

/// What was seen on one node.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    /// Of the node as a whole.
    pub(crate) node: NodeEvidence,
    /// Of its ranks.
    pub(crate) ranks: Vec<RankEvidence>,
}

#[derive(Serialize)]
struct Sent<'a> {
    version: u32,
    node: &'a NodeEvidence,
    ranks: &'a [RankEvidence],
}

#[derive(Deserialize)]
struct Received {
    version: u32,
    node: NodeEvidence,
    ranks: Vec<RankEvidence>,
}

/// The text. Where it would be too long, what explains least is left out: the threads and connections of the processes, then
/// the kernel log and NCCL's words, then the texts of their interpreters, then the last lines of output.
///
/// # Errors
///
/// In words, when even the signs do not fit.
pub(crate) fn pack(seen: &Seen, max_bytes: u64) -> Result<Vec<u8>, String> {
    let Seen {
        mut node,
        mut ranks,
    } = seen.clone();
    let leave_out: [fn(&mut NodeEvidence, &mut RankEvidence); 4] = [
        |_, rank| {
            rank.process = None;
            rank.sockets.clear();
        },
        |node, _| {
            node.kernel_log.clear();
            node.nccl_answer = None;
        },
        |_, rank| rank.stacks.clear(),
        |_, rank| rank.last_lines.clear(),
    ];
    let mut leave_out = leave_out.into_iter();
    loop {
        let text = serde_json::to_vec(&Sent {
            version: VERSION,
            node: &node,
            ranks: &ranks,
        })
        .map_err(|error| error.to_string())?;
        if u64::try_from(text.len()).is_ok_and(|length| length <= max_bytes) {
            return Ok(text);
        }
        let Some(leave_out) = leave_out.next() else {
            return Err(format!(
                "what is seen of {} workers does not fit into {max_bytes} bytes",
                ranks.len()
            ));
        };
        for rank in &mut ranks {
            leave_out(&mut node, rank);
        }
    }
}

/// What a node has sent, if it is about the ranks that it has by the plan, and about each once.
///
/// # Errors
///
/// [`Unusable`].
pub(crate) fn unpack(text: &[u8], place: &PlanMember) -> Result<Seen, Unusable> {
    let received: Received =
        serde_json::from_slice(text).map_err(|error| Unusable::Malformed(error.to_string()))?;
    if received.version != VERSION {
        let version = received.version;
        return Err(Unusable::Malformed(format!("it has version {version}")));
    }
    let mut seen = Vec::new();
    for evidence in &received.ranks {
        let signs = &evidence.signs;
        let local = signs.rank.0.checked_sub(place.base_rank.0);
        let fits = signs.node == place.node
            && local == Some(signs.local_rank.0)
            && signs.local_rank.0 < place.slots
            && !seen.contains(&signs.rank);
        if !fits {
            return Err(Unusable::NotItsOwn {
                node: signs.node.0.clone(),
                rank: signs.rank.0,
            });
        }
        seen.push(signs.rank);
    }
    Ok(Seen {
        node: NodeEvidence {
            node: place.node.0.clone(),
            ..received.node
        },
        ranks: received.ranks,
    })
}

#[cfg(test)]
mod tests {
    use steadfast_core::{Incarnation, KernelState, LocalRank, Location, NodeName, Rank};

    use super::*;

    fn evidence(local_rank: u32) -> RankEvidence {
        let place = (Rank(2 + local_rank), LocalRank(local_rank));
        let mut evidence =
            RankEvidence::unknown(&NodeName("n2".to_owned()), place, KernelState::Stopped);
        evidence.stacks = vec!["x".repeat(3_000)];
        evidence.last_lines = vec!["y".repeat(1_000)];
        evidence
    }

    fn place() -> PlanMember {
        PlanMember {
            node: NodeName("n2".to_owned()),
            incarnation: Incarnation(1),
            slots: 2,
            base_rank: Rank(2),
            clears: false,
            boot: String::new(),
            machine: String::new(),
            location: Location::default(),
        }
    }

    fn seen(ranks: Vec<RankEvidence>) -> Seen {
        let node = NodeEvidence {
            node: "n2".to_owned(),
            kernel_log: vec!["z".repeat(500)],
            ..NodeEvidence::default()
        };
        Seen { node, ranks }
    }

    #[test]
    fn what_arrives_is_what_was_seen_as_far_as_it_fits() {
        let sent = seen(vec![evidence(0), evidence(1)]);
        let ranks = &sent.ranks;
        let all = unpack(&pack(&sent, 100_000).unwrap(), &place()).unwrap();
        assert_eq!(all.ranks[1].stacks, ranks[1].stacks);
        assert_eq!(all.ranks[1].signs, ranks[1].signs);
        assert_eq!(all.node, sent.node);
        let less = unpack(&pack(&sent, 4_000).unwrap(), &place()).unwrap();
        assert!(less.ranks[0].stacks.is_empty() && less.node.kernel_log.is_empty());
        assert_eq!(less.ranks[0].last_lines, ranks[0].last_lines);
        let least = unpack(&pack(&sent, 1_100).unwrap(), &place()).unwrap();
        assert_eq!(least.ranks[0].signs, ranks[0].signs);
        assert!(pack(&sent, 100).is_err());
    }

    #[test]
    fn nobody_speaks_for_the_ranks_of_others() {
        let mut foreign = evidence(0);
        foreign.signs.node = NodeName("n1".to_owned());
        let mut too_high = evidence(0);
        too_high.signs.rank = Rank(9);
        too_high.signs.local_rank = LocalRank(7);
        for ranks in [
            vec![foreign],
            vec![too_high],
            vec![evidence(1), evidence(1)],
        ] {
            let text = pack(&seen(ranks), 100_000).unwrap();
            let refused = unpack(&text, &place()).unwrap_err();
            assert!(matches!(refused, Unusable::NotItsOwn { .. }), "{refused}");
        }
        let refused = unpack(b"{}", &place()).unwrap_err();
        assert!(matches!(refused, Unusable::Malformed(_)), "{refused}");
    }
}
