// SPDX-License-Identifier: Apache-2.0
//! The values in the store: JSON with a version; fields that this version does not know survive a rewrite.

mod checkpoint;
mod course;
mod fault_score;
mod fitness;
mod ledger;
mod member;
mod plan;
mod result;
mod spec;

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use steadfast_proto::v1::Finding;

use crate::{Incarnation, NodeName, Text};

pub use checkpoint::{
    CheckpointReport, CommitRecord, Resume, ResumePoint, SaveMeans, SaveOrder, SaveOutcome,
    WholeCheckpoint,
};
pub use course::{Course, Place, Places};
pub use fault_score::FaultScore;
pub use fitness::Fitness;
pub use ledger::{Exclusion, Ledger};
pub use member::{
    AgentEndpoint, LastStep, Location, MemberPhase, MemberRecord, Request, RequestKind,
    WitnessReport,
};
pub use plan::{Endpoint, Plan, PlanMember, PlanPhase};
pub use result::{EndRule, JobOutcome, JobResult};
pub use spec::{Grow, JobSpec, PROTOCOL_VERSION, WitnessMode};

/// The version that this program writes into every record, and the highest that it reads.
pub const RECORD_VERSION: u32 = 1;

/// A value in the store that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// Not the JSON that belongs there.
    #[error("failed to read {key} from the store: {message}")]
    Malformed {
        /// Full key.
        key: String,
        /// What the JSON reader said.
        message: String,
    },
    /// Written by a newer version of this program.
    #[error(
        "failed to read {key} from the store: its version is {found}, this program knows up to {RECORD_VERSION}; \
         run the same version of steadfast on every node"
    )]
    TooNew {
        /// Full key.
        key: String,
        /// Version found.
        found: u64,
    },
}

/// What one member found in one generation, under `findings/<generation>/<node>`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct FindingsRecord {
    /// See [`RECORD_VERSION`].
    pub version: u32,
    /// In the order in which they were found.
    pub findings: Vec<Finding>,
    /// What somebody asked of the job through that member. It stands here as well as in the member's own record, which
    /// dies with its lease.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<Request>,
    /// Whether the member that was asked to leave has stopped its workers. Its own record is gone by then.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stopped: bool,
    /// Fields of other versions.
    #[serde(flatten)]
    pub extra: BTreeMap<String, Value>,
}

/// Who leads, under `job/leader`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaderRecord {
    /// See [`RECORD_VERSION`].
    pub version: u32,
    /// The leader's node.
    pub node: NodeName,
    /// The life of the keeper on that node.
    pub incarnation: Incarnation,
    /// Where the leader's agent can be reached by other agents.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<AgentEndpoint>,
    /// Fields of other versions.
    #[serde(flatten)]
    pub extra: BTreeMap<String, Value>,
}

impl LeaderRecord {
    /// The record of a leader that no other agent can reach.
    pub fn new(node: NodeName, incarnation: Incarnation) -> Self {
        Self {
            version: RECORD_VERSION,
            node,
            incarnation,
            agent: None,
            extra: BTreeMap::new(),
        }
    }

    /// The record as it is written to the store.
    pub fn to_json(&self) -> Text {
        encode(self)
    }
}

/// The record's JSON. Records hold nothing that JSON cannot say, so it cannot fail for them; were it to, an empty
/// text is written, which every reader refuses.
pub(crate) fn encode<T: Serialize>(record: &T) -> Text {
    serde_json::to_string(record).unwrap_or_default().into()
}

/// Reads a record, refusing those of newer versions.
pub(crate) fn decode<T: DeserializeOwned>(key: &str, text: &str) -> Result<T, RecordError> {
    let malformed = |error: serde_json::Error| RecordError::Malformed {
        key: key.to_owned(),
        message: error.to_string(),
    };
    let version = match leading_version(text) {
        Some(version) => version,
        None => any_version(text).map_err(malformed)?,
    };
    if version > u64::from(RECORD_VERSION) {
        return Err(RecordError::TooNew {
            key: key.to_owned(),
            found: version,
        });
    }
    serde_json::from_str(text).map_err(malformed)
}

/// The version of a record as this program writes it, first of all fields: a long record need not be read twice.
fn leading_version(text: &str) -> Option<u64> {
    let rest = text.strip_prefix("{\"version\":")?;
    let (digits, _) = rest.split_once(',')?;
    digits.parse().ok()
}

fn any_version(text: &str) -> Result<u64, serde_json::Error> {
    #[derive(Deserialize)]
    struct Versioned {
        version: u64,
    }
    serde_json::from_str::<Versioned>(text).map(|record| record.version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_records_are_known_by_their_beginning() {
        let own = LeaderRecord::new("a".into(), Incarnation(1)).to_json();
        assert_eq!(leading_version(&own), Some(1), "{own:?}");
    }

    #[test]
    fn unknown_fields_survive_a_rewrite_and_newer_versions_are_refused() {
        let text = r#"{"version":1,"node":"a","incarnation":3,"colour":{"red":1}}"#;
        let record: LeaderRecord = decode("leader", text).unwrap();
        let again: Value = serde_json::from_str(&encode(&record)).unwrap();
        assert_eq!(again["colour"]["red"], 1);
        let newer = decode::<LeaderRecord>("leader", r#"{"version":2}"#);
        assert!(matches!(newer, Err(RecordError::TooNew { found: 2, .. })));
        let elsewhere = decode::<LeaderRecord>("leader", r#"{"node":"a", "version": 2}"#);
        assert!(matches!(
            elsewhere,
            Err(RecordError::TooNew { found: 2, .. })
        ));
        let torn = decode::<LeaderRecord>("leader", r#"{"version":1,"no"#);
        assert!(matches!(torn, Err(RecordError::Malformed { .. })));
    }
}
