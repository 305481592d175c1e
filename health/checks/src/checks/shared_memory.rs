// SPDX-License-Identifier: Apache-2.0
//! What jobs have left in shared memory.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt as _;

use super::{BETWEEN_JOBS, QUICK};
use crate::context::Context;
use crate::outcome::Outcome;
use crate::processes;
use crate::spec::{Number, Spec, Threshold, Unit, Words, number, optional, words};
use crate::units::show_size;

const DIRECTORY: &str = "dev/shm";
/// Bytes of a block in `st_blocks`.
const BLOCK: u64 = 512;
/// Files that are looked at.
const MOST_FILES: usize = 100_000;
/// Owners that are named.
const NAMED: usize = 5;

static WARN: Number = number(
    "warn",
    Unit::Size,
    1 << 30,
    "Memory in files of users none of whose processes runs. More is a warning.",
);

static FAIL: Number = optional("fail", Unit::Size, "The same. More fails the check.");

static IGNORED: Words = words(
    "ignored",
    &[],
    "Beginnings of names of files that do not count.",
);

pub(crate) static SPEC: Spec = Spec {
    name: "shared-memory",
    doc: "Adds up the files in /dev/shm of users none of whose processes runs: jobs that were killed have left them, and they \
          use up memory. Files of root do not count.",
    profiles: BETWEEN_JOBS,
    deadline: QUICK,
    thresholds: &[
        Threshold::Number(&WARN),
        Threshold::Number(&FAIL),
        Threshold::Words(&IGNORED),
    ],
    needs_gpus: false,
    look,
};

const NEXT: &str = "remove what nobody needs (`find /dev/shm -uid UID -delete`)";

fn look(context: &Context<'_>) -> Outcome {
    if !context.exists(DIRECTORY) {
        return Outcome::unknown("there is no /dev/shm");
    }
    let alive = match owners(context) {
        Ok(alive) => alive,
        Err(why) => return Outcome::unknown(why),
    };
    let ignored = context.words(&IGNORED);
    let mut left: Vec<(u32, u64, u64)> = Vec::new();
    for name in context.names(DIRECTORY).into_iter().take(MOST_FILES) {
        if ignored.iter().any(|start| name.starts_with(start.as_str())) {
            continue;
        }
        // What has gone meanwhile is not left.
        let Ok(file) = std::fs::symlink_metadata(context.path(DIRECTORY).join(name)) else {
            continue;
        };
        let owner = file.uid();
        if owner == 0 || alive.contains(&owner) || !file.is_file() {
            continue;
        }
        let bytes = file.blocks().saturating_mul(BLOCK);
        match left.iter_mut().find(|(known, _, _)| *known == owner) {
            Some((_, files, total)) => {
                *files += 1;
                *total = total.saturating_add(bytes);
            }
            None => left.push((owner, 1, bytes)),
        }
    }
    left.sort_by_key(|(_, _, bytes)| std::cmp::Reverse(*bytes));
    let total = left
        .iter()
        .map(|(_, _, bytes)| bytes)
        .fold(0_u64, |sum, bytes| sum.saturating_add(*bytes));
    let mut outcome = Outcome::ok(format!("{} left behind in /dev/shm", show_size(total)));
    for (owner, files, bytes) in left.iter().take(NAMED) {
        outcome.evidence(format!(
            "user {owner}: {files} files, {}",
            show_size(*bytes)
        ));
    }
    let text = format!(
        "{} in /dev/shm belongs to users none of whose processes runs",
        show_size(total)
    );
    if context.number(&FAIL).is_some_and(|most| total > most) {
        outcome.fail(text, NEXT);
    } else if context.number(&WARN).is_some_and(|most| total > most) {
        outcome.warn(text, NEXT);
    }
    outcome
}

/// The users whose processes run.
fn owners(context: &Context<'_>) -> Result<BTreeSet<u32>, String> {
    let all = processes::all(context).map_err(|unread| unread.why)?;
    let alive = all
        .iter()
        .filter(|process| !matches!(process.state, 'Z' | 'X'));
    Ok(alive
        .filter_map(|process| {
            real_user(&context.read(format!("proc/{}/status", process.pid)).ok()?)
        })
        .collect())
}

fn real_user(status: &str) -> Option<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::real_user;
    use crate::outcome::Status;
    use crate::testing::Made;

    fn process(made: Made, pid: u32, user: u32) -> Made {
        let stat = format!("{pid} (x) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 50 0 0\n");
        made.file(&format!("proc/{pid}/stat"), stat).file(
            &format!("proc/{pid}/status"),
            format!("Name:\tx\nUid:\t{user}\t0\t0\t0\n"),
        )
    }

    #[test]
    fn files_of_users_without_a_process_are_left_behind() {
        let made = process(Made::running(), 1, 0).file("dev/shm/torch_1", vec![1; 100_000]);
        std::os::unix::fs::chown(made.path("dev/shm/torch_1"), Some(4711), None).map_or_else(
            |_| println!("needs root to give a file away"),
            |()| {
                let made = made.settings("[check.shared-memory]\nwarn = \"4KiB\"");
                made.expect(
                    "shared-memory",
                    Status::Warn,
                    "belongs to users none of whose processes runs",
                );
                let made = made.settings("[check.shared-memory]\nfail = \"4KiB\"");
                made.expect("shared-memory", Status::Fail, "");
                let made =
                    made.settings("[check.shared-memory]\nfail = \"4KiB\"\nignored = \"torch_\"");
                made.expect("shared-memory", Status::Ok, "0 B left behind");
                let made =
                    process(made, 2, 4711).settings("[check.shared-memory]\nfail = \"4KiB\"");
                made.expect("shared-memory", Status::Ok, "0 B left behind");
            },
        );
    }

    #[test]
    fn absent_and_garbage_are_unknown() {
        Made::running().expect("shared-memory", Status::Unknown, "no /dev/shm");
        let made = Made::running().file("dev/shm/x", "");
        made.expect("shared-memory", Status::Unknown, "no process is seen");
        assert_eq!(real_user("Uid:\tx"), None);
        assert_eq!(real_user("Uid:\t5\t0"), Some(5));
    }
}
