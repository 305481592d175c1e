// SPDX-License-Identifier: Apache-2.0
//! The moving of a stream's spool into its log file, by a thread that may hang: nobody waits for it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::io::Errno;
use rustix::pipe::{PipeFlags, SpliceFlags, pipe_with, splice, tee};
use tokio::sync::mpsc;

use super::peek::{move_some, read_exactly};
use super::writers::{Job, Writers};

/// A log file that takes nothing for this long counts as stalled.
pub(super) const PATIENCE: Duration = Duration::from_millis(500);

/// Most bytes moved by one call, so that progress shows.
const CHUNK_BYTES: usize = 256 * 1024;

/// A thread's answer: it has let go of the spool.
#[derive(Debug)]
pub(super) struct Reply {
    /// What the next request goes to.
    pub(super) writer: Box<Writer>,
    /// Bytes of the request that are still in the spool.
    pub(super) unwritten: u64,
    /// Why, if any are.
    pub(super) error: Option<io::Error>,
}

/// The door to one log file.
#[derive(Debug)]
pub(super) struct LogFile {
    path: PathBuf,
    writers: Arc<Writers>,
    /// Absent while a thread has it.
    writer: Option<Box<Writer>>,
    sender: mpsc::UnboundedSender<Reply>,
    replies: mpsc::UnboundedReceiver<Reply>,
    progress: Arc<AtomicU64>,
}

/// What a thread needs in order to write a log file.
#[derive(Debug)]
pub(super) struct Writer {
    path: PathBuf,
    spool: OwnedFd,
    progress: Arc<AtomicU64>,
    file: Option<File>,
    /// Set for a file that nothing can be spliced into.
    by_copy: Option<Copying>,
}

impl LogFile {
    /// The file is opened, and its directory made, when there is something to write.
    pub(super) fn new(path: PathBuf, spool: OwnedFd, writers: Arc<Writers>) -> Self {
        let (sender, replies) = mpsc::unbounded_channel();
        let progress = Arc::new(AtomicU64::new(0));
        let writer = Writer {
            path: path.clone(),
            spool,
            progress: Arc::clone(&progress),
            file: None,
            by_copy: None,
        };
        Self {
            path,
            writers,
            writer: Some(Box::new(writer)),
            sender,
            replies,
            progress,
        }
    }

    /// The file.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Lends the spool to a thread, to write the `bytes` that are in it. The reply gives it back.
    pub(super) fn request(&mut self, bytes: u64) {
        if let Some(writer) = self.writer.take() {
            self.writers.submit(Job {
                writer,
                bytes,
                reply: self.sender.clone(),
            });
        }
    }

    /// Waits for the reply to the last request.
    pub(super) async fn reply(&mut self) -> Reply {
        match self.replies.recv().await {
            Some(reply) => reply,
            // Cannot be: this very file holds a sender.
            None => std::future::pending().await,
        }
    }

    /// Takes the writer back.
    pub(super) fn returned(&mut self, writer: Box<Writer>) {
        self.writer = Some(writer);
    }

    /// Says that a reply is overdue.
    pub(super) fn relieve(&self) {
        self.writers.relieve();
    }

    /// Bytes written so far.
    pub(super) fn progress(&self) -> u64 {
        self.progress.load(Ordering::Relaxed)
    }
}

#[derive(Debug)]
struct Copying {
    read: OwnedFd,
    write: OwnedFd,
    null: File,
}

impl Writer {
    /// Writes the `bytes` that are in the spool. May hang. Returns how many are left there, and why.
    pub(super) fn write(&mut self, bytes: u64) -> (u64, Option<io::Error>) {
        let mut unwritten = bytes;
        let error = self.write_all(&mut unwritten).err();
        if error.is_some() {
            // The next attempt begins with the directory: it may have been removed, or mounted anew.
            self.file = None;
        }
        (unwritten, error)
    }

    fn write_all(&mut self, unwritten: &mut u64) -> io::Result<()> {
        let mut file = match self.file.take() {
            Some(file) => file,
            None => open(&self.path)?,
        };
        let mut result = Ok(());
        while *unwritten > 0 && result.is_ok() {
            let length = usize::try_from(*unwritten)
                .unwrap_or(CHUNK_BYTES)
                .min(CHUNK_BYTES);
            match self.write_some(&mut file, length) {
                Ok(0) => *unwritten = 0,
                Ok(written) => {
                    *unwritten = unwritten.saturating_sub(written as u64);
                    self.progress.fetch_add(written as u64, Ordering::Relaxed);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => result = Err(error),
            }
        }
        self.file = Some(file);
        result
    }

    fn write_some(&mut self, file: &mut File, length: usize) -> io::Result<usize> {
        if self.by_copy.is_none() {
            match splice(&self.spool, None, &file, None, length, SpliceFlags::empty()) {
                // Some file systems and most devices cannot be spliced into.
                Err(Errno::INVAL) => self.by_copy = Some(Copying::new()?),
                result => return Ok(result?),
            }
        }
        match &self.by_copy {
            Some(copying) => copying.write_some(&self.spool, file, length),
            None => Ok(0),
        }
    }
}

impl Copying {
    fn new() -> io::Result<Self> {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        Ok(Self {
            read,
            write,
            null: OpenOptions::new().write(true).open("/dev/null")?,
        })
    }

    /// Writes first and takes from the spool after: a process killed in between writes twice rather than never.
    fn write_some(&self, spool: impl AsFd, file: &mut File, length: usize) -> io::Result<usize> {
        let copied = tee(&spool, &self.write, length, SpliceFlags::NONBLOCK)?;
        let mut buffer = vec![0; copied];
        read_exactly(&self.read, &mut buffer)?;
        let written = file.write(&buffer)?;
        if written == 0 && copied > 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        move_some(&spool, &self.null, written)
    }
}

/// Opens a log file to go on at its end. Not in append mode, which cannot be spliced into.
fn open(path: &Path) -> io::Result<File> {
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory)?;
    }
    let mut file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(path)?;
    match file.seek(SeekFrom::End(0)) {
        // A pipe or a device has no end to go to.
        Err(error) if error.raw_os_error() == Some(Errno::SPIPE.raw_os_error()) => {}
        result => drop(result?),
    }
    Ok(file)
}
