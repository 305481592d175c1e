// SPDX-License-Identifier: Apache-2.0
//! How fast lines of a kernel log are understood, and whether any line at all can bring the reader down.
//!
//! The lines are those of the reader's own tests. First they are read as they are, for the throughput; then so many more are
//! made of them by taking their words, numbers and brackets apart and putting them together wrongly, and are read, judged and
//! grouped. The same seed makes the same lines.

use std::hint::black_box;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use serde::Serialize;
use steadfast_health::kernel_log::KernelLog;
use steadfast_health::xid::{Grouping, assess};
use steadfast_sim::Random;

use super::waiting::{heed_interrupts, not_interrupted, now_ns};
use super::{processes, report};
use crate::failure::Failure;

const SAMPLES: [&str; 3] = [
    include_str!("../../../health/testdata/gpu_lines.txt"),
    include_str!("../../../health/testdata/headers.txt"),
    include_str!("../../../health/testdata/system_lines.txt"),
];
/// Lines that are read for the throughput, at most.
const TIMED: u64 = 500_000;
/// Lines that one reader reads, as long as a log may go on.
const ONE_LOG: u64 = 4_096;
/// A line is changed in so many places at most.
const CHANGES: u64 = 6;
/// What lines are broken with.
const NASTY: [&[u8]; 16] = [
    b"",
    b"\0",
    b"\n",
    b"\xff\xfe",
    b"\xf0\x9f\x92\xa5",
    b"18446744073709551616",
    b"-1",
    b"4294967295",
    b"ffffffff",
    b"0x",
    b"(PCI:",
    b"<",
    b"]",
    b"NVRM: Xid ",
    b", pid=",
    b"SXid (PCI:ffff:ff:1f.7): 99999",
];

/// What is to be measured.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    pub(crate) inputs: u64,
    pub(crate) seed: u64,
    pub(crate) json: bool,
}

#[derive(Debug, Serialize)]
struct Report {
    samples: usize,
    load: String,
    lines_per_second: f64,
    megabytes_per_second: f64,
    inputs: u64,
    seed: u64,
    seconds: f64,
    /// How many of the broken lines still said something.
    understood: u64,
    /// A line that has brought the reader down, if one has.
    fatal: Option<String>,
}

/// Measures and reports. Says whether no line has brought the reader down.
pub(crate) fn run(options: &Options, out: &mut impl Write) -> Result<bool, Failure> {
    heed_interrupts()?;
    let samples: Vec<&[u8]> = SAMPLES
        .iter()
        .flat_map(|text| text.lines())
        .filter_map(|line| line.strip_prefix("> "))
        .map(str::as_bytes)
        .collect();
    let load = processes::load();
    let (lines_per_second, megabytes_per_second) = throughput(&samples, TIMED.min(options.inputs));
    let began = now_ns();
    let (understood, fatal) = break_lines(&samples, options)?;
    let report = Report {
        samples: samples.len(),
        load,
        lines_per_second,
        megabytes_per_second,
        inputs: options.inputs,
        seed: options.seed,
        seconds: seconds_since(began),
        understood,
        fatal,
    };
    report::write(&report, options.json, out, |out| {
        writeln!(
            out,
            "{:.0} lines/s ({:.0} MB/s) on one core, of {} samples; load {}",
            report.lines_per_second, report.megabytes_per_second, report.samples, report.load
        )?;
        match &report.fatal {
            None => writeln!(
                out,
                "{} broken lines in {:.0} s (seed {}): {} still said something, none brought the reader down",
                report.inputs, report.seconds, report.seed, report.understood
            ),
            Some(line) => writeln!(out, "this line brought the reader down: {line}"),
        }
    })?;
    Ok(report.fatal.is_none())
}

fn seconds_since(began: u64) -> f64 {
    Duration::from_nanos(now_ns().saturating_sub(began)).as_secs_f64()
}

#[expect(clippy::cast_precision_loss, reason = "rates, to be read by people")]
fn throughput(samples: &[&[u8]], lines: u64) -> (f64, f64) {
    let (mut log, mut bytes) = (KernelLog::new(), 0_usize);
    let began = now_ns();
    for (_, line) in (0..lines).zip(samples.iter().cycle()) {
        bytes += line.len();
        black_box(log.push(line));
    }
    let seconds = seconds_since(began).max(1e-9);
    (lines as f64 / seconds, bytes as f64 / seconds / 1e6)
}

/// How many still said something, and the first that was too much.
fn break_lines(samples: &[&[u8]], options: &Options) -> Result<(u64, Option<String>), Failure> {
    let mut random = Random::new(options.seed);
    let mut understood = 0;
    let (mut line, mut done) = (Vec::new(), 0);
    while done < options.inputs {
        not_interrupted()?;
        let (mut log, mut grouping) = (KernelLog::new(), Grouping::default());
        for _ in 0..ONE_LOG.min(options.inputs - done) {
            broken(&mut line, samples, &mut random);
            let read = catch_unwind(AssertUnwindSafe(|| {
                let event = log.push(&line)?;
                black_box(assess(&event, None));
                black_box(grouping.place(&event).incident);
                black_box(event.fields().len());
                Some(event.title().len())
            }));
            match read {
                Ok(said) => understood += u64::from(said.is_some()),
                Err(_) => return Ok((understood, Some(line.escape_ascii().to_string()))),
            }
            done += 1;
        }
    }
    Ok((understood, None))
}

/// A line made of others: parts of them are swapped, doubled, left out, cut short, or replaced by what readers do not like.
fn broken(line: &mut Vec<u8>, samples: &[&[u8]], random: &mut Random) {
    line.clear();
    line.extend_from_slice(one_of(samples, random));
    for _ in 0..=random.below(CHANGES) {
        let (from, to) = part(line, random);
        let other = one_of(samples, random);
        let (begin, end) = part(other, random);
        let with: Vec<u8> = match random.below(8) {
            0 => Vec::new(),
            1 => line[from..to].repeat(2),
            2 | 3 => other[begin..end].to_vec(),
            4 => one_of(&NASTY, random).to_vec(),
            5 => vec![random.draw().to_le_bytes()[0]],
            6 => number(&line[from..to], random),
            _ => {
                line.truncate(to);
                continue;
            }
        };
        line.splice(from..to, with);
    }
}

fn one_of<'a>(all: &[&'a [u8]], random: &mut Random) -> &'a [u8] {
    let index = usize::try_from(random.below(all.len() as u64)).unwrap_or(0);
    all.get(index).copied().unwrap_or_default()
}

/// A word of the line, a few of them, or a few bytes.
fn part(line: &[u8], random: &mut Random) -> (usize, usize) {
    let length = line.len() as u64;
    let place = |random: &mut Random| usize::try_from(random.below(length + 1)).unwrap_or(0);
    let (mut from, mut to) = (place(random), place(random));
    if from > to {
        (from, to) = (to, from);
    }
    if random.chance(70) {
        let inside = |byte: &u8| byte.is_ascii_alphanumeric();
        from -= line[..from]
            .iter()
            .rev()
            .take_while(|byte| inside(byte))
            .count();
        let word = line[from..].iter().take_while(|byte| inside(byte)).count();
        to = from + word.max(1).min(line.len() - from);
    }
    (from, to)
}

/// The same digits with one of them changed, or many more of them.
fn number(text: &[u8], random: &mut Random) -> Vec<u8> {
    let digit = b'0' + u8::try_from(random.below(10)).unwrap_or(0);
    let mut digits = text.to_vec();
    match digits.iter_mut().find(|byte| byte.is_ascii_digit()) {
        Some(place) if random.chance(50) => *place = digit,
        _ => digits.extend(std::iter::repeat_n(digit, 1 + usize::from(digit))),
    }
    digits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_broken_line_brings_the_reader_down_and_a_seed_means_one_run() {
        let options = Options {
            inputs: 20_000,
            seed: 7,
            json: true,
        };
        let once = || {
            let mut out = Vec::new();
            assert!(run(&options, &mut out).unwrap());
            let report: serde_json::Value = serde_json::from_slice(&out).unwrap();
            report["understood"].as_u64().unwrap()
        };
        let understood = once();
        assert!((1_000..20_000).contains(&understood), "{understood}");
        assert_eq!(once(), understood);
    }
}
