// SPDX-License-Identifier: Apache-2.0
//! What torchrun's rendezvous flags come to on one node: the run id, and whether the workers' meeting address is
//! fixed.

use super::Given;
use super::flags::Flag;
use crate::config::ConfigError;
use crate::config::Host;
use crate::config::option::Key;
use crate::config::values::{Origin, Value, Values};

/// Applies the flags to the values, and gives back the run id.
pub(crate) fn apply(
    host: &Host,
    given: &Given,
    values: &mut Values,
    notes: &mut Vec<String>,
) -> Result<String, ConfigError> {
    node_rank(given)?;
    let standalone = given.switch(Flag::Standalone)?;
    let backend = if standalone {
        "c10d"
    } else {
        given.text(Flag::RdzvBackend).unwrap_or("static")
    };
    let endpoint = given
        .get(Flag::RdzvEndpoint)
        .filter(|endpoint| !standalone && !endpoint.text.is_empty());
    if backend == "static" {
        if let Some(endpoint) = endpoint {
            fix_endpoint(endpoint, values)?;
        }
    } else {
        if !matches!(backend, "c10d") {
            notes.push(format!("the rendezvous backend `{backend}` is not used: coordination is built in on one node"));
        }
        for key in [Key::MasterAddr, Key::MasterPort] {
            if values.get(key).is_some_and(is_torchruns_own) {
                notes.push(format!(
                    "{} is not used: it is for the static rendezvous only",
                    values.given(key)
                ));
                values.remove(key);
            }
        }
        if let Some(address) = given.get(Flag::LocalAddr) {
            values.set(Key::MasterAddr, address.clone());
        }
    }
    let automatic = standalone
        || (backend == "static" && endpoint.is_none() && values.get(Key::MasterPort).is_none());
    Ok(match given.text(Flag::RdzvId) {
        Some(id) if !standalone => id.to_owned(),
        _ if automatic => host.random_uuid(),
        // torchrun's own default.
        _ => "none".to_owned(),
    })
}

/// Whether a value was given to torchrun; what was given to steadfast holds for every rendezvous.
fn is_torchruns_own(value: &Value) -> bool {
    match &value.origin {
        Origin::Flag(_) => true,
        Origin::Environment(name) => name.starts_with("PET_"),
        Origin::File(..) | Origin::Default => false,
    }
}

fn node_rank(given: &Given) -> Result<(), ConfigError> {
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
