// SPDX-License-Identifier: Apache-2.0
//! PyTorch distributed checkpoints (`torch/distributed/checkpoint/filesystem.py`): `__RANK_N.distcp` files hold the tensors,
//! `.metadata` names every piece of every file. The coordinator writes it last, as `.metadata.tmp`, and renames it.
//!
//! A directory that is saved into again keeps the old `.metadata` until the end, while files of the same names are written
//! anew: one that is newer than `.metadata` belongs to a save that has not ended.

use std::collections::BTreeMap;

use crate::check::{Checked, Tree};
use crate::content::pickle::{self, Pickle};
use crate::content::{Slice, torch_file};
use crate::find::Entry;
use crate::problem::Problem;
use crate::step;

const METADATA: &str = ".metadata";
/// The largest `.metadata` that is read.
const LARGEST_METADATA: u64 = 1 << 30;
/// Clients of a shared file system stamp files with their own clocks.
const CLOCKS_APART_NS: i64 = 2_000_000_000;

/// The piece of a file that ends last.
#[derive(Clone, Copy, Debug)]
struct Piece {
    offset: u64,
    length: u64,
}

pub(super) fn recognise(entry: &Entry) -> Option<u64> {
    let step = step::in_name(&entry.name)?;
    entry.has_any(is_part).then_some(step)
}

/// Whether a file of this name belongs to such a checkpoint.
pub(super) fn is_part(name: &str) -> bool {
    name == METADATA || name == ".metadata.tmp" || is_shard(name)
}

fn is_shard(name: &str) -> bool {
    name.to_ascii_lowercase().ends_with(".distcp")
}

pub(super) fn check(tree: &Tree<'_>, checked: &mut Checked) {
    let own: Vec<&str> = tree.files().map(|(name, _)| name).collect();
    let per_rank: Vec<&str> = own
        .iter()
        .copied()
        .filter(|name| name.starts_with("__") && name.ends_with(METADATA))
        .collect();
    if tree.has(METADATA) {
        check_against(tree, METADATA, checked);
    } else if per_rank.is_empty() {
        let because = "it is written when all ranks have saved";
        checked
            .problems
            .push(Problem::missing(tree.shown(METADATA), because));
    } else {
        let ranks: Vec<u64> = per_rank
            .iter()
            .filter_map(|name| step::after(name.strip_suffix(METADATA)?, "__"))
            .collect();
        super::contiguous(
            &ranks,
            |rank| tree.shown(&format!("__{rank}{METADATA}")),
            checked,
        );
        for name in per_rank {
            check_against(tree, name, checked);
        }
    }
    let ranks = own.iter().filter(|name| is_shard(name));
    let ranks =
        ranks.filter_map(|name| name.trim_start_matches('_').split('_').next()?.parse().ok());
    let highest: Option<u32> = ranks.max();
    checked.world_size = checked
        .world_size
        .max(highest.map(|rank| rank.saturating_add(1)));
}

/// Compares the files with what the metadata file `metadata` says of them.
fn check_against(tree: &Tree<'_>, metadata: &str, checked: &mut Checked) {
    let Some(fact) = tree.file(metadata) else {
        return;
    };
    let pieces = match pieces(tree, metadata, fact.size) {
        Ok(pieces) => pieces,
        Err(problem) => {
            // A file of zeros has been found out already.
            if checked.problems.is_empty() {
                checked.problems.push(problem);
            }
            return;
        }
    };
    for (name, piece) in pieces {
        let Some(shard) = tree.file(&name) else {
            let because = format!("{} names it", tree.shown(metadata));
            checked
                .problems
                .push(Problem::missing(tree.shown(&name), because));
            continue;
        };
        if shard.modified_ns > fact.modified_ns.saturating_add(CLOCKS_APART_NS) {
            let (name, metadata) = (tree.shown(&name), tree.shown(metadata));
            checked.problems.push(Problem::Unfinished(format!(
                "{name} is newer than {metadata}: it was being saved anew (if it was copied without its times, `touch` {metadata})"
            )));
        }
        let expected = piece.offset.saturating_add(piece.length);
        if shard.size < expected {
            checked.problems.push(Problem::Short {
                file: tree.shown(&name),
                size: shard.size,
                expected,
            });
        } else if let Some(problem) = piece_problem(tree, &name, piece) {
            checked.problems.push(problem);
        }
    }
}

/// The last piece of a shard is a file of `torch.save` by itself (or of safetensors, which has no end mark).
fn piece_problem(tree: &Tree<'_>, name: &str, piece: Piece) -> Option<Problem> {
    let looked = tree.open(name).and_then(|file| {
        let slice = Slice::new(&file, piece.offset, piece.length);
        match slice.read(0, 4)?.as_deref() {
            Some(b"PK\x03\x04" | [0, 0, 0, 0]) => torch_file::flaw(&slice),
            _ => Ok(None),
        }
    });
    match looked {
        Ok(None) => None,
        Ok(Some(what)) => Some(Problem::damaged(
            tree.shown(name),
            format!("has a last piece that {what}"),
        )),
        Err(error) => Some(Problem::unreadable(tree.shown(name), error)),
    }
}

/// For each file that a metadata file names, the piece that ends last.
fn pieces(tree: &Tree<'_>, metadata: &str, size: u64) -> Result<BTreeMap<String, Piece>, Problem> {
    let shown = tree.shown(metadata);
    let file = tree
        .open(metadata)
        .map_err(|error| Problem::unreadable(shown.clone(), error))?;
    let whole = Slice::new(&file, 0, size);
    let bytes = match whole.read(0, size.min(LARGEST_METADATA)) {
        Ok(bytes) => bytes.unwrap_or_default(),
        Err(error) => return Err(Problem::unreadable(shown, error)),
    };
    let read = pickle::read(&bytes).map_err(|error| {
        Problem::damaged(shown.clone(), format!("is no whole pickle: it {error}"))
    })?;
    storage(&read)
        .ok_or_else(|| Problem::damaged(shown, "does not say which files belong to the checkpoint"))
}

/// `Metadata.storage_data`: from an index to where in which file it is.
fn storage(metadata: &Pickle) -> Option<BTreeMap<String, Piece>> {
    let data = metadata.get(metadata.root(), "storage_data")?;
    let mut pieces: BTreeMap<String, Piece> = BTreeMap::new();
    for &(_, info) in metadata.pairs(data) {
        let path = metadata.text(metadata.get(info, "relative_path")?)?;
        let piece = Piece {
            offset: metadata.unsigned(metadata.get(info, "offset")?)?,
            length: metadata.unsigned(metadata.get(info, "length")?)?,
        };
        let end = |piece: &Piece| piece.offset.saturating_add(piece.length);
        let held = pieces.entry(path.to_owned()).or_insert(piece);
        if end(&piece) > end(held) {
            *held = piece;
        }
    }
    Some(pieces)
}
