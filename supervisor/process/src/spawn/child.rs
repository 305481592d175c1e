// SPDX-License-Identifier: Apache-2.0
//! Between `fork` and `execve`: the only place where the supervisor needs `unsafe`.
//!
//! What runs in the child calls nothing that allocates or locks: `setsid`, `prctl`, `getppid`, `setrlimit`, `openat`,
//! `write`, `dup2`, `fcntl`, `close_range`, `chdir`, `sigaction`, `sigprocmask`, `execve`, `_exit`.

#![expect(unsafe_code, reason = "fork and execve cannot be had without")]

use std::ffi::{CStr, c_char, c_int};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use nix::errno::Errno;
use nix::unistd::Pid;

use super::{Prepared, SpawnRequest};

/// Why a child could not become the program that it was meant to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExecFailure {
    /// The step that failed.
    pub step: Step,
    /// The system's reason.
    pub errno: Errno,
}

/// The steps of a child before its program runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Step {
    /// Joining the cgroup.
    Cgroup = 1,
    /// Setting the limit of core dumps.
    Limit = 2,
    /// Arranging the descriptors.
    Descriptors = 3,
    /// Changing into the working directory.
    Directory = 4,
    /// Executing the program.
    Execute = 5,
}

impl std::fmt::Display for ExecFailure {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let what = match self.step {
            Step::Cgroup => "could not join its cgroup",
            Step::Limit => "could not set its limits",
            Step::Descriptors => "could not arrange its descriptors",
            Step::Directory => "could not enter the working directory",
            Step::Execute => "could not execute the program",
        };
        write!(formatter, "{what}: {}", self.errno.desc())
    }
}

impl ExecFailure {
    const LENGTH: usize = 5;

    /// Reads a child's report: `None` while it has not said anything, or when its program runs.
    ///
    /// # Errors
    ///
    /// When the pipe cannot be read.
    pub fn read(report: BorrowedFd<'_>) -> io::Result<ReportState> {
        let mut bytes = [0_u8; Self::LENGTH];
        match rustix::io::read(report, &mut bytes) {
            Ok(0) => Ok(ReportState::Executed),
            Ok(Self::LENGTH) => Ok(ReportState::Failed(Self::from_bytes(bytes))),
            Ok(length) => Err(io::Error::other(format!("a report of {length} bytes"))),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Ok(ReportState::Pending),
            Err(error) => Err(error.into()),
        }
    }

    fn from_bytes(bytes: [u8; Self::LENGTH]) -> ExecFailure {
        let step = match bytes[0] {
            1 => Step::Cgroup,
            2 => Step::Limit,
            3 => Step::Descriptors,
            4 => Step::Directory,
            _ => Step::Execute,
        };
        let number = i32::from_ne_bytes([bytes[1], bytes[2], bytes[3], bytes[4]]);
        ExecFailure {
            step,
            errno: Errno::from_raw(number),
        }
    }

    fn to_bytes(self) -> [u8; Self::LENGTH] {
        let number = (self.errno as i32).to_ne_bytes();
        [self.step as u8, number[0], number[1], number[2], number[3]]
    }
}

/// How far a child has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReportState {
    /// Neither executed nor failed yet.
    Pending,
    /// The program runs (or has run).
    Executed,
    /// It never will.
    Failed(ExecFailure),
}

/// Forks; the child becomes the program or reports why not and exits with 127.
pub(super) fn fork_and_execute(
    request: &SpawnRequest<'_>,
    prepared: &Prepared,
    report: BorrowedFd<'_>,
) -> io::Result<Pid> {
    let arguments = pointers(&prepared.arguments);
    let environment = pointers(&prepared.environment);
    let parent = nix::unistd::getpid();
    // SAFETY: the child runs `become_program` only, which allocates nothing and takes no lock (module docs), so it
    // does not matter in which state other threads left theirs.
    let pid = unsafe { libc::fork() };
    match pid {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            let failure = become_program(request, prepared, parent, &arguments, &environment);
            let bytes = failure.to_bytes();
            // SAFETY: `bytes` is a live array of that length; a failed write changes nothing for us.
            let _written =
                unsafe { libc::write(report.as_raw_fd(), bytes.as_ptr().cast(), bytes.len()) };
            // SAFETY: ends the child at once without running the parent's exit handlers.
            unsafe { libc::_exit(127) }
        }
        child => Ok(Pid::from_raw(child)),
    }
}

/// Runs in the child. Returns only if something failed.
fn become_program(
    request: &SpawnRequest<'_>,
    prepared: &Prepared,
    parent: Pid,
    arguments: &[*const c_char],
    environment: &[*const c_char],
) -> ExecFailure {
    if let Err(failure) = arrange(request, prepared, parent) {
        return failure;
    }
    // SAFETY: both vectors end with a null pointer and point into `CString`s that the parent's copy of memory keeps.
    unsafe {
        libc::execve(
            prepared.program.as_ptr(),
            arguments.as_ptr(),
            environment.as_ptr(),
        )
    };
    ExecFailure {
        step: Step::Execute,
        errno: Errno::last(),
    }
}

fn arrange(
    request: &SpawnRequest<'_>,
    prepared: &Prepared,
    parent: Pid,
) -> Result<(), ExecFailure> {
    if request.own_session {
        // SAFETY: no memory is involved; a fresh child leads no process group, so it cannot fail.
        unsafe { libc::setsid() };
    }
    if let Some(signal) = request.parent_death_signal {
        // SAFETY: prctl with integer arguments only.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, signal as c_int, 0, 0, 0) };
        // The parent may have died before the line above took effect: nobody would ever end this child.
        if nix::unistd::getppid() != parent {
            // SAFETY: ends this child, as the missed signal would have.
            unsafe { libc::_exit(127) };
        }
    }
    if let Some(cgroup) = request.cgroup {
        join(cgroup)?;
    }
    if let Some(bytes) = request.core_limit {
        set_core_limit(bytes)?;
    }
    arrange_descriptors(request)?;
    reset_signals();
    if let Some(directory) = &prepared.directory {
        change_directory(directory)?;
    }
    Ok(())
}

/// Moves this process into the cgroup with this directory.
///
/// To be born into it (`CLONE_INTO_CGROUP`) would save the ten to twenty milliseconds that the move waits for other
/// processors. But a kernel (6.18 at least, `cgroup_css_set_fork`) then compares how often the *parent's* cgroup was
/// killed with how often this one was, and kills the child at birth when they differ: as in every generation after one
/// that had to be ended by `cgroup.kill`.
fn join(cgroup: BorrowedFd<'_>) -> Result<(), ExecFailure> {
    let name = c"cgroup.procs".as_ptr();
    let flags = libc::O_WRONLY | libc::O_CLOEXEC;
    // SAFETY: a static C string, and a descriptor that the parent holds open.
    let members = unsafe { libc::openat(cgroup.as_raw_fd(), name, flags) };
    check(Step::Cgroup, members as isize)?;
    // SAFETY: writes one byte from a static string; "0" stands for the writer itself.
    let written = unsafe { libc::write(members, c"0".as_ptr().cast(), 1) };
    check(Step::Cgroup, written)
}

fn set_core_limit(bytes: u64) -> Result<(), ExecFailure> {
    let limit = libc::rlimit {
        rlim_cur: bytes,
        rlim_max: bytes,
    };
    // SAFETY: `limit` is a live, initialised structure.
    let result = unsafe { libc::setrlimit(libc::RLIMIT_CORE, &raw const limit) };
    if result == 0 || bytes == 0 {
        return check(Step::Limit, result as isize);
    }
    // The hard limit may be lower than what was asked for: take what there is.
    let mut allowed = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `allowed` is a live structure to be filled in.
    unsafe { libc::getrlimit(libc::RLIMIT_CORE, &raw mut allowed) };
    allowed.rlim_cur = allowed.rlim_max.min(bytes);
    // SAFETY: as above.
    let result = unsafe { libc::setrlimit(libc::RLIMIT_CORE, &raw const allowed) };
    check(Step::Limit, result as isize)
}

fn arrange_descriptors(request: &SpawnRequest<'_>) -> Result<(), ExecFailure> {
    // The sources are never 0, 1 or 2 by accident: Rust's start-up code fills those three.
    for (target, source) in request.stdio.iter().enumerate() {
        duplicate(source.as_raw_fd(), c_int::try_from(target).unwrap_or(0))?;
    }
    let mut first_to_close = 3;
    if let Some(source) = request.descriptor_three {
        duplicate(source.as_raw_fd(), 3)?;
        first_to_close = 4;
    }
    // SAFETY: marks descriptors of this child only; they are used until `execve` closes them.
    let result = unsafe {
        libc::close_range(
            first_to_close,
            u32::MAX,
            libc::CLOSE_RANGE_CLOEXEC.cast_signed(),
        )
    };
    if result != 0 {
        mark_all_close_on_exec(first_to_close)?;
    }
    Ok(())
}

/// For kernels before 5.11, which cannot mark a range.
fn mark_all_close_on_exec(first: u32) -> Result<(), ExecFailure> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `limit` is a live structure to be filled in.
    let result = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    check(Step::Descriptors, result as isize)?;
    let last = c_int::try_from(limit.rlim_cur.min(65_536)).unwrap_or(65_536);
    for descriptor in c_int::try_from(first).unwrap_or(3)..last {
        // SAFETY: changes a flag of a descriptor of this child; a number that is not open is refused, harmlessly.
        unsafe { libc::fcntl(descriptor, libc::F_SETFD, libc::FD_CLOEXEC) };
    }
    Ok(())
}

fn duplicate(source: c_int, target: c_int) -> Result<(), ExecFailure> {
    let result = if source == target {
        // SAFETY: clears the close-on-exec flag, which dup2 onto itself would leave.
        unsafe { libc::fcntl(source, libc::F_SETFD, 0) }
    } else {
        // SAFETY: both are descriptor numbers of this child.
        unsafe { libc::dup2(source, target) }
    };
    check(Step::Descriptors, result as isize)
}

/// Gives the program the signals that a shell would: nothing blocked, and SIGPIPE not ignored as it is in Rust programs.
fn reset_signals() {
    // SAFETY: SIG_DFL is a valid disposition.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    let mut empty = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: fills in the set that it is given.
    unsafe { libc::sigemptyset(empty.as_mut_ptr()) };
    // SAFETY: the set was initialised by the line above.
    unsafe { libc::sigprocmask(libc::SIG_SETMASK, empty.as_ptr(), ptr::null_mut()) };
}

fn change_directory(directory: &CStr) -> Result<(), ExecFailure> {
    // SAFETY: a valid C string.
    let result = unsafe { libc::chdir(directory.as_ptr()) };
    check(Step::Directory, result as isize)
}

fn check(step: Step, result: isize) -> Result<(), ExecFailure> {
    if result < 0 {
        Err(ExecFailure {
            step,
            errno: Errno::last(),
        })
    } else {
        Ok(())
    }
}

fn pointers(strings: &[std::ffi::CString]) -> Vec<*const c_char> {
    let mut list: Vec<_> = strings.iter().map(|each| each.as_ptr()).collect();
    list.push(ptr::null());
    list
}
