// SPDX-License-Identifier: Apache-2.0
//! Megatron-LM (`megatron/training/checkpointing.py`): `iter_NNNNNNN` directories and the tracker
//! `latest_checkpointed_iteration.txt` beside them.
//!
//! `torch_dist`: a distributed checkpoint, `common.pt`, and `metadata.json`, which is written last. Legacy: a directory
//! `mp_rank_TP[_PP[_EP]]` for each model-parallel rank with `model_optim_rng.pt`, and `distrib_optim.pt` with the distributed
//! optimizer.

use std::collections::BTreeSet;

use super::dcp;
use crate::check::{Checked, Sizes, Tree};
use crate::content::pickle::Pickle;
use crate::find::Entry;
use crate::problem::Problem;
use crate::step;

const MODEL: &str = "model_optim_rng.pt";
const OPTIMIZER: &str = "distrib_optim.pt";

pub(super) fn recognise(entry: &Entry) -> Option<u64> {
    step::after(&entry.name, "iter_").filter(|_| entry.is_dir)
}

pub(super) fn check(tree: &Tree<'_>, checked: &mut Checked) {
    let ranks: Vec<&str> = tree
        .directories()
        .into_iter()
        .filter(|name| coordinates(name).is_some())
        .collect();
    if ranks.is_empty() {
        check_distributed(tree, checked);
    } else {
        check_legacy(tree, &ranks, checked);
    }
}

/// A checkpoint of Megatron's distributed checkpointing.
pub(super) fn check_distributed(tree: &Tree<'_>, checked: &mut Checked) {
    let json = tree.json("metadata.json");
    let backend = json
        .as_ref()
        .and_then(|json| json.get("sharded_backend")?.as_str());
    if backend != Some("zarr") {
        dcp::check(tree, checked);
    }
    // FSDP's own format has neither of the two.
    if tree.has("common.pt") || tree.has("metadata.json") || backend == Some("zarr") {
        let because = "every checkpoint of this kind has it";
        tree.require("common.pt", because, &mut checked.problems);
        tree.require("metadata.json", "it is written last", &mut checked.problems);
    }
    if let Some(saved) = tree
        .pickled("common.pt")
        .and_then(|read| argument(&read, "world_size"))
    {
        checked.world_size = u32::try_from(saved).ok();
    }
}

fn check_legacy(tree: &Tree<'_>, ranks: &[&str], checked: &mut Checked) {
    checked.sizes = Sizes::Same;
    let there: BTreeSet<Vec<u64>> = ranks.iter().filter_map(|name| coordinates(name)).collect();
    let saved = ranks
        .iter()
        .find_map(|name| tree.pickled(&format!("{name}/{MODEL}")));
    let mut sizes = extent(&there);
    if let Some(saved) = &saved {
        let names = ["tensor_model_parallel_size", "pipeline_model_parallel_size"];
        for (size, name) in sizes.iter_mut().zip(names) {
            *size = argument(saved, name).unwrap_or(*size).max(*size);
        }
        checked.world_size =
            argument(saved, "world_size").and_then(|size| u32::try_from(size).ok());
    }
    for missing in grid(&sizes).filter(|place| !there.contains(place)) {
        let because = "it belongs to the model-parallel ranks";
        checked
            .problems
            .push(Problem::missing(directory(&missing), because));
    }
    let with_optimizer = ranks
        .iter()
        .any(|name| tree.has(&format!("{name}/{OPTIMIZER}")));
    for name in ranks {
        let because = "each rank's directory has one";
        tree.require(&format!("{name}/{MODEL}"), because, &mut checked.problems);
        if with_optimizer {
            tree.require(
                &format!("{name}/{OPTIMIZER}"),
                because,
                &mut checked.problems,
            );
        }
    }
    let without = ranks
        .iter()
        .all(|name| !tree.has(&format!("{name}/{OPTIMIZER}")));
    let wants = saved
        .as_ref()
        .and_then(|saved| flag(saved, "use_distributed_optimizer"));
    if without && wants == Some(true) {
        let because = "the job used the distributed optimizer";
        checked.problems.push(Problem::missing(OPTIMIZER, because));
    }
}

/// The numbers in `mp_rank_TP[_PP[_EP]]`.
fn coordinates(name: &str) -> Option<Vec<u64>> {
    let numbers = name.strip_prefix("mp_rank_")?.split('_');
    numbers.map(|number| step::after(number, "")).collect()
}

fn directory(place: &[u64]) -> String {
    let numbers = place.iter().enumerate().map(|(at, number)| match at {
        0 => format!("_{number:02}"),
        _ => format!("_{number:03}"),
    });
    format!("mp_rank{}", numbers.collect::<String>())
}

/// How far the numbers go in each place.
fn extent(there: &BTreeSet<Vec<u64>>) -> Vec<u64> {
    let places = there.iter().map(Vec::len).max().unwrap_or(0);
    let size = |at: usize| {
        let numbers = there.iter().filter_map(|place| place.get(at));
        numbers.max().map_or(1, |highest| highest.saturating_add(1))
    };
    (0..places).map(size).collect()
}

/// All places of a grid of these sizes; of one that is too large to be true, none.
fn grid(sizes: &[u64]) -> impl Iterator<Item = Vec<u64>> {
    const MOST: u64 = 1 << 20;
    let all = sizes
        .iter()
        .try_fold(1u64, |product, size| product.checked_mul(*size));
    let all = all.filter(|all| *all <= MOST).unwrap_or(0);
    let sizes = sizes.to_vec();
    (0..all).map(move |mut number| {
        let mut place: Vec<u64> = sizes
            .iter()
            .rev()
            .map(|size| {
                let digit = number % size;
                number /= size;
                digit
            })
            .collect();
        place.reverse();
        place
    })
}

fn argument(saved: &Pickle, name: &str) -> Option<u64> {
    saved.unsigned(saved.get(saved.get(saved.root(), "args")?, name)?)
}

fn flag(saved: &Pickle, name: &str) -> Option<bool> {
    saved.flag(saved.get(saved.get(saved.root(), "args")?, name)?)
}
