// SPDX-License-Identifier: Apache-2.0
//! Which checkpoint do workers resume from, and what is in its way?

use std::path::PathBuf;

use steadfast_checkpoints::{Catalogue, Known, Layout, Selection, aside, tracker};
use steadfast_core::Resume as PlannedResume;

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
    /// Why nobody can say where to resume, in words: the storage does not let checkpoints be read. Nothing was changed then.
    pub(in crate::agent) unreadable: Option<String>,
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
    /// What is wrong with it: the rest of a sentence that begins with its name.
    pub(in crate::agent) why: String,
    /// Where it is now.
    pub(in crate::agent) path: PathBuf,
}

/// What is to be seen to before workers start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::agent) struct Task {
    /// Number of workers in all.
    pub(in crate::agent) world_size: u32,
    /// What the plan says of where they resume; `None` when this node chooses by itself.
    pub(in crate::agent) planned: Option<PlannedResume>,
    /// Whether this node clears the directory, or others do.
    pub(in crate::agent) clears: bool,
}

/// Whether the directory is as it should be: what the plan says is there, and others have cleared what they are to clear.
pub(super) fn is_ready(catalogue: &Catalogue, settings: &Checkpoints, task: &Task) -> bool {
    let Some(planned) = &task.planned else {
        return true;
    };
    let Some(from) = &planned.from else {
        return true;
    };
    let all = catalogue.all();
    let mut torn = all.iter().filter(|known| {
        known.found.step > from.step
            && !known.is_whole()
            && is_surely_one(known, catalogue, settings)
    });
    let is_there = all
        .iter()
        .any(|known| known.found.name == from.name && known.is_whole());
    is_there && (task.clears || torn.next().is_none())
}

/// Chooses among what `catalogue` knows, or looks whether what the plan says is there. Nothing is changed any more once
/// `wanted` says that nobody waits for the answer: workers may run then, and write.
pub(super) fn choose(
    catalogue: &Catalogue,
    settings: &Checkpoints,
    task: &Task,
    wanted: &dyn Fn() -> bool,
) -> Choice {
    let mut choice = Choice::default();
    let chosen = match &task.planned {
        Some(planned) => find_planned(catalogue, planned, &mut choice),
        None => catalogue.newest_whole(task.world_size, None).cloned(),
    };
    let planned_from = task
        .planned
        .as_ref()
        .and_then(|planned| planned.from.as_ref());
    let older = match (&chosen, planned_from) {
        (Some(known), _) => Some(known.found.step),
        // It is there, or it is newer than all that matters here.
        (None, Some(from)) => from.step.checked_sub(1),
        (None, None) => None,
    };
    if let Some(why) = unread(catalogue, older)
        && !chosen
            .as_ref()
            .is_some_and(|chosen| can_be_read(chosen, settings))
    {
        choice.unreadable = Some(why);
        return choice;
    }
    choice.resume = match (&chosen, planned_from) {
        (Some(known), _) => Some(Resume {
            step: known.found.step,
            path: known.found.path.clone(),
        }),
        (None, Some(from)) => Some(Resume {
            step: from.step,
            path: catalogue.directory().join(&from.name),
        }),
        (None, None) => None,
    };
    if task.clears {
        clear(
            catalogue,
            settings,
            task,
            chosen.as_ref(),
            wanted,
            &mut choice,
        );
    }
    choice
}

/// Why nobody can say where to resume, in words: the newest checkpoint that is newer than one of step `older` cannot be read.
pub(super) fn unread(catalogue: &Catalogue, older: Option<u64>) -> Option<String> {
    let is_newer = |known: &&Known| older.is_none_or(|older| known.found.step > older);
    let mut all = catalogue.all().into_iter().filter(is_newer);
    let unread = all.rfind(|known| known.is_unknown())?;
    Some(format!(
        "checkpoint {} in {} cannot be looked at ({}), so nobody can say where to resume, and no worker is started. If it is \
         lost for good, move it away",
        unread.found.name,
        catalogue.directory().display(),
        first_problem(unread)
    ))
}

/// Whether an older one can be read now: then it is not the storage that is at fault, but a newer one that is damaged.
fn can_be_read(chosen: &Known, settings: &Checkpoints) -> bool {
    let checked = steadfast_checkpoints::check(&chosen.found, &settings.layout.selection());
    !checked
        .problems
        .iter()
        .any(steadfast_checkpoints::Problem::is_of_reading)
}

/// The checkpoint that the plan names. Where it is not whole here, that is said: others vouch for it.
fn find_planned(
    catalogue: &Catalogue,
    planned: &PlannedResume,
    choice: &mut Choice,
) -> Option<Known> {
    let from = planned.from.as_ref()?;
    let mut all = catalogue.all().into_iter();
    let known = all.rfind(|known| known.found.name == from.name).cloned();
    let directory = catalogue.directory().display();
    let name = &from.name;
    match known {
        Some(known) if known.is_whole() => return Some(known),
        Some(known) => choice.notes.push(format!(
            "checkpoint {name}, which the job resumes from and others vouch for, is torn in {directory} on this node: {}",
            first_problem(&known)
        )),
        None => choice.notes.push(format!(
            "checkpoint {name}, which the job resumes from, is not in {directory} on this node: if each node keeps a part \
             of its own, the part of this node is lost"
        )),
    }
    None
}

/// Moves out of the way what workers must not resume from.
fn clear(
    catalogue: &Catalogue,
    settings: &Checkpoints,
    task: &Task,
    chosen: Option<&Known>,
    wanted: &dyn Fn() -> bool,
    choice: &mut Choice,
) {
    let world_size = task.world_size;
    let apart = task.planned.as_ref().is_some_and(|planned| planned.apart);
    let newer: Vec<Known> = catalogue
        .all()
        .into_iter()
        .filter(|known| is_newer(known, chosen))
        .cloned()
        .collect();
    let time = time();
    for known in &newer {
        if known.is_whole() && apart && chosen.is_some() && wanted() {
            move_aside(known, "is not whole on all nodes", &time, choice);
        } else if known.is_whole() && !known.checked.fits(world_size) {
            choice.notes.push(format!(
                "checkpoint {} is whole, but {} workers saved it and {world_size} cannot load it: it is passed over",
                known.found.name,
                known.checked.world_size.unwrap_or(0),
            ));
        } else if known.is_whole() {
            choice.notes.push(format!(
                "checkpoint {} is whole here, but not what all nodes can resume from: it is passed over",
                known.found.name
            ));
        } else if is_surely_one(known, catalogue, settings) {
            if wanted() {
                let why = format!("is torn ({})", first_problem(known));
                move_aside(known, &why, &time, choice);
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
        see_to_tracker(known, settings, &time, choice);
    }
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

fn move_aside(known: &Known, why: &str, time: &str, choice: &mut Choice) {
    let name = &known.found.name;
    match aside::move_aside(&known.found, time) {
        Ok(Some(path)) => choice.aside.push(Aside {
            name: name.clone(),
            why: why.to_owned(),
            path,
        }),
        // Another node has done it.
        Ok(None) => {}
        Err(error) => choice.notes.push(format!(
            "checkpoint {name} {why} and cannot be renamed ({error}): a program that resumes from the latest may take it"
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
            keep: None,
            signal: None,
            file: None,
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
        let task = Task {
            world_size: 2,
            planned: None,
            clears: true,
        };
        choose(&catalogue, settings, &task, &|| wanted)
    }

    fn planned(settings: &Checkpoints, from: &str, apart: bool, clears: bool) -> (Choice, bool) {
        let mut catalogue = Catalogue::new(settings.directory.clone(), settings.layout.selection());
        catalogue.look().unwrap();
        let step = from.trim_matches(|letter: char| !letter.is_ascii_digit());
        let from = steadfast_core::ResumePoint {
            step: step.parse().unwrap(),
            name: from.to_owned(),
        };
        let task = Task {
            world_size: 2,
            planned: Some(PlannedResume {
                from: Some(from),
                apart,
            }),
            clears,
        };
        let ready = is_ready(&catalogue, settings, &task);
        (choose(&catalogue, settings, &task, &|| true), ready)
    }

    #[test]
    fn the_plan_says_where_to_resume_and_who_clears_the_way() {
        let directory = tempfile::tempdir().unwrap();
        let settings = settings(directory.path());
        put(directory.path(), "ckpt_5.pt", true);
        put(directory.path(), "ckpt_7.pt", true);
        put(directory.path(), "ckpt_9.pt", false);
        let (choice, ready) = planned(&settings, "ckpt_5.pt", false, false);
        assert!(!ready, "another node has yet to move the torn one");
        assert_eq!((choice.resume.unwrap().step, choice.aside.len()), (5, 0));
        let (choice, ready) = planned(&settings, "ckpt_5.pt", false, true);
        assert!(ready);
        assert_eq!((choice.resume.unwrap().step, choice.aside.len()), (5, 1));
        assert!(directory.path().join("ckpt_7.pt").exists());
        // Where each node has a directory of its own, what others do not have must not be resumed from either.
        let (choice, _) = planned(&settings, "ckpt_5.pt", true, true);
        assert_eq!(choice.aside[0].name, "ckpt_7.pt");
    }

    #[test]
    fn a_checkpoint_that_is_not_there_is_still_what_the_plan_says() {
        let directory = tempfile::tempdir().unwrap();
        let settings = settings(directory.path());
        let (choice, ready) = planned(&settings, "ckpt_5.pt", false, false);
        assert!(!ready);
        assert_eq!(
            choice.resume.unwrap().path,
            directory.path().join("ckpt_5.pt")
        );
        assert!(choice.notes[0].contains("is not in"), "{:?}", choice.notes);
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

    /// A file that everybody may open and nobody can read: the loopback interface has no speed.
    const UNREADABLE: &str = "/sys/class/net/lo/speed";

    #[test]
    fn what_cannot_be_read_is_neither_passed_over_nor_moved_unless_an_older_one_can() {
        if std::fs::read(UNREADABLE).map_err(|error| error.kind())
            != Err(std::io::ErrorKind::InvalidInput)
        {
            return eprintln!("SKIPPED: {UNREADABLE} is no file here that cannot be read");
        }
        let directory = tempfile::tempdir().unwrap();
        let settings = settings(directory.path());
        let newest = directory.path().join("step-9");
        std::fs::create_dir(&newest).unwrap();
        for name in [".metadata", "__0_0.distcp"] {
            std::os::unix::fs::symlink(UNREADABLE, newest.join(name)).unwrap();
        }
        let choice = chosen(&settings, true);
        let why = choice.unreadable.unwrap();
        assert!(why.starts_with("checkpoint step-9 in "), "{why}");
        assert!(why.contains(".metadata cannot be read"), "{why}");
        assert_eq!((choice.resume, choice.aside.len()), (None, 0));
        assert!(newest.exists());

        // Then the storage is well, and it is this one that is damaged.
        put(directory.path(), "ckpt_5.pt", true);
        let choice = chosen(&settings, true);
        assert_eq!(choice.unreadable, None);
        assert_eq!(choice.resume.unwrap().step, 5);
        assert_eq!(choice.aside[0].name, "step-9");
    }

    #[test]
    fn shapes_are_names_without_numbers() {
        assert_eq!(shape("ckpt_100.pt"), shape("ckpt_9.pt"));
        assert_ne!(shape("ckpt_100.pt"), shape("vocab_9.pt"));
    }
}
