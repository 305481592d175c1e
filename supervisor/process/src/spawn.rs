// SPDX-License-Identifier: Apache-2.0
//! Creating processes.
//!
//! [`spawn`] returns as soon as the child exists and never waits for its `execve`, which can hang on a dead network file
//! system. Whether `execve` worked is read later from the child's report.

use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::sys::signal::Signal;
use nix::unistd::Pid;
use rustix::pipe::{PipeFlags, pipe_with};

mod child;

pub use child::{ExecFailure, ReportState, Step};

/// What to start, and in which surroundings.
#[derive(Debug)]
pub struct SpawnRequest<'a> {
    /// The file to execute; no search along `PATH` is made.
    pub program: &'a Path,
    /// All arguments, the program's own name first.
    pub arguments: &'a [OsString],
    /// The whole environment of the child.
    pub environment: &'a [(OsString, OsString)],
    /// Where it starts; the parent's directory when absent.
    pub directory: Option<&'a Path>,
    /// Standard input, output and error.
    pub stdio: [BorrowedFd<'a>; 3],
    /// A descriptor that the child finds under number 3.
    pub descriptor_three: Option<BorrowedFd<'a>>,
    /// Whether the child leads a session of its own, out of reach of the terminal's signals.
    pub own_session: bool,
    /// The signal that the child gets when the thread that spawned it is gone.
    pub parent_death_signal: Option<Signal>,
    /// Largest core dump in bytes, soft and hard; the parent's limit when absent.
    pub core_limit: Option<u64>,
    /// The directory of a cgroup v2 that the child is in before anything of the program runs.
    pub cgroup: Option<BorrowedFd<'a>>,
}

/// A child that exists.
#[derive(Debug)]
pub struct Spawned {
    /// Its process id.
    pub pid: Pid,
    /// Reads an [`ExecFailure`] when the program could not be executed, and nothing (end of file) when it could.
    pub report: OwnedFd,
}

/// Why no child could be created.
#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    /// A path, argument or variable holds a NUL byte, which the kernel cannot take.
    #[error("`{0}` holds a NUL byte")]
    NulByte(String),
    /// The report pipe could not be made.
    #[error("could not create a pipe")]
    Pipe(#[source] io::Error),
    /// `fork` failed, as it does when a limit of processes or memory is reached.
    #[error("could not create a process")]
    Fork(#[source] io::Error),
}

/// Creates a child as `request` says.
///
/// The caller is the child's parent for good: the parent-death signal follows the calling *thread*, so call this from a
/// thread that lives as long as the process.
///
/// # Errors
///
/// [`SpawnError`]; failures of the child itself (no such file, not executable) arrive through [`Spawned::report`].
pub fn spawn(request: &SpawnRequest<'_>) -> Result<Spawned, SpawnError> {
    let prepared = Prepared::new(request)?;
    let (report, report_write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)
        .map_err(|error| SpawnError::Pipe(error.into()))?;
    let pid = child::fork_and_execute(request, &prepared, report_write.as_fd())
        .map_err(SpawnError::Fork)?;
    Ok(Spawned { pid, report })
}

/// Finds an executable as a shell would: a name with a slash is taken as it is, else each directory of `search_path`
/// is tried.
///
/// # Errors
///
/// `NotFound` when there is no such file, `PermissionDenied` when one was found that may not be executed.
pub fn find_program(name: &OsStr, search_path: &OsStr) -> io::Result<PathBuf> {
    if name.is_empty() {
        return Err(io::ErrorKind::NotFound.into());
    }
    if name.as_bytes().contains(&b'/') {
        return check_executable(Path::new(name)).map(|()| PathBuf::from(name));
    }
    let mut refusal = io::Error::from(io::ErrorKind::NotFound);
    for directory in std::env::split_paths(search_path) {
        let candidate = directory.join(name);
        match check_executable(&candidate) {
            Ok(()) => return Ok(candidate),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => refusal = error,
            Err(_) => {}
        }
    }
    Err(refusal)
}

fn check_executable(path: &Path) -> io::Result<()> {
    if std::fs::metadata(path)?.is_dir() {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    rustix::fs::access(path, rustix::fs::Access::EXEC_OK)?;
    Ok(())
}

/// Everything that must be allocated before the fork.
struct Prepared {
    program: CString,
    directory: Option<CString>,
    arguments: Vec<CString>,
    environment: Vec<CString>,
}

impl Prepared {
    fn new(request: &SpawnRequest<'_>) -> Result<Prepared, SpawnError> {
        let environment = request.environment.iter().map(|(name, value)| {
            let mut pair = name.clone();
            pair.push("=");
            pair.push(value);
            c_string(&pair)
        });
        Ok(Prepared {
            program: c_string(request.program.as_os_str())?,
            directory: request
                .directory
                .map(|path| c_string(path.as_os_str()))
                .transpose()?,
            arguments: request
                .arguments
                .iter()
                .map(|each| c_string(each))
                .collect::<Result<_, _>>()?,
            environment: environment.collect::<Result<_, _>>()?,
        })
    }
}

fn c_string(text: &OsStr) -> Result<CString, SpawnError> {
    CString::new(text.as_bytes())
        .map_err(|_| SpawnError::NulByte(text.to_string_lossy().into_owned()))
}

#[cfg(test)]
mod tests;
