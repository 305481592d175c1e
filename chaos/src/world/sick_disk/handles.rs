// SPDX-License-Identifier: Apache-2.0
//! What is open.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::sync::Arc;

use fuser::{Errno, FileHandle, FileType, INodeNo};

/// An entry of a directory, as it was when that was opened.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) number: INodeNo,
    pub(super) kind: FileType,
    pub(super) name: OsString,
}

/// Open files and directories by their handles.
#[derive(Debug, Default)]
pub(super) struct Handles {
    files: BTreeMap<u64, (INodeNo, Arc<File>)>,
    directories: BTreeMap<u64, Arc<[Entry]>>,
    last: u64,
}

impl Handles {
    pub(super) fn add_file(&mut self, number: INodeNo, file: File) -> FileHandle {
        self.last += 1;
        self.files.insert(self.last, (number, Arc::new(file)));
        FileHandle(self.last)
    }

    pub(super) fn add_directory(&mut self, entries: Vec<Entry>) -> FileHandle {
        self.last += 1;
        self.directories.insert(self.last, entries.into());
        FileHandle(self.last)
    }

    pub(super) fn file(&self, handle: FileHandle) -> Result<Arc<File>, Errno> {
        let found = self.files.get(&handle.0);
        found.map(|(_, file)| Arc::clone(file)).ok_or(Errno::EBADF)
    }

    /// One that was removed while it is open can be looked at only so.
    pub(super) fn any_of(&self, number: INodeNo) -> Option<Arc<File>> {
        let mut all = self.files.values();
        all.find(|(of, _)| *of == number)
            .map(|(_, file)| Arc::clone(file))
    }

    pub(super) fn directory(&self, handle: FileHandle) -> Result<Arc<[Entry]>, Errno> {
        self.directories.get(&handle.0).cloned().ok_or(Errno::EBADF)
    }

    pub(super) fn close(&mut self, handle: FileHandle) {
        self.files.remove(&handle.0);
        self.directories.remove(&handle.0);
    }
}
