// SPDX-License-Identifier: Apache-2.0
//! How hot GPUs are.

use super::each_gpu::{Judged, each_gpu};
use super::{BUT_EPILOG, WITH_GPUS};
use crate::context::Context;
use crate::outcome::Outcome;
use crate::spec::{Number, Spec, Threshold, Unit, number};

static WARN: Number = number("warn", Unit::Celsius, 85, "A hotter GPU is a warning.");
static FAIL: Number = number("fail", Unit::Celsius, 100, "A hotter GPU fails the check.");

pub(crate) static SPEC: Spec = Spec {
    name: "gpu-temperature",
    doc: "Reads the temperature of each GPU's chip.",
    profiles: BUT_EPILOG,
    deadline: WITH_GPUS,
    thresholds: &[Threshold::Number(&WARN), Threshold::Number(&FAIL)],
    needs_gpus: true,
    look,
};

const NEXT: &str = "look at fans, pumps and the temperature of the room";

fn look(context: &Context<'_>) -> Outcome {
    let (warn, fail) = (context.number(&WARN), context.number(&FAIL));
    let mut hottest = 0;
    let mut outcome = each_gpu(context, "", "how hot it is", |gpu, outcome| {
        let Some(celsius) = gpu.snapshot.reading.temperature.map(u64::from) else {
            return Judged::Unknown;
        };
        hottest = hottest.max(celsius);
        let text = format!("{} has {celsius} °C", gpu.label);
        if fail.is_some_and(|fail| celsius > fail) {
            outcome.fail(text, NEXT);
        } else if warn.is_some_and(|warn| celsius > warn) {
            outcome.warn(text, NEXT);
        }
        Judged::Known
    });
    outcome.fine = format!("{}at most {hottest} °C", outcome.fine);
    outcome
}

#[cfg(test)]
mod tests {
    use crate::outcome::Status;
    use crate::testing::{Made, healthy};

    #[test]
    fn temperatures_count_as_configured() {
        let mut gpu = healthy();
        gpu.reading.temperature = Some(90);
        let made = Made::with_gpus(&[healthy(), gpu]);
        made.expect(
            "gpu-temperature",
            Status::Warn,
            "GPU 1 (0000:19:00) has 90 °C",
        );
        let made = made.settings("[check.gpu-temperature]\nfail = 89");
        made.expect("gpu-temperature", Status::Fail, "");
        let made = made.settings("[check.gpu-temperature]\nwarn = \"off\"");
        made.expect("gpu-temperature", Status::Ok, "2 GPUs: at most 90 °C");
    }
}
