// SPDX-License-Identifier: Apache-2.0
//! What all checks have in common that judge one GPU after the other.

use std::fmt;

use steadfast_health::nvml::{Absence, GpuIdentity, GpuSnapshot};

use crate::context::Context;
use crate::gpus::{Failure, GpuView, HangingCall};
use crate::outcome::Outcome;
use crate::units::show_duration;

/// Whether a GPU says what the check wants to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Judged {
    Known,
    Unknown,
}

/// One GPU that has answered.
pub(super) struct Seen<'a> {
    /// What people call it.
    pub(super) label: String,
    pub(super) identity: &'a GpuIdentity,
    pub(super) snapshot: &'a GpuSnapshot,
}

/// Judges each GPU that matters and has answered. `fine` is what there is to say of a number of GPUs without a fault,
/// `unsaid` what is not known of a GPU.
pub(super) fn each_gpu(
    context: &Context<'_>,
    fine: &str,
    unsaid: &str,
    mut judge: impl FnMut(&Seen<'_>, &mut Outcome) -> Judged,
) -> Outcome {
    let view = context.gpus();
    let mut outcome = Outcome::default();
    let (mut known, mut unknown) = (0_usize, Vec::new());
    let (mut unanswered, mut refused) = (Vec::new(), Vec::new());
    for (index, answer) in &view.gpus {
        if !context.cares_for(&view, *index, answer) {
            continue;
        }
        let label = answer.label(*index);
        let (Some(identity), Some(snapshot)) = (&answer.identity, &answer.snapshot) else {
            let is_refused = answer.silent.is_some();
            let place = if is_refused {
                &mut refused
            } else {
                &mut unanswered
            };
            place.push(label);
            continue;
        };
        let seen = Seen {
            label,
            identity,
            snapshot,
        };
        match judge(&seen, &mut outcome) {
            Judged::Known => known += 1,
            Judged::Unknown => unknown.push(seen.label),
        }
    }
    if !unanswered.is_empty() {
        let text = format!("{} did not answer (see gpu-driver)", unanswered.join(", "));
        outcome.unsure(text);
    }
    if !refused.is_empty() {
        let text = format!("{} cannot be asked (see gpu-lost)", refused.join(", "));
        outcome.evidence(&text);
        if known == 0 {
            outcome.unsure(text);
        }
    }
    if !unknown.is_empty() {
        outcome.evidence(format!("{} did not say {unsaid}", unknown.join(", ")));
        if known == 0 {
            outcome.unsure(format!("no GPU says {unsaid}"));
        }
    }
    if known == 0 && outcome.problems.is_empty() {
        return Outcome::unknown(nothing(&view));
    }
    outcome.fine = format!("{known} GPU{}: {fine}", if known == 1 { "" } else { "s" });
    outcome
}

/// Why there is no GPU to judge.
pub(super) fn nothing(view: &GpuView) -> String {
    match &view.failure {
        Some(failure) => failure.to_string(),
        None if view.count == Some(0) => "the driver has no GPU".to_owned(),
        None => "none of the GPUs that matter is here".to_owned(),
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => formatter.write_str("NVIDIA's library is turned off (--nvml off)"),
            Self::Absent(Absence::Library, _) => {
                formatter.write_str("NVIDIA's library (libnvidia-ml.so.1) is not here")
            }
            Self::Absent(Absence::Driver, _) => {
                formatter.write_str("NVIDIA's driver is not loaded")
            }
            Self::Absent(Absence::Stale, reason) => write!(
                formatter,
                "NVIDIA's library is of another version than the driver ({reason})"
            ),
            Self::Absent(Absence::Refused, reason) => {
                write!(formatter, "NVIDIA's library cannot be used: {reason}")
            }
            Self::Hangs(calls, patience) => {
                let calls: Vec<String> = calls.iter().map(ToString::to_string).collect();
                let calls = if calls.is_empty() {
                    "it".to_owned()
                } else {
                    calls.join(", ")
                };
                write!(
                    formatter,
                    "NVIDIA's driver does not answer: {calls} had not returned after {}",
                    show_duration(*patience)
                )
            }
            Self::Earlier(pid, age) => {
                formatter
                    .write_str("the driver is not asked while an earlier process that asks it ")?;
                if let Some(pid) = pid {
                    write!(formatter, "(pid {pid}) ")?;
                }
                write!(formatter, "has not ended, since {}", show_duration(*age))
            }
            Self::Broken(how) => formatter.write_str(how),
        }
    }
}

impl fmt::Display for HangingCall {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.gpu {
            Some(gpu) => write!(formatter, "{} about {gpu}", self.name),
            None => formatter.write_str(&self.name),
        }
    }
}

#[cfg(test)]
mod tests {
    use steadfast_health::nvml::SnapshotLine;

    use crate::outcome::Status;
    use crate::testing::{Made, healthy, lines, said, silent};

    /// All checks that judge one GPU after the other.
    const CHECKS: [&str; 10] = [
        "gpu-ecc",
        "gpu-remap",
        "gpu-recovery",
        "gpu-throttle",
        "gpu-temperature",
        "gpu-pcie",
        "gpu-nvlink",
        "gpu-fabric",
        "gpu-persistence",
        "gpu-processes",
    ];

    #[test]
    fn healthy_gpus_pass_every_check() {
        let made = Made::with_gpus(&[healthy(), healthy()]);
        for result in made.report(&CHECKS).results {
            assert_eq!(result.status, Status::Ok, "{result:#?}");
            assert!(result.summary.starts_with("2 GPUs: "), "{result:#?}");
        }
    }

    #[test]
    fn what_a_gpu_does_not_say_is_unknown_and_counts_against_nobody() {
        let made = Made::with_gpus(&[silent()]);
        for result in made.report(&CHECKS[..9]).results {
            assert_eq!(result.status, Status::Unknown, "{result:#?}");
            assert!(result.summary.starts_with("no GPU says "), "{result:#?}");
        }
    }

    #[test]
    fn without_a_library_everything_is_unknown() {
        for result in Made::running().report(&CHECKS).results {
            assert_eq!(result.status, Status::Unknown, "{result:#?}");
            assert!(result.summary.contains("libnvidia-ml.so.1"), "{result:#?}");
        }
    }

    #[test]
    fn whatever_the_process_says_checks_end_and_nothing_fails() {
        for text in [
            "",
            "{",
            "\u{0}\u{1}\n\n[]\n",
            "{\"gpu\":{\"gpu\":99999,\"snapshot\":{}}}\n",
        ] {
            let mut ended = said(&[]);
            ended.stdout = text.into();
            for result in Made::running().nvml(ended).report(&CHECKS).results {
                assert_eq!(result.status, Status::Unknown, "{result:#?}");
            }
        }
    }

    #[test]
    fn a_gpu_that_is_lost_is_for_another_check_to_judge() {
        let mut all = lines(&[healthy()]);
        all.push(SnapshotLine::Silent {
            gpu: 1,
            lost: true,
            reason: "lost".to_owned(),
        });
        let made = Made::running().nvml(said(&all));
        let result = made.expect("gpu-ecc", Status::Ok, "1 GPU: no memory error");
        assert_eq!(result.evidence, ["GPU 1 cannot be asked (see gpu-lost)"]);
        let made = Made::running().nvml(said(&all[3..]));
        made.expect(
            "gpu-ecc",
            Status::Unknown,
            "GPU 1 cannot be asked (see gpu-lost)",
        );
    }

    #[test]
    fn only_gpus_that_matter_are_judged() {
        let mut sick = healthy();
        sick.reading.recovery = Some(2);
        let gpus = [healthy(), sick];
        for (wanted, status) in [
            (&["0"][..], Status::Ok),
            (&["GPU-1"], Status::Fail),
            (&["00000000:19:00.0"], Status::Fail),
            (&["7"], Status::Unknown),
            (&[], Status::Unknown),
        ] {
            let made = Made::running().nvml(said(&lines(&gpus))).only_gpus(wanted);
            made.expect("gpu-recovery", status, "");
        }
    }
}
