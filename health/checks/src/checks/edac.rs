// SPDX-License-Identifier: Apache-2.0
//! Errors of the machine's own memory.

use std::collections::BTreeMap;

use super::{BUT_EPILOG, QUICK};
use crate::context::Context;
use crate::outcome::Outcome;
use crate::rates::{Growth, compare, in_words, per_hour};
use crate::spec::{Number, Spec, Threshold, Unit, number};

static MAX_UNCORRECTED: Number = number(
    "max_uncorrected",
    Unit::Count,
    0,
    "Errors since the machine was started that could not be corrected. More fail the check.",
);

static MAX_CORRECTED: Number = number(
    "max_corrected",
    Unit::PerHour,
    100,
    "Errors of one memory controller since the last run that were corrected. More are a warning.",
);

pub(crate) static SPEC: Spec = Spec {
    name: "edac",
    doc: "Reads how many errors the memory controllers have counted (EDAC).",
    profiles: BUT_EPILOG,
    deadline: QUICK,
    thresholds: &[
        Threshold::Number(&MAX_UNCORRECTED),
        Threshold::Number(&MAX_CORRECTED),
    ],
    needs_gpus: false,
    look,
};

const CONTROLLERS: &str = "sys/devices/system/edac/mc";
const NEXT: &str = "have the memory module replaced; `ras-mc-ctl --error-count` names it";

fn look(context: &Context<'_>) -> Outcome {
    let mut names = context.names(CONTROLLERS);
    names.retain(|name| {
        let digits = name.strip_prefix("mc").unwrap_or_default();
        !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
    });
    if names.is_empty() {
        return Outcome::unknown("the kernel counts no errors of memory here (no EDAC driver)");
    }
    let mut outcome = Outcome::ok(format!("{} memory controllers, no error", names.len()));
    let mut corrected = BTreeMap::new();
    for name in names {
        match context.read_number(format!("{CONTROLLERS}/{name}/ue_count")) {
            Err(unread) => outcome.unsure(unread.why),
            Ok(count) => {
                let most = context.number(&MAX_UNCORRECTED);
                if most.is_some_and(|most| count > most) {
                    let text = format!(
                        "memory controller {name} had {count} errors that could not be corrected"
                    );
                    outcome.fail(text, NEXT);
                }
            }
        }
        match context.read_number(format!("{CONTROLLERS}/{name}/ce_count")) {
            Err(unread) => outcome.unsure(unread.why),
            Ok(count) => {
                outcome.evidence(format!("{name}: {count} errors corrected"));
                corrected.insert(name, count);
            }
        }
    }
    match compare(context, context.remembered(), corrected) {
        Err(unread) => outcome.unsure(unread.why),
        Ok((growth, kept)) => {
            outcome.remember(&kept);
            judge(context, growth, &mut outcome);
        }
    }
    outcome
}

fn judge(context: &Context<'_>, growth: Growth, outcome: &mut Outcome) {
    match growth {
        Growth::Unknown(why) => outcome.evidence(why),
        Growth::Since(elapsed, grown) => {
            let most = context.number(&MAX_CORRECTED);
            for (name, errors) in grown {
                if most.is_some_and(|most| per_hour(errors, elapsed) > most) {
                    let text = format!(
                        "memory controller {name} had to correct errors: {}",
                        in_words(errors, elapsed)
                    );
                    outcome.warn(text, NEXT);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::outcome::Status;
    use crate::testing::Made;

    fn made(made: Made, controller: &str, corrected: &str, uncorrected: &str) -> Made {
        let directory = format!("sys/devices/system/edac/mc/{controller}");
        made.file(&format!("{directory}/ce_count"), corrected)
            .file(&format!("{directory}/ue_count"), uncorrected)
    }

    #[test]
    fn errors_that_were_not_corrected_fail_and_the_others_have_a_rate() {
        let node = made(Made::running(), "mc0", "1000\n", "0\n");
        let node = node.file("sys/devices/system/edac/mc/power/control", "auto");
        node.expect("edac", Status::Ok, "1 memory controllers, no error");
        let node = made(node, "mc0", "1101\n", "0\n").file("proc/uptime", "4600.0 0");
        node.expect("edac", Status::Warn, "mc0 had to correct errors: 101 in 1h");
        let node = made(node, "mc1", "0\n", "1\n");
        node.expect(
            "edac",
            Status::Fail,
            "mc1 had 1 errors that could not be corrected",
        );
    }

    #[test]
    fn absent_and_garbage_are_unknown() {
        Made::running().expect("edac", Status::Unknown, "no EDAC driver");
        let node = made(Made::running(), "mc0", "many", "\u{0}");
        node.expect("edac", Status::Unknown, "says `many`, which is no number");
    }
}
