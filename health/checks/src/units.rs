// SPDX-License-Identifier: Apache-2.0
//! Sizes and durations, as people write and read them.

use std::time::Duration;

const SIZES: [(&str, u64); 5] = [
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("B", 1),
];

const TIMES: [(&str, u64); 5] = [
    ("d", 86_400_000),
    ("h", 3_600_000),
    ("m", 60_000),
    ("s", 1000),
    ("ms", 1),
];

/// Bytes of a text such as `500MiB`, `2 TiB` or `4096`.
pub(crate) fn parse_size(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits = text.trim_end_matches(|character: char| !character.is_ascii_digit());
    let unit = text.get(digits.len()..)?.trim();
    let number: u64 = digits.parse().ok()?;
    let name = if unit.is_empty() { "B" } else { unit };
    let (_, factor) = SIZES
        .iter()
        .find(|(known, _)| known.eq_ignore_ascii_case(name))?;
    number.checked_mul(*factor)
}

/// Bytes, in the largest unit that leaves a number above one.
pub(crate) fn show_size(bytes: u64) -> String {
    let (unit, factor) = SIZES
        .into_iter()
        .find(|(_, factor)| bytes >= *factor)
        .unwrap_or(("B", 1));
    let whole = bytes / factor;
    let tenth = u128::from(bytes % factor) * 10 / u128::from(factor);
    if tenth == 0 || whole >= 100 {
        format!("{whole} {unit}")
    } else {
        format!("{whole}.{tenth} {unit}")
    }
}

/// A text such as `90s`, `1h30m` or `500ms`; a bare number is seconds.
pub(crate) fn parse_duration(text: &str) -> Option<Duration> {
    let text = text.trim();
    if let Ok(seconds) = text.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let (mut rest, mut total) = (text, 0_u64);
    while !rest.is_empty() {
        let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let (number, after) = rest.split_at(digits);
        let letters = after.len()
            - after
                .trim_start_matches(|c: char| c.is_ascii_alphabetic())
                .len();
        let (unit, after) = after.split_at(letters);
        let (_, factor) = TIMES.iter().find(|(known, _)| *known == unit)?;
        let number: u64 = number.parse().ok()?;
        total = total.checked_add(number.checked_mul(*factor)?)?;
        rest = after;
    }
    (!text.is_empty()).then(|| Duration::from_millis(total))
}

/// A duration in its two largest units.
pub(crate) fn show_duration(duration: Duration) -> String {
    let mut rest = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let mut parts = Vec::new();
    for (unit, factor) in TIMES {
        let count = rest / factor;
        // Milliseconds beside whole minutes say nothing.
        if count > 0 && parts.len() < 2 && (unit != "ms" || parts.is_empty()) {
            parts.push(format!("{count}{unit}"));
            rest %= factor;
        } else if !parts.is_empty() {
            break;
        }
    }
    if parts.is_empty() {
        return "0s".to_owned();
    }
    parts.concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("500MiB", 500 << 20),
            ("2 tib", 2 << 40),
        ] {
            assert_eq!(parse_size(text), Some(bytes), "{text}");
        }
        for text in ["", "MiB", "5MB", "-1", "1.5GiB", "99999999999999TiB"] {
            assert_eq!(parse_size(text), None, "{text}");
        }
        let shown = [0, 1023, 1536, 500 << 20, 1 << 40, u64::MAX].map(show_size);
        assert_eq!(
            shown,
            [
                "0 B",
                "1023 B",
                "1.5 KiB",
                "500 MiB",
                "1 TiB",
                "16777215 TiB"
            ]
        );
    }

    #[test]
    fn durations() {
        for (text, milliseconds) in [
            ("0", 0),
            ("90", 90_000),
            ("1h30m", 5_400_000),
            ("500ms", 500),
        ] {
            let expected = Some(Duration::from_millis(milliseconds));
            assert_eq!(parse_duration(text), expected, "{text}");
        }
        for text in ["", "h", "5 m", "5x", "-3s", "1.5s", "99999999999999999d"] {
            assert_eq!(parse_duration(text), None, "{text}");
        }
        let shown = [0, 20, 1500, 60_000, 5_400_000, 90_061_000]
            .map(|milliseconds| show_duration(Duration::from_millis(milliseconds)));
        assert_eq!(shown, ["0s", "20ms", "1s", "1m", "1h30m", "1d1h"]);
    }
}
