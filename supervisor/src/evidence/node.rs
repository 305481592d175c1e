// SPDX-License-Identifier: Apache-2.0
//! What is known of a node as a whole: its load, its health, the end of its kernel log, what NCCL says there.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use nix::fcntl::OFlag;
use serde::{Deserialize, Serialize};
use steadfast_health::nccl_ras::{self, RasProblem};

use crate::redact;

/// How long the node is waited for when the rest is done.
const A_LITTLE_LONGER: Duration = Duration::from_millis(300);
/// How long NCCL may take to answer. Where nobody listens, that is known at once.
const NCCL_WITHIN: Duration = Duration::from_secs(1);
/// Records of the kernel log that are kept, and characters of each.
const KERNEL_LINES: usize = 100;
const LONGEST_LINE: usize = 500;
/// A record of the kernel log is no longer, and its buffer has no more of them.
const LARGEST_RECORD: usize = 8192;
const MOST_RECORDS: usize = 100_000;
/// The end of a log that is a plain file.
const FILE_END: u64 = 64 * 1024;

/// A node to look at.
#[derive(Debug, Clone)]
pub(crate) struct NodeSubject {
    /// Its name.
    pub(crate) node: String,
    /// What watches it and what that has found, in words: driver, GPUs, what is wrong with each.
    pub(crate) health: Vec<String>,
    /// Where its kernel log is, if that may be read.
    pub(crate) kernel_log: Option<PathBuf>,
    /// Where NCCL answers, unless that is turned off.
    pub(crate) nccl: Option<String>,
}

/// What was seen of a node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NodeEvidence {
    /// Its name.
    pub(crate) node: String,
    /// What watches it and what that has found, in words.
    pub(crate) health: Vec<String>,
    /// The kernel's figures for how much it is held up, by what.
    pub(crate) pressure: Vec<(String, String)>,
    /// The load averages.
    pub(crate) load: String,
    /// The end of its kernel log, without what looks like a secret.
    pub(crate) kernel_log: Vec<String>,
    /// Why there is no kernel log, in words.
    pub(crate) no_kernel_log: Option<String>,
    /// What is wrong by what NCCL says of the job, or why it says nothing.
    #[serde(default)]
    pub(crate) nccl: Vec<String>,
    /// What of that is about a process that it names by number.
    #[serde(default)]
    pub(crate) nccl_processes: Vec<(u32, String)>,
    /// NCCL's own words.
    #[serde(default)]
    pub(crate) nccl_answer: Option<String>,
}

/// Looks at this node while `meanwhile` is being done, and hardly longer: a log can be on a disk that does not answer.
pub(crate) fn look_at_node<T>(
    subject: NodeSubject,
    meanwhile: impl FnOnce() -> T,
) -> (NodeEvidence, T) {
    let deadline = Instant::now() + NCCL_WITHIN;
    let nccl = subject.nccl.clone().map(ask_nccl);
    let (sender, seen) = mpsc::channel();
    let unseen = NodeEvidence {
        node: subject.node.clone(),
        health: subject.health.clone(),
        no_kernel_log: Some("it did not answer".to_owned()),
        ..NodeEvidence::default()
    };
    // Without a thread the node counts as not seen.
    let _not_seen = thread::Builder::new()
        .name("evidence".to_owned())
        .spawn(move || {
            // Too late: nobody waits any more.
            drop(sender.send(look(&subject)));
        });
    let done = meanwhile();
    let mut node = seen.recv_timeout(A_LITTLE_LONGER).unwrap_or(unseen);
    if let Some(nccl) = nccl {
        let left = deadline.saturating_duration_since(Instant::now());
        let said = nccl.recv_timeout(left).unwrap_or_else(|_| FromNccl {
            problems: vec!["NCCL has not answered in time".to_owned()],
            ..FromNccl::default()
        });
        (node.nccl, node.nccl_processes) = (said.problems, said.processes);
        node.nccl_answer = said.answer;
    }
    (node, done)
}

/// What is wrong by NCCL's answer, and the answer.
#[derive(Default)]
struct FromNccl {
    problems: Vec<String>,
    processes: Vec<(u32, String)>,
    answer: Option<String>,
}

fn ask_nccl(address: String) -> mpsc::Receiver<FromNccl> {
    let (sender, answer) = mpsc::channel();
    // Without a thread it has not answered.
    let _no_answer = thread::Builder::new()
        .name("evidence".to_owned())
        .spawn(move || {
            let said = match nccl_ras::ask(&address, NCCL_WITHIN) {
                Ok(report) => FromNccl {
                    problems: report.problems.iter().map(ToString::to_string).collect(),
                    processes: processes(&report.problems),
                    answer: Some(report.answer),
                },
                Err(error) => FromNccl {
                    problems: vec![format!("NCCL says nothing: {error}")],
                    ..FromNccl::default()
                },
            };
            // Too late: nobody waits any more.
            drop(sender.send(said));
        });
    answer
}

/// A rank is numbered anew in each communicator; a process has its number on its node.
fn processes(problems: &[RasProblem]) -> Vec<(u32, String)> {
    let about = problems.iter().flat_map(|problem| {
        let peers = problem.peers.iter().filter_map(|peer| peer.pid);
        peers.map(|pid| (pid, problem.what.clone()))
    });
    about.collect()
}

fn look(subject: &NodeSubject) -> NodeEvidence {
    let read = |name: &str| fs::read_to_string(format!("/proc/{name}")).unwrap_or_default();
    let pressure =
        ["cpu", "memory", "io"].map(|name| (name.to_owned(), read(&format!("pressure/{name}"))));
    let log = match &subject.kernel_log {
        Some(path) => {
            end_of_log(path).map_err(|error| format!("{} cannot be read: {error}", path.display()))
        }
        None => Err("it is not looked at (--kernel-log)".to_owned()),
    };
    let (kernel_log, no_kernel_log) = match log {
        Ok(lines) => (lines, None),
        Err(reason) => (Vec::new(), Some(reason)),
    };
    NodeEvidence {
        node: subject.node.clone(),
        health: subject.health.clone(),
        pressure: pressure.into(),
        load: read("loadavg").trim().to_owned(),
        kernel_log,
        no_kernel_log,
        nccl: Vec::new(),
        nccl_processes: Vec::new(),
        nccl_answer: None,
    }
}

fn end_of_log(path: &Path) -> io::Result<Vec<String>> {
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(OFlag::O_NONBLOCK.bits())
        .open(path)?;
    let kind = file.metadata()?.file_type();
    let lines = if kind.is_char_device() {
        records(file)?
    } else if kind.is_file() {
        lines(file)?
    } else {
        return Err(io::Error::other(
            "what goes through a pipe can be read only once",
        ));
    };
    let skipped = lines.len().saturating_sub(KERNEL_LINES);
    let last = lines.into_iter().skip(skipped);
    Ok(last
        .map(|line| redact::line(&line.chars().take(LONGEST_LINE).collect::<String>()))
        .collect())
}

/// Of the kernel's own log, one record is had with each read.
fn records(mut log: File) -> io::Result<Vec<String>> {
    let mut lines = Vec::new();
    let mut buffer = vec![0; LARGEST_RECORD];
    for _ in 0..MOST_RECORDS {
        match log.read(&mut buffer) {
            Ok(0) => break,
            Ok(length) => {
                let record = String::from_utf8_lossy(&buffer[..length]);
                lines.extend(record.lines().next().map(str::to_owned));
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            // Some were overwritten before they could be read: it goes on with the oldest that is there.
            Err(error) if error.raw_os_error() == Some(nix::libc::EPIPE) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(lines)
}

fn lines(mut log: File) -> io::Result<Vec<String>> {
    let length = log.metadata()?.len();
    log.seek(SeekFrom::Start(length.saturating_sub(FILE_END)))?;
    let mut bytes = Vec::new();
    log.take(FILE_END).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    Ok(text.lines().map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subject(kernel_log: Option<PathBuf>) -> NodeSubject {
        NodeSubject {
            node: "n1".to_owned(),
            health: vec!["NVML is watched (driver 550, 8 GPUs)".to_owned()],
            kernel_log,
            nccl: None,
        }
    }

    #[test]
    fn the_end_of_the_log_is_kept_without_secrets() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("kernel.log");
        let mut lines: Vec<String> = (0..500)
            .map(|line| format!("6,{line},1,-;line {line}"))
            .collect();
        lines.push("6,500,1,-;started with --token=abcdef".to_owned());
        fs::write(&path, lines.join("\n")).unwrap();
        let seen = look(&subject(Some(path)));
        assert_eq!(seen.kernel_log.len(), KERNEL_LINES);
        assert_eq!(seen.kernel_log[98], "6,499,1,-;line 499");
        assert!(
            !seen.kernel_log[99].contains("abcdef"),
            "{:?}",
            seen.kernel_log[99]
        );
        assert_eq!((seen.node.as_str(), seen.health.len()), ("n1", 1));
        assert!(!seen.load.is_empty());
    }

    #[test]
    fn what_cannot_be_read_is_said() {
        let seen = look(&subject(Some("/nonexistent".into())));
        assert!(seen.no_kernel_log.unwrap().contains("cannot be read"));
        let (seen, done) = look_at_node(subject(None), || 7);
        assert!(seen.no_kernel_log.is_some() && done == 7);
    }
}
