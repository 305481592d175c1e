// SPDX-License-Identifier: Apache-2.0
//! Which of the hosts that were named this node is.

use std::net::{IpAddr, UdpSocket};

use super::error::ConfigError;
use super::host::Host;
use super::option::Key;
use super::parse;
use super::values::Values;
use crate::settings::SlurmStep;

/// The place of this node among `hosts`: by a name that is given, by its rank, by the host's name, or by an address that
/// the machine has. Slurm's own name goes before its rank, since its list need not be in the order of the ranks.
pub(super) fn of_this_node(
    host: &Host,
    values: &Values,
    slurm: Option<&SlurmStep>,
    hosts: &[String],
) -> Result<u32, ConfigError> {
    let names: Vec<&str> = hosts.iter().map(|host| without_ports(host)).collect();
    let given = [
        slurm.map(|step| step.node_name.as_str()),
        values.text(Key::NodeName),
        values.text(Key::Address),
    ];
    let by_name = |name: &str| the_only(&names, |host| host == name);
    let by_rank = values.parse(Key::NodeRank, parse::at_least(0))?;
    given
        .into_iter()
        .flatten()
        .find_map(by_name)
        .or_else(|| by_rank.map(|rank| rank as usize))
        .or_else(|| by_name(&host.hostname))
        .or_else(|| the_only(&names, |name| short(name) == short(&host.hostname)))
        .or_else(|| the_only(&names, is_here))
        .filter(|place| *place < hosts.len())
        .and_then(|place| u32::try_from(place).ok())
        .ok_or_else(|| ConfigError::Value {
            given: values.given(Key::Hosts),
            reason: format!(
                "none of them is this node ({}): say which one is, with --node-name or --node-rank",
                host.hostname
            ),
        })
}

/// `HOST` of `HOST:CLIENT_PORT:PEER_PORT`.
pub(super) fn without_ports(host: &str) -> &str {
    let parts: Vec<&str> = host.rsplitn(3, ':').collect();
    match parts[..] {
        [peer, client, name]
            if host.parse::<IpAddr>().is_err()
                && [peer, client].iter().all(|port| is_port(port)) =>
        {
            name
        }
        _ => host,
    }
}

fn is_port(text: &str) -> bool {
    text.parse::<u16>().is_ok()
}

/// The place of the one host that is meant; `None` where several could be.
fn the_only(hosts: &[&str], mut is_meant: impl FnMut(&str) -> bool) -> Option<usize> {
    let mut places = (0..hosts.len()).filter(|place| is_meant(hosts[*place]));
    let place = places.next()?;
    places.next().is_none().then_some(place)
}

/// A host's name without its domain.
fn short(name: &str) -> &str {
    if name.parse::<IpAddr>().is_ok() {
        return name;
    }
    name.split_once('.').map_or(name, |(short, _)| short)
}

/// Whether it is an address of this machine: the kernel lets nobody send from another one's.
fn is_here(host: &str) -> bool {
    host.parse::<IpAddr>()
        .is_ok_and(|address| UdpSocket::bind((address, 0)).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(hostname: &str, hosts: &str) -> Option<u32> {
        let mut host = Host::for_test("/".as_ref());
        hostname.clone_into(&mut host.hostname);
        let hosts: Vec<String> = parse::list(hosts);
        let mut values = Values::resolve(
            crate::settings::Mode::Run,
            &host,
            crate::config::values::Written::default(),
        )
        .unwrap();
        values.set(
            Key::Hosts,
            crate::config::values::Value::flag("--hosts", "a"),
        );
        of_this_node(&host, &values, None, &hosts).ok()
    }

    #[test]
    fn a_node_knows_itself_by_name_with_and_without_its_domain() {
        assert_eq!(place("b", "a,b,c"), Some(1));
        assert_eq!(place("b.cluster", "a,b,c"), Some(1));
        assert_eq!(place("b", "a.cluster,b.cluster"), Some(1));
        assert_eq!(place("b", "b.east,b.west"), None, "which one?");
        assert_eq!(place("b.west", "b.east,b.west"), Some(1));
        assert_eq!(place("d", "a,b,c"), None);
    }

    #[test]
    fn a_node_knows_its_addresses() {
        // 203.0.113.0/24 is for documentation: hardly a machine has such an address.
        assert_eq!(place("x", "203.0.113.1,127.0.0.1"), Some(1));
        assert_eq!(place("203", "203.0.113.1,203.0.113.2"), None);
        assert_eq!(
            place("x", "127.0.0.1:1:2,127.0.0.1:3:4"),
            None,
            "which one?"
        );
    }

    #[test]
    fn ports_are_no_part_of_a_name() {
        for (host, name) in [
            ("a:1:2", "a"),
            ("127.0.0.1:1:2", "127.0.0.1"),
            ("a", "a"),
            ("a:1", "a:1"),
            ("fe80::1", "fe80::1"),
            ("::1:2", "::1:2"),
        ] {
            assert_eq!(without_ports(host), name);
        }
    }
}
