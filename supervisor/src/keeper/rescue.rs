// SPDX-License-Identifier: Apache-2.0
//! Output without an agent: the workers' pipes are kept from filling, so that nobody has to wait.
//!
//! Only the workers' own pipes are touched. A thread of a dead agent may still hold a spool while it sleeps in the kernel
//! on a dead disk, and waiting for that is what the keeper must never do.

use std::fs::OpenOptions;
use std::os::fd::AsFd;

use steadfast_process::pipe::{bytes_waiting, capacity, move_waiting};

use super::workers::{Stream, Worker};

/// Throws away the older half of what is in every pipe that is more than half full. Returns how many bytes that were.
pub(super) fn make_room(workers: &mut [Worker]) -> u64 {
    workers
        .iter_mut()
        .flat_map(|worker| &mut worker.streams)
        .map(make_room_in)
        .sum()
}

fn make_room_in(stream: &mut Stream) -> u64 {
    let (Ok(waiting), Ok(room)) = (bytes_waiting(&stream.output), capacity(&stream.output)) else {
        return 0;
    };
    if waiting <= room / 2 {
        return 0;
    }
    let Ok(nowhere) = OpenOptions::new().write(true).open("/dev/null") else {
        return 0;
    };
    let moved = move_waiting(&stream.output, nowhere.as_fd(), waiting / 2).unwrap_or(0);
    stream.sight.taken(moved);
    moved as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keeper::sight::Sight;
    use std::io::Write;
    use steadfast_process::pipe::Pipe;

    #[test]
    fn a_pipe_that_fills_is_relieved_of_its_older_half_only() {
        let pipe = Pipe::with_capacity(64 * 1024).unwrap();
        let mut writer = std::fs::File::from(pipe.write);
        let mut stream = Stream {
            output: pipe.read,
            spool: Pipe::with_capacity(4096).unwrap(),
            sight: Sight::default(),
        };
        writer.write_all(&[0; 1000]).unwrap();
        assert_eq!(make_room_in(&mut stream), 0);
        writer.write_all(&vec![0; 50_000]).unwrap();
        assert_eq!(make_room_in(&mut stream), 25_500);
        assert_eq!(bytes_waiting(&stream.output).unwrap(), 25_500);
    }
}
