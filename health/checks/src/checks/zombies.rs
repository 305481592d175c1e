// SPDX-License-Identifier: Apache-2.0
//! Processes that have ended and that nobody takes notice of.

use super::{LEISURE, QUICK};
use crate::context::Context;
use crate::outcome::Outcome;
use crate::processes;
use crate::spec::{Number, Spec, Threshold, Unit, number, optional};

static WARN: Number = number("warn", Unit::Count, 100, "More are a warning.");
static FAIL: Number = optional("fail", Unit::Count, "More fail the check.");
static AGE: Number = number(
    "age",
    Unit::Time,
    300_000,
    "Only processes count that began longer ago than this.",
);

pub(crate) static SPEC: Spec = Spec {
    name: "zombies",
    doc: "Counts processes that have ended and were not waited for. Many use up process ids, and tell of a program that lost \
          its children.",
    profiles: LEISURE,
    deadline: QUICK,
    thresholds: &[
        Threshold::Number(&WARN),
        Threshold::Number(&FAIL),
        Threshold::Number(&AGE),
    ],
    needs_gpus: false,
    look,
};

const NEXT: &str = "end or restart the parents that are named, which should wait for them";
/// Parents that are named.
const NAMED: usize = 5;

fn look(context: &Context<'_>) -> Outcome {
    let since_boot = match context.since_boot() {
        Ok(since_boot) => since_boot.as_secs(),
        Err(unread) => return unread.into(),
    };
    let all = match processes::all(context) {
        Ok(all) => all,
        Err(unread) => return unread.into(),
    };
    let age = context.number(&AGE).unwrap_or(0) / 1000;
    let mut zombies = all
        .iter()
        .filter(|process| process.state == 'Z')
        .collect::<Vec<_>>();
    zombies.retain(|process| process.age_s(since_boot) >= age);
    let count = zombies.len() as u64;
    let mut outcome = Outcome::ok(format!("{count} zombies"));
    let mut parents: Vec<u32> = zombies.iter().map(|process| process.parent).collect();
    parents.sort_unstable();
    parents.dedup();
    for parent in parents.into_iter().take(NAMED) {
        let children = zombies
            .iter()
            .filter(|process| process.parent == parent)
            .count();
        let name = all.iter().find(|process| process.pid == parent);
        let name = name.map_or("unknown", |process| process.name.as_str());
        outcome.evidence(format!("{children} of process {parent} ({name})"));
    }
    let text = format!("{count} processes have ended and were not waited for");
    if context.number(&FAIL).is_some_and(|most| count > most) {
        outcome.fail(text, NEXT);
    } else if context.number(&WARN).is_some_and(|most| count > most) {
        outcome.warn(text, NEXT);
    }
    outcome
}

#[cfg(test)]
mod tests {
    use crate::outcome::Status;
    use crate::testing::Made;

    fn stat(pid: u32, parent: u32, state: char, start: u64) -> String {
        format!("{pid} (x) {state} {parent} 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 {start} 0 0\n")
    }

    #[test]
    fn old_zombies_are_counted_with_their_parents() {
        let mut made = Made::running()
            .file("proc/1/stat", stat(1, 0, 'S', 0))
            .file("proc/300/stat", "garbage")
            .file("proc/301/stat", stat(301, 1, 'Z', 99_900));
        for pid in 200..203 {
            made = made.file(&format!("proc/{pid}/stat"), stat(pid, 1, 'Z', 100));
        }
        let result = made.expect("zombies", Status::Ok, "3 zombies");
        assert_eq!(result.evidence, ["3 of process 1 (x)"]);
        let made = made.settings("[check.zombies]\nwarn = 2");
        made.expect("zombies", Status::Warn, "3 processes");
        let made = made.settings("[check.zombies]\nfail = 3\nage = 0");
        made.expect("zombies", Status::Fail, "4 processes");
    }

    #[test]
    fn without_proc_nothing_is_known() {
        Made::empty().expect("zombies", Status::Unknown, "cannot read /proc/uptime");
        Made::running()
            .file("proc/uptime", "soon")
            .expect("zombies", Status::Unknown, "no time");
        Made::running().expect("zombies", Status::Unknown, "no process");
    }
}
