// SPDX-License-Identifier: Apache-2.0
//! DeepSpeed (`deepspeed/runtime/engine.py`, `save_checkpoint`): `global_stepN` directories, and the name of the newest in
//! `latest` beside them. Inside: `mp_rank_MM_model_states.pt`, with ZeRO an optimizer shard for each data-parallel rank
//! (`[bf16_]zero_pp_rank_D_mp_rank_MM_optim_states.pt`), with ZeRO 3 a model shard too. Nothing marks the end; the model
//! states say how many ranks there were.

use std::collections::BTreeSet;

use crate::check::{Checked, Sizes, Tree};
use crate::content::pickle::{Pickle, Value};
use crate::find::Entry;
use crate::problem::Problem;
use crate::step;

const MODEL: &str = "_model_states.pt";
const OPTIMIZER: &str = "_optim_states.pt";

/// One rank's file: the beginning of its name, the data-parallel and the model-parallel rank.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Shard {
    kind: String,
    data_rank: u64,
    model_rank: u64,
}

pub(super) fn recognise(entry: &Entry) -> Option<u64> {
    let named = step::after(&entry.name, "global_step").filter(|_| entry.is_dir);
    // Tags can be chosen freely.
    named.or_else(|| step::in_name(&entry.name).filter(|_| entry.has_any(is_part)))
}

/// Whether a file of this name belongs to such a checkpoint.
pub(super) fn is_part(name: &str) -> bool {
    let rank = ["mp_rank_", "zero_pp_rank_", "bf16_zero_pp_rank_"];
    rank.iter().any(|start| name.starts_with(start))
        && (name.ends_with(MODEL) || name.ends_with(OPTIMIZER))
}

pub(super) fn check(tree: &Tree<'_>, checked: &mut Checked) {
    let names: Vec<&str> = tree.files().map(|(name, _)| name).collect();
    let whole_models: Vec<u64> = names
        .iter()
        .filter_map(|name| step::after(name.strip_suffix(MODEL)?, "mp_rank_"))
        .collect();
    let models = shards(&names, MODEL);
    let optimizers = shards(&names, OPTIMIZER);
    if whole_models.is_empty() && models.is_empty() {
        let name = tree.shown("mp_rank_00_model_states.pt");
        checked.problems.push(Problem::missing(
            name,
            "every checkpoint of DeepSpeed has it",
        ));
        return;
    }
    let saved = names
        .iter()
        .filter(|name| is_part(name) && name.ends_with(MODEL))
        .find_map(|name| tree.pickled(name));
    let number = |key: &str| {
        let saved = saved.as_ref()?;
        saved.unsigned(saved.get(saved.root(), key)?)
    };
    let sharded = models.iter().chain(&optimizers);
    let model_ranks = sharded.clone().map(|shard| shard.model_rank);
    let model_ranks = model_ranks.chain(whole_models.iter().copied());
    let seen = |highest: Option<u64>| highest.map_or(1, |rank| rank.saturating_add(1));
    let model_parallel = seen(model_ranks.max()).max(number("mp_world_size").unwrap_or(1));
    let data_parallel =
        seen(sharded.map(|shard| shard.data_rank).max()).max(number("dp_world_size").unwrap_or(1));
    let world_size = model_parallel.checked_mul(data_parallel);
    checked.world_size = world_size.and_then(|size| u32::try_from(size).ok());
    let Some(world_size) = checked.world_size else {
        let text = "its shards have numbers that cannot be true".to_owned();
        return checked.problems.push(Problem::Unfinished(text));
    };
    if !optimizers.is_empty() {
        checked.sizes = Sizes::Same;
    } else if saved.as_ref().is_some_and(has_optimizer_elsewhere) {
        let because = "the model states hold no optimizer";
        checked.problems.push(Problem::missing(
            tree.shown("zero_pp_rank_0_mp_rank_00_optim_states.pt"),
            because,
        ));
    }
    if !whole_models.is_empty() {
        let there: BTreeSet<u64> = whole_models.into_iter().collect();
        for rank in (0..model_parallel).filter(|rank| !there.contains(rank)) {
            let name = tree.shown(&format!("mp_rank_{rank:02}{MODEL}"));
            let because = format!("there were {model_parallel} model-parallel ranks");
            checked.problems.push(Problem::missing(name, because));
        }
    }
    for (there, ending) in [(models, MODEL), (optimizers, OPTIMIZER)] {
        note_missing(
            tree,
            &there,
            ending,
            (data_parallel, model_parallel, world_size),
            checked,
        );
    }
}

/// Without ZeRO the optimizer is in the model states, with it there is `None` in its place.
fn has_optimizer_elsewhere(saved: &Pickle) -> bool {
    let optimizer = saved.get(saved.root(), "optimizer");
    optimizer.is_some_and(|optimizer| matches!(saved.value(optimizer), Value::Other))
}

fn shards(names: &[&str], ending: &str) -> BTreeSet<Shard> {
    let shard = |name: &&str| {
        let stem = name.strip_suffix(ending)?;
        let (kind, ranks) = stem.split_once("zero_pp_rank_")?;
        let (data_rank, model_rank) = ranks.split_once("_mp_rank_")?;
        Some(Shard {
            kind: format!("{kind}zero_pp_rank_"),
            data_rank: step::after(data_rank, "")?,
            model_rank: step::after(model_rank, "")?,
        })
    };
    names.iter().filter_map(shard).collect()
}

fn note_missing(
    tree: &Tree<'_>,
    there: &BTreeSet<Shard>,
    ending: &str,
    (data_parallel, model_parallel, world_size): (u64, u64, u32),
    checked: &mut Checked,
) {
    let Some(kind) = there.first().map(|shard| shard.kind.clone()) else {
        return;
    };
    for data_rank in 0..data_parallel {
        for model_rank in 0..model_parallel {
            let shard = Shard {
                kind: kind.clone(),
                data_rank,
                model_rank,
            };
            if !there.contains(&shard) {
                let name = tree.shown(&format!(
                    "{kind}{data_rank}_mp_rank_{model_rank:02}{ending}"
                ));
                let because = format!("each of {world_size} ranks has one");
                checked.problems.push(Problem::missing(name, because));
            }
        }
    }
}
