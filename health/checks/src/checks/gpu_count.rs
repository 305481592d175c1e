// SPDX-License-Identifier: Apache-2.0
//! Are all GPUs there?

use steadfast_health::nvml::Absence;

use super::each_gpu::nothing;
use super::{ALWAYS, WITH_GPUS, pci};
use crate::context::Context;
use crate::gpus::{Failure, GpuView};
use crate::outcome::Outcome;
use crate::spec::{Number, Spec, Threshold, Unit, optional};

static EXPECTED: Number = optional(
    "expected",
    Unit::Count,
    "GPUs that the node should have. Unless set, as many as the PCI bus shows; then a GPU that the bus has lost at the \
     start of the machine is not missed.",
);

pub(crate) static SPEC: Spec = Spec {
    name: "gpu-count",
    doc: "Compares the GPUs that the driver can use with those that the node should have. With `--gpus`, each of those \
          must be there as well.",
    profiles: ALWAYS,
    deadline: WITH_GPUS,
    thresholds: &[Threshold::Number(&EXPECTED)],
    needs_gpus: true,
    look,
};

const NEXT: &str = "look for XIDs and PCIe errors in the kernel log (`dmesg | steadfast xid -`), then reboot; if the GPU \
                    stays away, reseat or replace it";

fn look(context: &Context<'_>) -> Outcome {
    let on_bus = pci::gpus(context).len() as u64;
    let configured = context.number(&EXPECTED);
    let expected = configured.unwrap_or(on_bus);
    let view = context.gpus();
    let mut outcome = Outcome::default();
    outcome.evidence(format!("{on_bus} GPUs of NVIDIA on the PCI bus"));
    match &view.failure {
        Some(Failure::Absent(absence, _)) => {
            let driver_is_meant = *absence != Absence::Library && expected > 0;
            if configured.is_some_and(|expected| expected > 0) || driver_is_meant {
                let text = format!("none of {expected} GPUs can be used: {}", nothing(&view));
                outcome.fail(text, "install or load NVIDIA's driver");
            } else {
                outcome.unsure(nothing(&view));
            }
            return outcome;
        }
        // Whether GPUs that do not answer are there is for `gpu-driver` to say.
        Some(failure) if view.count.is_none() => {
            outcome.unsure(failure.to_string());
            return outcome;
        }
        _ => {}
    }
    let listed = view.count.map_or(0, u64::from);
    let unusable = view
        .gpus
        .values()
        .filter(|gpu| gpu.silent.is_some())
        .count() as u64;
    let usable = listed.saturating_sub(unusable);
    outcome.evidence(format!(
        "{listed} GPUs in the driver, {unusable} of them cannot be used"
    ));
    if usable < expected {
        outcome.fail(format!("{usable} of {expected} GPUs can be used"), NEXT);
    } else if configured.is_some_and(|expected| usable > expected) {
        let text = format!("{usable} GPUs, where {expected} are expected");
        outcome.warn(text, "correct `expected` in the configuration");
    }
    missing(context, &view, &mut outcome);
    outcome.fine = format!("{usable} GPU{}", if usable == 1 { "" } else { "s" });
    outcome
}

/// GPUs that were named and are not there.
fn missing(context: &Context<'_>, view: &GpuView, outcome: &mut Outcome) {
    for wanted in context.plan.node.gpus.iter().flatten() {
        let is_listed = wanted
            .parse::<u32>()
            .is_ok_and(|index| view.gpus.contains_key(&index));
        if !is_listed && !view.has(wanted) {
            outcome.fail(format!("GPU {wanted} of the job is not there"), NEXT);
        }
    }
}

#[cfg(test)]
mod tests {
    use steadfast_health::nvml::{Absence, SnapshotLine};

    use crate::checks::pci::tests::on_the_bus;
    use crate::outcome::Status;
    use crate::testing::{Made, healthy, lines, said};

    const THERE: [u8; 4] = [0xde, 0x10, 0x30, 0x23];

    #[test]
    fn all_gpus_of_the_bus_are_expected_unless_another_number_is() {
        let made = on_the_bus(Made::with_gpus(&[healthy()]), "0000:18:00.0", THERE);
        made.expect("gpu-count", Status::Ok, "1 GPU");
        let made = on_the_bus(made, "0000:19:00.0", THERE);
        made.expect("gpu-count", Status::Fail, "1 of 2 GPUs can be used");
        let made = made.settings("[check.gpu-count]\nexpected = 1");
        made.expect("gpu-count", Status::Ok, "1 GPU");
        let made = made.settings("[check.gpu-count]\nexpected = 0");
        made.expect("gpu-count", Status::Warn, "1 GPUs, where 0 are expected");
    }

    #[test]
    fn a_gpu_for_virtual_machines_is_not_expected() {
        let made = on_the_bus(Made::with_gpus(&[]), "0000:18:00.0", THERE);
        let link = made.path("sys/bus/pci/devices/0000:18:00.0/driver");
        std::os::unix::fs::symlink("../../drivers/vfio-pci", link).unwrap();
        made.expect("gpu-count", Status::Ok, "0 GPUs");
    }

    #[test]
    fn no_library_is_a_fault_only_where_gpus_are_expected() {
        let made = on_the_bus(Made::running(), "0000:18:00.0", THERE);
        made.expect("gpu-count", Status::Unknown, "libnvidia-ml.so.1");
        let made = made.settings("[check.gpu-count]\nexpected = 8");
        made.expect("gpu-count", Status::Fail, "none of 8 GPUs can be used");
    }

    #[test]
    fn no_driver_is_a_fault_where_the_bus_has_gpus() {
        let absent = said(&[SnapshotLine::Absent {
            absence: Absence::Driver,
            reason: String::new(),
        }]);
        let made = Made::running().nvml(absent);
        made.expect("gpu-count", Status::Unknown, "is not loaded");
        let made = on_the_bus(made, "0000:18:00.0", THERE);
        made.expect(
            "gpu-count",
            Status::Fail,
            "none of 1 GPUs can be used: NVIDIA's driver is not loaded",
        );
    }

    #[test]
    fn gpus_of_the_job_must_be_there() {
        let made = Made::with_gpus(&[healthy(), healthy()]);
        let made = made.only_gpus(&["0", "GPU-1"]);
        made.expect("gpu-count", Status::Ok, "2 GPUs");
        let made = made.only_gpus(&["1", "2", "GPU-9"]);
        let result = made.expect("gpu-count", Status::Fail, "GPU 2 of the job is not there");
        assert_eq!(result.problems.len(), 2);
    }

    #[test]
    fn a_gpu_that_cannot_be_opened_is_not_counted() {
        let mut all = lines(&[healthy(), healthy()]);
        all.truncate(3);
        all.push(SnapshotLine::Silent {
            gpu: 1,
            lost: true,
            reason: "lost".to_owned(),
        });
        let made = Made::running()
            .nvml(said(&all))
            .settings("[check.gpu-count]\nexpected = 2");
        made.expect("gpu-count", Status::Fail, "1 of 2 GPUs can be used");
    }
}
