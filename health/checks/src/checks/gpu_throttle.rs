// SPDX-License-Identifier: Apache-2.0
//! GPUs that are slowed down.

use super::each_gpu::{Judged, each_gpu};
use super::{BUT_EPILOG, WITH_GPUS};
use crate::context::Context;
use crate::outcome::Outcome;
use crate::spec::Spec;

// Bits of `nvmlClocksThrottleReason*` in `nvml.h`. Idle clocks, power limits and settings of the user are no defect.
const HARDWARE: u64 = 0x08;
const THERMAL: u64 = 0x20;
const HARDWARE_THERMAL: u64 = 0x40;
const POWER_BRAKE: u64 = 0x80;

pub(crate) static SPEC: Spec = Spec {
    name: "gpu-throttle",
    doc: "Warns when a GPU is slowed down for heat or by its board. It comes and goes with the load: let it fail \
          (`severity = \"fail\"`) only where no job runs.",
    profiles: BUT_EPILOG,
    deadline: WITH_GPUS,
    thresholds: &[],
    needs_gpus: true,
    look,
};

fn look(context: &Context<'_>) -> Outcome {
    each_gpu(
        context,
        "none is slowed down",
        "why it is slow",
        |gpu, outcome| {
            let Some(reasons) = gpu.snapshot.reading.throttle else {
                return Judged::Unknown;
            };
            let label = &gpu.label;
            if reasons & (THERMAL | HARDWARE_THERMAL) != 0 {
                let text = format!("{label} is slowed down for heat");
                outcome.warn(text, "look at fans, pumps and the temperature of the room");
            } else if reasons & (HARDWARE | POWER_BRAKE) != 0 {
                let text = format!("{label} is slowed down by its board or for lack of power");
                outcome.warn(text, "look at the power supplies");
            }
            outcome.evidence(format!("{label}: reasons {reasons:#x}"));
            Judged::Known
        },
    )
}

#[cfg(test)]
mod tests {
    use crate::outcome::Status;
    use crate::testing::{Made, healthy};

    #[test]
    fn idle_clocks_and_power_limits_are_no_defect() {
        for (reasons, status, said) in [
            (0x1 | 0x2 | 0x4, Status::Ok, ""),
            (0x20, Status::Warn, "for heat"),
            (0x48, Status::Warn, "for heat"),
            (0x80, Status::Warn, "by its board"),
        ] {
            let mut gpu = healthy();
            gpu.reading.throttle = Some(reasons);
            Made::with_gpus(&[gpu]).expect("gpu-throttle", status, said);
        }
    }
}
