// SPDX-License-Identifier: Apache-2.0
//! What the workers tell of themselves, as the harness needs it while the job runs. The judge reads the same file anew.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

/// One line that a worker wrote.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Sign {
    /// `born`, `start`, `step`, `seen` (a step that the supervisor tells of), `beat`, `resume`, `save`, `end`, `order`, `entered`.
    pub(crate) event: String,
    /// Its rank.
    pub(crate) rank: u32,
    /// Its generation.
    pub(crate) generation: u64,
    /// Its node.
    #[serde(default)]
    pub(crate) node: String,
    /// Its process.
    pub(crate) pid: i32,
    /// When.
    pub(crate) monotonic_ns: u64,
    /// The step that was made, saved, or resumed from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) step: Option<u64>,
    /// How many workers there are, as this one was told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) world_size: Option<u32>,
    /// The final loss.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) loss: Option<String>,
    /// How it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) status: Option<String>,
    /// The order that it has read, or is carrying out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) order: Option<String>,
}

/// What is known of the workers so far.
#[derive(Debug, Default)]
pub(crate) struct Life {
    /// The processes of each generation, by rank: node and process id.
    workers: BTreeMap<u64, BTreeMap<u32, (String, i32)>>,
    /// Generations that have made a step.
    stepping: BTreeSet<u64>,
    /// When the first step was made.
    pub(crate) first_step_ns: Option<u64>,
    /// The newest step, and the highest.
    pub(crate) last_step: u64,
    /// When the last step was made.
    pub(crate) last_step_ns: u64,
    /// Whether a worker has come to the end of the training.
    pub(crate) has_finished: bool,
    /// Orders that were read, and those that are being carried out, with the time.
    orders: BTreeMap<String, u64>,
    entered: BTreeMap<String, u64>,
}

impl Life {
    /// Takes in new lines.
    pub(crate) fn add(&mut self, signs: Vec<Sign>) {
        for sign in signs {
            match sign.event.as_str() {
                "born" | "start" => {
                    self.workers
                        .entry(sign.generation)
                        .or_default()
                        .insert(sign.rank, (sign.node, sign.pid));
                }
                "step" | "seen" => {
                    self.stepping.insert(sign.generation);
                    self.first_step_ns.get_or_insert(sign.monotonic_ns);
                    self.last_step = self.last_step.max(sign.step.unwrap_or(0));
                    self.last_step_ns = sign.monotonic_ns;
                }
                "end" => self.has_finished |= sign.loss.is_some(),
                "order" => {
                    self.orders
                        .extend(sign.order.map(|order| (order, sign.monotonic_ns)));
                }
                "entered" => {
                    self.entered
                        .extend(sign.order.map(|order| (order, sign.monotonic_ns)));
                }
                _ => {}
            }
        }
    }

    /// The newest generation that has workers; 0 before the first.
    pub(crate) fn generation(&self) -> u64 {
        self.workers.keys().next_back().copied().unwrap_or(0)
    }

    /// Whether the newest generation has made a step.
    pub(crate) fn is_stepping(&self) -> bool {
        self.stepping.contains(&self.generation())
    }

    /// Node and process of a rank in the newest generation.
    pub(crate) fn worker(&self, rank: u32) -> Option<(&str, i32)> {
        let (node, pid) = self.workers.values().next_back()?.get(&rank)?;
        Some((node, *pid))
    }

    /// The ranks of the newest generation, with their nodes.
    pub(crate) fn ranks(&self) -> Vec<(u32, &str)> {
        let newest = self.workers.values().next_back();
        let ranks = newest.into_iter().flatten();
        ranks
            .map(|(rank, (node, _))| (*rank, node.as_str()))
            .collect()
    }

    /// The nodes of the newest generation.
    pub(crate) fn nodes(&self) -> BTreeSet<&str> {
        self.ranks().into_iter().map(|(_, node)| node).collect()
    }

    /// When an order was read.
    pub(crate) fn was_read(&self, order: &str) -> Option<u64> {
        self.orders.get(order).copied()
    }

    /// When the thing began that was ordered.
    pub(crate) fn has_entered(&self, order: &str) -> Option<u64> {
        self.entered.get(order).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sign(event: &str, generation: u64, rank: u32, step: Option<u64>) -> Sign {
        Sign {
            event: event.to_owned(),
            rank,
            generation,
            node: "n1".to_owned(),
            pid: 10,
            monotonic_ns: 5,
            step,
            world_size: None,
            loss: None,
            status: None,
            order: None,
        }
    }

    #[test]
    fn the_newest_generation_is_the_one_with_workers() {
        let mut life = Life::default();
        life.add(vec![sign("born", 1, 0, None), sign("step", 1, 0, Some(3))]);
        assert!(life.is_stepping());
        life.add(vec![sign("born", 2, 1, None)]);
        assert_eq!(life.generation(), 2);
        assert!(!life.is_stepping());
        assert_eq!(life.worker(0), None);
        assert_eq!(life.worker(1), Some(("n1", 10)));
        assert_eq!(life.last_step, 3);
    }
}
