// SPDX-License-Identifier: Apache-2.0
//! Steps of a job that does not write them down itself: those that its supervisor tells of.

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;

use serde_json::Value;

use super::World;
use super::life::Sign;
use crate::bench::waiting::now_ns;
use crate::failure::Failure;

/// A question takes some dozen milliseconds of a core.
const EVERY_NS: u64 = 500_000_000;

/// The steps that were told so far.
#[derive(Debug)]
pub(super) struct StepsSeen {
    path: PathBuf,
    asked_ns: u64,
    last: (u64, u64),
}

impl StepsSeen {
    /// What is told is written to the records of the workers.
    pub(super) fn new(path: PathBuf) -> Self {
        Self {
            path,
            asked_ns: 0,
            last: (0, 0),
        }
    }

    /// Asks the supervisor of rank 0, unless it was asked just now.
    pub(super) fn look(&mut self, world: &World) -> Result<(), Failure> {
        let now = now_ns();
        let Some((node, pid)) = world.life.worker(0) else {
            return Ok(());
        };
        let Some(index) = world.place_of(node) else {
            return Ok(());
        };
        if now < self.asked_ns + EVERY_NS {
            return Ok(());
        }
        self.asked_ns = now;
        let answer = match world.ask(index, &["status", "--json"]) {
            Ok(answer) => answer,
            Err(interrupted @ Failure::Interrupted(_)) => return Err(interrupted),
            // It cannot answer at the moment, or is no steadfast.
            Err(_) => return Ok(()),
        };
        let status: Value = serde_json::from_str(&answer).unwrap_or_default();
        let job = &status["jobs"][0];
        let seen = (job["generation"].as_u64(), job["step"].as_u64());
        let (Some(generation), Some(step)) = seen else {
            return Ok(());
        };
        if (generation, step) <= self.last {
            return Ok(());
        }
        self.last = (generation, step);
        self.write(&Sign {
            event: "seen".to_owned(),
            rank: 0,
            generation,
            node: node.to_owned(),
            pid,
            monotonic_ns: now,
            step: Some(step),
            world_size: None,
            loss: None,
            status: None,
            order: None,
        })
    }

    fn write(&self, sign: &Sign) -> Result<(), Failure> {
        let failed = |error| Failure::write(self.path.display(), error);
        let mut line = serde_json::to_string(sign).map_err(|error| failed(error.into()))?;
        line.push('\n');
        // A single write to a file opened for appending, as those of the workers.
        File::options()
            .append(true)
            .open(&self.path)
            .and_then(|mut file| file.write_all(line.as_bytes()))
            .map_err(failed)
    }
}
