// SPDX-License-Identifier: Apache-2.0
//! Who this worker is, and the record that it keeps.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::PathBuf;

use serde_json::{Value, json};

/// What the environment says.
pub(crate) struct Identity {
    pub(crate) rank: u64,
    pub(crate) local_rank: u64,
    pub(crate) restart_count: u64,
    pub(crate) world_size: u64,
    generation: u64,
    records: Option<PathBuf>,
}

impl Identity {
    pub(crate) fn from_environment() -> Identity {
        let number = |name: &str, otherwise| {
            std::env::var(name).map_or(otherwise, |text| {
                text.parse().unwrap_or_else(|_| panic!("{name}={text}"))
            })
        };
        Identity {
            rank: number("RANK", 0),
            local_rank: number("LOCAL_RANK", 0),
            restart_count: number("TORCHELASTIC_RESTART_COUNT", 0),
            world_size: number("WORLD_SIZE", 1),
            generation: number("STEADFAST_GENERATION", 0),
            records: std::env::var_os("STEADFAST_TEST_RECORDS").map(PathBuf::from),
        }
    }

    /// Locks this rank; the kernel lets go of it when the process ends. A lock that is taken is an overlap.
    pub(crate) fn lock(&self) -> Option<File> {
        let path = self
            .records
            .as_ref()?
            .with_file_name(format!("rank-{}.lock", self.rank));
        let file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(path)
            .unwrap();
        if file.try_lock().is_err() {
            self.record("overlap", json!({}));
        }
        Some(file)
    }

    pub(crate) fn record_start(&self) {
        let environment: BTreeMap<String, String> = std::env::vars_os()
            .map(|(name, value)| {
                (
                    name.to_string_lossy().into_owned(),
                    value.to_string_lossy().into_owned(),
                )
            })
            .collect();
        self.record(
            "start",
            json!({
                "environment": environment,
                "arguments": std::env::args().collect::<Vec<_>>(),
                "directory": std::env::current_dir().unwrap(),
                "core_limit": core_limit(0),
                "core_limit_hard": core_limit(1),
                "stdin": std::fs::read_link("/proc/self/fd/0").unwrap(),
            }),
        );
    }

    /// Appends one line, in a single write, so that lines of several workers do not mix.
    pub(crate) fn record(&self, event: &str, fields: Value) {
        let Some(path) = &self.records else { return };
        let mut record = json!({
            "event": event,
            "pid": std::process::id(),
            "rank": self.rank,
            "local_rank": self.local_rank,
            "restart_count": self.restart_count,
            "generation": self.generation,
        });
        if let (Some(record), Value::Object(fields)) = (record.as_object_mut(), fields) {
            record.extend(fields);
        }
        let mut file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(path)
            .unwrap();
        file.write_all(format!("{record}\n").as_bytes()).unwrap();
    }
}

/// The soft (0) or hard (1) limit of core dumps, as the kernel words it.
fn core_limit(which: usize) -> Option<String> {
    let limits = std::fs::read_to_string("/proc/self/limits").ok()?;
    let line = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max core file size"))?;
    line.split_whitespace().nth(which).map(str::to_owned)
}
