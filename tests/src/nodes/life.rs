// SPDX-License-Identifier: Apache-2.0
//! What the workers of the toy job wrote down of their lives, and whether that is sound.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use serde_json::Value;

/// Records of all workers of a job, on all nodes: they share a clock here.
#[derive(Debug, Default)]
pub struct Life {
    records: Vec<Value>,
    /// How much of the file has been read.
    read: usize,
}

/// One worker, from its first sign of life to its last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Worker {
    generation: u64,
    rank: u64,
    pid: u64,
    first_ns: u64,
    last_ns: u64,
}

impl Life {
    /// Reads what has been written since the last time.
    pub fn catch_up(&mut self, path: &Path) {
        let Ok(mut file) = File::open(path) else {
            return;
        };
        let mut new = String::new();
        file.seek(SeekFrom::Start(self.read as u64)).unwrap();
        file.read_to_string(&mut new).unwrap();
        let whole = new.rfind('\n').map_or(0, |end| end + 1);
        self.read += whole;
        let lines = new[..whole].lines();
        self.records
            .extend(lines.map(|line| serde_json::from_str::<Value>(line).unwrap()));
    }

    /// The highest step that was made; 0 when there was none.
    pub fn last_step(&self) -> u64 {
        let steps = self.of("step");
        steps
            .filter_map(|record| record["step"].as_u64())
            .max()
            .unwrap_or(0)
    }

    /// The newest generation that has made a step.
    pub fn newest_generation_with_steps(&self) -> Option<u64> {
        self.of("step")
            .filter_map(|record| record["generation"].as_u64())
            .max()
    }

    /// The generations that started workers.
    pub fn generations(&self) -> BTreeSet<u64> {
        self.of("start")
            .filter_map(|record| record["generation"].as_u64())
            .collect()
    }

    /// How many workers have come to an end of their own.
    pub fn ends(&self) -> usize {
        self.of("end").count()
    }

    /// The node of each rank of the newest generation that has made a step.
    pub fn places(&self) -> Vec<String> {
        let newest = self.newest_generation_with_steps();
        newest.map_or_else(Vec::new, |newest| self.nodes_of(newest))
    }

    /// The nodes on which workers of a generation have started so far, in the order of their ranks.
    pub fn nodes_of(&self, generation: u64) -> Vec<String> {
        let starts = self
            .of("start")
            .filter(|record| record["generation"] == generation);
        let places: BTreeMap<u64, String> = starts
            .filter_map(|record| {
                Some((
                    record["rank"].as_u64()?,
                    record["node"].as_str()?.to_owned(),
                ))
            })
            .collect();
        places.into_values().collect()
    }

    /// Process id of a rank in the newest generation that has made a step.
    pub fn pid(&self, rank: u64) -> Option<i32> {
        let newest = self.newest_generation_with_steps()?;
        let mut starts = self.of("start");
        let start =
            starts.find(|record| record["generation"] == newest && record["rank"] == rank)?;
        i32::try_from(start["pid"].as_u64()?).ok()
    }

    /// No two workers of one rank were ever there at the same time: within a generation each rank was one process, and no
    /// process of a generation lived when one of a newer generation did.
    ///
    /// # Errors
    ///
    /// Who lived beside whom, and for how long.
    pub fn is_sound(&self) -> Result<(), String> {
        let workers = self.workers();
        for older in &workers {
            for newer in &workers {
                let twins = older.generation == newer.generation
                    && older.rank == newer.rank
                    && older.pid < newer.pid;
                if twins {
                    return Err(format!("two processes had one rank: {older:?}, {newer:?}"));
                }
                let overlap = older.last_ns.saturating_sub(newer.first_ns);
                if older.generation < newer.generation && overlap > 0 {
                    return Err(format!(
                        "a worker still lived {} ms after one of a newer generation had begun: {older:?}, {newer:?}",
                        overlap / 1_000_000
                    ));
                }
            }
        }
        Ok(())
    }

    /// The last generation has finished, all of its ranks with this loss.
    ///
    /// # Errors
    ///
    /// What is wrong with that.
    pub fn finished(&self, ranks: u64, loss: &str) -> Result<(), String> {
        let last = self.generations().last().copied().unwrap_or(0);
        let ends: Vec<&Value> = self
            .of("end")
            .filter(|record| record["generation"] == last)
            .collect();
        let with_loss = ends.iter().filter(|record| record["loss"] == loss);
        let finished: BTreeSet<u64> = with_loss
            .filter_map(|record| record["rank"].as_u64())
            .collect();
        if finished == (0..ranks).collect() {
            return Ok(());
        }
        Err(format!(
            "of {ranks} ranks in generation {last} these have finished with the right loss {loss}: {finished:?}; the ends: \
             {ends:#?}"
        ))
    }

    fn workers(&self) -> Vec<Worker> {
        let mut workers: BTreeMap<(u64, u64, u64), Worker> = BTreeMap::new();
        for record in &self.records {
            let number = |name: &str| record[name].as_u64().unwrap();
            let (generation, rank, pid) = (number("generation"), number("rank"), number("pid"));
            let at_ns = number("monotonic_ns");
            let worker = workers.entry((generation, rank, pid)).or_insert(Worker {
                generation,
                rank,
                pid,
                first_ns: at_ns,
                last_ns: at_ns,
            });
            worker.first_ns = worker.first_ns.min(at_ns);
            worker.last_ns = worker.last_ns.max(at_ns);
        }
        workers.into_values().collect()
    }

    /// The steps that more than one generation has made: what was lost in between.
    pub fn made_again(&self) -> Vec<u64> {
        let mut makers: BTreeMap<u64, BTreeSet<u64>> = BTreeMap::new();
        for record in self.of("step") {
            let (step, generation) = (record["step"].as_u64(), record["generation"].as_u64());
            if let (Some(step), Some(generation)) = (step, generation) {
                makers.entry(step).or_default().insert(generation);
            }
        }
        let again = makers.into_iter().filter(|(_, makers)| makers.len() > 1);
        again.map(|(step, _)| step).collect()
    }

    /// The step that a generation has gone on from; `None` when that was the beginning.
    pub fn resumed_from(&self, generation: u64) -> Option<u64> {
        let mut resumes = self.of("resume");
        resumes.find(|record| record["generation"] == generation)?["step"].as_u64()
    }

    /// The steps at which there was a save.
    pub fn saves(&self) -> Vec<u64> {
        self.of("save")
            .filter_map(|record| record["step"].as_u64())
            .collect()
    }

    fn of(&self, event: &str) -> impl Iterator<Item = &Value> {
        self.records
            .iter()
            .filter(move |record| record["event"] == event)
    }
}

impl fmt::Display for Life {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for worker in self.workers() {
            let of_it = |record: &&Value| {
                record["pid"] == worker.pid && record["generation"] == worker.generation
            };
            let steps = self.of("step").filter(of_it);
            let last_step = steps.filter_map(|record| record["step"].as_u64()).max();
            let end = self.of("end").find(of_it);
            writeln!(
                formatter,
                "generation {} rank {} pid {}: from {} ms to {} ms, last step {last_step:?}, {}",
                worker.generation,
                worker.rank,
                worker.pid,
                worker.first_ns / 1_000_000,
                worker.last_ns / 1_000_000,
                end.map_or_else(|| "no end".to_owned(), |end| end["status"].to_string()),
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    impl Life {
        fn of_records(records: Vec<Value>) -> Life {
            Life { records, read: 0 }
        }
    }

    fn sign(event: &str, worker: (u64, u64, u64), at_ns: u64) -> Value {
        let (generation, rank, pid) = worker;
        json!({ "event": event, "generation": generation, "rank": rank, "pid": pid, "monotonic_ns": at_ns })
    }

    #[test]
    fn a_worker_that_outlives_the_start_of_a_newer_generation_is_found() {
        let mut life = Life::of_records(vec![
            sign("start", (1, 0, 10), 100),
            sign("beat", (1, 0, 10), 200),
            sign("start", (2, 0, 11), 201),
        ]);
        assert_eq!(life.is_sound(), Ok(()));
        life.records.push(sign("beat", (1, 0, 10), 202));
        assert!(life.is_sound().unwrap_err().contains("still lived"));
    }

    #[test]
    fn another_rank_of_an_older_generation_counts_as_well() {
        let life = Life::of_records(vec![
            sign("start", (1, 1, 10), 100),
            sign("start", (2, 0, 11), 150),
            sign("end", (1, 1, 10), 200),
        ]);
        assert!(life.is_sound().is_err());
    }

    #[test]
    fn twins_in_a_generation_are_found() {
        let life = Life::of_records(vec![
            sign("start", (1, 0, 10), 100),
            sign("start", (1, 0, 11), 300),
        ]);
        assert!(life.is_sound().unwrap_err().contains("one rank"));
    }

    #[test]
    fn only_all_ranks_with_the_right_loss_have_finished() {
        let end = |rank: u64, loss: &str| {
            let mut record = sign("end", (1, rank, 10 + rank), 500);
            record["loss"] = loss.into();
            record
        };
        let mut life = Life::of_records(vec![
            sign("start", (1, 0, 10), 1),
            sign("start", (1, 1, 11), 1),
            end(0, "0x1"),
        ]);
        assert!(life.finished(2, "0x1").is_err());
        life.records.push(end(1, "0x2"));
        assert!(life.finished(2, "0x1").is_err());
        life.records.push(end(1, "0x1"));
        assert_eq!(life.finished(2, "0x1"), Ok(()));
    }
}
