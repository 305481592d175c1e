// SPDX-License-Identifier: Apache-2.0
//! The directory of one incident: an index for programs, and texts for people.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use serde_json::{Value, json};

use super::{NodeEvidence, RankEvidence};

/// Version of the index.
const VERSION: u32 = 1;

/// What belongs into the directory.
#[derive(Debug)]
pub(crate) struct Bundle {
    /// What happened, and what it was taken for: fields of the index.
    pub(crate) incident: Value,
    /// What was seen of each node as a whole.
    pub(crate) nodes: Vec<NodeEvidence>,
    /// What was seen of each worker.
    pub(crate) ranks: Vec<RankEvidence>,
}

/// Writes the bundle. An older one of the same incident is replaced, file by file.
///
/// # Errors
///
/// What the system says; the texts that are there already stay.
pub(crate) fn write_bundle(directory: &Path, bundle: &Bundle) -> io::Result<()> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory)?;
    let mut files = Vec::new();
    let mut put = |name: String, text: &str| -> io::Result<()> {
        write(&directory.join(&name), text)?;
        files.push(name);
        Ok(())
    };
    for evidence in &bundle.ranks {
        let rank = evidence.signs.rank;
        if !evidence.stacks.is_empty() {
            put(
                format!("rank-{rank}.stacks.txt"),
                &evidence.stacks.join("\n--- later ---\n"),
            )?;
        }
        if !evidence.last_lines.is_empty() {
            put(
                format!("rank-{rank}.output.txt"),
                &(evidence.last_lines.join("\n") + "\n"),
            )?;
        }
        if !evidence.sockets.is_empty() {
            let text = serde_json::to_string_pretty(&evidence.sockets).map_err(io::Error::other)?;
            put(format!("rank-{rank}.sockets.json"), &text)?;
        }
        if let Some(process) = &evidence.process {
            let text = serde_json::to_string_pretty(process).map_err(io::Error::other)?;
            put(format!("rank-{rank}.process.json"), &text)?;
        }
    }
    for node in &bundle.nodes {
        let name = file_name(&node.node);
        let in_short = NodeEvidence {
            kernel_log: Vec::new(),
            nccl_answer: None,
            ..node.clone()
        };
        let text = serde_json::to_string_pretty(&in_short).map_err(io::Error::other)?;
        put(format!("node-{name}.json"), &text)?;
        if !node.kernel_log.is_empty() {
            let text = node.kernel_log.join("\n") + "\n";
            put(format!("node-{name}.kernel.txt"), &text)?;
        }
        if let Some(answer) = &node.nccl_answer {
            put(format!("node-{name}.nccl.txt"), answer)?;
        }
    }
    let signs: Vec<_> = bundle
        .ranks
        .iter()
        .map(|evidence| &evidence.signs)
        .collect();
    let index = json!({
        "version": VERSION,
        "incident": bundle.incident,
        "ranks": signs,
        "files": files,
    });
    let text = serde_json::to_string_pretty(&index).map_err(io::Error::other)?;
    write(&directory.join("index.json"), &text)
}

fn write(path: &Path, text: &str) -> io::Result<()> {
    let fresh = path.with_extension("new");
    fs::write(&fresh, text)?;
    fs::rename(&fresh, path)
}

/// A node's name as part of a file's name: what means something to a file system is left out.
fn file_name(node: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    node.chars()
        .map(|c| if plain(c) { c } else { '_' })
        .collect()
}
