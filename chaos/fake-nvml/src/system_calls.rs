// SPDX-License-Identifier: Apache-2.0
//! Calls about the library, the driver, and the GPUs that there are.

#![expect(unsafe_code, reason = "a C interface is made of pointers")]

use std::ffi::{CStr, c_char, c_int, c_uint};

use crate::abi::{
    Device, GPU_IS_LOST, INSUFFICIENT_SIZE, INVALID_ARGUMENT, NOT_FOUND, Return, SUCCESS,
};
use crate::state::{Gpu, enter, enter_open, open};

/// Turns a result into what C gets.
pub(crate) fn returned(result: Result<(), Return>) -> Return {
    result.err().unwrap_or(SUCCESS)
}

/// Writes an answer.
///
/// # Safety
///
/// `target` is null or can be written as a `T`, as the header asks of the caller.
pub(crate) unsafe fn put<T>(target: *mut T, value: T) -> Result<(), Return> {
    if target.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    // SAFETY: not null, and by contract a place for a `T`.
    unsafe { target.write(value) };
    Ok(())
}

/// Writes a text and its end.
///
/// # Safety
///
/// `target` is null or has room for `length` bytes.
pub(crate) unsafe fn put_text(
    target: *mut c_char,
    length: c_uint,
    text: &str,
) -> Result<(), Return> {
    if target.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    if text.len() >= length as usize {
        return Err(INSUFFICIENT_SIZE);
    }
    // SAFETY: there is room for the text and one byte more, checked above against the length that the caller vouches for.
    unsafe { target.copy_from_nonoverlapping(text.as_ptr().cast(), text.len()) };
    // SAFETY: within the same room.
    let end = unsafe { target.add(text.len()) };
    // SAFETY: as above.
    unsafe { end.write(0) };
    Ok(())
}

/// Reads a text.
///
/// # Safety
///
/// `text` is null or a C string.
unsafe fn get_text(text: *const c_char) -> Result<String, Return> {
    if text.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    // SAFETY: not null, and by contract a C string.
    let text = unsafe { CStr::from_ptr(text) };
    Ok(text.to_string_lossy().into_owned())
}

#[unsafe(no_mangle)]
extern "C" fn nvmlInit_v2() -> Return {
    returned(enter("nvmlInit_v2", None).map(|_| open(1)))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlInit() -> Return {
    nvmlInit_v2()
}

#[unsafe(no_mangle)]
extern "C" fn nvmlInitWithFlags(_flags: c_uint) -> Return {
    nvmlInit_v2()
}

#[unsafe(no_mangle)]
extern "C" fn nvmlShutdown() -> Return {
    returned(enter_open("nvmlShutdown", None).map(|_| open(-1)))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlErrorString(code: Return) -> *const c_char {
    match code {
        SUCCESS => c"Success".as_ptr(),
        GPU_IS_LOST => c"GPU is lost".as_ptr(),
        _ => c"Unknown Error".as_ptr(),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlSystemGetDriverVersion(target: *mut c_char, length: c_uint) -> Return {
    returned(
        enter_open("nvmlSystemGetDriverVersion", None).and_then(|state| {
            // SAFETY: the caller vouches for `length` bytes.
            unsafe { put_text(target, length, &state.driver) }
        }),
    )
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlSystemGetNVMLVersion(target: *mut c_char, length: c_uint) -> Return {
    returned(
        enter_open("nvmlSystemGetNVMLVersion", None).and_then(|state| {
            // SAFETY: the caller vouches for `length` bytes.
            unsafe { put_text(target, length, &format!("12.{}", state.driver)) }
        }),
    )
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlSystemGetCudaDriverVersion_v2(target: *mut c_int) -> Return {
    returned(
        enter_open("nvmlSystemGetCudaDriverVersion_v2", None).and_then(|_| {
            // SAFETY: the caller vouches for the place.
            unsafe { put(target, 12_080) }
        }),
    )
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetCount_v2(target: *mut c_uint) -> Return {
    returned(enter_open("nvmlDeviceGetCount_v2", None).and_then(|state| {
        let count = c_uint::try_from(state.gpus.len()).unwrap_or(c_uint::MAX);
        // SAFETY: the caller vouches for the place.
        unsafe { put(target, count) }
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetHandleByIndex_v2(index: c_uint, target: *mut Device) -> Return {
    let found = find(
        "nvmlDeviceGetHandleByIndex_v2",
        Some(index as usize),
        |place, _| place == index as usize,
        INVALID_ARGUMENT,
    );
    // SAFETY: the caller vouches for the place.
    returned(found.and_then(|device| unsafe { put(target, device) }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetHandleByUUID(uuid: *const c_char, target: *mut Device) -> Return {
    // SAFETY: the caller vouches for the text.
    let wanted = unsafe { get_text(uuid) };
    let found = wanted.and_then(|wanted| {
        let is_it = |place, gpu: &Gpu| uuid_of(place, gpu) == wanted;
        find("nvmlDeviceGetHandleByUUID", None, is_it, NOT_FOUND)
    });
    // SAFETY: the caller vouches for the place.
    returned(found.and_then(|device| unsafe { put(target, device) }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetHandleByPciBusId_v2(
    address: *const c_char,
    target: *mut Device,
) -> Return {
    // SAFETY: the caller vouches for the text.
    let wanted = unsafe { get_text(address) };
    let found = wanted.and_then(|wanted| {
        let is_it = |_, gpu: &Gpu| bus_id(gpu).eq_ignore_ascii_case(&wanted);
        find("nvmlDeviceGetHandleByPciBusId_v2", None, is_it, NOT_FOUND)
    });
    // SAFETY: the caller vouches for the place.
    returned(found.and_then(|device| unsafe { put(target, device) }))
}

fn find(
    call: &str,
    gpu: Option<usize>,
    is_it: impl Fn(usize, &Gpu) -> bool,
    otherwise: Return,
) -> Result<Device, Return> {
    let state = enter_open(call, gpu)?;
    let mut gpus = state.gpus.iter().enumerate();
    match gpus.find(|(place, gpu)| is_it(*place, gpu)) {
        Some((_, gpu)) if gpu.lost => Err(GPU_IS_LOST),
        Some((place, _)) => Ok(std::ptr::without_provenance_mut(place + 1)),
        None => Err(otherwise),
    }
}

/// The identity that is written for a GPU, or one that follows from its number.
pub(crate) fn uuid_of(place: usize, gpu: &Gpu) -> String {
    if gpu.uuid.is_empty() {
        format!("GPU-fa4e0000-0000-0000-0000-{place:012x}")
    } else {
        gpu.uuid.clone()
    }
}

/// The address as the library writes it.
pub(crate) fn bus_id(gpu: &Gpu) -> String {
    format!("{:08X}:{:02X}:00.0", gpu.domain, gpu.bus)
}
