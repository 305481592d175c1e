// SPDX-License-Identifier: Apache-2.0
//! Has a GPU gone?

use super::each_gpu::nothing;
use super::{ALSO_IN_JOBS, WITH_GPUS, pci};
use crate::context::Context;
use crate::outcome::Outcome;
use crate::spec::Spec;

pub(crate) static SPEC: Spec = Spec {
    name: "gpu-lost",
    doc: "Finds GPUs that the driver calls lost or cannot open, and GPUs whose place on the PCI bus reads as ones only. The \
          latter is seen even when the driver hangs.",
    profiles: ALSO_IN_JOBS,
    deadline: WITH_GPUS,
    thresholds: &[],
    needs_gpus: true,
    look,
};

const NEXT: &str = "reboot the node; if it happens again, reseat or replace the GPU";

fn look(context: &Context<'_>) -> Outcome {
    let mut outcome = Outcome::default();
    let on_bus = pci::gpus(context);
    for gpu in on_bus.iter().filter(|gpu| gpu.is_off_the_bus) {
        let text = format!("GPU {} has fallen off the PCI bus", gpu.address);
        outcome.fail(text, NEXT);
    }
    let view = context.gpus();
    for (index, gpu) in &view.gpus {
        let matters = context.cares_for(&view, *index, gpu);
        if let Some((reason, lost)) = gpu.silent.as_ref().filter(|_| matters) {
            let label = gpu.label(*index);
            if *lost {
                outcome.fail(format!("{label} is lost"), NEXT);
            } else {
                outcome.fail(format!("{label} cannot be opened: {reason}"), NEXT);
            }
        }
    }
    if view.gpus.is_empty() && on_bus.is_empty() {
        outcome.unsure(nothing(&view));
    }
    outcome.fine = format!("{} GPUs", view.gpus.len().max(on_bus.len()));
    outcome
}

#[cfg(test)]
mod tests {
    use steadfast_health::nvml::SnapshotLine;

    use crate::checks::pci::tests::on_the_bus;
    use crate::outcome::Status;
    use crate::outside::{Ended, How};
    use crate::testing::{Made, healthy, lines, said};

    #[test]
    fn a_gpu_that_is_off_the_bus_is_seen_while_the_driver_hangs() {
        let hangs = Ended::silently(How::TimedOut {
            pid: 1,
            state: 'D',
            waits_in: None,
        });
        let made = on_the_bus(Made::running().nvml(hangs), "0000:18:00.0", [0xff; 4]);
        made.expect(
            "gpu-lost",
            Status::Fail,
            "GPU 0000:18:00.0 has fallen off the PCI bus",
        );
    }

    #[test]
    fn a_gpu_that_the_driver_calls_lost_is_lost_if_it_matters() {
        let mut all = lines(&[healthy()]);
        for (gpu, lost) in [(1, true), (2, false)] {
            all.push(SnapshotLine::Silent {
                gpu,
                lost,
                reason: "the reason".to_owned(),
            });
        }
        let made = Made::running().nvml(said(&all));
        let result = made.expect("gpu-lost", Status::Fail, "GPU 1 is lost");
        assert!(
            result
                .summary
                .contains("GPU 2 cannot be opened: the reason"),
            "{result:#?}"
        );
        let made = made.only_gpus(&["0"]);
        made.expect("gpu-lost", Status::Ok, "3 GPUs");
        let made = made.only_gpus(&["GPU-0"]);
        made.expect("gpu-lost", Status::Ok, "");
        // Nobody knows the UUID of one that is lost: it may be the one that is meant.
        let made = made.only_gpus(&["GPU-9"]);
        made.expect("gpu-lost", Status::Fail, "GPU 1 is lost");
        Made::with_gpus(&[healthy()]).expect("gpu-lost", Status::Ok, "1 GPUs");
        Made::running().expect("gpu-lost", Status::Unknown, "libnvidia-ml");
    }
}
