// SPDX-License-Identifier: Apache-2.0
//! What a machine knows of the store: the job's records as last seen.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use steadfast_proto::v1::Finding;

use crate::keys::KeyKind;
use crate::{
    Change, ChangeBatch, CommitRecord, Course, FindingsRecord, Generation, JobResult, JobSpec,
    KeyValue, Keys, LeaderRecord, LeaseId, Ledger, MemberRecord, NodeName, Places, Plan,
    RecordError, Request, Revision,
};

/// A record and where it stands in the store's history.
#[derive(Debug, Clone, PartialEq)]
pub struct Versioned<T> {
    /// The record; shared with everybody who has read the same text.
    pub value: Arc<T>,
    /// Revision at which its key came into being.
    pub create_revision: Revision,
    /// Revision of the last write.
    pub mod_revision: Revision,
    /// Lease that it dies with, if any.
    pub lease: Option<LeaseId>,
}

/// The records of one job at one revision.
#[derive(Debug, Clone, PartialEq)]
pub struct View {
    keys: Keys,
    revision: Revision,
    spec: Option<Versioned<JobSpec>>,
    leader: Option<Versioned<LeaderRecord>>,
    members: BTreeMap<NodeName, Versioned<MemberRecord>>,
    /// The plan as it was written.
    written: Option<Versioned<Plan>>,
    course: Option<Versioned<Course>>,
    places: Option<Versioned<Places>>,
    /// All three together.
    plan: Option<Versioned<Plan>>,
    findings: BTreeMap<(Generation, NodeName), Versioned<FindingsRecord>>,
    ledger: Option<Versioned<Ledger>>,
    result: Option<Versioned<JobResult>>,
    committed: BTreeMap<u64, Versioned<CommitRecord>>,
    unreadable: BTreeMap<String, RecordError>,
}

impl View {
    /// The records among `entries`, as read from the store at `revision`.
    pub fn load(keys: Keys, entries: &[KeyValue], revision: Revision) -> Self {
        let mut view = Self {
            keys,
            revision,
            spec: None,
            leader: None,
            members: BTreeMap::new(),
            written: None,
            course: None,
            places: None,
            plan: None,
            findings: BTreeMap::new(),
            ledger: None,
            result: None,
            committed: BTreeMap::new(),
            unreadable: BTreeMap::new(),
        };
        for entry in entries {
            view.put(&entry.key, Some(entry));
        }
        view.compose();
        view
    }

    /// Follows the store by one revision. Batches that are already contained are ignored.
    pub fn apply(&mut self, batch: &ChangeBatch) {
        if batch.revision <= self.revision {
            return;
        }
        self.revision = batch.revision;
        for change in &batch.changes {
            match change {
                Change::Put(entry) => self.put(&entry.key, Some(entry)),
                Change::Delete { key } => self.put(key, None),
            }
        }
        let keys = batch.changes.iter().map(Change::key);
        if keys.into_iter().any(|key| self.is_of_plan(key)) {
            self.compose();
        }
    }

    /// The job's keys.
    pub fn keys(&self) -> &Keys {
        &self.keys
    }

    /// The revision up to which this view is complete.
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// What must agree, once a member has registered.
    pub fn spec(&self) -> Option<&Versioned<JobSpec>> {
        self.spec.as_ref()
    }

    /// Who leads, if anybody does.
    pub fn leader(&self) -> Option<&Versioned<LeaderRecord>> {
        self.leader.as_ref()
    }

    /// All members, by node.
    pub fn members(&self) -> &BTreeMap<NodeName, Versioned<MemberRecord>> {
        &self.members
    }

    /// The member on `node`.
    pub fn member(&self, node: &NodeName) -> Option<&Versioned<MemberRecord>> {
        self.members.get(node)
    }

    /// The plan in force, with what has become of it. It stands where the last of its records was written.
    pub fn plan(&self) -> Option<&Versioned<Plan>> {
        self.plan.as_ref()
    }

    /// What has become of the plan of `generation`, as it was written.
    pub(crate) fn course(&self, generation: Generation) -> Option<&Course> {
        let course = self.course.as_ref().map(|record| &*record.value);
        course.filter(|course| course.generation == generation)
    }

    /// Where the plan stands in the store's history, and where what has become of it.
    pub(crate) fn plan_revisions(&self) -> (Revision, Revision) {
        let written = self.written.as_ref().map(|record| record.mod_revision);
        let course = self.course.as_ref().map(|record| record.mod_revision);
        (written.unwrap_or_default(), course.unwrap_or_default())
    }

    /// What `node` found in `generation`, in the order in which it was found.
    pub fn findings(&self, generation: Generation, node: &NodeName) -> &[Finding] {
        self.findings
            .get(&(generation, node.clone()))
            .map_or(&[], |record| &record.value.findings)
    }

    /// Whether `node` has left in `generation`, its workers stopped.
    pub(crate) fn has_left(&self, generation: Generation, node: &NodeName) -> bool {
        self.findings
            .get(&(generation, node.clone()))
            .is_some_and(|record| record.value.stopped)
    }

    /// What all nodes found in `generation`.
    pub fn findings_of(&self, generation: Generation) -> Vec<Finding> {
        self.findings
            .iter()
            .filter(|((of, _), _)| *of == generation)
            .flat_map(|(_, record)| record.value.findings.iter().cloned())
            .collect()
    }

    /// Whether any node found such a thing in `generation`.
    pub(crate) fn has_finding(
        &self,
        generation: Generation,
        such: impl Fn(&Finding) -> bool,
    ) -> bool {
        self.findings
            .iter()
            .filter(|((of, _), _)| *of == generation)
            .any(|(_, record)| record.value.findings.iter().any(&such))
    }

    /// What was asked of the job, as the records of findings have it; the newest generation last.
    pub fn requests(&self) -> impl Iterator<Item = (&NodeName, &Request)> {
        self.findings
            .iter()
            .filter_map(|((_, node), record)| Some((node, record.value.request.as_ref()?)))
    }

    /// Generations and nodes that have a record of findings.
    pub(crate) fn findings_keys(&self) -> impl Iterator<Item = &(Generation, NodeName)> {
        self.findings.keys()
    }

    /// The job's memory of faults.
    pub fn ledger(&self) -> Option<&Versioned<Ledger>> {
        self.ledger.as_ref()
    }

    /// How the job ended, if it did.
    pub fn result(&self) -> Option<&JobResult> {
        self.result.as_ref().map(|record| &*record.value)
    }

    /// The committed checkpoints, by step.
    pub fn committed(&self) -> &BTreeMap<u64, Versioned<CommitRecord>> {
        &self.committed
    }

    /// Records that could not be read.
    pub fn unreadable(&self) -> impl Iterator<Item = &RecordError> {
        self.unreadable.values()
    }

    /// A record that cannot be read and without which nothing may be decided.
    pub(crate) fn blocking_problem(&self) -> Option<&RecordError> {
        let keys = &self.keys;
        [keys.spec(), keys.plan(), keys.course(), keys.ledger()]
            .iter()
            .find_map(|key| self.unreadable.get(key))
    }

    pub(crate) fn set(&mut self, key: &str, entry: Option<&KeyValue>) {
        self.put(key, entry);
        if self.is_of_plan(key) {
            self.compose();
        }
    }

    fn is_of_plan(&self, key: &str) -> bool {
        matches!(
            self.keys.kind(key),
            KeyKind::Plan | KeyKind::Course | KeyKind::Places
        )
    }

    /// Puts the records of the plan together.
    fn compose(&mut self) {
        self.plan.clone_from(&self.written);
        let Some(plan) = &mut self.plan else {
            return;
        };
        let generation = plan.value.generation;
        let course = self.course.as_ref();
        if let Some(course) = course.filter(|course| course.value.generation == generation) {
            course.value.put_into(Arc::make_mut(&mut plan.value));
            plan.mod_revision = plan.mod_revision.max(course.mod_revision);
        }
        let places = self.places.as_ref();
        if let Some(places) = places.filter(|places| places.value.generation == generation) {
            places.value.put_into(Arc::make_mut(&mut plan.value));
        }
    }

    fn put(&mut self, key: &str, entry: Option<&KeyValue>) {
        self.unreadable.remove(key);
        let problem = match self.keys.kind(key) {
            KeyKind::Spec => replace(&mut self.spec, entry),
            KeyKind::Leader => replace(&mut self.leader, entry),
            KeyKind::Plan => replace(&mut self.written, entry),
            KeyKind::Course => replace(&mut self.course, entry),
            KeyKind::Places => replace(&mut self.places, entry),
            KeyKind::Ledger => replace(&mut self.ledger, entry),
            KeyKind::Result => replace(&mut self.result, entry),
            KeyKind::Member(node) => replace_in(&mut self.members, node, entry),
            KeyKind::Findings(generation, node) => {
                replace_in(&mut self.findings, (generation, node), entry)
            }
            KeyKind::Checkpoint(step) => replace_in(&mut self.committed, step, entry),
            KeyKind::Other => None,
        };
        if let Some(problem) = problem {
            self.unreadable.insert(key.to_owned(), problem);
        }
    }
}

/// Sets the slot from the entry. An entry that cannot be read leaves the slot as it was, since acting as if the record
/// did not exist would be worse (a second plan for a generation, a second result).
fn replace<T: DeserializeOwned + Send + Sync + 'static>(
    slot: &mut Option<Versioned<T>>,
    entry: Option<&KeyValue>,
) -> Option<RecordError> {
    match entry.map(read).transpose() {
        Ok(record) => {
            *slot = record;
            None
        }
        Err(problem) => Some(problem),
    }
}

fn replace_in<K: Ord, T: DeserializeOwned + Send + Sync + 'static>(
    slots: &mut BTreeMap<K, Versioned<T>>,
    slot: K,
    entry: Option<&KeyValue>,
) -> Option<RecordError> {
    match entry.map(read).transpose() {
        Ok(Some(record)) => {
            slots.insert(slot, record);
            None
        }
        Ok(None) => {
            slots.remove(&slot);
            None
        }
        Err(problem) => Some(problem),
    }
}

fn read<T: DeserializeOwned + Send + Sync + 'static>(
    entry: &KeyValue,
) -> Result<Versioned<T>, RecordError> {
    Ok(Versioned {
        value: entry.value.record(&entry.key)?,
        create_revision: entry.create_revision,
        mod_revision: entry.mod_revision,
        lease: entry.lease,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::encode;
    use crate::{Incarnation, PlanPhase, Request, RequestKind};

    fn entry(key: String, value: crate::Text, revision: i64) -> KeyValue {
        KeyValue {
            key,
            value,
            create_revision: Revision(1),
            mod_revision: Revision(revision),
            lease: None,
        }
    }

    fn planned(generation: u64) -> Plan {
        let record = MemberRecord {
            boot: "this start".to_owned(),
            slots: 1,
            ..MemberRecord::new("a".into(), Incarnation(1))
        };
        crate::formation::plan(Generation(generation), &[&record], String::new()).unwrap()
    }

    fn drained(generation: u64) -> Course {
        Course {
            phase: PlanPhase::Drain {
                signal: 15,
                request: Some(Request {
                    generation: Generation(generation),
                    kind: RequestKind::Restart,
                    save_ms: 0,
                    reason: String::new(),
                }),
                why: String::new(),
            },
            witness_ms: 2_000,
            ..Course::of(&planned(generation))
        }
    }

    #[test]
    fn the_records_of_a_plan_are_put_together_in_whatever_order_they_come() {
        let keys = Keys::new("job");
        let parts = [
            entry(keys.plan(), encode(&planned(2)), 3),
            entry(keys.places(), encode(&Places::of(&planned(2))), 3),
            entry(keys.course(), encode(&drained(2)), 4),
        ];
        for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0]] {
            let entries = order.map(|index| parts[index].clone());
            let view = View::load(keys.clone(), &entries, Revision(9));
            let plan = view.plan().unwrap();
            assert_eq!(plan.mod_revision, Revision(4));
            assert_eq!(plan.value.phase, drained(2).phase);
            assert_eq!(plan.value.witness_ms, 2_000);
            assert_eq!(plan.value.members[0].boot, "this start");
            assert_eq!(view.plan_revisions(), (Revision(3), Revision(4)));
        }
    }

    #[test]
    fn what_became_of_an_older_plan_says_nothing_about_the_next_one() {
        let keys = Keys::new("job");
        let before = [
            entry(keys.plan(), encode(&planned(2)), 3),
            entry(keys.course(), encode(&drained(2)), 4),
        ];
        let mut view = View::load(keys.clone(), &before, Revision(4));
        let next = entry(keys.plan(), encode(&planned(3)), 5);
        view.apply(&ChangeBatch {
            revision: Revision(5),
            changes: vec![Change::Put(next)],
        });
        let plan = view.plan().unwrap();
        assert!(plan.value.is_run());
        assert_eq!((plan.value.witness_ms, plan.mod_revision), (0, Revision(5)));
    }

    #[test]
    fn members_are_told_of_nobody_elses_place() {
        assert!(!encode(&planned(2)).contains("this start"));
    }
}
