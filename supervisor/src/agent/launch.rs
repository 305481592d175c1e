// SPDX-License-Identifier: Apache-2.0
//! From a plan to the workers of this node: command and environment.
//!
//! The variables are those of torchrun 2.15 (`torch/distributed/elastic/agent/server/local_elastic_agent.py`), with two
//! differences: `TORCHELASTIC_USE_AGENT_STORE` is `False`, so that rank 0 hosts the store at a port that no earlier
//! generation has used, and `TORCHELASTIC_RESTART_COUNT` is one number for the whole job.

mod inner;

use std::error::Error;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use steadfast_core::{NodeName, Plan, PlanMember};

use super::checkpoints::{Resume, ResumePoint};
use crate::hook::Hook;
use crate::keeper::protocol::WorkerRequest;
use crate::output::{error_file, worker_dir};
use crate::settings::{CoreSize, Settings, Stdin};

/// How long the log directory's file system may take before the workers are started without it.
const DIRECTORY_PATIENCE: Duration = Duration::from_secs(2);

/// Variables of the agent's own environment on which the workers' depend.
pub(super) type Inherited<'a> = &'a dyn Fn(&str) -> Option<OsString>;

/// Where the workers find what the supervisor has for them.
#[derive(Clone, Debug)]
pub(super) struct Places {
    /// The control socket.
    pub(super) control_socket: PathBuf,
    /// The hook and the pages, if they could be laid out.
    pub(super) hook: Option<Hook>,
    /// Where they resume.
    pub(super) resume: ResumePoint,
}

/// The workers that `plan` gives to this node, which is `member` in it, at `group_rank`.
pub(super) fn workers(
    settings: &Settings,
    plan: &Plan,
    (member, group_rank): (&PlanMember, u32),
    places: &Places,
    inherited: Inherited<'_>,
) -> Vec<WorkerRequest> {
    (0..member.slots)
        .map(|local_rank| WorkerRequest {
            rank: member.base_rank.0 + local_rank,
            local_rank,
            program: settings.command.program.clone(),
            arguments: settings.command.argv_for(local_rank),
            environment: environment(
                settings,
                plan,
                &Place {
                    member,
                    group_rank,
                    local_rank,
                },
                places,
                inherited,
            ),
            directory: settings.working_dir.clone(),
            inherit_stdin: settings.stdin == Stdin::Inherit,
            core_limit: match settings.core_size {
                CoreSize::Inherit => None,
                CoreSize::Limit(0) => Some(limit_without_dump()),
                CoreSize::Limit(bytes) => Some(bytes),
                CoreSize::Unlimited => Some(u64::MAX),
            },
        })
        .collect()
}

/// Whether `OMP_NUM_THREADS` is set for the workers, which the user should know.
pub(super) fn limits_threads(settings: &Settings, inherited: Inherited<'_>) -> bool {
    settings.workers > 1 && inherited("OMP_NUM_THREADS").is_none()
}

struct Place<'a> {
    member: &'a PlanMember,
    group_rank: u32,
    local_rank: u32,
}

fn environment(
    settings: &Settings,
    plan: &Plan,
    place: &Place<'_>,
    places: &Places,
    inherited: Inherited<'_>,
) -> Vec<(String, OsString)> {
    let rank = place.member.base_rank.0 + place.local_rank;
    let visible_rank = if settings.virtual_local_rank {
        0
    } else {
        place.local_rank
    };
    let mut variables: Vec<(String, OsString)> = Vec::with_capacity(32);
    let mut set = |name: &str, value: OsString| variables.push((name.to_owned(), value));
    let mut number = |name: &str, value: u64| set(name, value.to_string().into());
    number("RANK", rank.into());
    number("LOCAL_RANK", visible_rank.into());
    number("GROUP_RANK", place.group_rank.into());
    number("ROLE_RANK", rank.into());
    number("LOCAL_WORLD_SIZE", place.member.slots.into());
    number("WORLD_SIZE", plan.world_size.into());
    number("GROUP_WORLD_SIZE", plan.members.len() as u64);
    number("ROLE_WORLD_SIZE", plan.world_size.into());
    number("MASTER_PORT", plan.master.port.into());
    number("TORCHELASTIC_RESTART_COUNT", plan.restart_count);
    number("TORCHELASTIC_MAX_RESTARTS", settings.max_restarts.into());
    number("STEADFAST_GENERATION", plan.generation.0);
    let error_file = error_file(&settings.log.run_dir, restart_count(plan), place.local_rank);
    set("ROLE_NAME", settings.role.clone().into());
    set("MASTER_ADDR", plan.master.address.clone().into());
    set("TORCHELASTIC_RUN_ID", settings.run_id.clone().into());
    set("TORCHELASTIC_USE_AGENT_STORE", "False".into());
    set("TORCHELASTIC_ERROR_FILE", error_file.into());
    set(
        "TORCHELASTIC_SIGNALS_TO_HANDLE",
        signal_names(&settings.signals).into(),
    );
    set("STEADFAST_JOB_ID", settings.job.clone().into());
    set("STEADFAST_NODE", settings.node.clone().into());
    set("STEADFAST_CONTROL", places.control_socket.clone().into());
    let resume = match &places.resume {
        ResumePoint::Untold => None,
        // What another supervisor above this one may have said does not hold here: empty stands for nothing.
        ResumePoint::Beginning => Some((String::new(), OsString::new())),
        ResumePoint::Checkpoint(Resume { step, path }) => Some((step.to_string(), path.into())),
    };
    if let Some((step, path)) = resume {
        set("STEADFAST_RESUME_STEP", step.into());
        set("STEADFAST_RESUME_PATH", path);
    }
    if let Some(hook) = &places.hook {
        let pages = hook.pages_of(plan.generation.0, place.local_rank);
        set("STEADFAST_PAGES", pages.into());
        if settings.hook {
            let python_path = hook.python_path(inherited("PYTHONPATH").as_deref());
            set("PYTHONPATH", python_path);
        }
    }
    if !settings.hook {
        // For one that another supervisor above this one has brought along.
        set("STEADFAST_HOOK", "0".into());
    }
    for (name, value) in inner::environment(settings, plan, place.group_rank) {
        set(&name, value);
    }
    let mut unless_set = |name: &str, value: &str| {
        if inherited(name).is_none() {
            set(name, value.into());
        }
    };
    unless_set("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1");
    // Python buffers what it writes to a pipe: the last words of a dying worker would be lost.
    unless_set("PYTHONUNBUFFERED", "1");
    if limits_threads(settings, inherited) {
        set("OMP_NUM_THREADS", "1".into());
    }
    if settings.virtual_local_rank {
        set(
            "CUDA_VISIBLE_DEVICES",
            own_device(place.local_rank, inherited).into(),
        );
    }
    variables
}

/// The limit with which the kernel writes no core dump. Where dumps go to a program (`|` in `core_pattern`) it ignores
/// every limit but 1, which stands for "no dump" there (`core(5)` and `fs/coredump.c` of Linux).
fn limit_without_dump() -> u64 {
    let pattern = std::fs::read("/proc/sys/kernel/core_pattern").unwrap_or_default();
    u64::from(pattern.starts_with(b"|"))
}

/// The restarts so far, as the log directories count them.
pub(super) fn restart_count(plan: &Plan) -> u32 {
    u32::try_from(plan.restart_count).unwrap_or(u32::MAX)
}

/// The worker's own GPU out of those that are visible to the job.
fn own_device(local_rank: u32, inherited: Inherited<'_>) -> String {
    let visible = inherited("CUDA_VISIBLE_DEVICES").and_then(|value| value.into_string().ok());
    visible
        .as_deref()
        .and_then(|list| list.split(',').nth(local_rank as usize))
        .map_or_else(|| local_rank.to_string(), |device| device.trim().to_owned())
}

fn signal_names(signals: &[i32]) -> String {
    let names: Vec<&str> = signals
        .iter()
        .filter_map(|&number| nix::sys::signal::Signal::try_from(number).ok())
        .map(nix::sys::signal::Signal::as_str)
        .collect();
    names.join(",")
}

/// A variable of the agent's own environment, which is the keeper's.
pub(super) fn own_environment(name: &str) -> Option<OsString> {
    std::env::var_os(name)
}

/// This node's place in a plan and its group rank, if it has one.
pub(super) fn place<'a>(plan: &'a Plan, node: &str) -> Option<(&'a PlanMember, u32)> {
    let node = NodeName(node.to_owned());
    Some((plan.member(&node)?, plan.group_rank(&node)?))
}

/// Makes the directories that the workers' error files go to. A file system that does not answer is given up on.
pub(super) async fn make_directories(
    settings: &Settings,
    plan: &Plan,
    slots: u32,
) -> Result<(), String> {
    let run_dir = settings.log.run_dir.clone();
    let restart_count = restart_count(plan);
    let shown = run_dir.display().to_string();
    let made = tokio::task::spawn_blocking(move || {
        (0..slots).try_for_each(|local_rank| {
            std::fs::create_dir_all(worker_dir(&run_dir, restart_count, local_rank))
        })
    });
    match tokio::time::timeout(DIRECTORY_PATIENCE, made).await {
        Ok(Ok(Ok(()))) => Ok(()),
        Ok(Ok(Err(error))) => Err(format!("the log directory {shown} cannot be made: {error}")),
        Ok(Err(_)) | Err(_) => Err(format!("the log directory {shown} does not answer")),
    }
}

/// Lays out the hook and the directories for progress pages; the error is in words. A disk that does not answer is given
/// up on.
pub(super) async fn prepare_hook(hook: &Hook, plan: &Plan, slots: u32) -> Result<(), String> {
    let (hook, generation) = (hook.clone(), plan.generation.0);
    let prepared = tokio::task::spawn_blocking(move || hook.prepare(generation, slots));
    match tokio::time::timeout(DIRECTORY_PATIENCE, prepared).await {
        Ok(Ok(Ok(()))) => Ok(()),
        Ok(Ok(Err(error))) => {
            let cause = error.source().map(ToString::to_string).unwrap_or_default();
            Err(format!("{error}: {cause}"))
        }
        Ok(Err(_)) | Err(_) => Err("the runtime directory does not answer".to_owned()),
    }
}

#[cfg(test)]
mod tests;
