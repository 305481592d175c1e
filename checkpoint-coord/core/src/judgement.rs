// SPDX-License-Identifier: Apache-2.0
//! Restart or end? The rules by which an incident is charged.

use steadfast_proto::v1::{FaultClass, FaultRole, Finding, Repeatability};

use crate::member::kinds;
use crate::{EndRule, ExitReason, Ledger, WorkerExit};

/// The same failure, without a new training step in between, ends the job when it happens this often.
pub const SAME_FAILURE_LIMIT: u32 = 3;

/// When the storage fails again and again without a new training step in between, how many seconds are waited before each
/// restart: somebody has to make room, or a file server to come back. Beyond the first, these restarts cost nothing.
const STORAGE_PAUSES: [u64; 8] = [0, 5, 15, 45, 120, 300, 300, 300];

/// Under which failures of the storage are counted, whatever their words.
const STORAGE: &str = "storage";

/// What is to be judged.
#[derive(Debug)]
pub(crate) struct Incident<'a> {
    pub(crate) root: &'a Finding,
    /// Whether the generation made any step, be it a new one or not.
    pub(crate) made_step: bool,
    /// The spec's limit.
    pub(crate) max_restarts: u32,
}

/// What follows.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Ruling {
    /// A new generation, and why in words.
    Restart(String),
    /// The end of the job.
    End {
        rule: EndRule,
        message: String,
        exit: ExitReason,
    },
}

/// Notes how far a generation came. New steps refill the budget and wipe out the memory of repeated failures.
pub(crate) fn note_progress(ledger: &mut Ledger, step: Option<u64>) {
    if step > ledger.best_step {
        ledger.best_step = step;
        ledger.restarts_used = 0;
        ledger.failures.clear();
    }
}

/// Judges an incident and charges it. Progress must have been noted before.
pub(crate) fn judge(ledger: &mut Ledger, incident: &Incident<'_>) -> Ruling {
    let root = incident.root;
    ledger.last_fault = Some(root.clone());
    let what = describe(root, ledger, incident.made_step);
    if root.class() == FaultClass::Preempted {
        return Ruling::Restart(format!("{what}; not charged to the restart budget"));
    }
    if root.repeatability() == Repeatability::Certain {
        return end(
            root,
            EndRule::CertainFailure,
            format!(
                "{what}. This failure is bound to happen again, so the job was not restarted: \
                 correct the program or its command, then start the job anew"
            ),
        );
    }
    if root.class() == FaultClass::Storage
        && let Some(ruling) = judge_storage(ledger, incident, &what)
    {
        return ruling;
    }
    let times = count(ledger, incident);
    if times >= SAME_FAILURE_LIMIT {
        return end(
            root,
            EndRule::RepeatedFailure,
            format!(
                "{what}. The same failure happened {times} times without a new training step in between, \
                 so another restart would not help: correct what it says, then start the job anew"
            ),
        );
    }
    if ledger.restarts_used >= incident.max_restarts {
        return end(
            root,
            EndRule::BudgetExhausted,
            no_budget(&what, incident.max_restarts),
        );
    }
    ledger.restarts_used += 1;
    ledger.restarts_charged += 1;
    Ruling::Restart(format!(
        "{what}; restart {} of {} allowed without a new training step",
        ledger.restarts_used, incident.max_restarts
    ))
}

/// A full disk and a file server that is away are no faults of the program, and a restart at once only repeats them. `None`
/// for the first such failure of a program, which is judged like any other.
fn judge_storage(ledger: &mut Ledger, incident: &Incident<'_>, what: &str) -> Option<Ruling> {
    let times = ledger.failures.entry(STORAGE.to_owned()).or_default();
    *times = times.saturating_add(1);
    let times = *times;
    let is_unreadable = incident.root.kind == kinds::CHECKPOINT_UNREADABLE;
    if times == 1 && !is_unreadable {
        return None;
    }
    // Before any step it may as well be a file that is broken for good, unless it is checkpoints that cannot be read: to go on
    // without them would cost more than to wait.
    let is_worth_waiting = incident.made_step || is_unreadable;
    let earlier = usize::try_from(times - 1).unwrap_or(usize::MAX);
    let pause = STORAGE_PAUSES
        .get(earlier)
        .filter(|_| is_worth_waiting || times < SAME_FAILURE_LIMIT);
    Some(match pause {
        Some(0) => Ruling::Restart(format!("{what}; it is not charged to the restart budget")),
        Some(&pause) => {
            ledger.pause_s = pause;
            Ruling::Restart(format!(
                "{what}; the storage has failed {times} times without a new training step in between, so the restart was \
                 put off for {pause} s; it is not charged to the restart budget"
            ))
        }
        None => Ruling::End {
            rule: EndRule::RepeatedFailure,
            message: format!(
                "{what}. The storage failed {times} times without a new training step in between: make room or mend it, \
                 then start the job anew"
            ),
            exit: ExitReason::Infrastructure,
        },
    })
}

/// How often this failure happened since the last new step. A kill from outside says little about the program, so
/// it counts only if the generation made no step at all; a node that is lost says nothing about it.
fn count(ledger: &mut Ledger, incident: &Incident<'_>) -> u32 {
    let is_killed = incident.root.class() == FaultClass::Killed && incident.made_step;
    let is_about_node = matches!(
        incident.root.kind.as_str(),
        kinds::MEMBER_LOST
            | kinds::WORKER_FENCED
            | kinds::NODE_UNFIT
            | kinds::NODE_CHECK_FAILED
            | kinds::GPU_FAULT
            | kinds::SWITCH_FAULT
    );
    if is_killed || is_about_node {
        return 0;
    }
    // A failure of the storage has been counted already.
    if incident.root.class() == FaultClass::Storage {
        return 1;
    }
    let fingerprint = if incident.root.fingerprint.is_empty() {
        incident.root.kind.clone()
    } else {
        incident.root.fingerprint.clone()
    };
    let times = ledger.failures.entry(fingerprint).or_default();
    *times = times.saturating_add(1);
    *times
}

fn end(root: &Finding, rule: EndRule, message: String) -> Ruling {
    Ruling::End {
        rule,
        message,
        exit: exit_of(root),
    }
}

fn no_budget(what: &str, max_restarts: u32) -> String {
    match max_restarts {
        0 => format!(
            "{what}. The job was not restarted, since no restarts are allowed (max_restarts is 0)"
        ),
        1 => format!(
            "{what}. The one restart that is allowed without a new training step was used up"
        ),
        many => format!(
            "{what}. All {many} restarts that are allowed without a new training step were used up"
        ),
    }
}

/// What happened, to whom, and how far the training was.
fn describe(root: &Finding, ledger: &Ledger, made_step: bool) -> String {
    let when = match (made_step, root.step.or(ledger.best_step)) {
        (true, Some(step)) => format!("in training, at step {step}"),
        (false, Some(step)) => {
            format!("before the first step after a restart; training had come to step {step}")
        }
        (_, None) => "before training started: no step was ever seen".to_owned(),
    };
    let summary = root.summary.trim_end_matches('.');
    let thin = if root.role() == FaultRole::Consequence {
        "; the evidence is thin: that is what a fault elsewhere brings about, and none was seen"
    } else {
        ""
    };
    match root.rank {
        Some(rank) => format!("rank {rank} on {} {summary} ({when}){thin}", root.node),
        None if root.node.is_empty() => format!("{summary} ({when}){thin}"),
        None => format!("{summary} (on {}, {when}){thin}", root.node),
    }
}

/// The root-cause worker's own end; for a fault without one, whether it lies with the infrastructure or the program.
fn exit_of(root: &Finding) -> ExitReason {
    if let Some(signal) = root.signal {
        return ExitReason::Worker(WorkerExit::Signal(signal));
    }
    match root.exit_code {
        Some(code) if code != 0 => return ExitReason::Worker(WorkerExit::Code(code)),
        _ => {}
    }
    match root.kind.as_str() {
        kinds::MEMBER_LOST | kinds::WORKER_FENCED => return ExitReason::Infrastructure,
        kinds::NODE_UNFIT | kinds::NODE_CHECK_FAILED | kinds::GPU_FAULT | kinds::SWITCH_FAULT => {
            return ExitReason::Node;
        }
        _ => {}
    }
    match root.class() {
        FaultClass::GpuHardware
        | FaultClass::Link
        | FaultClass::Network
        | FaultClass::Storage
        | FaultClass::NodeLost
        | FaultClass::Preempted => ExitReason::Infrastructure,
        _ => ExitReason::Worker(WorkerExit::Code(1)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(fingerprint: &str, class: FaultClass) -> Finding {
        Finding {
            kind: kinds::WORKER_EXITED.to_owned(),
            class: class.into(),
            exit_code: Some(3),
            fingerprint: fingerprint.to_owned(),
            summary: "it broke".to_owned(),
            node: "a".to_owned(),
            rank: Some(0),
            ..Finding::default()
        }
    }

    /// What a rule says of a sequence of failures: fingerprint, class, step reached by the generation.
    fn run(
        max_restarts: u32,
        failures: &[(&str, FaultClass, Option<u64>)],
    ) -> (Ledger, Option<EndRule>) {
        let mut ledger = Ledger::default();
        for (fingerprint, class, step) in failures {
            let root = failure(fingerprint, *class);
            note_progress(&mut ledger, *step);
            let ruling = judge(
                &mut ledger,
                &Incident {
                    root: &root,
                    made_step: step.is_some(),
                    max_restarts,
                },
            );
            if let Ruling::End { rule, exit, .. } = ruling {
                assert_eq!(exit.code(), 3);
                return (ledger, Some(rule));
            }
        }
        (ledger, None)
    }

    #[test]
    fn the_third_same_failure_without_a_new_step_ends_the_job() {
        use FaultClass::Program;
        let (ledger, rule) = run(10, &[("x", Program, None); 3]);
        assert_eq!(rule, Some(EndRule::RepeatedFailure));
        assert_eq!(ledger.restarts_charged, 2);
        // The same step again is not a new one.
        let (_, rule) = run(10, &[("x", Program, Some(7)); 3]);
        assert_eq!(rule, Some(EndRule::RepeatedFailure));
        // Other failures in between do not hide it.
        let mixed = [
            ("x", Program, None),
            ("y", Program, None),
            ("x", Program, None),
            ("y", Program, None),
            ("x", Program, None),
        ];
        assert_eq!(run(10, &mixed).1, Some(EndRule::RepeatedFailure));
    }

    #[test]
    fn new_steps_refill_the_budget_and_forget_failures() {
        let failures: Vec<_> = (1..50)
            .map(|step| ("x", FaultClass::Program, Some(step)))
            .collect();
        let (ledger, rule) = run(1, &failures);
        assert_eq!(rule, None);
        assert_eq!((ledger.restarts_used, ledger.restarts_charged), (1, 49));
    }

    #[test]
    fn the_budget_ends_the_job_when_failures_differ() {
        use FaultClass::Program;
        let (_, rule) = run(
            2,
            &[
                ("x", Program, None),
                ("y", Program, None),
                ("z", Program, None),
            ],
        );
        assert_eq!(rule, Some(EndRule::BudgetExhausted));
        assert_eq!(
            run(0, &[("x", Program, None)]).1,
            Some(EndRule::BudgetExhausted)
        );
    }

    #[test]
    fn kills_count_as_repeated_only_without_any_step() {
        use FaultClass::Killed;
        let (_, rule) = run(10, &[("signal:9", Killed, None); 3]);
        assert_eq!(rule, Some(EndRule::RepeatedFailure));
        let (_, rule) = run(10, &[("signal:9", Killed, Some(5)); 8]);
        assert_eq!(rule, None);
        let (_, rule) = run(3, &[("signal:9", Killed, Some(5)); 8]);
        assert_eq!(rule, Some(EndRule::BudgetExhausted));
    }

    #[test]
    fn a_full_disk_is_waited_for_and_is_no_fault_of_the_program() {
        let mut ledger = Ledger::default();
        let root = failure("OSError", FaultClass::Storage);
        let mut pauses = Vec::new();
        let end = loop {
            note_progress(&mut ledger, Some(9));
            ledger.pause_s = 0;
            let ruling = judge(
                &mut ledger,
                &Incident {
                    root: &root,
                    made_step: true,
                    max_restarts: 1,
                },
            );
            match ruling {
                Ruling::Restart(_) => pauses.push(ledger.pause_s),
                Ruling::End { rule, exit, .. } => break (rule, exit),
            }
        };
        assert_eq!(pauses, STORAGE_PAUSES);
        assert_eq!(end, (EndRule::RepeatedFailure, ExitReason::Infrastructure));
        assert_eq!(ledger.restarts_charged, 1);
        // Checkpoints that cannot be read are waited for as long, although no step can be made without them.
        let mut unreadable = failure("checkpoints", FaultClass::Storage);
        kinds::CHECKPOINT_UNREADABLE.clone_into(&mut unreadable.kind);
        let mut ledger = Ledger::default();
        let incident = Incident {
            root: &unreadable,
            made_step: false,
            max_restarts: 0,
        };
        for _ in STORAGE_PAUSES {
            assert!(matches!(judge(&mut ledger, &incident), Ruling::Restart(_)));
        }
        assert!(matches!(
            judge(&mut ledger, &incident),
            Ruling::End {
                exit: ExitReason::Infrastructure,
                ..
            }
        ));
        // Before any step it is no longer tried than anything else.
        let mut ledger = Ledger::default();
        let incident = Incident {
            root: &root,
            made_step: false,
            max_restarts: 10,
        };
        let ends = (1..=SAME_FAILURE_LIMIT)
            .map(|_| matches!(judge(&mut ledger, &incident), Ruling::End { .. }));
        assert_eq!(ends.collect::<Vec<_>>(), [false, false, true]);
    }

    #[test]
    fn preemption_is_free_and_certain_failures_end_at_once() {
        let (ledger, rule) = run(0, &[("gone", FaultClass::Preempted, None); 9]);
        assert_eq!((rule, ledger.restarts_charged), (None, 0));
        let mut root = failure("no module", FaultClass::Program);
        root.repeatability = Repeatability::Certain.into();
        let ruling = judge(
            &mut Ledger::default(),
            &Incident {
                root: &root,
                made_step: false,
                max_restarts: 3,
            },
        );
        let Ruling::End { rule, message, .. } = ruling else {
            panic!("{ruling:?}");
        };
        assert_eq!(rule, EndRule::CertainFailure);
        assert!(message.contains("before training started"), "{message}");
    }
}
