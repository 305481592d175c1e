// SPDX-License-Identifier: Apache-2.0
//! Processes that a job has left on the node.
//!
//! What ties a process to a job: the job's cgroup, or the job's number in the environment that it was started with. What ties
//! it to nothing but the job's user is a weaker sign: then the user must have no other job on the node, and the process must
//! be younger than the job.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use nix::sys::signal::Signal;
use steadfast_process::tree::{Process, all_processes};

use crate::clock;

/// Users below this number are the system's (`UID_MIN` of `login.defs`).
const FIRST_PERSON: u32 = 1000;
/// How long processes may take to be gone once they were killed.
const BURIAL: Duration = Duration::from_secs(10);
/// Between two looks.
const PAUSE: Duration = Duration::from_millis(50);

/// The job whose leftovers are looked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Owner<'a> {
    /// Number of the job.
    pub(crate) job: &'a str,
    /// Name of the node: several nodes can share one machine.
    pub(crate) node: &'a str,
    /// Whose the job is.
    pub(crate) uid: Option<u32>,
    /// When it began on this node, in clock ticks since the start of the machine; `None` when that is not known.
    pub(crate) began_ticks: Option<u64>,
    /// Whether the prologs of this node have left no other job of this user.
    pub(crate) is_only_job: bool,
}

/// What was found.
#[derive(Debug, Default)]
pub(crate) struct Leftovers {
    /// Processes of the job.
    pub(crate) of_job: Vec<Process>,
    /// Processes of the user that began during the job, and belong to no other.
    pub(crate) of_user: Vec<Process>,
}

/// What is known of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Traits {
    uid: u32,
    /// Number of the job whose cgroup it is in.
    cgroup_job: Option<String>,
    /// Numbers of jobs and names of nodes that its environment holds.
    environment_job: Option<String>,
    environment_node: Option<String>,
    /// Whether slurmd has started it (or what it comes from) as a hook.
    is_hook: bool,
    name: String,
    start_ticks: u64,
}

/// What a process is to the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tie {
    Job,
    OtherJob,
    User,
    None,
}

impl Traits {
    fn read(process: &Process) -> Option<Traits> {
        let directory = format!("/proc/{}", process.pid);
        let uid = fs::metadata(&directory).ok()?.uid();
        let environment = fs::read(format!("{directory}/environ")).unwrap_or_default();
        let cgroups = fs::read_to_string(format!("{directory}/cgroup")).unwrap_or_default();
        let context = variable(&environment, "SLURM_SCRIPT_CONTEXT").unwrap_or_default();
        Some(Traits {
            uid,
            cgroup_job: job_of_cgroups(&cgroups),
            environment_job: variable(&environment, "SLURM_JOB_ID")
                .or_else(|| variable(&environment, "SLURM_JOBID")),
            environment_node: variable(&environment, "SLURMD_NODENAME"),
            // A user can write anything into an environment, but does not run as root.
            is_hook: uid == 0 && (context.ends_with("slurmd") || context.ends_with("slurmctld")),
            name: process.name.clone(),
            start_ticks: process.start_ticks,
        })
    }

    fn tie(&self, owner: Owner<'_>) -> Tie {
        let is_slurm = self.uid == 0 && self.name.starts_with("slurm");
        let elsewhere = self
            .environment_node
            .as_deref()
            .is_some_and(|node| node != owner.node);
        if self.is_hook || is_slurm || elsewhere {
            return Tie::None;
        }
        if let Some(job) = &self.cgroup_job {
            return if job == owner.job {
                Tie::Job
            } else {
                Tie::OtherJob
            };
        }
        let same_user = owner.uid == Some(self.uid);
        match &self.environment_job {
            Some(job) if job == owner.job && same_user => return Tie::Job,
            Some(job) if job != owner.job && same_user => return Tie::OtherJob,
            _ => {}
        }
        let younger = owner
            .began_ticks
            .is_some_and(|began| self.start_ticks >= began);
        if same_user && self.uid >= FIRST_PERSON && younger {
            Tie::User
        } else {
            Tie::None
        }
    }
}

/// Looks for them. This process and those that it comes from are never among them.
pub(crate) fn find(owner: Owner<'_>) -> Leftovers {
    let processes = all_processes();
    let own = own_line(&processes);
    let mut found = Leftovers::default();
    let mut has_other_job = !owner.is_only_job;
    for process in processes {
        if own.contains(&process.pid) || process.is_dead() {
            continue;
        }
        match Traits::read(&process).map_or(Tie::None, |traits| traits.tie(owner)) {
            Tie::Job => found.of_job.push(process),
            Tie::OtherJob => has_other_job = true,
            Tie::User => found.of_user.push(process),
            Tie::None => {}
        }
    }
    if has_other_job {
        found.of_user.clear();
    }
    found
}

/// Kills what `find` gives, again and again until it gives nothing more, or time is up. Returns what was killed, and what is
/// still there.
pub(crate) fn kill(mut find: impl FnMut() -> Vec<Process>) -> (Vec<Process>, Vec<Process>) {
    let deadline = clock::monotonic_ns() + u64::try_from(BURIAL.as_nanos()).unwrap_or(u64::MAX);
    let mut killed = BTreeMap::new();
    loop {
        let alive = find();
        for process in &alive {
            process.signal(Signal::SIGKILL);
            killed.insert((process.pid, process.start_ticks), process.clone());
        }
        if alive.is_empty() || clock::monotonic_ns() > deadline {
            let stuck: BTreeSet<_> = alive.iter().map(|p| (p.pid, p.start_ticks)).collect();
            killed.retain(|identity, _| !stuck.contains(identity));
            return (killed.into_values().collect(), alive);
        }
        std::thread::park_timeout(PAUSE);
    }
}

/// This process and all that it comes from.
fn own_line(processes: &[Process]) -> BTreeSet<i32> {
    let parents: BTreeMap<i32, i32> = processes.iter().map(|p| (p.pid, p.parent)).collect();
    let mut line = BTreeSet::from([1]);
    let mut pid = i32::try_from(std::process::id()).unwrap_or(1);
    while line.insert(pid) {
        match parents.get(&pid) {
            Some(parent) => pid = *parent,
            None => break,
        }
    }
    line
}

/// The value of a variable in the environment of a process.
fn variable(environment: &[u8], name: &str) -> Option<String> {
    environment
        .split(|&byte| byte == 0)
        .find_map(|pair| pair.strip_prefix(name.as_bytes())?.strip_prefix(b"="))
        .map(|value| String::from_utf8_lossy(value).into_owned())
}

/// `8:freezer:/slurm/uid_1000/job_71/step_0`, or since cgroup v2 `0::/system.slice/slurmstepd.scope/job_71/step_0/user`.
fn job_of_cgroups(text: &str) -> Option<String> {
    text.lines()
        .filter_map(|line| line.splitn(3, ':').nth(2))
        .filter(|path| path.contains("slurm"))
        .flat_map(|path| path.split('/'))
        .filter_map(|part| part.strip_prefix("job_"))
        .find(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
        .map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWNER: Owner<'_> = Owner {
        job: "71",
        node: "n1",
        uid: Some(1000),
        began_ticks: Some(500),
        is_only_job: true,
    };

    fn of_user() -> Traits {
        Traits {
            uid: 1000,
            name: "python".to_owned(),
            start_ticks: 600,
            ..Traits::default()
        }
    }

    fn with_job(job: &str) -> Traits {
        Traits {
            environment_job: Some(job.to_owned()),
            environment_node: Some("n1".to_owned()),
            ..of_user()
        }
    }

    #[test]
    fn the_environment_and_the_cgroup_tie_a_process_to_its_job() {
        assert_eq!(with_job("71").tie(OWNER), Tie::Job);
        assert_eq!(with_job("72").tie(OWNER), Tie::OtherJob);
        let in_cgroup = |job: &str| Traits {
            cgroup_job: Some(job.to_owned()),
            ..with_job("71")
        };
        assert_eq!(in_cgroup("71").tie(OWNER), Tie::Job);
        assert_eq!(
            in_cgroup("72").tie(OWNER),
            Tie::OtherJob,
            "a cgroup cannot be forged"
        );
    }

    #[test]
    fn processes_of_other_users_nodes_and_of_slurm_are_left_alone() {
        let stranger = Traits {
            uid: 1001,
            ..with_job("71")
        };
        assert_eq!(stranger.tie(OWNER), Tie::None);
        let elsewhere = Traits {
            environment_node: Some("n2".to_owned()),
            ..with_job("71")
        };
        assert_eq!(elsewhere.tie(OWNER), Tie::None);
        let root = Owner {
            uid: Some(0),
            ..OWNER
        };
        let hook = Traits {
            uid: 0,
            is_hook: true,
            ..with_job("71")
        };
        assert_eq!(hook.tie(root), Tie::None);
        let step = Traits {
            uid: 0,
            name: "slurmstepd".to_owned(),
            ..with_job("71")
        };
        assert_eq!(step.tie(root), Tie::None);
        let job_of_root = Traits {
            uid: 0,
            ..with_job("71")
        };
        assert_eq!(job_of_root.tie(root), Tie::Job);
    }

    #[test]
    fn the_user_alone_ties_only_what_is_younger_than_the_job() {
        assert_eq!(of_user().tie(OWNER), Tie::User);
        let older = Traits {
            start_ticks: 400,
            ..of_user()
        };
        assert_eq!(older.tie(OWNER), Tie::None);
        let unknown = Owner {
            began_ticks: None,
            ..OWNER
        };
        assert_eq!(of_user().tie(unknown), Tie::None);
        let system = Owner {
            uid: Some(33),
            ..OWNER
        };
        let server = Traits {
            uid: 33,
            ..of_user()
        };
        assert_eq!(server.tie(system), Tie::None);
    }

    #[test]
    fn cgroups_of_both_versions_are_read() {
        let old = "8:freezer:/slurm_n1/uid_1000/job_71/step_0\n1:name=systemd:/user.slice\n";
        assert_eq!(job_of_cgroups(old).as_deref(), Some("71"));
        let new = "0::/system.slice/slurmstepd.scope/job_72/step_batch/user/task_0\n";
        assert_eq!(job_of_cgroups(new).as_deref(), Some("72"));
        assert_eq!(job_of_cgroups("0::/user.slice/job_9/x\n"), None);
        assert_eq!(job_of_cgroups("0::/slurm/job_x\n"), None);
    }
}
