// SPDX-License-Identifier: Apache-2.0
//! What a member waits for, in words.

use super::{Member, MemberState};

impl Member {
    /// What the member waits for, in words.
    pub fn reason(&self) -> String {
        if !self.resumed {
            return "waiting to hear from the keeper which workers there are".to_owned();
        }
        if let Some(problem) = self.view.unreadable().next() {
            return problem.to_string();
        }
        match self.state() {
            MemberState::Joining if self.awaits_its_name() => format!(
                "another supervisor is registered under the name {}; waiting for its lease to end",
                self.settings.node
            ),
            MemberState::Joining => "registering with the job".to_owned(),
            MemberState::Spare => "registered; waiting for a plan that names this node".to_owned(),
            MemberState::Starting(_) => "waiting for the workers to be started".to_owned(),
            MemberState::Running(_) => self.running_reason(),
            MemberState::Completed(_) => {
                "all workers of this node have finished; waiting for those of other nodes"
                    .to_owned()
            }
            MemberState::Draining(_) => self.draining_reason(),
            MemberState::Stopped(_) => {
                "all workers of this node are stopped; waiting for the leader's decision".to_owned()
            }
            MemberState::Left => "the job has ended".to_owned(),
        }
    }

    fn running_reason(&self) -> String {
        let Some(work) = &self.work else {
            return String::new();
        };
        let done = work.exits.len();
        let step = work.best_step.map_or_else(
            || "no step seen yet".to_owned(),
            |step| format!("step {step}"),
        );
        if done == 0 {
            format!("all {} workers are running, {step}", work.slots)
        } else {
            format!("{done} of {} workers have finished, {step}", work.slots)
        }
    }

    fn draining_reason(&self) -> String {
        let Some(work) = &self.work else {
            return String::new();
        };
        let left = (0..work.slots)
            .filter(|local| work.may_run(*local))
            .map(|local| local.to_string())
            .collect::<Vec<_>>();
        if left.is_empty() {
            "all workers have exited; waiting until their process trees are gone".to_owned()
        } else {
            format!("stopping; still there: local rank {}", left.join(", "))
        }
    }
}
