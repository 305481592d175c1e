// SPDX-License-Identifier: Apache-2.0
//! What Slurm tells its hooks, through their environment. Releases differ in what they set: all but three variables may be
//! missing.

use std::ffi::OsString;

use crate::config::Host;

/// The node, and the job if the hook is about one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Surroundings {
    /// Name of the node, as Slurm knows it.
    pub(crate) node: String,
    /// The job.
    pub(crate) job: Option<HookJob>,
}

/// The job that a hook is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HookJob {
    /// Its number.
    pub(crate) id: String,
    /// Whose it is; `None` when Slurm does not say.
    pub(crate) uid: Option<u32>,
    /// Its GPUs on this node, by the numbers that Slurm and the driver count them with; `None` when Slurm does not say.
    pub(crate) gpus: Option<Vec<u32>>,
    /// Its nodes, as a host list.
    pub(crate) nodes: Option<String>,
    /// When it began, in seconds since 1970; since Slurm 23.02.
    pub(crate) start_time: Option<i64>,
}

impl Surroundings {
    /// Reads the environment. `None` when Slurm has not started this program on a node.
    pub(crate) fn read(host: &Host) -> Option<Surroundings> {
        let node = host
            .variable("SLURMD_NODENAME")
            .filter(|name| is_name(name))?;
        Some(Surroundings {
            node: node.to_owned(),
            job: HookJob::read(host),
        })
    }
}

impl HookJob {
    fn read(host: &Host) -> Option<HookJob> {
        let id = host
            .variable("SLURM_JOB_ID")
            .or_else(|| host.variable("SLURM_JOBID"))?;
        if id.is_empty() || !id.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let number = |name: &str| host.variable(name).and_then(|text| text.parse().ok());
        Some(HookJob {
            id: id.to_owned(),
            uid: number("SLURM_JOB_UID").or_else(|| number("SLURM_UID")),
            gpus: host.variable("SLURM_JOB_GPUS").and_then(numbers),
            // The first since Slurm 23.02, the second until then.
            nodes: host
                .variable("SLURM_JOB_NODELIST")
                .or_else(|| host.variable("SLURM_NODELIST"))
                .map(str::to_owned),
            start_time: host
                .variable("SLURM_JOB_START_TIME")
                .and_then(|text| text.parse().ok()),
        })
    }
}

/// The environment for a program that is to see the same cluster.
pub(crate) fn for_programs(host: &Host) -> Vec<(OsString, OsString)> {
    host.environment
        .iter()
        .map(|(name, value)| (name.into(), value.clone()))
        .collect()
}

/// `0,1` or `0-3,6`
fn numbers(list: &str) -> Option<Vec<u32>> {
    let mut all = Vec::new();
    for part in list.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        if last < first || last - first > 1024 {
            return None;
        }
        all.extend(first..=last);
    }
    Some(all)
}

/// What a node can be called, so that it can stand in a path and in an argument.
fn is_name(name: &str) -> bool {
    name.len() <= 253
        && !name.starts_with(['-', '.'])
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host() -> Host {
        let root = tempfile::tempdir().unwrap();
        Host::for_test(root.path())
    }

    #[test]
    fn old_and_new_releases_are_read() {
        let old = host()
            .with("SLURMD_NODENAME", "n1")
            .with("SLURM_JOBID", "71")
            .with("SLURM_UID", "1000")
            .with("SLURM_NODELIST", "n[1-2]");
        let job = Surroundings::read(&old).unwrap().job.unwrap();
        assert_eq!((job.id.as_str(), job.uid), ("71", Some(1000)));
        assert_eq!(job.nodes.as_deref(), Some("n[1-2]"));
        assert_eq!((job.gpus, job.start_time), (None, None));
        let new = old
            .with("SLURM_JOB_ID", "72")
            .with("SLURM_JOB_UID", "1001")
            .with("SLURM_JOB_GPUS", "0-1,3")
            .with("SLURM_JOB_START_TIME", "1700000000");
        let job = Surroundings::read(&new).unwrap().job.unwrap();
        assert_eq!((job.id.as_str(), job.uid), ("72", Some(1001)));
        assert_eq!(job.gpus, Some(vec![0, 1, 3]));
        assert_eq!(job.start_time, Some(1_700_000_000));
    }

    #[test]
    fn what_is_no_hook_or_no_job_is_none() {
        assert_eq!(Surroundings::read(&host()), None);
        let strange = host().with("SLURMD_NODENAME", "../etc");
        assert_eq!(Surroundings::read(&strange), None);
        let health = host().with("SLURMD_NODENAME", "n1");
        assert_eq!(Surroundings::read(&health).unwrap().job, None);
        let job = health.with("SLURM_JOB_ID", "7/../8");
        assert_eq!(Surroundings::read(&job).unwrap().job, None);
        assert_eq!(numbers("3-1"), None);
        assert_eq!(numbers("a"), None);
    }
}
