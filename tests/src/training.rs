// SPDX-License-Identifier: Apache-2.0
//! The example training jobs, left alone and disturbed.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::job::{Job, json_lines};
use crate::launch::Launch;
use crate::patience::pause;
use crate::processes::send;
use crate::random::Random;
use crate::requirement::python;

/// One of the example jobs, whose final loss depends on the number of steps alone, if everything is right.
#[derive(Clone, Copy, Debug)]
pub struct Training {
    /// Name of the script in `examples`.
    pub script: &'static str,
    /// Number of ranks.
    pub ranks: u64,
    /// Number of steps, more than 1.
    pub steps: u64,
    /// Seconds that each step takes at least.
    pub step_time: &'static str,
    /// How long after the start of a rank a fault may come, where it is to hit the time before the first step.
    pub start_up: Duration,
}

/// What happened to a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Killed,
    Exited,
}

/// A worker may end by itself in the moment between the choice of a fault and its effect; hardly so often.
const TRIES: u32 = 5;

impl Training {
    /// Trains without a fault. Returns the final loss, as the job writes it.
    #[track_caller]
    pub fn undisturbed(&self) -> String {
        let mut job = self.launch();
        job.wait().ended_with(0);
        assert_eq!(
            job.journal_of("generation.starting").len(),
            1,
            "{}",
            job.describe()
        );
        self.loss(&job)
    }

    /// Trains, with a fault of a random kind, of a random rank, at a random moment of the first attempt. Checks that the
    /// job recovers, puts the blame on that rank, and returns the final loss.
    #[track_caller]
    pub fn disturbed(&self, random: &mut Random) -> String {
        for _ in 0..TRIES {
            if let Some(loss) = self.try_to_disturb(random) {
                return loss;
            }
        }
        panic!("no fault has hit anything in {TRIES} tries");
    }

    /// As [`Training::disturbed`]; `None` when the fault came too late to hit anything.
    #[track_caller]
    fn try_to_disturb(&self, random: &mut Random) -> Option<String> {
        let mut job = self.launch();
        let victim = random.below(self.ranks);
        let fault = if random.below(2) == 0 {
            Fault::Killed
        } else {
            Fault::Exited
        };
        let pid = self.wait_for_moment(&job, victim, random);
        match fault {
            Fault::Killed => {
                // Gone already: then it has hit nothing, which is noticed below.
                let _hit = send(pid, Signal::SIGKILL);
            }
            Fault::Exited => job.touch(&format!("exit-now-{victim}")),
        }
        let outcome = job.wait();
        let story = format!("rank {victim} {fault:?}; {outcome}");
        assert_eq!(outcome.status.code(), Some(0), "{story}");
        let attempts = job.journal_of("generation.starting").len();
        let exits = job.journal_of("worker.exited");
        if attempts == 1 && exits.iter().all(|exit| exit["exit"]["code"] == 0) {
            return None;
        }
        assert_eq!(attempts, 2, "one restart is enough; {story}");
        let blame = outcome
            .stderr
            .lines()
            .find(|line| line.contains("generation 2 starts"));
        assert!(
            blame.is_some_and(|line| line.contains(&format!("rank {victim} on node"))),
            "{story}"
        );
        Some(self.loss(&job))
    }

    fn launch(&self) -> Job {
        let ranks = self.ranks.to_string();
        let steps = self.steps.to_string();
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let wrapper = root.join("python/faulty.py");
        let script = root.join("../examples").join(self.script);
        Launch::run(&["--nproc-per-node", &ranks])
            .command(&[
                "--",
                python(),
                "-u",
                wrapper.to_str().unwrap(),
                script.to_str().unwrap(),
                "--steps",
                &steps,
                "--step-time",
                self.step_time,
                "--log-every",
                "1",
                "--checkpoint-every",
                "5",
                "--checkpoint-dir",
                "checkpoints",
                "--json-log",
                "life.jsonl",
            ])
            .start()
    }

    /// Returns the victim's process id when its time has come: before its first step, or at any step but the last ones,
    /// after which it might be gone.
    fn wait_for_moment(&self, job: &Job, victim: u64, random: &mut Random) -> i32 {
        let (event, step, delay) = match random.below(4) {
            0 => ("start", 0, random.duration_below(self.start_up)),
            _ => (
                "step",
                1 + random.below(self.steps * 2 / 3),
                random.duration_below(Duration::from_millis(30)),
            ),
        };
        let record = job.eventually(&format!("{event} {step} of rank {victim}"), |job| {
            let reached = |record: &Value| {
                record["event"] == event && record["step"].as_u64().unwrap_or(0) >= step
            };
            life(job)
                .into_iter()
                .find(|record| record["rank"] == victim && reached(record))
        });
        pause(delay);
        i32::try_from(record["pid"].as_i64().unwrap()).unwrap()
    }

    /// The final loss, on which all ranks must agree. A rank that had finished when another one was hit at its very end
    /// has finished twice, with the same loss.
    #[track_caller]
    fn loss(&self, job: &Job) -> String {
        let ends: Vec<Value> = life(job)
            .into_iter()
            .filter(|record| record["status"] == "finished")
            .collect();
        let losses: BTreeSet<&str> = ends
            .iter()
            .filter_map(|record| record["loss"].as_str())
            .collect();
        let last = ends
            .iter()
            .filter_map(|record| record["restart_count"].as_u64())
            .max();
        let mut finished: Vec<u64> = ends
            .iter()
            .filter(|record| record["restart_count"].as_u64() == last)
            .filter_map(|record| record["rank"].as_u64())
            .collect();
        finished.sort_unstable();
        assert_eq!(
            (finished, losses.len()),
            ((0..self.ranks).collect(), 1),
            "{ends:#?}; {}",
            job.describe()
        );
        losses
            .first()
            .map(|&loss| loss.to_owned())
            .unwrap_or_default()
    }
}

fn life(job: &Job) -> Vec<Value> {
    json_lines(&job.work().join("life.jsonl"))
}
