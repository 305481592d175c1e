// SPDX-License-Identifier: Apache-2.0
//! Modules that the kernel should have loaded.

use super::{BUT_EPILOG, QUICK};
use crate::context::Context;
use crate::outcome::Outcome;
use crate::spec::{Spec, Threshold, Words, words};

static REQUIRED: Words = words(
    "required",
    &[],
    "Names, such as \"nvidia_peermem\" or \"ib_umad\". Without any there is nothing to check.",
);

pub(crate) static SPEC: Spec = Spec {
    name: "kernel-modules",
    doc: "Fails when a module that is required is neither loaded nor built into the kernel.",
    profiles: BUT_EPILOG,
    deadline: QUICK,
    thresholds: &[Threshold::Words(&REQUIRED)],
    needs_gpus: false,
    look,
};

fn look(context: &Context<'_>) -> Outcome {
    let required = context.words(&REQUIRED);
    if required.is_empty() {
        return Outcome::ok("no module is required");
    }
    if !context.exists("sys/module") && !context.exists("proc/modules") {
        return Outcome::unknown("neither /sys/module nor /proc/modules is here");
    }
    let loaded = context.read("proc/modules").unwrap_or_default();
    let loaded: Vec<&str> = loaded
        .lines()
        .filter_map(|line| line.split_ascii_whitespace().next())
        .collect();
    let mut outcome = Outcome::ok(format!("{} modules are loaded", required.len()));
    for module in required {
        let name = module.replace('-', "_");
        if !loaded.contains(&name.as_str()) && !context.exists(format!("sys/module/{name}")) {
            let next =
                format!("load it (`modprobe {module}`), and see in the kernel log why it was not");
            outcome.fail(format!("module {module} is not loaded"), &next);
        }
    }
    outcome
}

#[cfg(test)]
mod tests {
    use crate::outcome::Status;
    use crate::testing::Made;

    #[test]
    fn modules_are_loaded_or_built_in() {
        let made = Made::empty()
            .file(
                "proc/modules",
                "nvidia 1 0 - Live 0x0\nib_core 1 0 - Live 0x0\n",
            )
            .file("sys/module/nvme/initstate", "live");
        made.expect("kernel-modules", Status::Ok, "no module is required");
        let made = made.settings("[check.kernel-modules]\nrequired = [\"ib-core\", \"nvme\"]");
        made.expect("kernel-modules", Status::Ok, "2 modules are loaded");
        let made =
            made.settings("[check.kernel-modules]\nrequired = [\"nvidia\", \"nvidia_peermem\"]");
        made.expect(
            "kernel-modules",
            Status::Fail,
            "module nvidia_peermem is not loaded",
        );
        let made = Made::empty().settings("[check.kernel-modules]\nrequired = \"nvidia\"");
        made.expect("kernel-modules", Status::Unknown, "neither");
    }
}
