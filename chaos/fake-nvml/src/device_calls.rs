// SPDX-License-Identifier: Apache-2.0
//! Calls about one GPU.

#![expect(unsafe_code, reason = "a C interface is made of pointers")]

use std::ffi::{c_char, c_int, c_uint, c_ulonglong};

use crate::abi::{
    ARGUMENT_VERSION_MISMATCH, Device, Enabled, FabricInfo, FieldValue, INSUFFICIENT_SIZE,
    INVALID_ARGUMENT, Memory, NOT_SUPPORTED, PciInfo, ProcessInfo, Return, Utilization,
};
use crate::fields;
use crate::state::{Gpu, enter_gpu};
use crate::system_calls::{bus_id, put, put_text, returned, uuid_of};

/// No instance of a divided GPU.
const NO_INSTANCE: c_uint = c_uint::MAX;

/// A call that gives one value of a GPU.
macro_rules! value_calls {
    ($($name:ident($kind:ty) = $value:expr;)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(device: Device, target: *mut $kind) -> Return {
            let value: fn(usize, &Gpu) -> $kind = $value;
            returned(enter_gpu(stringify!($name), device).and_then(|(state, place)| {
                let gpu = state.gpus.get(place).ok_or(INVALID_ARGUMENT)?;
                // SAFETY: the caller vouches for the place, as the header asks.
                unsafe { put(target, value(place, gpu)) }
            }))
        }
    )*};
}

/// A call that gives a text about a GPU.
macro_rules! text_calls {
    ($($name:ident = $text:expr;)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(device: Device, target: *mut c_char, length: c_uint) -> Return {
            let text: fn(usize, &Gpu) -> String = $text;
            returned(enter_gpu(stringify!($name), device).and_then(|(state, place)| {
                let gpu = state.gpus.get(place).ok_or(INVALID_ARGUMENT)?;
                // SAFETY: the caller vouches for `length` bytes, as the header asks.
                unsafe { put_text(target, length, &text(place, gpu)) }
            }))
        }
    )*};
}

value_calls! {
    nvmlDeviceGetIndex(c_uint) = |place, _| number(place);
    nvmlDeviceGetMinorNumber(c_uint) = |place, _| number(place);
    nvmlDeviceGetPciInfo_v3(PciInfo) = |_, gpu| pci_info(gpu);
    nvmlDeviceGetCurrPcieLinkWidth(c_uint) = |_, gpu| gpu.pcie_width;
    nvmlDeviceGetMaxPcieLinkWidth(c_uint) = |_, _| 16;
    nvmlDeviceGetCurrPcieLinkGeneration(c_uint) = |_, gpu| gpu.pcie_generation.unwrap_or(gpu.facts().pcie_generation);
    nvmlDeviceGetMaxPcieLinkGeneration(c_uint) = |_, gpu| gpu.facts().pcie_generation;
    nvmlDeviceGetCurrentClocksThrottleReasons(c_ulonglong) = |_, gpu| gpu.throttle;
    nvmlDeviceGetPowerUsage(c_uint) = |_, gpu| gpu.power;
    nvmlDeviceGetEnforcedPowerLimit(c_uint) = |_, gpu| gpu.facts().power_limit_mw;
    nvmlDeviceGetPersistenceMode(Enabled) = |_, gpu| gpu.persistence;
    nvmlDeviceGetUtilizationRates(Utilization) = |_, _| Utilization { gpu: 0, memory: 0 };
}

text_calls! {
    nvmlDeviceGetUUID = uuid_of;
    nvmlDeviceGetName = |_, gpu| gpu.facts().name.to_owned();
    nvmlDeviceGetSerial = |place, _| format!("{:013}", 1_600_000_000_000 + place);
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetTemperature(
    device: Device,
    sensor: c_uint,
    target: *mut c_uint,
) -> Return {
    returned(
        enter_gpu("nvmlDeviceGetTemperature", device).and_then(|(state, place)| {
            if sensor != 0 {
                return Err(INVALID_ARGUMENT);
            }
            let gpu = state.gpus.get(place).ok_or(INVALID_ARGUMENT)?;
            // SAFETY: the caller vouches for the place.
            unsafe { put(target, gpu.temperature) }
        }),
    )
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetEccMode(
    device: Device,
    current: *mut Enabled,
    pending: *mut Enabled,
) -> Return {
    returned(
        enter_gpu("nvmlDeviceGetEccMode", device).and_then(|(state, place)| {
            let enabled = state.gpus.get(place).ok_or(INVALID_ARGUMENT)?.ecc;
            // SAFETY: the caller vouches for both places.
            unsafe { put(current, enabled) }?;
            // SAFETY: as above.
            unsafe { put(pending, enabled) }
        }),
    )
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetTotalEccErrors(
    device: Device,
    kind: c_uint,
    _counter: c_uint,
    target: *mut c_ulonglong,
) -> Return {
    returned(
        enter_gpu("nvmlDeviceGetTotalEccErrors", device).and_then(|(state, place)| {
            let gpu = state.gpus.get(place).ok_or(INVALID_ARGUMENT)?;
            let count = match kind {
                0 => gpu.corrected_errors,
                1 => gpu.uncorrected_errors,
                _ => return Err(INVALID_ARGUMENT),
            };
            // SAFETY: the caller vouches for the place.
            unsafe { put(target, count) }
        }),
    )
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetRemappedRows(
    device: Device,
    corrected: *mut c_uint,
    uncorrected: *mut c_uint,
    pending: *mut c_uint,
    failed: *mut c_uint,
) -> Return {
    returned(
        enter_gpu("nvmlDeviceGetRemappedRows", device).and_then(|(state, place)| {
            let gpu = state.gpus.get(place).ok_or(INVALID_ARGUMENT)?;
            for (target, value) in [
                (corrected, gpu.remapped_corrected),
                (uncorrected, gpu.remapped_uncorrected),
                (pending, gpu.remap_pending.into()),
                (failed, gpu.remap_failed.into()),
            ] {
                // SAFETY: the caller vouches for each place.
                unsafe { put(target, value) }?;
            }
            Ok(())
        }),
    )
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetFieldValues(
    device: Device,
    count: c_int,
    values: *mut FieldValue,
) -> Return {
    returned(
        enter_gpu("nvmlDeviceGetFieldValues", device).and_then(|(state, place)| {
            let gpu = state.gpus.get(place).ok_or(INVALID_ARGUMENT)?;
            let count = usize::try_from(count).map_err(|_| INVALID_ARGUMENT)?;
            if values.is_null() {
                return Err(INVALID_ARGUMENT);
            }
            // SAFETY: the caller vouches for `count` values that are initialised, since their numbers are what it asks for.
            let values = unsafe { std::slice::from_raw_parts_mut(values, count) };
            for value in values {
                fields::answer(gpu, value);
            }
            Ok(())
        }),
    )
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetMemoryInfo_v2(device: Device, target: *mut Memory) -> Return {
    returned(
        enter_gpu("nvmlDeviceGetMemoryInfo_v2", device).and_then(|(state, place)| {
            let gpu = state.gpus.get(place).ok_or(INVALID_ARGUMENT)?;
            let total = gpu.facts().memory_mib << 20;
            let used = gpu.processes.iter().map(|(_, bytes)| bytes).sum();
            let memory = Memory {
                version: 0x0200_0028,
                total,
                reserved: 0,
                free: total.saturating_sub(used),
                used,
            };
            // SAFETY: the caller vouches for the place.
            unsafe { put(target, memory) }
        }),
    )
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetComputeRunningProcesses_v3(
    device: Device,
    count: *mut c_uint,
    infos: *mut ProcessInfo,
) -> Return {
    let call = "nvmlDeviceGetComputeRunningProcesses_v3";
    returned(enter_gpu(call, device).and_then(|(state, place)| {
        let gpu = state.gpus.get(place).ok_or(INVALID_ARGUMENT)?;
        if count.is_null() {
            return Err(INVALID_ARGUMENT);
        }
        // SAFETY: not null; the caller says there how many it has room for.
        let room = unsafe { count.read() } as usize;
        // SAFETY: as above.
        unsafe { put(count, number(gpu.processes.len())) }?;
        if gpu.processes.len() > room {
            return Err(INSUFFICIENT_SIZE);
        }
        for (place, &(pid, memory)) in gpu.processes.iter().enumerate() {
            let info = ProcessInfo {
                pid,
                memory,
                gpu_instance: NO_INSTANCE,
                compute_instance: NO_INSTANCE,
            };
            // SAFETY: the caller has room for more than `place`.
            let target = unsafe { infos.add(place) };
            // SAFETY: as above.
            unsafe { put(target, info) }?;
        }
        Ok(())
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetGpuFabricInfoV(device: Device, info: *mut FabricInfo) -> Return {
    returned(
        enter_gpu("nvmlDeviceGetGpuFabricInfoV", device).and_then(|(state, place)| {
            let gpu = state.gpus.get(place).ok_or(INVALID_ARGUMENT)?;
            if !gpu.facts().fabric {
                return Err(NOT_SUPPORTED);
            }
            if info.is_null() {
                return Err(INVALID_ARGUMENT);
            }
            // SAFETY: not null, and the caller has written the version.
            let version = unsafe { (*info).version };
            // The third version has one more field at its end.
            if !matches!(version, 0x0200_0024 | 0x0300_0028) {
                return Err(ARGUMENT_VERSION_MISMATCH);
            }
            let answer = FabricInfo {
                version,
                cluster: [0xfa; 16],
                status: gpu.fabric_status,
                clique: 1,
                state: gpu.fabric_state,
                health_mask: 0,
            };
            // SAFETY: the caller vouches for the place; both versions begin with this structure.
            unsafe { put(info, answer) }
        }),
    )
}

fn number(place: usize) -> c_uint {
    c_uint::try_from(place).unwrap_or(c_uint::MAX)
}

fn pci_info(gpu: &Gpu) -> PciInfo {
    let mut info = PciInfo {
        bus_id_legacy: [0; 16],
        domain: gpu.domain,
        bus: gpu.bus,
        device: 0,
        device_id: 0x2330_10de,
        subsystem_id: 0x16c1_10de,
        bus_id: [0; 32],
    };
    let long = bus_id(gpu);
    let legacy = format!("{:04X}:{:02X}:00.0", gpu.domain, gpu.bus);
    copy(&mut info.bus_id, &long);
    copy(&mut info.bus_id_legacy, &legacy);
    info
}

/// The last byte stays 0.
fn copy(target: &mut [c_char], text: &str) {
    let room = target.len() - 1;
    for (place, byte) in target.iter_mut().zip(text.bytes().take(room)) {
        *place = c_char::from_ne_bytes([byte]);
    }
}
