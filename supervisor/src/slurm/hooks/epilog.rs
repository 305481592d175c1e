// SPDX-License-Identifier: Apache-2.0
//! After a job: what it has left is killed, what happened to its GPUs is told, and a node that it leaves sick gets no other.

use steadfast_checks::Profile;
use steadfast_process::tree::Process;

use super::decision::Found;
use super::job_record::JobRecord;
use super::leftovers::{self, Leftovers, Owner};
use super::memory::LockedMemory;
use super::requeue;
use super::site::UserProcesses;
use super::surroundings::HookJob;
use super::verdict::{Powers, carry_out};
use super::{Run, Told, look};

/// The most processes that are named.
const MOST_NAMED: usize = 20;

pub(super) fn run(run: &Run) -> Told {
    let Some(job) = &run.surroundings.job else {
        run.log
            .say("there is no job in SLURM_JOB_ID: nothing is done");
        return Told::Fine;
    };
    let (state, node) = (&run.site.state_dir, &run.surroundings.node);
    let record = JobRecord::read(state, node, &job.id);
    let mut found = Found::default();
    for process in end_leftovers(run, job, record.as_ref()) {
        look::stuck_process(&process, &mut found);
    }
    if let Some(faults) = look::kernel_log(run, &mut found) {
        if let Some(began_ns) = began_ns(run, job, record.as_ref()) {
            for event in faults.since(began_ns, job.gpus.as_deref()) {
                run.log.say(&format!("during the job: {event}"));
            }
        }
        faults.problems(None, &mut found);
    }
    look::checks(run, Profile::Epilog, None, &mut found);
    for why in found.unknown.values() {
        run.log.whisper(why);
    }
    if let Err(error) = JobRecord::remove(state, node, &job.id) {
        run.log.say_error("the record of the job stays", &error);
    }
    if run.site.epilog.hasten_requeue {
        requeue::hasten_later(run, job);
    }
    if found.problems.is_empty() {
        return Told::Fine;
    }
    judge(run, &found)
}

fn judge(run: &Run, found: &Found) -> Told {
    if !run.site.epilog.drain {
        let reason = super::decision::reason(&found.problems);
        run.log.say(&format!("the node is sick: {reason}"));
        return Told::Fine;
    }
    let told = LockedMemory::lock(&run.site.state_dir, &run.surroundings.node)
        .map_err(Into::into)
        .and_then(|memory| carry_out(run, &memory, found, Powers::Drain));
    match told {
        Ok(_) => Told::Fine,
        Err(error) => {
            // The fault is proven: then Slurm is to drain the node, for a reason of its own.
            run.log.say_error("Slurm itself drains the node", &error);
            Told::Sick
        }
    }
}

/// When the job began, on the monotonic clock.
fn began_ns(run: &Run, job: &HookJob, record: Option<&JobRecord>) -> Option<u64> {
    if let Some(record) = record {
        return Some(record.began_ns);
    }
    let ago_ms = run.host.wall_ms - job.start_time?.saturating_mul(1000);
    let ago_ns = u64::try_from(ago_ms).ok()?.saturating_mul(1_000_000);
    Some(run.host.monotonic_ns.saturating_sub(ago_ns))
}

/// Returns the processes that not even SIGKILL ends.
fn end_leftovers(run: &Run, job: &HookJob, record: Option<&JobRecord>) -> Vec<Process> {
    let node = &run.surroundings.node;
    let others = JobRecord::all(&run.site.state_dir, node);
    let owner = Owner {
        job: &job.id,
        node,
        uid: job.uid,
        began_ticks: record.map(|record| record.began_ticks),
        is_only_job: !others
            .iter()
            .any(|other| other.job != job.id && other.uid == job.uid),
    };
    let with_users = run.site.epilog.user_processes == UserProcesses::Kill;
    let Leftovers { of_job, of_user } = leftovers::find(owner);
    if !with_users && run.site.epilog.user_processes == UserProcesses::Report {
        say_processes(run, "are of the job's user, and were left alone", &of_user);
    }
    let doomed = if with_users {
        of_job.len() + of_user.len()
    } else {
        of_job.len()
    };
    if doomed == 0 {
        return Vec::new();
    }
    if !run.site.epilog.kill {
        say_processes(run, "were left by the job, and are left alone", &of_job);
        return Vec::new();
    }
    let (killed, stuck) = leftovers::kill(|| {
        let mut found = leftovers::find(owner);
        if with_users {
            found.of_job.append(&mut found.of_user);
        }
        found.of_job
    });
    say_processes(run, "were left by the job, and were killed", &killed);
    say_processes(run, "were left by the job, and cannot be killed", &stuck);
    stuck
}

fn say_processes(run: &Run, what: &str, processes: &[Process]) {
    if processes.is_empty() {
        return;
    }
    let names: Vec<String> = processes
        .iter()
        .take(MOST_NAMED)
        .map(|process| format!("{} ({})", process.pid, process.name))
        .collect();
    let more = match processes.len().saturating_sub(MOST_NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    run.log.say(&format!(
        "{} processes {what}: {}{more}",
        processes.len(),
        names.join(", ")
    ));
}
