// SPDX-License-Identifier: Apache-2.0
//! Hashes of whole files (BLAKE3), several at a time: one core is slower than a good disk.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// Read at once.
const BLOCK: usize = 1 << 20;

/// The hash of each file, in hexadecimal digits.
pub(crate) fn files(root: &Path, names: &[&str]) -> BTreeMap<String, io::Result<String>> {
    let next = AtomicUsize::new(0);
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let work = || {
        let mut done = Vec::new();
        while let Some(name) = names.get(next.fetch_add(1, Ordering::Relaxed)) {
            done.push(((*name).to_owned(), file(&root.join(name))));
        }
        done
    };
    thread::scope(|scope| {
        let helpers: Vec<_> = (1..threads.min(names.len()))
            .map(|_| scope.spawn(work))
            .collect();
        let mut hashes: BTreeMap<_, _> = work().into_iter().collect();
        for helper in helpers {
            hashes.extend(helper.join().unwrap_or_default());
        }
        hashes
    })
}

fn file(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let mut hasher = blake3::Hasher::new();
    let mut block = vec![0; BLOCK];
    loop {
        match file.read(&mut block) {
            Ok(0) => return Ok(hasher.finalize().to_hex().to_string()),
            Ok(read) => {
                hasher.update(block.get(..read).unwrap_or_default());
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}
