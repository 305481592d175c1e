// SPDX-License-Identifier: Apache-2.0
//! The lock that keeps processes that ask the driver from piling up: one that hangs cannot be ended, and the next one would
//! hang beside it.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::Path;
use std::time::{Duration, Instant};

use nix::unistd::Pid;
use rustix::fs::{FlockOperation, flock};

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

/// Takes the lock, waiting for it until then.
pub(super) fn take(path: &Path, until: Instant) -> Lock {
    let Ok(file) = open(path) else {
        return Lock::Impossible;
    };
    loop {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Lock::Taken(file),
            Err(rustix::io::Errno::WOULDBLOCK | rustix::io::Errno::INTR) => {}
            Err(_) => return Lock::Impossible,
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            let text = std::fs::read_to_string(path).unwrap_or_default();
            return held(&text, clock::monotonic_ns());
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

fn held(text: &str, now_ns: u64) -> Lock {
    let mut words = text.split_ascii_whitespace();
    let pid = words.next().and_then(|word| word.parse().ok());
    let since: Option<u64> = words.next().and_then(|word| word.parse().ok());
    Lock::Held {
        pid,
        age: Duration::from_nanos(now_ns.saturating_sub(since.unwrap_or(now_ns))),
    }
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
        sign(&file, Pid::from_raw(77));
        assert!(matches!(
            take(&path, Instant::now()),
            Lock::Held { pid: Some(77), .. }
        ));
        let copy = file.try_clone().unwrap();
        drop(file);
        assert!(matches!(take(&path, Instant::now()), Lock::Held { .. }));
        drop(copy);
        assert!(matches!(take(&path, Instant::now()), Lock::Taken(_)));
    }

    #[test]
    fn a_place_that_cannot_be_written_is_no_obstacle() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().join("nvml.lock");
        assert!(matches!(take(&path, Instant::now()), Lock::Impossible));
    }

    #[test]
    fn who_has_it_is_told_as_far_as_it_can_be_read() {
        for (text, pid, age_ns) in [
            ("7 400", Some(7), 600),
            ("x 400", None, 600),
            ("7", Some(7), 0),
            ("", None, 0),
        ] {
            let Lock::Held { pid: found, age } = held(text, 1000) else {
                panic!("{text}");
            };
            assert_eq!((found, age), (pid, Duration::from_nanos(age_ns)), "{text}");
        }
    }
}
