// SPDX-License-Identifier: Apache-2.0
//! What this node is in the job: what the decision core must know of it, and the etcd that it may have to run.

use std::path::Path;

use steadfast_core::{
    AgentEndpoint, Grow, Incarnation, JobSpec, Keys, Location, MemberSettings, NodeName,
    WitnessMode,
};

use super::launch::own_environment;
use super::machine;
use crate::keeper::protocol::Welcome;
use crate::managed_etcd::{
    ManagedEtcd, ManagedEtcdError, ManagedEtcdSettings, SecretSources, Surroundings,
};
use crate::settings::{self, Settings, Witness};

/// How many of its leases a supervisor waits for another one that goes by its node's name.
const LEASES_FOR_A_NAME: u32 = 3;

/// What the decision core must know of this node.
pub(super) fn member_settings(
    settings: &Settings,
    welcome: &Welcome,
    agent: Option<AgentEndpoint>,
) -> MemberSettings {
    let incarnation = Incarnation(welcome.started_ns);
    let node = NodeName(settings.node.clone());
    let address = settings.master_addr.as_ref().unwrap_or(&settings.address);
    MemberSettings {
        address: address.clone(),
        slots: settings.workers,
        restart_grace: settings.restart_grace,
        stop_grace: settings.stop_grace,
        save_timeout: settings.checkpoint_timeout,
        name_patience: settings.elastic.lease * LEASES_FOR_A_NAME,
        shared: settings.coordination.is_fenced(),
        boot: boot_id(),
        machine: machine::identity(Path::new("/")).unwrap_or_default(),
        location: Location {
            place: settings.node_rank,
            topology: settings.topology.clone(),
        },
        agent,
        looks_every: settings.self_check.as_ref().map(|looks| looks.every),
        ..MemberSettings::new(Keys::new(&settings.job), node, incarnation, spec(settings))
    }
}

fn spec(settings: &Settings) -> JobSpec {
    let elastic = &settings.elastic;
    let milliseconds =
        |time: std::time::Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    JobSpec {
        node_multiple: elastic.node_multiple,
        wait_for_nodes_ms: milliseconds(elastic.wait_for_nodes),
        shrink_after_ms: milliseconds(elastic.shrink_after),
        grow: match elastic.grow {
            settings::Grow::Never => Grow::Never,
            settings::Grow::AtCheckpoint => Grow::AtCheckpoint,
            settings::Grow::Immediately => Grow::Immediately,
        },
        witness: match elastic.witness {
            Witness::Off => WitnessMode::Off,
            Witness::Auto => WitnessMode::Auto,
            Witness::On => WitnessMode::On,
        },
        ..JobSpec::new(
            elastic.nodes.min,
            elastic.nodes.max,
            settings.max_restarts,
            command_digest(settings),
        )
    }
}

/// A digest of the command: equal exactly when the commands are, and telling nothing about what they hold.
fn command_digest(settings: &Settings) -> String {
    let mut hasher = blake3::Hasher::new();
    for argument in &settings.command.argv {
        let bytes = argument.as_encoded_bytes();
        hasher.update(&(bytes.len() as u64).to_le_bytes());
        hasher.update(bytes);
    }
    hasher.finalize().to_hex().to_string()
}

/// Which start of the machine this is; empty where the kernel does not say.
fn boot_id() -> String {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    text.trim().to_owned()
}

/// The etcd that the nodes of the job run among themselves, if they do.
pub(super) async fn managed_etcd(
    settings: &Settings,
    welcome: &Welcome,
) -> Result<Option<ManagedEtcd>, ManagedEtcdError> {
    let Some(etcd) = ManagedEtcdSettings::of_job(settings).transpose()? else {
        return Ok(None);
    };
    let here = Surroundings {
        runtime_dir: welcome.runtime_dir.clone(),
        keeper_token: welcome.token.clone(),
        companion: welcome.companion.clone(),
        secrets: SecretSources::of_environment(&own_environment),
        search_path: own_environment("PATH").unwrap_or_default(),
    };
    ManagedEtcd::start(etcd, here).await.map(Some)
}
