// SPDX-License-Identifier: Apache-2.0
//! Launchers inside the wrapped command, on several nodes: where their own nodes meet.
//!
//! Each generation's master may be another node. What a launcher is not told on its command line it takes from its
//! environment, which a generation's plan writes; what is fixed there stays fixed.

use std::ffi::OsString;

use crate::config::error::ConfigError;
use crate::config::option::Key;
use crate::config::values::{Given, Values};
use crate::settings::InnerLauncher;
use crate::torchrun;
use crate::torchrun::flags::Flag;

/// Refuses a launcher that would train alone on every node, and tells about one that fixes where its nodes meet.
pub(super) fn check(
    launcher: InnerLauncher,
    arguments: &[OsString],
    values: &Values,
    notes: &mut Vec<String>,
) -> Result<(), ConfigError> {
    if launcher == InnerLauncher::Accelerate {
        notes.push(format!(
            "{launcher} takes its place among the nodes from its own command line: let a shell fill in `--num_machines $GROUP_WORLD_SIZE --machine_rank $GROUP_RANK --main_process_ip $MASTER_ADDR --main_process_port $MASTER_PORT`, which differ from node to node and from restart to restart"
        ));
        return Ok(());
    }
    let mut fixed = Vec::new();
    for (flag, spelled) in torchrun::rendezvous_flags(arguments) {
        if flag == Flag::Standalone {
            return Err(ConfigError::Conflict {
                first: Given(format!("`{spelled}` of {launcher}")),
                second: values.given(Key::Nnodes),
                reason: "every node would train by itself",
            });
        }
        fixed.push(format!("`{spelled}`"));
    }
    if !fixed.is_empty() {
        notes.push(format!(
            "{launcher} is told about its nodes on its command line ({}), which stays the same when a node is lost: leave that out, and {launcher} takes what holds from its environment (PET_NNODES, PET_NODE_RANK, PET_MASTER_ADDR and so on)",
            fixed.join(", ")
        ));
    }
    Ok(())
}
