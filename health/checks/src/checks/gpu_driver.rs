// SPDX-License-Identifier: Apache-2.0
//! Does the driver answer, and does it fit its library?

use std::time::Duration;

use steadfast_health::nvml::Absence;

use super::each_gpu::nothing;
use super::{ALWAYS, WITH_GPUS, pci};
use crate::context::Context;
use crate::gpus::{Failure, GpuView};
use crate::outcome::Outcome;
use crate::spec::{Number, Spec, Threshold, Unit, Words, number, words};

pub(crate) static ANSWER_WITHIN: Number = number(
    "answer_within",
    Unit::Time,
    6000,
    "How long the driver may take to tell all about its GPUs. Every check of GPUs waits for that.",
);

static VERSIONS: Words = words(
    "versions",
    &[],
    "Versions of the driver that may be installed, such as \"570.86.15\", or the beginning of one, such as \"570\".",
);

pub(crate) static SPEC: Spec = Spec {
    name: "gpu-driver",
    doc: "Asks NVIDIA's library about everything, in a process of its own: a call that does not return is named. The driver \
          in the kernel and the library must be of the same version, which they are not after an update without a reboot.",
    profiles: ALWAYS,
    deadline: WITH_GPUS,
    thresholds: &[
        Threshold::Number(&ANSWER_WITHIN),
        Threshold::Words(&VERSIONS),
    ],
    needs_gpus: true,
    look,
};

const HANGS: &str = "reboot the node; processes that use the GPU cannot be ended";
const UPDATED: &str = "reboot, or unload and load the driver's modules";

fn look(context: &Context<'_>) -> Outcome {
    let view = context.gpus();
    let module = context.read("sys/module/nvidia/version").ok();
    let mut outcome = Outcome::default();
    if let Some(version) = &module {
        outcome.evidence(format!("module nvidia in the kernel: {version}"));
    }
    if let Some(failure) = &view.failure {
        failed(context, &view, failure, module.as_deref(), &mut outcome);
        return outcome;
    }
    let driver = view.driver.clone().unwrap_or_default();
    outcome.evidence(format!(
        "driver {driver}, library {}",
        view.library.as_deref().unwrap_or("of unknown version")
    ));
    for (what, version) in [
        ("library", &view.library),
        ("module in the kernel", &module),
    ] {
        // The library puts the version of CUDA before its own.
        if let Some(version) = version
            && !driver.is_empty()
            && version != &driver
            && !version.ends_with(&format!(".{driver}"))
        {
            outcome.fail(
                format!("the driver is {driver}, but the {what} is {version}"),
                UPDATED,
            );
        }
    }
    let allowed = context.words(&VERSIONS);
    let fits = |allowed: &String| driver == *allowed || driver.starts_with(&format!("{allowed}."));
    if !allowed.is_empty() && !allowed.iter().any(fits) {
        let text = format!(
            "the driver is {driver}, and should be {}",
            allowed.join(" or ")
        );
        outcome.fail(text, "install that version");
    }
    outcome.fine = format!("driver {driver} answers");
    outcome
}

fn failed(
    context: &Context<'_>,
    view: &GpuView,
    failure: &Failure,
    module: Option<&str>,
    outcome: &mut Outcome,
) {
    let text = nothing(view);
    match failure {
        Failure::Off | Failure::Absent(Absence::Library, _) => outcome.unsure(text),
        Failure::Absent(Absence::Driver, _) if pci::gpus(context).is_empty() => {
            outcome.unsure(text);
        }
        Failure::Absent(Absence::Driver, _) => outcome.fail(
            format!("the PCI bus has GPUs, but {text}"),
            "load it (`modprobe nvidia`), and see in the kernel log why it was not",
        ),
        Failure::Absent(Absence::Stale, _) => {
            let module =
                module.map_or_else(String::new, |module| format!("; the kernel has {module}"));
            outcome.fail(format!("{text}{module}"), UPDATED);
        }
        Failure::Absent(Absence::Refused, _) => {
            outcome.fail(text, "see in the kernel log what the driver says");
        }
        Failure::Hangs(..) => outcome.fail(text, HANGS),
        Failure::Earlier(_, age) => {
            let patience = context.number(&ANSWER_WITHIN).map(Duration::from_millis);
            // One that is merely slow belongs to another run.
            if *age > patience.unwrap_or_default() {
                outcome.fail(text, HANGS);
            } else {
                outcome.unsure(text);
            }
        }
        Failure::Broken(_) => *outcome = Outcome::broken(text),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use steadfast_health::nvml::{Absence, SnapshotLine};

    use crate::checks::pci::tests::on_the_bus;
    use crate::outcome::Status;
    use crate::outside::{Ended, How};
    use crate::testing::{Made, healthy, identity, lines, said};

    fn absent(absence: Absence) -> Ended {
        said(&[SnapshotLine::Absent {
            absence,
            reason: "the reason".to_owned(),
        }])
    }

    #[test]
    fn versions_must_fit_each_other_and_the_configuration() {
        let made = Made::with_gpus(&[healthy()]);
        made.expect("gpu-driver", Status::Ok, "driver 570.86.15 answers");
        let made = made.settings("[check.gpu-driver]\nversions = [\"550\", \"570\"]");
        made.expect("gpu-driver", Status::Ok, "");
        let made = made.settings("[check.gpu-driver]\nversions = \"57\"");
        made.expect(
            "gpu-driver",
            Status::Fail,
            "the driver is 570.86.15, and should be 57",
        );
        let made = made
            .settings("")
            .file("sys/module/nvidia/version", "570.133.20\n");
        made.expect(
            "gpu-driver",
            Status::Fail,
            "but the module in the kernel is 570.133.20",
        );
        let made = Made::running()
            .nvml(absent(Absence::Stale))
            .file("sys/module/nvidia/version", "535.1\n");
        made.expect(
            "gpu-driver",
            Status::Fail,
            "another version than the driver (the reason); the kernel has 535.1",
        );
    }

    #[test]
    fn what_is_not_there_is_unknown_unless_gpus_are() {
        Made::running().expect("gpu-driver", Status::Unknown, "libnvidia-ml.so.1");
        let made = Made::running().nvml(absent(Absence::Driver));
        made.expect("gpu-driver", Status::Unknown, "not loaded");
        on_the_bus(made, "0000:18:00.0", [1; 4]).expect("gpu-driver", Status::Fail, "not loaded");
        let made = Made::running().nvml(absent(Absence::Refused));
        made.expect("gpu-driver", Status::Fail, "cannot be used: the reason");
    }

    #[test]
    fn a_call_that_hangs_is_named_and_other_gpus_are_judged() {
        let mut all = lines(&[healthy()]);
        all.push(SnapshotLine::Found(identity(1)));
        for name in ["nvmlDeviceGetName", "nvmlDeviceGetTemperature"] {
            all.push(SnapshotLine::Call {
                gpu: Some(1),
                name: name.to_owned(),
            });
        }
        let mut ended = said(&all);
        ended.how = How::TimedOut {
            pid: 7,
            state: 'D',
            waits_in: None,
        };
        ended.stdout.extend(b"{\"gpu\":{\"gpu\":1,\"snap");
        let made = Made::running().nvml(ended);
        made.expect(
            "gpu-driver",
            Status::Fail,
            "does not answer: nvmlDeviceGetTemperature about GPU 1 (0000:19:00) had not returned after 6s",
        );
        let said = "GPU 1 (0000:19:00) did not answer (see gpu-driver)";
        made.expect("gpu-ecc", Status::Unknown, said);
        let library = [SnapshotLine::Call {
            gpu: None,
            name: "nvmlInit_v2".to_owned(),
        }];
        let mut ended = super::tests::said(&library);
        ended.how = How::TimedOut {
            pid: 7,
            state: 'S',
            waits_in: None,
        };
        Made::running()
            .nvml(ended)
            .expect("gpu-driver", Status::Fail, "nvmlInit_v2 had not");
    }

    #[test]
    fn a_process_of_an_earlier_run_is_a_fault_once_it_is_old() {
        for (seconds, status) in [(1, Status::Unknown), (320, Status::Fail)] {
            let earlier = Ended::silently(How::Earlier {
                pid: Some(77),
                age: Duration::from_secs(seconds),
            });
            Made::running()
                .nvml(earlier)
                .expect("gpu-driver", status, "(pid 77) has not ended");
        }
    }

    #[test]
    fn our_own_failure_is_no_fault_of_the_node() {
        for how in [
            How::Exited(1),
            How::Killed(11),
            How::NotStarted("no room".to_owned()),
        ] {
            let made = Made::running().nvml(Ended::silently(how));
            made.expect(
                "gpu-driver",
                Status::Broken,
                "the process that asks the driver",
            );
            made.expect(
                "gpu-ecc",
                Status::Unknown,
                "the process that asks the driver",
            );
        }
    }
}
