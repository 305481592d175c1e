// SPDX-License-Identifier: Apache-2.0
//! What a managed etcd is to be like.

use std::path::PathBuf;
use std::time::Duration;

use super::layout::{Layout, LayoutError, derived_ports};
use crate::settings::{Coordination, Settings};

/// What a managed etcd is to be like. The same on every node, but for the layout's `this_node` and the log.
#[derive(Debug, Clone)]
pub(crate) struct ManagedEtcdSettings {
    /// Where it is.
    pub(crate) layout: Layout,
    /// Name of the job.
    pub(crate) job: String,
    /// How often the scheduler has started the job again; 0 at first. Each time it is another etcd.
    pub(crate) restart_count: u32,
    /// The file in the log directory for what etcd prints.
    pub(crate) log: PathBuf,
    /// The shortest lease that the node can come to have: a renewal that fails must leave time for another try.
    pub(crate) lease: Duration,
    /// How fast everything goes.
    pub(crate) pace: Pace,
}

/// How fast everything goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Pace {
    /// Between a leader's signs of life; elections take ten times as long.
    pub(crate) heartbeat: Duration,
    /// Between two looks of a member at the cluster.
    pub(crate) round: Duration,
    /// How long a member does not answer before another node takes its place.
    pub(crate) replace_after: Duration,
    /// How much longer each next node in line waits than the one before it.
    pub(crate) turn: Duration,
    /// How long others are waited for at the end of the job.
    pub(crate) farewell: Duration,
}

impl ManagedEtcdSettings {
    /// Those of a job, if it has a managed etcd.
    ///
    /// # Errors
    ///
    /// [`LayoutError`] when its hosts cannot have one.
    pub(crate) fn of_job(settings: &Settings) -> Option<Result<ManagedEtcdSettings, LayoutError>> {
        let Coordination::Managed(etcd) = &settings.coordination else {
            return None;
        };
        let restart_count = settings.slurm.as_ref().map_or(0, |step| step.restart_count);
        let (client_port, peer_port) = derived_ports(&settings.job, restart_count);
        let layout = Layout::new(
            &etcd.hosts,
            etcd.servers,
            etcd.this_node,
            client_port,
            peer_port,
        );
        Some(layout.map(|layout| {
            ManagedEtcdSettings {
                layout,
                job: settings.job.clone(),
                restart_count,
                log: settings
                    .log
                    .run_dir
                    .join(format!("etcd-{}.log", settings.node)),
                lease: settings.elastic.shortest_lease(),
                pace: Pace::default(),
            }
        }))
    }
}

impl Default for Pace {
    fn default() -> Pace {
        Pace {
            heartbeat: Duration::from_millis(100),
            round: Duration::from_secs(2),
            replace_after: Duration::from_mins(1),
            turn: Duration::from_secs(5),
            farewell: Duration::from_secs(6),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::cli::{Invocation, parse};
    use crate::config::Host;

    fn settings(line: &[&str]) -> Settings {
        let root = tempfile::tempdir().unwrap();
        let bin = root.path().join("bin");
        std::fs::create_dir(&bin).unwrap();
        for program in ["etcd", "train"] {
            std::fs::write(bin.join(program), "#!/bin/sh\n").unwrap();
            let executable = std::fs::Permissions::from_mode(0o755);
            std::fs::set_permissions(bin.join(program), executable).unwrap();
        }
        let arguments: Vec<OsString> = line.iter().map(Into::into).collect();
        match parse(&Host::for_test(root.path()), &arguments) {
            Ok(Invocation::Run(settings)) => *settings,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_settings_of_a_job_say_where_its_etcd_is() {
        let line = "steadfast run --coord managed --hosts host7,b,c,d --nnodes 4 --job j -- train";
        let line: Vec<_> = line.split(' ').collect();
        let managed = ManagedEtcdSettings::of_job(&settings(&line));
        let managed = managed.unwrap().unwrap();
        assert_eq!(managed.layout.servers, 3);
        assert_eq!(managed.layout.own().host, "host7");
        let (client_port, peer_port) = derived_ports("j", 0);
        let ports = managed.layout.hosts.iter();
        assert!(ports.clone().all(|host| host.client_port == client_port));
        assert!(ports.clone().all(|host| host.peer_port == peer_port));
        assert_eq!(managed.lease, Duration::from_secs(2));
        assert!(managed.log.ends_with("etcd-host7.log"));
        let embedded = settings(&["steadfast", "run", "--", "train"]);
        assert!(ManagedEtcdSettings::of_job(&embedded).is_none());
    }
}
