// SPDX-License-Identifier: Apache-2.0
//! What a launcher inside the workers' command finds in its environment.
//!
//! torchrun and its kin take `PET_` and the name of a flag for that flag's default
//! (`torch/distributed/argparse_util.py`), so a command line without a rendezvous of its own meets where each
//! generation's plan says, whichever node has rank 0 by then.

use std::ffi::OsString;

use steadfast_core::{Endpoint, Plan};

use crate::settings::{InnerLauncher, Mode, Settings};

/// The variables for the worker of the node at `group_rank`.
pub(super) fn environment(
    settings: &Settings,
    plan: &Plan,
    group_rank: u32,
) -> Vec<(String, OsString)> {
    if settings.mode != Mode::Run {
        return Vec::new();
    }
    // The restart loop of a launcher inside the command stays off: ours is the one that is armed.
    let mut variables = vec![("MAX_RESTARTS", "0".to_owned())];
    if settings.coordination.is_fenced() {
        variables.extend([
            ("NNODES", plan.members.len().to_string()),
            ("NODE_RANK", group_rank.to_string()),
            ("MASTER_ADDR", plan.master.address.clone()),
            ("MASTER_PORT", plan.master.port.to_string()),
            ("STANDALONE", "0".to_owned()),
        ]);
        variables.extend(rendezvous(settings, plan, group_rank));
    }
    variables
        .into_iter()
        .map(|(name, value)| (format!("PET_{name}"), value.into()))
        .collect()
}

fn rendezvous(settings: &Settings, plan: &Plan, group_rank: u32) -> Vec<(&'static str, String)> {
    match settings.inner_launcher {
        // It knows no other rendezvous than this one (`fault_tolerance/launcher.py` of nvidia-resiliency-ext).
        Some(InnerLauncher::FtLauncher) => vec![
            ("RDZV_BACKEND", "c10d".to_owned()),
            ("RDZV_ENDPOINT", host_and_port(&plan.master)),
            ("RDZV_ID", settings.run_id.clone()),
            (
                "RDZV_CONF",
                format!("is_host={}", u32::from(group_rank == 0)),
            ),
        ],
        // An endpoint, which may have been inherited, would go before the master's address.
        _ => vec![
            ("RDZV_BACKEND", "static".to_owned()),
            ("RDZV_ENDPOINT", String::new()),
        ],
    }
}

fn host_and_port(endpoint: &Endpoint) -> String {
    let Endpoint { address, port } = endpoint;
    if address.contains(':') {
        format!("[{address}]:{port}")
    } else {
        format!("{address}:{port}")
    }
}
