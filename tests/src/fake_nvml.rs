// SPDX-License-Identifier: Apache-2.0
//! GPUs that are not there: the state file of the fake NVML library.

use std::path::{Path, PathBuf};
use std::sync::Mutex;

use serde_json::{Value, json};

use crate::binaries::fake_nvml;
use crate::launch::Launch;

/// A machine with GPUs, as the fake library shows it to a job.
#[derive(Debug)]
pub struct Gpus {
    file: PathBuf,
    state: Mutex<Value>,
}

impl Gpus {
    /// So many healthy H100, on the buses 0x18, 0x19 and so on, for a job in this directory.
    pub fn new(directory: &Path, count: u32) -> Gpus {
        let gpus: Vec<Value> = (0..count)
            .map(|index| json!({ "profile": "h100", "bus": 0x18 + index }))
            .collect();
        let gpus = Gpus {
            file: directory.join("gpus.json"),
            state: Mutex::new(json!({ "gpus": gpus, "events": [] })),
        };
        gpus.change(|_| {});
        gpus
    }

    /// Lets a job see them, and no kernel log.
    pub fn shown_to(&self, launch: Launch) -> Launch {
        launch
            .env("STEADFAST_FAKE_NVML", self.file.to_str().unwrap())
            .env("STEADFAST_NVML", fake_nvml().to_str().unwrap())
            .env("STEADFAST_KERNEL_LOG", "off")
    }

    /// The variables that show them to a program that is not a job.
    pub fn variables(&self) -> [(&'static str, PathBuf); 2] {
        [
            ("STEADFAST_FAKE_NVML", self.file.clone()),
            ("STEADFAST_NVML", fake_nvml().to_owned()),
        ]
    }

    /// Changes the whole state; the library sees it at once.
    pub fn change(&self, change: impl FnOnce(&mut Value)) {
        let mut state = self.state.lock().unwrap();
        change(&mut state);
        let new = self.file.with_extension("new");
        std::fs::write(&new, state.to_string()).unwrap();
        std::fs::rename(new, &self.file).unwrap();
    }

    /// Changes one field of a GPU.
    pub fn set(&self, gpu: usize, field: &str, value: Value) {
        self.change(|state| state["gpus"][gpu][field] = value);
    }

    /// Delivers an XID.
    pub fn xid(&self, gpu: usize, code: u32) {
        self.change(|state| {
            let events = state["events"].as_array_mut().unwrap();
            let id = events.len() + 1;
            events.push(json!({ "id": id, "gpu": gpu, "xid": code }));
        });
    }
}
