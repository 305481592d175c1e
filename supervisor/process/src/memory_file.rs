// SPDX-License-Identifier: Apache-2.0
//! Files that live in memory: what must survive the agent but needs no disk.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};

use rustix::fs::{MemfdFlags, memfd_create};

/// Creates an empty memory file that is closed on `execve`. `name` only shows in `/proc/PID/fd`.
///
/// # Errors
///
/// When the kernel refuses (out of descriptors or memory), or when `name` holds a NUL byte.
pub fn create(name: &str) -> io::Result<File> {
    let name = CString::new(name)?;
    Ok(memfd_create(name.as_c_str(), MemfdFlags::CLOEXEC)?.into())
}

/// Creates a memory file that holds `content`, ready to be read from its start.
///
/// # Errors
///
/// As [`create`], and when memory runs out while it is written.
pub fn with_content(name: &str, content: &[u8]) -> io::Result<File> {
    let mut file = create(name)?;
    file.write_all(content)?;
    file.rewind()?;
    Ok(file)
}

/// Reads the whole of a memory file, wherever its offset stands.
///
/// # Errors
///
/// When reading fails, or the file is longer than `limit` bytes.
pub fn read_all(file: &mut File, limit: u64) -> io::Result<Vec<u8>> {
    let length = file.metadata()?.len();
    if length > limit {
        return Err(io::Error::other(format!(
            "memory file holds {length} bytes, more than the {limit} allowed"
        )));
    }
    file.seek(SeekFrom::Start(0))?;
    let mut content = Vec::new();
    file.take(limit).read_to_end(&mut content)?;
    Ok(content)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_is_read_back_whatever_the_offset() {
        let mut file = with_content("test", b"hello").unwrap();
        file.seek(SeekFrom::End(0)).unwrap();
        assert_eq!(read_all(&mut file, 100).unwrap(), b"hello");
    }

    #[test]
    fn a_file_over_the_limit_is_refused() {
        let mut file = with_content("test", b"hello").unwrap();
        assert!(read_all(&mut file, 4).is_err());
    }
}
