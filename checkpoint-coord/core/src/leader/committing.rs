// SPDX-License-Identifier: Apache-2.0
//! Committing checkpoints: those that were asked for, and those that the program makes by itself.
//!
//! A commit is a record in the store, written by the leader of the running generation alone, once every member of the plan
//! has the checkpoint whole and on stable storage. What old ones may be deleted follows from it.

use super::{Leader, LeaderEffect};
use crate::records::encode;
use crate::{CommitRecord, Course, MemberRecord, Operation, Plan, RECORD_VERSION};

/// Commit records that are kept beside the newest.
const COMMITS_KEPT: usize = 7;

impl Leader {
    /// The newest checkpoint that every member of the plan has on stable storage, if it is news.
    pub(super) fn newest_durable(&self, plan: &Plan) -> Option<u64> {
        let records: Vec<&MemberRecord> = self.records_of(plan).collect();
        if records.len() != plan.members.len() {
            return None;
        }
        let (first, others) = records.split_first()?;
        let everywhere = |step: &&u64| others.iter().all(|record| record.durable.contains(step));
        let newest = first.durable.iter().rev().find(everywhere).copied();
        newest.filter(|step| plan.committed.is_none_or(|known| *step > known))
    }

    /// Commits what the program has saved by itself.
    pub(super) fn commit_routine(
        &mut self,
        plan: &Plan,
        step: u64,
        effects: &mut Vec<LeaderEffect>,
    ) {
        let course = Course {
            committed: Some(step),
            ..self.course(plan)
        };
        let mut transaction = self.guarded();
        transaction.then.push(self.put_course(&course));
        transaction.then.extend(self.commit(plan, step));
        self.write(transaction, String::new(), effects);
    }

    /// The operations that commit the checkpoint of `step`, which all members have vouched for, and forget old ones.
    pub(super) fn commit(&self, plan: &Plan, step: u64) -> Vec<Operation> {
        let keys = self.view.keys();
        let record = CommitRecord {
            version: RECORD_VERSION,
            step,
            generation: plan.generation,
            world_size: plan.world_size,
        };
        let put = Operation::Put {
            key: keys.checkpoint(step),
            value: encode(&record),
            lease: None,
        };
        let before: Vec<u64> = self.view.committed().keys().copied().collect();
        let old = before.len().saturating_sub(COMMITS_KEPT);
        let forget = before[..old].iter().filter(|old| **old != step);
        std::iter::once(put)
            .chain(forget.map(|old| Operation::Delete {
                key: keys.checkpoint(*old),
            }))
            .collect()
    }
}
