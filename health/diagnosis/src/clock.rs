// SPDX-License-Identifier: Apache-2.0
//! The times that stand in lines, in all their forms, on one line: seconds since the year began, by the clock of whoever
//! wrote them. Good for the order of lines, and for nothing else.

use std::sync::LazyLock;

use regex::Regex;

use crate::pattern::{compile, group, number};

/// A time is looked for that far into a line.
const LOOK_BYTES: usize = 120;

static TIME: LazyLock<Regex> = LazyLock::new(|| {
    compile(
        r"(?:(?P<year>\d{4})[-/_](?P<month>\d{2})[-/_](?P<day>\d{2})[T _]|(?P<month_a>\d{2})/(?P<day_a>\d{2})(?:/\d{2,4})?[ _]|(?P<name>Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)\s+(?P<day_b>\d{1,2})\s|\b[IWEFCD](?P<both>\d{3,4})\s|\b)(?P<hour>[01]\d|2[0-3]):(?P<minute>[0-5]\d):(?P<second>[0-6]\d)(?:[.,](?P<fraction>\d{1,9}))?",
    )
});

const MONTHS: [&str; 12] = [
    "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
];
/// Days before each month; a leap year, for 29 February.
const BEFORE: [u32; 12] = [0, 31, 60, 91, 121, 152, 182, 213, 244, 274, 305, 335];

/// When a line was written.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Moment {
    /// Since the year began, or since midnight.
    pub(crate) seconds: f64,
    /// Whether the line says the day too.
    pub(crate) is_dated: bool,
}

impl Moment {
    /// How much later than `other` it is; absent where only one of the two says the day.
    pub(crate) fn since(self, other: Self) -> Option<f64> {
        (self.is_dated == other.is_dated).then_some(self.seconds - other.seconds)
    }

    /// By a clock that was that much ahead.
    pub(crate) fn corrected(self, ahead_s: f64) -> Self {
        Self {
            seconds: self.seconds - ahead_s,
            ..self
        }
    }
}

/// The first time in a line.
pub(crate) fn find(line: &str) -> Option<Moment> {
    let mut end = line.len().min(LOOK_BYTES);
    while !line.is_char_boundary(end) {
        end -= 1;
    }
    let found = TIME.captures(&line[..end])?;
    let clock = f64::from(number::<u32>(&found, "hour")?) * 3600.0
        + f64::from(number::<u32>(&found, "minute")?) * 60.0
        + f64::from(number::<u32>(&found, "second")?);
    let fraction = group(&found, "fraction")
        .and_then(|digits| format!("0.{digits}").parse::<f64>().ok())
        .unwrap_or_default();
    let day = day_of_year(&found);
    Some(Moment {
        seconds: f64::from(day.unwrap_or_default()) * 86_400.0 + clock + fraction,
        is_dated: day.is_some(),
    })
}

fn day_of_year(found: &regex::Captures<'_>) -> Option<u32> {
    let (month, day): (u32, u32) = if let Some(month) = number(found, "month") {
        (month, number(found, "day")?)
    } else if let Some(month) = number(found, "month_a") {
        (month, number(found, "day_a")?)
    } else if let Some(name) = group(found, "name") {
        let month = (1..).zip(MONTHS).find(|(_, month)| *month == name)?.0;
        (month, number(found, "day_b")?)
    } else {
        let both: u32 = number(found, "both")?;
        (both / 100, both % 100)
    };
    let index = usize::try_from(month.checked_sub(1)?).ok()?;
    (1..=31).contains(&day).then_some(())?;
    Some(BEFORE.get(index)? + day - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_forms_give_the_same_moment() {
        let expected = find("2025-06-14T22:36:09.5Z x").unwrap();
        assert!(expected.is_dated);
        for line in [
            "2025-06-14 22:36:09,500 INFO x",
            "[2025-06-14 22:36:09.500] x",
            "[rank0]:[E614 22:36:09.500000000 ProcessGroupNCCL.cpp:632] x",
            "W0614 22:36:09.500000 4410 torch/x.py:897] x",
            "Jun 14 22:36:09.5 node-a kernel: x",
            "[Sat Jun 14 22:36:09.5 2025] x",
            "06/14/2025 22:36:09.5 - INFO - x",
            "  time      : 2025-06-14_22:36:09.5",
            "2025/06/14 22:36:09.5 x",
        ] {
            assert_eq!(find(line), Some(expected), "{line}");
        }
        let clock = find("[22:36:09.5] x").unwrap();
        assert!(!clock.is_dated);
        assert_eq!(clock.since(expected), None);
        for line in ["", "no time", "25:00:00", "é".repeat(200).as_str()] {
            assert_eq!(find(line), None, "{line}");
        }
    }
}
