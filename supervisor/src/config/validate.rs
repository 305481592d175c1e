// SPDX-License-Identifier: Apache-2.0
//! From values to settings: every check that can be made before anything starts.

use std::ffi::OsString;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::error::ConfigError;
use super::host::Host;
use super::option::Key;
use super::values::{Origin, Value, Values};
use super::{devices, directories, duration, nodes, parse, self_check, variables};
use crate::exit_code::ExitCodes;
use crate::settings::{
    Checkpoints, InnerLauncher, LayoutChoice, LogSettings, Mode, PerRank, Settings, SlurmStep,
    Stall, Std, TimeLimit, WorkerCommand,
};
use crate::slurm::step;

/// A job as it was asked for, with its command already found.
#[derive(Debug)]
pub(crate) struct Request {
    /// Which command line.
    pub(crate) mode: Mode,
    /// The options.
    pub(crate) values: Values,
    /// What the workers run.
    pub(crate) command: WorkerCommand,
    /// A launcher inside the command.
    pub(crate) inner_launcher: Option<InnerLauncher>,
    /// torchrun's `--rdzv-id`, where one was given or has to be made up.
    pub(crate) run_id: Option<String>,
    /// The Slurm step whose values are among the options.
    pub(crate) slurm: Option<SlurmStep>,
    /// What the user should be told.
    pub(crate) notes: Vec<String>,
}

/// Where the workers start.
pub(crate) fn working_dir(host: &Host, values: &Values) -> Result<PathBuf, ConfigError> {
    directories::working_dir(host, values)
}

/// The directory of the control sockets.
pub(crate) fn runtime_root(host: &Host, values: &Values) -> PathBuf {
    directories::runtime_root(host, values)
}

/// The job's name, where one was given.
pub(crate) fn job(values: &Values) -> Result<Option<String>, ConfigError> {
    values.parse(Key::Job, parse::name(64))
}

/// Puts the values that are worked out on this machine among the defaults, so that they can be shown.
pub(crate) fn work_out_defaults(host: &Host, values: &mut Values) -> Result<(), ConfigError> {
    let shown = |path: PathBuf| path.display().to_string();
    for (key, text) in [
        (Key::NodeName, parse::as_name(&host.hostname, 253)),
        (
            Key::WorkingDir,
            shown(directories::working_dir(host, values)?),
        ),
        (Key::LogDir, shown(directories::log_dir(host, values)?)),
        (
            Key::RuntimeDir,
            shown(directories::runtime_root(host, values)),
        ),
    ] {
        if values.get(key).is_none() {
            values.set(
                key,
                Value {
                    text,
                    origin: Origin::Default,
                },
            );
        }
    }
    Ok(())
}

/// Checks values that no command goes with, as `settings` would.
pub(crate) fn check_values(
    host: &Host,
    values: &Values,
    slurm: Option<SlurmStep>,
) -> Result<(), ConfigError> {
    let command = WorkerCommand {
        program: "/".into(),
        argv: Vec::new(),
        substitute_local_rank: false,
    };
    let (mut values, notes) = (values.clone(), Vec::new());
    if values.get(Key::Job).is_none() {
        // Nothing is to run, and so nothing has to have a name.
        values.set(Key::Job, Value::flag("--job", "job"));
    }
    settings(
        host,
        Request {
            mode: Mode::Run,
            values,
            command,
            inner_launcher: None,
            run_id: None,
            slurm,
            notes,
        },
    )
    .map(drop)
}

/// Turns a request into settings, or says what is wrong with it.
pub(crate) fn settings(host: &Host, request: Request) -> Result<Settings, ConfigError> {
    let Request {
        mode,
        values,
        command,
        inner_launcher,
        run_id,
        slurm,
        mut notes,
    } = request;
    notes.extend(variables::mistyped(host));
    let nodes = nodes::read(host, &values, slurm.as_ref(), &mut notes)?;
    let lease = nodes
        .coordination
        .is_fenced()
        .then_some(nodes.elastic.lease);
    let times = Times::read(&values, lease)?;
    let node = node_name(host, &values)?;
    let job = job_name(host, &values, &command)?;
    let run_id = run_id.unwrap_or_else(|| job.clone());
    let mut run_directory = run_directory(host, mode, &job, &run_id);
    if nodes.coordination.is_fenced() {
        // The directory may be shared by all nodes of the job.
        run_directory.push(&node);
    }
    let log = log_settings(host, &values, &run_directory)?;
    let nvml = values.require(Key::Nvml, parse::nvml)?;
    let settings = Settings {
        mode,
        node,
        job,
        run_id,
        command,
        working_dir: directories::working_dir(host, &values)?,
        coordination: nodes.coordination,
        elastic: nodes.elastic,
        address: nodes.address,
        node_rank: nodes.node_rank,
        topology: nodes.topology,
        node_count_hint: nodes.node_count_hint,
        slurm,
        workers: values.require(Key::NprocPerNode, |text| devices::workers(host, text))?,
        max_restarts: values.require(Key::MaxRestarts, parse::at_least(0))?,
        restart_grace: times.restart_grace,
        stop_grace: times.stop_grace,
        cgroup: values.require(Key::Cgroup, parse::cgroup)?,
        time_limit: time_limit(host, &values, &mut notes)?,
        checkpoints: checkpoints(host, &values)?,
        checkpoint_every: values.require(Key::CheckpointEvery, parse::checkpoint_every)?,
        checkpoint_timeout: values.require(Key::CheckpointTimeout, duration::parse)?,
        core_size: values.require(Key::CoreSize, parse::core_size)?,
        stall: stall(&values)?,
        on_nan: values.require(Key::OnNan, parse::on_nan)?,
        role: values.require(Key::Role, parse::line)?,
        master_addr: values.parse(Key::MasterAddr, parse::word)?,
        master_port: values.parse(Key::MasterPort, parse::port)?,
        progress_regex: values.parse(Key::ProgressRegex, parse::progress_regex)?,
        journal: directories::journal(host, &values, &log.run_dir)?,
        log,
        runtime_root: directories::runtime_root(host, &values),
        agent_heartbeat: times.agent_heartbeat,
        agent_watchdog: times.agent_watchdog,
        hook: values.require(Key::Hook, parse::switch)?,
        exit_codes: exit_codes(mode, &values)?,
        stdin: values.require(Key::Stdin, parse::stdin)?,
        virtual_local_rank: values.require(Key::VirtualLocalRank, parse::switch)?,
        signals: values.require(Key::SignalsToHandle, parse::signals)?,
        kernel_log: values.require(Key::KernelLog, parse::kernel_log)?,
        kernel_log_trusts_anyone: values.require(Key::KernelLogTrust, parse::kernel_log_trust)?,
        xid_policy: values.parse(Key::XidPolicy, parse::xid_policy)?,
        fault_rules: values.parse(Key::FaultRules, parse::fault_rules)?,
        self_check: self_check::read(host, &values, &nvml)?,
        nvml,
        inner_launcher,
        notes,
    };
    directories::can_be_made(&values, Key::RuntimeDir, &settings.runtime_root)?;
    paths_are_text(&settings)?;
    Ok(settings)
}

fn stall(values: &Values) -> Result<Stall, ConfigError> {
    Ok(Stall {
        action: values.require(Key::Stall, parse::stall)?,
        bounds: values
            .parse(Key::StallAfter, parse::stall_after)?
            .unwrap_or_default(),
    })
}

/// The options with durations, each sensible beside the others.
struct Times {
    restart_grace: Duration,
    stop_grace: Duration,
    agent_heartbeat: Duration,
    agent_watchdog: Duration,
}

impl Times {
    /// Reads them; `lease` is there where the workers live under one.
    fn read(values: &Values, lease: Option<Duration>) -> Result<Self, ConfigError> {
        let mut times = Self {
            restart_grace: values.require(Key::RestartGrace, duration::parse)?,
            stop_grace: values.require(Key::StopGrace, duration::parse)?,
            agent_heartbeat: values.require(Key::AgentHeartbeat, duration::parse)?,
            agent_watchdog: values.require(Key::AgentWatchdog, duration::parse)?,
        };
        let conflict = |first: Key, second: Key, reason: &'static str| {
            Err(ConfigError::Conflict {
                first: values.given(first),
                second: values.given(second),
                reason,
            })
        };
        if times.agent_heartbeat < Duration::from_millis(10) {
            return Err(ConfigError::Value {
                given: values.given(Key::AgentHeartbeat),
                reason: "must be at least 10ms".to_owned(),
            });
        }
        if times.agent_watchdog < times.agent_heartbeat.saturating_mul(2) {
            return conflict(
                Key::AgentHeartbeat,
                Key::AgentWatchdog,
                "the watchdog must be at least twice the heartbeat, or it kills a healthy agent",
            );
        }
        if let Some(lease) = lease {
            let own = (times.agent_heartbeat, times.agent_watchdog);
            (times.agent_heartbeat, times.agent_watchdog) = nodes::under_lease(values, lease, own)?;
        }
        if times.restart_grace > times.stop_grace {
            // The more explicit of the two holds, and the other one gives way.
            let gives_way = !values.is_written(Key::RestartGrace)
                || !values.is_explicit(Key::RestartGrace) && values.is_explicit(Key::StopGrace);
            if !gives_way {
                return conflict(
                    Key::RestartGrace,
                    Key::StopGrace,
                    "a stop that comes during a restart would take longer than it may",
                );
            }
            times.restart_grace = times.stop_grace;
        }
        Ok(times)
    }
}

fn checkpoints(host: &Host, values: &Values) -> Result<Option<Checkpoints>, ConfigError> {
    let layout = values.require(Key::CheckpointLayout, |text| {
        LayoutChoice::parse(text, &host.working_dir)
    })?;
    let fix_tracker = values.require(Key::FixTracker, parse::switch)?;
    let Some(directory) = values.parse(Key::CheckpointDir, parse::line)? else {
        return Ok(None);
    };
    let working_dir = directories::working_dir(host, values)?;
    Ok(Some(Checkpoints {
        directory: working_dir.join(directory),
        layout,
        fix_tracker,
        keep: values
            .parse(Key::Keep, parse::at_least(1))?
            .and_then(NonZeroU32::new),
        signal: values.parse(Key::CheckpointSignal, parse::signal)?,
        file: values
            .parse(Key::CheckpointFile, parse::line)?
            .map(|file| working_dir.join(file)),
    }))
}

/// When the job is to end by itself, where the user wants that and the scheduler says how long it may run, or that time is up.
fn time_limit(
    host: &Host,
    values: &Values,
    notes: &mut Vec<String>,
) -> Result<TimeLimit, ConfigError> {
    let lead = values.parse(Key::TimeLimitLead, duration::parse)?;
    let signal = values.parse(Key::TimeLimitSignal, parse::user_signal)?;
    if lead.is_none() && signal.is_none() {
        return Ok(TimeLimit::default());
    }
    let mut limit = TimeLimit {
        ends_at_ns: step::end(host).map_err(ConfigError::SlurmStep)?,
        lead: None,
        signal,
    };
    let Some(lead) = lead else {
        return Ok(limit);
    };
    let Some(left) = limit.left(host.monotonic_ns) else {
        notes.push(format!(
            "{} has no effect: the scheduler does not say when the job's time is up (SLURM_JOB_END_TIME)",
            values.given(Key::TimeLimitLead)
        ));
        return Ok(limit);
    };
    if left <= lead {
        return Err(ConfigError::Value {
            given: values.given(Key::TimeLimitLead),
            reason: format!(
                "the scheduler ends the job in {} s, so it would be run again for ever and never train",
                left.as_secs()
            ),
        });
    }
    limit.lead = Some(lead);
    Ok(limit)
}

fn exit_codes(mode: Mode, values: &Values) -> Result<ExitCodes, ConfigError> {
    let standard = ExitCodes::standard(match mode {
        Mode::Run => None,
        // torchrun itself ends with 1 whatever code the worker had.
        Mode::Torchrun => Some(1),
    });
    Ok(values
        .parse(Key::ExitCode, |text| standard.remapped(text))?
        .unwrap_or(standard))
}

fn log_settings(
    host: &Host,
    values: &Values,
    run_directory: &Path,
) -> Result<LogSettings, ConfigError> {
    let streams = |text: &str| text.parse::<PerRank<Std>>();
    let filter = values.parse(Key::LocalRanksFilter, parse::ranks)?;
    let lines = |key| values.text(key).map(parse::list).unwrap_or_default();
    Ok(LogSettings {
        run_dir: directories::log_dir(host, values)?.join(run_directory),
        redirects: values.require(Key::Redirects, streams)?,
        tee: values.require(Key::Tee, streams)?,
        local_ranks_filter: filter.filter(|ranks| !ranks.is_empty()),
        duplicate_stdout_filters: lines(Key::DuplicateStdoutFilters),
        duplicate_stderr_filters: lines(Key::DuplicateStderrFilters),
        prefix_template: values
            .text(Key::LogLinePrefixTemplate)
            .filter(|template| !template.is_empty())
            .map(str::to_owned),
        console: values.require(Key::Console, parse::switch)?,
    })
}

/// In run mode a job's directory is its name; torchrun makes a new one for every run.
fn run_directory(host: &Host, mode: Mode, job: &str, run_id: &str) -> PathBuf {
    PathBuf::from(match mode {
        Mode::Run => job.to_owned(),
        Mode::Torchrun => format!("{}_{}", parse::as_name(run_id, 128), host.random_name(1, 8)),
    })
}

fn node_name(host: &Host, values: &Values) -> Result<String, ConfigError> {
    Ok(values
        .parse(Key::NodeName, parse::name(253))?
        .unwrap_or_else(|| parse::as_name(&host.hostname, 253)))
}

fn job_name(host: &Host, values: &Values, command: &WorkerCommand) -> Result<String, ConfigError> {
    if let Some(name) = job(values)? {
        return Ok(name);
    }
    let stem = parse::as_name(&what_runs(&command.argv), 50);
    let stem = if stem.is_empty() { "job" } else { &stem };
    Ok(format!("{stem}-{}", host.random_name(0, 6)))
}

/// The script that an interpreter or a launcher is given, else the program itself; without directory and ending.
fn what_runs(argv: &[OsString]) -> String {
    let script = argv.iter().skip(1).find(|argument| {
        Path::new(argument)
            .extension()
            .is_some_and(|ending| ending == "py" || ending == "sh")
    });
    script
        .or(argv.first())
        .and_then(|path| Path::new(path).file_stem())
        .map(|stem| stem.to_string_lossy().into_owned())
        .unwrap_or_default()
}

fn paths_are_text(settings: &Settings) -> Result<(), ConfigError> {
    for (what, path) in [
        ("the program", &settings.command.program),
        ("the working directory", &settings.working_dir),
        ("the log directory", &settings.log.run_dir),
        ("the journal", &settings.journal),
        ("the runtime directory", &settings.runtime_root),
    ] {
        if path.to_str().is_none() {
            return Err(ConfigError::PathNotText {
                what,
                path: path.clone(),
            });
        }
    }
    Ok(())
}
