// SPDX-License-Identifier: Apache-2.0
//! Whether GPUs have joined their fabric.

use super::each_gpu::{Judged, each_gpu};
use super::{IN_JOBS_BUT_EPILOG, WITH_GPUS};
use crate::context::Context;
use crate::outcome::Outcome;
use crate::spec::Spec;

/// `NVML_GPU_FABRIC_STATE_COMPLETED`.
const COMPLETED: u8 = 3;

pub(crate) static SPEC: Spec = Spec {
    name: "gpu-fabric",
    doc: "Fails when a GPU that takes part in an NVLink fabric has not joined it: CUDA does not start then (error 802).",
    profiles: IN_JOBS_BUT_EPILOG,
    deadline: WITH_GPUS,
    thresholds: &[],
    needs_gpus: true,
    look,
};

const NEXT: &str = "see whether nvidia-fabricmanager runs, and is of the driver's version; restart it, then reset the GPUs";

fn look(context: &Context<'_>) -> Outcome {
    let unsaid = "that it takes part in an NVLink fabric";
    each_gpu(
        context,
        "all have joined their NVLink fabric",
        unsaid,
        |gpu, outcome| {
            let Some(fabric) = gpu.snapshot.reading.fabric else {
                return Judged::Unknown;
            };
            let (state, status) = (fabric.state, fabric.status);
            if state != COMPLETED {
                let how = match state {
                    1 => "has not begun to join",
                    2 => "has not finished joining",
                    _ => "is in an unknown state in",
                };
                outcome.fail(format!("{} {how} its NVLink fabric", gpu.label), NEXT);
            } else if status != 0 {
                let text = format!(
                    "{} could not join its NVLink fabric (status {status})",
                    gpu.label
                );
                outcome.fail(text, NEXT);
            }
            Judged::Known
        },
    )
}

#[cfg(test)]
mod tests {
    use steadfast_health::nvml::Fabric;

    use crate::outcome::Status;
    use crate::testing::{Made, healthy};

    #[test]
    fn only_a_gpu_that_has_joined_is_well() {
        for (state, status, expected, said) in [
            (3, 0, Status::Ok, "all have joined"),
            (1, 0, Status::Fail, "has not begun to join"),
            (2, 0, Status::Fail, "has not finished joining"),
            (
                3,
                999,
                Status::Fail,
                "could not join its NVLink fabric (status 999)",
            ),
            (9, 0, Status::Fail, "unknown state"),
        ] {
            let mut gpu = healthy();
            gpu.reading.fabric = Some(Fabric { state, status });
            Made::with_gpus(&[gpu]).expect("gpu-fabric", expected, said);
        }
    }
}
