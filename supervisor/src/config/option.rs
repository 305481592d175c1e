// SPDX-License-Identifier: Apache-2.0
//! What an option is: everything that the parser, `steadfast config`, the sample file and the reference page say
//! about it comes from one [`OptionSpec`].

use crate::settings::Mode;

/// Every option, in the order of [`super::table::OPTIONS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Key {
    Job,
    NodeName,
    NprocPerNode,
    Role,
    WorkingDir,
    Stdin,
    MasterAddr,
    MasterPort,
    VirtualLocalRank,
    CoreSize,
    Cgroup,
    Hook,
    Nnodes,
    Spares,
    NodeMultiple,
    WaitForNodes,
    ShrinkAfter,
    Grow,
    Witness,
    Lease,
    WitnessLease,
    Address,
    NodeRank,
    Topology,
    Scheduler,
    Coord,
    CoordCa,
    CoordCert,
    CoordSecret,
    CoordUser,
    CoordPasswordFile,
    Hosts,
    EtcdServers,
    MaxRestarts,
    RestartGrace,
    StopGrace,
    TimeLimitLead,
    TimeLimitSignal,
    Stall,
    StallAfter,
    OnNan,
    FaultRules,
    SignalsToHandle,
    ExitCode,
    CheckpointDir,
    CheckpointLayout,
    CheckpointSignal,
    CheckpointFile,
    CheckpointEvery,
    CheckpointTimeout,
    FixTracker,
    Keep,
    LogDir,
    Redirects,
    Tee,
    Console,
    LocalRanksFilter,
    DuplicateStdoutFilters,
    DuplicateStderrFilters,
    LogLinePrefixTemplate,
    ProgressRegex,
    Journal,
    RuntimeDir,
    AgentHeartbeat,
    AgentWatchdog,
    KernelLog,
    KernelLogTrust,
    XidPolicy,
    Nvml,
    SelfCheck,
    SelfCheckEvery,
    SelfCheckWait,
}

/// One option of `steadfast run`, as a flag, as an environment variable and as a key of a configuration file.
#[derive(Debug)]
pub(crate) struct OptionSpec {
    /// Which option this is.
    pub(crate) key: Key,
    /// The flag without its dashes. The other two names follow from it.
    pub(crate) name: &'static str,
    /// One-letter flag.
    pub(crate) short: Option<char>,
    /// What stands for the value in help texts.
    pub(crate) value_name: &'static str,
    /// How a value is written in TOML.
    pub(crate) kind: Kind,
    /// Under which heading the option is explained.
    pub(crate) group: Group,
    /// What holds when nothing is said.
    pub(crate) default: Default,
    /// What holds under `steadfast torchrun` instead, where that differs.
    pub(crate) torchrun_default: Option<Default>,
    /// The meaning: a first sentence that stands alone, then the rest. No line breaks.
    pub(crate) doc: &'static str,
}

/// How a value is written in TOML.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A string.
    Text,
    /// A whole number.
    Integer,
    /// `true` or `false`; as a flag, the value may be left out.
    Switch,
    /// A string such as `"30s"`, or a number of seconds.
    Duration,
    /// An array, or a string with commas.
    List,
}

/// The value of an option when nothing is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Default {
    /// This value, written as on the command line.
    Value(&'static str),
    /// A value that is worked out, described in words.
    Described(&'static str),
    /// Nothing.
    Unset,
}

/// Headings under which options are explained.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Group {
    /// What runs.
    Job,
    /// On how many nodes, and what when their number changes.
    Nodes,
    /// Where the nodes meet.
    Coordination,
    /// What happens when it fails or is stopped.
    Restart,
    /// Where it saves.
    Checkpoints,
    /// Where its output goes.
    Output,
    /// The supervisor itself.
    Supervisor,
    /// What the node says about its hardware.
    Node,
}

impl OptionSpec {
    /// The environment variable: `STEADFAST_` and the flag in capitals.
    pub(crate) fn environment(&self) -> String {
        format!("STEADFAST_{}", self.name.replace('-', "_").to_uppercase())
    }

    /// The key in a configuration file: the flag with underscores.
    pub(crate) fn file_key(&self) -> String {
        self.name.replace('-', "_")
    }

    /// The flag without its dashes that turns off a switch which is on by default.
    pub(crate) fn negation(&self) -> Option<String> {
        let on = self.kind == Kind::Switch && self.default == Default::Value("true");
        on.then(|| format!("no-{}", self.name))
    }

    /// The default under `mode`.
    pub(crate) fn default_for(&self, mode: Mode) -> Default {
        match (mode, self.torchrun_default) {
            (Mode::Torchrun, Some(default)) => default,
            _ => self.default,
        }
    }

    /// The first sentence of the meaning, without its full stop.
    pub(crate) fn summary(&self) -> &'static str {
        self.doc
            .split_once(". ")
            .map_or_else(|| self.doc.trim_end_matches('.'), |(first, _)| first)
    }
}

impl Group {
    /// The heading.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Job => "What runs",
            Self::Nodes => "Several nodes",
            Self::Coordination => "Coordination of several nodes",
            Self::Restart => "Failure and stopping",
            Self::Checkpoints => "Checkpoints",
            Self::Output => "Output",
            Self::Supervisor => "Supervisor",
            Self::Node => "Health of the node",
        }
    }
}
