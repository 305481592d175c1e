// SPDX-License-Identifier: Apache-2.0
//! Before a job: its record is left for the others, and it does not start on a node that is proven sick.
//!
//! A node that is well costs no call to the controller. Slurm runs a prolog on every node of a job at once: what each of
//! them asks, the controller is asked a thousand times.

use std::ffi::OsString;
use std::time::Duration;

use steadfast_checks::Profile;

use super::decision::{Decision, Found, Leave, reason};
use super::job_record::JobRecord;
use super::memory::LockedMemory;
use super::verdict::{Powers, carry_out};
use super::{Run, Told, look};
use crate::health_service::ServiceLog;

/// Within this time after a drain jobs may still come that were given to the node before it.
const JUST_NOW: Duration = Duration::from_mins(1);

pub(super) fn run(run: &Run) -> Told {
    let Some(job) = &run.surroundings.job else {
        run.log
            .say("there is no job in SLURM_JOB_ID: nothing is done");
        return Told::Fine;
    };
    let record = JobRecord::beginning(job);
    if let Err(error) = record.write(&run.site.state_dir, &run.surroundings.node) {
        run.log.say_error(
            "the epilog will not know when this job began: no record can be left",
            &error,
        );
    }
    if run.site.prolog.start_service {
        start_service(run);
    }
    if !run.site.prolog.gate {
        return Told::Fine;
    }
    let mut found = Found::default();
    if let Some(faults) = look::kernel_log(run, &mut found) {
        faults.problems(job.gpus.as_deref(), &mut found);
    }
    look::checks(run, Profile::Prolog, job.gpus.as_deref(), &mut found);
    for why in found.unknown.values() {
        run.log.whisper(why);
    }
    if found.problems.is_empty() {
        return Told::Fine;
    }
    judge(run, &found)
}

fn judge(run: &Run, found: &Found) -> Told {
    let memory = match LockedMemory::lock(&run.site.state_dir, &run.surroundings.node) {
        Ok(memory) => memory,
        Err(error) => {
            run.log.say_error("the node is not judged", &error);
            return Told::Fine;
        }
    };
    if !run.site.prolog.drain {
        return without_controller(run, &memory, found);
    }
    match carry_out(run, &memory, found, Powers::Drain) {
        Ok(Decision::Drain { reason }) => refuse(run, &reason),
        Ok(Decision::Leave(Leave::Settled(_) | Leave::Well) | Decision::Resume) => Told::Fine,
        Ok(Decision::Leave(_)) => refuse(run, &reason(&found.problems)),
        Err(error) => {
            run.log.say_error("the reason could not be given", &error);
            refuse(run, &reason(&found.problems))
        }
    }
}

/// Nobody is asked how the node is: since it was given a job, it is in service.
fn without_controller(run: &Run, memory: &LockedMemory, found: &Found) -> Told {
    let mut remembered = memory.read();
    // Jobs that were given to the node at the same time are not proof that somebody has resumed it.
    let is_fresh = memory.unchanged_for().is_some_and(|age| age < JUST_NOW);
    let open = if is_fresh {
        found.problems.clone()
    } else {
        remembered.open_in_service(found)
    };
    if open.is_empty() {
        return Told::Fine;
    }
    let text = reason(&open);
    // Slurm drains it now. When it gets a job again, somebody has resumed it.
    let newest = open.into_iter().map(|(key, problem)| (key, problem.newest));
    remembered.drained_for.extend(newest);
    if let Err(error) = memory.write(&remembered) {
        run.log
            .say_error("that this node was refused is not remembered", &error);
    }
    refuse(run, &text)
}

fn refuse(run: &Run, reason: &str) -> Told {
    run.log
        .say(&format!("the job does not start on this node: {reason}"));
    Told::Sick
}

/// Whether it comes up is not waited for: the job does not need it.
fn start_service(run: &Run) {
    let site = &run.site;
    let socket = &site.prolog.service_socket;
    if ServiceLog::connect(socket).is_ok() {
        return;
    }
    let mut arguments: Vec<OsString> = vec!["health".into(), "serve".into()];
    arguments.extend(["--socket".into(), socket.into()]);
    arguments.extend(["--state-dir".into(), site.state_dir.clone().into()]);
    if !["auto", "off"].contains(&site.kernel_log.as_str()) {
        arguments.extend(["--kernel-log".into(), site.kernel_log.clone().into()]);
    }
    let environment = super::surroundings::for_programs(&run.host);
    match crate::detach::start(&arguments, environment) {
        Ok(pid) => run
            .log
            .say(&format!("the node service is started (pid {pid})")),
        Err(error) => run
            .log
            .say_error("the node service cannot be started", &error),
    }
}
