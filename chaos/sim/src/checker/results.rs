// SPDX-License-Identifier: Apache-2.0
//! Results: a job ends once, and what is said about its end is true.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{Checked, Checker};

impl Checker {
    pub(super) fn result_stored(&mut self, revision: i64, value: Value) -> Checked {
        if let Some(before) = &self.result {
            let message = format!("the result {before} was replaced by {value}");
            return self.violation("terminal", message);
        }
        let generation = self.plan.as_ref().map_or(0, |plan| plan.generation);
        let words = value["message"].as_str().unwrap_or_default();
        if words.is_empty() || value["generation"].as_u64() != Some(generation) {
            let message = format!(
                "generation {generation} ended with a result that does not say so: {value}"
            );
            return self.violation("result", message);
        }
        self.result_is_true(&value, generation)?;
        self.result = Some(value);
        self.result_at = revision;
        Ok(())
    }

    pub(super) fn ended_before(&self, revision: i64) -> bool {
        self.result.is_some() && revision > self.result_at
    }

    fn result_is_true(&self, value: &Value, generation: u64) -> Checked {
        // Work that was finished before anybody could act on the wish is finished.
        if value["outcome"] == "failed" {
            self.stops_are_heeded(&format!("the job went on until {value}"))?;
        }
        let rule = value["rule"].as_str().unwrap_or_default();
        match value["outcome"].as_str().unwrap_or_default() {
            "succeeded" => self.everybody_ended_well(generation),
            "stopped" if self.causes.was_asked_to_end() => Ok(()),
            "stopped" if self.causes.anybody_leaves() => Ok(()),
            "stopped" => self.violation("result", "nobody asked the job to stop".to_owned()),
            "failed" => match (rule, &self.plan) {
                ("not_enough_nodes", _) => Ok(()),
                ("node_at_fault", _) if !self.stuck_keepers.is_empty() || self.ever_unfit => Ok(()),
                ("node_at_fault", _) => self.violation(
                    "result",
                    "a node was blamed, but every worker could be killed".to_owned(),
                ),
                (_, Some(plan)) => {
                    self.must_have_cause(plan, "ended in failure")?;
                    self.blames_the_right_rank(value, generation)
                }
                (_, None) => self.violation("result", format!("failed before it began: {value}")),
            },
            _ => self.violation("result", format!("this is no result: {value}")),
        }
    }

    fn everybody_ended_well(&self, generation: u64) -> Checked {
        let ranks = self.plan.as_ref().map_or(0, |plan| plan.world_size);
        let well = self.ended_well.get(&generation).map_or(0, BTreeSet::len);
        if ranks > 0 && well as u64 == ranks {
            return Ok(());
        }
        let message =
            format!("success, but {well} of {ranks} workers of generation {generation} ended well");
        self.violation("result", message)
    }

    /// The rank that is blamed was hit, unless a node took the evidence with it or it came too
    /// late.
    fn blames_the_right_rank(&self, value: &Value, generation: u64) -> Checked {
        let root = &value["root_cause"];
        let evidence_lost = self.limits.late_evidence || self.causes.was_ever_disturbed();
        let hit = self.causes.hit(generation);
        let Some(rank) = root["rank"].as_u64().filter(|_| !evidence_lost) else {
            return Ok(());
        };
        if hit.is_some_and(|hit| hit.contains(&Some(rank))) {
            return Ok(());
        }
        let message = format!(
            "rank {rank} was blamed for the end of generation {generation}, but these were hit: {hit:?}"
        );
        self.violation("culprit", message)
    }
}

/// The exit code that a result stands for, as the documentation has it.
pub(super) fn exit_code(result: &Value) -> i64 {
    let exit = &result["exit"];
    match exit.as_str() {
        Some("success") => return 0,
        Some("infrastructure") => return 75,
        Some("node") => return 76,
        Some("configuration") => return 78,
        _ => {}
    }
    if let Some(signal) = exit["interrupted"].as_i64() {
        return 128 + signal;
    }
    let worker = &exit["worker"];
    match (worker["code"].as_i64(), worker["signal"].as_i64()) {
        (Some(code), _) => code,
        (None, Some(signal)) => 128 + signal,
        (None, None) => -1,
    }
}
