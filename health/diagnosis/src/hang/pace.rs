// SPDX-License-Identifier: Apache-2.0
//! How long this job's steps take, and who takes longer than the others.

use std::collections::{BTreeMap, BTreeSet};

use super::state::{Rank, State};
use crate::answer::{Action, Answer, Class, Signal};
use crate::context::Context;

/// A step may take that many times the longest one seen.
const OVER_LONGEST: f64 = 1.5;
/// Where only the usual length is known, that many times as long.
const OVER_USUAL: f64 = 10.0;
/// No step is missed sooner.
const LEAST_S: f64 = 5.0;
/// Where nothing is known.
const UNKNOWN_S: f64 = 120.0;
/// Whoever takes that many times as long as the others is slow.
const SLOW: f64 = 1.3;
/// Phases in which no steps are made, by how their names begin.
const BUSY: [&str; 9] = [
    "init", "start", "setup", "compil", "warm", "load", "resum", "restor", "first",
];
/// Steps by which a rank is judged.
const FEWEST: usize = 4;
/// Of late: one of so many steps.
const RECENT_SHARE: usize = 4;
/// A few slow steps come to everybody.
const FEWEST_RECENT: usize = 8;

/// The steps of one rank: their numbers and seconds.
type Steps = [(u64, f64)];

/// Step times.
#[derive(Clone, Debug, Default)]
pub(super) struct Pace {
    file: String,
    /// For each rank, step and seconds.
    steps: BTreeMap<u32, Vec<(u64, f64)>>,
}

impl Pace {
    /// Reads `rank,step,...,duration_s` in whatever order its head says.
    pub(super) fn read(&mut self, name: &str, text: &str) {
        name.clone_into(&mut self.file);
        let mut lines = text.lines();
        let head: Vec<&str> = lines
            .next()
            .unwrap_or_default()
            .split(',')
            .map(str::trim)
            .collect();
        let column = |names: &[&str]| head.iter().position(|column| names.contains(column));
        let rank = column(&["rank"]);
        let step = column(&["step", "iteration"]);
        // The rank's own share tells more than the whole step, in which everybody waits for everybody.
        let duration = column(&["compute_s", "own_s", "work_s"])
            .or_else(|| column(&["duration_s", "step_s", "seconds", "duration"]));
        for line in lines {
            let fields: Vec<&str> = line.split(',').map(str::trim).collect();
            let get = |column: Option<usize>| fields.get(column?).copied();
            let seconds = get(duration).and_then(|text| text.parse::<f64>().ok());
            let Some(seconds) = seconds.filter(|seconds| seconds.is_finite() && *seconds >= 0.0)
            else {
                continue;
            };
            let rank = get(rank)
                .and_then(|text| text.parse().ok())
                .unwrap_or_default();
            let steps = self.steps.entry(rank).or_default();
            let number = get(step).and_then(|text| text.parse().ok());
            steps.push((number.unwrap_or(steps.len() as u64), seconds));
        }
    }

    /// After what time without a step a rank in this phase is stalled.
    pub(super) fn bound_s(&self, rank: &Rank, state: &State) -> f64 {
        let phase = rank.phase.as_deref().unwrap_or("train");
        let usual = |name: &str| {
            let found = state.usual_s.iter().find(|(phase, _)| phase == name);
            found.map(|(_, seconds)| *seconds)
        };
        let step_s = state.step_s.or_else(|| self.median()).unwrap_or(1.0);
        let of_phase = |least: f64, steps: f64| {
            let known = usual(phase).map(|seconds| seconds * 3.0);
            known.unwrap_or((step_s * steps).max(least))
        };
        // A rank that saves or evaluates keeps the others waiting, in whatever phase they are.
        let others = state.ranks.iter().filter_map(|rank| rank.phase.as_deref());
        let waits_for = others
            .clone()
            .find(|other| *other != "train" && phase == "train");
        match waits_for.unwrap_or(phase) {
            "checkpoint" | "save" | "saving" | "ckpt" => of_phase(600.0, 100.0),
            "eval" | "evaluation" | "validate" | "validation" | "test" => of_phase(1800.0, 200.0),
            phase if BUSY.iter().any(|busy| phase.starts_with(busy)) => of_phase(1800.0, 100.0),
            _ => self.train_bound_s(rank, state),
        }
    }

    /// The same for a rank that trains.
    pub(super) fn train_bound_s(&self, rank: &Rank, state: &State) -> f64 {
        // The first step compiles and warms up.
        if rank.step.is_none_or(|step| step == 0) && self.steps.is_empty() {
            return 1800.0;
        }
        let longest = self
            .steps
            .values()
            .flat_map(|steps| steps.iter().skip(1))
            .map(|(_, seconds)| *seconds)
            .reduce(f64::max);
        let by_longest = longest.map(|seconds| seconds * OVER_LONGEST);
        let by_usual = state
            .step_s
            .or_else(|| self.median())
            .map(|seconds| seconds * OVER_USUAL);
        let bound = match (by_longest, by_usual) {
            (Some(longest), Some(usual)) => longest.max(usual),
            (Some(one), None) | (None, Some(one)) => one,
            (None, None) => UNKNOWN_S,
        };
        bound.max(LEAST_S)
    }

    fn median(&self) -> Option<f64> {
        median(
            self.steps
                .values()
                .flatten()
                .map(|(_, seconds)| *seconds)
                .collect(),
        )
    }

    /// After how many steps one takes long, if that comes again and again.
    pub(super) fn rhythm(&self) -> Option<u64> {
        let usual = self.median()?;
        let long: Vec<u64> = self
            .steps
            .values()
            .next()?
            .iter()
            .skip(1)
            .filter(|(_, seconds)| *seconds > usual * 3.0)
            .map(|(step, _)| *step)
            .collect();
        let gaps: Vec<u64> = long
            .windows(2)
            .map(|pair| pair[1].saturating_sub(pair[0]))
            .collect();
        let first = *gaps.first()?;
        gaps.iter()
            .all(|gap| gap.abs_diff(first) <= 1)
            .then_some(first)
    }

    pub(super) fn signal(&self) -> Option<Signal> {
        let usual = self.median()?;
        let longest = self
            .steps
            .values()
            .flatten()
            .map(|(_, seconds)| *seconds)
            .reduce(f64::max)?;
        Some(Signal {
            file: self.file.clone(),
            line: 0,
            meaning: format!("steps take {usual:.2} s as a rule, and up to {longest:.2} s"),
            text: String::new(),
        })
    }

    /// The rank that is slower than the others, step after step: all the time, or of late.
    pub(super) fn straggler(&self, state: &State, context: &Context) -> Option<Answer> {
        let of_late = |steps: &Steps| {
            let newest = steps.len() / RECENT_SHARE;
            if newest >= FEWEST_RECENT { newest } else { 0 }
        };
        self.slowest(state, context, &|steps| steps.len())
            .or_else(|| self.slowest(state, context, &of_late))
    }

    /// The same, by as many of each rank's newest steps.
    fn slowest(
        &self,
        state: &State,
        context: &Context,
        newest: &dyn Fn(&Steps) -> usize,
    ) -> Option<Answer> {
        let own: BTreeMap<u32, f64> = self
            .steps
            .iter()
            .filter(|(_, steps)| newest(steps) >= FEWEST)
            .filter_map(|(rank, steps)| {
                // The first one that is known may hold a start.
                let seconds = steps.iter().skip((steps.len() - newest(steps)).max(1));
                let seconds = seconds.map(|(_, seconds)| *seconds).collect();
                Some((*rank, median(seconds)?))
            })
            .collect();
        let usual = median(own.values().copied().collect())?;
        let slow: Vec<u32> = own
            .iter()
            .filter(|(_, seconds)| **seconds > usual * SLOW)
            .map(|(rank, _)| *rank)
            .collect();
        if slow.is_empty() || own.len() < 2 {
            return None;
        }
        let node_of = |rank: u32| {
            let in_state = state.ranks.iter().find(|known| known.number == rank);
            in_state
                .and_then(|rank| rank.node.clone())
                .or_else(|| Some(context.node_of(rank)?.name.clone()))
        };
        // Half of the ranks are slow where they are those of one node, and the others are not.
        let nodes_of = |is_slow: bool| -> BTreeSet<String> {
            let ranks = own.keys().filter(|rank| slow.contains(rank) == is_slow);
            ranks.filter_map(|rank| node_of(*rank)).collect()
        };
        let (slow_nodes, other_nodes) = (nodes_of(true), nodes_of(false));
        let is_a_node = slow_nodes.len() == 1 && slow_nodes.is_disjoint(&other_nodes);
        let is_half = slow.len() * 2 == own.len();
        if slow.len() * 2 >= own.len() && own.len() > 2 && !(is_half && is_a_node) {
            return None;
        }
        let mut answer = Answer::of(
            Class::Straggler,
            0.8,
            format!("ranks {slow:?} take longer than the others, step after step"),
        );
        answer.action = Action::ReportOnly;
        if let [rank] = slow[..] {
            answer.culprit.rank = Some(rank);
            answer.culprit.node = node_of(rank);
        } else {
            let mut nodes: Vec<String> = slow.iter().filter_map(|rank| node_of(*rank)).collect();
            nodes.dedup();
            if let [node] = &nodes[..] {
                answer.culprit.node = Some(node.clone());
            }
        }
        let seconds = slow
            .first()
            .and_then(|rank| own.get(rank))
            .copied()
            .unwrap_or_default();
        answer.signals.push(Signal {
            file: self.file.clone(),
            line: 0,
            meaning: format!("{seconds:.2} s a step, the others {usual:.2} s"),
            text: String::new(),
        });
        "look at the clocks and the temperature of its GPU, at the load of its node and at its share of the data"
            .clone_into(&mut answer.next_step);
        Some(answer)
    }
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len().checked_sub(1)? / 2).copied()
}
