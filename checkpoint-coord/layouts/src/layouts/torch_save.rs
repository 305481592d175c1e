// SPDX-License-Identifier: Apache-2.0
//! Single files of `torch.save` or safetensors with the step in their names, such as `ckpt_400.pt`.

use crate::find::Entry;
use crate::step;

const ENDINGS: [&str; 5] = [".pt", ".pth", ".bin", ".ckpt", ".safetensors"];

pub(super) fn recognise(entry: &Entry) -> Option<u64> {
    let lower = entry.name.to_ascii_lowercase();
    let stem = ENDINGS.iter().find_map(|ending| lower.strip_suffix(ending));
    step::in_name(stem.filter(|_| !entry.is_dir)?)
}
