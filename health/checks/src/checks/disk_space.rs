// SPDX-License-Identifier: Apache-2.0
//! Room on disks.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::{ALWAYS, QUICK};
use crate::context::Context;
use crate::mount_probe::MountAnswer;
use crate::mounts::{containing, parse};
use crate::outcome::Outcome;
use crate::outside::{How, Work};
use crate::spec::{Number, Spec, Threshold, Unit, Words, number, words};
use crate::units::show_size;

static PATHS: Words = words(
    "paths",
    &[
        "/", "/tmp", "/var", "/var/tmp", "/var/log", "/local", "/scratch",
    ],
    "Directories to look at. Those that are not there are passed over unless they were configured, and of several on one file \
     system the first counts.",
);

static WARN_PERCENT: Number = number(
    "warn_percent",
    Unit::Percent,
    5,
    "Share of the room, or of the files, that should be left. Less is a warning.",
);

static FAIL_FREE: Number = number(
    "fail_free",
    Unit::Size,
    512 << 20,
    "Room that must be left. Less fails the check.",
);

static FAIL_FILES: Number = number(
    "fail_files",
    Unit::Count,
    1000,
    "Files that it must still be possible to create. Fewer fail the check.",
);

pub(crate) static SPEC: Spec = Spec {
    name: "disk-space",
    doc: "Looks at how much room, and room for how many files (inodes), is left for ordinary users.",
    profiles: ALWAYS,
    deadline: QUICK,
    thresholds: &[
        Threshold::Words(&PATHS),
        Threshold::Number(&WARN_PERCENT),
        Threshold::Number(&FAIL_FREE),
        Threshold::Number(&FAIL_FILES),
    ],
    needs_gpus: false,
    look,
};

const ROOM: &str = "find out what fills it (`du -xh --max-depth 2 PATH | sort -h`)";
const FILES: &str =
    "find out who has so many files there (`du -x --inodes --max-depth 2 PATH | sort -n`)";

fn look(context: &Context<'_>) -> Outcome {
    let text = context.read("proc/self/mountinfo").unwrap_or_default();
    let mounts = parse(&text);
    let paths = context.words(&PATHS);
    let is_configured = !paths.iter().eq(PATHS.default.iter());
    let mut outcome = Outcome::default();
    let mut seen: Vec<PathBuf> = Vec::new();
    for path in paths {
        let path = PathBuf::from(path);
        let mount = containing(&mounts, &path);
        let place = mount.map_or_else(|| path.clone(), |mount| mount.path.clone());
        if seen.contains(&place) {
            continue;
        }
        let answer = match mount {
            Some(mount) if mount.is_remote() => remote(context, &path),
            _ => MountAnswer::ask(&context.path(&path)).map_err(|error| Unasked {
                is_absent: error.kind() == ErrorKind::NotFound,
                why: error.to_string(),
            }),
        };
        match answer {
            Ok(answer) => {
                judge(context, &path, &answer, &mut outcome);
                seen.push(place);
            }
            // Not every node has every directory that is looked at by default.
            Err(unasked) if unasked.is_absent && !is_configured => {}
            Err(unasked) => outcome.unsure(format!("{}: {}", path.display(), unasked.why)),
        }
    }
    if seen.is_empty() && outcome.problems.is_empty() {
        return Outcome::unknown("none of the directories is here");
    }
    outcome.fine = format!("room is left on {} file systems", seen.len());
    outcome
}

/// Why nothing is known of a directory.
struct Unasked {
    is_absent: bool,
    why: String,
}

impl From<String> for Unasked {
    fn from(why: String) -> Self {
        Self {
            is_absent: false,
            why,
        }
    }
}

/// A file server can hang: that is for `mounts` to judge.
fn remote(context: &Context<'_>, path: &Path) -> Result<MountAnswer, Unasked> {
    let ended = context.run(&Work::Mount {
        path: path.to_owned(),
        write: false,
    });
    match ended.how {
        How::Exited(0) => {
            let answer = serde_json::from_slice::<Result<MountAnswer, String>>(&ended.stdout);
            Ok(answer.map_err(|error| error.to_string())??)
        }
        How::TimedOut { .. } => Err("does not answer (see mounts)".to_owned().into()),
        other => Err(format!("could not be asked: {other:?}").into()),
    }
}

fn judge(context: &Context<'_>, path: &Path, answer: &MountAnswer, outcome: &mut Outcome) {
    let path = path.display();
    let least = context.number(&WARN_PERCENT);
    let is_scarce = |free: u64, total: u64| {
        let percent = u128::from(free) * 100 / u128::from(total.max(1));
        least.is_some_and(|least| percent < u128::from(least))
    };
    let room = format!(
        "{path} has {} of {} left",
        show_size(answer.free),
        show_size(answer.total)
    );
    outcome.evidence(format!(
        "{room}, {} of {} files",
        answer.files_free, answer.files
    ));
    // File systems of the kernel's own have no room at all.
    if answer.total > 0 {
        let fail = context.number(&FAIL_FREE);
        if fail.is_some_and(|fail| answer.free < fail) {
            outcome.fail(room, ROOM);
        } else if is_scarce(answer.free, answer.total) {
            outcome.warn(room, ROOM);
        }
    }
    // Many have no limit.
    if answer.files > 0 {
        let files = format!(
            "{path} has room for {} of {} files left",
            answer.files_free, answer.files
        );
        let fail = context.number(&FAIL_FILES);
        if fail.is_some_and(|fail| answer.files_free < fail) {
            outcome.fail(files, FILES);
        } else if is_scarce(answer.files_free, answer.files) {
            outcome.warn(files, FILES);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::outcome::Status;
    use crate::outside::{Ended, How};
    use crate::testing::Made;

    const INFO: &str = "40 22 0:40 / /scratch rw - nfs4 server:/x rw\n";

    fn answers(total: u64, free: u64, files: u64, files_free: u64) -> Ended {
        let text = format!(
            r#"{{"Ok":{{"total":{total},"free":{free},"files":{files},"files_free":{files_free}}}}}"#
        );
        Ended {
            how: How::Exited(0),
            stdout: text.into_bytes(),
            stderr: Vec::new(),
        }
    }

    fn scratch(ended: Ended) -> Made {
        Made::empty()
            .file("proc/self/mountinfo", INFO)
            .mount("/scratch", ended)
            .settings("[check.disk-space]\npaths = \"/scratch\"")
    }

    #[test]
    fn room_and_files_are_judged() {
        let gib = 1 << 30;
        for (ended, status, said) in [
            (
                answers(100 * gib, 50 * gib, 0, 0),
                Status::Ok,
                "room is left on 1 file systems",
            ),
            (
                answers(100 * gib, 4 * gib, 0, 0),
                Status::Warn,
                "/scratch has 4 GiB of 100 GiB left",
            ),
            (
                answers(100 * gib, gib / 4, 0, 0),
                Status::Fail,
                "/scratch has 256 MiB of 100 GiB left",
            ),
            (answers(0, 0, 0, 0), Status::Ok, ""),
            (
                answers(100 * gib, 50 * gib, 1_000_000, 40_000),
                Status::Warn,
                "room for 40000 of 1000000 files",
            ),
            (
                answers(100 * gib, 50 * gib, 1_000_000, 999),
                Status::Fail,
                "room for 999 of 1000000 files",
            ),
        ] {
            scratch(ended).expect("disk-space", status, said);
        }
    }

    #[test]
    fn a_usual_directory_that_cannot_be_asked_is_said_unless_it_is_not_there() {
        let made = Made::empty().file("proc/self/mountinfo", "").settings(
            "[check.disk-space]\nwarn_percent = \"off\"\nfail_free = \"off\"\nfail_files = \"off\"",
        );
        made.expect("disk-space", Status::Ok, "room is left on 1 file systems");
        // A directory below a file cannot be there, which is another reason than that it is not.
        let made = made.file("var", "");
        made.expect("disk-space", Status::Unknown, "/var/tmp: ");
    }

    #[test]
    fn a_file_server_that_hangs_is_for_another_check_to_judge() {
        let hangs = Ended::silently(How::TimedOut {
            pid: 1,
            state: 'D',
            waits_in: None,
        });
        scratch(hangs).expect(
            "disk-space",
            Status::Unknown,
            "does not answer (see mounts)",
        );
        let broken = Ended::silently(How::Exited(1));
        scratch(broken).expect("disk-space", Status::Unknown, "could not be asked");
    }

    #[test]
    fn directories_that_are_not_there_are_passed_over_unless_configured() {
        let made = Made::empty();
        let result = made.check("disk-space");
        assert_ne!(result.status, Status::Broken, "{result:#?}");
        let made = made.settings("[check.disk-space]\npaths = \"/nowhere\"");
        made.expect("disk-space", Status::Unknown, "/nowhere: No such file");
    }
}
