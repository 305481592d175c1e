// SPDX-License-Identifier: Apache-2.0
//! What the kernel says about its wall clock: whether somebody keeps it, and how far it may be wrong.

#![expect(unsafe_code, reason = "no safe wrapper of `adjtimex` is in use here")]

use std::io;
use std::mem::MaybeUninit;

/// How the kernel's wall clock is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KernelClock {
    /// Whether somebody keeps it, by NTP or PTP.
    pub synchronised: bool,
    /// Estimated error in microseconds.
    pub estimated_error_us: u64,
    /// Largest possible error in microseconds.
    pub maximum_error_us: u64,
}

/// Asks the kernel; changes nothing.
///
/// # Errors
///
/// When the kernel refuses, as some sandboxes do.
pub fn read() -> io::Result<KernelClock> {
    let mut timex = MaybeUninit::<libc::timex>::zeroed();
    // SAFETY: all fields are integers, for which zero is a value. A mode of zero sets nothing.
    let timex = unsafe { timex.assume_init_mut() };
    // SAFETY: the pointer is to a whole structure, which the kernel fills and does not keep.
    let state = unsafe { libc::adjtimex(timex) };
    if state < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(KernelClock {
        synchronised: timex.status & libc::STA_UNSYNC == 0,
        estimated_error_us: u64::try_from(timex.esterror).unwrap_or(0),
        maximum_error_us: u64::try_from(timex.maxerror).unwrap_or(0),
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_kernel_answers_or_refuses() {
        match super::read() {
            Ok(clock) => assert!(clock.maximum_error_us > 0 || clock.synchronised),
            Err(error) => assert!(error.raw_os_error().is_some()),
        }
    }
}
