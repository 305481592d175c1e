// SPDX-License-Identifier: Apache-2.0
//! Mounts that should be there, and that should answer.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::ALWAYS;
use crate::context::Context;
use crate::mount_probe::MountAnswer;
use crate::mounts::{Mount, parse};
use crate::outcome::{Outcome, Status};
use crate::outside::{Ended, How, Work};
use crate::spec::{Spec, Switch, Threshold, Words, words};

static REQUIRED: Words = words(
    "required",
    &[],
    "Directories on which something must be mounted, such as \"/scratch\". Other mounts of file servers are asked as well.",
);

static IGNORED: Words = words(
    "ignored",
    &[],
    "Directories whose mounts are not asked, with everything below.",
);

static WRITE: Switch = Switch {
    name: "write",
    default: false,
    doc: "Whether a small file is written to each of `required`, brought to the disk and removed.",
};

pub(crate) static SPEC: Spec = Spec {
    name: "mounts",
    doc: "Asks every mount of a file server, and each that is required, in a process of its own: one that does not answer \
          fails the check, and so does a file system that has become read-only after errors.",
    profiles: ALWAYS,
    deadline: Duration::from_secs(5),
    thresholds: &[
        Threshold::Words(&REQUIRED),
        Threshold::Words(&IGNORED),
        Threshold::Switch(&WRITE),
    ],
    needs_gpus: false,
    look,
};

/// File systems that become read-only after errors. Others are so from the beginning, without saying it of the mount.
const DISKS: [&str; 6] = ["ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs"];
/// Mounts that are asked in one run.
const MOST: usize = 64;
const HANGS: &str =
    "see whether the file server answers; what waits for it cannot be ended until it does";
const ABSENT: &str = "mount it (`mount PATH`), and see in the system log why it was not";
const READ_ONLY: &str =
    "see the kernel log for errors of the disk, repair the file system, then mount it again";

fn look(context: &Context<'_>) -> Outcome {
    let text = match context.read("proc/self/mountinfo") {
        Ok(text) => text,
        Err(unread) => return unread.into(),
    };
    // The last mount on a directory hides the others.
    let mounts: BTreeMap<PathBuf, Mount> = parse(&text)
        .into_iter()
        .map(|mount| (mount.path.clone(), mount))
        .collect();
    let mut outcome = Outcome::default();
    let required: Vec<PathBuf> = context
        .words(&REQUIRED)
        .into_iter()
        .map(PathBuf::from)
        .collect();
    for path in required.iter().filter(|path| !mounts.contains_key(*path)) {
        outcome.fail(format!("nothing is mounted on {}", path.display()), ABSENT);
    }
    let ignored = context.words(&IGNORED);
    let is_ignored = |path: &Path| ignored.iter().any(|ignored| path.starts_with(ignored));
    let on_disks = mounts
        .values()
        .filter(|mount| DISKS.contains(&mount.kind.as_str()));
    for mount in on_disks.filter(|mount| required.contains(&mount.path) || !is_ignored(&mount.path))
    {
        if mount.file_system_read_only && !mount.read_only {
            let text = format!(
                "{} ({}) has become read-only",
                mount.path.display(),
                mount.kind
            );
            outcome.fail(text, READ_ONLY);
        }
    }
    let asked: Vec<&Mount> = mounts
        .values()
        .filter(|mount| {
            required.contains(&mount.path) || mount.is_remote() && !is_ignored(&mount.path)
        })
        .take(MOST)
        .collect();
    let answers = ask(context, &asked, &required);
    for (mount, ended) in asked.iter().zip(&answers) {
        judge(mount, ended, &mut outcome);
    }
    outcome.fine = format!("{} mounts asked, all answer", asked.len());
    outcome
}

/// Asks all of them at once.
fn ask(context: &Context<'_>, mounts: &[&Mount], required: &[PathBuf]) -> Vec<Ended> {
    let write = context.switch(&WRITE);
    std::thread::scope(|scope| {
        let asking: Vec<_> = mounts
            .iter()
            .map(|mount| {
                let work = Work::Mount {
                    write: write && required.contains(&mount.path),
                    path: mount.path.clone(),
                };
                std::thread::Builder::new()
                    .name("mount".to_owned())
                    .spawn_scoped(scope, move || context.run(&work))
            })
            .collect();
        let answers = asking.into_iter().map(|thread| match thread {
            Ok(thread) => thread.join().unwrap_or_else(|_| {
                Ended::silently(How::NotStarted(
                    "the thread that asks it panicked".to_owned(),
                ))
            }),
            Err(error) => Ended::silently(How::NotStarted(format!(
                "no thread can be started: {error}"
            ))),
        });
        answers.collect()
    })
}

fn judge(mount: &Mount, ended: &Ended, outcome: &mut Outcome) {
    let name = format!(
        "{} ({}, {})",
        mount.path.display(),
        mount.kind,
        mount.source
    );
    match &ended.how {
        How::TimedOut {
            state, waits_in, ..
        } => {
            let place = waits_in
                .as_ref()
                .map_or_else(String::new, |name| format!(" in {name}"));
            let text = format!("{name} does not answer: who asks it sleeps{place} (state {state})");
            outcome.fail(text, HANGS);
        }
        How::Exited(0) => {
            match serde_json::from_slice::<Result<MountAnswer, String>>(&ended.stdout) {
                Ok(Ok(answer)) => outcome.evidence(format!("{name}: {answer:?}")),
                Ok(Err(how)) => outcome.fail(format!("{name} {how}"), ABSENT),
                Err(error) => {
                    outcome.add(
                        Status::Broken,
                        format!("{name}: the answer cannot be read: {error}"),
                        None,
                    );
                }
            }
        }
        How::NotStarted(why) => {
            outcome.add(
                Status::Broken,
                format!("{name} could not be asked: {why}"),
                None,
            );
        }
        other => outcome.add(
            Status::Broken,
            format!("{name} could not be asked: {other:?}"),
            None,
        ),
    }
}

#[cfg(test)]
mod tests {
    use crate::outcome::Status;
    use crate::outside::{Ended, How};
    use crate::testing::Made;

    const INFO: &str = "proc/self/mountinfo";
    const MOUNTS: &str = "\
22 1 259:2 / / rw,relatime - ext4 /dev/nvme0n1p2 rw
40 22 0:40 / /home rw - nfs4 server:/home rw
41 22 0:41 / /scratch rw - lustre 10.0.0.1@o2ib:/scratch rw
";

    fn hangs() -> Ended {
        Ended::silently(How::TimedOut {
            pid: 9,
            state: 'D',
            waits_in: Some("rpc_wait_bit_killable".to_owned()),
        })
    }

    fn answers(text: &str) -> Ended {
        Ended {
            how: How::Exited(0),
            stdout: text.into(),
            stderr: Vec::new(),
        }
    }

    #[test]
    fn mounts_of_file_servers_must_answer() {
        let made = Made::empty().file(INFO, MOUNTS);
        made.expect("mounts", Status::Ok, "2 mounts asked, all answer");
        let made = made.mount("/home", hangs());
        let said = "/home (nfs4, server:/home) does not answer: who asks it sleeps in rpc_wait_bit_killable (state D)";
        made.expect("mounts", Status::Fail, said);
        let made = made.settings("[check.mounts]\nignored = \"/home\"");
        made.expect("mounts", Status::Ok, "1 mounts asked");
        let made = made.mount("/scratch", answers(r#"{"Err":"cannot be listed: stale"}"#));
        made.expect(
            "mounts",
            Status::Fail,
            "/scratch (lustre, 10.0.0.1@o2ib:/scratch) cannot be listed: stale",
        );
    }

    #[test]
    fn what_is_required_must_be_mounted_and_answer() {
        let made = Made::empty().file(INFO, MOUNTS);
        let made = made.settings("[check.mounts]\nrequired = [\"/\", \"/data\"]");
        made.expect("mounts", Status::Fail, "nothing is mounted on /data");
        let made = made.mount("/", hangs());
        made.expect(
            "mounts",
            Status::Fail,
            "/ (ext4, /dev/nvme0n1p2) does not answer",
        );
    }

    #[test]
    fn a_file_system_that_became_read_only_fails() {
        let made = Made::empty().file(INFO, "41 22 8:1 / /data rw - ext4 /dev/sda1 ro,errors=remount-ro\n42 22 8:2 / /cd ro - iso9660 /dev/sr0 ro\n");
        made.expect("mounts", Status::Fail, "/data (ext4) has become read-only");
        let made = made.settings("[check.mounts]\nignored = \"/data\"");
        made.expect("mounts", Status::Ok, "");
    }

    #[test]
    fn our_own_failure_is_no_fault_of_the_node() {
        let made = Made::empty().file(INFO, MOUNTS);
        for ended in [
            answers("{"),
            Ended::silently(How::Exited(1)),
            Ended::silently(How::Killed(9)),
            Ended::silently(How::NotStarted("no room".to_owned())),
        ] {
            let result = Made::empty()
                .file(INFO, MOUNTS)
                .mount("/home", ended)
                .check("mounts");
            assert_eq!(result.status, Status::Broken, "{result:#?}");
        }
        made.expect("mounts", Status::Ok, "");
        Made::empty().expect(
            "mounts",
            Status::Unknown,
            "cannot read /proc/self/mountinfo",
        );
        Made::empty()
            .file(INFO, "garbage\n")
            .expect("mounts", Status::Ok, "0 mounts asked");
    }
}
