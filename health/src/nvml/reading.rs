// SPDX-License-Identifier: Apache-2.0
//! One look at a GPU. What the GPU or the driver does not know is absent, and never taken for good or bad.

use nvml_wrapper::Device;
use nvml_wrapper::bitmasks::device::ThrottleReasons;
use nvml_wrapper::enum_wrappers::device::{EccCounter, MemoryError, TemperatureSensor};
use nvml_wrapper::enum_wrappers::nv_link::ErrorCounter;
use nvml_wrapper::enums::device::{SampleValue, UsedGpuMemory};
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::structs::device::FieldId;
use serde::{Deserialize, Serialize};

use super::raw;

/// The most links of a GPU (`NVML_NVLINK_MAX_LINKS`).
const MAX_LINKS: u32 = 18;

// Numbers of fields in `nvml.h`.
const REMAPPED_CORRECTABLE: FieldId = FieldId(142);
const REMAPPED_UNCORRECTABLE: FieldId = FieldId(143);
const REMAPPED_PENDING: FieldId = FieldId(144);
const REMAPPED_FAILURE: FieldId = FieldId(145);
const LINK_COUNT: FieldId = FieldId(91);
const RECOVERY_ACTION: FieldId = FieldId(230);

/// Rows of memory that were replaced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Remapped {
    /// For errors that could be corrected.
    pub corrected: u64,
    /// For errors that could not.
    pub uncorrected: u64,
    /// Some take effect only with the next reset.
    pub pending: bool,
    /// One could not be replaced.
    pub failed: bool,
}

/// One NVLink.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NvlinkReading {
    /// Its number.
    pub link: u32,
    /// Whether it is up.
    pub active: bool,
    /// Replays, recoveries and checksum errors so far; absent where the GPU does not count.
    pub errors: Option<u64>,
}

/// The connection to the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PcieReading {
    /// Lanes in use.
    pub width: u32,
    /// Lanes that GPU and slot have.
    pub max_width: u32,
}

/// The NVLink fabric, as far as this GPU takes part in one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fabric {
    /// 1 not started, 2 in progress, 3 completed.
    pub state: u8,
    /// What registering led to: 0 is success.
    pub status: u32,
}

/// Process ids and the bytes that each holds.
pub type Processes = Vec<(u32, u64)>;

/// One look at a GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reading {
    /// What the driver says that the GPU needs, by its number.
    pub recovery: Option<u32>,
    /// Replaced rows.
    pub remapped: Option<Remapped>,
    /// Memory errors since the driver was loaded that could not be corrected.
    pub uncorrected: Option<u64>,
    /// Why the GPU runs slower than it could, as bits of `nvmlClocksThrottleReason*`.
    pub throttle: Option<u64>,
    /// Degrees Celsius of the chip.
    pub temperature: Option<u32>,
    /// Milliwatts.
    pub power: Option<u32>,
    /// The connection to the machine.
    pub pcie: Option<PcieReading>,
    /// The links that it has.
    pub nvlinks: Vec<NvlinkReading>,
    /// The fabric.
    pub fabric: Option<Fabric>,
}

/// What stands before and after each call.
pub(super) trait Called {
    /// Makes one call, and lets it be seen that it is made.
    fn call<T>(
        &self,
        name: &'static str,
        call: impl FnOnce() -> Result<T, NvmlError>,
    ) -> Result<T, NvmlError>;
}

/// Reads all of it. The error is one after which there is no sense in further calls.
pub(super) fn read(device: &Device<'_>, calls: &impl Called) -> Result<Reading, NvmlError> {
    let fields = known(calls.call("nvmlDeviceGetFieldValues", || {
        device.field_values_for(&[
            RECOVERY_ACTION,
            REMAPPED_CORRECTABLE,
            REMAPPED_UNCORRECTABLE,
            REMAPPED_PENDING,
            REMAPPED_FAILURE,
            LINK_COUNT,
        ])
    }))?
    .unwrap_or_default();
    let field = |index: usize| {
        let sample = fields.get(index)?.as_ref().ok()?;
        number(sample.value.as_ref().ok()?)
    };
    let links = field(5).and_then(|count| u32::try_from(count).ok());
    Ok(Reading {
        recovery: field(0).and_then(|number| u32::try_from(number).ok()),
        remapped: field(1).map(|corrected| Remapped {
            corrected,
            uncorrected: field(2).unwrap_or_default(),
            pending: field(3).is_some_and(|flag| flag != 0),
            failed: field(4).is_some_and(|flag| flag != 0),
        }),
        uncorrected: known(calls.call("nvmlDeviceGetTotalEccErrors", || {
            device.total_ecc_errors(MemoryError::Uncorrected, EccCounter::Volatile)
        }))?,
        throttle: known(calls.call("nvmlDeviceGetCurrentClocksThrottleReasons", || {
            device.current_throttle_reasons()
        }))?
        .map(|reasons: ThrottleReasons| reasons.bits()),
        temperature: known(calls.call("nvmlDeviceGetTemperature", || {
            device.temperature(TemperatureSensor::Gpu)
        }))?,
        power: known(calls.call("nvmlDeviceGetPowerUsage", || device.power_usage()))?,
        pcie: pcie(device, calls)?,
        nvlinks: nvlinks(device, calls, links.unwrap_or(MAX_LINKS).min(MAX_LINKS))?,
        fabric: known(calls.call("nvmlDeviceGetGpuFabricInfoV", || raw::fabric(device)))?.flatten(),
    })
}

/// Who holds memory of the GPU.
pub(super) fn processes(device: &Device<'_>, calls: &impl Called) -> Result<Processes, NvmlError> {
    let found = known(calls.call("nvmlDeviceGetComputeRunningProcesses_v3", || {
        device.running_compute_processes()
    }))?;
    let found = found.unwrap_or_default().into_iter();
    Ok(found
        .map(|process| {
            let bytes = match process.used_gpu_memory {
                UsedGpuMemory::Used(bytes) => bytes,
                UsedGpuMemory::Unavailable => 0,
            };
            (process.pid, bytes)
        })
        .collect())
}

/// What the GPU does not know is absent; what makes further calls senseless is an error.
pub(super) fn known<T>(result: Result<T, NvmlError>) -> Result<Option<T>, NvmlError> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(
            error @ (NvmlError::GpuLost
            | NvmlError::Uninitialized
            | NvmlError::DriverNotLoaded
            | NvmlError::LibRmVersionMismatch),
        ) => Err(error),
        Err(_) => Ok(None),
    }
}

fn pcie(device: &Device<'_>, calls: &impl Called) -> Result<Option<PcieReading>, NvmlError> {
    let width = known(calls.call("nvmlDeviceGetCurrPcieLinkWidth", || {
        device.current_pcie_link_width()
    }))?;
    let max_width = known(calls.call("nvmlDeviceGetMaxPcieLinkWidth", || {
        device.max_pcie_link_width()
    }))?;
    let both = width.zip(max_width);
    Ok(both.map(|(width, max_width)| PcieReading { width, max_width }))
}

fn nvlinks(
    device: &Device<'_>,
    calls: &impl Called,
    count: u32,
) -> Result<Vec<NvlinkReading>, NvmlError> {
    let mut found = Vec::new();
    for link in 0..count {
        let wrapper = device.link_wrapper_for(link);
        let Some(active) = known(calls.call("nvmlDeviceGetNvLinkState", || wrapper.is_active()))?
        else {
            // It has no more.
            break;
        };
        let mut errors = None;
        for counter in [
            ErrorCounter::DlReplay,
            ErrorCounter::DlRecovery,
            ErrorCounter::DlCrcFlit,
        ] {
            let count = known(calls.call("nvmlDeviceGetNvLinkErrorCounter", || {
                wrapper.error_counter(counter)
            }))?;
            if let Some(count) = count {
                errors = Some(errors.unwrap_or(0_u64).saturating_add(count));
            }
        }
        found.push(NvlinkReading {
            link,
            active,
            errors,
        });
    }
    Ok(found)
}

fn number(value: &SampleValue) -> Option<u64> {
    match value {
        SampleValue::U32(number) => Some(u64::from(*number)),
        SampleValue::U64(number) => Some(*number),
        SampleValue::I64(number) => u64::try_from(*number).ok(),
        SampleValue::F64(_) => None,
    }
}
