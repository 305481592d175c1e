// SPDX-License-Identifier: Apache-2.0
//! NeMo 2: `NAME--...-step=S-...[-last]` with the tensors under `weights` (as Megatron's `torch_dist`) and what built the
//! model under `context`. A file `NAME-unfinished` stands beside one as long as it is written.

use super::{lightning, megatron};
use crate::check::{Checked, Tree};
use crate::find::{Entry, Found};
use crate::step;

pub(super) fn recognise(entry: &Entry) -> Option<u64> {
    let (_, behind) = entry.name.rsplit_once("step=")?;
    let digits = behind
        .split(|letter: char| !letter.is_ascii_digit())
        .next()?;
    let is_one = entry.has("weights") || entry.has("context");
    is_one.then(|| step::after(digits, ""))?
}

pub(super) fn check(found: &Found, tree: &Tree<'_>, checked: &mut Checked) {
    lightning::note_unfinished(found, checked);
    megatron::check_distributed(&tree.under("weights"), checked);
    tree.require(
        "context/io.json",
        "it says how the model is built",
        &mut checked.problems,
    );
}
