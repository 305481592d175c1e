// SPDX-License-Identifier: Apache-2.0
//! The leader's transactions and their guards.

use steadfast_proto::v1::Finding;

use super::Leader;
use crate::records::encode;
use crate::{
    Condition, Course, FindingsRecord, Generation, Ledger, Operation, Places, Plan, RECORD_VERSION,
    Transaction,
};

/// Records of old findings that one write removes at most; stores limit the size of a transaction.
const CLEANUP_LIMIT: usize = 64;
/// Members that one write is guarded against at most, for the same reason. When more than that are lost at once, the
/// margin of the fences has to do for the others.
const GUARDS_LIMIT: usize = 100;

impl Leader {
    /// A transaction that takes effect only while we lead, nothing was decided meanwhile, and the job has not ended.
    pub(super) fn guarded(&self) -> Transaction {
        let keys = self.view.keys();
        let (plan, course) = self.view.plan_revisions();
        let ledger = self.view.ledger().map(|ledger| ledger.mod_revision);
        Transaction {
            when: vec![
                Condition::CreateRevision {
                    key: keys.leader(),
                    revision: self.epoch,
                },
                Condition::ModRevision {
                    key: keys.plan(),
                    revision: plan,
                },
                Condition::ModRevision {
                    key: keys.course(),
                    revision: course,
                },
                Condition::ModRevision {
                    key: keys.ledger(),
                    revision: ledger.unwrap_or_default(),
                },
                Condition::absent(keys.result()),
            ],
            then: Vec::new(),
        }
    }

    /// That members of the last generation which are gone have not come back meanwhile: their workers may then live again.
    pub(super) fn still_absent(&self) -> Vec<Condition> {
        let keys = self.view.keys();
        let places = self.view.plan().map(|plan| plan.value.members.as_slice());
        places
            .unwrap_or_default()
            .iter()
            .filter(|place| self.view.member(&place.node).is_none())
            .take(GUARDS_LIMIT)
            .map(|place| Condition::absent(keys.member(&place.node)))
            .collect()
    }

    /// The records of a new plan.
    pub(super) fn put_plan(&self, plan: &Plan) -> [Operation; 2] {
        let keys = self.view.keys();
        let put = |key, value| Operation::Put {
            key,
            value,
            lease: None,
        };
        [
            put(keys.plan(), encode(plan)),
            put(keys.places(), encode(&Places::of(plan))),
        ]
    }

    /// What has become of the plan in force so far.
    pub(super) fn course(&self, plan: &Plan) -> Course {
        let known = self.view.course(plan.generation);
        Course {
            extra: known.map(|known| known.extra.clone()).unwrap_or_default(),
            ..Course::of(plan)
        }
    }

    pub(super) fn put_course(&self, course: &Course) -> Operation {
        Operation::Put {
            key: self.view.keys().course(),
            value: encode(course),
            lease: None,
        }
    }

    pub(super) fn put_ledger(&self, ledger: &Ledger) -> Operation {
        Operation::Put {
            key: self.view.keys().ledger(),
            value: encode(ledger),
            lease: None,
        }
    }

    pub(super) fn put_verdict(&self, verdict: &Finding) -> Operation {
        Operation::Put {
            key: self.view.keys().verdict(Generation(verdict.generation)),
            value: encode(&FindingsRecord {
                version: RECORD_VERSION,
                findings: vec![verdict.clone()],
                ..FindingsRecord::default()
            }),
            lease: None,
        }
    }

    /// Findings of generations before `last` have been judged long ago.
    pub(super) fn old_findings(&self, last: Generation) -> Vec<Operation> {
        let keys = self.view.keys();
        self.view
            .findings_keys()
            .filter(|(generation, _)| *generation < last)
            .take(CLEANUP_LIMIT)
            .map(|(generation, node)| Operation::Delete {
                key: keys.findings(*generation, node),
            })
            .collect()
    }
}
