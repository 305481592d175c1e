// SPDX-License-Identifier: Apache-2.0
//! The system call that a thread is in, from `/proc/PID/task/TID/syscall`: a number and its arguments.

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// A system call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SystemCall {
    /// Its number; those of `x86_64` and `aarch64` differ.
    pub number: u64,
    /// What a thread in it waits for.
    pub waits_for: WaitsFor,
    /// What its first argument refers to, if that is a descriptor.
    pub file: Option<String>,
}

/// What a thread in a system call waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WaitsFor {
    /// Something from a socket, or one of several descriptors.
    Network,
    /// Something from a pipe: another process on this node.
    Pipe,
    /// A file.
    File,
    /// Time to pass.
    Time,
    /// Another thread.
    Thread,
    /// A child process.
    Child,
    /// Something else.
    Other,
}

/// What a kind of call does.
#[derive(Clone, Copy)]
enum Class {
    /// Reads or writes the descriptor that is its first argument.
    Descriptor,
    /// Waits for several descriptors.
    Several,
    /// The same; how many is its first argument.
    Select,
    /// Works on a file that is named or synchronised.
    File,
    Plain(WaitsFor),
}

impl SystemCall {
    /// Reads the kernel's line. `None` for a thread that is on a processor, or not in a call.
    pub(super) fn parse(line: &str, process: &Path) -> Option<SystemCall> {
        let mut words = line.split_ascii_whitespace();
        let number: u64 = words.next()?.parse().ok()?;
        let first = words
            .next()
            .and_then(|word| u64::from_str_radix(word.strip_prefix("0x")?, 16).ok());
        let class = classify(number);
        let file = match class {
            Class::Descriptor => first.and_then(|descriptor| {
                fs::read_link(process.join(format!("fd/{descriptor}"))).ok()
            }),
            Class::Several | Class::Select | Class::File | Class::Plain(_) => None,
        };
        let file = file.map(|target| target.to_string_lossy().into_owned());
        let waits_for = match class {
            Class::Descriptor => match file.as_deref() {
                Some(name) if name.starts_with("socket:") => WaitsFor::Network,
                Some(name) if name.starts_with("pipe:") => WaitsFor::Pipe,
                Some(name) if name.starts_with('/') => WaitsFor::File,
                _ => WaitsFor::Other,
            },
            // With no descriptor to wait for, as older versions of Python sleep.
            Class::Select if first == Some(0) => WaitsFor::Time,
            Class::Several | Class::Select => WaitsFor::Network,
            Class::File => WaitsFor::File,
            Class::Plain(waits_for) => waits_for,
        };
        Some(SystemCall {
            number,
            waits_for,
            file,
        })
    }
}

/// Numbers from the kernel's tables: `arch/x86/entry/syscalls/syscall_64.tbl`.
#[cfg(target_arch = "x86_64")]
fn classify(number: u64) -> Class {
    match number {
        // read, write, pread64, pwrite64, readv, writev, preadv, pwritev; accept, connect, sendto, recvfrom, sendmsg,
        // recvmsg, accept4, recvmmsg, sendmmsg; fsync, fdatasync.
        0 | 1 | 17..=20 | 295 | 296 | 42..=47 | 288 | 299 | 307 | 74 | 75 => Class::Descriptor,
        // select, pselect6.
        23 | 270 => Class::Select,
        // poll, epoll_wait, ppoll, epoll_pwait, epoll_pwait2.
        7 | 232 | 271 | 281 | 441 => Class::Several,
        // open, stat, lstat, rename, mkdir, unlink, openat, newfstatat, unlinkat, renameat, renameat2, statx, sync, msync.
        2 | 4 | 6 | 82 | 83 | 87 | 257 | 262 | 263 | 264 | 316 | 332 | 162 | 26 => Class::File,
        35 | 230 => Class::Plain(WaitsFor::Time),
        202 | 449 => Class::Plain(WaitsFor::Thread),
        61 | 247 => Class::Plain(WaitsFor::Child),
        _ => Class::Plain(WaitsFor::Other),
    }
}

/// Numbers from the kernel's tables: `include/uapi/asm-generic/unistd.h`.
#[cfg(not(target_arch = "x86_64"))]
fn classify(number: u64) -> Class {
    match number {
        63..=70 | 82 | 83 | 202 | 203 | 206 | 207 | 211 | 212 | 242 | 243 | 269 => {
            Class::Descriptor
        }
        72 => Class::Select,
        22 | 73 | 441 => Class::Several,
        34 | 35 | 38 | 56 | 79 | 81 | 227 | 276 | 291 => Class::File,
        101 | 115 => Class::Plain(WaitsFor::Time),
        98 | 449 => Class::Plain(WaitsFor::Thread),
        95 | 260 => Class::Plain(WaitsFor::Child),
        _ => Class::Plain(WaitsFor::Other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_runs_is_in_no_call() {
        let process = Path::new("/proc/self");
        for line in ["running\n", "", "x 0x1", "-1 0x7ffc 0x7f"] {
            assert_eq!(SystemCall::parse(line, process), None, "{line}");
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn what_is_waited_for_depends_on_the_call_and_its_descriptor() {
        let root = tempfile::tempdir().unwrap();
        let fd = root.path().join("fd");
        fs::create_dir(&fd).unwrap();
        for (number, target) in [(3, "socket:[7]"), (4, "pipe:[8]"), (5, "/data/shard")] {
            std::os::unix::fs::symlink(target, fd.join(number.to_string())).unwrap();
        }
        let waits = |line: &str| SystemCall::parse(line, root.path()).unwrap().waits_for;
        assert_eq!(waits("0 0x3 0x0"), WaitsFor::Network);
        assert_eq!(waits("45 0x3 0x0"), WaitsFor::Network);
        assert_eq!(waits("0 0x4 0x0"), WaitsFor::Pipe);
        assert_eq!(waits("1 0x5 0x0"), WaitsFor::File);
        assert_eq!(waits("1 0x6 0x0"), WaitsFor::Other);
        assert_eq!(waits("1"), WaitsFor::Other);
        assert_eq!(waits("7 0x7ffe 0x1"), WaitsFor::Network);
        assert_eq!(waits("23 0x1 0x1"), WaitsFor::Network);
        assert_eq!(waits("23 0x0 0x0"), WaitsFor::Time);
        assert_eq!(waits("230 0x0 0x0"), WaitsFor::Time);
        assert_eq!(waits("202 0x7f00"), WaitsFor::Thread);
        assert_eq!(
            waits("18446744073709551615 0xffffffffffffffff"),
            WaitsFor::Other
        );
    }
}
