// SPDX-License-Identifier: Apache-2.0
//! What a machine knows of the store: the job's records as last seen.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use steadfast_proto::v1::Finding;

use crate::keys::KeyKind;
use crate::records::decode;
use crate::{
    Change, ChangeBatch, FindingsRecord, Generation, JobResult, JobSpec, KeyValue, Keys,
    LeaderRecord, LeaseId, Ledger, MemberRecord, NodeName, Plan, RecordError, Request, Revision,
};

/// A record and where it stands in the store's history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Versioned<T> {
    /// The record.
    pub value: T,
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
    /// Shared, since it is long in a job of many nodes, and those who hand it on need not copy it.
    plan: Option<Arc<Versioned<Plan>>>,
    findings: BTreeMap<(Generation, NodeName), Versioned<FindingsRecord>>,
    ledger: Option<Versioned<Ledger>>,
    result: Option<Versioned<JobResult>>,
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
            plan: None,
            findings: BTreeMap::new(),
            ledger: None,
            result: None,
            unreadable: BTreeMap::new(),
        };
        for entry in entries {
            view.set(&entry.key, Some(entry));
        }
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
                Change::Put(entry) => self.set(&entry.key, Some(entry)),
                Change::Delete { key } => self.set(key, None),
            }
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

    /// The plan in force.
    pub fn plan(&self) -> Option<&Versioned<Plan>> {
        self.plan.as_deref()
    }

    /// The same, to be kept.
    pub fn shared_plan(&self) -> Option<Arc<Versioned<Plan>>> {
        self.plan.clone()
    }

    /// What `node` found in `generation`, in the order in which it was found.
    pub fn findings(&self, generation: Generation, node: &NodeName) -> &[Finding] {
        self.findings
            .get(&(generation, node.clone()))
            .map_or(&[], |record| &record.value.findings)
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
        self.result.as_ref().map(|record| &record.value)
    }

    /// Records that could not be read.
    pub fn unreadable(&self) -> impl Iterator<Item = &RecordError> {
        self.unreadable.values()
    }

    /// A record that cannot be read and without which nothing may be decided.
    pub(crate) fn blocking_problem(&self) -> Option<&RecordError> {
        [self.keys.spec(), self.keys.plan(), self.keys.ledger()]
            .iter()
            .find_map(|key| self.unreadable.get(key))
    }

    pub(crate) fn set(&mut self, key: &str, entry: Option<&KeyValue>) {
        self.unreadable.remove(key);
        let problem = match self.keys.kind(key) {
            KeyKind::Spec => replace(&mut self.spec, entry),
            KeyKind::Leader => replace(&mut self.leader, entry),
            KeyKind::Plan => replace_shared(&mut self.plan, entry),
            KeyKind::Ledger => replace(&mut self.ledger, entry),
            KeyKind::Result => replace(&mut self.result, entry),
            KeyKind::Member(node) => replace_in(&mut self.members, node, entry),
            KeyKind::Findings(generation, node) => {
                replace_in(&mut self.findings, (generation, node), entry)
            }
            KeyKind::Other => None,
        };
        if let Some(problem) = problem {
            self.unreadable.insert(key.to_owned(), problem);
        }
    }
}

/// Sets the slot from the entry. An entry that cannot be read leaves the slot as it was, since acting as if the record
/// did not exist would be worse (a second plan for a generation, a second result).
fn replace<T: DeserializeOwned>(
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

fn replace_shared<T: DeserializeOwned>(
    slot: &mut Option<Arc<Versioned<T>>>,
    entry: Option<&KeyValue>,
) -> Option<RecordError> {
    match entry.map(read).transpose() {
        Ok(record) => {
            *slot = record.map(Arc::new);
            None
        }
        Err(problem) => Some(problem),
    }
}

fn replace_in<K: Ord, T: DeserializeOwned>(
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

fn read<T: DeserializeOwned>(entry: &KeyValue) -> Result<Versioned<T>, RecordError> {
    Ok(Versioned {
        value: decode(&entry.key, &entry.value)?,
        create_revision: entry.create_revision,
        mod_revision: entry.mod_revision,
        lease: entry.lease,
    })
}
