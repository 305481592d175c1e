// SPDX-License-Identifier: Apache-2.0
//! Whether the clock is right.

use super::{BUT_EPILOG, QUICK};
use crate::context::Context;
use crate::outcome::Outcome;
use crate::spec::{Number, Spec, Switch, Threshold, Unit, Words, optional, words};
use crate::units::show_duration;

static REQUIRE: Switch = Switch {
    name: "require",
    default: false,
    doc: "Whether the check fails when nobody keeps the clock. Otherwise that is a warning.",
};

static MAX_ERROR: Number = optional(
    "max_error",
    Unit::Microseconds,
    "Estimated error of the clock. More is a warning.",
);

static SLOW_SOURCES: Words = words(
    "slow_sources",
    &["hpet", "acpi_pm", "jiffies", "refined-jiffies"],
    "Sources of time that are a warning: the kernel falls back to them when the processor's is unreliable, and every look at \
     the clock is slow then.",
);

pub(crate) static SPEC: Spec = Spec {
    name: "clock",
    doc: "Asks the kernel whether its clock is synchronised (by NTP or PTP), how far it may be wrong, and where it takes the \
          time from.",
    profiles: BUT_EPILOG,
    deadline: QUICK,
    thresholds: &[
        Threshold::Switch(&REQUIRE),
        Threshold::Number(&MAX_ERROR),
        Threshold::Words(&SLOW_SOURCES),
    ],
    needs_gpus: false,
    look,
};

const NEXT: &str =
    "see whether chronyd, ntpd, systemd-timesyncd or phc2sys runs, and reaches its servers";

fn look(context: &Context<'_>) -> Outcome {
    let mut outcome = Outcome::default();
    match context.kernel_clock() {
        Err(why) => outcome.unsure(format!("the kernel does not say how its clock is: {why}")),
        Ok(clock) => {
            let error = clock.estimated_error_us;
            outcome.evidence(format!(
                "synchronised: {}; estimated error {error} µs, at most {} µs",
                clock.synchronised, clock.maximum_error_us
            ));
            if !clock.synchronised {
                let text = "the clock is not synchronised";
                if context.switch(&REQUIRE) {
                    outcome.fail(text, NEXT);
                } else {
                    outcome.warn(text, NEXT);
                }
            } else if context.number(&MAX_ERROR).is_some_and(|most| error > most) {
                outcome.warn(format!("the clock may be wrong by {error} µs"), NEXT);
            }
            let shown = std::time::Duration::from_micros(clock.maximum_error_us);
            outcome.fine = format!("synchronised, wrong by at most {}", show_duration(shown));
        }
    }
    let source = "sys/devices/system/clocksource/clocksource0/current_clocksource";
    if let Ok(source) = context.read(source) {
        outcome.evidence(format!("source of time: {source}"));
        if context.words(&SLOW_SOURCES).contains(&source) {
            let text = format!("the kernel takes the time from {source}, which is slow");
            outcome.warn(
                text,
                "see in the kernel log why the processor's clock (tsc) is not used",
            );
        }
    }
    outcome
}

#[cfg(test)]
mod tests {
    use crate::outcome::Status;
    use crate::outside::KernelClock;
    use crate::testing::Made;

    const SOURCE: &str = "sys/devices/system/clocksource/clocksource0/current_clocksource";

    fn clock(synchronised: bool) -> KernelClock {
        KernelClock {
            synchronised,
            estimated_error_us: 300,
            maximum_error_us: 20_000,
        }
    }

    #[test]
    fn a_clock_that_nobody_keeps_is_a_warning_until_it_is_required() {
        let made = Made::empty().clock(Ok(clock(true))).file(SOURCE, "tsc\n");
        made.expect("clock", Status::Ok, "synchronised, wrong by at most 20ms");
        let made = made.settings("[check.clock]\nmax_error = 299");
        made.expect("clock", Status::Warn, "may be wrong by 300 µs");
        let made = made.clock(Ok(clock(false)));
        made.expect("clock", Status::Warn, "not synchronised");
        let made = made.settings("[check.clock]\nrequire = true");
        made.expect("clock", Status::Fail, "not synchronised");
    }

    #[test]
    fn a_slow_source_is_a_warning_and_a_silent_kernel_unknown() {
        let made = Made::empty().clock(Ok(clock(true))).file(SOURCE, "hpet\n");
        made.expect("clock", Status::Warn, "takes the time from hpet");
        let made = Made::empty().clock(Err("not permitted".to_owned()));
        made.expect("clock", Status::Unknown, "not permitted");
    }
}
