// SPDX-License-Identifier: Apache-2.0
//! A process that does one thing, says what came of it, and is waited for no longer than until its deadline.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, ErrorKind, Read as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::process::{PidfdFlags, pidfd_open};
use steadfast_checks::{Ended, How};
use steadfast_process::exit::{Exit, reap};
use steadfast_process::pipe::Pipe;
use steadfast_process::spawn::{ExecFailure, ReportState, SpawnRequest, Spawned, spawn};
use steadfast_process::tree::{Process, descendants};

/// The most that is kept of what it writes, for each of its two streams.
const MOST_BYTES: usize = 1 << 20;
const PIPE_BYTES: usize = 1 << 18;
/// How long a process that was killed is waited for.
const AFTER_KILL: Duration = Duration::from_millis(100);
/// How often new children are looked for before all are killed. Each round halts those whose children the next one finds, so
/// that only what forks faster than it can be halted needs many.
const MOST_ROUNDS: usize = 32;

/// What to start.
#[derive(Debug)]
pub(super) struct Start<'a> {
    pub(super) program: &'a Path,
    pub(super) arguments: &'a [OsString],
    pub(super) environment: &'a [(OsString, OsString)],
    /// What becomes of it at its deadline.
    pub(super) ending: Ending,
    /// A descriptor that it keeps open.
    pub(super) lock: Option<BorrowedFd<'a>>,
}

/// What becomes of a process at its deadline, and of one whose starter is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// It is killed, with all that it started.
    Kill,
    /// It is left alone, and ends when it can.
    Leave,
}

/// Runs it. `started` is told its id.
pub(super) fn run(start: &Start<'_>, until: Instant, started: impl FnOnce(Pid)) -> Ended {
    match begin(start) {
        Ok(mut running) => {
            started(running.child.pid);
            running.wait(start.ending, until)
        }
        Err(error) => Ended::silently(How::NotStarted(error.to_string())),
    }
}

/// A process, and what it has said so far.
struct Running {
    child: Spawned,
    /// Readable when it has ended.
    ended: OwnedFd,
    stdout: Stream,
    stderr: Stream,
}

/// One of its streams.
struct Stream {
    /// Absent once it was closed.
    pipe: Option<File>,
    said: Vec<u8>,
}

fn begin(start: &Start<'_>) -> io::Result<Running> {
    let (stdout, stderr) = (
        Pipe::with_capacity(PIPE_BYTES)?,
        Pipe::with_capacity(PIPE_BYTES)?,
    );
    let nothing = File::open("/dev/null")?;
    let child = spawn(&SpawnRequest {
        program: start.program,
        arguments: start.arguments,
        environment: start.environment,
        directory: Some(Path::new("/")),
        stdio: [nothing.as_fd(), stdout.write.as_fd(), stderr.write.as_fd()],
        descriptor_three: start.lock,
        own_session: true,
        // It follows the thread that waits here, which is there as long as the process is wanted.
        parent_death_signal: (start.ending == Ending::Kill).then_some(Signal::SIGKILL),
        core_limit: Some(0),
        cgroup: None,
    })
    .map_err(io::Error::other)?;
    let pid = rustix::process::Pid::from_raw(child.pid.as_raw())
        .ok_or_else(|| io::Error::other("a process without an id"))?;
    Ok(Running {
        child,
        ended: pidfd_open(pid, PidfdFlags::empty())?,
        stdout: Stream::new(stdout.read)?,
        stderr: Stream::new(stderr.read)?,
    })
}

impl Running {
    fn wait(&mut self, ending: Ending, until: Instant) -> Ended {
        let exit = self.watch(until);
        let how = match exit {
            Some(exit) => self.explain(exit),
            None => self.give_up(ending),
        };
        Ended {
            how,
            stdout: std::mem::take(&mut self.stdout.said),
            stderr: std::mem::take(&mut self.stderr.said),
        }
    }

    /// Takes in what it says until it ends, or until then.
    fn watch(&mut self, until: Instant) -> Option<Exit> {
        loop {
            let left = until.saturating_duration_since(Instant::now());
            // Rounded up, so as not to look a thousand times in the last millisecond.
            let left = left.as_millis().saturating_add(u128::from(!left.is_zero()));
            let mut watched = vec![PollFd::new(self.ended.as_fd(), PollFlags::POLLIN)];
            for stream in [&self.stdout, &self.stderr] {
                let pipe = stream.pipe.iter();
                watched.extend(pipe.map(|pipe| PollFd::new(pipe.as_fd(), PollFlags::POLLIN)));
            }
            let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
            // An interrupted poll is a short one.
            let _looked_at_anyway = poll(&mut watched, timeout);
            // Before what it has said is read for the last time: after its end it says nothing more.
            let exit = reap(self.child.pid).unwrap_or(Some(Exit::Code(0)));
            self.stdout.take_in();
            self.stderr.take_in();
            // Something that it has started may still hold its streams: that is not waited for.
            if exit.is_some() || left == 0 {
                return exit;
            }
        }
    }

    fn explain(&self, exit: Exit) -> How {
        if let Ok(ReportState::Failed(failure)) = ExecFailure::read(self.child.report.as_fd()) {
            return How::NotStarted(failure.to_string());
        }
        match exit {
            Exit::Code(code) => How::Exited(code),
            Exit::Signal { signal, .. } => How::Killed(signal),
        }
    }

    fn give_up(&mut self, ending: Ending) -> How {
        let pid = self.child.pid.as_raw();
        let process = Process::read(pid);
        let how = How::TimedOut {
            pid,
            state: process.as_ref().map_or('?', |process| process.state),
            waits_in: process.as_ref().and_then(Process::waits_in),
        };
        if ending == Ending::Kill {
            kill_all(pid, process);
            // One that the kernel cannot end is not waited for.
            let _ended = self.watch(Instant::now() + AFTER_KILL);
        }
        how
    }
}

/// Kills a process and all that it started. All are halted first: a child that is born between the look at its parent and
/// the parent's death would belong to nobody, and be found by nobody.
fn kill_all(pid: i32, process: Option<Process>) {
    let mut halted: Vec<Process> = process.into_iter().collect();
    let mut known: BTreeSet<i32> = BTreeSet::from([pid]);
    for process in &halted {
        process.signal(Signal::SIGSTOP);
    }
    for _round in 0..MOST_ROUNDS {
        let mut new = descendants(pid, &BTreeSet::new());
        new.retain(|process| known.insert(process.pid));
        if new.is_empty() {
            break;
        }
        for process in &new {
            process.signal(Signal::SIGSTOP);
        }
        halted.extend(new);
    }
    for process in halted {
        // One that is gone needs no signal.
        process.signal(Signal::SIGKILL);
    }
}

impl Stream {
    fn new(pipe: OwnedFd) -> io::Result<Self> {
        let flags = fcntl_getfl(&pipe)?;
        fcntl_setfl(&pipe, flags | OFlags::NONBLOCK)?;
        Ok(Self {
            pipe: Some(File::from(pipe)),
            said: Vec::new(),
        })
    }

    /// Takes in what is there. What is too much is read and forgotten, so that nobody waits for room.
    fn take_in(&mut self) {
        let mut buffer = [0; 4096];
        while let Some(pipe) = &mut self.pipe {
            match pipe.read(&mut buffer) {
                Ok(0) => self.pipe = None,
                Ok(length) => {
                    let room = MOST_BYTES.saturating_sub(self.said.len()).min(length);
                    self.said.extend_from_slice(&buffer[..room]);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(_) => self.pipe = None,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, until: Instant) -> Ended {
        let arguments = ["sh", "-c", script].map(OsString::from);
        let start = Start {
            program: Path::new("/bin/sh"),
            arguments: &arguments,
            environment: &[],
            ending: Ending::Kill,
            lock: None,
        };
        run(&start, until, |_| {})
    }

    fn patient() -> Instant {
        Instant::now() + Duration::from_mins(1)
    }

    #[test]
    fn what_it_says_and_how_it_ends_is_told() {
        let ended = shell("echo out; echo err >&2; exit 3", patient());
        assert_eq!(ended.how, How::Exited(3));
        assert_eq!(
            (&*ended.stdout, &*ended.stderr),
            (&b"out\n"[..], &b"err\n"[..])
        );
        assert_eq!(shell("kill -9 $$", patient()).how, How::Killed(9));
    }

    #[test]
    fn one_that_says_too_much_is_cut_and_not_stopped() {
        let ended = shell("head -c 3000000 /dev/zero; exit 7", patient());
        assert_eq!(
            (ended.how, ended.stdout.len()),
            (How::Exited(7), MOST_BYTES)
        );
    }

    #[test]
    fn one_that_leaves_another_behind_on_its_streams_is_not_waited_for() {
        let ended = shell("sleep 1000 & echo $!", patient());
        assert_eq!(ended.how, How::Exited(0));
        let left: i32 = String::from_utf8(ended.stdout)
            .unwrap()
            .trim()
            .parse()
            .unwrap();
        assert!(Process::read(left).unwrap().signal(Signal::SIGKILL));
    }

    #[test]
    fn one_that_is_too_slow_is_killed_with_all_that_it_started() {
        let ended = shell(
            "sleep 1000 & echo $!; wait",
            Instant::now() + Duration::from_millis(500),
        );
        let How::TimedOut { pid, .. } = ended.how else {
            panic!("{ended:?}");
        };
        assert!(Process::read(pid).is_none(), "it was reaped");
        let text = String::from_utf8(ended.stdout).unwrap();
        for line in text.lines() {
            wait_for_the_end(line.parse().unwrap());
        }
    }

    #[test]
    fn one_that_goes_on_starting_others_is_killed_with_all_of_them() {
        let ended = shell(
            "while :; do sleep 1000 & echo $!; done",
            Instant::now() + Duration::from_millis(200),
        );
        assert!(matches!(ended.how, How::TimedOut { .. }), "{ended:?}");
        let text = String::from_utf8(ended.stdout).unwrap();
        for line in text.lines() {
            wait_for_the_end(line.parse().unwrap());
        }
    }

    /// A signal that was sent may take its time on a busy machine.
    fn wait_for_the_end(pid: i32) {
        let until = patient();
        let lives = || {
            Process::read(pid).is_some_and(|process| {
                !process.is_dead() && matches!(&*process.name, "sleep" | "sh")
            })
        };
        while lives() {
            assert!(Instant::now() < until, "process {pid} outlived its starter");
            std::thread::yield_now();
        }
    }

    #[test]
    fn what_cannot_be_run_is_said() {
        let start = Start {
            program: Path::new("/nonexistent"),
            arguments: &[],
            environment: &[],
            ending: Ending::Kill,
            lock: None,
        };
        let ended = run(&start, patient(), |_| {});
        let How::NotStarted(why) = ended.how else {
            panic!("{ended:?}");
        };
        assert!(why.contains("could not execute"), "{why}");
    }
}
