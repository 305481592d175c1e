// SPDX-License-Identifier: Apache-2.0
//! Addresses of nodes that NCCL tells at its start: others name the node by them later.

use std::sync::LazyLock;

use regex::Regex;

use super::Context;
use crate::evidence::{Evidence, FileKind};
use crate::line::without_colour;
use crate::pattern::{compile, group};

static OWN: LazyLock<Regex> = LazyLock::new(|| {
    compile(
        r"(?P<node>[\w.-]+):\d+:\d+ \[\d+\] NCCL INFO (?:Bootstrap|NET/Socket) ?: Using (?:\[0\])?[\w.-]+:(?P<address>[\w.:%]+?)<",
    )
});

/// Adds them to the names of the nodes that are known.
pub(crate) fn learn_addresses(context: &mut Context, evidence: &Evidence) {
    if context.nodes.len() < 2 {
        return;
    }
    for file in evidence.of_kind(FileKind::Log) {
        for line in file.text.lines().filter(|line| line.contains(": Using ")) {
            let line = without_colour(line);
            let Some(found) = OWN.captures(&line) else {
                continue;
            };
            let (Some(name), Some(address)) = (group(&found, "node"), group(&found, "address"))
            else {
                continue;
            };
            let name = context.node_named(name).map(|node| node.name.clone());
            let node = context
                .nodes
                .iter_mut()
                .find(|node| Some(&node.name) == name.as_ref());
            if let Some(node) = node
                && !node.aliases.iter().any(|alias| alias == address)
            {
                node.aliases.push(address.to_owned());
            }
        }
    }
}
