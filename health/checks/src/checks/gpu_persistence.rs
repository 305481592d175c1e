// SPDX-License-Identifier: Apache-2.0
//! Whether the driver stays loaded while nobody uses a GPU.

use super::each_gpu::{Judged, each_gpu};
use super::{BUT_EPILOG, WITH_GPUS};
use crate::context::Context;
use crate::outcome::Outcome;
use crate::spec::Spec;

pub(crate) static SPEC: Spec = Spec {
    name: "gpu-persistence",
    doc: "Warns when a GPU is not in persistence mode: every job then waits seconds for it, and counts of memory errors are \
          forgotten between jobs.",
    profiles: BUT_EPILOG,
    deadline: WITH_GPUS,
    thresholds: &[],
    needs_gpus: true,
    look,
};

fn look(context: &Context<'_>) -> Outcome {
    let fine = "all are in persistence mode";
    each_gpu(
        context,
        fine,
        "whether it is in persistence mode",
        |gpu, outcome| {
            match gpu.snapshot.persistence {
                None => return Judged::Unknown,
                Some(true) => {}
                Some(false) => {
                    let text = format!("{} is not in persistence mode", gpu.label);
                    outcome.warn(text, "start nvidia-persistenced, or `nvidia-smi -pm 1`");
                }
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
    fn persistence_mode_is_wanted() {
        let mut gpu = healthy();
        gpu.persistence = Some(false);
        let made = Made::with_gpus(&[healthy(), gpu]);
        made.expect(
            "gpu-persistence",
            Status::Warn,
            "GPU 1 (0000:19:00) is not in persistence mode",
        );
    }
}
