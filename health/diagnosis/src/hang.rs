// SPDX-License-Identifier: Apache-2.0
//! Does the job still move, and if not, who holds it up? From the ranks' states at one moment and from step times.

mod compare;
mod pace;
mod place;
mod state;

use crate::answer::{Action, Answer, Class, Signal};
use crate::context::Context;
use crate::evidence::{Evidence, FileKind};

use self::pace::Pace;
use self::state::State;

/// From there on what the logs say explains a stall.
const SURE: f64 = 0.7;

/// Judges states and step times; `from_logs` is what logs and kernel logs say by themselves.
pub(crate) fn judge(evidence: &Evidence, context: &Context, from_logs: Answer) -> Answer {
    let mut notes = Vec::new();
    let mut state = State::default();
    for file in evidence.of_kind(FileKind::State) {
        match state::parse(&file.text) {
            Ok(read) => {
                state = State {
                    file: file.name.clone(),
                    ..read
                }
            }
            Err(error) => notes.push(format!("{} is passed over: {error}", file.name)),
        }
    }
    let mut pace = Pace::default();
    for file in evidence.of_kind(FileKind::Steps) {
        pace.read(&file.name, &file.text);
    }
    if state.step_s.is_none() {
        state.step_s = context.step_s;
    }
    let mut answer = of_state(&state, &pace, context, from_logs);
    answer.notes.extend(notes);
    answer
}

fn of_state(state: &State, pace: &Pace, context: &Context, from_logs: Answer) -> Answer {
    let stalled: Vec<&state::Rank> = state
        .ranks
        .iter()
        .filter(|rank| {
            rank.age_s
                .is_some_and(|age| age > pace.bound_s(rank, state))
        })
        .collect();
    if stalled.is_empty() && state.missing(context).is_empty() && !disagree(state, pace) {
        if from_logs.fault && from_logs.confidence >= SURE {
            return from_logs;
        }
        return pace
            .straggler(state, context)
            .unwrap_or_else(|| moving(state, pace));
    }
    let mut answer = compare::answer(state, context);
    let age = stalled
        .iter()
        .filter_map(|rank| rank.age_s)
        .reduce(f64::max);
    if let Some(age) = age {
        answer.signals.push(Signal {
            file: state.file.clone(),
            line: 0,
            meaning: format!(
                "{} of {} ranks have made no step for up to {age:.0} s",
                stalled.len(),
                state.ranks.len()
            ),
            text: String::new(),
        });
    }
    explained_by(answer, from_logs)
}

/// Whether the ranks have waited for longer than a step takes, and not in the same operation: that ends in no phase.
fn disagree(state: &State, pace: &Pace) -> bool {
    let waited = |rank: &state::Rank| {
        let bound = pace.train_bound_s(rank, state);
        rank.age_s.is_some_and(|age| age > bound)
    };
    state.ranks.len() > 1 && state.ranks.iter().all(waited) && compare::is_disagreement(state)
}

/// A fault that the logs tell of explains why nothing moves, unless the states name another rank.
fn explained_by(mut answer: Answer, from_logs: Answer) -> Answer {
    let contradicts = from_logs.culprit.rank.is_some()
        && answer.culprit.rank.is_some()
        && answer.confidence > from_logs.confidence
        && from_logs.culprit.rank != answer.culprit.rank;
    let is_explanation = from_logs.fault
        && from_logs.confidence >= SURE
        && !matches!(from_logs.class, Class::Hang | Class::Unknown)
        && from_logs.action != Action::ReportOnly;
    if is_explanation && !contradicts {
        let mut explained = from_logs;
        if explained.culprit.rank.is_none()
            && !matches!(explained.class, Class::Preempted | Class::Storage)
        {
            explained.culprit.rank = answer.culprit.rank;
        }
        explained.secondary.append(&mut answer.signals);
        return explained;
    }
    answer.secondary.extend(from_logs.signals);
    answer.secondary.extend(from_logs.secondary);
    answer
}

fn moving(state: &State, pace: &Pace) -> Answer {
    let rhythm = pace.rhythm();
    let phase = state
        .ranks
        .iter()
        .filter_map(|rank| rank.phase.as_deref())
        .find(|phase| *phase != "train");
    let summary = match (rhythm, phase) {
        (_, Some(phase)) => format!("the job is in its {phase} phase, which takes its time"),
        (Some(every), None) => {
            format!("about every {every} steps one takes long: that is this job's rhythm")
        }
        (None, None) => "the last steps are no older than this job's steps take".to_owned(),
    };
    let mut answer = Answer::no_fault(summary);
    answer.signals.extend(pace.signal());
    answer
}
