// SPDX-License-Identifier: Apache-2.0

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::time::Instant;

use super::*;

const PATIENCE: Duration = Duration::from_secs(30);

fn clock() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    u64::try_from(now.tv_sec).unwrap() * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap()
}

fn line(follower: &mut Follower) -> (String, Option<u64>, Origin) {
    match follower.next(PATIENCE).unwrap() {
        Next::Line(line) => (
            String::from_utf8(line.bytes.clone()).unwrap(),
            line.position,
            line.origin(),
        ),
        other => panic!("{other:?}"),
    }
}

/// Gives what it is told to, one a read.
struct Script(VecDeque<Result<&'static str, Errno>>);

use rustix::io::Errno;

impl Read for Script {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self.0.pop_front().unwrap_or(Err(Errno::AGAIN)) {
            Ok(text) => {
                buffer[..text.len()].copy_from_slice(text.as_bytes());
                Ok(text.len())
            }
            Err(errno) => Err(errno.into()),
        }
    }
}

fn found(steps: &[Result<&'static str, Errno>]) -> Vec<Result<(u64, u64), bool>> {
    let mut records = Records::new(Script(steps.iter().copied().collect()));
    let mut all = Vec::new();
    loop {
        match records.read().unwrap() {
            Found::Line { position, lost, .. } => all.push(Ok((position.unwrap(), lost))),
            Found::Lost => all.push(Err(true)),
            Found::Nothing => return all,
        }
    }
}

#[test]
fn what_was_overwritten_is_counted_by_the_numbers() {
    let steps = [
        Ok("6,7,1,-;one"),
        Ok("6,8,2,-;two"),
        Err(Errno::PIPE),
        Ok("6,19,3,-;twelve later"),
        Err(Errno::INTR),
        Ok("6,20,4,-;next"),
    ];
    let seen = found(&steps);
    assert_eq!(seen, [Ok((7, 0)), Ok((8, 0)), Ok((19, 10)), Ok((20, 0))]);
}

#[test]
fn a_record_that_does_not_fit_is_a_gap_and_an_early_overrun_too() {
    let steps = [
        Err(Errno::PIPE),
        Ok("6,40,1,-;oldest"),
        Err(Errno::INVAL),
        Ok("6,42,1,-;after the large one"),
    ];
    assert_eq!(
        found(&steps),
        [Err(true), Ok((40, 0)), Err(true), Ok((42, 1))]
    );
}

#[test]
fn a_device_that_is_gone_is_an_error() {
    let mut records = Records::new(Script(VecDeque::from([Err(Errno::NODEV)])));
    assert!(records.read().is_err());
}

#[test]
fn a_pipe_outlives_its_writers_and_gives_whole_lines() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pipe");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &path,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
        0,
    )
    .unwrap();
    let mut follower = Follower::open(&path, clock).unwrap();
    assert_eq!(follower.next(Duration::ZERO).unwrap(), Next::Nothing);
    for part in ["a wh", "ole line\nand", " another\n"] {
        let mut writer = OpenOptions::new().write(true).open(&path).unwrap();
        writer.write_all(part.as_bytes()).unwrap();
    }
    assert_eq!(
        line(&mut follower),
        ("a whole line".to_owned(), None, Origin::Live)
    );
    assert_eq!(line(&mut follower).0, "and another");
}

#[test]
fn a_file_is_followed_over_rotation_and_cutting() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("kern.log");
    std::fs::write(&path, "old\nhalf").unwrap();
    let mut follower = Follower::open(&path, clock).unwrap();
    assert_eq!(
        line(&mut follower),
        ("old".to_owned(), Some(4), Origin::Backlog)
    );
    assert_eq!(follower.next(Duration::ZERO).unwrap(), Next::Nothing);
    let mut writer = OpenOptions::new().append(true).open(&path).unwrap();
    writer.write_all(b" and half\n").unwrap();
    assert_eq!(
        line(&mut follower),
        ("half and half".to_owned(), Some(18), Origin::Live)
    );
    std::fs::rename(&path, directory.path().join("kern.log.1")).unwrap();
    assert_eq!(follower.next(Duration::ZERO).unwrap(), Next::Nothing);
    std::fs::write(&path, "rotated\n").unwrap();
    assert_eq!(line(&mut follower).0, "rotated");
    File::create(&path).unwrap().write_all(b"cut\n").unwrap();
    assert_eq!(line(&mut follower).0, "cut");
}

#[test]
fn a_line_without_end_is_bounded() {
    let mut unended = Unended::default();
    let long = vec![b'x'; 3 * Unended::LONGEST];
    assert_eq!(unended.take(&long).0, None);
    let (line, taken) = unended.take(b"y\nz");
    assert_eq!((line.unwrap().len(), taken), (Unended::LONGEST, 2));
}

#[test]
fn a_live_line_is_placed_between_two_looks_however_its_clock_has_drifted() {
    let live = Line {
        bytes: Vec::new(),
        position: None,
        read_ns: 5_000,
        after_ns: 4_000,
    };
    let at = |nanos| live.logged_ns(Some(Duration::from_nanos(nanos)));
    assert_eq!([at(4_500), at(9_999), at(1)], [4_500, 5_000, 4_000]);
    assert_eq!(live.logged_ns(None), 5_000);
    let old = Line {
        after_ns: 0,
        ..live
    };
    assert_eq!(old.logged_ns(Some(Duration::from_nanos(7))), 7);
    assert_eq!(old.logged_ns(None), 0);
}

#[test]
fn what_cannot_be_followed_is_refused_in_words() {
    let directory = tempfile::tempdir().unwrap();
    let missing = Follower::open(&directory.path().join("none"), clock).unwrap_err();
    assert!(missing.to_string().starts_with("cannot open "));
    let refused = Follower::open(directory.path(), clock).unwrap_err();
    assert!(refused.to_string().contains("neither a device"));
}

#[test]
fn the_kernels_own_log_is_read_without_a_gap() {
    let Ok(mut follower) = Follower::open(Path::new("/dev/kmsg"), clock) else {
        // Root without CAP_SYSLOG, or no root at all.
        return;
    };
    let deadline = Instant::now() + PATIENCE;
    let mut last = None;
    while Instant::now() < deadline {
        match follower.next(Duration::ZERO).unwrap() {
            Next::Line(line) => {
                if let (Some(last), Some(now)) = (last, line.position) {
                    assert!(now > last);
                }
                last = line.position;
            }
            Next::Gap { .. } => {}
            Next::Nothing => return,
        }
    }
    panic!("the log never ends");
}
