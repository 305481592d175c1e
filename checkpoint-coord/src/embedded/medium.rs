// SPDX-License-Identifier: Apache-2.0
//! Where an embedded store keeps its contents.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, PoisonError};

/// A place for bytes that outlives the process. A write that was not finished when the process died may be there in
/// part; one that was finished must be there.
pub trait Medium: fmt::Debug + Send + 'static {
    /// All bytes.
    fn load(&mut self) -> io::Result<Vec<u8>>;

    /// Writes at `offset`, extending the medium as needed; a gap reads as zeros.
    fn write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Cuts the medium off after `length` bytes.
    fn truncate(&mut self, length: u64) -> io::Result<()>;
}

/// A file or memfd. It need not be synced: what matters is that it outlives the process, not the machine.
#[derive(Debug)]
pub struct FileMedium {
    file: File,
}

impl FileMedium {
    /// A medium in `file`, which must be open for reading and writing. Nobody else may write to it.
    pub fn new(file: File) -> Self {
        Self { file }
    }
}

impl Medium for FileMedium {
    fn load(&mut self) -> io::Result<Vec<u8>> {
        let length = usize::try_from(self.file.metadata()?.len())
            .map_err(|error| io::Error::new(io::ErrorKind::FileTooLarge, error))?;
        let mut bytes = vec![0; length];
        self.file.read_exact_at(&mut bytes, 0)?;
        Ok(bytes)
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, offset)
    }

    fn truncate(&mut self, length: u64) -> io::Result<()> {
        self.file.set_len(length)
    }
}

/// Memory. Clones share the bytes, so that a store can be closed and opened again within one process.
#[derive(Debug, Clone, Default)]
pub struct MemoryMedium {
    bytes: Arc<Mutex<Vec<u8>>>,
}

impl MemoryMedium {
    /// A medium that holds these bytes.
    pub fn with_bytes(bytes: Vec<u8>) -> Self {
        Self {
            bytes: Arc::new(Mutex::new(bytes)),
        }
    }

    /// A copy of what it holds.
    pub fn bytes(&self) -> Vec<u8> {
        self.bytes
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

impl Medium for MemoryMedium {
    fn load(&mut self) -> io::Result<Vec<u8>> {
        Ok(self.bytes())
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let start = usize::try_from(offset)
            .map_err(|error| io::Error::new(io::ErrorKind::FileTooLarge, error))?;
        let mut held = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        let end = start + bytes.len();
        if held.len() < end {
            held.resize(end, 0);
        }
        held[start..end].copy_from_slice(bytes);
        Ok(())
    }

    fn truncate(&mut self, length: u64) -> io::Result<()> {
        let length = usize::try_from(length)
            .map_err(|error| io::Error::new(io::ErrorKind::FileTooLarge, error))?;
        let mut held = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        held.truncate(length);
        Ok(())
    }
}
