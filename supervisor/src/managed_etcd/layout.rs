// SPDX-License-Identifier: Apache-2.0
//! Which hosts a managed etcd can be on, and at which ports.

use std::fmt;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use steadfast_coord::etcd::{EtcdEndpoint, EtcdMember};

/// The ports that follow from a job's name: above those of well-known services, below those that systems give to
/// outgoing connections (32768 on Linux, 32767 for Kubernetes' node ports and above).
const FIRST_PORT: u16 = 20_000;
const PORT_PAIRS: u16 = 4_500;

/// The nodes of a job as far as its etcd is concerned. All nodes must have the same, but for `this_node`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Layout {
    /// All nodes that may run a member, in the same order everywhere.
    pub(crate) hosts: Vec<EtcdHost>,
    /// How many members the cluster has: 1, 3 or 5, and no more than there are hosts. They start on the first ones.
    pub(crate) servers: usize,
    /// Which of the hosts this is.
    pub(crate) this_node: usize,
}

/// A node that may run a member.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct EtcdHost {
    /// Name or address by which the other nodes reach it; an IPv6 address without brackets.
    pub(crate) host: String,
    /// Where clients reach its etcd.
    pub(crate) client_port: u16,
    /// Where the other members reach its etcd.
    pub(crate) peer_port: u16,
}

/// Why there can be no managed etcd on these hosts.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum LayoutError {
    /// Not the number of members of a cluster.
    #[error("a managed etcd has 1, 3 or 5 servers, not {0}")]
    Servers(usize),
    /// More members than hosts.
    #[error("{servers} etcd servers need as many hosts, but there are {hosts}")]
    TooFewHosts {
        /// Members that are wanted.
        servers: usize,
        /// Hosts that there are.
        hosts: usize,
    },
    /// This node is none of them.
    #[error("this node is number {this_node} (counted from 0), but there are only {hosts} hosts")]
    Elsewhere {
        /// Number of this node.
        this_node: usize,
        /// Hosts that there are.
        hosts: usize,
    },
    /// Two members could not be told apart.
    #[error("the host `{0}` is named twice: each needs a name and ports of its own")]
    Twice(String),
    /// Not a host.
    #[error("`{0}` is not a host name or address")]
    NoHost(String),
}

impl Layout {
    /// The layout for these hosts, each `HOST` or `HOST:CLIENT_PORT:PEER_PORT`.
    ///
    /// # Errors
    ///
    /// [`LayoutError`] when it cannot work.
    pub(crate) fn new(
        hosts: &[String],
        servers: u32,
        this_node: u32,
        client_port: u16,
        peer_port: u16,
    ) -> Result<Layout, LayoutError> {
        let number = |number| usize::try_from(number).unwrap_or(usize::MAX);
        let hosts = hosts
            .iter()
            .map(|text| EtcdHost::parse(text, client_port, peer_port));
        let layout = Layout {
            hosts: hosts.collect::<Result<_, _>>()?,
            servers: number(servers),
            this_node: number(this_node),
        };
        layout.check()?;
        Ok(layout)
    }

    /// # Errors
    ///
    /// [`LayoutError`] when it cannot work.
    pub(crate) fn check(&self) -> Result<(), LayoutError> {
        let hosts = self.hosts.len();
        if ![1, 3, 5].contains(&self.servers) {
            return Err(LayoutError::Servers(self.servers));
        }
        if self.servers > hosts {
            return Err(LayoutError::TooFewHosts {
                servers: self.servers,
                hosts,
            });
        }
        if self.this_node >= hosts {
            return Err(LayoutError::Elsewhere {
                this_node: self.this_node,
                hosts,
            });
        }
        let mut seen = std::collections::BTreeSet::new();
        for host in &self.hosts {
            if !host.is_usable() {
                return Err(LayoutError::NoHost(host.host.clone()));
            }
            if !seen.insert(host.peer_url()) || host.client_port == host.peer_port {
                return Err(LayoutError::Twice(host.host.clone()));
            }
        }
        Ok(())
    }

    /// This node.
    pub(crate) fn own(&self) -> &EtcdHost {
        &self.hosts[self.this_node]
    }

    /// Those that start the cluster.
    pub(crate) fn founders(&self) -> &[EtcdHost] {
        &self.hosts[..self.servers]
    }

    /// Whether this node is one of those.
    pub(crate) fn is_founder(&self) -> bool {
        self.this_node < self.servers
    }

    /// The host that runs this member.
    pub(crate) fn host_of(&self, member: &EtcdMember) -> Option<&EtcdHost> {
        self.hosts
            .iter()
            .find(|host| member.peer_urls.contains(&host.peer_url()))
    }

    /// How many hosts that run no member come before this one in the list.
    pub(crate) fn candidates_before(&self, members: &[EtcdMember]) -> usize {
        let runs_one = |host: &&EtcdHost| {
            let url = host.peer_url();
            members.iter().any(|member| member.peer_urls.contains(&url))
        };
        let before = &self.hosts[..self.this_node];
        before.len() - before.iter().filter(runs_one).count()
    }

    /// What the founders are told of each other.
    pub(crate) fn initial_cluster(&self) -> String {
        let each = self.founders().iter();
        each.map(|host| format!("{}={}", host.member_name(), host.peer_url()))
            .collect::<Vec<_>>()
            .join(",")
    }
}

impl EtcdHost {
    /// `HOST`, or `HOST:CLIENT_PORT:PEER_PORT` for one that has other ports than the rest.
    ///
    /// # Errors
    ///
    /// [`LayoutError::NoHost`] when it is neither.
    pub(crate) fn parse(
        text: &str,
        client_port: u16,
        peer_port: u16,
    ) -> Result<EtcdHost, LayoutError> {
        let usual = |host: &str| EtcdHost {
            host: host.to_owned(),
            client_port,
            peer_port,
        };
        let is_address = text.parse::<IpAddr>().is_ok();
        let parsed = match text.rsplitn(3, ':').collect::<Vec<_>>()[..] {
            [peer, client, host] if !is_address => {
                peer.parse()
                    .ok()
                    .zip(client.parse().ok())
                    .map(|(peer_port, client_port)| EtcdHost {
                        host: host.to_owned(),
                        client_port,
                        peer_port,
                    })
            }
            _ => Some(usual(text)),
        };
        parsed
            .filter(EtcdHost::is_usable)
            .ok_or_else(|| LayoutError::NoHost(text.to_owned()))
    }

    /// Where the other members reach it.
    pub(crate) fn peer_url(&self) -> String {
        format!("https://{}", self.at(self.peer_port))
    }

    /// Where clients reach it.
    pub(crate) fn client_url(&self) -> String {
        format!("https://{}", self.at(self.client_port))
    }

    /// Where clients reach it.
    pub(crate) fn endpoint(&self) -> EtcdEndpoint {
        self.at(self.client_port)
    }

    /// Its name in the cluster: two members on one host differ in it.
    pub(crate) fn member_name(&self) -> String {
        format!("{}-{}", self.host, self.peer_port)
    }

    fn at(&self, port: u16) -> EtcdEndpoint {
        EtcdEndpoint {
            host: self.host.clone(),
            port,
        }
    }

    fn is_usable(&self) -> bool {
        let is_name = |text: &str| {
            !text.is_empty()
                && text
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte))
        };
        let ports = [self.client_port, self.peer_port];
        !ports.contains(&0) && (self.host.parse::<IpAddr>().is_ok() || is_name(&self.host))
    }
}

impl fmt::Display for EtcdHost {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.host)
    }
}

/// The client port and the peer port that follow from what tells one run of a job from others, the same on every node.
pub(crate) fn derived_ports(job: &str, restart_count: u32) -> (u16, u16) {
    let hash = blake3::hash(format!("{job}\n{restart_count}").as_bytes());
    let bytes = hash.as_bytes();
    let number = u16::from_be_bytes([bytes[0], bytes[1]]) % PORT_PAIRS;
    let client = FIRST_PORT + 2 * number;
    (client, client + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(text: &str) -> EtcdHost {
        EtcdHost::parse(text, 21, 22).unwrap()
    }

    fn layout(hosts: &[&str], servers: usize, this_node: usize) -> Layout {
        Layout {
            hosts: hosts.iter().map(|text| host(text)).collect(),
            servers,
            this_node,
        }
    }

    #[test]
    fn hosts_have_the_usual_ports_or_their_own() {
        assert_eq!(host("n1").client_url(), "https://n1:21");
        assert_eq!(host("n1:7:8").peer_url(), "https://n1:8");
        assert_eq!(host("fe80::1:7:8").peer_url(), "https://[fe80::1:7:8]:22");
        assert_eq!(host("10.0.0.1").peer_url(), "https://10.0.0.1:22");
        for wrong in ["", "n1:7", "n1:7:x", "n1:0:8", "a b", "n1,n2", "n1=x"] {
            let refused = EtcdHost::parse(wrong, 21, 22);
            assert_eq!(refused, Err(LayoutError::NoHost(wrong.to_owned())));
        }
    }

    #[test]
    fn hosts_are_read_as_they_are_written() {
        let hosts = ["a".to_owned(), "b:7:8".to_owned()];
        let layout = Layout::new(&hosts, 1, 1, 21, 22).unwrap();
        assert_eq!(layout.own().client_url(), "https://b:7");
        assert_eq!(layout.initial_cluster(), "a-22=https://a:22");
        assert!(!layout.is_founder());
        assert!(Layout::new(&hosts, 3, 0, 21, 22).is_err());
    }

    #[test]
    fn what_cannot_work_is_refused() {
        assert_eq!(layout(&["a", "b", "c", "d"], 3, 3).check(), Ok(()));
        let refused = |layout: Layout| layout.check().unwrap_err();
        assert_eq!(refused(layout(&["a", "b"], 2, 0)), LayoutError::Servers(2));
        assert!(matches!(
            refused(layout(&["a", "b"], 3, 0)),
            LayoutError::TooFewHosts { .. }
        ));
        assert!(matches!(
            refused(layout(&["a"], 1, 1)),
            LayoutError::Elsewhere { .. }
        ));
        assert!(matches!(
            refused(layout(&["a", "a:1:22"], 1, 0)),
            LayoutError::Twice(_)
        ));
    }

    #[test]
    fn candidates_are_counted_in_the_order_of_the_list() {
        let members: Vec<_> = ["a", "c", "d"]
            .iter()
            .map(|name| EtcdMember {
                id: 1,
                name: String::new(),
                peer_urls: vec![host(name).peer_url()],
                client_urls: vec![],
            })
            .collect();
        let hosts = ["a", "b", "c", "d", "e", "f"];
        assert_eq!(layout(&hosts, 3, 1).candidates_before(&members), 0);
        assert_eq!(layout(&hosts, 3, 4).candidates_before(&members), 1);
        assert_eq!(layout(&hosts, 3, 5).candidates_before(&members), 2);
    }

    #[test]
    fn ports_follow_from_the_job_and_stay_out_of_the_way() {
        let all: Vec<_> = (0..2_000)
            .map(|number| derived_ports(&format!("job-{number}"), 0))
            .collect();
        for (client, peer) in &all {
            assert!((20_000..30_000).contains(client) && *peer == client + 1);
        }
        let different: std::collections::BTreeSet<_> = all.iter().collect();
        assert!(different.len() > 1_000);
        assert_eq!(derived_ports("a", 1), derived_ports("a", 1));
        assert_ne!(derived_ports("a", 1), derived_ports("a", 2));
    }
}
