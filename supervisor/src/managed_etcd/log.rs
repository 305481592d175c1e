// SPDX-License-Identifier: Apache-2.0
//! What the etcd on this node prints.
//!
//! etcd writes it beside its data, on a file system of this node, and it is copied from there to the log directory. A log
//! directory is often on a network file system; if etcd wrote there itself, one that hangs would hold up every member at
//! once, and with them the leases that the workers' lives hang on.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use tokio::task::JoinHandle;

/// Once so much was copied, etcd's own file begins anew.
const COPIED_BYTES: u64 = 4 * 1024 * 1024;
/// So much is kept for a log directory that takes nothing; then it is thrown away.
const MOST_BYTES: u64 = 16 * 1024 * 1024;
/// How much of the end is looked at for the reason of a death.
const TAIL_BYTES: u64 = 16 * 1024;

/// etcd's output on its way to the log directory.
#[derive(Debug)]
pub(super) struct ServerLog {
    source: PathBuf,
    target: PathBuf,
    copying: Option<JoinHandle<()>>,
}

impl ServerLog {
    pub(super) fn new(source: PathBuf, target: PathBuf) -> ServerLog {
        ServerLog {
            source,
            target,
            copying: None,
        }
    }

    /// In the log directory.
    pub(super) fn target(&self) -> &Path {
        &self.target
    }

    /// What etcd writes to.
    pub(super) fn open(&self) -> io::Result<OwnedFd> {
        let file = OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o600)
            .open(&self.source)?;
        Ok(file.into())
    }

    /// Copies what is new, on a thread of its own; nothing if that has not come to its end since the last time.
    pub(super) fn carry_over(&mut self) {
        if self
            .copying
            .as_ref()
            .is_some_and(|task| !task.is_finished())
        {
            return;
        }
        let (source, target) = (self.source.clone(), self.target.clone());
        self.copying = Some(tokio::task::spawn_blocking(move || {
            // Tried again soon; what cannot be copied is still beside the data.
            let _next_time = copy_new(&source, &target);
        }));
    }

    /// Its last lines, newest first.
    pub(super) fn last_lines(&self) -> Vec<String> {
        let read = || -> io::Result<Vec<u8>> {
            let mut file = File::open(&self.source)?;
            let length = file.metadata()?.len();
            file.seek(SeekFrom::Start(length.saturating_sub(TAIL_BYTES)))?;
            let mut bytes = Vec::new();
            file.take(TAIL_BYTES).read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        let bytes = read().unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes);
        text.lines().rev().map(str::to_owned).collect()
    }
}

fn copy_new(source: &Path, target: &Path) -> io::Result<()> {
    let mark = source.with_extension("copied");
    let copied = fs::read_to_string(&mark)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(0);
    let mut file = match OpenOptions::new().read(true).write(true).open(source) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other?,
    };
    let length = file.metadata()?.len();
    let copied = if copied > length { 0 } else { copied };
    if copied == length {
        return Ok(());
    }
    let result = append(&mut file, copied, length - copied, target);
    let begins_anew = match &result {
        Ok(()) => length > COPIED_BYTES,
        Err(_) => length > MOST_BYTES,
    };
    if begins_anew {
        // What came in this very moment is lost; it is a log.
        file.set_len(0)?;
        fs::write(&mark, "0")?;
    } else if result.is_ok() {
        fs::write(&mark, length.to_string())?;
    }
    result
}

fn append(file: &mut File, from: u64, count: u64, target: &Path) -> io::Result<()> {
    if let Some(parent) = target.parent() {
        fs::create_dir_all(parent)?;
    }
    let mut copy = OpenOptions::new().append(true).create(true).open(target)?;
    file.seek(SeekFrom::Start(from))?;
    io::copy(&mut file.take(count), &mut copy).map(drop)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn everything_is_copied_once_whoever_copies() {
        let directory = tempfile::tempdir().unwrap();
        let (source, target) = (directory.path().join("log"), directory.path().join("a/b"));
        copy_new(&source, &target).unwrap();
        let log = ServerLog::new(source.clone(), target.clone());
        let mut etcd = File::from(log.open().unwrap());
        for line in ["one\n", "two\n", "three\n"] {
            etcd.write_all(line.as_bytes()).unwrap();
            copy_new(&source, &target).unwrap();
            copy_new(&source, &target).unwrap();
        }
        assert_eq!(fs::read_to_string(&target).unwrap(), "one\ntwo\nthree\n");
        assert_eq!(log.last_lines(), ["three", "two", "one"]);
    }

    #[test]
    fn etcds_own_file_stays_small_and_goes_on() {
        let directory = tempfile::tempdir().unwrap();
        let (source, target) = (directory.path().join("log"), directory.path().join("copy"));
        let log = ServerLog::new(source.clone(), target.clone());
        let mut etcd = File::from(log.open().unwrap());
        let much = vec![b'x'; usize::try_from(COPIED_BYTES).unwrap() + 1];
        etcd.write_all(&much).unwrap();
        copy_new(&source, &target).unwrap();
        assert_eq!(fs::metadata(&source).unwrap().len(), 0);
        etcd.write_all(b"more").unwrap();
        copy_new(&source, &target).unwrap();
        assert_eq!(fs::metadata(&target).unwrap().len(), COPIED_BYTES + 5);
    }

    #[test]
    fn a_log_directory_that_takes_nothing_costs_output_alone() {
        let directory = tempfile::tempdir().unwrap();
        let source = directory.path().join("log");
        fs::write(directory.path().join("file"), "").unwrap();
        let target = directory.path().join("file/below");
        let log = ServerLog::new(source.clone(), target.clone());
        let mut etcd = File::from(log.open().unwrap());
        let much = vec![b'x'; usize::try_from(MOST_BYTES).unwrap()];
        etcd.write_all(&much).unwrap();
        assert!(copy_new(&source, &target).is_err());
        assert_eq!(fs::metadata(&source).unwrap().len(), MOST_BYTES);
        etcd.write_all(b"x").unwrap();
        assert!(copy_new(&source, &target).is_err());
        assert_eq!(fs::metadata(&source).unwrap().len(), 0);
    }
}
