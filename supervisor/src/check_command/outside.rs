// SPDX-License-Identifier: Apache-2.0
//! What checks may not do themselves: processes of their own for what can hang, and for other programs.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Instant;

use rustix::io::fcntl_dupfd_cloexec;
use steadfast_checks::{Ended, How, KernelClock, Outside, Profile, Work};
use steadfast_process::kernel_clock;
use steadfast_process::spawn::find_program;

use super::child::{Ending, Start, run};
use super::lock::{self, Lock};
use super::work;

/// Where programs are looked for when nobody says, as in the hooks of Slurm.
const SEARCH_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Descriptors of the program are above those that a child is given.
const ABOVE: i32 = 10;

/// The program that runs, also when its file was replaced meanwhile.
#[derive(Debug)]
pub(super) struct Executable(OwnedFd);

impl Executable {
    /// # Errors
    ///
    /// When it cannot be opened.
    pub(super) fn open() -> io::Result<Self> {
        let file = File::open("/proc/self/exe")?;
        Ok(Self(fcntl_dupfd_cloexec(file, ABOVE)?))
    }

    /// By what a child can execute it.
    pub(super) fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.0.as_raw_fd()))
    }
}

/// Creates the processes that checks need.
#[derive(Debug)]
pub(super) struct Processes {
    executable: Executable,
    environment: Vec<(OsString, OsString)>,
    /// What becomes of the one that asks the driver, when it hangs.
    asking: Ending,
}

impl Processes {
    /// # Errors
    ///
    /// When the program that runs cannot be opened.
    pub(super) fn new(profile: Profile) -> io::Result<Self> {
        let mut environment: Vec<(OsString, OsString)> = std::env::vars_os().collect();
        if !environment.iter().any(|(name, _)| name == "PATH") {
            environment.push(("PATH".into(), SEARCH_PATH.into()));
        }
        Ok(Self {
            executable: Executable::open()?,
            environment,
            // A job leaves nothing behind. Its own probe dies with it as well.
            asking: match profile {
                Profile::Job => Ending::Kill,
                _ => Ending::Leave,
            },
        })
    }

    /// Runs this program again.
    fn own(&self, work: &Work, until: Instant, ending: Ending, lock: Option<&File>) -> Ended {
        let program = self.executable.path();
        let mut arguments = vec![OsString::from("steadfast")];
        arguments.extend(work::arguments(work));
        let start = Start {
            program: &program,
            arguments: &arguments,
            environment: &self.environment,
            ending,
            lock: lock.map(|lock| lock.as_fd()),
        };
        run(&start, until, |pid| {
            if let Some(lock) = lock {
                lock::sign(lock, pid);
            }
        })
    }

    fn nvml(&self, work: &Work, lock: Option<&Path>, until: Instant) -> Ended {
        match lock.map(|path| lock::take(path, until)) {
            Some(Lock::Held { pid, age }) => Ended::silently(How::Earlier { pid, age }),
            Some(Lock::Taken(file)) => self.own(work, until, self.asking, Some(&file)),
            Some(Lock::Impossible) | None => self.own(work, until, self.asking, None),
        }
    }

    fn command(&self, words: &[String], until: Instant) -> Ended {
        let arguments: Vec<OsString> = words.iter().map(OsString::from).collect();
        let Some(name) = arguments.first() else {
            return Ended::silently(How::NotStarted("there is no command".to_owned()));
        };
        let path = self.environment.iter().find(|(name, _)| name == "PATH");
        let path = path.map(|(_, path)| path.clone()).unwrap_or_default();
        match find_program(name, &path) {
            Ok(program) => {
                let start = Start {
                    program: &program,
                    arguments: &arguments,
                    environment: &self.environment,
                    ending: Ending::Kill,
                    lock: None,
                };
                run(&start, until, |_| {})
            }
            Err(error) => {
                let name = name.to_string_lossy();
                Ended::silently(How::NotStarted(format!("`{name}` cannot be run: {error}")))
            }
        }
    }
}

impl Outside for Processes {
    fn run(&self, work: &Work, until: Instant) -> Ended {
        match work {
            Work::Nvml { lock, .. } => self.nvml(work, lock.as_deref(), until),
            Work::Mount { .. } => self.own(work, until, Ending::Kill, None),
            Work::Command { words } => self.command(words, until),
        }
    }

    fn kernel_clock(&self) -> Result<KernelClock, String> {
        let clock = kernel_clock::read().map_err(|error| error.to_string())?;
        Ok(KernelClock {
            synchronised: clock.synchronised,
            estimated_error_us: clock.estimated_error_us,
            maximum_error_us: clock.maximum_error_us,
        })
    }
}
