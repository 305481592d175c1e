// SPDX-License-Identifier: Apache-2.0
//! Pipes that carry workers' output, and the moving of what is in them.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use rustix::pipe::{
    PipeFlags, SpliceFlags, fcntl_getpipe_size, fcntl_setpipe_size, pipe_with, splice,
};

/// Both ends of a pipe, closed on `execve`.
#[derive(Debug)]
pub struct Pipe {
    /// The end to read from.
    pub read: OwnedFd,
    /// The end to write to.
    pub write: OwnedFd,
}

impl Pipe {
    /// Creates a pipe that can hold about `bytes`, or as much as the kernel lets this user have.
    ///
    /// # Errors
    ///
    /// When the process or the system is out of descriptors.
    pub fn with_capacity(bytes: usize) -> io::Result<Pipe> {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
        // Over the user's limit of pipe pages the kernel refuses to grow the pipe: the default of 64 KiB does then.
        let _smaller_is_fine = fcntl_setpipe_size(&write, bytes);
        Ok(Pipe { read, write })
    }
}

/// How many bytes wait in a pipe.
///
/// # Errors
///
/// When the descriptor is no pipe.
pub fn bytes_waiting(pipe: impl AsFd) -> io::Result<usize> {
    let waiting = rustix::io::ioctl_fionread(pipe)?;
    Ok(usize::try_from(waiting).unwrap_or(usize::MAX))
}

/// How many bytes a pipe can hold.
///
/// # Errors
///
/// When the descriptor is no pipe.
pub fn capacity(pipe: impl AsFd) -> io::Result<usize> {
    Ok(fcntl_getpipe_size(pipe)?)
}

/// Moves up to `bytes` from one pipe to another without waiting for either. Returns how many were moved:
/// 0 when the source is empty or the target is full.
///
/// # Errors
///
/// Anything but "would block".
pub fn move_waiting(from: impl AsFd, to: impl AsFd, bytes: usize) -> io::Result<usize> {
    match splice(from, None, to, None, bytes, SpliceFlags::NONBLOCK) {
        Ok(moved) => Ok(moved),
        Err(Errno::AGAIN) => Ok(0),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn waiting_bytes_move_and_a_full_target_takes_none() {
        let source = Pipe::with_capacity(4096).unwrap();
        let target = Pipe::with_capacity(4096).unwrap();
        let mut writer = std::fs::File::from(source.write.try_clone().unwrap());
        writer.write_all(b"line\n").unwrap();
        assert_eq!(bytes_waiting(&source.read).unwrap(), 5);
        assert_eq!(move_waiting(&source.read, &target.write, 4096).unwrap(), 5);
        assert_eq!(bytes_waiting(&target.read).unwrap(), 5);
        assert_eq!(move_waiting(&source.read, &target.write, 4096).unwrap(), 0);
        writer.write_all(b"more\n").unwrap();
        assert_eq!(
            move_waiting(&source.read, &target.write, 4096).unwrap(),
            0,
            "one page pipe is full"
        );
    }
}
