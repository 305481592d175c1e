// SPDX-License-Identifier: Apache-2.0
//! What GPUs have done before.

use super::each_gpu::{Judged, each_gpu};
use super::{BUT_EPILOG, WITH_GPUS};
use crate::context::Context;
use crate::outcome::Outcome;
use crate::spec::{Number, Spec, Threshold, Unit, number, optional};

static WARN: Number = number(
    "warn",
    Unit::Count,
    150,
    "Hundredths of a fault from which a GPU is a warning; 150 is a second one within a week of the first.",
);
static FAIL: Number = optional(
    "fail",
    Unit::Count,
    "Hundredths of a fault from which a GPU fails the check.",
);

pub(crate) static SPEC: Spec = Spec {
    name: "gpu-history",
    doc: "Warns of GPUs whose hardware has failed again and again, as the node service remembers (`steadfast health serve`): \
          a fault counts as one when it happens, and half as much after every 7 days.",
    profiles: BUT_EPILOG,
    deadline: WITH_GPUS,
    thresholds: &[Threshold::Number(&WARN), Threshold::Number(&FAIL)],
    needs_gpus: true,
    look,
};

const NEXT: &str = "run the vendor's diagnosis on it; if it fails once more, have it replaced";

fn look(context: &Context<'_>) -> Outcome {
    let (warn, fail) = (context.number(&WARN), context.number(&FAIL));
    let past = &context.plan.node.past_faults;
    let mut shown = Vec::new();
    let mut outcome = each_gpu(
        context,
        "none has failed again and again",
        "what it has done before",
        |gpu, outcome| {
            let Some(faults) = past.get(&gpu.identity.uuid) else {
                return Judged::Known;
            };
            let (whole, rest) = (faults.hundredths / 100, faults.hundredths % 100);
            let text = format!(
                "{} has faults that weigh {whole}.{rest:02} by now, the last one: {}",
                gpu.label, faults.last
            );
            if fail.is_some_and(|fail| faults.hundredths >= fail) {
                outcome.fail(text, NEXT);
            } else if warn.is_some_and(|warn| faults.hundredths >= warn) {
                outcome.warn(text, NEXT);
            } else {
                shown.push(text);
            }
            Judged::Known
        },
    );
    for text in shown {
        outcome.evidence(text);
    }
    outcome
}

#[cfg(test)]
mod tests {
    use crate::outcome::Status;
    use crate::testing::{Made, healthy};

    #[test]
    fn a_gpu_that_has_failed_again_and_again_is_a_warning_and_more_if_so_configured() {
        let made = Made::with_gpus(&[healthy(), healthy()]).past_faults(1, 170);
        made.expect(
            "gpu-history",
            Status::Warn,
            "GPU 1 (0000:19:00) has faults that weigh 1.70 by now, the last one: XID 79",
        );
        let made = made.settings("[check.gpu-history]\nfail = 160");
        made.expect("gpu-history", Status::Fail, "weigh 1.70");
    }

    #[test]
    fn one_fault_is_no_more_than_evidence() {
        let made = Made::with_gpus(&[healthy()]).past_faults(0, 105);
        let result = made.expect("gpu-history", Status::Ok, "none has failed again and again");
        assert!(result.evidence[0].contains("weigh 1.05"), "{result:#?}");
    }
}
