// SPDX-License-Identifier: Apache-2.0
//! The lock that keeps processes that ask the driver from piling up: one that hangs cannot be ended, and the next one would
//! hang beside it.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::Path;
use std::time::{Duration, Instant};

use nix::unistd::Pid;
use rustix::fs::{FlockOperation, flock};
use steadfast_process::tree::Process;

use crate::clock;

/// Between two tries.
const PAUSE: Duration = Duration::from_millis(20);

/// What trying to take the lock has led to.
#[derive(Debug)]
pub(super) enum Lock {
    /// It is taken, for as long as this file or a copy of it is open in any process.
    Taken(File),
    /// Another process has it.
    Held {
        /// Its id, if it left it.
        pid: Option<i32>,
        /// Since when.
        age: Duration,
    },
    /// There can be none, as when the directory may not be written.
    Impossible,
}

/// Takes the lock, waiting for it until then; but not for somebody who has it for longer than that already.
pub(super) fn take(path: &Path, until: Instant) -> Lock {
    let patience = until.saturating_duration_since(Instant::now());
    let Ok(file) = open(path) else {
        return Lock::Impossible;
    };
    loop {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {
                // What the last one left is not true of this one.
                let _unsigned = file.set_len(0);
                return Lock::Taken(file);
            }
            Err(rustix::io::Errno::WOULDBLOCK | rustix::io::Errno::INTR) => {}
            Err(_) => return Lock::Impossible,
        }
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let (pid, age) = holder(&text, clock::monotonic_ns(), is_ours);
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() || age > patience {
            return Lock::Held { pid, age };
        }
        std::thread::park_timeout(left.min(PAUSE));
    }
}

fn open(path: &Path) -> io::Result<File> {
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory)?;
    }
    File::options()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .open(path)
}

/// Leaves word in the lock of who has it.
pub(super) fn sign(mut file: &File, pid: Pid) {
    let text = format!("{pid} {}\n", clock::monotonic_ns());
    // Without it, a later run can only say that there is somebody.
    let _unsigned = file
        .set_len(0)
        .and_then(|()| file.write_all(text.as_bytes()));
}

/// Who has it, and since when, if it has signed: else the text is of one that has ended.
fn holder(text: &str, now_ns: u64, is_ours: impl Fn(i32) -> bool) -> (Option<i32>, Duration) {
    let mut words = text.split_ascii_whitespace();
    let pid: Option<i32> = words.next().and_then(|word| word.parse().ok());
    let since: Option<u64> = words.next().and_then(|word| word.parse().ok());
    match (pid.filter(|pid| is_ours(*pid)), since) {
        (Some(pid), Some(since)) => (
            Some(pid),
            Duration::from_nanos(now_ns.saturating_sub(since)),
        ),
        (pid, _) => (pid, Duration::ZERO),
    }
}

/// Whether it is a process of this program.
fn is_ours(pid: i32) -> bool {
    Process::read(pid).is_some_and(|process| process.name.starts_with("steadfast"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_has_it_and_the_others_learn_who() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("deep/nvml.lock");
        let Lock::Taken(file) = take(&path, Instant::now()) else {
            panic!("nobody else has it");
        };
        let own = Pid::this();
        sign(&file, own);
        let Lock::Held { pid, .. } = take(&path, Instant::now()) else {
            panic!("it is held");
        };
        assert_eq!(pid, Some(own.as_raw()));
        let copy = file.try_clone().unwrap();
        drop(file);
        assert!(matches!(take(&path, Instant::now()), Lock::Held { .. }));
        drop(copy);
        assert!(matches!(take(&path, Instant::now()), Lock::Taken(_)));
        assert_eq!(
            std::fs::read_to_string(&path).unwrap(),
            "",
            "nobody has signed"
        );
    }

    #[test]
    fn a_place_that_cannot_be_written_is_no_obstacle() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().join("nvml.lock");
        assert!(matches!(take(&path, Instant::now()), Lock::Impossible));
    }

    #[test]
    fn who_has_it_is_told_only_of_one_that_lives() {
        for (text, pid, age_ns) in [
            ("7 400", Some(7), 600),
            ("8 400", None, 0),
            ("x 400", None, 0),
            ("7", Some(7), 0),
            ("7 soon", Some(7), 0),
            ("", None, 0),
        ] {
            let found = holder(text, 1000, |pid| pid == 7);
            assert_eq!(found, (pid, Duration::from_nanos(age_ns)), "{text}");
        }
        assert!(!is_ours(1));
    }
}
