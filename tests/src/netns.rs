// SPDX-License-Identifier: Apache-2.0
//! A network of its own: hosts on a bridge, whose links can be cut.
//!
//! Each host is a network namespace, and so is the bridge; nothing of it is seen in the machine's own network, so the
//! same addresses and ports serve every test at once. The namespaces have no names: each is held by a process that dies
//! with the thread that made it, and whatever runs inside is told to do the same. So nothing is left, neither after a
//! panic nor when the test itself is killed.

use std::fs;
use std::io::Write;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::patience::eventually;

/// Dies with the thread that starts it.
const WITH_US: [&str; 3] = ["setpriv", "--pdeathsig", "KILL"];

/// Hosts that reach each other.
#[derive(Debug)]
pub struct Network {
    hosts: Vec<Host>,
    namespaces: Vec<Namespace>,
}

/// A host of a network.
#[derive(Clone, Debug)]
pub struct Host {
    address: Ipv4Addr,
    namespace: u32,
    switch: u32,
    port: String,
}

/// Which packets of a host are dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Those that come.
    Incoming,
    /// Those that leave.
    Outgoing,
    /// All.
    Both,
}

impl Network {
    /// So many hosts, at most 200.
    pub fn new(hosts: u8) -> Network {
        let switch = Namespace::new();
        switch.ip("link set lo up\nlink add bridge type bridge\nlink set bridge up\n");
        let mut network = Network {
            hosts: Vec::new(),
            namespaces: Vec::new(),
        };
        for number in 1..=hosts {
            let namespace = Namespace::new();
            let host = Host {
                address: Ipv4Addr::new(10, 99, 0, number),
                namespace: namespace.pid(),
                switch: switch.pid(),
                port: format!("port{number}"),
            };
            switch.ip(&format!(
                "link add {port} type veth peer name eth0 netns {namespace}\nlink set {port} master bridge up\n",
                port = host.port,
                namespace = host.namespace
            ));
            namespace.ip(&format!(
                "link set lo up\naddr add {}/24 dev eth0\nlink set eth0 up\n",
                host.address
            ));
            network.hosts.push(host);
            network.namespaces.push(namespace);
        }
        network.namespaces.push(switch);
        network
    }

    /// The hosts, in the order of their addresses.
    pub fn hosts(&self) -> &[Host] {
        &self.hosts
    }
}

impl Host {
    /// Its address, the same in every network.
    pub fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// What goes before a command that is to run on this host, and to die with the thread that starts it.
    pub fn inside(&self) -> Vec<String> {
        let namespace = self.namespace.to_string();
        WITH_US
            .into_iter()
            .chain(["nsenter", "--target", &namespace, "--net"])
            .map(str::to_owned)
            .collect()
    }

    /// Drops packets from now on, without a word to anybody: those from and to `peers`, or all when none are named.
    pub fn cut(&self, direction: Direction, peers: &[&Host]) {
        let addresses: Vec<String> = peers.iter().map(|peer| peer.address.to_string()).collect();
        let with = |field: &str| match addresses.len() {
            0 => String::new(),
            _ => format!("ip {field} {{ {} }}", addresses.join(", ")),
        };
        let chain = |hook: &str, interface: &str, field: &str| {
            format!(
                "chain {hook} {{ type filter hook {hook} priority -300; {interface} != lo {} counter drop; }}\n",
                with(field)
            )
        };
        let mut rules = "table inet cut {\n".to_owned();
        if direction != Direction::Outgoing {
            rules += &chain("input", "iifname", "saddr");
        }
        if direction != Direction::Incoming {
            rules += &chain("output", "oifname", "daddr");
        }
        rules += "}\n";
        self.nft(&["-f", "-"], &rules);
    }

    /// Lets all packets through again. A cut that has not dropped a single one was no fault, and fails the test.
    #[track_caller]
    pub fn heal(&self) {
        assert!(self.mend() > 0, "no packet met the cut");
    }

    /// Lets all packets through again, and says how many have not come through.
    pub fn mend(&self) -> u64 {
        let listed = self.nft(&["--json", "list", "table", "inet", "cut"], "");
        self.nft(&["delete", "table", "inet", "cut"], "");
        dropped(&serde_json::from_str(&listed).unwrap())
    }

    /// Pulls the cable, or plugs it in again.
    pub fn link(&self, is_up: bool) {
        let state = if is_up { "up" } else { "down" };
        run(
            in_namespace(self.switch, &["ip", "link", "set", &self.port, state]),
            "",
        );
    }

    fn nft(&self, arguments: &[&str], input: &str) -> String {
        let words = [&["nft"], arguments].concat();
        run(in_namespace(self.namespace, &words), input)
    }
}

/// How many packets the rules of a table have dropped.
fn dropped(listed: &Value) -> u64 {
    let parts = listed["nftables"].as_array().into_iter().flatten();
    let expressions = parts.filter_map(|part| part["rule"]["expr"].as_array());
    expressions
        .flatten()
        .filter_map(|expression| expression["counter"]["packets"].as_u64())
        .sum()
}

/// A network namespace, there for as long as a process that does nothing else.
#[derive(Debug)]
struct Namespace {
    holder: Child,
}

impl Namespace {
    fn new() -> Namespace {
        let words = [&WITH_US[..], &["unshare", "--net", "sleep", "infinity"]].concat();
        let holder = command(&words)
            .spawn()
            .unwrap_or_else(|error| panic!("{words:?} could not be started: {error}"));
        let namespace = Namespace { holder };
        let ours = fs::read_link("/proc/self/ns/net").unwrap();
        eventually("a network namespace", || {
            match fs::read_link(namespace.path()) {
                Ok(theirs) if theirs != ours => Ok(()),
                other => Err(format!("{other:?}")),
            }
        });
        namespace
    }

    fn pid(&self) -> u32 {
        self.holder.id()
    }

    fn path(&self) -> PathBuf {
        format!("/proc/{}/ns/net", self.pid()).into()
    }

    fn ip(&self, lines: &str) {
        run(in_namespace(self.pid(), &["ip", "-batch", "-"]), lines);
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // It may be dead already; a failure could only hide the test's own message.
        drop(self.holder.kill());
        drop(self.holder.wait());
    }
}

fn in_namespace(namespace: u32, words: &[&str]) -> Command {
    let namespace = namespace.to_string();
    command(&[&["nsenter", "--target", &namespace, "--net"], words].concat())
}

#[expect(clippy::disallowed_methods, reason = "tests create processes")]
fn command(words: &[&str]) -> Command {
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).stdin(Stdio::null());
    command
}

/// Runs a command to its end, which must be a good one. Returns what it printed.
#[track_caller]
fn run(mut command: Command, input: &str) -> String {
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command
        .spawn()
        .unwrap_or_else(|error| panic!("{command:?} could not be started: {error}"));
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(input.as_bytes()).unwrap();
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    assert!(
        output.status.success(),
        "{command:?} with `{input}`: {}: {}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn dropped_packets_of_all_rules_count() {
        let rule = |packets: u64| json!({ "rule": { "expr": [{ "match": 1 }, { "counter": { "packets": packets } }] } });
        let listed = json!({ "nftables": [{ "metainfo": {} }, rule(2), { "chain": {} }, rule(3)] });
        assert_eq!(dropped(&listed), 5);
        assert_eq!(dropped(&json!({ "nftables": [] })), 0);
    }
}
