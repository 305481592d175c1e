// SPDX-License-Identifier: Apache-2.0
//! Who holds memory of GPUs that should be free.

use super::each_gpu::{Judged, each_gpu};
use super::{ALWAYS, WITH_GPUS};
use crate::context::Context;
use crate::outcome::Outcome;
use crate::processes;
use crate::spec::{Spec, Threshold, Words, words};
use crate::units::show_size;

/// Bytes of a process's name that the kernel keeps.
const NAME_BYTES: usize = 15;

static ALLOWED: Words = words(
    "allowed",
    &[
        "nvidia-persistenced",
        "nv-hostengine",
        "dcgm-exporter",
        "nvidia-cuda-mps-server",
        "nvidia-cuda-mps-control",
        "Xorg",
    ],
    "Names of programs that may always use a GPU.",
);

pub(crate) static SPEC: Spec = Spec {
    name: "gpu-processes",
    doc: "Fails when a process holds memory of a GPU that should be free. Beside running jobs (`health`) only processes count \
          that are dead, or are not there at all, and hold memory all the same.",
    profiles: ALWAYS,
    deadline: WITH_GPUS,
    thresholds: &[Threshold::Words(&ALLOWED)],
    needs_gpus: true,
    look,
};

const STRAY: &str = "end the process; if it cannot be ended, reboot the node";
const DEAD: &str = "reboot the node: the driver holds memory for a process that is dead";

fn look(context: &Context<'_>) -> Outcome {
    let allowed = context.words(&ALLOWED);
    let beside_jobs = context.profile().is_beside_jobs();
    let is_allowed = |name: &str| {
        let mut allowed = allowed.iter().map(|allowed| cut(allowed));
        allowed.any(|allowed| allowed == name)
    };
    let fine = if beside_jobs {
        "no dead process holds memory"
    } else {
        "no process holds memory"
    };
    each_gpu(context, fine, "who uses it", |gpu, outcome| {
        for (pid, bytes) in &gpu.snapshot.processes {
            let (label, size) = (&gpu.label, show_size(*bytes));
            match processes::one(context, *pid) {
                // In a container, processes of others cannot be seen.
                None if beside_jobs => outcome.evidence(format!(
                    "{label}: process {pid} holds {size} and cannot be seen from here"
                )),
                None => outcome.fail(
                    format!("{label}: process {pid}, which is not there, holds {size}"),
                    DEAD,
                ),
                Some(process) if matches!(process.state, 'Z' | 'X') => outcome.fail(
                    format!(
                        "{label}: process {pid} ({}) is dead and holds {size}",
                        process.name
                    ),
                    DEAD,
                ),
                Some(process) if beside_jobs || is_allowed(&process.name) => {}
                Some(process) => outcome.fail(
                    format!("{label}: process {pid} ({}) holds {size}", process.name),
                    STRAY,
                ),
            }
        }
        Judged::Known
    })
}

fn cut(name: &str) -> &str {
    let end = (0..=NAME_BYTES.min(name.len()))
        .rev()
        .find(|end| name.is_char_boundary(*end));
    &name[..end.unwrap_or(0)]
}

#[cfg(test)]
mod tests {
    use super::cut;
    use crate::outcome::Status;
    use crate::profile::Profile;
    use crate::testing::{Made, healthy};

    fn stat(pid: u32, name: &str, state: char) -> String {
        format!("{pid} ({name}) {state} 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 99 0 0\n")
    }

    fn made(pid: u32) -> Made {
        let mut gpu = healthy();
        gpu.processes = vec![(pid, 3 << 30)];
        Made::with_gpus(&[gpu])
            .file("proc/7/stat", stat(7, "python", 'S'))
            .file("proc/8/stat", stat(8, "python", 'Z'))
            .file("proc/9/stat", stat(9, "nvidia-persiste", 'S'))
    }

    #[test]
    fn between_jobs_nobody_but_the_allowed_may_hold_memory() {
        for (pid, status, said) in [
            (
                7,
                Status::Fail,
                "GPU 0 (0000:18:00): process 7 (python) holds 3 GiB",
            ),
            (
                8,
                Status::Fail,
                "process 8 (python) is dead and holds 3 GiB",
            ),
            (9, Status::Ok, "1 GPU: no process holds memory"),
            (
                10,
                Status::Fail,
                "process 10, which is not there, holds 3 GiB",
            ),
        ] {
            made(pid)
                .profile(Profile::Prolog)
                .expect("gpu-processes", status, said);
        }
        let made = made(7).settings("[check.gpu-processes]\nallowed = [\"python\"]");
        made.expect("gpu-processes", Status::Ok, "");
    }

    #[test]
    fn beside_jobs_only_the_dead_count() {
        for (pid, status) in [
            (7, Status::Ok),
            (8, Status::Fail),
            (9, Status::Ok),
            (10, Status::Ok),
        ] {
            made(pid)
                .profile(Profile::Health)
                .expect("gpu-processes", status, "");
        }
    }

    #[test]
    fn names_are_cut_as_the_kernel_does() {
        assert_eq!(cut("nvidia-persistenced"), "nvidia-persiste");
        assert_eq!(cut("Xorg"), "Xorg");
        assert_eq!(cut("ääääääääää"), "äääääää");
    }
}
