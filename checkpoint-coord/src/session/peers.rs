// SPDX-License-Identifier: Apache-2.0
//! Whose agents can be reached where.

use steadfast_core::{AgentEndpoint, Leader, NodeName, View};

/// Another agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// Its node.
    pub node: NodeName,
    /// Where it can be reached, and how it proves who it is.
    pub agent: AgentEndpoint,
}

/// The agents that this node's agent may talk to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Peers {
    /// Who leads, if anybody does whose agent can be reached.
    pub leader: Option<Peer>,
    /// All members whose agents can be reached; only the leader's own session knows them.
    pub members: Vec<Peer>,
}

impl Peers {
    pub(super) fn of(view: &View, leader: Option<&Leader>) -> Self {
        let leads = view.leader().map(|record| &record.value);
        let members = leader.map(|leader| leader.view().members());
        Self {
            leader: leads.and_then(|record| {
                Some(Peer {
                    node: record.node.clone(),
                    agent: record.agent.clone()?,
                })
            }),
            members: members
                .into_iter()
                .flatten()
                .filter_map(|(node, record)| {
                    Some(Peer {
                        node: node.clone(),
                        agent: record.value.agent.clone()?,
                    })
                })
                .collect(),
        }
    }
}
