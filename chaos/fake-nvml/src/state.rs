// SPDX-License-Identifier: Apache-2.0
//! The state file, and how every call begins with a look at it.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::Deserialize;

use crate::abi::{
    DRIVER_NOT_LOADED, Device, Enabled, GPU_IS_LOST, INVALID_ARGUMENT, Return, UNINITIALIZED,
};
use crate::profile::{Facts, Profile};

/// The variable that names the file.
const FILE: &str = "STEADFAST_FAKE_NVML";
/// How often a call that hangs looks whether it may return.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// The whole machine.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct State {
    /// Version of the driver.
    #[serde(default = "default_driver")]
    pub(crate) driver: String,
    /// The GPUs, in the order of their numbers.
    #[serde(default)]
    pub(crate) gpus: Vec<Gpu>,
    /// Calls that hang.
    #[serde(default)]
    pub(crate) hang: Vec<Hang>,
    /// Calls that fail, each with the code that it returns.
    #[serde(default)]
    pub(crate) fail: BTreeMap<String, Return>,
    /// Events, with growing numbers.
    #[serde(default)]
    pub(crate) events: Vec<Event>,
}

/// A GPU. What is left out is healthy.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Gpu {
    pub(crate) profile: Profile,
    pub(crate) domain: u32,
    pub(crate) bus: u32,
    pub(crate) uuid: String,
    /// Every call about it says so.
    pub(crate) lost: bool,
    /// The driver's number.
    pub(crate) recovery: u32,
    pub(crate) corrected_errors: u64,
    pub(crate) uncorrected_errors: u64,
    pub(crate) remapped_corrected: u32,
    pub(crate) remapped_uncorrected: u32,
    pub(crate) remap_pending: bool,
    pub(crate) remap_failed: bool,
    /// Bits of `nvmlClocksThrottleReason*`.
    pub(crate) throttle: u64,
    /// Degrees Celsius.
    pub(crate) temperature: u32,
    /// Milliwatts.
    pub(crate) power: u32,
    pub(crate) pcie_width: u32,
    /// Generation of the connection in use; the model's if left out.
    pub(crate) pcie_generation: Option<u32>,
    /// 1 if memory errors are noticed.
    pub(crate) ecc: Enabled,
    /// 1 if the driver stays loaded while nobody uses it.
    pub(crate) persistence: Enabled,
    pub(crate) links_down: Vec<u32>,
    /// Errors that each link has counted, by its number.
    pub(crate) link_errors: BTreeMap<u32, u64>,
    /// 1 not started, 2 in progress, 3 completed.
    pub(crate) fabric_state: u8,
    /// What registering with the fabric led to.
    pub(crate) fabric_status: Return,
    /// Process ids, and the bytes that each holds.
    pub(crate) processes: Vec<(u32, u64)>,
}

/// A call that does not return for a while, or until this is taken out of the file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Hang {
    /// Name of the function.
    pub(crate) call: String,
    /// The GPU; absent means any.
    pub(crate) gpu: Option<usize>,
    /// For how long.
    pub(crate) seconds: f64,
}

/// An event.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Event {
    /// Numbers grow.
    pub(crate) id: u64,
    /// The GPU.
    pub(crate) gpu: usize,
    /// Bit of `nvmlEventType*`; an XID if left out.
    #[serde(default = "xid_event")]
    pub(crate) kind: u64,
    /// The XID.
    #[serde(default)]
    pub(crate) xid: u64,
    /// Not before this long after the library was first used in the process.
    #[serde(default)]
    pub(crate) after_ms: u64,
}

impl Default for Gpu {
    fn default() -> Self {
        Self {
            profile: Profile::default(),
            domain: 0,
            bus: 0,
            uuid: String::new(),
            lost: false,
            recovery: 0,
            corrected_errors: 0,
            uncorrected_errors: 0,
            remapped_corrected: 0,
            remapped_uncorrected: 0,
            remap_pending: false,
            remap_failed: false,
            throttle: 0,
            temperature: 41,
            power: 120_000,
            pcie_width: 16,
            pcie_generation: None,
            ecc: 1,
            persistence: 1,
            links_down: Vec::new(),
            link_errors: BTreeMap::new(),
            fabric_state: 3,
            fabric_status: 0,
            processes: Vec::new(),
        }
    }
}

impl Gpu {
    pub(crate) const fn facts(&self) -> Facts {
        self.profile.facts()
    }
}

fn default_driver() -> String {
    "570.86.15".to_owned()
}

const fn xid_event() -> u64 {
    8
}

/// What this process has of the file.
#[derive(Default)]
struct Known {
    version: (u64, i64, i64, u64),
    state: Option<Arc<State>>,
}

static KNOWN: LazyLock<Mutex<Known>> = LazyLock::new(Mutex::default);
static STARTED: LazyLock<Instant> = LazyLock::new(Instant::now);
/// How many times the library was opened and not yet closed.
static OPEN: Mutex<u32> = Mutex::new(0);

/// The state as it is now.
///
/// # Errors
///
/// Without a file, or with one that cannot be read, there is no driver.
pub(crate) fn current() -> Result<Arc<State>, Return> {
    let path = file().ok_or(DRIVER_NOT_LOADED)?;
    let found = std::fs::metadata(&path).map_err(|_| DRIVER_NOT_LOADED)?;
    let version = (found.ino(), found.mtime(), found.mtime_nsec(), found.size());
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if known.state.is_none() || known.version != version {
        let text = std::fs::read(&path).map_err(|_| DRIVER_NOT_LOADED)?;
        let state = serde_json::from_slice(&text).map_err(|_| DRIVER_NOT_LOADED)?;
        known.state = Some(Arc::new(state));
        known.version = version;
    }
    known.state.clone().ok_or(DRIVER_NOT_LOADED)
}

fn file() -> Option<PathBuf> {
    std::env::var_os(FILE).map(PathBuf::from)
}

/// The time since the library was first used.
pub(crate) fn age() -> Duration {
    STARTED.elapsed()
}

/// Opens or closes the library.
pub(crate) fn open(by: i32) {
    LazyLock::force(&STARTED);
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    *open = open.saturating_add_signed(by);
}

/// What every call does first: it hangs or fails if it is to, and finds the state.
pub(crate) fn enter(call: &str, gpu: Option<usize>) -> Result<Arc<State>, Return> {
    let begun = Instant::now();
    loop {
        let state = current()?;
        let hangs = state.hang.iter().any(|hang| {
            hang.call == call
                && (hang.gpu.is_none() || hang.gpu == gpu)
                && begun.elapsed().as_secs_f64() < hang.seconds
        });
        if !hangs {
            return match state.fail.get(call) {
                Some(code) => Err(*code),
                None => Ok(state),
            };
        }
        std::thread::park_timeout(LOOK_EVERY);
    }
}

/// As [`enter`], for a call that needs the library to be open.
pub(crate) fn enter_open(call: &str, gpu: Option<usize>) -> Result<Arc<State>, Return> {
    if *OPEN.lock().unwrap_or_else(PoisonError::into_inner) == 0 {
        return Err(UNINITIALIZED);
    }
    enter(call, gpu)
}

/// As [`enter_open`], for a call about a GPU.
pub(crate) fn enter_gpu(call: &str, device: Device) -> Result<(Arc<State>, usize), Return> {
    let gpu = (device.addr()).checked_sub(1).ok_or(INVALID_ARGUMENT)?;
    let state = enter_open(call, Some(gpu))?;
    match state.gpus.get(gpu) {
        None => Err(INVALID_ARGUMENT),
        Some(found) if found.lost => Err(GPU_IS_LOST),
        Some(_) => Ok((state, gpu)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_out_is_healthy_and_a_mistake_is_no_machine() {
        let state: State = serde_json::from_str(r#"{"gpus": [{"bus": 24}]}"#).unwrap();
        let gpu = &state.gpus[0];
        assert_eq!((gpu.fabric_state, gpu.pcie_width, gpu.lost), (3, 16, false));
        assert!(serde_json::from_str::<State>(r#"{"gpu": []}"#).is_err());
        let event: Event = serde_json::from_str(r#"{"id": 1, "gpu": 0, "xid": 79}"#).unwrap();
        assert_eq!((event.kind, event.after_ms), (8, 0));
    }
}
