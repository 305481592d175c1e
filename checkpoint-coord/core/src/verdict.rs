// SPDX-License-Identifier: Apache-2.0
//! What was at fault? One finding among those of a generation.

use std::collections::BTreeSet;

use steadfast_proto::v1::{FaultClass, FaultRole, Finding, Repeatability};

use crate::jury::{ClocksAhead, Opinion};
use crate::member::kinds;
use crate::{NodeName, Rank};

/// Findings that a verdict carries along beside the root cause.
const OTHERS_LIMIT: usize = 64;

/// What was at fault, and what else was found.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Verdict {
    pub(crate) root: Finding,
    /// Earliest first; bounded.
    pub(crate) others: Vec<Finding>,
}

/// Picks the root cause: the earliest finding that may be a cause, else the earliest of all. What the words of all ranks
/// come to goes before that where a detector has not seen the fault itself: `opinion` is asked with the findings in their
/// order. `None` without findings.
pub(crate) fn find_root_cause(
    findings: Vec<Finding>,
    clocks: &ClocksAhead,
    opinion: impl FnOnce(&[Finding]) -> Option<Opinion>,
) -> Option<Verdict> {
    let mut findings = one_for_each_worker(findings);
    blame_lost_nodes(&mut findings);
    let nodes: BTreeSet<_> = findings.iter().map(|finding| &finding.node).collect();
    // The monotonic clock is the better one, but it says nothing about another node's.
    let one_clock = nodes.len() <= 1;
    let at = |finding: &Finding| {
        let ahead = clocks.get(&NodeName(finding.node.clone()));
        finding.wall_ms.saturating_sub(ahead.copied().unwrap_or(0))
    };
    findings.sort_by_cached_key(|finding| {
        let wall = if one_clock { 0 } else { at(finding) };
        (wall, finding.monotonic_ns, finding.rank)
    });
    // What somebody has said is no fault by itself.
    let is_fault = |finding: &Finding| finding.kind != kinds::WORKER_SAID;
    let cause = |finding: &Finding| is_fault(finding) && finding.role() == FaultRole::Cause;
    let first = findings
        .iter()
        .position(cause)
        .or_else(|| findings.iter().position(is_fault))?;
    let heard = opinion(&findings);
    let root = match &heard {
        Some(opinion) => choose(&findings, first, opinion),
        None => first,
    };
    let mut root = findings.remove(root);
    if let Some(opinion) = &heard {
        adopt(&mut root, opinion);
    }
    // Who was only heard, and is not to blame, has no part in the failure.
    findings.retain(is_fault);
    findings.truncate(OTHERS_LIMIT);
    Some(Verdict {
        root,
        others: findings,
    })
}

/// Whether a worker's end says no more than that it ended, so that somebody's words may explain it.
fn is_open(finding: &Finding) -> bool {
    let is_about_words = matches!(
        finding.kind.as_str(),
        kinds::WORKER_EXITED | kinds::WORKER_DYING | kinds::WORKER_SAID
    );
    let says_little = finding.role() == FaultRole::Consequence
        || matches!(
            finding.class(),
            FaultClass::Unknown | FaultClass::Program | FaultClass::Killed | FaultClass::Network
        );
    is_about_words && says_little && finding.repeatability() != Repeatability::Certain
}

/// Which finding is the root cause, given what the words come to.
fn choose(findings: &[Finding], first: usize, opinion: &Opinion) -> usize {
    let Some(before) = findings.get(first).filter(|before| is_open(before)) else {
        return first;
    };
    let is_victim = before.role() == FaultRole::Consequence;
    if opinion.is_thin() && !is_victim {
        return first;
    }
    let of_rank = |rank: Rank| {
        let mut about = findings
            .iter()
            .enumerate()
            .filter(|(_, finding)| finding.rank == Some(rank.0));
        // Its end goes before its words.
        about
            .clone()
            .find(|(_, finding)| finding.kind != kinds::WORKER_SAID)
            .or_else(|| about.next())
    };
    let of_node = |node: &NodeName| {
        let mut about = findings.iter().enumerate();
        about.find(|(_, finding)| finding.node == node.0 && finding.kind != kinds::WORKER_SAID)
    };
    let named = match (opinion.rank, &opinion.node) {
        (Some(rank), _) => of_rank(rank),
        (None, Some(node)) => of_node(node),
        (None, None) => None,
    };
    // A detector that has seen the fault itself is not overruled by words.
    named
        .filter(|(_, finding)| finding.kind != kinds::MEMBER_LOST)
        .map_or(first, |(index, _)| index)
}

/// Puts into the root cause what the words say of it.
fn adopt(root: &mut Finding, opinion: &Opinion) {
    let names_another = match (opinion.rank, &opinion.node) {
        (Some(rank), _) => root.rank != Some(rank.0),
        (None, Some(node)) => root.node != node.0,
        (None, None) => false,
    };
    if names_another || (!is_open(root) && root.class() != opinion.class) {
        return;
    }
    root.confidence = opinion.confidence;
    if root.advice.is_empty() {
        root.advice.clone_from(&opinion.advice);
    }
    if opinion.is_thin() || opinion.class == FaultClass::Unknown || !is_open(root) {
        return;
    }
    let is_news = root.class() != opinion.class || root.role() == FaultRole::Consequence;
    if is_news && !root.summary.contains(&opinion.summary) {
        root.summary = format!("{} [{}]", root.summary, opinion.summary);
    }
    root.class = opinion.class.into();
    root.role = FaultRole::Cause.into();
}

/// A node that is lost takes the connections of all others with it, and most programs end by that. It is noticed last,
/// when its lease ends, but it was first: ends of workers elsewhere that can be explained by it are its consequences. So it
/// is with a node that turns out to be unfit when it is looked at, and with its own workers as well.
fn blame_lost_nodes(findings: &mut [Finding]) {
    let lost: BTreeSet<String> = findings
        .iter()
        .filter(|finding| finding.kind == kinds::MEMBER_LOST)
        .map(|finding| finding.node.clone())
        .collect();
    let unfit = findings
        .iter()
        .any(|finding| finding.kind == kinds::NODE_CHECK_FAILED);
    if lost.is_empty() && !unfit {
        return;
    }
    for finding in findings {
        let is_end = matches!(
            finding.kind.as_str(),
            kinds::WORKER_EXITED | kinds::WORKER_DYING
        );
        let speaks_for_itself = finding.repeatability() == Repeatability::Certain
            || !matches!(
                finding.class(),
                FaultClass::Unknown
                    | FaultClass::Program
                    | FaultClass::Killed
                    | FaultClass::Network
            );
        if is_end && !speaks_for_itself && !lost.contains(&finding.node) {
            finding.role = FaultRole::Consequence.into();
        }
    }
}

/// A worker that was seen dying and then reaped is one event: what is known from its exit, at the earlier time.
fn one_for_each_worker(findings: Vec<Finding>) -> Vec<Finding> {
    let (dying, mut rest): (Vec<_>, Vec<_>) = findings
        .into_iter()
        .partition(|finding| finding.kind == kinds::WORKER_DYING);
    for early in dying {
        let exit = rest.iter_mut().find(|finding| {
            finding.kind == kinds::WORKER_EXITED
                && finding.node == early.node
                && finding.local_rank == early.local_rank
        });
        match exit {
            Some(exit) => {
                exit.monotonic_ns = exit.monotonic_ns.min(early.monotonic_ns);
                if early.wall_ms != 0 {
                    exit.wall_ms = exit.wall_ms.min(early.wall_ms);
                }
            }
            None => rest.push(early),
        }
    }
    rest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find_by_itself(findings: Vec<Finding>) -> Option<Verdict> {
        find_root_cause(findings, &ClocksAhead::new(), |_| None)
    }

    fn finding(node: &str, local_rank: u32, monotonic_ns: u64, role: FaultRole) -> Finding {
        Finding {
            kind: kinds::WORKER_EXITED.to_owned(),
            node: node.to_owned(),
            local_rank: Some(local_rank),
            rank: Some(local_rank),
            role: role.into(),
            monotonic_ns,
            ..Finding::default()
        }
    }

    #[test]
    fn a_cause_beats_an_earlier_consequence() {
        let verdict = find_by_itself(vec![
            finding("a", 0, 10, FaultRole::Consequence),
            finding("a", 1, 30, FaultRole::Cause),
            finding("a", 2, 20, FaultRole::Cause),
        ])
        .unwrap();
        assert_eq!(verdict.root.local_rank, Some(2));
        assert_eq!(verdict.others.len(), 2);
        assert_eq!(verdict.others[0].local_rank, Some(0));
    }

    #[test]
    fn a_lost_node_explains_the_ends_of_workers_elsewhere_unless_they_explain_themselves() {
        let mut lost = finding("b", 0, u64::MAX, FaultRole::Cause);
        lost.kind = kinds::MEMBER_LOST.to_owned();
        lost.wall_ms = i64::MAX;
        let mut exit = finding("a", 1, 10, FaultRole::Cause);
        exit.class = FaultClass::Program.into();
        let verdict = find_by_itself(vec![exit.clone(), lost.clone()]).unwrap();
        assert_eq!(verdict.root.node, "b");
        let mut memory = exit.clone();
        memory.class = FaultClass::HostMemory.into();
        let verdict = find_by_itself(vec![memory, lost.clone()]).unwrap();
        assert_eq!(verdict.root.node, "a");
        exit.repeatability = Repeatability::Certain.into();
        let verdict = find_by_itself(vec![exit, lost]).unwrap();
        assert_eq!(verdict.root.node, "a");
    }

    #[test]
    fn without_a_cause_the_earliest_is_taken() {
        let verdict = find_by_itself(vec![
            finding("a", 0, 10, FaultRole::Consequence),
            finding("a", 1, 5, FaultRole::Consequence),
        ])
        .unwrap();
        assert_eq!(verdict.root.local_rank, Some(1));
        assert_eq!(find_by_itself(vec![]), None);
    }

    #[test]
    fn dying_and_exit_of_a_worker_are_one_finding_with_the_exits_role() {
        let mut dying = finding("a", 0, 5, FaultRole::Cause);
        dying.kind = kinds::WORKER_DYING.to_owned();
        let verdict = find_by_itself(vec![
            dying,
            finding("a", 0, 50, FaultRole::Consequence),
            finding("a", 1, 40, FaultRole::Cause),
        ])
        .unwrap();
        assert_eq!(verdict.root.local_rank, Some(1));
        assert_eq!(verdict.others.len(), 1);
        assert_eq!(verdict.others[0].monotonic_ns, 5);
    }

    #[test]
    fn clocks_of_different_nodes_are_not_compared() {
        let mut first = finding("a", 0, 900, FaultRole::Cause);
        first.wall_ms = 1;
        let mut second = finding("b", 0, 5, FaultRole::Cause);
        second.wall_ms = 2;
        let verdict = find_by_itself(vec![second, first]).unwrap();
        assert_eq!(verdict.root.node, "a");
    }

    fn opinion(rank: u32, class: FaultClass, confidence: u32) -> Opinion {
        Opinion {
            rank: Some(Rank(rank)),
            node: None,
            class,
            confidence,
            summary: "the words say so".to_owned(),
            advice: "look there".to_owned(),
        }
    }

    #[test]
    fn clocks_are_put_right_before_they_are_compared() {
        let mut first = finding("a", 0, 900, FaultRole::Cause);
        first.wall_ms = 5_000;
        let mut second = finding("b", 1, 5, FaultRole::Cause);
        second.wall_ms = 4_000;
        let clocks = ClocksAhead::from([(NodeName("a".to_owned()), 2_000)]);
        let verdict = find_root_cause(vec![second, first], &clocks, |_| None).unwrap();
        assert_eq!(verdict.root.node, "a");
    }

    #[test]
    fn what_a_rank_had_said_can_be_the_cause_of_the_end_of_another() {
        let victim = finding("a", 0, 10, FaultRole::Consequence);
        let mut said = finding("b", 3, 20, FaultRole::Consequence);
        said.kind = kinds::WORKER_SAID.to_owned();
        said.class = FaultClass::GpuHardware.into();
        let findings = vec![said, victim];
        let judged = |opinion: Option<Opinion>| {
            find_root_cause(findings.clone(), &ClocksAhead::new(), |_| opinion).unwrap()
        };
        let verdict = judged(Some(opinion(3, FaultClass::GpuHardware, 90)));
        assert_eq!(verdict.root.rank, Some(3));
        assert_eq!(
            (verdict.root.confidence, verdict.root.advice.as_str()),
            (90, "look there")
        );
        assert_eq!(verdict.others.len(), 1);
        // By themselves, words are no fault, and nobody is charged with them.
        let verdict = judged(None);
        assert_eq!((verdict.root.rank, verdict.others.len()), (Some(0), 0));
        let only_words = findings[..1].to_vec();
        assert_eq!(find_by_itself(only_words), None);
    }

    #[test]
    fn words_explain_an_end_that_says_nothing_and_overrule_nobody_who_has_seen_the_fault() {
        use FaultClass::{GpuHardware, HostMemory, Program, Storage};

        let judged = |class: FaultClass, role, opinion| {
            let mut end = finding("a", 0, 10, role);
            end.class = class.into();
            end.summary = "exited with code 1".to_owned();
            let other = finding("a", 1, 20, FaultRole::Cause);
            let findings = vec![end, other];
            find_root_cause(findings, &ClocksAhead::new(), |_| Some(opinion))
                .unwrap()
                .root
        };
        let root = judged(Program, FaultRole::Cause, opinion(0, Storage, 85));
        assert_eq!((root.class(), root.rank), (Storage, Some(0)));
        assert_eq!(root.summary, "exited with code 1 [the words say so]");
        let root = judged(HostMemory, FaultRole::Cause, opinion(1, Program, 85));
        assert_eq!((root.class(), root.rank), (HostMemory, Some(0)));
        assert_eq!(root.confidence, 0);
        // Thin evidence moves nothing.
        let root = judged(Program, FaultRole::Cause, opinion(1, GpuHardware, 40));
        assert_eq!((root.class(), root.rank), (Program, Some(0)));
        let root = judged(Program, FaultRole::Cause, opinion(0, GpuHardware, 40));
        assert_eq!((root.class(), root.confidence), (Program, 40));
    }
}
