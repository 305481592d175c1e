// SPDX-License-Identifier: Apache-2.0
//! Who takes part in a generation, and with which ranks.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    Endpoint, Generation, MemberRecord, NodeName, Plan, PlanMember, PlanPhase, RECORD_VERSION, Rank,
};

/// Puts the members in rank order. Those of the previous plan keep their order; newcomers take the places of those that
/// are gone, each the place whose neighbours it is closest to, and then follow at the end, in the order of the scheduler,
/// the topology and the name. At most `limit` are taken.
pub(crate) fn arrange<'a>(
    available: &BTreeMap<&'a NodeName, &'a MemberRecord>,
    previous: &[PlanMember],
    limit: u32,
) -> Vec<&'a MemberRecord> {
    let planned: BTreeSet<&NodeName> = previous.iter().map(|member| &member.node).collect();
    let mut newcomers: Vec<&MemberRecord> = available
        .iter()
        .filter(|(node, _)| !planned.contains(**node))
        .map(|(_, record)| *record)
        .collect();
    newcomers.sort_by_cached_key(|record| {
        let location = &record.location;
        let place = location.place.unwrap_or(u32::MAX);
        let levels = location.topology.iter();
        let levels: Vec<_> = levels.map(|(level, name)| (level, natural(name))).collect();
        (place, levels, natural(&record.node.0))
    });
    let mut chosen = Vec::new();
    for member in previous {
        let kept = available.get(&member.node).copied();
        chosen.extend(kept.or_else(|| take_closest(&mut newcomers, member)));
    }
    chosen.extend(newcomers);
    chosen.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
    chosen
}

/// By what names are ordered: numbers in them as numbers, so that `gpu9` comes before `gpu10`. The name itself comes last,
/// so that no two names are equal.
fn natural(name: &str) -> (Vec<(&str, u64)>, &str) {
    let mut parts = Vec::new();
    let mut rest = name;
    while !rest.is_empty() {
        let (words, after) = rest.split_at(
            rest.find(|c: char| c.is_ascii_digit())
                .unwrap_or(rest.len()),
        );
        let (digits, after) = after.split_at(
            after
                .find(|c: char| !c.is_ascii_digit())
                .unwrap_or(after.len()),
        );
        // A number that is too large to be one comes after all others, and none before them.
        let number = if digits.is_empty() {
            0
        } else {
            digits.parse().unwrap_or(u64::MAX)
        };
        parts.push((words, number));
        rest = after;
    }
    (parts, name)
}

/// Takes the newcomer that shares most with the place of `gone`; the first of those that share as much.
fn take_closest<'a>(
    newcomers: &mut Vec<&'a MemberRecord>,
    gone: &PlanMember,
) -> Option<&'a MemberRecord> {
    let shared = |record: &MemberRecord| record.location.shared_levels(&gone.location);
    let most = newcomers.iter().map(|record| shared(record)).max()?;
    let index = newcomers.iter().position(|record| shared(record) == most)?;
    Some(newcomers.remove(index))
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
            boot: member.boot.clone(),
            machine: member.machine.clone(),
            location: member.location.clone(),
            clears: false,
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
        witness_ms: 0,
        resume: None,
        save: None,
        last_save: None,
        committed: None,
        extra: BTreeMap::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Incarnation, Location};

    fn record(node: &str) -> MemberRecord {
        MemberRecord {
            address: format!("{node}.cluster"),
            slots: 2,
            next_port: 29_500,
            ..MemberRecord::new(node.into(), Incarnation(1))
        }
    }

    fn placed(node: &str, place: Option<u32>, rack: &str) -> MemberRecord {
        let mut record = record(node);
        record.location = Location {
            place,
            topology: vec![("rack".to_owned(), rack.to_owned())],
        };
        record
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
                boot: String::new(),
                machine: String::new(),
                location: Location::default(),
                clears: false,
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
    fn the_scheduler_and_the_topology_give_the_first_order() {
        let all = [
            placed("a", None, "r2"),
            placed("b", None, "r1"),
            placed("c", Some(1), "r2"),
            placed("d", Some(0), "r9"),
        ];
        assert_eq!(names(&all, &[], 4), ["d", "c", "b", "a"]);
    }

    #[test]
    fn numbers_in_names_are_numbers() {
        let all = [
            placed("gpu10", None, "r10"),
            placed("gpu9", None, "r9"),
            placed("gpu009", None, "r9"),
            placed("gpu", None, "r9"),
        ];
        assert_eq!(names(&all, &[], 4), ["gpu", "gpu009", "gpu9", "gpu10"]);
    }

    #[test]
    fn a_spare_of_the_same_rack_takes_the_place_of_the_one_that_is_gone() {
        let all = [
            placed("a", None, "r1"),
            placed("s1", None, "r1"),
            placed("s2", None, "r2"),
        ];
        let available: BTreeMap<_, _> = all.iter().map(|record| (&record.node, record)).collect();
        let first = [placed("a", None, "r1"), placed("b", None, "r2")];
        let before: Vec<_> = first.iter().collect();
        let previous = plan(Generation(1), &before, String::new()).unwrap().members;
        let chosen = arrange(&available, &previous, 2);
        let names: Vec<_> = chosen.iter().map(|record| record.node.0.as_str()).collect();
        assert_eq!(names, ["a", "s2"]);
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
