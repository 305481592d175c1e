// SPDX-License-Identifier: Apache-2.0
//! What torchrun's rendezvous flags come to: the run id, and where the workers meet.
//!
//! On one node the workers meet at the address of the static rendezvous, where one was given. Several nodes meet through
//! `--coord`, and their workers at the node that has rank 0 in each generation; of torchrun's flags only what says
//! something about this node or names the job is left to use then.

use steadfast_coord::etcd::EtcdSettings;

use super::Given;
use super::flags::Flag;
use crate::config::option::Key;
use crate::config::values::{self, Origin, Value, Values};
use crate::config::{ConfigError, Host, are_several, meets_others};

/// Flags with which a command line of torchrun says itself where its nodes meet.
pub(super) const FLAGS: [Flag; 7] = [
    Flag::Nnodes,
    Flag::RdzvBackend,
    Flag::RdzvEndpoint,
    Flag::Standalone,
    Flag::NodeRank,
    Flag::MasterAddr,
    Flag::MasterPort,
];

/// `--standalone` asks for one node, whatever the surroundings offer.
pub(crate) fn stand_alone(given: &Given, values: &mut Values) -> Result<(), ConfigError> {
    if !given.switch(Flag::Standalone)? {
        return Ok(());
    }
    let standalone = || values::Given("`--standalone`".to_owned());
    if are_several(values)? {
        return Err(ConfigError::Conflict {
            first: standalone(),
            second: values.given(Key::Nnodes),
            reason: "a job that stands alone has one node",
        });
    }
    values.set(Key::Scheduler, Value::flag("--standalone", "none"));
    values.set(Key::Coord, Value::flag("--standalone", "embedded"));
    Ok(())
}

/// Applies the flags to the values, and gives back the run id.
pub(crate) fn apply(
    host: &Host,
    given: &Given,
    values: &mut Values,
    notes: &mut Vec<String>,
) -> Result<String, ConfigError> {
    let standalone = given.switch(Flag::Standalone)?;
    let backend = if standalone {
        "c10d"
    } else {
        given.text(Flag::RdzvBackend).unwrap_or("static")
    };
    let endpoint = given
        .get(Flag::RdzvEndpoint)
        .filter(|endpoint| !standalone && !endpoint.text.is_empty());
    let rendezvous = Rendezvous { backend, endpoint };
    // torchrun's own default.
    let run_id = given.text(Flag::RdzvId).unwrap_or("none");
    if meets_others(values)? {
        rendezvous.of_several_nodes(given, values, notes)?;
        return Ok(run_id.to_owned());
    }
    rendezvous.of_one_node(given, values, notes)?;
    let automatic = standalone
        || (backend == "static" && endpoint.is_none() && values.get(Key::MasterPort).is_none());
    Ok(match given.text(Flag::RdzvId) {
        Some(id) if !standalone => id.to_owned(),
        _ if automatic => host.random_uuid(),
        _ => run_id.to_owned(),
    })
}

/// How the workers are to meet, in torchrun's terms.
struct Rendezvous<'a> {
    backend: &'a str,
    endpoint: Option<&'a Value>,
}

impl Rendezvous<'_> {
    fn of_one_node(
        &self,
        given: &Given,
        values: &mut Values,
        notes: &mut Vec<String>,
    ) -> Result<(), ConfigError> {
        only_rank(given)?;
        let Self { backend, endpoint } = *self;
        if backend == "static" {
            if let Some(endpoint) = endpoint {
                fix_endpoint(endpoint, values)?;
            }
            return Ok(());
        }
        if backend != "c10d" {
            notes.push(format!("the rendezvous backend `{backend}` is not used: coordination is built in on one node"));
        }
        drop_master(values, &[Key::MasterAddr, Key::MasterPort], notes);
        if let Some(address) = given.get(Flag::LocalAddr) {
            values.set(Key::MasterAddr, address.clone());
        }
        Ok(())
    }

    fn of_several_nodes(
        &self,
        given: &Given,
        values: &mut Values,
        notes: &mut Vec<String>,
    ) -> Result<(), ConfigError> {
        let Self { backend, endpoint } = *self;
        if values.get(Key::Coord).is_none() {
            return Err(ConfigError::SeveralNodes {
                given: values.given(Key::Nnodes),
                example: self.etcd(),
            });
        }
        if backend == "static" {
            if let Some(endpoint) = endpoint {
                fix_endpoint(endpoint, values)?;
            }
            take_address_of_first_node(values, notes);
        } else {
            if let Some(endpoint) = endpoint {
                notes.push(format!(
                    "{} is not used: the nodes meet through {}",
                    super::describe(Flag::RdzvEndpoint, endpoint),
                    values.given(Key::Coord),
                ));
            }
            drop_master(values, &[Key::MasterAddr, Key::MasterPort], notes);
        }
        if let Some(address) = given.get(Flag::LocalAddr)
            && !values.is_explicit(Key::Address)
        {
            values.set(Key::Address, address.clone());
        }
        Ok(())
    }

    /// The etcd that torchrun would have met in, if it would have, as `--coord` takes it.
    fn etcd(&self) -> String {
        let Self { backend, endpoint } = *self;
        endpoint
            .filter(|_| matches!(backend, "etcd" | "etcd-v2"))
            .map(|endpoint| format!("etcd://{}", endpoint.text))
            .filter(|uri| EtcdSettings::from_uri(uri).is_ok())
            .unwrap_or_else(|| "etcd://HOST:2379".to_owned())
    }
}

/// The static rendezvous has node 0 at the master's address. That holds at the start, and need not later: it is taken
/// for the address of that node, on that node.
fn take_address_of_first_node(values: &mut Values, notes: &mut Vec<String>) {
    let Some(master) = values
        .get(Key::MasterAddr)
        .filter(|value| is_torchruns_own(value))
    else {
        return;
    };
    let is_first = values.text(Key::NodeRank).map(str::trim) == Some("0");
    if is_first && !values.is_written(Key::Address) {
        values.set(Key::Address, master.clone());
        values.remove(Key::MasterAddr);
    } else {
        drop_master(values, &[Key::MasterAddr], notes);
    }
}

/// Takes away what torchrun's flags say of the master, where it has no meaning.
fn drop_master(values: &mut Values, keys: &[Key], notes: &mut Vec<String>) {
    for key in keys {
        if values.get(*key).is_some_and(is_torchruns_own) {
            notes.push(format!(
                "{} is not used: {}",
                values.given(*key),
                if *key == Key::MasterAddr && values.get(Key::Coord).is_some() {
                    "the workers meet at the node that has rank 0"
                } else {
                    "it is for the static rendezvous only"
                }
            ));
            values.remove(*key);
        }
    }
}

/// Whether a value was given to torchrun; what was given to steadfast holds for every rendezvous.
fn is_torchruns_own(value: &Value) -> bool {
    match &value.origin {
        Origin::Flag(_) => true,
        Origin::Environment(name) => name.starts_with("PET_"),
        Origin::File(..) | Origin::Slurm(_) | Origin::Default => false,
    }
}

fn only_rank(given: &Given) -> Result<(), ConfigError> {
    match given.get(Flag::NodeRank) {
        Some(rank) if rank.text.trim() != "0" => Err(ConfigError::Value {
            given: super::describe(Flag::NodeRank, rank),
            reason: "the rank of the only node is 0".to_owned(),
        }),
        _ => Ok(()),
    }
}

/// The static rendezvous takes the endpoint literally, before `--master-addr` and `--master-port`.
fn fix_endpoint(endpoint: &Value, values: &mut Values) -> Result<(), ConfigError> {
    let part = |text: &str| Value {
        text: text.to_owned(),
        origin: endpoint.origin.clone(),
    };
    match endpoint.text.rsplit_once(':') {
        Some((host, port)) if !host.is_empty() => {
            let host = host
                .strip_prefix('[')
                .and_then(|host| host.strip_suffix(']'))
                .unwrap_or(host);
            values.set(Key::MasterAddr, part(host));
            if port == "0" {
                values.remove(Key::MasterPort);
            } else {
                values.set(Key::MasterPort, part(port));
            }
            Ok(())
        }
        _ => Err(ConfigError::Value {
            given: super::describe(Flag::RdzvEndpoint, endpoint),
            reason: "the static rendezvous needs HOST:PORT".to_owned(),
        }),
    }
}
