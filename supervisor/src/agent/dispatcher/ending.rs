// SPDX-License-Identifier: Apache-2.0
//! The end of the job, and the end of the keeper.

use std::time::Duration;

use serde_json::json;
use steadfast_core::{EndRule, JobResult, Keys};
use tokio::time::Instant;

use super::Agent;
use crate::agent::ending::{self, Circumstances};
use crate::agent::{AgentError, avenger, launch};
use crate::keeper::protocol::{Request, StopRequest};
use crate::managed_etcd::Departure;

/// How long the console is waited for at the end.
pub(super) const LAST_WORDS: Duration = Duration::from_secs(2);
/// SIGTERM and the grace for what finished workers left behind.
const SWEEP: (i32, u64) = (15, 2000);

impl Agent {
    /// The core has decided that the job is over; what workers left behind must be gone before it is told.
    pub(super) async fn begin_to_end(&mut self, result: JobResult) -> Result<(), AgentError> {
        self.ending = Some(result);
        self.nvml.close();
        if self.generation.number == 0 || self.generation.stopped {
            return self.finish().await;
        }
        let (first_signal, grace_ms) = SWEEP;
        let stop = StopRequest {
            generation: self.generation.number,
            first_signal,
            grace_ms,
        };
        self.ask(&Request::Stop(stop), Vec::new())
    }

    pub(super) async fn finish(&mut self) -> Result<(), AgentError> {
        let Some(mut result) = self.ending.take() else {
            return Ok(());
        };
        // The last lines were read after the result had been decided.
        result.best_step = result.best_step.max(self.generation.step);
        let exit_code = ending::exit_code(&self.settings, &result);
        let fields = json!({ "result": result, "exit_code": exit_code });
        self.journal
            .record_incident(result.generation.0, "job.ended", fields);
        if let Err(error) =
            ending::pass_on_error_file(&self.settings, &result, &launch::own_environment)
        {
            self.say(&error);
        }
        let seen = Circumstances {
            started_ns: self.welcome.started_ns,
            dropped: self.dropped(),
            saving: self.saving_advice().map(|advice| advice.in_words()),
        };
        let summary = ending::summary(&self.settings, &result, seen);
        for line in summary.lines() {
            self.outputs.say(line);
        }
        self.leave_managed_etcd(&result).await;
        self.part_from_everything().await;
        self.ask(&Request::Finish { exit_code }, Vec::new())?;
        self.over = true;
        Ok(())
    }

    /// Other nodes that use the etcd of this one must hear of the end, too.
    async fn leave_managed_etcd(&mut self, result: &JobResult) {
        let Some(etcd) = self.managed_etcd.take() else {
            return;
        };
        let departure = if result.rule == EndRule::Left {
            Departure::NodeLeaves
        } else {
            Departure::JobOver
        };
        let members = Keys::new(&self.settings.job).members();
        etcd.leave(departure, &members).await;
    }

    /// The console and the journal get what is still on its way, for a while.
    pub(super) async fn part_from_everything(&mut self) {
        self.outputs.shown(Instant::now() + LAST_WORDS).await;
        self.journal.close(LAST_WORDS);
    }

    pub(super) async fn follow_the_keeper(mut self) -> Result<(), AgentError> {
        let left = avenger::end_what_is_left(&self.welcome).await;
        let fields = json!({ "left": left });
        self.journal
            .record_incident(self.generation.number, "keeper.lost", fields);
        self.say("the keeper is dead: everything of the job on this node was ended");
        self.outputs.shown(Instant::now() + LAST_WORDS).await;
        self.journal.close(LAST_WORDS);
        Ok(())
    }
}
