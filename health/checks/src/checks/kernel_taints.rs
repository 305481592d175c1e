// SPDX-License-Identifier: Apache-2.0
//! What has happened to the kernel since it was started.

use super::{BUT_EPILOG, QUICK};
use crate::context::Context;
use crate::outcome::Outcome;
use crate::spec::{Spec, Threshold, Words};

/// Bits of `/proc/sys/kernel/tainted` that tell of a fault, the names they have here, and what they mean. The others, such
/// as that of a module that is not free, tell of none.
const TAINTS: [(u32, &str, &str); 5] = [
    (
        4,
        "machine-check",
        "the processor has reported an error (machine check)",
    ),
    (5, "bad-page", "a page of memory was in a bad state"),
    (7, "oops", "the kernel has crashed in part (oops)"),
    (9, "warning", "the kernel has warned of an inconsistency"),
    (
        14,
        "soft-lockup",
        "a processor was stuck in the kernel (soft lockup)",
    ),
];
const NAMES: &[&str] = &[
    "machine-check",
    "bad-page",
    "oops",
    "warning",
    "soft-lockup",
];

static WARN: Words = Words {
    name: "warn",
    default: &["machine-check", "bad-page", "oops", "soft-lockup"],
    choices: NAMES,
    doc: "Which are a warning.",
};

static FAIL: Words = Words {
    name: "fail",
    default: &[],
    choices: NAMES,
    doc: "Which fail the check. They stay until the node is rebooted.",
};

pub(crate) static SPEC: Spec = Spec {
    name: "kernel-taints",
    doc: "Reads what the kernel itself keeps of its faults since it was started (`/proc/sys/kernel/tainted`).",
    profiles: BUT_EPILOG,
    deadline: QUICK,
    thresholds: &[Threshold::Words(&WARN), Threshold::Words(&FAIL)],
    needs_gpus: false,
    look,
};

const NEXT: &str = "read the kernel log (`dmesg`), and reboot the node when it is idle";

fn look(context: &Context<'_>) -> Outcome {
    let taints = match context.read_number("proc/sys/kernel/tainted") {
        Ok(taints) => taints,
        Err(unread) => return unread.into(),
    };
    let mut outcome = Outcome::ok("the kernel keeps of no fault");
    outcome.evidence(format!("/proc/sys/kernel/tainted: {taints}"));
    let (warn, fail) = (context.words(&WARN), context.words(&FAIL));
    for (bit, name, text) in TAINTS {
        if taints >> bit & 1 == 0 {
            continue;
        }
        if fail.iter().any(|each| each == name) {
            outcome.fail(text, NEXT);
        } else if warn.iter().any(|each| each == name) {
            outcome.warn(text, NEXT);
        }
    }
    outcome
}

#[cfg(test)]
mod tests {
    use super::{NAMES, TAINTS};
    use crate::outcome::Status;
    use crate::testing::Made;

    #[test]
    fn faults_count_and_modules_do_not() {
        let made = Made::empty().file("proc/sys/kernel/tainted", "12801\n");
        made.expect("kernel-taints", Status::Ok, "no fault");
        let made = made.file("proc/sys/kernel/tainted", "16528\n");
        let result = made.expect("kernel-taints", Status::Warn, "(machine check)");
        assert_eq!(result.problems.len(), 3, "{result:#?}");
        let made = made.settings("[check.kernel-taints]\nfail = \"oops\"");
        made.expect("kernel-taints", Status::Fail, "crashed in part");
    }

    #[test]
    fn what_is_absent_or_no_number_is_unknown() {
        Made::empty().expect(
            "kernel-taints",
            Status::Unknown,
            "cannot read /proc/sys/kernel/tainted",
        );
        let made = Made::empty().file("proc/sys/kernel/tainted", "none\n");
        made.expect(
            "kernel-taints",
            Status::Unknown,
            "says `none`, which is no number",
        );
    }

    #[test]
    fn names_are_those_of_the_table() {
        assert_eq!(TAINTS.map(|(_, name, _)| name), *NAMES);
    }
}
