// SPDX-License-Identifier: Apache-2.0
//! Records of `/dev/kmsg`, and lines out of a pipe.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, ErrorKind, Read};

use rustix::io::Errno;

use super::super::header;
use super::{Found, Unended};

/// The kernel's largest record, with what it adds, fits many times over.
const RECORD: usize = 16 << 10;

/// `/dev/kmsg`, or what behaves like it.
#[derive(Debug)]
pub(super) struct Records<Reader> {
    pub(super) reader: Reader,
    buffer: Vec<u8>,
    /// Number that the next record has if none is lost.
    expected: Option<u64>,
}

impl<Reader: Read> Records<Reader> {
    pub(super) fn new(reader: Reader) -> Self {
        Self {
            reader,
            buffer: vec![0; RECORD],
            expected: None,
        }
    }

    pub(super) fn read(&mut self) -> io::Result<Found> {
        loop {
            let error = match self.reader.read(&mut self.buffer) {
                Ok(0) => return Ok(Found::Nothing),
                Ok(length) => return Ok(self.record(length)),
                Err(error) => error,
            };
            match Errno::from_io_error(&error) {
                Some(Errno::AGAIN) => return Ok(Found::Nothing),
                // Overtaken: the number of the next record says by how many.
                Some(Errno::PIPE) if self.expected.is_some() => {}
                // Overtaken before the first record, or one that did not fit: it was skipped.
                Some(Errno::PIPE | Errno::INVAL) => return Ok(Found::Lost),
                Some(Errno::INTR) => {}
                _ => return Err(error),
            }
        }
    }

    fn record(&mut self, length: usize) -> Found {
        let bytes = self.buffer.get(..length).unwrap_or_default().to_vec();
        let number = std::str::from_utf8(&bytes)
            .ok()
            .and_then(header::record)
            .and_then(|(header, _)| header.sequence);
        let mut lost = 0;
        if let Some(number) = number {
            if let Some(expected) = self.expected {
                lost = number.saturating_sub(expected);
            }
            self.expected = Some(number.saturating_add(1));
        }
        Found::Line {
            bytes,
            position: number,
            lost,
        }
    }
}

/// A named pipe.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) pipe: File,
    unended: Unended,
    lines: VecDeque<Vec<u8>>,
}

impl Stream {
    pub(super) fn new(pipe: File) -> Self {
        Self {
            pipe,
            unended: Unended::default(),
            lines: VecDeque::new(),
        }
    }

    pub(super) fn read(&mut self) -> io::Result<Found> {
        let mut buffer = [0; RECORD];
        loop {
            if let Some(bytes) = self.lines.pop_front() {
                return Ok(Found::Line {
                    bytes,
                    position: None,
                    lost: 0,
                });
            }
            let length = match self.pipe.read(&mut buffer) {
                Ok(0) => return Ok(Found::Nothing),
                Ok(length) => length,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(Found::Nothing),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            let mut rest = buffer.get(..length).unwrap_or_default();
            while !rest.is_empty() {
                let (line, taken) = self.unended.take(rest);
                self.lines.extend(line);
                rest = rest.get(taken..).unwrap_or_default();
            }
        }
    }
}
