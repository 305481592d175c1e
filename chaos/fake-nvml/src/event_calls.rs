// SPDX-License-Identifier: Apache-2.0
//! Calls about events.

#![expect(unsafe_code, reason = "a C interface is made of pointers")]

use std::ffi::{c_uint, c_ulonglong};
use std::time::{Duration, Instant};

use crate::abi::{Device, EventData, EventSet, GPU_IS_LOST, NOT_SUPPORTED, Return, TIMEOUT};
use crate::events;
use crate::state::{Event, current, enter_gpu, enter_open};
use crate::system_calls::{put, returned};

/// All kinds that the header names up to driver 570.
const SUPPORTED: u64 = 0xffff;
/// How often a wait looks for events.
const LOOK_EVERY: Duration = Duration::from_millis(5);
const NO_INSTANCE: c_uint = c_uint::MAX;

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlEventSetCreate(target: *mut EventSet) -> Return {
    returned(enter_open("nvmlEventSetCreate", None).and_then(|state| {
        let set = std::ptr::without_provenance_mut(events::create(&state));
        // SAFETY: the caller vouches for the place.
        unsafe { put(target, set) }
    }))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceRegisterEvents(
    device: Device,
    kinds: c_ulonglong,
    set: EventSet,
) -> Return {
    returned(
        enter_gpu("nvmlDeviceRegisterEvents", device).and_then(|(_, gpu)| {
            if kinds & !SUPPORTED != 0 {
                return Err(NOT_SUPPORTED);
            }
            events::register(set.addr(), gpu, kinds)
        }),
    )
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetSupportedEventTypes(
    device: Device,
    target: *mut c_ulonglong,
) -> Return {
    returned(
        enter_gpu("nvmlDeviceGetSupportedEventTypes", device).and_then(|_| {
            // SAFETY: the caller vouches for the place.
            unsafe { put(target, SUPPORTED) }
        }),
    )
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlEventSetWait_v2(
    set: EventSet,
    target: *mut EventData,
    timeout_ms: c_uint,
) -> Return {
    returned(wait(set, timeout_ms).and_then(|event| {
        let data = EventData {
            device: std::ptr::without_provenance_mut(event.gpu + 1),
            kind: event.kind,
            data: event.xid,
            gpu_instance: NO_INSTANCE,
            compute_instance: NO_INSTANCE,
        };
        // SAFETY: the caller vouches for the place.
        unsafe { put(target, data) }
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlEventSetWait(
    set: EventSet,
    target: *mut EventData,
    timeout_ms: c_uint,
) -> Return {
    // SAFETY: the same contract.
    unsafe { nvmlEventSetWait_v2(set, target, timeout_ms) }
}

#[unsafe(no_mangle)]
extern "C" fn nvmlEventSetFree(set: EventSet) -> Return {
    returned(events::free(set.addr()))
}

fn wait(set: EventSet, timeout_ms: c_uint) -> Result<Event, Return> {
    let call = "nvmlEventSetWait_v2";
    let deadline = Instant::now() + Duration::from_millis(timeout_ms.into());
    for gpu in events::gpus(set.addr())? {
        enter_open(call, Some(gpu))?;
    }
    loop {
        let state = current()?;
        if let Some(event) = events::next(set.addr(), &state)? {
            return Ok(event);
        }
        let mut gpus = events::gpus(set.addr())?.into_iter();
        if gpus.any(|gpu| state.gpus.get(gpu).is_none_or(|gpu| gpu.lost)) {
            return Err(GPU_IS_LOST);
        }
        if Instant::now() >= deadline {
            return Err(TIMEOUT);
        }
        std::thread::park_timeout(LOOK_EVERY);
    }
}
