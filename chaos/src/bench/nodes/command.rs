// SPDX-License-Identifier: Apache-2.0
//! The command lines of the launchers, each with its own defaults.

use std::ffi::OsString;
use std::path::Path;

use super::Case;
use crate::bench::job::LauncherKind;
use crate::bench::launch::words;

/// The job's name.
pub(super) const JOB: &str = "bench";
/// Restarts that are allowed: more than any bench needs.
const MAX_RESTARTS: &str = "1000";

/// A node whose launcher is to be started.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place<'a> {
    /// From 1 on, in the order of their starts.
    pub(super) number: u32,
    pub(super) name: &'a str,
    /// Its logs, and its journal.
    pub(super) directory: &'a Path,
    pub(super) workers: &'a str,
    pub(super) case: Case,
}

impl Place<'_> {
    /// `steadfast run` up to the worker's own words.
    pub(super) fn steadfast(&self, program: &Path, coord: &str, python: &Path) -> Vec<OsString> {
        let directory = self.directory;
        let mut command = words([
            &program,
            &"run",
            &"--coord",
            &coord,
            &"--job",
            &JOB,
            &"--node-name",
            &self.name,
            &"--address",
            &"127.0.0.1",
            &"--nproc-per-node",
            &self.workers,
            &"--max-restarts",
            &MAX_RESTARTS,
            &"--log-dir",
            &directory.join("logs"),
            &"--journal",
            &directory.join("journal.jsonl"),
            &"--runtime-dir",
            &directory.join("run"),
        ]);
        command.extend(match self.case {
            Case::Shrink => words([
                &"--nnodes",
                &"1:2",
                &"--shrink-after",
                &"0s",
                &"--grow",
                &"immediately",
            ]),
            _ => words([&"--nnodes", &"2"]),
        });
        command.extend(words([&"--", &python]));
        command
    }

    /// Another launcher up to the worker's own words. Underscores in the flags: versions of every age know those.
    pub(super) fn peer(&self, kind: LauncherKind, program: &Path, port: u16) -> Vec<OsString> {
        let is_host = format!("is_host={}", u8::from(self.number == 1));
        let mut command = match kind {
            // By default a restarted job finds the addresses of its last life in the store that torchrun shares with it,
            // and with gloo it does not come back at all.
            LauncherKind::Torchrun => words([
                &"env",
                &"TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1",
                &program,
                &"--local_addr",
                &"127.0.0.1",
            ]),
            // It takes two launchers with one address for a mistake.
            _ => words([
                &program,
                &"--local_addr",
                &format!("127.0.0.{}", self.number),
            ]),
        };
        let nodes = match (kind, self.case) {
            (_, Case::Shrink) => "1:2",
            // Those beyond the least number stand by.
            (LauncherKind::FtLauncher, _) => "2:3",
            _ => "2",
        };
        command.extend(words([
            &"--nnodes",
            &nodes,
            &"--nproc_per_node",
            &self.workers,
            &"--max_restarts",
            &MAX_RESTARTS,
            &"--rdzv_backend",
            &"c10d",
            &"--rdzv_endpoint",
            &format!("127.0.0.1:{port}"),
            &"--rdzv_conf",
            &is_host,
            &"--rdzv_id",
            &JOB,
            &"--log_dir",
            &self.directory.join("logs"),
        ]));
        command
    }
}
