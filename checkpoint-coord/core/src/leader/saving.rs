// SPDX-License-Identifier: Apache-2.0
//! A checkpoint before a generation ends for a reason that can wait, or because somebody asks for one.
//!
//! All workers save at the same step: one that none of them can have reached when the last of them is told. The order is
//! in the plan; members vouch in their records for what their workers have saved; then the leader commits it. Nothing of
//! this holds up the answer to a fault.

use std::collections::BTreeMap;
use std::time::Duration;

use super::standing::Standing;
use super::{Leader, LeaderEffect, LeaderState};
use crate::member::is_fatal;
use crate::{
    Course, Generation, Instant, MemberRecord, NodeName, Plan, PlanPhase, Request, RequestKind,
    SaveMeans, SaveOrder, SaveOutcome,
};

/// How long it takes at most, as a rule, until the workers of all nodes are told: through a store that others use too, and where
/// the store is in this very node's memory. Where it takes longer, a member says that it was told too late, and another step is
/// named: that costs less than to wait for a far one each time.
const TELLING_OTHERS: Duration = Duration::from_millis(600);
const TELLING_OWN: Duration = Duration::from_millis(250);

/// So often the distance to the next step to save at is doubled.
const MOST_DOUBLINGS: u32 = 10;

/// How long a checkpoint may take to be found once all workers have ended.
const FINDING: Duration = Duration::from_secs(3);

/// Since when a checkpoint is waited for.
#[derive(Debug, Default)]
pub(super) struct Saving {
    since: Option<(Generation, SaveOrder, Instant)>,
    /// When it was seen that all workers have ended by themselves.
    ended: Option<(Generation, Instant)>,
    /// The last order that came too late for some, and how many did before it.
    late: Option<(Generation, u64, u32)>,
    /// Since when the generation has gone without a newer checkpoint than this, or without one that was asked for.
    without: Option<(Generation, Option<u64>, Instant)>,
}

/// The number of the wishes that are the leader's own; nobody else's wish has it.
const ROUTINE: u64 = u64::MAX;

/// How far the checkpoint is that was asked for.
enum Stage {
    /// It is waited for, or the order is on its way.
    Waiting,
    /// It is there, or will not come.
    Over(SaveOutcome),
    /// Nobody can be asked.
    Impossible,
}

/// What is wanted of a checkpoint.
#[derive(Clone, Copy)]
struct Wish<'a> {
    ends: bool,
    number: u64,
    within_ms: u64,
    why: &'a str,
}

/// For people.
pub(super) fn in_words(outcome: &SaveOutcome) -> String {
    match outcome.made {
        Some(step) => format!("a checkpoint of step {step} was made: {}", outcome.why),
        None => format!(
            "no checkpoint was made in time ({}): the steps since the last one are made again",
            outcome.why
        ),
    }
}

/// Whether the workers were asked to save because the generation ends: those that end by themselves then have not finished.
pub(super) fn ends_after(plan: &Plan) -> bool {
    if plan.is_run() {
        return plan.save.as_ref().is_some_and(|order| order.ends);
    }
    let asked_for = plan.phase.request().is_some();
    asked_for && plan.last_save.as_ref().is_some_and(|last| last.number == 0)
}

impl Leader {
    /// How the workers of all members of the plan can be asked for a checkpoint; `None` when some cannot.
    pub(super) fn save_means(&self, plan: &Plan) -> Option<SaveMeans> {
        let mut means = Some(SaveMeans::AtStep);
        let mut members = 0;
        for record in self.records_of(plan) {
            members += 1;
            means = means
                .max(record.can_save)
                .filter(|_| record.can_save.is_some());
            means?;
        }
        means.filter(|_| members == plan.members.len())
    }

    /// The generation must end. If that was asked for and nothing is wrong, a checkpoint is made before.
    pub(super) fn save_and_drain(
        &mut self,
        now: Instant,
        plan: &Plan,
        standings: &[(NodeName, Standing)],
        phase: PlanPhase,
        effects: &mut Vec<LeaderEffect>,
    ) {
        let urgent = standings.iter().any(|(_, standing)| standing.is_ending())
            || self.view.has_finding(plan.generation, is_fatal);
        let Some(request) = phase.request().filter(|_| !urgent).cloned() else {
            // A member that cannot save does not wait for us before it stops its workers.
            let wanted = phase.request().map_or(0, |request| request.save_ms);
            let given_up = match &plan.save {
                Some(order) => Ok(order.outcome(None)),
                None => Err(self.unsaved(plan, wanted)),
            };
            return self.drain(plan, phase, given_up, effects);
        };
        let wish = Wish {
            ends: true,
            number: 0,
            within_ms: request.save_ms,
            why: &request.reason,
        };
        match self.save(now, plan, standings, wish, effects) {
            Stage::Waiting => {}
            Stage::Over(outcome) if outcome.came_too_late(standings) => self.succeed(plan, effects),
            Stage::Over(outcome) => self.drain(plan, phase, Ok(outcome), effects),
            Stage::Impossible => {
                let why = self.unsaved(plan, wish.within_ms);
                self.drain(plan, phase, Err(why), effects);
            }
        }
    }

    /// Somebody may want a checkpoint while the training goes on. Returns whether that is what is being seen to.
    pub(super) fn save_and_go_on(
        &mut self,
        now: Instant,
        plan: &Plan,
        standings: &[(NodeName, Standing)],
        effects: &mut Vec<LeaderEffect>,
    ) -> bool {
        let asked = self.checkpoint_request(plan);
        let Some((request, number)) = asked.or_else(|| self.routine_request(now, plan)) else {
            // Whoever asked does not want it any more.
            if let Some(order) = &plan.save {
                self.end_save(plan, order.outcome(None), effects);
            }
            return plan.save.is_some();
        };
        let wish = Wish {
            ends: false,
            number,
            within_ms: request.save_ms,
            why: &request.reason,
        };
        match self.save(now, plan, standings, wish, effects) {
            Stage::Waiting => {}
            Stage::Over(outcome) => {
                if number == ROUTINE {
                    // One that was not made in time is not asked for again at once.
                    let committed = outcome.made.or(plan.committed);
                    self.saving.without = Some((plan.generation, committed, now));
                }
                self.end_save(plan, outcome, effects);
            }
            Stage::Impossible => {
                let outcome = wish.order(0).outcome(None);
                self.end_save(plan, outcome, effects);
            }
        }
        true
    }

    /// A wish for a checkpoint that was not answered yet.
    fn checkpoint_request(&self, plan: &Plan) -> Option<(Request, u64)> {
        let answered = plan.last_save.as_ref().map(|outcome| outcome.number);
        let wishes = self.requests().filter_map(|request| match request.kind {
            RequestKind::Checkpoint { number } if request.generation == plan.generation => {
                Some((request.clone(), number))
            }
            _ => None,
        });
        let mut open = wishes.filter(|(_, number)| answered != Some(*number));
        open.next()
    }

    /// The leader's own wish for a checkpoint, when the last one was too long ago and the workers can be asked.
    fn routine_request(&mut self, now: Instant, plan: &Plan) -> Option<(Request, u64)> {
        let every = self.settings.save_every?;
        let since = match self.saving.without {
            Some((generation, committed, since))
                if generation == plan.generation && committed == plan.committed =>
            {
                since
            }
            _ => now,
        };
        self.saving.without = Some((plan.generation, plan.committed, since));
        let save_ms = u64::try_from(self.settings.save_timeout.as_millis()).unwrap_or(u64::MAX);
        let request = Request {
            generation: plan.generation,
            kind: RequestKind::Checkpoint { number: ROUTINE },
            save_ms,
            reason: format!("none was committed for {:.0} s", every.as_secs_f64()),
        };
        let asks_already = plan
            .save
            .as_ref()
            .is_some_and(|order| order.number == ROUTINE);
        if !asks_already {
            if now < since + every {
                self.wake(since + every);
                return None;
            }
            let wish = Wish {
                ends: false,
                number: ROUTINE,
                within_ms: save_ms,
                why: "",
            };
            self.step_to_save(now, plan, wish)?;
        }
        Some((request, ROUTINE))
    }

    fn save(
        &mut self,
        now: Instant,
        plan: &Plan,
        standings: &[(NodeName, Standing)],
        wish: Wish<'_>,
        effects: &mut Vec<LeaderEffect>,
    ) -> Stage {
        let Some(order) = &plan.save else {
            let Some(step) = self.step_to_save(now, plan, wish) else {
                return Stage::Impossible;
            };
            self.order_save(plan, wish.order(step), effects);
            return Stage::Waiting;
        };
        if wish.ends && !order.ends {
            // Somebody asked for a checkpoint before; now the generation is to end after it.
            self.order_save(plan, wish.order(order.step), effects);
            return Stage::Waiting;
        }
        let since = match &self.saving.since {
            Some((generation, known, since))
                if *generation == plan.generation && known == order =>
            {
                *since
            }
            _ => now,
        };
        self.saving.since = Some((plan.generation, order.clone(), since));
        let (everywhere, made) = self.vouched_for(plan, order);
        let all_ended = standings
            .iter()
            .all(|(_, standing)| *standing == Standing::Completed);
        let mut until = since + order.within();
        if all_ended {
            // Those that look after the directories may still have to find what was left there.
            let ended = self.saving.ended;
            let ended = ended.filter(|(generation, _)| *generation == plan.generation);
            let (_, ended) = *self
                .saving
                .ended
                .insert(ended.unwrap_or((plan.generation, now)));
            until = until.min(ended + FINDING);
        }
        if !everywhere && now < until && self.came_late_for_some(plan, order) {
            let later = SaveOrder {
                step: self.later_step(now, plan, order),
                within_ms: u64::try_from((until - now).as_millis()).unwrap_or(u64::MAX),
                ..order.clone()
            };
            self.order_save(plan, later, effects);
            return Stage::Waiting;
        }
        if everywhere || now >= until {
            return Stage::Over(order.outcome(made.filter(|_| everywhere)));
        }
        let reason = format!(
            "waiting for a checkpoint of step {}: {}",
            order.step, order.why
        );
        self.set(LeaderState::Running(plan.generation), &reason);
        self.wake(until);
        Stage::Waiting
    }

    /// Why a generation that is to end makes no checkpoint before, and what that costs, in words; empty where it is not
    /// missed: nobody wanted one, or the job is not known to make any. Called for a request that has not been ordered.
    fn unsaved(&self, plan: &Plan, within_ms: u64) -> String {
        if within_ms == 0 || self.view.has_finding(plan.generation, is_fatal) {
            return String::new();
        }
        let means = self.save_means(plan);
        let mut members = plan.members.iter();
        let saves = members.any(|place| {
            let record = self.view.member(&place.node);
            record.is_some_and(|record| record.value.checkpoints.is_some())
        });
        let resumed = plan.resume.as_ref().and_then(|resume| resume.from.as_ref());
        let newest = self
            .newest_checkpoint(plan)
            .max(resumed.map(|from| from.step));
        let reached = self.progress.newest().max(self.step_of(plan));
        let is_safe = reached.is_some_and(|reached| newest >= Some(reached));
        if is_safe || (means.is_none() && !saves) {
            return String::new();
        }
        let why = match (reached, means) {
            (None, _) => "they have made no step that was seen",
            (Some(_), None) => "not all of them have asked whether one is wanted",
            (Some(_), Some(_)) => "they could not be told in time",
        };
        let cost = match (newest, reached) {
            (_, None) => "no step is known to be lost".to_owned(),
            (Some(newest), Some(reached)) => {
                format!("the steps after {newest}, up to {reached}, have to be made again")
            }
            (None, Some(reached)) => {
                format!(
                    "the steps since the last checkpoint, up to {reached}, have to be made again"
                )
            }
        };
        format!("no checkpoint could be asked for before the workers are stopped: {why}; {cost}")
    }

    /// The step to save at; `None` when no checkpoint can be had.
    fn step_to_save(&self, now: Instant, plan: &Plan, wish: Wish<'_>) -> Option<u64> {
        let means = self.save_means(plan).filter(|_| wish.within_ms > 0)?;
        if means == SaveMeans::AtOnce {
            return Some(0);
        }
        // Who has just come to lead has seen no step yet. What the records say may be old: then the order comes too late, is
        // found to, and is given again. It must be beyond what was saved already, or that would be taken for the answer.
        let by_records = || {
            let reached = self.step_of(plan)?;
            let saved = self
                .records_of(plan)
                .filter_map(|record| record.saved.max(record.checkpoint));
            Some(saved.fold(reached, u64::max) + 1)
        };
        self.progress
            .out_of_reach(now, self.telling())
            .or_else(by_records)
    }

    /// Whether a worker had made the step of the order already when it was told. Those that were told in time save alone then,
    /// and wait for the others, which wait for them.
    fn came_late_for_some(&self, plan: &Plan, order: &SaveOrder) -> bool {
        order.step > 0
            && self
                .records_of(plan)
                .any(|record| record.told_late == Some(order.step))
    }

    /// Another step to save at, further away each time that one came too late: steps may have become quicker than they
    /// were, or telling slower.
    fn later_step(&mut self, now: Instant, plan: &Plan, order: &SaveOrder) -> u64 {
        let generation = plan.generation;
        let before = match self.saving.late {
            Some((late_in, step, before)) if late_in == generation && step == order.step => before,
            Some((late_in, _, before)) if late_in == generation => before + 1,
            _ => 0,
        };
        self.saving.late = Some((generation, order.step, before));
        let reached = self.progress.newest().unwrap_or(0).max(order.step);
        let next = self.progress.out_of_reach(now, self.telling());
        let ahead = next.map_or(0, |next| next.saturating_sub(reached)).max(2);
        reached.saturating_add(ahead << (before + 1).min(MOST_DOUBLINGS))
    }

    /// How long it can take until the last worker has been told something.
    fn telling(&self) -> Duration {
        if self.settings.shared {
            TELLING_OTHERS
        } else {
            TELLING_OWN
        }
    }

    fn order_save(&mut self, plan: &Plan, order: SaveOrder, effects: &mut Vec<LeaderEffect>) {
        let reason = format!("asking for a checkpoint: {}", order.why);
        self.set(LeaderState::Running(plan.generation), &reason);
        let course = Course {
            save: Some(order),
            ..self.course(plan)
        };
        let mut transaction = self.guarded();
        transaction.then.push(self.put_course(&course));
        self.write(transaction, String::new(), effects);
    }

    fn end_save(&mut self, plan: &Plan, outcome: SaveOutcome, effects: &mut Vec<LeaderEffect>) {
        let made = outcome.made;
        // One that is asked for later, in the same words, has time of its own.
        self.saving.since = None;
        // A healthy day is quiet.
        let is_usual = outcome.number == ROUTINE && made.is_some();
        let say = if is_usual {
            String::new()
        } else {
            in_words(&outcome)
        };
        let course = Course {
            save: None,
            last_save: Some(outcome),
            committed: made.or(plan.committed),
            ..self.course(plan)
        };
        let mut transaction = self.guarded();
        transaction.then.push(self.put_course(&course));
        let commit = made.map(|step| self.commit(plan, step));
        transaction.then.extend(commit.into_iter().flatten());
        self.write(transaction, say, effects);
    }

    /// Whether all of the checkpoint is there, and its step: of members that see one directory, one speaks for all.
    fn vouched_for(&self, plan: &Plan, order: &SaveOrder) -> (bool, Option<u64>) {
        let mut parts: BTreeMap<(&str, &str), Option<u64>> = BTreeMap::new();
        for record in self.records_of(plan) {
            let saved = record.saved.filter(|saved| *saved >= order.step);
            let best = parts.entry(part_of(record)).or_default();
            *best = (*best).max(saved);
        }
        let everywhere = !parts.is_empty() && parts.values().all(Option::is_some);
        (everywhere, parts.values().copied().flatten().min())
    }
}

/// What a member vouches for a part of: its directory, where that is known, or its own workers.
fn part_of(record: &MemberRecord) -> (&str, &str) {
    let directory = record.checkpoints.as_ref();
    let directory = directory.map_or("", |report| report.directory.as_str());
    if directory.is_empty() {
        ("", &record.node.0)
    } else {
        (directory, "")
    }
}

impl Wish<'_> {
    fn order(self, step: u64) -> SaveOrder {
        SaveOrder {
            step,
            number: self.number,
            within_ms: self.within_ms,
            ends: self.ends,
            why: self.why.to_owned(),
        }
    }
}

impl SaveOutcome {
    /// Whether all workers came to the end of their program before the step at which they were to save.
    fn came_too_late(&self, standings: &[(NodeName, Standing)]) -> bool {
        let mut all = standings.iter();
        let ended = all.all(|(_, standing)| *standing == Standing::Completed);
        ended && self.wanted > 0 && self.made.is_none()
    }
}

impl SaveOrder {
    /// What has become of it.
    fn outcome(&self, made: Option<u64>) -> SaveOutcome {
        SaveOutcome {
            wanted: self.step,
            number: self.number,
            made,
            why: self.why.clone(),
        }
    }
}
