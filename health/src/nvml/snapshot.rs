// SPDX-License-Identifier: Apache-2.0
//! One look at all GPUs, told line by line: what was told before a call hung is not lost.

use std::ffi::OsStr;
use std::path::Path;

use nvml_wrapper::enum_wrappers::device::{EccCounter, MemoryError};
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};
use serde::{Deserialize, Serialize};

use super::probe::{LIBRARY, MAX_GPUS, absence, identity};
use super::reading::{Called, Processes, Reading, known, processes, read};
use super::report::{Absence, GpuIdentity};

/// How fast the connection to the machine is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PcieGeneration {
    /// Generation in use. An idle GPU lowers it to save power.
    pub current: u32,
    /// Generation that GPU and slot have.
    pub max: u32,
}

/// Everything that was read of a GPU. What the GPU or the driver does not know is absent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuSnapshot {
    /// What a watcher reads too.
    pub reading: Reading,
    /// Memory errors since the driver was loaded that were corrected.
    pub corrected: Option<u64>,
    /// Whether memory errors are noticed at all.
    pub ecc: Option<bool>,
    /// Whether the driver stays loaded while nobody uses the GPU.
    pub persistence: Option<bool>,
    /// Generation of the connection.
    pub pcie_generation: Option<PcieGeneration>,
    /// Who holds memory of it.
    pub processes: Processes,
}

/// One line of the look.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SnapshotLine {
    /// The library answers.
    Opened {
        /// Version of the driver.
        driver: String,
        /// Version of the library, such as `12.570.86.15`; empty when it does not say.
        library: String,
        /// GPUs that the library counts.
        count: u32,
    },
    /// There is nothing to look at.
    Absent {
        /// Why, to act on.
        absence: Absence,
        /// Why, in words.
        reason: String,
    },
    /// This call is made now. The last one of a GPU that never says anything else is the one that hangs.
    Call {
        /// The library's number of the GPU; absent for calls about the library.
        gpu: Option<u32>,
        /// Name of the function.
        name: String,
    },
    /// A GPU has said who it is.
    Found(GpuIdentity),
    /// A GPU cannot be asked.
    Silent {
        /// The library's number.
        gpu: u32,
        /// Whether the library calls it lost.
        lost: bool,
        /// Why, in words.
        reason: String,
    },
    /// All that was read of a GPU.
    Gpu {
        /// The library's number.
        gpu: u32,
        /// What was read.
        snapshot: Box<GpuSnapshot>,
    },
}

/// Looks at all GPUs, each on a thread of its own; returns when all have answered, which may be never.
pub fn snapshot(library: Option<&Path>, tell: &(dyn Fn(&SnapshotLine) + Sync)) {
    let calls = Calls { tell, gpu: None };
    let path = library.map_or(OsStr::new(LIBRARY), Path::as_os_str);
    let opened = calls.call("nvmlInit_v2", || Nvml::builder().lib_path(path).init());
    match opened.and_then(|nvml| look(&nvml, &calls)) {
        Ok(()) => {}
        Err(error) => tell(&SnapshotLine::Absent {
            absence: absence(&error),
            reason: error.to_string(),
        }),
    }
}

fn look(nvml: &Nvml, calls: &Calls<'_>) -> Result<(), NvmlError> {
    let driver = calls.call("nvmlSystemGetDriverVersion", || nvml.sys_driver_version())?;
    let library = known(calls.call("nvmlSystemGetNVMLVersion", || nvml.sys_nvml_version()))?;
    let count = calls.call("nvmlDeviceGetCount_v2", || nvml.device_count())?;
    (calls.tell)(&SnapshotLine::Opened {
        driver,
        library: library.unwrap_or_default(),
        count,
    });
    std::thread::scope(|scope| {
        for index in 0..count.min(MAX_GPUS) {
            let tell = calls.tell;
            let calls = Calls {
                tell,
                gpu: Some(index),
            };
            let started = std::thread::Builder::new()
                .name(format!("nvml-{index}"))
                .spawn_scoped(scope, move || {
                    let line =
                        one(nvml, index, &calls).unwrap_or_else(|error| silent(index, &error));
                    tell(&line);
                });
            if let Err(error) = started {
                tell(&SnapshotLine::Silent {
                    gpu: index,
                    lost: false,
                    reason: format!("no thread can be started: {error}"),
                });
            }
        }
    });
    Ok(())
}

fn silent(gpu: u32, error: &NvmlError) -> SnapshotLine {
    SnapshotLine::Silent {
        gpu,
        lost: matches!(error, NvmlError::GpuLost),
        reason: error.to_string(),
    }
}

fn one(nvml: &Nvml, index: u32, calls: &Calls<'_>) -> Result<SnapshotLine, NvmlError> {
    let device = calls.call("nvmlDeviceGetHandleByIndex_v2", || {
        nvml.device_by_index(index)
    })?;
    (calls.tell)(&SnapshotLine::Found(identity(index, &device, calls)?));
    let reading = read(&device, calls)?;
    Ok(SnapshotLine::Gpu {
        gpu: index,
        snapshot: Box::new(rest(&device, reading, calls)?),
    })
}

fn rest(
    device: &Device<'_>,
    reading: Reading,
    calls: &Calls<'_>,
) -> Result<GpuSnapshot, NvmlError> {
    let corrected = known(calls.call("nvmlDeviceGetTotalEccErrors", || {
        device.total_ecc_errors(MemoryError::Corrected, EccCounter::Volatile)
    }))?;
    let ecc = known(calls.call("nvmlDeviceGetEccMode", || device.is_ecc_enabled()))?;
    let persistence = known(calls.call("nvmlDeviceGetPersistenceMode", || {
        device.is_in_persistent_mode()
    }))?;
    let current = known(calls.call("nvmlDeviceGetCurrPcieLinkGeneration", || {
        device.current_pcie_link_gen()
    }))?;
    let max = known(calls.call("nvmlDeviceGetMaxPcieLinkGeneration", || {
        device.max_pcie_link_gen()
    }))?;
    Ok(GpuSnapshot {
        reading,
        corrected,
        ecc: ecc.map(|state| state.currently_enabled),
        persistence,
        pcie_generation: current
            .zip(max)
            .map(|(current, max)| PcieGeneration { current, max }),
        processes: processes(device, calls)?,
    })
}

/// Tells each call before it is made.
struct Calls<'a> {
    tell: &'a (dyn Fn(&SnapshotLine) + Sync),
    gpu: Option<u32>,
}

impl Called for Calls<'_> {
    fn call<T>(
        &self,
        name: &'static str,
        call: impl FnOnce() -> Result<T, NvmlError>,
    ) -> Result<T, NvmlError> {
        (self.tell)(&SnapshotLine::Call {
            gpu: self.gpu,
            name: name.to_owned(),
        });
        call()
    }
}
