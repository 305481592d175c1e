// SPDX-License-Identifier: Apache-2.0
//! The flags of torchrun.

use crate::config::option::Key;

/// Every flag of torchrun, in the order of [`FLAGS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Flag {
    Nnodes,
    NprocPerNode,
    RdzvBackend,
    RdzvEndpoint,
    RdzvId,
    RdzvConf,
    Standalone,
    MaxRestarts,
    MonitorInterval,
    StartMethod,
    EventLogHandler,
    Role,
    Module,
    NoPython,
    RunPath,
    LogDir,
    Redirects,
    Tee,
    LogLinePrefixTemplate,
    LocalRanksFilter,
    DuplicateStdoutFilters,
    DuplicateStderrFilters,
    NodeRank,
    MasterAddr,
    MasterPort,
    LocalAddr,
    LogsSpecs,
    NumaBinding,
    SignalsToHandle,
    ShutdownTimeout,
    VirtualLocalRank,
    PrintCompletion,
}

/// One flag.
#[derive(Debug)]
pub(crate) struct FlagSpec {
    /// Which flag this is.
    pub(crate) flag: Flag,
    /// Its name without dashes; underscores are taken for the dashes inside as well.
    pub(crate) name: &'static str,
    /// One-letter flag.
    pub(crate) short: Option<char>,
    /// What stands for its value in help texts; absent for a flag without a value.
    pub(crate) value_name: Option<&'static str>,
    /// Whether torchrun also reads it from the environment.
    pub(crate) environment: bool,
    /// The option of steadfast that it sets.
    pub(crate) option: Option<Key>,
    /// The values that torchrun takes; empty if any.
    pub(crate) choices: &'static [&'static str],
    /// What to tell a user who gives it, where it has no effect here.
    pub(crate) no_effect: Option<&'static str>,
    /// Its meaning here.
    pub(crate) doc: &'static str,
}

impl FlagSpec {
    /// The environment variable that torchrun reads for it.
    pub(crate) fn variable(&self) -> String {
        format!("PET_{}", self.name.replace('-', "_").to_uppercase())
    }

    const fn short(mut self, short: char) -> Self {
        self.short = Some(short);
        self
    }

    const fn sets(mut self, key: Key) -> Self {
        self.option = Some(key);
        self
    }

    const fn not_in_environment(mut self) -> Self {
        self.environment = false;
        self
    }

    const fn one_of(mut self, choices: &'static [&'static str]) -> Self {
        self.choices = choices;
        self
    }

    const fn without_effect(mut self, why: &'static str) -> Self {
        self.no_effect = Some(why);
        self
    }
}

/// The spec of a flag.
pub(crate) fn spec(flag: Flag) -> &'static FlagSpec {
    // The table is in the order of `Flag`; a test holds it to that.
    &FLAGS[flag as usize]
}

const fn value(
    flag: Flag,
    name: &'static str,
    value_name: &'static str,
    doc: &'static str,
) -> FlagSpec {
    FlagSpec {
        flag,
        name,
        short: None,
        value_name: Some(value_name),
        environment: true,
        option: None,
        choices: &[],
        no_effect: None,
        doc,
    }
}

const fn switch(flag: Flag, name: &'static str, doc: &'static str) -> FlagSpec {
    let mut spec = value(flag, name, "", doc);
    spec.value_name = None;
    spec
}

/// Every flag of torchrun, in the order of [`Flag`].
pub(crate) static FLAGS: [FlagSpec; 32] = [
    value(
        Flag::Nnodes,
        "nnodes",
        "N|MIN:MAX",
        "Number of nodes; more than one needs --coord",
    )
    .sets(Key::Nnodes),
    value(
        Flag::NprocPerNode,
        "nproc-per-node",
        "N|auto|gpu|cpu",
        "Workers on this node",
    )
    .sets(Key::NprocPerNode),
    value(
        Flag::RdzvBackend,
        "rdzv-backend",
        "NAME",
        "Rendezvous; only whether it is `static` matters",
    ),
    value(
        Flag::RdzvEndpoint,
        "rdzv-endpoint",
        "HOST:PORT",
        "With `static`, on one node: the address that the workers meet at",
    ),
    value(
        Flag::RdzvId,
        "rdzv-id",
        "ID",
        "Name of the run, TORCHELASTIC_RUN_ID of the workers; the job's name on several nodes",
    ),
    value(
        Flag::RdzvConf,
        "rdzv-conf",
        "K=V,...",
        "Taken, without effect",
    )
    .without_effect("the nodes of a job meet through --coord"),
    switch(
        Flag::Standalone,
        "standalone",
        "One node, with a run id and a port of its own",
    ),
    value(
        Flag::MaxRestarts,
        "max-restarts",
        "N",
        "Restarts before the job is given up",
    )
    .sets(Key::MaxRestarts),
    value(
        Flag::MonitorInterval,
        "monitor-interval",
        "SECONDS",
        "Taken, without effect",
    )
    .without_effect("the end of a worker is seen at once, without polling"),
    value(
        Flag::StartMethod,
        "start-method",
        "METHOD",
        "Taken, without effect",
    )
    .one_of(&["spawn", "fork", "forkserver"])
    .without_effect("workers are always started as programs of their own"),
    value(
        Flag::EventLogHandler,
        "event-log-handler",
        "NAME",
        "Taken, without effect",
    )
    .without_effect("events go to the journal"),
    value(Flag::Role, "role", "NAME", "ROLE_NAME of the workers").sets(Key::Role),
    switch(
        Flag::Module,
        "module",
        "The script is a Python module, as with `python -m`",
    )
    .short('m'),
    switch(
        Flag::NoPython,
        "no-python",
        "The script is a program: start it without Python",
    ),
    switch(
        Flag::RunPath,
        "run-path",
        "Run the script with Python's runpy",
    ),
    value(
        Flag::LogDir,
        "log-dir",
        "DIR",
        "Directory for log files; each run gets its own inside",
    )
    .sets(Key::LogDir),
    value(
        Flag::Redirects,
        "redirects",
        "STREAMS",
        "Streams that go to files: 0 none, 1 stdout, 2 stderr, 3 both, or 0:1,12:3",
    )
    .short('r')
    .sets(Key::Redirects),
    value(
        Flag::Tee,
        "tee",
        "STREAMS",
        "Streams that go to files and to the console",
    )
    .short('t')
    .sets(Key::Tee),
    value(
        Flag::LogLinePrefixTemplate,
        "log-line-prefix-template",
        "TEMPLATE",
        "Prefix of lines on the console",
    )
    .sets(Key::LogLinePrefixTemplate),
    value(
        Flag::LocalRanksFilter,
        "local-ranks-filter",
        "RANK,...",
        "Local ranks that are shown on the console",
    )
    .sets(Key::LocalRanksFilter),
    value(
        Flag::DuplicateStdoutFilters,
        "duplicate-stdout-filters",
        "TEXT,...",
        "Lines that also go to filtered_stdout.log",
    )
    .sets(Key::DuplicateStdoutFilters),
    value(
        Flag::DuplicateStderrFilters,
        "duplicate-stderr-filters",
        "TEXT,...",
        "Lines that also go to filtered_stderr.log",
    )
    .sets(Key::DuplicateStderrFilters),
    value(
        Flag::NodeRank,
        "node-rank",
        "RANK",
        "The place among the nodes that this one would like to have",
    )
    .sets(Key::NodeRank),
    value(
        Flag::MasterAddr,
        "master-addr",
        "HOST",
        "With `static`: MASTER_ADDR of the workers; on several nodes, the address of node 0",
    )
    .sets(Key::MasterAddr),
    value(
        Flag::MasterPort,
        "master-port",
        "PORT",
        "With `static`: MASTER_PORT of the workers",
    )
    .sets(Key::MasterPort),
    value(
        Flag::LocalAddr,
        "local-addr",
        "HOST",
        "Address of this node",
    ),
    value(
        Flag::LogsSpecs,
        "logs-specs",
        "NAME",
        "Taken, without effect",
    )
    .not_in_environment()
    .without_effect("it names Python code of torchrun"),
    value(
        Flag::NumaBinding,
        "numa-binding",
        "MODE",
        "Taken, without effect in this version",
    )
    .not_in_environment()
    .one_of(&["node", "socket", "exclusive", "core-complex"])
    .without_effect("workers are not bound to NUMA nodes in this version"),
    value(
        Flag::SignalsToHandle,
        "signals-to-handle",
        "SIGNAL,...",
        "Signals that stop the job in good order",
    )
    .sets(Key::SignalsToHandle),
    value(
        Flag::ShutdownTimeout,
        "shutdown-timeout",
        "SECONDS",
        "Time between SIGTERM and SIGKILL when the job is stopped",
    )
    .sets(Key::StopGrace),
    switch(
        Flag::VirtualLocalRank,
        "virtual-local-rank",
        "LOCAL_RANK=0 and one GPU for every worker",
    )
    .sets(Key::VirtualLocalRank),
    value(
        Flag::PrintCompletion,
        "print-completion",
        "SHELL",
        "Not taken: use `steadfast completions`",
    )
    .not_in_environment(),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::table::OPTIONS;

    #[test]
    fn every_flag_finds_its_own_row() {
        for (row, entry) in FLAGS.iter().enumerate() {
            assert_eq!(entry.flag as usize, row, "{}", entry.name);
            assert_eq!(spec(entry.flag).name, entry.name);
        }
    }

    #[test]
    fn our_own_options_take_no_abbreviation_away_from_torchrun() {
        for option in &OPTIONS {
            let shortens = FLAGS
                .iter()
                .find(|entry| entry.name != option.name && entry.name.starts_with(option.name));
            assert!(
                shortens.is_none(),
                "--{} stands for {shortens:?} in torchrun",
                option.name
            );
        }
    }

    #[test]
    fn flags_with_the_name_of_an_option_set_that_option() {
        for entry in &FLAGS {
            if let Some(option) = OPTIONS.iter().find(|option| option.name == entry.name) {
                assert_eq!(entry.option, Some(option.key), "{}", entry.name);
            }
        }
    }
}
