// SPDX-License-Identifier: Apache-2.0
//! Real-time signals, for which there are numbers and no names.
#![expect(
    unsafe_code,
    reason = "the library has no safe way from a number to a real-time signal"
)]

use rustix::process::Signal;

/// What the C library leaves to programs: it keeps 32 and 33 for itself.
const FREE: std::ops::RangeInclusive<i32> = 34..=64;

/// The signal with this number, if it is one that programs may use.
pub(super) fn signal(number: i32) -> Option<Signal> {
    if !FREE.contains(&number) {
        return None;
    }
    // SAFETY: the kernel knows signals 1 to 64, and the number is none of those that the C library keeps for itself.
    Some(unsafe { Signal::from_raw_unchecked(number) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_programs_may_use_is_a_signal() {
        for number in [i32::MIN, 0, 9, 32, 33, 65] {
            assert_eq!(signal(number), None, "{number}");
        }
        assert_eq!(signal(44).map(Signal::as_raw), Some(44));
    }
}
