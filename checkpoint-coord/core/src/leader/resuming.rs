// SPDX-License-Identifier: Apache-2.0
//! Which checkpoint does the next generation resume from?
//!
//! Members say what they can vouch for. Those that see the same directory vouch for one another; where there are several
//! directories, each holds a part, and only what is whole in all of them can be loaded.

use std::collections::{BTreeMap, BTreeSet};

use super::Leader;
use crate::{
    CheckpointReport, Generation, MemberPhase, MemberRecord, Plan, Resume, ResumePoint,
    WholeCheckpoint,
};

/// The whole checkpoints of a directory, by step and name; the only world size that can load each, if that matters.
type Shelf<'a> = BTreeMap<(u64, &'a str), Option<u32>>;

impl Leader {
    /// Puts into `next` where its workers resume and who clears the way. Returns what people should know of it, in words.
    /// `last` is the generation that has ended.
    pub(super) fn choose_resume(&self, last: Generation, next: &mut Plan) -> Option<String> {
        let all = self.view.members().values();
        let all: Vec<&MemberRecord> = all.map(|record| &*record.value).collect();
        let (resume, remark) = choose(&all, last, next)?;
        let committed = self.view.committed().last_key_value();
        let lost = committed.and_then(|(step, _)| gone(*step, &resume));
        next.resume = Some(resume);
        let remarks: Vec<String> = remark.into_iter().chain(lost).collect();
        (!remarks.is_empty()).then(|| remarks.join("; "))
    }
}

/// What to say when `committed`, the newest step that was committed, cannot be resumed from any more: only something
/// outside of the job can have done that.
fn gone(committed: u64, resume: &Resume) -> Option<String> {
    let from = resume.from.as_ref().map(|from| from.step);
    (from < Some(committed)).then(|| {
        let instead = from.map_or("the beginning".to_owned(), |step| format!("step {step}"));
        format!(
            "the checkpoint of step {committed} was committed, and cannot be loaded any more: the job goes on from {instead}"
        )
    })
}

/// `None` when no member of the plan has said what there is.
fn choose(
    all: &[&MemberRecord],
    last: Generation,
    next: &mut Plan,
) -> Option<(Resume, Option<String>)> {
    let shelves = shelves(all, last);
    let mut directories = BTreeSet::new();
    let mut has_reports = false;
    for place in &mut next.members {
        let record = all.iter().find(|record| record.node == place.node);
        if let Some(report) = record.and_then(|record| record.checkpoints.as_ref()) {
            has_reports = true;
            place.clears = directories.insert(report.directory.as_str());
        }
    }
    if !has_reports {
        return None;
    }
    // Where a member has seen none, nobody can say whether it looks into a directory of its own.
    directories.remove("");
    if directories.is_empty() {
        let known: Vec<&str> = shelves.keys().copied().collect();
        directories.extend(known.first().filter(|_| known.len() == 1));
    }
    let shelves: Vec<&Shelf<'_>> = directories
        .iter()
        .filter_map(|directory| shelves.get(directory))
        .collect();
    let fits = |only_for: &Option<u32>| only_for.is_none_or(|size| size == next.world_size);
    let everywhere = |key: &(u64, &str)| {
        let only_for = |shelf: &&Shelf<'_>| shelf.get(key).is_some_and(fits);
        shelves.iter().all(only_for)
    };
    let keys = shelves.iter().flat_map(|shelf| shelf.keys().copied());
    let keys: BTreeSet<(u64, &str)> = keys.collect();
    let chosen = keys.iter().rev().find(|key| everywhere(key)).copied();
    let newest = keys.last().copied();
    let resume = Resume {
        from: chosen.map(|(step, name)| ResumePoint {
            step,
            name: name.to_owned(),
        }),
        apart: shelves.len() > 1,
    };
    let passed_over = newest.filter(|newest| Some(*newest) != chosen);
    let remark = passed_over.map(|(_, name)| {
        let directories = if shelves.len() > 1 {
            " from the directories of all nodes"
        } else {
            ""
        };
        format!(
            "checkpoint {name} is passed over: {} workers cannot load it{directories}",
            next.world_size
        )
    });
    Some((resume, remark))
}

/// What there is in each directory. Of a generation that has ended, those know best who took part in it: what others say
/// may be older.
fn shelves<'a>(all: &[&'a MemberRecord], last: Generation) -> BTreeMap<&'a str, Shelf<'a>> {
    let mut reports: BTreeMap<&str, Vec<(bool, &CheckpointReport)>> = BTreeMap::new();
    for record in all {
        let Some(report) = &record.checkpoints else {
            continue;
        };
        let ended = matches!(record.phase, MemberPhase::Stopped | MemberPhase::Completed);
        let is_fresh = ended && record.generation == last;
        let of_directory = reports.entry(&report.directory).or_default();
        of_directory.push((is_fresh, report));
    }
    reports.remove("");
    let shelf = |reports: Vec<(bool, &'a CheckpointReport)>| {
        let any_fresh = reports.iter().any(|(is_fresh, _)| *is_fresh);
        let counts = |(is_fresh, _): &&(bool, &CheckpointReport)| *is_fresh || !any_fresh;
        let counting = reports.iter().filter(counts);
        let whole = counting.flat_map(|(_, report)| &report.whole);
        whole
            .map(|whole: &WholeCheckpoint| ((whole.step, whole.name.as_str()), whole.only_for))
            .collect()
    };
    reports
        .into_iter()
        .map(|(directory, reports)| (directory, shelf(reports)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Incarnation, formation};

    fn record(node: &str, generation: u64, directory: &str, steps: &[u64]) -> MemberRecord {
        let whole = steps.iter().map(|step| WholeCheckpoint {
            step: *step,
            name: format!("step-{step}"),
            only_for: None,
        });
        MemberRecord {
            generation: Generation(generation),
            phase: MemberPhase::Stopped,
            checkpoints: Some(CheckpointReport {
                directory: directory.to_owned(),
                whole: whole.collect(),
            }),
            ..MemberRecord::new(node.into(), Incarnation(1))
        }
    }

    /// The step that is resumed from, whether the directories are several, and who clears them. The first `taking_part`
    /// take part in the next generation.
    fn chosen(all: &[MemberRecord], taking_part: usize) -> Option<(Option<u64>, bool, Vec<bool>)> {
        let all: Vec<&MemberRecord> = all.iter().collect();
        let mut next = formation::plan(Generation(3), &all[..taking_part], String::new()).unwrap();
        let (resume, _) = choose(&all, Generation(2), &mut next)?;
        let clears = next.members.iter().map(|place| place.clears).collect();
        Some((resume.from.map(|from| from.step), resume.apart, clears))
    }

    #[test]
    fn of_one_directory_the_newest_that_anybody_saw_is_chosen_and_one_clears_it() {
        // The first stopped before the last checkpoint was made, and saw one that was deleted since.
        let all = [
            record("a", 2, "d", &[10, 20]),
            record("b", 2, "d", &[20, 30]),
        ];
        assert_eq!(chosen(&all, 2), Some((Some(30), false, vec![true, false])));
    }

    #[test]
    fn a_member_that_has_left_vouches_and_a_spare_with_old_news_does_not() {
        let all = [
            record("spare", 0, "d", &[99]),
            record("b", 2, "d", &[20]),
            record("leaving", 2, "d", &[20, 30]),
        ];
        assert_eq!(chosen(&all, 2), Some((Some(30), false, vec![true, false])));
        // But where nobody has taken part, old news is all that there is.
        assert_eq!(chosen(&all[..1], 1), Some((Some(99), false, vec![true])));
    }

    #[test]
    fn of_several_directories_only_what_is_whole_in_all_is_chosen() {
        let all = [record("a", 2, "d1", &[10, 20]), record("b", 2, "d2", &[10])];
        assert_eq!(chosen(&all, 2), Some((Some(10), true, vec![true, true])));
        let nothing_in_common = [record("a", 2, "d1", &[20]), record("b", 2, "d2", &[10])];
        assert_eq!(
            chosen(&nothing_in_common, 2),
            Some((None, true, vec![true, true]))
        );
    }

    #[test]
    fn a_member_that_has_seen_no_checkpoint_is_in_nobodys_way() {
        let all = [record("a", 2, "", &[]), record("b", 2, "d", &[20])];
        assert_eq!(chosen(&all, 2), Some((Some(20), false, vec![true, true])));
        // It does not take part any more who saw the first checkpoint.
        assert_eq!(chosen(&all, 1), Some((Some(20), false, vec![true])));
    }

    #[test]
    fn what_another_world_size_saved_is_passed_over_and_said() {
        let mut a = record("a", 2, "d", &[10, 20]);
        if let Some(report) = &mut a.checkpoints {
            report.whole[1].only_for = Some(2);
        }
        let all = [&a];
        let mut next = formation::plan(Generation(3), &all, String::new()).unwrap();
        let (resume, remark) = choose(&all, Generation(2), &mut next).unwrap();
        assert_eq!(resume.from.unwrap().step, 10);
        assert_eq!(
            remark.unwrap(),
            "checkpoint step-20 is passed over: 1 workers cannot load it"
        );
    }

    #[test]
    fn a_committed_checkpoint_that_cannot_be_loaded_any_more_is_said() {
        let from = |step| Resume {
            from: Some(ResumePoint {
                step,
                name: String::new(),
            }),
            apart: false,
        };
        assert_eq!(gone(10, &from(10)), None);
        assert_eq!(gone(10, &from(12)), None);
        assert!(gone(10, &from(9)).unwrap().ends_with("from step 9"));
        assert!(
            gone(10, &Resume::default())
                .unwrap()
                .ends_with("from the beginning")
        );
    }

    #[test]
    fn without_reports_nothing_is_chosen() {
        let silent = MemberRecord::new("a".into(), Incarnation(1));
        assert_eq!(chosen(&[silent], 1), None);
    }
}
