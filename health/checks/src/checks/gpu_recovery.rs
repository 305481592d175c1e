// SPDX-License-Identifier: Apache-2.0
//! What the driver says that a GPU needs.

use steadfast_health::xid::{RecoveryAction, Severity};

use super::each_gpu::{Judged, each_gpu};
use super::{ALSO_IN_JOBS, WITH_GPUS};
use crate::context::Context;
use crate::outcome::Outcome;
use crate::spec::Spec;

pub(crate) static SPEC: Spec = Spec {
    name: "gpu-recovery",
    doc: "Asks the driver what each GPU needs to be well again (the recovery action of XID 154; drivers since 565).",
    profiles: ALSO_IN_JOBS,
    deadline: WITH_GPUS,
    thresholds: &[],
    needs_gpus: true,
    look,
};

fn look(context: &Context<'_>) -> Outcome {
    let unsaid = "what it needs (drivers before 565 do not)";
    each_gpu(
        context,
        "the driver asks for nothing",
        unsaid,
        |gpu, outcome| {
            let Some(number) = gpu.snapshot.reading.recovery else {
                return Judged::Unknown;
            };
            let recovery = RecoveryAction::from_number(number);
            let text = format!(
                "{}: {} (recovery action {number})",
                gpu.label,
                recovery.meaning()
            );
            let next = match recovery {
                RecoveryAction::None => return Judged::Known,
                RecoveryAction::Reset | RecoveryAction::DrainAndReset => {
                    "reset the GPU (`nvidia-smi --gpu-reset -i N`)"
                }
                RecoveryAction::Reboot => "reboot the node",
                RecoveryAction::DrainPeerToPeer => "end the jobs on this GPU and its peers",
                RecoveryAction::RecoverImex => "restart the IMEX service of the NVLink domain",
                RecoveryAction::Unknown(_) => {
                    "look the number up in NVIDIA's documentation of this driver"
                }
            };
            if recovery.severity() == Severity::Fatal {
                outcome.fail(text, next);
            } else {
                outcome.warn(text, next);
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
    fn what_a_gpu_needs_is_said() {
        for (number, status, said) in [
            (0, Status::Ok, "asks for nothing"),
            (1, Status::Fail, "(recovery action 1)"),
            (2, Status::Fail, "(recovery action 2)"),
            (3, Status::Warn, "(recovery action 3)"),
            (5, Status::Fail, "(recovery action 5)"),
            (99, Status::Warn, "(recovery action 99)"),
        ] {
            let mut gpu = healthy();
            gpu.reading.recovery = Some(number);
            Made::with_gpus(&[gpu]).expect("gpu-recovery", status, said);
        }
    }
}
