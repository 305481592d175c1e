// SPDX-License-Identifier: Apache-2.0
//! Rows of a GPU's memory that were replaced, or have to be.

use super::each_gpu::{Judged, each_gpu};
use super::{ALSO_IN_JOBS, WITH_GPUS};
use crate::context::Context;
use crate::outcome::Outcome;
use crate::spec::{Number, Spec, Threshold, Unit, number};

static MAX_UNCORRECTED: Number = number(
    "max_uncorrected_rows",
    Unit::Count,
    511,
    "Rows that were replaced after errors that could not be corrected. More are a warning: there are 512 spare ones.",
);

pub(crate) static SPEC: Spec = Spec {
    name: "gpu-remap",
    doc: "Fails when a bad row of a GPU's memory could not be replaced. Warns when one is replaced only with the next reset, \
          and when many were.",
    profiles: ALSO_IN_JOBS,
    deadline: WITH_GPUS,
    thresholds: &[Threshold::Number(&MAX_UNCORRECTED)],
    needs_gpus: true,
    look,
};

fn look(context: &Context<'_>) -> Outcome {
    let at_most = context.number(&MAX_UNCORRECTED);
    let fine = "no row of memory waits to be replaced";
    each_gpu(
        context,
        fine,
        "which rows of its memory were replaced",
        |gpu, outcome| {
            let label = &gpu.label;
            let Some(rows) = gpu.snapshot.reading.remapped else {
                return Judged::Unknown;
            };
            if rows.failed {
                let text = format!("{label}: a bad row of its memory could not be replaced");
                outcome.fail(text, "have the GPU replaced");
            }
            if rows.pending {
                let text = format!(
                    "{label}: a bad row of its memory is replaced only with the next reset"
                );
                outcome.warn(
                    text,
                    "reset the GPU (`nvidia-smi --gpu-reset -i N`) when it is idle",
                );
            }
            if at_most.is_some_and(|most| rows.uncorrected > most) {
                let text = format!(
                    "{label}: {} rows of its memory were replaced after errors that could not be corrected",
                    rows.uncorrected
                );
                outcome.warn(text, "have the GPU replaced soon");
            }
            if rows.corrected.saturating_add(rows.uncorrected) > 0 {
                outcome.evidence(format!(
                    "{label}: {} rows replaced after corrected errors, {} after others",
                    rows.corrected, rows.uncorrected
                ));
            }
            Judged::Known
        },
    )
}

#[cfg(test)]
mod tests {
    use steadfast_health::nvml::Remapped;

    use crate::outcome::Status;
    use crate::testing::{Made, healthy};

    fn made(corrected: u64, uncorrected: u64, pending: bool, failed: bool) -> Made {
        let mut gpu = healthy();
        gpu.reading.remapped = Some(Remapped {
            corrected,
            uncorrected,
            pending,
            failed,
        });
        Made::with_gpus(&[gpu])
    }

    #[test]
    fn only_a_row_that_could_not_be_replaced_fails() {
        made(3, 511, false, false).expect("gpu-remap", Status::Ok, "1 GPU: no row");
        made(0, 512, false, false).expect("gpu-remap", Status::Warn, "512 rows");
        made(0, 1, true, false).expect("gpu-remap", Status::Warn, "with the next reset");
        made(0, 1, true, true).expect("gpu-remap", Status::Fail, "could not be replaced");
    }
}
