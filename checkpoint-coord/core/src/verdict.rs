// SPDX-License-Identifier: Apache-2.0
//! What was at fault? One finding among those of a generation.

use std::collections::BTreeSet;

use steadfast_proto::v1::{FaultClass, FaultRole, Finding, Repeatability};

use crate::member::kinds;

/// Findings that a verdict carries along beside the root cause.
const OTHERS_LIMIT: usize = 64;

/// What was at fault, and what else was found.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Verdict {
    pub(crate) root: Finding,
    /// Earliest first; bounded.
    pub(crate) others: Vec<Finding>,
}

/// Picks the root cause: the earliest finding that may be a cause, else the earliest of all. `None` without findings.
pub(crate) fn find_root_cause(findings: Vec<Finding>) -> Option<Verdict> {
    let mut findings = one_for_each_worker(findings);
    blame_lost_nodes(&mut findings);
    let nodes: BTreeSet<_> = findings.iter().map(|finding| &finding.node).collect();
    // The monotonic clock is the better one, but it says nothing about another node's.
    let one_clock = nodes.len() <= 1;
    findings.sort_by_key(|finding| {
        let wall = if one_clock { 0 } else { finding.wall_ms };
        (wall, finding.monotonic_ns, finding.rank)
    });
    let root = findings
        .iter()
        .position(|finding| finding.role() == FaultRole::Cause)
        .unwrap_or(0);
    if findings.is_empty() {
        return None;
    }
    let root = findings.remove(root);
    findings.truncate(OTHERS_LIMIT);
    Some(Verdict {
        root,
        others: findings,
    })
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
        let verdict = find_root_cause(vec![
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
        let verdict = find_root_cause(vec![exit.clone(), lost.clone()]).unwrap();
        assert_eq!(verdict.root.node, "b");
        let mut memory = exit.clone();
        memory.class = FaultClass::HostMemory.into();
        let verdict = find_root_cause(vec![memory, lost.clone()]).unwrap();
        assert_eq!(verdict.root.node, "a");
        exit.repeatability = Repeatability::Certain.into();
        let verdict = find_root_cause(vec![exit, lost]).unwrap();
        assert_eq!(verdict.root.node, "a");
    }

    #[test]
    fn without_a_cause_the_earliest_is_taken() {
        let verdict = find_root_cause(vec![
            finding("a", 0, 10, FaultRole::Consequence),
            finding("a", 1, 5, FaultRole::Consequence),
        ])
        .unwrap();
        assert_eq!(verdict.root.local_rank, Some(1));
        assert_eq!(find_root_cause(vec![]), None);
    }

    #[test]
    fn dying_and_exit_of_a_worker_are_one_finding_with_the_exits_role() {
        let mut dying = finding("a", 0, 5, FaultRole::Cause);
        dying.kind = kinds::WORKER_DYING.to_owned();
        let verdict = find_root_cause(vec![
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
        let verdict = find_root_cause(vec![second, first]).unwrap();
        assert_eq!(verdict.root.node, "a");
    }
}
