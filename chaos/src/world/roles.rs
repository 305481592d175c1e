// SPDX-License-Identifier: Apache-2.0
//! Who plays which part at the moment.

use serde_json::Value;

use super::World;
use crate::failure::Failure;
use crate::scenario::{Role, Target};

/// Whom a fault hits.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Victim {
    /// The node, by its place in the list.
    pub(crate) node: Option<usize>,
    /// The rank.
    pub(crate) rank: Option<u32>,
    /// The training process of that rank.
    pub(crate) pid: Option<i32>,
}

impl World {
    /// Finds whom a fault hits; `None` while nobody fits.
    pub(crate) fn victims(
        &mut self,
        target: &Target,
        hits_a_worker: bool,
    ) -> Result<Vec<Victim>, Failure> {
        if let Some(rank) = target.rank {
            return Ok(self.of_rank(rank).into_iter().collect());
        }
        let nodes: Vec<usize> = match (target.node, target.role) {
            (Some(number), _) => usize::try_from(number - 1).into_iter().collect(),
            (None, Some(role)) => self.playing(role)?,
            (None, None) => self.playing(Role::Active)?,
        };
        let nodes = if target.role == Some(Role::All) {
            nodes
        } else {
            self.draw(&nodes).into_iter().collect()
        };
        if !hits_a_worker {
            let of_node = |node| Victim {
                node: Some(node),
                ..Victim::default()
            };
            return Ok(nodes.into_iter().map(of_node).collect());
        }
        let mut victims = Vec::new();
        for node in nodes {
            let name = self
                .nodes
                .get(node)
                .map(|node| node.name.clone())
                .unwrap_or_default();
            let of_node = self.life.ranks().into_iter().filter(|(_, on)| *on == name);
            let ranks: Vec<u32> = of_node.map(|(rank, _)| rank).collect();
            victims.extend(self.draw(&ranks).and_then(|rank| self.of_rank(rank)));
        }
        Ok(victims)
    }

    /// The node whose agent leads, by its place in the list; the only node leads itself.
    pub(crate) fn leader(&self) -> Result<Option<usize>, Failure> {
        let Some(witness) = &self.witness else {
            return Ok(Some(0));
        };
        let record = witness.newest("/steadfast/chaos/job/leader")?;
        let record: Value = record
            .and_then(|text| serde_json::from_str(&text).ok())
            .unwrap_or_default();
        let name = record["node"].as_str().unwrap_or_default();
        Ok(self.nodes.iter().position(|node| node.name == name))
    }

    /// The place of a node in the list.
    pub(crate) fn place_of(&self, name: &str) -> Option<usize> {
        self.nodes.iter().position(|node| node.name == name)
    }

    fn of_rank(&self, rank: u32) -> Option<Victim> {
        let (node, pid) = self.life.worker(rank)?;
        Some(Victim {
            node: self.place_of(node),
            rank: Some(rank),
            pid: Some(pid),
        })
    }

    fn playing(&self, role: Role) -> Result<Vec<usize>, Failure> {
        let active = self.life.nodes();
        let is_up = |index: &usize| {
            self.nodes
                .get(*index)
                .is_some_and(super::node::Node::is_running)
        };
        let is_active = |index: &usize| {
            let node = self.nodes.get(*index);
            node.is_some_and(|node| active.contains(node.name.as_str()))
        };
        let all = (0..self.nodes.len()).filter(is_up);
        Ok(match role {
            Role::All => all.collect(),
            Role::Active => all.filter(is_active).collect(),
            Role::Spare => all.filter(|index| !is_active(index)).collect(),
            Role::Leader => self.leader()?.into_iter().filter(is_up).collect(),
            Role::Follower => {
                let leader = self.leader()?;
                all.filter(|index| is_active(index) && Some(*index) != leader)
                    .collect()
            }
            Role::Master => self
                .of_rank(0)
                .and_then(|victim| victim.node)
                .into_iter()
                .collect(),
        })
    }

    fn draw<T: Copy>(&mut self, from: &[T]) -> Option<T> {
        let index = self.random.below(from.len() as u64);
        from.get(usize::try_from(index).ok()?).copied()
    }
}
