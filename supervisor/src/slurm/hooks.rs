// SPDX-License-Identifier: Apache-2.0
//! `steadfast slurm`: what `slurm.conf` points at.
//!
//! Slurm acts on the exit codes of these programs: one that fails for no good reason takes a node out of service, and one
//! that is installed everywhere takes the cluster. So:
//! - HK-1: only a proven fault of this node ends with [`ExitCode::Node`]. Everything else (a wrong configuration, a
//!   controller that does not answer, a bug) ends with 0 and is said.
//! - HK-2: every hook has a deadline of its own, below those of Slurm, and ends at it whatever still hangs.
//! - HK-3: every hook can be run again at any time.

mod decision;
mod epilog;
mod health;
mod install;
mod job_record;
mod kernel_faults;
mod leftovers;
mod log;
mod look;
mod memory;
mod prolog;
mod requeue;
mod site;
mod surroundings;
mod task_prolog;
mod verdict;

use std::path::PathBuf;
use std::sync::mpsc;
use std::time::Duration;

pub(crate) use self::install::Install;
pub(crate) use self::job_record::JobRecord;
use self::log::HookLog;
pub(crate) use self::requeue::Requeue;
use self::site::Site;
pub(crate) use self::site::USUAL_FILE;
use self::surroundings::Surroundings;
use crate::config::Host;
use crate::console_line::say;
use crate::exit_code::ExitCode;
use crate::slurm::controller::{Controller, ControllerError};

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// Be one of the programs that slurmd runs.
    Hook {
        /// Which.
        hook: Hook,
        /// The settings; absent for the usual file.
        config: Option<PathBuf>,
    },
    /// Put a job back into the queue.
    Requeue(Requeue),
    /// Say what to add to `slurm.conf`.
    Install(Install),
}

/// The programs that slurmd runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hook {
    /// Before a job's first step on this node.
    Prolog,
    /// After a job.
    Epilog,
    /// From time to time.
    Health,
    /// Before each task, as the job's user.
    TaskProlog,
}

impl Hook {
    /// All of them.
    pub(crate) const ALL: [Self; 4] = [Self::Prolog, Self::Epilog, Self::Health, Self::TaskProlog];

    /// As it stands on the command line.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Prolog => "prolog",
            Self::Epilog => "epilog",
            Self::Health => "health",
            Self::TaskProlog => "task-prolog",
        }
    }

    fn deadline(self, site: &Site) -> Duration {
        match self {
            Self::Prolog => site.prolog.deadline,
            Self::Epilog => site.epilog.deadline,
            Self::Health => site.health.deadline,
            Self::TaskProlog => Duration::from_secs(10),
        }
    }
}

/// What one run of a hook has to do with.
#[derive(Clone, Debug)]
struct Run {
    host: Host,
    site: Site,
    config: Option<PathBuf>,
    surroundings: Surroundings,
    log: HookLog,
}

/// What slurmd is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    /// Go on.
    Fine,
    /// This node is at fault.
    Sick,
}

impl Site {
    /// How this site's controller is talked to.
    fn controller(&self, host: &Host) -> Result<Controller, ControllerError> {
        let mut environment = surroundings::for_programs(host);
        if let Some(file) = &self.slurm_conf
            && host.variable("SLURM_CONF").is_none()
        {
            environment.push(("SLURM_CONF".into(), file.into()));
        }
        Controller::find(self.scontrol.as_os_str(), environment, self.call_timeout)
    }
}

impl Run {
    fn controller(&self) -> Result<Controller, ControllerError> {
        self.site.controller(&self.host)
    }
}

/// Carries out the command, and gives the exit code.
pub(crate) fn run(host: &Host, request: &Request) -> u8 {
    match request {
        Request::Hook { hook, config } => run_hook(host, *hook, config.clone()),
        Request::Requeue(request) => requeue::run(host, request),
        Request::Install(request) => install::run(host, request),
    }
}

fn run_hook(host: &Host, hook: Hook, config: Option<PathBuf>) -> u8 {
    let Some(surroundings) = Surroundings::read(host) else {
        say(&format!(
            "`steadfast slurm {}` is started by slurmd, which names the node in SLURMD_NODENAME: nothing is done",
            hook.name()
        ));
        return ExitCode::Success as u8;
    };
    let who = match &surroundings.job {
        Some(job) => format!("{} {} job {}", surroundings.node, hook.name(), job.id),
        None => format!("{} {}", surroundings.node, hook.name()),
    };
    let site = match Site::read(config.as_deref()) {
        Ok(site) => site.on_node(&surroundings.node),
        Err(error) => {
            let log = HookLog::new(&Site::log_file_of(config.as_deref()), who);
            log.say_error("nothing is checked and nobody is drained", &error);
            return ExitCode::Success as u8;
        }
    };
    // Tasks run as their users, who may not write there.
    let file = match hook {
        Hook::TaskProlog => PathBuf::new(),
        _ => site.log_file.clone(),
    };
    let run = Run {
        host: host.clone(),
        config,
        surroundings,
        log: HookLog::new(&file, who),
        site,
    };
    match within_deadline(hook, run) {
        Told::Fine => ExitCode::Success as u8,
        Told::Sick => ExitCode::Node as u8,
    }
}

/// Runs the hook on a thread of its own: what hangs there, or breaks, is left behind and counts for nothing.
fn within_deadline(hook: Hook, run: Run) -> Told {
    let deadline = hook.deadline(&run.site);
    let log = run.log.clone();
    let (sender, receiver) = mpsc::channel();
    let thread = std::thread::Builder::new()
        .name(hook.name().to_owned())
        .spawn(move || {
            let told = match hook {
                Hook::Prolog => prolog::run(&run),
                Hook::Epilog => epilog::run(&run),
                Hook::Health => health::run(&run),
                Hook::TaskProlog => task_prolog::run(&run),
            };
            // Nobody listens any more when it was too late.
            let _too_late = sender.send(told);
        });
    if let Err(error) = thread {
        log.say_error("no thread can be started, so nothing is done", &error);
        return Told::Fine;
    }
    match receiver.recv_timeout(deadline) {
        Ok(told) => told,
        Err(mpsc::RecvTimeoutError::Timeout) => {
            log.say(&format!(
                "it was not done within {} s and goes no further; the node is not judged",
                deadline.as_secs()
            ));
            Told::Fine
        }
        Err(mpsc::RecvTimeoutError::Disconnected) => {
            log.say("it broke: this is a bug, please report it; the node is not judged");
            Told::Fine
        }
    }
}
