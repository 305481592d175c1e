// SPDX-License-Identifier: Apache-2.0
//! Lengths of time as people say them.

use std::time::Duration;

const UNITS: [(&str, u64); 4] = [("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)];

/// Its two largest units; below ten seconds, tenths of seconds.
pub(crate) fn rounded(time: Duration) -> String {
    if time < Duration::from_secs(10) {
        let tenths = (time.as_millis() + 50) / 100;
        return match (tenths / 10, tenths % 10) {
            (seconds, 0) => format!("{seconds} s"),
            (seconds, tenths) => format!("{seconds}.{tenths} s"),
        };
    }
    let mut left = time.as_secs();
    let mut parts = Vec::new();
    for (unit, length) in UNITS {
        let count = left / length;
        left %= length;
        if count > 0 {
            parts.push(format!("{count} {unit}"));
        } else if !parts.is_empty() {
            break;
        }
        if parts.len() == 2 {
            break;
        }
    }
    parts.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_units_say_enough() {
        for (milliseconds, text) in [
            (0, "0 s"),
            (40, "0 s"),
            (1_249, "1.2 s"),
            (9_999, "10 s"),
            (59_999, "59 s"),
            (928_000, "15 min 28 s"),
            (43_200_000, "12 h"),
            (43_201_000, "12 h"),
            (277_200_000, "3 d 5 h"),
        ] {
            assert_eq!(rounded(Duration::from_millis(milliseconds)), text);
        }
    }
}
