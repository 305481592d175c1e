// SPDX-License-Identifier: Apache-2.0
//! Lightning: `epoch=E-step=S.ckpt`, `hpc_ckpt_N.ckpt` and `last.ckpt` are single files of `torch.save`; with sharded FSDP and
//! with DeepSpeed they are directories of the same names (`lightning/fabric/strategies/fsdp.py`: `.metadata` and `meta.pt`).
//! NeMo 1 puts a file `NAME-unfinished` beside one as long as it is written.

use std::fs::File;

use super::{dcp, deepspeed};
use crate::check::{Checked, Tree};
use crate::content::{Slice, torch_file};
use crate::find::{Entry, Found};
use crate::problem::Problem;
use crate::step;

const ENDING: &str = ".ckpt";

pub(super) fn recognise(entry: &Entry) -> Option<u64> {
    let stem = entry.name.strip_suffix(ENDING)?;
    if let Some((_, behind)) = stem.rsplit_once("step=") {
        let digits = behind
            .split(|letter: char| !letter.is_ascii_digit())
            .next()?;
        return digits.parse().ok();
    }
    let inside = if entry.is_dir {
        global_step(&entry.path.join("meta.pt"))
    } else {
        global_step(&entry.path)
    };
    // Torn ones must be named too, and the number in the name is all that is left of them.
    inside.or_else(|| step::in_name(stem))
}

/// The step that a checkpoint says it is of.
fn global_step(path: &std::path::Path) -> Option<u64> {
    let file = File::open(path).ok()?;
    let size = file.metadata().ok()?.len();
    let pickle = torch_file::pickled(&Slice::new(&file, 0, size)).ok()??;
    pickle.unsigned(pickle.get(pickle.root(), "global_step")?)
}

pub(super) fn check(found: &Found, tree: &Tree<'_>, checked: &mut Checked) {
    note_unfinished(found, checked);
    if !found.path.is_dir() {
        return;
    }
    let deepspeed = tree.under("checkpoint");
    if deepspeed.files().next().is_some() {
        return deepspeed::check(&deepspeed, checked);
    }
    dcp::check(tree, checked);
    tree.require("meta.pt", "it is written last", &mut checked.problems);
}

/// Looks for NeMo's mark of a checkpoint that is still being written.
pub(super) fn note_unfinished(found: &Found, checked: &mut Checked) {
    let stem = found.name.strip_suffix(ENDING).unwrap_or(&found.name);
    let mark = format!("{stem}-unfinished");
    if found.path.with_file_name(&mark).exists() {
        let text = format!("{mark} beside it says that it is still being written");
        checked.problems.push(Problem::Unfinished(text));
    }
}
