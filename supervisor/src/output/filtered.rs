// SPDX-License-Identifier: Apache-2.0
//! Copies of chosen lines in one file for all workers: `filtered_stdout.log` and `filtered_stderr.log`.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Weak};

use super::dropped::Ledger;
use super::layout::attempt_dir;
use super::{OutputError, Stream, StreamKind};
use crate::settings::LogSettings;

/// Most lines that wait for the file.
const WAITING_LINES: usize = 1024;
/// The thread calls the system and little else.
const STACK_BYTES: usize = 128 * 1024;

/// The filters, and the files that are open.
#[derive(Debug)]
pub(super) struct Filtered {
    stdout: Arc<[String]>,
    stderr: Arc<[String]>,
    files: BTreeMap<PathBuf, Weak<LineFile>>,
}

/// One stream's way to the file.
#[derive(Debug)]
pub(super) struct FilteredLines {
    filters: Arc<[String]>,
    prefix: String,
    file: Arc<LineFile>,
}

#[derive(Debug)]
struct LineFile {
    path: PathBuf,
    lines: SyncSender<Vec<u8>>,
    ledger: Arc<Ledger>,
}

impl Filtered {
    pub(super) fn new(log: &LogSettings) -> Self {
        Self {
            stdout: log.duplicate_stdout_filters.as_slice().into(),
            stderr: log.duplicate_stderr_filters.as_slice().into(),
            files: BTreeMap::new(),
        }
    }

    /// The way to the file for one stream, if there are filters for it.
    pub(super) fn open(
        &mut self,
        run_dir: &Path,
        stream: Stream,
        prefix: String,
        ledger: &Arc<Ledger>,
    ) -> Result<Option<FilteredLines>, OutputError> {
        let (filters, name) = match stream.kind {
            StreamKind::Stdout => (&self.stdout, "filtered_stdout.log"),
            StreamKind::Stderr => (&self.stderr, "filtered_stderr.log"),
        };
        if filters.is_empty() {
            return Ok(None);
        }
        let path = attempt_dir(run_dir, stream.restart_count).join(name);
        let file = if let Some(file) = self.files.get(&path).and_then(Weak::upgrade) {
            file
        } else {
            let file = Arc::new(LineFile::start(path.clone(), Arc::clone(ledger))?);
            self.files.retain(|_, file| file.strong_count() > 0);
            self.files.insert(path, Arc::downgrade(&file));
            file
        };
        Ok(Some(FilteredLines {
            filters: Arc::clone(filters),
            prefix,
            file,
        }))
    }
}

impl FilteredLines {
    /// Copies `line` if a filter is found in it.
    pub(super) fn offer(&self, line: &[u8]) {
        if self
            .filters
            .iter()
            .any(|filter| memchr::memmem::find(line, filter.as_bytes()).is_some())
        {
            let mut whole = Vec::with_capacity(self.prefix.len() + line.len() + 1);
            whole.extend_from_slice(self.prefix.as_bytes());
            whole.extend_from_slice(line);
            whole.push(b'\n');
            self.file.write(whole);
        }
    }
}

impl LineFile {
    fn start(path: PathBuf, ledger: Arc<Ledger>) -> Result<Self, OutputError> {
        let (lines, incoming) = sync_channel(WAITING_LINES);
        let (target, losses) = (path.clone(), Arc::clone(&ledger));
        std::thread::Builder::new()
            .name("filtered-log".to_owned())
            .stack_size(STACK_BYTES)
            .spawn(move || serve(&target, &incoming, &losses))
            .map_err(|source| OutputError::Thread {
                what: path.display().to_string(),
                source,
            })?;
        Ok(Self {
            path,
            lines,
            ledger,
        })
    }

    fn write(&self, line: Vec<u8>) {
        if let Err(error) = self.lines.try_send(line) {
            use std::sync::mpsc::TrySendError::{Disconnected, Full};
            let (Full(line) | Disconnected(line)) = error;
            self.ledger.add(
                &format!("from {} (it was too slow)", self.path.display()),
                line.len() as u64,
                1,
            );
        }
    }
}

fn serve(path: &Path, lines: &Receiver<Vec<u8>>, ledger: &Ledger) {
    let mut file = None;
    while let Ok(line) = lines.recv() {
        let written = (|| {
            if file.is_none() {
                if let Some(directory) = path.parent() {
                    fs::create_dir_all(directory)?;
                }
                file = Some(OpenOptions::new().create(true).append(true).open(path)?);
            }
            file.as_mut().map_or(Ok(()), |file| file.write_all(&line))
        })();
        if let Err(error) = written {
            file = None;
            ledger.add(
                &format!("from {} ({error})", path.display()),
                line.len() as u64,
                1,
            );
        }
    }
}
