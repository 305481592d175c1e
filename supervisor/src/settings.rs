// SPDX-License-Identifier: Apache-2.0
//! What a job was told to do, validated and ready for use.
//!
//! The keeper makes one [`Settings`] from the command line, the environment and the configuration files before it
//! starts anything, and hands it to the agent as JSON. Nothing after that reads the environment or a file again, so a
//! respawned agent works from the very same values.

mod checkpoints;
mod command;
mod coordination;
mod elastic;
mod numeric;
mod per_rank;
mod slurm_step;
mod stall;
mod time_limit;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub(crate) use self::checkpoints::{CheckpointEvery, Checkpoints, LayoutChoice};
pub(crate) use self::command::{InnerLauncher, WorkerCommand};
pub(crate) use self::coordination::{
    CertificateFiles, Coordination, EtcdAddress, EtcdLogin, ManagedEtcd, PasswordPlace,
};
pub(crate) use self::elastic::{Elastic, Grow, NodeRange, Witness};
pub(crate) use self::numeric::OnNan;
pub(crate) use self::per_rank::{PerRank, Std};
pub(crate) use self::slurm_step::SlurmStep;
pub(crate) use self::stall::{Stall, StallAction};
pub(crate) use self::time_limit::TimeLimit;
use crate::check_command::Inquiry;
use crate::exit_code::ExitCodes;

/// Everything that the keeper and the agent need to know about a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Settings {
    /// Which command line the job was started with.
    pub(crate) mode: Mode,
    /// Name of the job: 1 to 64 characters of `[A-Za-z0-9._-]`, safe as a file name and as a key.
    pub(crate) job: String,
    /// What the workers see as `TORCHELASTIC_RUN_ID`: torchrun's `--rdzv-id`, or the job's name.
    pub(crate) run_id: String,
    /// Name of this node: 1 to 253 characters of `[A-Za-z0-9._-]`.
    pub(crate) node: String,
    /// What each worker runs.
    pub(crate) command: WorkerCommand,
    /// Absolute directory that the workers start in.
    pub(crate) working_dir: PathBuf,
    /// Workers on this node, at least 1.
    pub(crate) workers: u32,
    /// Where the nodes of the job meet.
    pub(crate) coordination: Coordination,
    /// How many nodes the job takes, and what happens when their number changes.
    pub(crate) elastic: Elastic,
    /// Name or address by which the other nodes reach this one.
    pub(crate) address: String,
    /// The place among the nodes that this one would like to have, from 0.
    pub(crate) node_rank: Option<u32>,
    /// Where this node is: level and name, widest level first, such as `rack` and `r1`.
    pub(crate) topology: Vec<(String, String)>,
    /// How many nodes are expected in all, spares included, where that is known.
    pub(crate) node_count_hint: Option<u32>,
    /// The Slurm job step that this supervisor is a task of.
    pub(crate) slurm: Option<SlurmStep>,
    /// Restarts without progress in between before the job is given up; 0 means that the first failure ends it.
    pub(crate) max_restarts: u32,
    /// Between SIGTERM and SIGKILL when the workers are stopped in order to be restarted.
    pub(crate) restart_grace: Duration,
    /// Between SIGTERM and SIGKILL when the job is stopped for good.
    pub(crate) stop_grace: Duration,
    /// When the job ends by itself because the scheduler would end it soon.
    pub(crate) time_limit: TimeLimit,
    /// Where the job saves, if its checkpoints are to be looked after.
    pub(crate) checkpoints: Option<Checkpoints>,
    /// After how long without a committed checkpoint the workers are asked for one.
    pub(crate) checkpoint_every: CheckpointEvery,
    /// How long a checkpoint may take that was asked for before something that can wait for it.
    pub(crate) checkpoint_timeout: Duration,
    /// What is done about a training that has stalled.
    pub(crate) stall: Stall,
    /// What is done about a loss that is no number, or runs away.
    pub(crate) on_nan: OnNan,
    /// Size limit of a worker's core dump.
    pub(crate) core_size: CoreSize,
    /// Whether the workers get a cgroup of their own (option `cgroup`, `--cgroup auto|off`, default `auto`).
    pub(crate) cgroup: CgroupUse,
    /// `ROLE_NAME` of the workers, and part of the prefix of their lines on the console.
    pub(crate) role: String,
    /// `MASTER_ADDR` for the workers, where the user fixed it.
    pub(crate) master_addr: Option<String>,
    /// `MASTER_PORT` for the workers, where the user fixed it (1 to 65535); otherwise each generation gets a new one.
    pub(crate) master_port: Option<u16>,
    /// Where the workers' output goes.
    pub(crate) log: LogSettings,
    /// Regular expression whose capture named `step` (or else the first one) is the step number in a line of output.
    pub(crate) progress_regex: Option<String>,
    /// File that gets one JSON line per thing that happened to the job.
    pub(crate) journal: PathBuf,
    /// Directory that holds the control sockets of the jobs of this user on this node.
    pub(crate) runtime_root: PathBuf,
    /// How often the agent tells the keeper that it is well.
    pub(crate) agent_heartbeat: Duration,
    /// Silence after which the keeper kills and respawns the agent; at least twice the heartbeat.
    pub(crate) agent_watchdog: Duration,
    /// Whether Python processes of the workers get the hook.
    pub(crate) hook: bool,
    /// Exit codes of the supervisor.
    pub(crate) exit_codes: ExitCodes,
    /// What the workers read as standard input.
    pub(crate) stdin: Stdin,
    /// Every worker sees `LOCAL_RANK=0` and only its own GPU.
    pub(crate) virtual_local_rank: bool,
    /// Signals that stop the job in good order when the supervisor gets them.
    pub(crate) signals: Vec<i32>,
    /// Where GPU errors and the like are looked for.
    pub(crate) kernel_log: KernelLogSource,
    /// Whether lines that a program wrote into the kernel log count as well.
    pub(crate) kernel_log_trusts_anyone: bool,
    /// What is done about some XIDs instead of what the catalogue asks for.
    pub(crate) xid_policy: Option<XidPolicy>,
    /// What lines of output mean, beside what is known anyway.
    pub(crate) fault_rules: Option<RulesFile>,
    /// Whether and how the driver's library is asked.
    pub(crate) nvml: NvmlUse,
    /// How this node is looked at while it takes part in the job, if it is.
    pub(crate) self_check: Option<SelfChecks>,
    /// The launcher inside the wrapped command, where it was recognised.
    pub(crate) inner_launcher: Option<InnerLauncher>,
    /// Things that the user should be told once at the start, each a whole message without a full stop.
    pub(crate) notes: Vec<String>,
}

/// How a node is looked at while it takes part in a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SelfChecks {
    /// Which checks are made, but for the GPUs that matter.
    pub(crate) inquiry: Inquiry,
    /// Time between two looks while nothing of the job runs here.
    pub(crate) every: Duration,
    /// How long a restart waits for a look at most, from when the workers began to be stopped.
    pub(crate) wait: Duration,
}

/// Which command line a job was started with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Mode {
    /// `steadfast run`.
    Run,
    /// `steadfast torchrun`.
    Torchrun,
}

/// Size limit of a worker's core dump.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum CoreSize {
    /// Whatever limit the supervisor itself was started with.
    Inherit,
    /// At most this many bytes; 0 means no dump.
    Limit(u64),
    /// As large as it gets.
    Unlimited,
}

/// Whether the workers get a cgroup of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum CgroupUse {
    /// Where a cgroup v2 can be made, it is.
    Auto,
    /// Sessions and the process tree alone are used.
    Off,
}

/// Where the kernel log is read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum KernelLogSource {
    /// From the node service where there is one, else from `/dev/kmsg`, if it can be read.
    Auto,
    /// Nowhere.
    Off,
    /// A named pipe, a file, a device, or the socket of a node service; absolute.
    Path(PathBuf),
}

/// Whether and how the driver's library is asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum NvmlUse {
    /// The library that is installed, where there is a driver.
    Auto,
    /// Not at all.
    Off,
    /// This library; absolute.
    Path(PathBuf),
}

/// A policy file as it was when the job was started; it was found to be right.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct XidPolicy {
    /// Its name, for messages.
    pub(crate) file: PathBuf,
    /// What it said.
    pub(crate) text: String,
}

/// A file of rules as it was when the job was started; it was found to be right.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RulesFile {
    /// Its name, for messages.
    pub(crate) file: PathBuf,
    /// What it said.
    pub(crate) text: String,
}

/// What the workers read as standard input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Stdin {
    /// `/dev/null`.
    Null,
    /// The supervisor's own standard input.
    Inherit,
}

/// Where the workers' output goes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LogSettings {
    /// Directory of this run. It need not exist yet: the agent makes it.
    pub(crate) run_dir: PathBuf,
    /// Streams that go to a file instead of to the console.
    pub(crate) redirects: PerRank<Std>,
    /// Streams that go to a file and, with a prefix, to the console.
    pub(crate) tee: PerRank<Std>,
    /// Local ranks whose output reaches the console; absent means all.
    pub(crate) local_ranks_filter: Option<BTreeSet<u32>>,
    /// A line of standard output that contains one of these also goes to `filtered_stdout.log`.
    pub(crate) duplicate_stdout_filters: Vec<String>,
    /// A line of standard error that contains one of these also goes to `filtered_stderr.log`.
    pub(crate) duplicate_stderr_filters: Vec<String>,
    /// Prefix of a line on the console, with `${role_name}`, `${local_rank}`, `${rank}` and `${hostname}` replaced;
    /// absent means `[<role><local rank>]:`.
    pub(crate) prefix_template: Option<String>,
    /// Whether the workers' output reaches the console at all.
    pub(crate) console: bool,
}
