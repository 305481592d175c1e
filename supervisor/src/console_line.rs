// SPDX-License-Identifier: Apache-2.0
//! Single lines of our own on standard error, which never wait for whoever reads it.

use std::io::{self, Write};
use std::os::fd::AsFd;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// Says one thing to the person at the terminal, if there is room to say it.
pub(crate) fn say(message: &str) {
    let stderr = io::stderr();
    let mut descriptors = [PollFd::new(stderr.as_fd(), PollFlags::POLLOUT)];
    let has_room = poll(&mut descriptors, PollTimeout::ZERO).is_ok_and(|ready| ready > 0);
    if has_room {
        // Nobody can be told that nobody can be told.
        let _unsaid = stderr
            .lock()
            .write_all(format!("steadfast: {message}\n").as_bytes());
    }
}
