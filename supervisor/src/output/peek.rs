// SPDX-License-Identifier: Apache-2.0
//! Looking at what waits in a pipe without taking it, and taking it without looking.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice, tee};

/// How much is looked at in one go.
const LOOK_BYTES: usize = 1024 * 1024;

/// A private pipe and a buffer, enough for all streams: between two calls both are empty.
#[derive(Debug)]
pub(crate) struct Peeker {
    read: OwnedFd,
    write: OwnedFd,
    null: File,
    buffer: Vec<u8>,
}

/// What a pipe holds beyond what was seen before.
#[derive(Debug)]
pub(crate) enum Peeked<'a> {
    /// These bytes, at least one.
    Bytes(&'a [u8]),
    /// Nothing new.
    Nothing,
    /// It is empty and nobody can write to it any more.
    End,
}

impl Peeker {
    pub(crate) fn new() -> io::Result<Self> {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        // A smaller pipe does as well, with more calls.
        let _refused = fcntl_setpipe_size(&write, LOOK_BYTES);
        let null = OpenOptions::new().write(true).open("/dev/null")?;
        Ok(Self {
            read,
            write,
            null,
            buffer: Vec::new(),
        })
    }

    /// Copies what waits in `pipe` and leaves it there; the first `skip` bytes are known already.
    pub(crate) fn peek(&mut self, pipe: impl AsFd, skip: usize) -> io::Result<Peeked<'_>> {
        let copied = loop {
            match tee(&pipe, &self.write, LOOK_BYTES, SpliceFlags::NONBLOCK) {
                Ok(0) => return Ok(Peeked::End),
                Ok(copied) => break copied,
                Err(Errno::AGAIN) => return Ok(Peeked::Nothing),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        };
        if self.buffer.len() < copied {
            self.buffer
                .resize(copied.next_power_of_two().max(16 * 1024), 0);
        }
        read_exactly(&self.read, &mut self.buffer[..copied])?;
        match self.buffer.get(skip..copied) {
            Some(bytes) if !bytes.is_empty() => Ok(Peeked::Bytes(bytes)),
            _ => Ok(Peeked::Nothing),
        }
    }

    /// Takes `bytes` from `pipe`, which holds at least as many, and throws them away.
    pub(super) fn discard(&self, pipe: impl AsFd, bytes: usize) -> io::Result<usize> {
        move_some(pipe, &self.null, bytes)
    }
}

/// Moves up to `bytes` from a pipe to another pipe or to a device that never waits. Returns how many; fewer when the
/// target is full or the source is empty.
pub(super) fn move_some(from: impl AsFd, to: impl AsFd, bytes: usize) -> io::Result<usize> {
    let mut moved = 0;
    while moved < bytes {
        match splice(&from, None, &to, None, bytes - moved, SpliceFlags::NONBLOCK) {
            Ok(0) | Err(Errno::AGAIN) => break,
            Ok(count) => moved += count,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(moved)
}

/// Fills `buffer` from a pipe that holds exactly as much.
pub(super) fn read_exactly(pipe: impl AsFd, buffer: &mut [u8]) -> io::Result<()> {
    let mut filled = 0;
    while filled < buffer.len() {
        match rustix::io::read(&pipe, &mut buffer[filled..]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => filled += count,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
