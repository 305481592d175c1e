// SPDX-License-Identifier: Apache-2.0
//! The Trainer of Hugging Face (`transformers/trainer.py`, `_save_checkpoint`): `checkpoint-N` with the model (one file, or
//! shards that an index names), the optimizer, the scheduler, random states and `trainer_state.json`, which rank 0 writes
//! last. Nothing else marks the end, and the Trainer itself takes the highest N without looking. With DeepSpeed and FSDP
//! there is a checkpoint of theirs inside. Tools around it write the same files into directories that are named by the epoch
//! alone.

use std::collections::BTreeSet;

use super::{contiguous, dcp, deepspeed};
use crate::check::{Checked, Tree};
use crate::find::{Entry, Found};
use crate::problem::Problem;
use crate::step;

const STATE: &str = "trainer_state.json";
const SENTINEL: &str = "checkpoint-is-incomplete.txt";
const INDEXES: [&str; 2] = [
    "model.safetensors.index.json",
    "pytorch_model.bin.index.json",
];
const MODELS: [&str; 4] = [
    "model.safetensors",
    "pytorch_model.bin",
    "adapter_model.safetensors",
    "adapter_model.bin",
];
const OPTIMIZERS: [&str; 3] = ["optimizer.pt", "optimizer.bin", "optimizer_0/.metadata"];

pub(super) fn recognise(entry: &Entry) -> Option<u64> {
    let step = step::after(&entry.name, "checkpoint-").or_else(|| {
        let has_model = MODELS.iter().any(|name| entry.has(name));
        step::after(&entry.name, "").filter(|_| has_model)
    })?;
    let others = entry.has_any(dcp::is_part) || entry.has_any(deepspeed::is_part);
    (entry.is_dir && !others).then_some(step)
}

pub(super) fn check(found: &Found, tree: &Tree<'_>, checked: &mut Checked) {
    if step::after(&found.name, "").is_some() {
        return check_by_epoch(tree, checked);
    }
    if tree.has(SENTINEL) {
        let text = format!("{SENTINEL} says that it is still being written");
        checked.problems.push(Problem::Unfinished(text));
    }
    tree.require(STATE, "it is written last", &mut checked.problems);
    let directories = tree.directories();
    let mut has_model = MODELS.iter().any(|name| tree.has(name));
    let mut has_optimizer = OPTIMIZERS.iter().any(|name| tree.has(name));
    for index in INDEXES.iter().filter(|name| tree.has(name)) {
        has_model = true;
        check_index(tree, index, checked);
    }
    if let Some(unindexed) = tree
        .files()
        .map(|(name, _)| name)
        .find(|name| is_shard(name))
        && !has_model
    {
        let because = format!("{unindexed} is a shard of a model");
        checked.problems.push(Problem::missing(INDEXES[0], because));
        has_model = true;
    }
    for name in directories {
        let inside = tree.under(name);
        if name.starts_with("global_step") {
            (has_model, has_optimizer) = (true, true);
            deepspeed::check(&inside, checked);
        } else if inside.files().any(|(name, _)| dcp::is_part(name)) {
            has_model |= name.starts_with("pytorch_model");
            has_optimizer |= name.starts_with("optimizer");
            dcp::check(&inside, checked);
        }
    }
    if !has_model {
        let because = "every checkpoint has the model";
        checked
            .problems
            .push(Problem::missing("the model (model.safetensors)", because));
    }
    if tree.has("scheduler.pt") && !has_optimizer {
        let because = "scheduler.pt is there";
        checked
            .problems
            .push(Problem::missing("optimizer.pt", because));
    }
    if tree.has("optimizer.pt") && !tree.has("scheduler.pt") {
        let because = "optimizer.pt is there";
        checked
            .problems
            .push(Problem::missing("scheduler.pt", because));
    }
    check_random_states(tree, has_optimizer, checked);
}

/// What tools other than the Trainer write beside the model.
fn check_by_epoch(tree: &Tree<'_>, checked: &mut Checked) {
    if tree.has("optimizer_state_dict.pt") {
        let because = "optimizer_state_dict.pt is there";
        tree.require("training_state.json", because, &mut checked.problems);
    }
}

/// `rng_state.pth` for one process, `rng_state_R.pth` for each of several.
fn check_random_states(tree: &Tree<'_>, has_optimizer: bool, checked: &mut Checked) {
    let ranks: Vec<u64> = tree
        .files()
        .filter_map(|(name, _)| step::after(name.strip_suffix(".pth")?, "rng_state_"))
        .collect();
    contiguous(&ranks, |rank| format!("rng_state_{rank}.pth"), checked);
    let count = ranks.iter().max().map(|highest| highest.saturating_add(1));
    let alone = tree.has("rng_state.pth").then_some(1);
    let count = count.or(alone).and_then(|count| u32::try_from(count).ok());
    checked.world_size = checked.world_size.or(count);
    if count.is_none() && has_optimizer {
        let because = "the optimizer's state is there";
        checked
            .problems
            .push(Problem::missing("rng_state.pth", because));
    }
}

fn is_shard(name: &str) -> bool {
    let numbered = name.starts_with("model-") || name.starts_with("pytorch_model-");
    numbered && name.contains("-of-")
}

/// Is every file there that the index names?
fn check_index(tree: &Tree<'_>, index: &str, checked: &mut Checked) {
    let json = tree.json(index);
    let map = json
        .as_ref()
        .and_then(|json| json.get("weight_map")?.as_object());
    let Some(map) = map else {
        // What is no JSON has been found out already.
        if json.is_some() {
            let what = "does not say which files belong to the model";
            checked.problems.push(Problem::damaged(index, what));
        }
        return;
    };
    let files: BTreeSet<&str> = map.values().filter_map(|file| file.as_str()).collect();
    for file in files {
        tree.require(file, &format!("{index} names it"), &mut checked.problems);
    }
}
