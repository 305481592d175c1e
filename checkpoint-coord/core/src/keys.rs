// SPDX-License-Identifier: Apache-2.0
//! Where a job's records lie in the store.

use crate::{Generation, NodeName};

/// The keys of one job, all under `/steadfast/<job>/`. What every member watches lies under `job/` there; the rest only
/// the leader watches, so that what one member writes is not sent to all others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Keys {
    prefix: String,
}

/// What a key holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum KeyKind {
    Spec,
    Leader,
    Member(NodeName),
    Plan,
    Course,
    Places,
    Findings(Generation, NodeName),
    Ledger,
    Result,
    Checkpoint(u64),
    Other,
}

impl Keys {
    /// The keys of the job with that name. Any name will do: what would clash with the layout is escaped.
    pub fn new(job: &str) -> Self {
        Self {
            prefix: format!("/steadfast/{}/", escape(job)),
        }
    }

    /// What all keys of the job begin with.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// What the keys that every member watches begin with.
    pub fn common(&self) -> String {
        format!("{}job/", self.prefix)
    }

    /// What every member must agree on.
    pub fn spec(&self) -> String {
        format!("{}job/spec", self.prefix)
    }

    /// Who leads; its create revision is the leader's epoch.
    pub fn leader(&self) -> String {
        format!("{}job/leader", self.prefix)
    }

    /// What the records of all members begin with.
    pub fn members(&self) -> String {
        format!("{}members/", self.prefix)
    }

    /// The record of one member.
    pub fn member(&self, node: &NodeName) -> String {
        format!("{}members/{}", self.prefix, escape(&node.0))
    }

    /// The plan in force.
    pub fn plan(&self) -> String {
        format!("{}job/plan", self.prefix)
    }

    /// What has become of the plan in force.
    pub fn course(&self) -> String {
        format!("{}job/course", self.prefix)
    }

    /// Where the members of the plan stand.
    pub fn places(&self) -> String {
        format!("{}places", self.prefix)
    }

    /// The faults that one member saw in one generation.
    pub fn findings(&self, generation: Generation, node: &NodeName) -> String {
        format!("{}findings/{}/{}", self.prefix, generation, escape(&node.0))
    }

    /// What the leader has found by comparing all ranks of one generation. It lies among the findings, under a name that no
    /// node can have.
    pub fn verdict(&self, generation: Generation) -> String {
        format!("{}findings/{generation}/%verdict", self.prefix)
    }

    /// The job's memory of faults: restart budget, repeated failures, excluded nodes.
    pub fn ledger(&self) -> String {
        format!("{}job/ledger", self.prefix)
    }

    /// What the records of all committed checkpoints begin with.
    pub fn checkpoints(&self) -> String {
        format!("{}checkpoints/", self.prefix)
    }

    /// That the checkpoint of a step is committed.
    pub fn checkpoint(&self, step: u64) -> String {
        format!("{}checkpoints/{step}", self.prefix)
    }

    /// How the job ended.
    pub fn result(&self) -> String {
        format!("{}job/result", self.prefix)
    }

    pub(crate) fn kind(&self, key: &str) -> KeyKind {
        let Some(rest) = key.strip_prefix(&self.prefix) else {
            return KeyKind::Other;
        };
        match rest {
            "job/spec" => KeyKind::Spec,
            "job/leader" => KeyKind::Leader,
            "job/plan" => KeyKind::Plan,
            "job/course" => KeyKind::Course,
            "places" => KeyKind::Places,
            "job/ledger" => KeyKind::Ledger,
            "job/result" => KeyKind::Result,
            _ => nested_kind(rest),
        }
    }
}

fn nested_kind(rest: &str) -> KeyKind {
    if let Some(node) = rest.strip_prefix("members/") {
        return KeyKind::Member(NodeName(unescape(node)));
    }
    if let Some(step) = rest.strip_prefix("checkpoints/") {
        return step.parse().map_or(KeyKind::Other, KeyKind::Checkpoint);
    }
    let parsed = rest
        .strip_prefix("findings/")
        .and_then(|rest| rest.split_once('/'))
        .and_then(|(generation, node)| Some((generation.parse().ok()?, node)));
    match parsed {
        Some((generation, node)) => {
            KeyKind::Findings(Generation(generation), NodeName(unescape(node)))
        }
        None => KeyKind::Other,
    }
}

fn escape(name: &str) -> String {
    name.replace('%', "%25").replace('/', "%2F")
}

fn unescape(name: &str) -> String {
    name.replace("%2F", "/").replace("%25", "%")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_back_as_what_they_are() {
        let keys = Keys::new("team/job%");
        let node = NodeName::from("rack/7%2F");
        assert_eq!(keys.prefix(), "/steadfast/team%2Fjob%25/");
        assert_eq!(keys.kind(&keys.plan()), KeyKind::Plan);
        assert_eq!(keys.kind(&keys.course()), KeyKind::Course);
        assert_eq!(keys.kind(&keys.places()), KeyKind::Places);
        assert_eq!(
            keys.kind(&keys.member(&node)),
            KeyKind::Member(node.clone())
        );
        assert_eq!(
            keys.kind(&keys.findings(Generation(7), &node)),
            KeyKind::Findings(Generation(7), node)
        );
        assert_eq!(keys.kind("/steadfast/other/plan"), KeyKind::Other);
        let verdict = keys.kind(&keys.verdict(Generation(7)));
        let KeyKind::Findings(Generation(7), unlike_any) = verdict else {
            panic!("{verdict:?}");
        };
        assert_ne!(
            keys.findings(Generation(7), &unlike_any),
            keys.verdict(Generation(7))
        );
    }
}
