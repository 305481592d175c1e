// SPDX-License-Identifier: Apache-2.0
//! Notices that a process is dying before it can be reaped: a large one takes a second to give its memory back, and
//! one that dumps core takes longer.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Flag of a task that is exiting, in the ninth field of its `stat`.
const PF_EXITING: u64 = 0x4;

/// What a look at a process showed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vitality {
    /// It runs, or could.
    Alive,
    /// Every one of its tasks is on its way out, or it waits to be reaped.
    Dying,
    /// Its memory is being dumped; it runs no more.
    DumpingCore,
    /// It was reaped.
    Gone,
}

/// Watches one process. Keeps files of `/proc` open, so that a look costs one read, and so that a later process with
/// the same id is never taken for this one.
#[derive(Debug)]
pub struct ExitWatch {
    directory: PathBuf,
    statm: File,
    status: Option<File>,
}

impl ExitWatch {
    /// Begins to watch `pid` under `proc_root`, which is `/proc` but in tests. With `core_dumps`, each look also
    /// costs the reading of `status`, about 10 µs.
    ///
    /// # Errors
    ///
    /// When there is no such process, or its files cannot be opened.
    pub fn open(proc_root: &Path, pid: u32, core_dumps: bool) -> io::Result<Self> {
        let directory = proc_root.join(pid.to_string());
        let statm = File::open(directory.join("statm"))?;
        let status = core_dumps
            .then(|| File::open(directory.join("status")))
            .transpose()?;
        Ok(Self {
            directory,
            statm,
            status,
        })
    }

    /// Looks once. What cannot be told counts as alive: the exit will be seen when the process is reaped.
    pub fn poll(&self) -> Vitality {
        let mut buffer = [0; 4096];
        match self.statm.read_at(&mut buffer, 0) {
            Ok(0) => return Vitality::Gone,
            // The memory is gone, but that alone is true as well of a process whose main thread has ended before others.
            Ok(length) if buffer[..length].starts_with(b"0 ") => return self.without_memory(),
            Ok(_) => {}
            Err(error) => return unreadable(&error),
        }
        let Some(status) = &self.status else {
            return Vitality::Alive;
        };
        match status.read_at(&mut buffer, 0) {
            Ok(length) if is_dumping(&buffer[..length]) => Vitality::DumpingCore,
            Ok(_) => Vitality::Alive,
            Err(error) => unreadable(&error),
        }
    }

    /// How the process will be said to have ended, in the form that `waitpid` gives (exit code times 256, or the
    /// signal), once it is dying. `None` when the kernel does not tell, as to other users.
    pub fn exit_status(&self) -> Option<i32> {
        let stat = fs::read_to_string(self.directory.join("stat")).ok()?;
        let after_name = stat.get(stat.rfind(')')? + 1..)?;
        // The 52nd field and the last; the third is the first one after the name.
        after_name.split_ascii_whitespace().nth(49)?.parse().ok()
    }

    fn without_memory(&self) -> Vitality {
        let tasks = match fs::read_dir(self.directory.join("task")) {
            Ok(tasks) => tasks,
            Err(error) => return unreadable(&error),
        };
        for task in tasks.flatten() {
            // A task that is gone by now is no sign of life.
            let Ok(stat) = fs::read(task.path().join("stat")) else {
                continue;
            };
            if !is_exiting(&stat) {
                return Vitality::Alive;
            }
        }
        Vitality::Dying
    }
}

fn unreadable(error: &io::Error) -> Vitality {
    /// No such process.
    const ESRCH: i32 = 3;
    match error.raw_os_error() {
        Some(ESRCH) => Vitality::Gone,
        _ if error.kind() == io::ErrorKind::NotFound => Vitality::Gone,
        _ => Vitality::Alive,
    }
}

/// Whether `stat` is that of a task that is exiting. What is no `stat` is taken for a living task.
fn is_exiting(stat: &[u8]) -> bool {
    // The name is in parentheses and may hold anything, parentheses too.
    let Some(name_end) = memchr::memrchr(b')', stat) else {
        return false;
    };
    let Ok(rest) = std::str::from_utf8(&stat[name_end + 1..]) else {
        return false;
    };
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next();
    let flags = fields.nth(5).and_then(|flags| flags.parse::<u64>().ok());
    matches!(state, Some("Z" | "X")) || flags.is_some_and(|flags| flags & PF_EXITING != 0)
}

fn is_dumping(status: &[u8]) -> bool {
    memchr::memmem::find(status, b"\nCoreDumping:\t1").is_some()
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "tests watch real processes")]
mod tests {
    use std::process::{Child, Command, Stdio};
    use std::time::{Duration, Instant};

    use super::*;

    fn start(program: &str) -> Child {
        let mut child = Command::new("python3")
            .args(["-c", program])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut byte = [0];
        io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut byte).unwrap();
        child
    }

    fn wait_for(watch: &ExitWatch, wanted: &[Vitality]) -> Vitality {
        let deadline = Instant::now() + Duration::from_secs(100);
        loop {
            let seen = watch.poll();
            if wanted.contains(&seen) {
                return seen;
            }
            assert!(Instant::now() < deadline, "still {seen:?}");
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_killed_process_is_dying_before_it_is_reaped_and_gone_after() {
        let mut child =
            start("import time; x = bytearray(256 << 20); print(1, flush=True); time.sleep(600)");
        let watch = ExitWatch::open(Path::new("/proc"), child.id(), true).unwrap();
        assert_eq!(watch.poll(), Vitality::Alive);
        child.kill().unwrap();
        assert_eq!(
            wait_for(&watch, &[Vitality::Dying, Vitality::Gone]),
            Vitality::Dying
        );
        child.wait().unwrap();
        assert_eq!(watch.poll(), Vitality::Gone);
    }

    #[test]
    fn a_process_goes_on_when_only_its_main_thread_has_ended() {
        let program = "
import ctypes, threading, time
threading.Thread(target=lambda: (time.sleep(0.01), print(1, flush=True), time.sleep(600)), daemon=True).start()
ctypes.CDLL(None).pthread_exit(None)
";
        let mut child = start(program);
        let watch = ExitWatch::open(Path::new("/proc"), child.id(), false).unwrap();
        for _ in 0..100 {
            assert_eq!(watch.poll(), Vitality::Alive);
        }
        child.kill().unwrap();
        wait_for(&watch, &[Vitality::Dying]);
        child.wait().unwrap();
    }

    #[test]
    fn a_core_dump_is_told_by_the_status() {
        let root = tempfile::tempdir().unwrap();
        let process = root.path().join("7");
        fs::create_dir_all(process.join("task/7")).unwrap();
        fs::write(process.join("statm"), "2500 100 50 1 0 80 0\n").unwrap();
        fs::write(
            process.join("status"),
            "Name:\tpython3\nCoreDumping:\t1\nThreads:\t4\n",
        )
        .unwrap();
        let watch = ExitWatch::open(root.path(), 7, true).unwrap();
        assert_eq!(watch.poll(), Vitality::DumpingCore);
        fs::write(
            process.join("status"),
            "Name:\tpython3\nCoreDumping:\t0\nThreads:\t4\n",
        )
        .unwrap();
        assert_eq!(watch.poll(), Vitality::Alive);
        fs::write(process.join("statm"), "0 0 0 0 0 0 0\n").unwrap();
        fs::write(
            process.join("task/7/stat"),
            "7 (a) b) Z 1 7 7 0 -1 4228300 0 0\n",
        )
        .unwrap();
        assert_eq!(watch.poll(), Vitality::Dying);
        fs::write(
            process.join("task/7/stat"),
            "7 (a) b) S 1 7 7 0 -1 4194560 0 0\n",
        )
        .unwrap();
        assert_eq!(watch.poll(), Vitality::Alive);
        assert!(ExitWatch::open(root.path(), 8, false).is_err());
    }
}
