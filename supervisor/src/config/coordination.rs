// SPDX-License-Identifier: Apache-2.0
//! Where the nodes of a job meet: `--coord` and what goes with it.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::PathBuf;

use steadfast_coord::etcd::EtcdSettings;

use super::error::ConfigError;
use super::host::Host;
use super::nodes::{are_several, is_meant_for_this_job};
use super::option::Key;
use super::values::{Given, Origin, Value, Values};
use super::{parse, place, program};
use crate::settings::{
    CertificateFiles, Coordination, EtcdAddress, EtcdLogin, ManagedEtcd, PasswordPlace, SlurmStep,
};
use crate::slurm::hostlist::{HostList, MAX_HOSTS};

/// The variable with the password of `--coord-user`, where no file has it.
const PASSWORD_VARIABLE: &str = "STEADFAST_COORD_PASSWORD";

/// Options that mean something with TLS alone.
const TLS_OPTIONS: [Key; 3] = [Key::CoordCa, Key::CoordCert, Key::CoordSecret];
/// Options that mean something with an etcd of somebody else alone.
const ETCD_OPTIONS: [Key; 2] = [Key::CoordUser, Key::CoordPasswordFile];
/// Options that mean something with an etcd of our own alone.
const MANAGED_OPTIONS: [Key; 2] = [Key::Hosts, Key::EtcdServers];

/// Reads `--coord` and the options that go with it.
pub(super) fn read(
    host: &Host,
    values: &Values,
    slurm: Option<&SlurmStep>,
) -> Result<Coordination, ConfigError> {
    let several = are_several(values)?;
    let chosen = values
        .text(Key::Coord)
        // A file of the site names the site's etcd; jobs on one node have no use for it.
        .filter(|_| several || is_meant_for_this_job(values, Key::Coord));
    match chosen {
        None | Some("embedded") if several => Err(ConfigError::SeveralNodes {
            given: values.given(if values.get(Key::Nnodes).is_some() {
                Key::Nnodes
            } else {
                Key::Spares
            }),
            example: "etcd://HOST:2379".to_owned(),
        }),
        None | Some("embedded") => {
            let others = [&TLS_OPTIONS[..], &ETCD_OPTIONS, &MANAGED_OPTIONS].concat();
            refuse(values, &others, "means nothing without --coord")?;
            Ok(Coordination::Embedded)
        }
        Some("managed") => {
            let others = [&TLS_OPTIONS[..], &ETCD_OPTIONS].concat();
            refuse(
                values,
                &others,
                "means nothing with --coord managed, which has certificates of its own",
            )?;
            managed(host, values, slurm).map(Coordination::Managed)
        }
        Some(uri) => {
            refuse(
                values,
                &MANAGED_OPTIONS,
                "means something with --coord managed alone",
            )?;
            etcd(host, values, uri).map(Coordination::Etcd)
        }
    }
}

fn etcd(host: &Host, values: &Values, uri: &str) -> Result<EtcdAddress, ConfigError> {
    let settings = EtcdSettings::from_uri(uri).map_err(|error| ConfigError::Value {
        given: without_password(values, error.uri),
        reason: if uri.contains("://") {
            error.reason
        } else {
            "must be `embedded`, `managed` or etcd://HOST:PORT,HOST:PORT".to_owned()
        },
    })?;
    if settings.tls.is_none() {
        refuse(
            values,
            &TLS_OPTIONS,
            "means something with --coord etcds:// alone",
        )?;
    }
    let file = |key| file(host, values, key);
    let certificate = match (file(Key::CoordCert)?, file(Key::CoordSecret)?) {
        (None, None) => None,
        (Some(certificate), Some(key)) => Some(CertificateFiles { certificate, key }),
        (Some(_), None) => return Err(goes_with(values, Key::CoordCert, "--coord-key")),
        (None, Some(_)) => return Err(goes_with(values, Key::CoordSecret, "--coord-cert")),
    };
    Ok(EtcdAddress {
        uri: uri.to_owned(),
        ca_file: file(Key::CoordCa)?.filter(|_| settings.tls.is_some()),
        certificate: certificate.filter(|_| settings.tls.is_some()),
        login: login(host, values)?,
    })
}

/// `--coord` as it was given, with `uri` for what was written, in which there may be a password.
fn without_password(values: &Values, uri: String) -> Given {
    let origin = values
        .get(Key::Coord)
        .map_or(Origin::Default, |value| value.origin.clone());
    Value { text: uri, origin }.given(Key::Coord)
}

fn login(host: &Host, values: &Values) -> Result<Option<EtcdLogin>, ConfigError> {
    let password = file(host, values, Key::CoordPasswordFile)?;
    let Some(user) = values.parse(Key::CoordUser, parse::line)? else {
        return match password {
            Some(_) => Err(goes_with(values, Key::CoordPasswordFile, "--coord-user")),
            None => Ok(None),
        };
    };
    let password = match password {
        Some(path) => PasswordPlace::File(path),
        None if host.variable(PASSWORD_VARIABLE).is_some() => {
            PasswordPlace::Environment(PASSWORD_VARIABLE.to_owned())
        }
        None => {
            return Err(ConfigError::Value {
                given: values.given(Key::CoordUser),
                reason: format!(
                    "the password is missing: name a file with --coord-password-file, or set {PASSWORD_VARIABLE}"
                ),
            });
        }
    };
    Ok(Some(EtcdLogin { user, password }))
}

fn managed(
    host: &Host,
    values: &Values,
    slurm: Option<&SlurmStep>,
) -> Result<ManagedEtcd, ConfigError> {
    // Any node may have to run a server, when one that does is lost.
    program::resolve(host, "etcd".as_ref(), &host.working_dir)?;
    let Some(hosts) = values.parse(Key::Hosts, hosts)? else {
        return Err(ConfigError::Value {
            given: values.given(Key::Coord),
            reason: "name the nodes with --hosts A,B,C; only in a Slurm step are they known"
                .to_owned(),
        });
    };
    let count = u32::try_from(hosts.len()).unwrap_or(u32::MAX);
    let servers = match values.parse(Key::EtcdServers, servers)? {
        Some(servers) if servers > count => {
            return Err(ConfigError::Conflict {
                first: values.given(Key::EtcdServers),
                second: values.given(Key::Hosts),
                reason: "every server is on a host of its own",
            });
        }
        Some(servers) => servers,
        None if count < 3 => 1,
        None => 3,
    };
    let this_node = place::of_this_node(host, values, slurm, &hosts)?;
    Ok(ManagedEtcd {
        hosts,
        servers,
        this_node,
    })
}

fn hosts(text: &str) -> Result<Vec<String>, String> {
    let list = HostList::parse(text.as_bytes(), MAX_HOSTS).map_err(|error| error.to_string())?;
    let hosts: Vec<String> = list.hosts().collect();
    let mut seen = BTreeSet::new();
    match hosts.iter().find(|host| !seen.insert(host.as_str())) {
        Some(twice) => Err(format!("{twice} is named twice")),
        None => Ok(hosts),
    }
}

fn servers(text: &str) -> Result<u32, String> {
    match text.trim().parse() {
        Ok(servers @ (1 | 3 | 5)) => Ok(servers),
        _ => Err("must be 1, 3 or 5: with an even number, no more of them may be lost".to_owned()),
    }
}

/// A file that is there and can be read.
fn file(host: &Host, values: &Values, key: Key) -> Result<Option<PathBuf>, ConfigError> {
    let Some(text) = values.text(key) else {
        return Ok(None);
    };
    let path = host.working_dir.join(text);
    let reason = match File::open(&path) {
        Ok(_) if !path.is_dir() => return Ok(Some(path)),
        Ok(_) => "it is a directory".to_owned(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            "there is no such file".to_owned()
        }
        Err(error) => error.to_string(),
    };
    Err(ConfigError::Value {
        given: values.given(key),
        reason: format!("{}: {reason}", path.display()),
    })
}

/// Refuses the first of the options that was meant for this job, and has no meaning for it.
fn refuse(values: &Values, keys: &[Key], reason: &str) -> Result<(), ConfigError> {
    let given = keys.iter().find(|key| is_meant_for_this_job(values, **key));
    match given {
        None => Ok(()),
        Some(key) => Err(ConfigError::Value {
            given: values.given(*key),
            reason: reason.to_owned(),
        }),
    }
}

fn goes_with(values: &Values, key: Key, other: &str) -> ConfigError {
    ConfigError::Value {
        given: values.given(key),
        reason: format!("goes with {other}"),
    }
}
