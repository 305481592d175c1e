// SPDX-License-Identifier: Apache-2.0
//! What makes a scenario that can be read impossible all the same.

use std::collections::BTreeSet;

use super::read::Part;
use super::{Expect, Fault, Injection, Mode, Role, Scenario};

/// The first thing that is wrong, and where.
pub(super) fn problem(scenario: &Scenario) -> Option<(Part, String)> {
    let nodes = of_nodes(scenario).map(|message| (Part::Nodes, message));
    nodes
        .or_else(|| of_job(scenario).map(|message| (Part::Job, message)))
        .or_else(|| {
            if scenario.description.trim().is_empty() {
                return Some((Part::File, "`description` is empty".to_owned()));
            }
            (scenario.limit_seconds == 0).then(|| (Part::File, "`limit_seconds` is 0".to_owned()))
        })
        .or_else(|| {
            let mut faults = scenario.faults.iter().enumerate();
            faults.find_map(|(index, fault)| Some((Part::Fault(index), of_fault(scenario, fault)?)))
        })
        .or_else(|| names_twice(scenario))
        .or_else(|| of_expect(scenario).map(|message| (Part::Expect, message)))
}

fn of_nodes(scenario: &Scenario) -> Option<String> {
    let nodes = &scenario.nodes;
    if nodes.count == 0 || nodes.workers == 0 {
        return Some("`count` and `workers` must be at least 1".to_owned());
    }
    if nodes.all() + nodes.etcd_members() > 60 {
        return Some("more than 60 nodes and members of etcd".to_owned());
    }
    if nodes.all() > 1 && nodes.etcd_members() == 0 {
        return Some("several nodes need etcd: `etcd` must be at least 1".to_owned());
    }
    let at_least = nodes.at_least.unwrap_or(nodes.count);
    if at_least == 0 || at_least > nodes.count {
        return Some(format!(
            "`at_least` must be between 1 and `count` ({})",
            nodes.count
        ));
    }
    None
}

fn of_job(scenario: &Scenario) -> Option<String> {
    let job = &scenario.job;
    if job.steps == 0 || job.checkpoint_every == 0 {
        return Some("`steps` and `checkpoint_every` must be at least 1".to_owned());
    }
    if !is_duration(job.step_seconds) {
        return Some("`step_seconds` must be a number of seconds from 0 on".to_owned());
    }
    None
}

fn of_fault(scenario: &Scenario, fault: &Fault) -> Option<String> {
    let seconds = [
        ("delay_seconds", Some(fault.delay_seconds)),
        ("jitter_seconds", Some(fault.jitter_seconds)),
        ("heal_after_seconds", fault.heal_after_seconds),
        ("at.seconds", fault.at.seconds),
    ];
    for (name, value) in seconds {
        if value.is_some_and(|value| !is_duration(value)) {
            return Some(format!("`{name}` must be a number of seconds from 0 on"));
        }
    }
    if !(0.0..=1.0).contains(&fault.probability) {
        return Some("`probability` must be between 0 and 1".to_owned());
    }
    if fault.times == 0 {
        return Some("`times` must be at least 1".to_owned());
    }
    of_target(scenario, fault)
        .or_else(|| of_trigger(scenario, fault))
        .or_else(|| of_injection(scenario, fault))
}

fn of_target(scenario: &Scenario, fault: &Fault) -> Option<String> {
    let target = &fault.on;
    if target.ways() > 1 {
        return Some("`on` must name a rank, a node or a role, not several of them".to_owned());
    }
    if fault.inject.hits_no_node() && target.ways() > 0 {
        return Some(format!(
            "`{}` hits no node or worker: leave `on` out",
            fault.inject.name()
        ));
    }
    let ranks = scenario.nodes.ranks();
    if target.rank.is_some_and(|rank| rank >= ranks) {
        return Some(format!(
            "`on.rank` must be below {ranks}, the number of workers"
        ));
    }
    let nodes = scenario.nodes.all();
    if target.node.is_some_and(|node| node == 0 || node > nodes) {
        return Some(format!("`on.node` must be between 1 and {nodes}"));
    }
    if target.role == Some(Role::Spare) && fault.inject.hits_a_worker() {
        return Some(format!(
            "`{}` hits a worker, and a spare has none",
            fault.inject.name()
        ));
    }
    None
}

fn of_trigger(scenario: &Scenario, fault: &Fault) -> Option<String> {
    let ids: BTreeSet<&str> = ids(scenario).collect();
    for (field, named) in [("after", &fault.at.after), ("healed", &fault.at.healed)] {
        let Some(named) = named else { continue };
        if !ids.contains(named.as_str()) {
            return Some(format!(
                "`at.{field}` names `{named}`, which is no fault's id"
            ));
        }
        if fault.id.as_ref() == Some(named) {
            return Some(format!("`at.{field}` names the fault itself"));
        }
    }
    let after_the_end = fault.at.step.is_some_and(|step| step > scenario.job.steps);
    after_the_end.then(|| "`at.step` is more than the job has steps".to_owned())
}

/// Whether it is done by the file system that this program answers for.
fn can_fail(injection: &Injection) -> bool {
    injection
        .needs()
        .contains(&super::Capability::UserFileSystem)
}

fn of_injection(scenario: &Scenario, fault: &Fault) -> Option<String> {
    let needs_heal = matches!(
        fault.inject,
        Injection::Reboot | Injection::PauseNode | Injection::FsFreeze { .. } | Injection::Freeze
    );
    if needs_heal && fault.heal_after_seconds.is_none() {
        return Some(format!(
            "`{}` must be healed: say `heal_after_seconds`",
            fault.inject.name()
        ));
    }
    if let Some(place) = fault.inject.place()
        && can_fail(&fault.inject)
        && scenario
            .faults
            .iter()
            .any(|other| other.inject.place() == Some(place) && !can_fail(&other.inject))
    {
        return Some(format!(
            "`{}` needs a file system of another kind than other faults of the same `place`: choose another place, or \
             another scenario",
            fault.inject.name()
        ));
    }
    let percent = match fault.inject {
        Injection::CpuLimit { percent } | Injection::Loss { percent } => Some(percent),
        _ => None,
    };
    if percent.is_some_and(|percent| !(1..=100).contains(&percent)) {
        return Some("`percent` must be between 1 and 100".to_owned());
    }
    let of_gpus = matches!(
        fault.inject,
        Injection::Gpu { .. } | Injection::NvmlHang { .. }
    );
    if of_gpus && !scenario.job.gpus {
        return Some(format!(
            "`{}` needs GPUs: say `gpus = true` in [job]",
            fault.inject.name()
        ));
    }
    let of_network = fault
        .inject
        .needs()
        .contains(&super::Capability::Namespaces);
    if of_network && scenario.nodes.mode == Mode::Loopback {
        return Some(format!(
            "`{}` needs nodes with a network of their own: `mode` must not be `loopback`",
            fault.inject.name()
        ));
    }
    let of_etcd = fault.inject.needs().contains(&super::Capability::Etcd);
    (of_etcd && scenario.nodes.etcd_members() == 0).then(|| {
        format!(
            "`{}` needs etcd: say how many in [nodes]",
            fault.inject.name()
        )
    })
}

fn names_twice(scenario: &Scenario) -> Option<(Part, String)> {
    let mut seen = BTreeSet::new();
    let mut faults = scenario.faults.iter().enumerate();
    faults.find_map(|(index, fault)| {
        let id = fault.id.as_deref()?;
        (!seen.insert(id)).then(|| {
            (
                Part::Fault(index),
                format!("there are two faults with the id `{id}`"),
            )
        })
    })
}

fn of_expect(scenario: &Scenario) -> Option<String> {
    let Expect {
        cause,
        recovery_within_seconds,
        exit_codes,
        ..
    } = &scenario.expect;
    if recovery_within_seconds.is_some_and(|seconds| !is_duration(seconds)) {
        return Some("`recovery_within_seconds` must be a number of seconds from 0 on".to_owned());
    }
    let names: BTreeSet<String> = (1..=scenario.nodes.all())
        .map(|n| format!("n{n}"))
        .collect();
    if let Some(unknown) = exit_codes.keys().find(|name| !names.contains(*name)) {
        return Some(format!(
            "`exit_codes` names `{unknown}`; nodes are called n1, n2 and so on"
        ));
    }
    let ids: BTreeSet<&str> = ids(scenario).collect();
    let codes_of = &scenario.expect.exit_code_of;
    if let Some(unknown) = codes_of.keys().find(|name| !ids.contains(name.as_str())) {
        return Some(format!(
            "`exit_code_of` names `{unknown}`, which is no fault's id"
        ));
    }
    let cause = cause.as_ref()?;
    for (field, named) in [("rank_of", &cause.rank_of), ("node_of", &cause.node_of)] {
        if let Some(named) = named
            && !ids.contains(named.as_str())
        {
            return Some(format!(
                "`cause.{field}` names `{named}`, which is no fault's id"
            ));
        }
    }
    None
}

fn ids(scenario: &Scenario) -> impl Iterator<Item = &str> {
    scenario
        .faults
        .iter()
        .filter_map(|fault| fault.id.as_deref())
}

fn is_duration(seconds: f64) -> bool {
    seconds.is_finite() && (0.0..1e6).contains(&seconds)
}

#[cfg(test)]
mod tests {
    use crate::scenario::read_text;

    fn error(text: &str) -> String {
        let text = format!("description = 'x'\n{text}");
        read_text("x", "x.toml", &text).unwrap_err().to_string()
    }

    #[test]
    fn impossible_scenarios_are_refused_in_words() {
        for (text, words) in [
            ("limit_seconds = 0", "limit_seconds"),
            ("[nodes]\ncount = 2\netcd = 0", "need etcd"),
            ("[nodes]\ncount = 2\nat_least = 3", "at_least"),
            ("[job]\nstep_seconds = -1.0", "step_seconds"),
            ("[[faults]]\ninject = 'reboot'", "heal_after_seconds"),
            (
                "[[faults]]\ninject = 'segfault'\non = { rank = 2 }",
                "below 2",
            ),
            (
                "[[faults]]\ninject = 'segfault'\non = { rank = 1, node = 1 }",
                "not several",
            ),
            (
                "[[faults]]\ninject = 'segfault'\non = { role = 'spare' }",
                "has none",
            ),
            ("[[faults]]\ninject = 'etcd-compact'", "needs etcd"),
            (
                "[[faults]]\ninject = { nvml-hang = { call = 'x' } }",
                "gpus = true",
            ),
            (
                "[[faults]]\ninject = 'segfault'\nprobability = 1.5",
                "probability",
            ),
            (
                "[[faults]]\ninject = 'segfault'\nat = { step = 41 }",
                "at.step",
            ),
            ("[expect]\nexit_codes = { n9 = 1 }", "n9"),
            ("[expect]\ncause = { rank_of = 'x' }", "rank_of"),
            (
                "[[faults]]\nid = 'a'\ninject = 'segfault'\n[[faults]]\nid = 'a'\ninject = 'segfault'",
                "two faults",
            ),
        ] {
            let said = error(text);
            assert!(said.contains(words), "{text}: {said}");
        }
    }
}
