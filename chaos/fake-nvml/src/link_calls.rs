// SPDX-License-Identifier: Apache-2.0
//! Calls about NVLink.

#![expect(unsafe_code, reason = "a C interface is made of pointers")]

use std::ffi::{c_uint, c_ulonglong};

use crate::abi::{Device, Enabled, INVALID_ARGUMENT, NOT_SUPPORTED, Return};
use crate::state::{Gpu, enter_gpu};
use crate::system_calls::{put, returned};

/// `NVML_NVLINK_ERROR_DL_REPLAY`.
const REPLAY: c_uint = 0;
/// `NVML_NVLINK_ERROR_COUNT`.
const COUNTERS: c_uint = 5;

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetNvLinkState(
    device: Device,
    link: c_uint,
    target: *mut Enabled,
) -> Return {
    with_link("nvmlDeviceGetNvLinkState", device, link, |gpu| {
        let up = !gpu.links_down.contains(&link);
        // SAFETY: the caller vouches for the place.
        unsafe { put(target, up.into()) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetNvLinkErrorCounter(
    device: Device,
    link: c_uint,
    counter: c_uint,
    target: *mut c_ulonglong,
) -> Return {
    with_link("nvmlDeviceGetNvLinkErrorCounter", device, link, |gpu| {
        let errors = gpu.link_errors.get(&link).copied().unwrap_or_default();
        let count = match counter {
            REPLAY => errors,
            other if other < COUNTERS => 0,
            _ => return Err(INVALID_ARGUMENT),
        };
        // SAFETY: the caller vouches for the place.
        unsafe { put(target, count) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetNvLinkVersion(
    device: Device,
    link: c_uint,
    target: *mut c_uint,
) -> Return {
    with_link("nvmlDeviceGetNvLinkVersion", device, link, |gpu| {
        let version = if gpu.facts().fabric { 4 } else { 3 };
        // SAFETY: the caller vouches for the place.
        unsafe { put(target, version) }
    })
}

fn with_link(
    call: &str,
    device: Device,
    link: c_uint,
    answer: impl FnOnce(&Gpu) -> Result<(), Return>,
) -> Return {
    returned(enter_gpu(call, device).and_then(|(state, place)| {
        let gpu = state.gpus.get(place).ok_or(INVALID_ARGUMENT)?;
        if link >= gpu.facts().nvlinks {
            return Err(NOT_SUPPORTED);
        }
        answer(gpu)
    }))
}
