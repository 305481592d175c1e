// SPDX-License-Identifier: Apache-2.0
//! Numbers for the files and directories that the kernel has asked for, and where they are.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use fuser::{Errno, INodeNo};

/// What is known by which number. A number is never given twice.
#[derive(Debug)]
pub(super) struct Names {
    paths: BTreeMap<u64, PathBuf>,
    numbers: BTreeMap<PathBuf, u64>,
    last: u64,
}

impl Names {
    /// The root has number 1.
    pub(super) fn new(root: PathBuf) -> Self {
        Self {
            paths: BTreeMap::from([(INodeNo::ROOT.0, root.clone())]),
            numbers: BTreeMap::from([(root, INodeNo::ROOT.0)]),
            last: INodeNo::ROOT.0,
        }
    }

    pub(super) fn path(&self, number: INodeNo) -> Result<PathBuf, Errno> {
        self.paths.get(&number.0).cloned().ok_or(Errno::ENOENT)
    }

    pub(super) fn number(&mut self, path: &Path) -> INodeNo {
        if let Some(number) = self.numbers.get(path) {
            return INodeNo(*number);
        }
        self.last += 1;
        self.paths.insert(self.last, path.to_owned());
        self.numbers.insert(path.to_owned(), self.last);
        INodeNo(self.last)
    }

    /// What has this name next is something else.
    pub(super) fn removed(&mut self, path: &Path) {
        self.numbers.remove(path);
    }

    /// Whatever was there has this name now, with all that is below it.
    pub(super) fn moved(&mut self, from: &Path, to: &Path) {
        self.removed(to);
        let below: Vec<PathBuf> = self.numbers.keys().cloned().collect();
        for old in below {
            let Ok(rest) = old.strip_prefix(from) else {
                continue;
            };
            // To join nothing would add a slash.
            let new = if rest.as_os_str().is_empty() {
                to.to_owned()
            } else {
                to.join(rest)
            };
            if let Some(number) = self.numbers.remove(&old) {
                self.paths.insert(number, new.clone());
                self.numbers.insert(new, number);
            }
        }
    }
}
