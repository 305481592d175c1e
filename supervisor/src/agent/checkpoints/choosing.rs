// SPDX-License-Identifier: Apache-2.0
//! Which checkpoint do workers resume from, and what is in its way?

use std::path::PathBuf;

use steadfast_checkpoints::{Catalogue, Known, Layout, Selection, aside, tracker};

use crate::clock;
use crate::settings::Checkpoints;

/// What was chosen, and what was done so that the program chooses the same.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::agent) struct Choice {
    /// The newest whole checkpoint that can be loaded, if there is one.
    pub(in crate::agent) resume: Option<Resume>,
    /// Torn ones that were moved aside.
    pub(in crate::agent) aside: Vec<Aside>,
    /// What else people should know, in words.
    pub(in crate::agent) notes: Vec<String>,
}

/// Where workers resume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::agent) struct Resume {
    /// The step that they go on from.
    pub(in crate::agent) step: u64,
    /// The file or directory; absolute.
    pub(in crate::agent) path: PathBuf,
}

/// What workers are told of where they resume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::agent) enum ResumePoint {
    /// Nothing: nobody looks after checkpoints.
    #[default]
    Untold,
    /// That there is nothing to resume from.
    Beginning,
    /// This one.
    Checkpoint(Resume),
}

/// A torn checkpoint that was moved aside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::agent) struct Aside {
    /// What it was called.
    pub(in crate::agent) name: String,
    /// What is wrong with it.
    pub(in crate::agent) why: String,
    /// Where it is now.
    pub(in crate::agent) path: PathBuf,
}

/// Chooses among what `catalogue` knows. Nothing is changed any more once `wanted` says that nobody waits for the answer:
/// workers may run then, and write.
pub(super) fn choose(
    catalogue: &mut Catalogue,
    settings: &Checkpoints,
    world_size: u32,
    wanted: &dyn Fn() -> bool,
) -> Choice {
    let mut choice = Choice::default();
    let chosen = catalogue.newest_whole(world_size, None).cloned();
    choice.resume = chosen.as_ref().map(|known| Resume {
        step: known.found.step,
        path: known.found.path.clone(),
    });
    let newer: Vec<Known> = catalogue
        .all()
        .into_iter()
        .filter(|known| is_newer(known, chosen.as_ref()))
        .cloned()
        .collect();
    let time = time();
    for known in &newer {
        if known.is_whole() {
            choice.notes.push(format!(
                "checkpoint {} is whole, but {} workers saved it and {world_size} cannot load it: it is passed over",
                known.found.name,
                known.checked.world_size.unwrap_or(0),
            ));
        } else if is_surely_one(known, catalogue, settings) {
            if wanted() {
                move_aside(known, &time, &mut choice);
            }
        } else {
            choice.notes.push(format!(
                "{} may be a torn checkpoint ({}); it stays where it is",
                known.found.name,
                first_problem(known)
            ));
        }
    }
    if let Some(known) = chosen.filter(|_| wanted()) {
        see_to_tracker(&known, settings, &time, &mut choice);
    }
    choice
}

fn is_newer(known: &Known, chosen: Option<&Known>) -> bool {
    chosen.is_none_or(|chosen| known.found.step > chosen.found.step)
}

/// Single files have no other mark than their names: without being told so, one is taken for a checkpoint only when a whole
/// one has a name like it.
fn is_surely_one(known: &Known, catalogue: &Catalogue, settings: &Checkpoints) -> bool {
    let is_told = !matches!(settings.layout.selection(), Selection::Auto);
    is_told
        || known.found.layout != Layout::TorchSave
        || catalogue
            .all()
            .iter()
            .any(|other| other.is_whole() && shape(&other.found.name) == shape(&known.found.name))
}

/// A name with its numbers taken out.
fn shape(name: &str) -> String {
    let mut shape = String::with_capacity(name.len());
    for letter in name.chars() {
        let letter = if letter.is_ascii_digit() { '#' } else { letter };
        if letter != '#' || !shape.ends_with('#') {
            shape.push(letter);
        }
    }
    shape
}

fn move_aside(known: &Known, time: &str, choice: &mut Choice) {
    let name = &known.found.name;
    match aside::move_aside(&known.found, time) {
        Ok(Some(path)) => choice.aside.push(Aside {
            name: name.clone(),
            why: first_problem(known),
            path,
        }),
        // Another node has done it.
        Ok(None) => {}
        Err(error) => choice.notes.push(format!(
            "checkpoint {name} is torn ({}) and cannot be renamed ({error}): a program that resumes from the latest may \
             take it",
            first_problem(known)
        )),
    }
}

fn first_problem(known: &Known) -> String {
    let problems = &known.checked.problems;
    let others = match problems.len() {
        0 | 1 => String::new(),
        more => format!(", and {} more", more - 1),
    };
    let first = problems.first().map(ToString::to_string);
    format!("{}{others}", first.unwrap_or_default())
}

fn see_to_tracker(known: &Known, settings: &Checkpoints, time: &str, choice: &mut Choice) {
    let stray = match tracker::stray(&known.found) {
        Ok(None) => return,
        Ok(Some(stray)) => stray,
        Err(error) => {
            let text = format!(
                "the tracker of {} cannot be read: {error}",
                known.found.name
            );
            return choice.notes.push(text);
        }
    };
    let shown = stray.path.display();
    let says = match &stray.says {
        Some(says) => format!("says `{says}`"),
        None => "is not there or cannot be read".to_owned(),
    };
    let text = if settings.fix_tracker {
        match tracker::correct(&stray, time) {
            Ok(Some(copy)) => {
                format!(
                    "{shown} {says}: it says `{}` now, a copy is kept as {}",
                    stray.should_say,
                    copy.display()
                )
            }
            Ok(None) => format!("{shown} {says}: it says `{}` now", stray.should_say),
            Err(error) => format!("{shown} {says} and cannot be corrected: {error}"),
        }
    } else {
        format!(
            "{shown} {says}, but the newest whole checkpoint is {}: the program may resume elsewhere; --fix-tracker \
             corrects that",
            known.found.name
        )
    };
    choice.notes.push(text);
}

/// Now, as part of a file's name.
fn time() -> String {
    let now = jiff::Timestamp::from_millisecond(clock::wall_ms());
    now.map(|now| now.strftime("%Y%m%dT%H%M%SZ").to_string())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::settings::LayoutChoice;

    fn settings(directory: &Path) -> Checkpoints {
        Checkpoints {
            directory: directory.to_owned(),
            layout: LayoutChoice::Auto,
            fix_tracker: false,
        }
    }

    /// The smallest zip archive: an empty one that begins like a full one.
    fn put(directory: &Path, name: &str, whole: bool) {
        let mut bytes = b"\x80\x02}.".to_vec();
        if !whole {
            bytes.clear();
        }
        std::fs::write(directory.join(name), bytes).unwrap();
    }

    fn chosen(settings: &Checkpoints, wanted: bool) -> Choice {
        let mut catalogue = Catalogue::new(settings.directory.clone(), settings.layout.selection());
        catalogue.look().unwrap();
        choose(&mut catalogue, settings, 2, &|| wanted)
    }

    #[test]
    fn torn_checkpoints_that_are_newer_are_moved_and_other_files_are_not() {
        let directory = tempfile::tempdir().unwrap();
        let settings = settings(directory.path());
        put(directory.path(), "ckpt_5.pt", false);
        put(directory.path(), "ckpt_7.pt", true);
        put(directory.path(), "ckpt_9.pt", false);
        put(directory.path(), "vocabulary_50257.bin", false);
        let nobody_waits = chosen(&settings, false);
        assert_eq!(nobody_waits.aside, [], "workers may write by now");
        let choice = chosen(&settings, true);
        assert_eq!(choice.resume.unwrap().step, 7);
        let moved: Vec<&str> = choice
            .aside
            .iter()
            .map(|aside| aside.name.as_str())
            .collect();
        assert_eq!(moved, ["ckpt_9.pt"]);
        assert!(directory.path().join("ckpt_5.pt").exists());
        assert!(directory.path().join("vocabulary_50257.bin").exists());
        assert!(
            choice.notes[0].contains("vocabulary_50257.bin"),
            "{:?}",
            choice.notes
        );
    }

    #[test]
    fn shapes_are_names_without_numbers() {
        assert_eq!(shape("ckpt_100.pt"), shape("ckpt_9.pt"));
        assert_ne!(shape("ckpt_100.pt"), shape("vocab_9.pt"));
    }
}
