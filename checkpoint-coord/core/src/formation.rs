// SPDX-License-Identifier: Apache-2.0
//! Who takes part in a generation, and with which ranks.

use std::collections::BTreeMap;

use crate::{
    Endpoint, Generation, MemberRecord, NodeName, Plan, PlanMember, PlanPhase, RECORD_VERSION, Rank,
};

/// Puts the members in rank order: those of the previous plan keep their order, newcomers take the places of those
/// that are gone and then follow at the end, by name. At most `limit` are taken.
pub(crate) fn arrange<'a>(
    available: &BTreeMap<&'a NodeName, &'a MemberRecord>,
    previous: &[PlanMember],
    limit: u32,
) -> Vec<&'a MemberRecord> {
    let mut newcomers = available
        .iter()
        .filter(|(node, _)| !previous.iter().any(|member| &member.node == **node))
        .map(|(_, record)| *record);
    let mut chosen = Vec::new();
    for member in previous {
        let kept = available.get(&member.node).copied();
        chosen.extend(kept.or_else(|| newcomers.next()));
    }
    chosen.extend(newcomers);
    chosen.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
    chosen
}

/// The plan of `generation` with these members, in this order. `None` without members.
pub(crate) fn plan(generation: Generation, members: &[&MemberRecord], why: String) -> Option<Plan> {
    let first = members.first()?;
    let mut world_size = 0_u32;
    let mut places = Vec::new();
    for member in members {
        places.push(PlanMember {
            node: member.node.clone(),
            incarnation: member.incarnation,
            slots: member.slots,
            base_rank: Rank(world_size),
        });
        world_size = world_size.saturating_add(member.slots);
    }
    Some(Plan {
        version: RECORD_VERSION,
        generation,
        phase: PlanPhase::Run,
        members: places,
        world_size,
        master: Endpoint {
            address: first.address.clone(),
            port: first.next_port,
        },
        restart_count: generation.restart_count(),
        why,
        extra: BTreeMap::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Incarnation, MemberPhase};

    fn record(node: &str) -> MemberRecord {
        MemberRecord {
            version: RECORD_VERSION,
            node: node.into(),
            incarnation: Incarnation(1),
            address: format!("{node}.cluster"),
            slots: 2,
            generation: Generation(0),
            phase: MemberPhase::Idle,
            next_port: 29_500,
            step: None,
            stop_began: None,
            unkillable: vec![],
            clean: false,
            request: None,
            extra: BTreeMap::new(),
        }
    }

    fn names(available: &[MemberRecord], previous: &[&str], limit: u32) -> Vec<String> {
        let available = available
            .iter()
            .map(|record| (&record.node, record))
            .collect();
        let previous: Vec<_> = previous
            .iter()
            .map(|node| PlanMember {
                node: (*node).into(),
                incarnation: Incarnation(1),
                slots: 2,
                base_rank: Rank(0),
            })
            .collect();
        arrange(&available, &previous, limit)
            .into_iter()
            .map(|record| record.node.0.clone())
            .collect()
    }

    #[test]
    fn order_is_kept_and_gaps_are_filled() {
        let all = ["a", "b", "c", "d"].map(record);
        assert_eq!(names(&all, &[], 3), ["a", "b", "c"]);
        assert_eq!(names(&all, &["d", "x", "b"], 3), ["d", "a", "b"]);
        assert_eq!(names(&all[..2], &["b", "x", "a"], 3), ["b", "a"]);
    }

    #[test]
    fn ranks_follow_the_slots() {
        let all = ["a", "b"].map(record);
        let plan = plan(Generation(4), &[&all[1], &all[0]], String::new()).unwrap();
        assert_eq!(plan.world_size, 4);
        assert_eq!(plan.restart_count, 3);
        assert_eq!(plan.master.address, "b.cluster");
        assert_eq!(plan.members[1].base_rank, Rank(2));
    }
}
