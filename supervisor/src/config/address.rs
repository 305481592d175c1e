// SPDX-License-Identifier: Apache-2.0
//! By which address the other nodes reach this one.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, ToSocketAddrs as _, UdpSocket};
use std::time::Duration;

use steadfast_coord::etcd::EtcdEndpoint;

use super::error::ConfigError;
use super::option::Key;
use super::values::Values;
use super::{parse, place};
use crate::settings::Coordination;

/// The address that was given, or the one that follows from where the nodes meet.
pub(super) fn of_this_node(
    values: &Values,
    coordination: &Coordination,
    lease: Duration,
    notes: &mut Vec<String>,
) -> Result<String, ConfigError> {
    if let Some(address) = values.parse(Key::Address, parse::address)? {
        return Ok(address);
    }
    let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST).to_string();
    match coordination {
        Coordination::Embedded => Ok(loopback),
        Coordination::Managed(managed) => {
            let host = managed.hosts.get(managed.this_node as usize);
            Ok(host.map_or(loopback, |host| place::without_ports(host).to_owned()))
        }
        Coordination::Etcd(etcd) => {
            let endpoints = etcd.settings(lease).map(|settings| settings.endpoints);
            let found = local_address(&endpoints.unwrap_or_default());
            if found.is_none() {
                notes.push(format!(
                    "no route to etcd was found, so that this node is taken to be at {loopback}: say with --address how others reach it"
                ));
            }
            Ok(found.map_or(loopback, |address| address.to_string()))
        }
    }
}

/// The address from which this machine would speak to the endpoints; a loopback one only if all of them are on loopback.
fn local_address(endpoints: &[EtcdEndpoint]) -> Option<IpAddr> {
    let addresses: Vec<IpAddr> = endpoints.iter().filter_map(route).collect();
    let outward = addresses.iter().find(|address| !address.is_loopback());
    outward.or(addresses.first()).copied()
}

/// Where packets to the endpoint would come from. Connecting a datagram socket looks the route up, and sends nothing.
fn route(endpoint: &EtcdEndpoint) -> Option<IpAddr> {
    let targets = (endpoint.host.as_str(), endpoint.port)
        .to_socket_addrs()
        .ok()?;
    targets.into_iter().find_map(|target| {
        let any: IpAddr = if target.is_ipv4() {
            Ipv4Addr::UNSPECIFIED.into()
        } else {
            Ipv6Addr::UNSPECIFIED.into()
        };
        let socket = UdpSocket::bind((any, 0)).ok()?;
        socket.connect(target).ok()?;
        Some(socket.local_addr().ok()?.ip())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(host: &str) -> EtcdEndpoint {
        EtcdEndpoint {
            host: host.to_owned(),
            port: 2379,
        }
    }

    #[test]
    fn loopback_leads_to_loopback() {
        let found = local_address(&[endpoint("127.0.0.1")]).unwrap();
        assert_eq!(found, IpAddr::V4(Ipv4Addr::LOCALHOST));
    }

    #[test]
    fn what_cannot_be_resolved_is_passed_over() {
        let nowhere = endpoint("no-such-host.invalid");
        assert_eq!(local_address(&[]), None);
        assert_eq!(local_address(std::slice::from_ref(&nowhere)), None);
        assert!(local_address(&[nowhere, endpoint("127.0.0.1")]).is_some());
    }

    #[test]
    fn an_outward_address_goes_before_loopback() {
        // A machine without a network has no route at all, and nothing to choose from.
        if let Some(outward) = route(&endpoint("192.0.2.1")).filter(|found| !found.is_loopback()) {
            let both = [endpoint("127.0.0.1"), endpoint("192.0.2.1")];
            assert_eq!(local_address(&both), Some(outward));
        }
    }
}
