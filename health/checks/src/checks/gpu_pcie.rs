// SPDX-License-Identifier: Apache-2.0
//! How GPUs are connected to the machine.

use super::each_gpu::{Judged, each_gpu};
use super::{BUT_EPILOG, WITH_GPUS};
use crate::context::Context;
use crate::outcome::Outcome;
use crate::spec::{Number, Spec, Threshold, Unit, optional};

static MIN_WIDTH: Number = optional(
    "min_width",
    Unit::Count,
    "Lanes that a GPU must use at least. Unless set, fewer than GPU and slot have are a warning.",
);

static MIN_GENERATION: Number = optional(
    "min_generation",
    Unit::Count,
    "Generation of PCIe that GPU and slot must be capable of together. The one in use says little: an idle GPU lowers it to \
     save power.",
);

pub(crate) static SPEC: Spec = Spec {
    name: "gpu-pcie",
    doc: "Compares the PCIe lanes that each GPU uses with those that it has: a GPU in a bad slot, or with a dirty contact, \
          works, and is slow.",
    profiles: BUT_EPILOG,
    deadline: WITH_GPUS,
    thresholds: &[
        Threshold::Number(&MIN_WIDTH),
        Threshold::Number(&MIN_GENERATION),
    ],
    needs_gpus: true,
    look,
};

const NEXT: &str = "look for PCIe errors in the kernel log; reseat the GPU or its riser";

fn look(context: &Context<'_>) -> Outcome {
    let (min_width, min_generation) = (context.number(&MIN_WIDTH), context.number(&MIN_GENERATION));
    let fine = "all lanes are in use";
    each_gpu(context, fine, "how it is connected", |gpu, outcome| {
        let label = &gpu.label;
        let Some(pcie) = gpu.snapshot.reading.pcie else {
            return Judged::Unknown;
        };
        let (width, most) = (pcie.width, pcie.max_width);
        if let Some(least) = min_width {
            if u64::from(width) < least {
                let text = format!("{label} uses {width} PCIe lanes, and should use {least}");
                outcome.fail(text, NEXT);
            }
        } else if width < most {
            outcome.warn(format!("{label} uses {width} of {most} PCIe lanes"), NEXT);
        }
        if let Some(generation) = gpu.snapshot.pcie_generation {
            outcome.evidence(format!(
                "{label}: {width} of {most} lanes, generation {} of {}",
                generation.current, generation.max
            ));
            if let Some(least) = min_generation
                && u64::from(generation.max) < least
            {
                let text = format!(
                    "{label} can use generation {} of PCIe, and should use {least}",
                    generation.max
                );
                outcome.fail(text, NEXT);
            }
        }
        Judged::Known
    })
}

#[cfg(test)]
mod tests {
    use steadfast_health::nvml::{PcieGeneration, PcieReading};

    use crate::outcome::Status;
    use crate::testing::{Made, healthy};

    #[test]
    fn fewer_lanes_are_a_warning_until_a_number_is_required() {
        let mut gpu = healthy();
        gpu.reading.pcie = Some(PcieReading {
            width: 8,
            max_width: 16,
        });
        let made = Made::with_gpus(&[gpu]);
        made.expect("gpu-pcie", Status::Warn, "uses 8 of 16 PCIe lanes");
        let made = made.settings("[check.gpu-pcie]\nmin_width = 16");
        made.expect(
            "gpu-pcie",
            Status::Fail,
            "uses 8 PCIe lanes, and should use 16",
        );
        let made = made.settings("[check.gpu-pcie]\nmin_width = 8");
        made.expect("gpu-pcie", Status::Ok, "");
    }

    #[test]
    fn an_idle_gpu_may_lower_its_generation_but_must_be_capable_of_it() {
        let mut gpu = healthy();
        gpu.pcie_generation = Some(PcieGeneration { current: 1, max: 4 });
        let made = Made::with_gpus(&[gpu]);
        made.expect("gpu-pcie", Status::Ok, "");
        let made = made.settings("[check.gpu-pcie]\nmin_generation = 4");
        made.expect("gpu-pcie", Status::Ok, "");
        let made = made.settings("[check.gpu-pcie]\nmin_generation = 5");
        made.expect(
            "gpu-pcie",
            Status::Fail,
            "can use generation 4 of PCIe, and should use 5",
        );
    }
}
