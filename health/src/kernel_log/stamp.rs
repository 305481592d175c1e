// SPDX-License-Identifier: Apache-2.0
//! The times that stand before lines, in all their forms.

use std::time::Duration;

use super::scan::Scan;

/// When a line was logged, on the clock that the line was written with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stamp {
    /// Since the machine started.
    SinceBoot(Duration),
    /// Since 1970 by the wall clock, as written: no time zone is taken into account, and a form without a year counts
    /// from the beginning of 1972. Good for the time between two lines of one log, and for nothing else.
    Wall(Duration),
}

const MONTHS: [&str; 12] = [
    "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
];
const WEEKDAYS: [&str; 7] = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];

/// [`Stamp::NO_YEAR`] for reckoning.
const NO_YEAR: u64 = Stamp::NO_YEAR.unsigned_abs() as u64;

impl Stamp {
    /// The year of forms that have none: a leap year, for 29 February.
    pub const NO_YEAR: i16 = 1972;

    /// The time between two lines, whichever came first; absent if they are written with different clocks.
    pub fn distance(self, other: Self) -> Option<Duration> {
        match (self, other) {
            (Self::SinceBoot(one), Self::SinceBoot(two)) | (Self::Wall(one), Self::Wall(two)) => {
                Some(one.abs_diff(two))
            }
            _ => None,
        }
    }
}

/// `123.456789` or `123`: seconds since the machine started.
pub(super) fn seconds(scan: &mut Scan<'_>) -> Option<Duration> {
    let mut ahead = *scan;
    let whole: u64 = ahead.number()?;
    let fraction = fraction(&mut ahead, &["."]);
    *scan = ahead;
    Duration::from_secs(whole).checked_add(fraction)
}

/// `Mon Jul 25 16:46:04 2022`, as `dmesg -T` writes.
pub(super) fn dmesg_date(scan: &mut Scan<'_>) -> Option<Duration> {
    let mut ahead = *scan;
    weekday(&mut ahead)?;
    let (month, day) = month_day(&mut ahead)?;
    let time = clock(&mut ahead)?;
    ahead.blanks();
    let year = ahead.number()?;
    *scan = ahead;
    wall(year, month, day, time)
}

/// `Jan 10 13:04:04` with or without fraction, as syslog and the journal write.
pub(super) fn syslog_date(scan: &mut Scan<'_>) -> Option<Duration> {
    let mut ahead = *scan;
    let (month, day) = month_day(&mut ahead)?;
    let time = clock(&mut ahead)?;
    ahead.eat(" ").then_some(())?;
    *scan = ahead;
    wall(NO_YEAR, month, day, time)
}

/// `2025-01-21T04:41:44.283302+00:00`, or the journal's `Tue 2025-01-21 04:41:44 UTC`; and whether the fraction
/// stands behind a comma, which only `dmesg` does.
pub(super) fn iso_date(scan: &mut Scan<'_>) -> Option<(Duration, bool)> {
    let mut ahead = *scan;
    let named_day = weekday(&mut ahead).is_some();
    let year: u64 = ahead.number()?;
    ahead.eat("-").then_some(())?;
    let month: u64 = ahead.number()?;
    ahead.eat("-").then_some(())?;
    let day = ahead.number()?;
    (ahead.eat("T") || ahead.eat(" ")).then_some(())?;
    let comma = ahead.rest().get(8..9) == Some(",");
    let time = clock(&mut ahead)?;
    if named_day {
        ahead.eat(" ").then_some(())?;
    }
    let _zone = ahead.up_to(&[' ']);
    ahead.eat(" ").then_some(())?;
    *scan = ahead;
    Some((wall(year, month, day, time)?, comma))
}

fn weekday(scan: &mut Scan<'_>) -> Option<()> {
    WEEKDAYS.iter().any(|day| scan.eat(day)).then_some(())?;
    scan.eat(" ").then_some(())
}

fn month_day(scan: &mut Scan<'_>) -> Option<(u64, u64)> {
    let month = (1..).zip(MONTHS).find(|(_, name)| scan.eat(name))?.0;
    scan.blanks();
    let day = scan.number()?;
    scan.eat(" ").then_some((month, day))
}

fn clock(scan: &mut Scan<'_>) -> Option<Duration> {
    let hour: u64 = scan.number().filter(|hour| *hour < 24)?;
    scan.eat(":").then_some(())?;
    let minute: u64 = scan.number().filter(|minute| *minute < 60)?;
    scan.eat(":").then_some(())?;
    let second: u64 = scan.number().filter(|second| *second < 61)?;
    let fraction = fraction(scan, &[".", ","]);
    Duration::from_secs(hour * 3600 + minute * 60 + second).checked_add(fraction)
}

fn fraction(scan: &mut Scan<'_>, marks: &[&str]) -> Duration {
    let mut ahead = *scan;
    if !marks.iter().any(|mark| ahead.eat(mark)) {
        return Duration::ZERO;
    }
    let before = ahead.rest().len();
    let Some(number) = ahead.number::<u64>() else {
        return Duration::ZERO;
    };
    let digits = before - ahead.rest().len();
    *scan = ahead;
    let scale = 10_u64.checked_pow(u32::try_from(9_usize.saturating_sub(digits)).unwrap_or(0));
    Duration::from_nanos(number.saturating_mul(scale.unwrap_or(1)).min(999_999_999))
}

fn wall(year: u64, month: u64, day: u64, time: Duration) -> Option<Duration> {
    let sane =
        (1970..10_000).contains(&year) && (1..=12).contains(&month) && (1..=31).contains(&day);
    sane.then_some(())?;
    // Years begin in March here, so that the leap day is their last one.
    let (year, month) = if month > 2 {
        (year, month - 3)
    } else {
        (year - 1, month + 9)
    };
    let days = year * 365 + year / 4 - year / 100 + year / 400 + (month * 153 + 2) / 5 + day - 1;
    let since_1970 = days.checked_sub(719_468)?;
    Duration::from_secs(since_1970 * 86_400).checked_add(time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_forms_give_the_same_instant() {
        let iso =
            |text| iso_date(&mut Scan::new(text)).map(|(time, comma)| (time.as_nanos(), comma));
        let nanos = 1_737_434_504_283_302_000;
        assert_eq!(
            iso("2025-01-21T04:41:44,283302+00:00 x"),
            Some((nanos, true))
        );
        assert_eq!(iso("2025-01-21T04:41:44.283302Z x"), Some((nanos, false)));
        let whole = 1_737_434_504_000_000_000;
        assert_eq!(iso("Tue 2025-01-21 04:41:44 UTC x"), Some((whole, false)));
        let dmesg = dmesg_date(&mut Scan::new("Tue Jan 21 04:41:44 2025"));
        assert_eq!(dmesg.map(|time| time.as_nanos()), Some(whole));
        let day = |text| syslog_date(&mut Scan::new(text)).map(|time| time.as_secs());
        assert_eq!(day("Jan  1 00:00:09 x"), Some(2 * 365 * 86_400 + 9));
        assert_eq!(
            day("Mar  1 00:00:09.5 x"),
            Some((2 * 365 + 60) * 86_400 + 9)
        );
        for text in [
            "",
            "Foo 1 00:00:00 ",
            "Jan 0 00:00:00 ",
            "Jan 1 24:00:00 ",
            "Jan 1 0:0",
        ] {
            assert_eq!(day(text), None, "{text}");
        }
    }
}
