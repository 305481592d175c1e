// SPDX-License-Identifier: Apache-2.0
//! Durations as people write them: `30s`, `1m30s`, `500ms`, or a bare number of seconds.

use std::time::Duration;

/// Longest duration that an option takes: a year, far from every overflow.
const LONGEST: Duration = Duration::from_hours(365 * 24);

/// Units with their length in seconds.
const UNITS: [(&str, f64); 5] = [
    ("d", 86_400.0),
    ("h", 3600.0),
    ("m", 60.0),
    ("s", 1.0),
    ("ms", 0.001),
];

/// Reads a duration of at most a year. The error says what is wrong with the text.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let text = text.trim();
    if text.is_empty() {
        return Err("the duration is empty".to_owned());
    }
    let total = match text.parse::<f64>() {
        Ok(seconds) => from_seconds(seconds)?,
        Err(_) => from_parts(text)?,
    };
    if total > LONGEST {
        return Err("longer than a year".to_owned());
    }
    Ok(total)
}

fn from_seconds(seconds: f64) -> Result<Duration, String> {
    if seconds < 0.0 {
        return Err("a duration cannot be negative".to_owned());
    }
    Duration::try_from_secs_f64(seconds).map_err(|_| "not a duration".to_owned())
}

fn from_parts(text: &str) -> Result<Duration, String> {
    let mut total = Duration::ZERO;
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(rest.len());
        let (number, tail) = rest.split_at(digits);
        let letters = tail
            .find(|c: char| c.is_ascii_digit() || c.is_whitespace())
            .unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(letters);
        let number: f64 = number
            .parse()
            .map_err(|_| "not a duration such as `30s`, `1m30s` or `500ms`".to_owned())?;
        let (_, length) = UNITS
            .into_iter()
            .find(|(name, _)| *name == unit)
            .ok_or_else(|| unknown_unit(unit))?;
        total = total.saturating_add(from_seconds(number * length)?);
        rest = tail.trim_start();
    }
    Ok(total)
}

fn unknown_unit(unit: &str) -> String {
    if unit.is_empty() {
        "a number has no unit (ms, s, m, h or d)".to_owned()
    } else {
        format!("unknown unit `{unit}` (use ms, s, m, h or d)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_people_write() {
        for (text, milliseconds) in [
            ("30s", 30_000),
            ("1m30s", 90_000),
            ("1h 30m", 5_400_000),
            ("500ms", 500),
            ("1.5s", 1500),
            ("30", 30_000),
            ("0.25", 250),
            ("0", 0),
            ("2d", 172_800_000),
        ] {
            assert_eq!(
                parse(text),
                Ok(Duration::from_millis(milliseconds)),
                "{text}"
            );
        }
    }

    #[test]
    fn says_what_is_wrong() {
        for (text, reason) in [
            ("", "the duration is empty"),
            ("10x", "unknown unit `x` (use ms, s, m, h or d)"),
            ("1m30", "a number has no unit (ms, s, m, h or d)"),
            ("-5", "a duration cannot be negative"),
            ("soon", "not a duration such as `30s`, `1m30s` or `500ms`"),
            ("nan", "not a duration"),
            ("400d", "longer than a year"),
            ("1e99", "not a duration"),
        ] {
            assert_eq!(parse(text), Err(reason.to_owned()), "{text}");
        }
    }
}
