// SPDX-License-Identifier: Apache-2.0
//! The command line of an etcd that belongs to one job.

use std::ffi::OsString;
use std::net::IpAddr;
use std::path::Path;

use super::files::{Files, Place};
use super::layout::EtcdHost;
use crate::keeper::protocol::CompanionRequest;

/// What etcd may take of the processors, most of which are the training's.
const PROCESSORS: &str = "4";
/// A job's records are small; more than this means that something else writes.
const QUOTA_BYTES: &str = "268435456";

/// Everything that goes into the command line besides the place in the cluster.
#[derive(Debug)]
pub(super) struct Server<'a> {
    pub(super) program: &'a Path,
    pub(super) own: &'a EtcdHost,
    /// Tells clusters apart: members of different runs never take each other for their own.
    pub(super) cluster_token: &'a str,
    pub(super) files: &'a Files,
    /// Milliseconds between a leader's signs of life; ten times as many without any make the others elect a new one.
    pub(super) heartbeat_ms: u32,
}

impl Server<'_> {
    pub(super) fn request(&self, launch: u64, place: &Place) -> CompanionRequest {
        let certificates = self.files.certificates();
        let own = self.own;
        let mut arguments: Vec<OsString> = vec!["etcd".into()];
        let mut add = |name: &str, value: OsString| {
            let mut argument = OsString::from(format!("--{name}="));
            argument.push(value);
            arguments.push(argument);
        };
        add("name", own.member_name().into());
        add("data-dir", self.files.data(place).into());
        add(
            "listen-client-urls",
            listen_url(own, own.client_port).into(),
        );
        add("advertise-client-urls", own.client_url().into());
        add("listen-peer-urls", listen_url(own, own.peer_port).into());
        add("initial-advertise-peer-urls", own.peer_url().into());
        add("initial-cluster", (&place.initial_cluster).into());
        let state = if place.cluster_exists {
            "existing"
        } else {
            "new"
        };
        add("initial-cluster-state", state.into());
        add("initial-cluster-token", self.cluster_token.into());
        // Whoever has no certificate of this run's authority stays outside.
        for side in ["", "peer-"] {
            add(&format!("{side}cert-file"), (&certificates.node).into());
            add(&format!("{side}key-file"), (&certificates.key).into());
            let authority = (&certificates.authority).into();
            add(&format!("{side}trusted-ca-file"), authority);
            add(&format!("{side}client-cert-auth"), "true".into());
        }
        add("heartbeat-interval", self.heartbeat_ms.to_string().into());
        let election_ms = self.heartbeat_ms.saturating_mul(10);
        add("election-timeout", election_ms.to_string().into());
        // A member that was cut off must not force an election when it is back.
        add("pre-vote", "true".into());
        add("auto-compaction-mode", "periodic".into());
        add("auto-compaction-retention", "10m".into());
        add("quota-backend-bytes", QUOTA_BYTES.into());
        add("enable-grpc-gateway", "false".into());
        add("logger", "zap".into());
        add("log-outputs", "stderr".into());
        CompanionRequest {
            launch,
            program: self.program.to_owned(),
            arguments,
            environment: environment(),
            directory: self.files.directory().to_owned(),
        }
    }
}

/// Nothing of the supervisor's own: a variable `ETCD_...` of the user's would be in the way.
fn environment() -> Vec<(OsString, OsString)> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    // The members know each other by certificates of the same authority. That one comes from the address that its name
    // stands for says nothing more, and fails on nodes with several networks. As variables, since the option's name
    // depends on the version, and an unknown option ends etcd, while an unknown variable does not.
    let skip = "PEER_SKIP_CLIENT_SAN_VERIFICATION";
    [
        ("PATH".to_owned(), path),
        ("GOMAXPROCS".to_owned(), PROCESSORS.into()),
        (format!("ETCD_EXPERIMENTAL_{skip}"), "true".into()),
        (format!("ETCD_{skip}"), "true".into()),
    ]
    .map(|(name, value)| (name.into(), value))
    .into()
}

/// Where it listens: at the host's address if that is how the others know it, else at all, since what the name stands for
/// here is often not what it stands for elsewhere.
fn listen_url(host: &EtcdHost, port: u16) -> String {
    match host.host.parse::<IpAddr>() {
        Ok(IpAddr::V4(address)) => format!("https://{address}:{port}"),
        Ok(IpAddr::V6(address)) => format!("https://[{address}]:{port}"),
        Err(_) if has_ipv6() => format!("https://[::]:{port}"),
        Err(_) => format!("https://0.0.0.0:{port}"),
    }
}

fn has_ipv6() -> bool {
    std::fs::read_to_string("/proc/net/if_inet6").is_ok_and(|text| !text.trim().is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_ask_for_certificates_and_an_existing_cluster_is_joined() {
        let runtime_dir = tempfile::tempdir().unwrap();
        let files = Files::open(runtime_dir.path(), "t").unwrap();
        let own = EtcdHost::parse("10.0.0.1", 21, 22).unwrap();
        let server = Server {
            program: Path::new("/usr/bin/etcd"),
            own: &own,
            cluster_token: "abc",
            files: &files,
            heartbeat_ms: 100,
        };
        let mut place = Place {
            number: 3,
            cluster_exists: false,
            initial_cluster: "a=https://a:22".to_owned(),
            has_had_data: false,
        };
        let request = server.request(7, &place);
        let has = |request: &CompanionRequest, wanted: &str| {
            request.arguments.iter().any(|argument| argument == wanted)
        };
        for wanted in [
            "--client-cert-auth=true",
            "--peer-client-cert-auth=true",
            "--initial-cluster-state=new",
            "--listen-peer-urls=https://10.0.0.1:22",
            "--election-timeout=1000",
        ] {
            assert!(has(&request, wanted), "{wanted} {request:?}");
        }
        place.cluster_exists = true;
        let request = server.request(8, &place);
        assert!(has(&request, "--initial-cluster-state=existing"));
        let set: Vec<_> = request.environment.iter().map(|(name, _)| name).collect();
        assert!(set.len() == 4, "nothing is inherited: {set:?}");
    }
}
