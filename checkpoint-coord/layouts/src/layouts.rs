// SPDX-License-Identifier: Apache-2.0
//! One file for each layout: `recognise` tells whether an entry of a directory is a checkpoint of this layout and gives its
//! step; `check` says what it lacks. That each file is what its name promises has been seen to before.

mod dcp;
mod deepspeed;
mod huggingface;
mod lightning;
mod megatron;
mod nemo;
mod orbax;
mod torch_save;

use std::collections::BTreeSet;

use crate::check::{Checked, Tree};
use crate::find::{Entry, Found};
use crate::layout::Layout;
use crate::problem::Problem;

pub(crate) fn recognise(layout: Layout, entry: &Entry) -> Option<u64> {
    match layout {
        Layout::Dcp => dcp::recognise(entry),
        Layout::TorchSave => torch_save::recognise(entry),
        Layout::Megatron => megatron::recognise(entry),
        Layout::DeepSpeed => deepspeed::recognise(entry),
        Layout::HuggingFace => huggingface::recognise(entry),
        Layout::Lightning => lightning::recognise(entry),
        Layout::Orbax => orbax::recognise(entry),
        Layout::Nemo => nemo::recognise(entry),
        Layout::Rule => None,
    }
}

pub(crate) fn check(found: &Found, tree: &Tree<'_>, checked: &mut Checked) {
    match found.layout {
        Layout::Dcp => dcp::check(tree, checked),
        Layout::Megatron => megatron::check(tree, checked),
        Layout::DeepSpeed => deepspeed::check(tree, checked),
        Layout::HuggingFace => huggingface::check(found, tree, checked),
        Layout::Lightning => lightning::check(found, tree, checked),
        Layout::Orbax => orbax::check(found, tree, checked),
        Layout::Nemo => nemo::check(found, tree, checked),
        // It is one file, and that has been looked at.
        Layout::TorchSave | Layout::Rule => {}
    }
}

/// Notes which numbers are missing below the highest one of `numbers`.
pub(crate) fn contiguous(numbers: &[u64], name: impl Fn(u64) -> String, checked: &mut Checked) {
    /// More are not listed one by one.
    const MOST: usize = 16;
    let there: BTreeSet<u64> = numbers.iter().copied().collect();
    let Some(&highest) = there.last() else {
        return;
    };
    let missing = (0..highest).filter(|number| !there.contains(number));
    for number in missing.take(MOST) {
        let because = format!("{} is there", name(highest));
        checked
            .problems
            .push(Problem::missing(name(number), because));
    }
}
