// SPDX-License-Identifier: Apache-2.0
//! Looks at the processes of a run again and again: a witness beside what the workers write down themselves.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use steadfast_process::tree::Process;

use crate::bench::launch::write;
use crate::bench::waiting::now_ns;
use crate::failure::Failure;
use crate::history::Sample;
use crate::undo::MARK;

const EVERY_NS: u64 = 100_000_000;

/// What was seen of the processes of a run.
#[derive(Debug)]
pub(super) struct Sampler {
    run: String,
    looked_ns: u64,
    /// By process id and start; none for those that are no workers of this run.
    known: HashMap<(i32, u64), Option<Sample>>,
}

impl Sampler {
    pub(super) fn new(run: &str) -> Self {
        Self {
            run: run.to_owned(),
            looked_ns: 0,
            known: HashMap::new(),
        }
    }

    /// Looks, unless it has just done so.
    pub(super) fn look(&mut self) {
        let now = now_ns();
        if now < self.looked_ns + EVERY_NS {
            return;
        }
        self.looked_ns = now;
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        for pid in pids {
            let Some(process) = Process::read(pid) else {
                continue;
            };
            let known = self
                .known
                .entry((pid, process.start_ticks))
                .or_insert_with(|| sample(&self.run, &process, now));
            // One that is stopped, dead or in an uninterruptible sleep does nothing at all.
            if let Some(sample) = known
                && matches!(process.state, 'R' | 'S')
            {
                sample.last_ns = now;
            } else if known.is_none() && process.parent != 2 && is_young(&process, now) {
                // Its environment is that of its parent until it executes its program.
                *known = sample(&self.run, &process, now);
            }
        }
    }

    /// Writes down what was seen.
    pub(super) fn write(&self, directory: &Path) -> Result<(), Failure> {
        let mut text = String::new();
        let mut samples: Vec<&Sample> = self.known.values().flatten().collect();
        samples.sort_by_key(|sample| (sample.first_ns, sample.pid));
        for sample in samples {
            let line = serde_json::to_string(sample)
                .map_err(|error| Failure::write("a sample", error.into()))?;
            text.push_str(&line);
            text.push('\n');
        }
        write(&directory.join("processes.jsonl"), &text)
    }
}

fn is_young(process: &Process, now: u64) -> bool {
    let ticks_ns = 1_000_000_000 / rustix::param::clock_ticks_per_second().max(1);
    now.saturating_sub(process.start_ticks.saturating_mul(ticks_ns)) < 2_000_000_000
}

fn sample(run: &str, process: &Process, now: u64) -> Option<Sample> {
    let environment = fs::read(format!("/proc/{}/environ", process.pid)).ok()?;
    let variable = |name: &str| {
        environment.split(|byte| *byte == 0).find_map(|pair| {
            let value = pair.strip_prefix(name.as_bytes())?.strip_prefix(b"=")?;
            Some(String::from_utf8_lossy(value).into_owned())
        })
    };
    if variable(MARK)? != run {
        return None;
    }
    Some(Sample {
        pid: process.pid,
        name: process.name.clone(),
        rank: variable("RANK")?.parse().ok()?,
        generation: variable("STEADFAST_GENERATION")?.parse().ok()?,
        node: variable("STEADFAST_NODE").unwrap_or_default(),
        first_ns: now,
        last_ns: now,
    })
}
