// SPDX-License-Identifier: Apache-2.0
//! Orbax (`orbax/checkpoint/_src/path/atomicity.py`): a step is written into `STEP.orbax-checkpoint-tmp[-TIME]` and renamed;
//! on object stores, which cannot rename, `commit_success.txt` is written last. Inside: `_CHECKPOINT_METADATA`, and items
//! (`default`, `items`, `state` and so on) with `_METADATA` and an OCDBT database: `manifest.ocdbt` and data files in `d`,
//! with several processes one database in each `ocdbt.process_P` as well.

use super::contiguous;
use crate::check::{Checked, Tree};
use crate::find::{Entry, Found};
use crate::problem::Problem;
use crate::step;

const TEMPORARY: &str = ".orbax-checkpoint-tmp";
const STEP_METADATA: &str = "_CHECKPOINT_METADATA";
const ITEM_METADATA: &str = "_METADATA";
const DATABASE: &str = "manifest.ocdbt";

pub(super) fn recognise(entry: &Entry) -> Option<u64> {
    if !entry.is_dir {
        return None;
    }
    if let Some((name, _)) = entry.name.split_once(TEMPORARY) {
        return number(name);
    }
    let step = number(&entry.name)?;
    let items = ["default", "items", "state", "params"];
    let is_one = [STEP_METADATA, ITEM_METADATA, DATABASE]
        .iter()
        .chain(&items);
    is_one
        .into_iter()
        .any(|name| entry.has(name))
        .then_some(step)
}

/// The step of `400`, `step_400` or `checkpoint_400`.
fn number(name: &str) -> Option<u64> {
    let digits = name.trim_start_matches(|letter: char| !letter.is_ascii_digit());
    step::after(digits, "")
}

pub(super) fn check(found: &Found, tree: &Tree<'_>, checked: &mut Checked) {
    if found.name.contains(TEMPORARY) {
        let text = "it still has the name under which it is written".to_owned();
        checked.problems.push(Problem::Unfinished(text));
    }
    let (mut databases, mut processes) = (Vec::new(), Vec::new());
    let mut temporary = None;
    for (name, _) in tree.files() {
        if name.contains(TEMPORARY) {
            temporary = Some(name);
        }
        if let Some(directory) = name.strip_suffix(DATABASE) {
            databases.push(directory);
        }
        let mut parts = name.split('/');
        processes.extend(parts.find_map(|part| step::after(part, "ocdbt.process_")));
    }
    if let Some(name) = temporary.filter(|_| !found.name.contains(TEMPORARY)) {
        let text = format!("{name} is still being written");
        checked.problems.push(Problem::Unfinished(text));
    }
    let has_metadata = tree.has(STEP_METADATA)
        || tree
            .files()
            .any(|(name, _)| name.rsplit('/').next() == Some(ITEM_METADATA));
    if !has_metadata {
        let because = "every checkpoint has it";
        checked
            .problems
            .push(Problem::missing(STEP_METADATA, because));
    }
    for name in [STEP_METADATA, ITEM_METADATA] {
        check_json(tree, name, checked);
    }
    contiguous(
        &processes,
        |process| format!("ocdbt.process_{process}"),
        checked,
    );
    let count = processes
        .iter()
        .max()
        .map(|highest| highest.saturating_add(1));
    checked.world_size = count.and_then(|count| u32::try_from(count).ok());
    for directory in tree.files().filter_map(|(name, _)| database_of(name)) {
        if !databases.contains(&directory) {
            databases.push(directory);
            let name = format!("{directory}{DATABASE}");
            checked
                .problems
                .push(Problem::missing(name, "there are data of it"));
        }
    }
    for directory in databases {
        if !tree
            .files()
            .any(|(name, _)| database_of(name) == Some(directory))
        {
            let name = format!("{directory}d");
            let because = format!("{directory}{DATABASE} is there");
            checked.problems.push(Problem::missing(name, because));
        }
        if !directory.contains("ocdbt.process_") {
            let name = format!("{directory}{ITEM_METADATA}");
            let because = "it says what the arrays are";
            tree.require(&name, because, &mut checked.problems);
            check_json(tree, &name, checked);
        }
    }
}

/// The directory of the database that a data file belongs to, with its slash.
fn database_of(name: &str) -> Option<&str> {
    let (directory, _) = name.rsplit_once('/')?;
    let above = directory.strip_suffix('d')?;
    (above.is_empty() || above.ends_with('/')).then_some(above)
}

fn check_json(tree: &Tree<'_>, name: &str, checked: &mut Checked) {
    if tree.has(name) && tree.json(name).is_none() {
        let what = "is no valid JSON";
        checked
            .problems
            .push(Problem::damaged(tree.shown(name), what));
    }
}
