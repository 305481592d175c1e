// SPDX-License-Identifier: Apache-2.0
//! Processes that sleep in the kernel and cannot be ended.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::ALWAYS;
use crate::context::Context;
use crate::outcome::Outcome;
use crate::processes::{self, Process};
use crate::spec::{Number, Spec, Threshold, Unit, number};
use crate::units::show_duration;

static FAIL_AFTER: Number = number(
    "fail_after",
    Unit::Time,
    300_000,
    "A process that was seen so in runs this far apart, and did nothing in between, fails the check. One that was seen so \
     for a shorter time is a warning.",
);

pub(crate) static SPEC: Spec = Spec {
    name: "stuck-processes",
    doc: "Finds processes that sleep uninterruptibly (state D) and do not wake up. They wait for a device or a file server, \
          and no signal ends them. Threads of the kernel do not count.",
    profiles: ALWAYS,
    deadline: Duration::from_secs(3),
    thresholds: &[Threshold::Number(&FAIL_AFTER)],
    needs_gpus: false,
    look,
};

/// Between the two looks of one run.
const BETWEEN: Duration = Duration::from_millis(150);
const NEXT: &str =
    "see what they wait for (mounts, disks, GPUs); if that cannot be mended, reboot the node";

/// A process that sleeps, and how often it has let another one run: as long as that stays, it has not woken up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Sleeper {
    start_ticks: u64,
    switches: u64,
    /// When it was first seen so, in seconds since boot.
    since_s: u64,
}

/// What is remembered.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Kept {
    boot: String,
    sleepers: BTreeMap<u32, Sleeper>,
}

fn look(context: &Context<'_>) -> Outcome {
    let (boot, now_s) = match (context.boot(), context.since_boot()) {
        (Ok(boot), Ok(since_boot)) => (boot, since_boot.as_secs()),
        (Err(unread), _) | (_, Err(unread)) => return unread.into(),
    };
    let all = match processes::all(context) {
        Ok(all) => all,
        Err(unread) => return unread.into(),
    };
    let mut asleep: Vec<(Process, u64)> = all
        .into_iter()
        .filter(|process| process.state == 'D' && !process.is_of_kernel())
        .filter_map(|process| Some((switches(context, process.pid)?, process)))
        .map(|(switches, process)| (process, switches))
        .collect();
    if !asleep.is_empty() {
        pause(BETWEEN);
        asleep.retain(|(process, before)| {
            let now = processes::one(context, process.pid);
            now.is_some_and(|now| now.state == 'D' && now.start_ticks == process.start_ticks)
                && switches(context, process.pid) == Some(*before)
        });
    }
    let before: Kept = context.remembered().unwrap_or_default();
    let before = if before.boot == boot {
        before
    } else {
        Kept::default()
    };
    let mut kept = Kept {
        boot,
        sleepers: BTreeMap::new(),
    };
    let mut outcome = Outcome::ok("no process is stuck in the kernel");
    for (process, switches) in asleep {
        let earlier = before.sleepers.get(&process.pid).filter(|earlier| {
            earlier.start_ticks == process.start_ticks && earlier.switches == switches
        });
        let since_s = earlier.map_or(now_s, |earlier| earlier.since_s);
        judge(
            context,
            &process,
            Duration::from_secs(now_s.saturating_sub(since_s)),
            &mut outcome,
        );
        let sleeper = Sleeper {
            start_ticks: process.start_ticks,
            switches,
            since_s,
        };
        kept.sleepers.insert(process.pid, sleeper);
    }
    outcome.remember(&kept);
    outcome
}

fn judge(context: &Context<'_>, process: &Process, age: Duration, outcome: &mut Outcome) {
    let function = context.read(format!("proc/{}/wchan", process.pid)).ok();
    let function = function.filter(|name| !name.is_empty() && name != "0");
    let place = function.map_or_else(String::new, |name| format!(" in {name}"));
    let text = format!(
        "process {} ({}) is stuck in the kernel{place}",
        process.pid, process.name
    );
    let limit = context.number(&FAIL_AFTER).map(Duration::from_millis);
    if limit.is_some_and(|limit| age >= limit) {
        outcome.fail(format!("{text}, for at least {}", show_duration(age)), NEXT);
    } else {
        outcome.warn(text, NEXT);
    }
}

/// How often the process has let another one run.
fn switches(context: &Context<'_>, pid: u32) -> Option<u64> {
    let status = context.read(format!("proc/{pid}/status")).ok()?;
    let mut counts = status.lines().filter_map(|line| {
        let (name, count) = line.split_once(':')?;
        let counts = ["voluntary_ctxt_switches", "nonvoluntary_ctxt_switches"];
        counts
            .contains(&name)
            .then(|| count.trim().parse::<u64>().ok())?
    });
    let first = counts.next()?;
    Some(first.saturating_add(counts.next().unwrap_or(0)))
}

fn pause(time: Duration) {
    let until = Instant::now() + time;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        std::thread::park_timeout(left);
    }
}

#[cfg(test)]
mod tests {
    use crate::outcome::Status;
    use crate::testing::Made;

    fn process(made: Made, pid: u32, parent: u32, state: char, switches: u64) -> Made {
        let stat =
            format!("{pid} (python) {state} {parent} 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 50 0 0\n");
        let status = format!(
            "Name:\tpython\nvoluntary_ctxt_switches:\t{switches}\nnonvoluntary_ctxt_switches:\t1\n"
        );
        made.file(&format!("proc/{pid}/stat"), stat)
            .file(&format!("proc/{pid}/status"), status)
            .file(&format!("proc/{pid}/wchan"), "nfs_wait_bit_killable")
    }

    #[test]
    fn a_sleeper_is_a_warning_and_after_a_while_a_fault() {
        let made = process(Made::running(), 7, 1, 'D', 5);
        let said = "process 7 (python) is stuck in the kernel in nfs_wait_bit_killable";
        made.expect("stuck-processes", Status::Warn, said);
        made.write("proc/uptime", "1299.0 0\n");
        made.expect("stuck-processes", Status::Warn, said);
        made.write("proc/uptime", "1300.0 0\n");
        made.expect("stuck-processes", Status::Fail, "for at least 5m");
        let made = process(made, 7, 1, 'D', 6);
        made.expect("stuck-processes", Status::Warn, said);
    }

    #[test]
    fn another_boot_begins_anew() {
        let made = process(Made::running(), 7, 1, 'D', 5);
        made.check("stuck-processes");
        made.write("proc/sys/kernel/random/boot_id", "boot-2");
        made.write("proc/uptime", "9000.0 0\n");
        made.expect("stuck-processes", Status::Warn, "");
    }

    #[test]
    fn threads_of_the_kernel_and_those_who_wake_do_not_count() {
        let made = process(Made::running(), 7, 2, 'D', 5);
        let made = process(made, 8, 1, 'S', 5);
        made.expect("stuck-processes", Status::Ok, "no process is stuck");
        let made = Made::empty();
        made.expect("stuck-processes", Status::Unknown, "boot_id");
    }
}
