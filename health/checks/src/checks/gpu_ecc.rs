// SPDX-License-Identifier: Apache-2.0
//! Memory errors of GPUs.

use super::each_gpu::{Judged, each_gpu};
use super::{ALSO_IN_JOBS, WITH_GPUS};
use crate::context::Context;
use crate::outcome::Outcome;
use crate::spec::{Number, Spec, Switch, Threshold, Unit, number};

static MAX_UNCORRECTED: Number = number(
    "max_uncorrected",
    Unit::Count,
    0,
    "Errors since the driver was loaded that could not be corrected. More fail the check.",
);

static MAX_CORRECTED: Number = number(
    "max_corrected",
    Unit::Count,
    10_000_000,
    "Errors since the driver was loaded that were corrected. More are a warning.",
);

static REQUIRE: Switch = Switch {
    name: "require",
    default: true,
    doc: "Whether it is a warning when a GPU that could notice memory errors was told not to.",
};

pub(crate) static SPEC: Spec = Spec {
    name: "gpu-ecc",
    doc: "Counts memory errors of each GPU since the driver was loaded (ECC).",
    profiles: ALSO_IN_JOBS,
    deadline: WITH_GPUS,
    thresholds: &[
        Threshold::Number(&MAX_UNCORRECTED),
        Threshold::Number(&MAX_CORRECTED),
        Threshold::Switch(&REQUIRE),
    ],
    needs_gpus: true,
    look,
};

fn look(context: &Context<'_>) -> Outcome {
    let (uncorrected_at_most, corrected_at_most) = (
        context.number(&MAX_UNCORRECTED),
        context.number(&MAX_CORRECTED),
    );
    let fine = "no memory error that could not be corrected";
    each_gpu(
        context,
        fine,
        "how many memory errors it had",
        |gpu, outcome| {
            let (label, snapshot) = (&gpu.label, gpu.snapshot);
            let uncorrected = snapshot.reading.uncorrected;
            if let Some(count) = uncorrected
                && uncorrected_at_most.is_some_and(|most| count > most)
            {
                outcome.fail(
                format!("{label} had {count} memory errors that could not be corrected"),
                "reset the GPU (`nvidia-smi --gpu-reset -i N`) or reboot; if they come back, replace it",
            );
            }
            if let Some(count) = snapshot.corrected
                && corrected_at_most.is_some_and(|most| count > most)
            {
                outcome.warn(
                    format!("{label} had {count} memory errors that were corrected"),
                    "have the GPU tested (`dcgmi diag -r 3`)",
                );
            }
            if context.switch(&REQUIRE) && snapshot.ecc == Some(false) {
                outcome.warn(
                    format!("{label} was told not to notice memory errors"),
                    "turn ECC on (`nvidia-smi -e 1`) and reset the GPU",
                );
            }
            if uncorrected.is_none() && snapshot.corrected.is_none() {
                return Judged::Unknown;
            }
            Judged::Known
        },
    )
}

#[cfg(test)]
mod tests {
    use crate::outcome::Status;
    use crate::testing::{Made, healthy};

    #[test]
    fn errors_count_as_configured() {
        let mut gpu = healthy();
        gpu.reading.uncorrected = Some(2);
        gpu.corrected = Some(20_000_000);
        let made = Made::with_gpus(&[healthy(), gpu]);
        let result = made.expect(
            "gpu-ecc",
            Status::Fail,
            "GPU 1 (0000:19:00) had 2 memory errors",
        );
        assert!(
            result
                .summary
                .contains("had 20000000 memory errors that were corrected")
        );
        let made = made.settings("[check.gpu-ecc]\nmax_uncorrected = 2\nmax_corrected = \"off\"");
        made.expect("gpu-ecc", Status::Ok, "2 GPUs: no memory error");
    }

    #[test]
    fn errors_that_nobody_notices_are_a_warning() {
        let mut gpu = healthy();
        gpu.ecc = Some(false);
        let made = Made::with_gpus(&[gpu]);
        made.expect(
            "gpu-ecc",
            Status::Warn,
            "was told not to notice memory errors",
        );
        let made = made.settings("[check.gpu-ecc]\nrequire = false");
        made.expect("gpu-ecc", Status::Ok, "");
    }
}
