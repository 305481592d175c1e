// SPDX-License-Identifier: Apache-2.0
//! File systems of their own for what a scenario breaks by them.

use std::collections::BTreeMap;
use std::fs::{self, File};

use super::Layout;
use super::sick_disk::SickDisk;
use crate::failure::Failure;
use crate::scenario::{Injection, Place, Scenario};
use crate::tools::run;
use crate::undo::{Undo, UndoJournal};

/// Bytes of a file system: some hundred checkpoints of the default job, and soon filled.
const SIZE: u64 = 24 * 1024 * 1024;
const INODES: u32 = 4_000;

/// What a file system is kept in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Medium {
    Memory,
    /// A file behind a loop device: it can be frozen.
    Loop,
    /// This program, which can make it fail.
    User,
}

/// Mounts what the faults of a scenario need, and gives what can be made to fail.
pub(super) fn mount(
    scenario: &Scenario,
    layout: &Layout,
    undo: &mut UndoJournal,
) -> Result<BTreeMap<Place, SickDisk>, Failure> {
    let mut sick = BTreeMap::new();
    for (place, medium) in needed(scenario) {
        let path = layout.place(place);
        let shown = path.to_string_lossy().into_owned();
        undo.will_do(Undo::Unmount { path: path.clone() })?;
        match medium {
            Medium::Memory => {
                let options = format!("size={SIZE},nr_inodes={INODES},mode=755");
                run(
                    &["mount", "-t", "tmpfs", "-o", &options, "chaos", &shown],
                    "",
                )?;
            }
            Medium::Loop => {
                let image = path.with_extension("image");
                let image_shown = image.to_string_lossy();
                File::create(&image)
                    .and_then(|file| file.set_len(SIZE))
                    .map_err(|error| Failure::write(image.display(), error))?;
                run(&["mkfs.ext4", "-q", "-F", "-N", "4000", &image_shown], "")?;
                run(&["mount", "-o", "loop", &image_shown, &shown], "")?;
            }
            Medium::User => {
                let behind = path.with_extension("behind");
                let mounted = fs::create_dir(&behind)
                    .and_then(|()| SickDisk::mount(&behind, &path))
                    .map_err(|error| Failure::write(path.display(), error))?;
                sick.insert(place, mounted);
            }
        }
    }
    Ok(sick)
}

fn needed(scenario: &Scenario) -> BTreeMap<Place, Medium> {
    let mut needed = BTreeMap::new();
    for fault in &scenario.faults {
        let Some(place) = fault.inject.place() else {
            continue;
        };
        let medium = match fault.inject {
            Injection::FsFreeze { .. } => Medium::Loop,
            Injection::DiskError { .. }
            | Injection::ShortWrites { .. }
            | Injection::SlowDisk { .. } => Medium::User,
            _ => Medium::Memory,
        };
        let entry = needed.entry(place).or_insert(medium);
        *entry = (*entry).max(medium);
    }
    needed
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::read_text;

    #[test]
    fn a_place_that_is_frozen_too_lies_on_a_loop_device() {
        let text = "description = 'x'\n[[faults]]\ninject = { disk-full = { place = 'logs' } }\n[[faults]]\n\
                    inject = { fs-freeze = { place = 'logs' } }\nheal_after_seconds = 1.0\n[[faults]]\n\
                    inject = { inodes-full = { place = 'checkpoints' } }\n";
        let scenario = read_text("x", "x.toml", text).unwrap().scenario;
        let needed = needed(&scenario);
        assert_eq!(needed[&Place::Logs], Medium::Loop);
        assert_eq!(needed[&Place::Checkpoints], Medium::Memory);
    }
}
