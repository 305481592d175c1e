// SPDX-License-Identifier: Apache-2.0
//! Hosts of their own on one machine: a network, a host name, mounts and a boot id for each, joined by a bridge.
//!
//! The namespaces have no names: each is held by a process that dies with the harness, and whatever runs inside is told to
//! do the same. Nothing is seen in the machine's own network, so the same addresses serve every run.

use std::ffi::OsString;
use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use crate::bench::waiting::wait_for;
use crate::failure::Failure;
use crate::scenario::Direction;
use crate::tools::{Environment, Started, inside, run};

const READY_WITHIN: Duration = Duration::from_secs(30);
const TABLE: &str = "chaos";
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The tools that this needs.
pub(crate) const TOOLS: [&str; 6] = ["ip", "nsenter", "setpriv", "unshare", "mount", "hostname"];

/// Hosts that reach each other over a bridge.
#[derive(Debug)]
pub(crate) struct Network {
    hosts: Vec<Host>,
    /// Holds the bridge.
    _switch: Started,
}

/// A host.
#[derive(Debug)]
pub(crate) struct Host {
    holder: Started,
    switch: u32,
    port: String,
    /// Its address.
    pub(crate) address: Ipv4Addr,
}

/// Which packets a host loses.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Filter<'a> {
    /// Those that come, those that leave, or both.
    pub(crate) direction: Direction,
    /// Only those from and to these addresses; empty for all.
    pub(crate) peers: &'a [Ipv4Addr],
    /// So many of a hundred, if not all.
    pub(crate) percent: Option<u32>,
    /// Whether the other end is told.
    pub(crate) reset: bool,
}

impl Network {
    /// Hosts with these names.
    pub(crate) fn new(
        names: &[String],
        environment: &Environment,
        directory: &Path,
    ) -> Result<Self, Failure> {
        let switch = namespaces(environment, directory)?;
        in_network(
            switch.pid(),
            "link set lo up\nlink add bridge type bridge\nlink set bridge up\n",
        )?;
        let mut hosts = Vec::new();
        for (index, name) in (1..=250_u8).zip(names) {
            let holder = namespaces(environment, directory)?;
            let port = format!("port{index}");
            let address = Ipv4Addr::new(10, 98, 0, index);
            in_network(
                switch.pid(),
                &format!(
                    "link add {port} type veth peer name eth0 netns {}\nlink set {port} master bridge up\n",
                    holder.pid()
                ),
            )?;
            in_network(
                holder.pid(),
                &format!("link set lo up\naddr add {address}/24 dev eth0\nlink set eth0 up\n"),
            )?;
            let host = Host {
                holder,
                switch: switch.pid(),
                port,
                address,
            };
            host.run(&["hostname", name], "")?;
            hosts.push(host);
        }
        Ok(Self {
            hosts,
            _switch: switch,
        })
    }

    /// The hosts.
    pub(crate) fn hosts(&self) -> &[Host] {
        &self.hosts
    }
}

impl Host {
    /// What goes before a command that is to run on this host.
    pub(crate) fn inside(&self) -> Vec<OsString> {
        inside(self.holder.pid(), &["net", "mount", "uts"])
            .into_iter()
            .map(OsString::from)
            .collect()
    }

    /// The process that holds its namespaces.
    pub(crate) fn holder(&self) -> u32 {
        self.holder.pid()
    }

    /// Gives the host another boot id, as if its machine had been started anew.
    pub(crate) fn boot(&self, id: &str, directory: &Path) -> Result<(), Failure> {
        let file = directory.join("boot_id");
        fs::write(&file, format!("{id}\n"))
            .map_err(|error| Failure::write(file.display(), error))?;
        self.run(&["mount", "--bind", &file.to_string_lossy(), BOOT_ID], "")?;
        Ok(())
    }

    /// Pulls the cable, or plugs it in again.
    pub(crate) fn link(&self, is_up: bool) -> Result<(), Failure> {
        let state = if is_up { "up" } else { "down" };
        in_network(self.switch, &format!("link set {} {state}\n", self.port))
    }

    /// Whether the host sees its cable plugged in.
    pub(crate) fn has_carrier(&self) -> Result<bool, Failure> {
        let listed = self.run(&["ip", "-json", "link", "show", "eth0"], "")?;
        let listed: Value = serde_json::from_str(&listed)
            .map_err(|error| Failure::Unexpected(format!("`ip -json` printed no JSON: {error}")))?;
        let flags = listed[0]["flags"].as_array().into_iter().flatten();
        Ok(!flags.into_iter().any(|flag| flag == "NO-CARRIER"))
    }

    /// Drops packets from now on.
    pub(crate) fn drop_packets(&self, filter: Filter<'_>) -> Result<(), Failure> {
        let rules = rules(filter);
        self.run(&["nft", "-f", "-"], &rules)?;
        Ok(())
    }

    /// How many packets were dropped so far.
    pub(crate) fn dropped(&self) -> Result<u64, Failure> {
        let listed = self.run(&["nft", "--json", "list", "table", "inet", TABLE], "")?;
        let listed: Value = serde_json::from_str(&listed).map_err(|error| {
            Failure::Unexpected(format!("`nft --json` printed no JSON: {error}"))
        })?;
        Ok(packets(&listed))
    }

    /// Lets all packets through again.
    pub(crate) fn let_packets_through(&self) -> Result<(), Failure> {
        self.run(&["nft", "delete", "table", "inet", TABLE], "")?;
        Ok(())
    }

    /// Puts a queueing discipline in the way of what it sends.
    pub(crate) fn shape(&self, discipline: &[&str]) -> Result<(), Failure> {
        let words = [
            &["tc", "qdisc", "replace", "dev", "eth0", "root"],
            discipline,
        ]
        .concat();
        self.run(&words, "")?;
        Ok(())
    }

    /// What the queueing discipline has done.
    pub(crate) fn shaped(&self) -> Result<String, Failure> {
        self.run(&["tc", "-s", "qdisc", "show", "dev", "eth0"], "")
    }

    /// Takes the queueing discipline away.
    pub(crate) fn unshape(&self) -> Result<(), Failure> {
        self.run(&["tc", "qdisc", "del", "dev", "eth0", "root"], "")?;
        Ok(())
    }

    /// Runs a tool on this host to its end.
    pub(crate) fn run(&self, words: &[&str], input: &str) -> Result<String, Failure> {
        let before = inside(self.holder.pid(), &["net", "mount", "uts"]);
        let before: Vec<&str> = before.iter().map(String::as_str).collect();
        run(&[&before, words].concat(), input)
    }
}

fn rules(filter: Filter<'_>) -> String {
    let addresses: Vec<String> = filter.peers.iter().map(ToString::to_string).collect();
    let chain = |hook: &str, interface: &str, field: &str| {
        let with = match addresses.len() {
            0 => String::new(),
            _ => format!("ip {field} {{ {} }}", addresses.join(", ")),
        };
        let share = match filter.percent {
            None => String::new(),
            Some(percent) => format!("numgen random mod 100 < {percent}"),
        };
        let (such, verdict) = if filter.reset {
            ("meta l4proto tcp", "reject with tcp reset")
        } else {
            ("", "drop")
        };
        format!(
            "chain chaos_{hook} {{ type filter hook {hook} priority -300; {interface} != \"lo\" {such} {with} {share} \
             counter {verdict}; }}\n"
        )
    };
    let mut text = format!("table inet {TABLE} {{\n");
    if filter.direction != Direction::Outgoing {
        text += &chain("input", "iifname", "saddr");
    }
    if filter.direction != Direction::Incoming {
        text += &chain("output", "oifname", "daddr");
    }
    text + "}\n"
}

/// How many packets the rules of a table have met.
fn packets(listed: &Value) -> u64 {
    let parts = listed["nftables"].as_array().into_iter().flatten();
    let expressions = parts.filter_map(|part| part["rule"]["expr"].as_array());
    expressions
        .flatten()
        .filter_map(|expression| expression["counter"]["packets"].as_u64())
        .sum()
}

/// Namespaces, there for as long as a process that does nothing else.
fn namespaces(environment: &Environment, directory: &Path) -> Result<Started, Failure> {
    let words = [
        "unshare",
        "--net",
        "--mount",
        "--uts",
        "--propagation",
        "private",
    ];
    let words: Vec<OsString> = words
        .into_iter()
        .chain(["sleep", "infinity"])
        .map(OsString::from)
        .collect();
    let said = directory.join("namespaces.txt");
    let mut holder = Started::new(&words, environment, directory, (&said, &said))?;
    let ours = fs::read_link("/proc/self/ns/net")
        .map_err(|error| Failure::read("/proc/self/ns/net", error))?;
    let pid = holder.pid();
    wait_for("a namespace", READY_WITHIN, || {
        if let Some(status) = holder.ended()? {
            return Err(Failure::Unexpected(format!(
                "namespaces could not be made: {status}: {}",
                crate::tools::tail(&said, 3)
            )));
        }
        let theirs = fs::read_link(format!("/proc/{pid}/ns/net"));
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        // When it sleeps, it has all of its namespaces.
        let ready = theirs.is_ok_and(|theirs| theirs != ours) && name.trim() == "sleep";
        Ok(ready.then_some(()))
    })?;
    Ok(holder)
}

fn in_network(holder: u32, lines: &str) -> Result<(), Failure> {
    let before = inside(holder, &["net"]);
    let before: Vec<&str> = before.iter().map(String::as_str).collect();
    run(&[&before[..], &["ip", "-batch", "-"]].concat(), lines)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn rules_are_those_of_the_direction() {
        let peers = [Ipv4Addr::new(10, 98, 0, 2)];
        let filter = Filter {
            direction: Direction::Incoming,
            peers: &peers,
            percent: Some(30),
            reset: false,
        };
        let text = rules(filter);
        assert!(
            text.contains("hook input") && !text.contains("hook output"),
            "{text}"
        );
        assert!(text.contains("ip saddr { 10.98.0.2 }"), "{text}");
        assert!(text.contains("mod 100 < 30"), "{text}");
        let all = rules(Filter {
            direction: Direction::Both,
            peers: &[],
            percent: None,
            reset: true,
        });
        assert!(!all.contains("saddr") && all.contains("tcp reset"), "{all}");
    }

    #[test]
    fn packets_of_all_rules_count() {
        let rule =
            |packets: u64| json!({ "rule": { "expr": [{ "counter": { "packets": packets } }] } });
        let listed = json!({ "nftables": [{ "metainfo": {} }, rule(2), rule(3)] });
        assert_eq!(packets(&listed), 5);
    }
}
