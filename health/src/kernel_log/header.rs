// SPDX-License-Identifier: Apache-2.0
//! What stands before a message: priority, number, time, host, program.

use std::time::Duration;

use super::scan::Scan;
use super::stamp::{self, Stamp};

/// What is known of a line beside its message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Importance, 0 (emergency) to 7 (debug).
    pub level: Option<u8>,
    /// Who logged it: 0 is the kernel itself, anything else wrote to the log from outside.
    pub facility: Option<u16>,
    /// Number of the record since the machine started.
    pub sequence: Option<u64>,
    /// Flag of a record: `-`, or `c` for a part of a line.
    pub flag: Option<char>,
    /// When.
    pub stamp: Option<Stamp>,
    /// Who wrote the line, as far as it says it.
    pub source: LineSource,
}

/// Who wrote a line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LineSource {
    /// The line does not say.
    #[default]
    Unsaid,
    /// The kernel, says the system log.
    Kernel,
    /// A program of this name, says the system log.
    Program(String),
}

impl Header {
    /// Priority as one number, as in the records of `/dev/kmsg`.
    pub fn priority(&self) -> Option<u16> {
        Some(self.facility? * 8 + u16::from(self.level?))
    }

    /// Whether something other than the kernel put the line there: a test, or a forger.
    pub fn injected(&self) -> bool {
        self.facility.is_some_and(|facility| facility != 0)
            || matches!(self.source, LineSource::Program(_))
    }
}

const FACILITIES: [&str; 12] = [
    "kern", "user", "mail", "daemon", "auth", "syslog", "lpr", "news", "uucp", "cron", "authpriv",
    "ftp",
];
const LEVELS: [&str; 8] = [
    "emerg", "alert", "crit", "err", "warn", "notice", "info", "debug",
];

/// Splits a record of `/dev/kmsg` at its semicolon: the header, and the text, still escaped.
pub(super) fn record(line: &str) -> Option<(Header, &str)> {
    let mut scan = Scan::new(line);
    let priority: u16 = scan.number()?;
    scan.eat(",").then_some(())?;
    let sequence = scan.number()?;
    scan.eat(",").then_some(())?;
    let micros = scan.number()?;
    scan.eat(",").then_some(())?;
    let mut flags = scan.until(";")?.chars();
    let header = Header {
        level: u8::try_from(priority % 8).ok(),
        facility: Some(priority / 8),
        sequence: Some(sequence),
        flag: flags.next(),
        stamp: Some(Stamp::SinceBoot(Duration::from_micros(micros))),
        source: LineSource::Unsaid,
    };
    Some((header, scan.rest()))
}

/// Takes everything that stands before the message. What `header` has already stays: the outermost says it truly.
pub(super) fn strip<'a>(header: &mut Header, text: &'a str) -> &'a str {
    let mut scan = Scan::new(text);
    // Each round takes at least one byte.
    while bracketed_priority(header, &mut scan)
        || bracketed_time(header, &mut scan)
        || decoded(header, &mut scan)
        || dated(header, &mut scan)
        || kernel_word(header, &mut scan)
    {}
    scan.rest()
}

/// `<4>`
fn bracketed_priority(header: &mut Header, scan: &mut Scan<'_>) -> bool {
    let mut ahead = *scan;
    if !ahead.eat("<") {
        return false;
    }
    let Some(priority) = ahead.number::<u16>() else {
        return false;
    };
    if !ahead.eat(">") {
        return false;
    }
    *scan = ahead;
    if header.facility.is_none() {
        header.facility = Some(priority / 8);
        header.level = u8::try_from(priority % 8).ok();
    }
    true
}

/// `[ 123.456789] `, `[Mon Jul 25 16:46:04 2022] `, and `[  T1234] ` (the caller)
fn bracketed_time(header: &mut Header, scan: &mut Scan<'_>) -> bool {
    let mut ahead = *scan;
    if !ahead.eat("[") {
        return false;
    }
    ahead.blanks();
    let stamp = if let Some(time) = stamp::seconds(&mut ahead) {
        Some(Stamp::SinceBoot(time))
    } else if let Some(time) = stamp::dmesg_date(&mut ahead) {
        Some(Stamp::Wall(time))
    } else if (ahead.eat("T") || ahead.eat("C")) && ahead.number::<u32>().is_some() {
        None
    } else {
        return false;
    };
    ahead.blanks();
    if !ahead.eat("]") {
        return false;
    }
    ahead.blanks();
    header.stamp = header.stamp.or(stamp);
    *scan = ahead;
    true
}

/// `kern  :warn  : `, as `dmesg --decode` writes.
fn decoded(header: &mut Header, scan: &mut Scan<'_>) -> bool {
    let mut ahead = *scan;
    let word = |scan: &mut Scan<'_>, words: &[&str]| {
        let name = scan.up_to(&[' ', ':']);
        scan.blanks();
        let found = words.iter().position(|word| *word == name)?;
        scan.eat(":").then_some(found)
    };
    let Some(facility) = word(&mut ahead, &FACILITIES) else {
        return false;
    };
    let Some(level) = word(&mut ahead, &LEVELS) else {
        return false;
    };
    ahead.blanks();
    *scan = ahead;
    if header.facility.is_none() {
        header.facility = u16::try_from(facility).ok();
        header.level = u8::try_from(level).ok();
    }
    // `dmesg` writes no host after a time.
    if let Some((time, _)) = stamp::iso_date(scan) {
        header.stamp = header.stamp.or(Some(Stamp::Wall(time)));
    }
    true
}

/// A date, and after it, unless `dmesg` wrote it, the host and the program.
fn dated(header: &mut Header, scan: &mut Scan<'_>) -> bool {
    let mut ahead = *scan;
    let (time, comma) = match stamp::iso_date(&mut ahead) {
        Some(found) => found,
        None => match stamp::syslog_date(&mut ahead) {
            Some(time) => (time, false),
            None => return false,
        },
    };
    header.stamp = header.stamp.or(Some(Stamp::Wall(time)));
    *scan = ahead;
    if comma {
        return true;
    }
    let _host = ahead.up_to(&[' ']);
    ahead.blanks();
    let program = ahead.up_to(&[' ', ':', '[']);
    if ahead.eat("[") && ahead.until("]").is_none() {
        return true;
    }
    if program.is_empty() || !ahead.eat(":") {
        return true;
    }
    ahead.blanks();
    if header.source == LineSource::Unsaid {
        header.source = match program {
            "kernel" => LineSource::Kernel,
            name => LineSource::Program(name.to_owned()),
        };
    }
    *scan = ahead;
    true
}

/// `kernel: ` or `HOST kernel: `
fn kernel_word(header: &mut Header, scan: &mut Scan<'_>) -> bool {
    let mut ahead = *scan;
    if !ahead.eat("kernel: ") {
        let host = ahead.up_to(&[' ']);
        if host.is_empty() || host.ends_with(':') || !ahead.eat(" kernel: ") {
            return false;
        }
    }
    if header.source == LineSource::Unsaid {
        header.source = LineSource::Kernel;
    }
    *scan = ahead;
    true
}
