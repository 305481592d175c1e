// SPDX-License-Identifier: Apache-2.0
//! Starting this program once more, out of reach of whoever waits for the process that does so.
//!
//! slurmd reads a hook's output to its end: a process that inherits it holds up the job. So nothing is inherited.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use nix::unistd::Pid;
use steadfast_process::spawn::{SpawnRequest, spawn};

/// What a hook's environment holds that would make its children look like a part of the job.
const OF_THE_JOB: [&str; 4] = [
    "SLURM_JOB_ID",
    "SLURM_JOBID",
    "SLURM_SCRIPT_CONTEXT",
    "CUDA_VISIBLE_DEVICES",
];

/// Starts this program with these arguments: in a session of its own, with nothing but `/dev/null` open. It goes on when this
/// process ends.
///
/// # Errors
///
/// When the process cannot be created.
pub(crate) fn start(
    arguments: &[OsString],
    environment: Vec<(OsString, OsString)>,
) -> io::Result<Pid> {
    let null = OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/null")?;
    let mut words: Vec<OsString> = vec!["steadfast".into()];
    words.extend_from_slice(arguments);
    let mut environment = environment;
    environment.retain(|(name, _)| !OF_THE_JOB.iter().any(|known| name == known));
    let spawned = spawn(&SpawnRequest {
        program: Path::new("/proc/self/exe"),
        arguments: &words,
        environment: &environment,
        directory: Some(Path::new("/")),
        stdio: [null.as_fd(), null.as_fd(), null.as_fd()],
        descriptor_three: None,
        own_session: true,
        parent_death_signal: None,
        core_limit: Some(0),
        cgroup: None,
    })
    .map_err(io::Error::other)?;
    Ok(spawned.pid)
}
