// SPDX-License-Identifier: Apache-2.0
//! The table of options.

use super::option::{Default, Group, Key, Kind, OptionSpec};

/// The spec of `key`.
pub(crate) fn spec(key: Key) -> &'static OptionSpec {
    // The table is in the order of `Key`; a test holds it to that.
    &OPTIONS[key as usize]
}

/// The spec of the option with this flag.
pub(crate) fn by_name(name: &str) -> Option<&'static OptionSpec> {
    OPTIONS.iter().find(|spec| spec.name == name)
}

/// The spec of the option that this flag turns off.
pub(crate) fn by_negation(name: &str) -> Option<&'static OptionSpec> {
    let option = by_name(name.strip_prefix("no-")?)?;
    option.negation().map(|_| option)
}

const fn option(key: Key, name: &'static str, group: Group, doc: &'static str) -> OptionSpec {
    OptionSpec {
        key,
        name,
        short: None,
        value_name: "TEXT",
        kind: Kind::Text,
        group,
        default: Default::Unset,
        torchrun_default: None,
        doc,
    }
}

impl OptionSpec {
    const fn kind(mut self, kind: Kind, value_name: &'static str) -> Self {
        self.kind = kind;
        self.value_name = value_name;
        self
    }

    const fn short(mut self, short: char) -> Self {
        self.short = Some(short);
        self
    }

    const fn default(mut self, value: &'static str) -> Self {
        self.default = Default::Value(value);
        self
    }

    const fn described(mut self, words: &'static str) -> Self {
        self.default = Default::Described(words);
        self
    }

    const fn torchrun(mut self, default: Default) -> Self {
        self.torchrun_default = Some(default);
        self
    }
}

/// Every option, in the order of [`Key`].
pub(crate) static OPTIONS: [OptionSpec; 72] = [
    option(
        Key::Job,
        "job",
        Group::Job,
        "Name of the job: at most 64 letters, digits, dots, dashes and underscores. It names the log directory and \
         the control socket, and `status`, `stop` and `restart` find the job by it. On several nodes it must be given, \
         the same on each, unless Slurm gives it.",
    )
    .kind(Kind::Text, "NAME")
    .described("name of the program or script, and six random characters; slurm-JOB.STEP in a Slurm step"),
    option(
        Key::NodeName,
        "node-name",
        Group::Job,
        "Name of this node in messages, in the journal and in STEADFAST_NODE. No two nodes of a job may have the same.",
    )
    .kind(Kind::Text, "NAME")
    .described("the host's name, or Slurm's"),
    option(
        Key::NprocPerNode,
        "nproc-per-node",
        Group::Job,
        "Workers on this node: a number, `gpu` (one for each visible GPU, an error if there is none), `cpu` (one for \
         each usable CPU), or `auto` (GPUs if there are any, else CPUs).",
    )
    .kind(Kind::Text, "N|auto|gpu|cpu")
    .default("1"),
    option(
        Key::Role,
        "role",
        Group::Job,
        "ROLE_NAME of the workers, and the first part of the prefix of their lines on the console.",
    )
    .kind(Kind::Text, "NAME")
    .default("default"),
    option(Key::WorkingDir, "working-dir", Group::Job, "Directory that the workers start in.")
        .kind(Kind::Text, "DIR")
        .described("the current directory"),
    option(
        Key::Stdin,
        "stdin",
        Group::Job,
        "Standard input of the workers: `null` (empty) or `inherit` (the supervisor's own).",
    )
    .kind(Kind::Text, "null|inherit")
    .default("null")
    .torchrun(Default::Value("inherit")),
    option(
        Key::MasterAddr,
        "master-addr",
        Group::Job,
        "MASTER_ADDR for the workers, taken as it is. For a job on one node; on several it is the --address of the node \
         that has rank 0.",
    )
    .kind(Kind::Text, "HOST")
    .described("an address of this node"),
    option(
        Key::MasterPort,
        "master-port",
        Group::Job,
        "MASTER_PORT for the workers, taken as it is. A fixed port can still be in use by what the previous \
         generation left behind; without this option every generation gets a new one.",
    )
    .kind(Kind::Integer, "PORT")
    .described("a free port for each generation"),
    option(
        Key::VirtualLocalRank,
        "virtual-local-rank",
        Group::Job,
        "Give every worker LOCAL_RANK=0 and make only its own GPU visible to it.",
    )
    .kind(Kind::Switch, "true|false")
    .default("false"),
    option(
        Key::CoreSize,
        "core-size",
        Group::Job,
        "Size limit of a worker's core dump: bytes (`0`, `512M`, `16G`), `unlimited`, or `inherit`. A worker with much \
         memory takes seconds to dump core, and the restart waits for it.",
    )
    .kind(Kind::Text, "SIZE")
    .default("0"),
    option(
        Key::Cgroup,
        "cgroup",
        Group::Job,
        "Cgroup of the workers: `auto` gives them one of their own where a cgroup v2 can be made, so that no process of \
         theirs can outlive them; `off` relies on sessions and the process tree alone.",
    )
    .kind(Kind::Text, "auto|off")
    .default("auto"),
    option(
        Key::Hook,
        "hook",
        Group::Job,
        "Whether Python processes of the workers get the hook (through PYTHONPATH), which sees steps, checkpoints and \
         evaluations, leaves a structured error file and shows stacks. It changes nothing in the training. \
         `--no-hook` turns it off.",
    )
    .kind(Kind::Switch, "true|false")
    .default("true"),
    option(
        Key::Nnodes,
        "nnodes",
        Group::Nodes,
        "Number of nodes that run workers, or MIN:MAX. With MIN:MAX the job starts as soon as it can with MIN nodes or \
         more, goes on with fewer when one is lost, and grows again. More than 1 needs --coord.",
    )
    .kind(Kind::Text, "N|MIN:MAX")
    .described("1; the nodes of the Slurm step or of --hosts less --spares, where there are several"),
    option(
        Key::Spares,
        "spares",
        Group::Nodes,
        "Nodes beyond the largest number of --nnodes that stand by, to take the place of one that is lost. A job \
         that starts waits a while for that many; nodes that come beyond it stand by as well.",
    )
    .kind(Kind::Integer, "N")
    .default("0"),
    option(
        Key::NodeMultiple,
        "node-multiple",
        Group::Nodes,
        "The number of nodes that run workers is always a multiple of this: for models that are spread over several \
         nodes.",
    )
    .kind(Kind::Integer, "K")
    .default("1"),
    option(
        Key::WaitForNodes,
        "wait-for-nodes",
        Group::Nodes,
        "How long to wait when there are fewer nodes than the job needs, at the start and later. Then the job ends with \
         exit code 75.",
    )
    .kind(Kind::Duration, "DURATION")
    .default("15m"),
    option(
        Key::ShrinkAfter,
        "shrink-after",
        Group::Nodes,
        "How long to wait for another node when one is lost and no spare is there, before the job goes on with fewer.",
    )
    .kind(Kind::Duration, "DURATION")
    .default("30s"),
    option(
        Key::Grow,
        "grow",
        Group::Nodes,
        "When a job that runs on fewer nodes than --nnodes allows takes in new ones: `at-checkpoint` (after the next \
         checkpoint, so that no step is lost), `immediately`, or `never` (it never gets larger than it was, not even when it \
         restarts for another reason). Unless `never`, a restart for another reason takes them in, too.",
    )
    .kind(Kind::Text, "never|at-checkpoint|immediately")
    .default("at-checkpoint"),
    option(
        Key::Witness,
        "witness",
        Group::Nodes,
        "Whether training steps prove that all nodes live, whatever the coordination says: in synchronous training no \
         rank can step without the others. `auto` trusts steps once all ranks were seen to step together; `on` always \
         does; with `off` the lease alone decides, which is right for local SGD and parameter servers.",
    )
    .kind(Kind::Text, "auto|on|off")
    .default("auto"),
    option(
        Key::Lease,
        "lease",
        Group::Nodes,
        "Silence after which a node counts as lost; its own supervisor has ended its workers by then. At least 2s.",
    )
    .kind(Kind::Duration, "DURATION")
    .default("10s"),
    option(
        Key::WitnessLease,
        "witness-lease",
        Group::Nodes,
        "The lease while training steps are a witness (--witness): it can be short then, since it ends no healthy \
         training. At least 2s, and no longer than --lease.",
    )
    .kind(Kind::Duration, "DURATION")
    .default("2s"),
    option(
        Key::Address,
        "address",
        Group::Nodes,
        "Name or address, without a port, by which the other nodes reach this one: MASTER_ADDR where it has rank 0, and \
         where the supervisors talk to each other.",
    )
    .kind(Kind::Text, "HOST")
    .described("the node's name under Slurm; its host in --hosts; else the address from which it reaches etcd"),
    option(
        Key::NodeRank,
        "node-rank",
        Group::Nodes,
        "The place among the nodes that this one would like to have, from 0. Without it, nodes are ordered by topology \
         and by name, numbers in names as numbers.",
    )
    .kind(Kind::Integer, "RANK")
    .described("SLURM_NODEID in a Slurm step"),
    option(
        Key::Topology,
        "topology",
        Group::Nodes,
        "Where this node is, as LEVEL=NAME, widest level first, such as `rack=r1,nvlink=n3`: neighbours get \
         neighbouring ranks, and a lost node is replaced by the nearest spare.",
    )
    .kind(Kind::List, "LEVEL=NAME,...")
    .described("SLURM_TOPOLOGY_ADDR in a Slurm step"),
    option(
        Key::Scheduler,
        "scheduler",
        Group::Nodes,
        "Where nodes, ranks and the job's name come from when they are not given: `auto` takes them from Slurm in a job \
         step on several nodes; `none` from nowhere.",
    )
    .kind(Kind::Text, "auto|none")
    .default("auto"),
    option(
        Key::Coord,
        "coord",
        Group::Coordination,
        "Where the nodes of the job meet: `etcd://HOST:PORT,HOST:PORT/PREFIX` (`etcds` for TLS) in an etcd that is \
         there already, `managed` in one that the supervisors run among themselves, `embedded` nowhere, which is \
         enough for one node. In a configuration file it holds for jobs on several nodes alone.",
    )
    .kind(Kind::Text, "embedded|managed|etcd://...")
    .described("embedded; managed in a Slurm step on several nodes"),
    option(
        Key::CoordCa,
        "coord-ca",
        Group::Coordination,
        "PEM file with the certificates that etcd's own must come from, with --coord etcds://.",
    )
    .kind(Kind::Text, "FILE")
    .described("the certificates that the system trusts"),
    option(
        Key::CoordCert,
        "coord-cert",
        Group::Coordination,
        "PEM file with the certificate to show etcd, with --coord etcds://. Goes with --coord-key.",
    )
    .kind(Kind::Text, "FILE"),
    option(
        Key::CoordSecret,
        "coord-key",
        Group::Coordination,
        "PEM file with the private key of --coord-cert.",
    )
    .kind(Kind::Text, "FILE"),
    option(
        Key::CoordUser,
        "coord-user",
        Group::Coordination,
        "User of etcd to log in as. The password is in --coord-password-file, or else in the environment variable \
         STEADFAST_COORD_PASSWORD, which the workers do not get to see.",
    )
    .kind(Kind::Text, "NAME"),
    option(
        Key::CoordPasswordFile,
        "coord-password-file",
        Group::Coordination,
        "File with the password of --coord-user and nothing else. It is read again for each login.",
    )
    .kind(Kind::Text, "FILE"),
    option(
        Key::Hosts,
        "hosts",
        Group::Coordination,
        "The nodes of the job for --coord managed, by names or addresses that all of them can reach, in an order that is \
         the same on all: `a,b,c`, or a Slurm host list. A node finds itself by --node-name, --address, the host's \
         name, or --node-rank.",
    )
    .kind(Kind::Text, "HOST,...")
    .described("the nodes of the Slurm step"),
    option(
        Key::EtcdServers,
        "etcd-servers",
        Group::Coordination,
        "Nodes that run an etcd server with --coord managed: 1, 3 or 5, from the first host on.",
    )
    .kind(Kind::Integer, "1|3|5")
    .described("3, or 1 with fewer than 3 hosts"),
    option(
        Key::MaxRestarts,
        "max-restarts",
        Group::Restart,
        "Restarts without progress in between before the job is given up. 0 means that the first failure ends it.",
    )
    .kind(Kind::Integer, "N")
    .default("3")
    .torchrun(Default::Value("0")),
    option(
        Key::RestartGrace,
        "restart-grace",
        Group::Restart,
        "Time between SIGTERM and SIGKILL for the workers that are stopped in order to be restarted. No longer than \
         --stop-grace.",
    )
    .kind(Kind::Duration, "DURATION")
    .default("5s"),
    option(
        Key::StopGrace,
        "stop-grace",
        Group::Restart,
        "Time between SIGTERM and SIGKILL when the job is stopped for good. Leave room for a last checkpoint, and stay \
         below what the scheduler allows (Slurm's KillWait, Kubernetes' terminationGracePeriodSeconds).",
    )
    .kind(Kind::Duration, "DURATION")
    .default("30s"),
    option(
        Key::TimeLimitLead,
        "time-limit-lead",
        Group::Restart,
        "How long before the scheduler's time limit (SLURM_JOB_END_TIME) the job ends by itself: the workers are asked for a \
         checkpoint and stopped within this time, and the exit code is the one for running the job again. Without it the \
         job goes on until the scheduler's signal.",
    )
    .kind(Kind::Duration, "DURATION"),
    option(
        Key::TimeLimitSignal,
        "time-limit-signal",
        Group::Restart,
        "Signal by which the scheduler says that time is nearly up (Slurm's --signal): `SIGUSR1` or `SIGUSR2`. When it comes, the \
         workers are asked for a checkpoint and stopped before the time limit (within `stop_grace`, where the scheduler does not \
         say when that is), and the exit code is the one for running the job again. Without it the workers get both signals.",
    )
    .kind(Kind::Text, "SIGUSR1|SIGUSR2"),
    option(
        Key::Stall,
        "stall",
        Group::Restart,
        "What is done when the training makes no steps any more: `auto` (evidence is taken, the rank that holds up the \
         others is named, and the workers are started again), `report` (the same without the restart) or `off`.",
    )
    .kind(Kind::Text, "auto|report|off")
    .default("auto"),
    option(
        Key::StallAfter,
        "stall-after",
        Group::Restart,
        "How long the training may go on without a step before it counts as stalled, such as `30s`, or for each thing \
         that it can be busy with: `init=10m,train=30s,checkpoint=5m,eval=1h,load=10m,compile=30m`. What is not named is \
         learned from the job's own steps.",
    )
    .kind(Kind::List, "[NAME=]DURATION,...")
    .described("learned from the job's own steps"),
    option(
        Key::OnNan,
        "on-nan",
        Group::Restart,
        "What is done when the loss is no number any more or stays far above all that it was: `report` (it is said, and kept \
         with the job's findings), `restart` (the workers are started again, from the last checkpoint where the program \
         does that) or `end` (the job ends: nothing would come of it).",
    )
    .kind(Kind::Text, "report|restart|end")
    .default("report"),
    option(
        Key::FaultRules,
        "fault-rules",
        Group::Restart,
        "TOML file with rules of your own for what lines of output mean, as `steadfast diagnose --rules` takes it; they go \
         before those that are built in.",
    )
    .kind(Kind::Text, "FILE"),
    option(
        Key::SignalsToHandle,
        "signals-to-handle",
        Group::Restart,
        "Signals that stop the job in good order when the supervisor gets them; the workers get the same signal.",
    )
    .kind(Kind::List, "SIGNAL,...")
    .default("SIGTERM,SIGINT,SIGHUP,SIGQUIT"),
    option(
        Key::ExitCode,
        "exit-code",
        Group::Restart,
        "Other exit codes than the documented ones, such as `infra=80,node=81`. Names: `infra` (75), `node` (76), \
         `coord` (69), and `program` (the failed worker's own code, written `pass`; 1 under torchrun).",
    )
    .kind(Kind::List, "NAME=N,...")
    .described("the documented codes"),
    option(
        Key::CheckpointDir,
        "checkpoint-dir",
        Group::Checkpoints,
        "Directory that the job's checkpoints are in. The workers are told which is the newest whole one \
         (STEADFAST_RESUME_STEP, STEADFAST_RESUME_PATH); torn ones that are newer are renamed before the workers start, \
         so that a program that resumes from the latest does not take one. Nothing is deleted without --keep. On several nodes it must be one \
         directory that all of them share.",
    )
    .kind(Kind::Text, "DIR"),
    option(
        Key::CheckpointLayout,
        "checkpoint-layout",
        Group::Checkpoints,
        "How the checkpoints are laid out: `auto` looks at them, a name is the layout itself (`dcp`, `torch`, `megatron`, \
         `deepspeed`, `huggingface`, `lightning`, `orbax`, `nemo`), and a path is a rule in a TOML file.",
    )
    .kind(Kind::Text, "auto|NAME|FILE")
    .default("auto"),
    option(
        Key::CheckpointSignal,
        "checkpoint-signal",
        Group::Checkpoints,
        "Signal upon which the program saves as soon as it can, such as `SIGUSR1`. It is sent to every rank before the workers \
         are stopped on purpose, and upon `steadfast checkpoint`. Not needed for programs that ask by themselves \
         (`steadfast.should_checkpoint()`), nor where the signal is the one that stops them.",
    )
    .kind(Kind::Text, "SIGNAL"),
    option(
        Key::CheckpointFile,
        "checkpoint-file",
        Group::Checkpoints,
        "File that asks the program for a checkpoint, for programs that look for one: it is made when one is wanted, on each \
         node, and removed when that is over. With --checkpoint-dir, which tells when it is.",
    )
    .kind(Kind::Text, "FILE"),
    option(
        Key::CheckpointEvery,
        "checkpoint-every",
        Group::Checkpoints,
        "After how long without a committed checkpoint the workers are asked for one: a duration, or `auto` for the interval \
         with which most of the time is kept, from what checkpoints cost here and how often the job fails. For programs that \
         ask by themselves (`steadfast.should_checkpoint()`). `never`: the program alone decides.",
    )
    .kind(Kind::Text, "DURATION|auto|never")
    .default("never"),
    option(
        Key::CheckpointTimeout,
        "checkpoint-timeout",
        Group::Checkpoints,
        "How long a checkpoint may take that was asked for before a restart or a growth of the job, or by `steadfast \
         checkpoint`. Before a stop, three quarters of the grace are what it may take (all but 5 s of a longer one).",
    )
    .kind(Kind::Duration, "DURATION")
    .default("10m"),
    option(
        Key::FixTracker,
        "fix-tracker",
        Group::Checkpoints,
        "Whether a tracker (Megatron's latest_checkpointed_iteration.txt, DeepSpeed's `latest`) that names another checkpoint \
         than the newest whole one is corrected before the workers start. A copy of it is kept.",
    )
    .kind(Kind::Switch, "true|false")
    .default("false"),
    option(
        Key::Keep,
        "keep",
        Group::Checkpoints,
        "How many of the newest whole checkpoints are kept. Older ones are deleted, but only once a newer one is committed: \
         whole, and on stable storage on every node. The last committed one is never deleted, nor are torn ones or one that is \
         in use.",
    )
    .kind(Kind::Integer, "N")
    .described("all"),
    option(
        Key::LogDir,
        "log-dir",
        Group::Output,
        "Directory for the logs of all jobs. Each job gets a directory of its own in it.",
    )
    .kind(Kind::Text, "DIR")
    .described("$XDG_STATE_HOME/steadfast, else ~/.local/state/steadfast, else /tmp/steadfast-UID"),
    option(
        Key::Redirects,
        "redirects",
        Group::Output,
        "Streams that go to files: 0 none, 1 stdout, 2 stderr, 3 both; or for single local ranks, such as `0:3,12:1`.",
    )
    .short('r')
    .kind(Kind::Text, "STREAMS")
    .default("3")
    .torchrun(Default::Value("0")),
    option(
        Key::Tee,
        "tee",
        Group::Output,
        "Streams that go to files and, with a prefix, to the console; written as for --redirects.",
    )
    .short('t')
    .kind(Kind::Text, "STREAMS")
    .default("3")
    .torchrun(Default::Value("0")),
    option(
        Key::Console,
        "console",
        Group::Output,
        "Whether the workers' output reaches the console at all.",
    )
    .kind(Kind::Switch, "true|false")
    .default("true"),
    option(
        Key::LocalRanksFilter,
        "local-ranks-filter",
        Group::Output,
        "Show only these local ranks on the console. The files are not affected.",
    )
    .kind(Kind::List, "RANK,...")
    .described("all ranks"),
    option(
        Key::DuplicateStdoutFilters,
        "duplicate-stdout-filters",
        Group::Output,
        "Lines of standard output that contain one of these texts also go to filtered_stdout.log.",
    )
    .kind(Kind::List, "TEXT,..."),
    option(
        Key::DuplicateStderrFilters,
        "duplicate-stderr-filters",
        Group::Output,
        "Lines of standard error that contain one of these texts also go to filtered_stderr.log.",
    )
    .kind(Kind::List, "TEXT,..."),
    option(
        Key::LogLinePrefixTemplate,
        "log-line-prefix-template",
        Group::Output,
        "Prefix of the workers' lines on the console, in which ${role_name}, ${local_rank}, ${rank} and ${hostname} \
         are replaced.",
    )
    .kind(Kind::Text, "TEMPLATE")
    .described("[${role_name}${local_rank}]:"),
    option(
        Key::ProgressRegex,
        "progress-regex",
        Group::Output,
        "Regular expression that finds the step number in a line of output: its capture named `step`, else its first \
         capture, such as `iteration +(\\d+)`.",
    )
    .kind(Kind::Text, "REGEX"),
    option(
        Key::Journal,
        "journal",
        Group::Output,
        "File that gets one JSON line for each thing that happens to the job.",
    )
    .kind(Kind::Text, "FILE")
    .described("journal.jsonl in the job's log directory"),
    option(
        Key::RuntimeDir,
        "runtime-dir",
        Group::Supervisor,
        "Directory of the control sockets. `status`, `stop` and `restart` must be given the same one.",
    )
    .kind(Kind::Text, "DIR")
    .described("$XDG_RUNTIME_DIR/steadfast, else /run/steadfast for root, else /tmp/steadfast-UID"),
    option(
        Key::AgentHeartbeat,
        "agent-heartbeat",
        Group::Supervisor,
        "How often the agent process tells the keeper process that it is well.",
    )
    .kind(Kind::Duration, "DURATION")
    .default("1s"),
    option(
        Key::AgentWatchdog,
        "agent-watchdog",
        Group::Supervisor,
        "Silence after which the keeper takes the agent for hung and replaces it; the workers go on meanwhile. At \
         least twice --agent-heartbeat; on several nodes at most half of --lease, which an unset one follows.",
    )
    .kind(Kind::Duration, "DURATION")
    .default("10s"),
    option(
        Key::KernelLog,
        "kernel-log",
        Group::Node,
        "Kernel log in which GPU errors (XIDs), lost GPUs and kills for lack of memory are looked for: `auto` is the node \
         service (`steadfast health serve`) where it runs, else /dev/kmsg; `off` is none, and a path is the service's \
         socket, or a named pipe or a file that somebody else fills, such as `journalctl -kf`. It takes root or CAP_SYSLOG \
         to read /dev/kmsg; without it and without the service the job goes on, and is told less.",
    )
    .kind(Kind::Text, "auto|off|FILE")
    .default("auto"),
    option(
        Key::KernelLogTrust,
        "kernel-log-trust",
        Group::Node,
        "Whose lines of the kernel log are acted on: `kernel` takes only what the kernel itself has logged; `anyone` also \
         what programs wrote there, as tests of the recovery do.",
    )
    .kind(Kind::Text, "kernel|anyone")
    .default("kernel"),
    option(
        Key::XidPolicy,
        "xid-policy",
        Group::Node,
        "TOML file that changes what is done about GPU errors (XIDs and SXIDs), as `steadfast xid --policy` takes it.",
    )
    .kind(Kind::Text, "FILE"),
    option(
        Key::Nvml,
        "nvml",
        Group::Node,
        "NVIDIA's management library, which tells of GPU errors and of what GPUs need: `auto` uses it where there is a \
         driver, `off` does not, and a path is the library itself. It runs in a process of its own: a call that hangs \
         holds up nothing.",
    )
    .kind(Kind::Text, "auto|off|FILE")
    .default("auto"),
    option(
        Key::SelfCheck,
        "self-check",
        Group::Node,
        "Whether the node is looked at with the checks of the profile `job` (`steadfast check`): when its supervisor starts, \
         whenever workers are stopped to be restarted, and from time to time while it is a spare. A node that is found \
         unfit gets no ranks while it is; what was wrong already when the job began does not count, and a check that \
         fails to tell counts against nobody. `auto` does it where there are GPUs, InfiniBand or a configuration of checks.",
    )
    .kind(Kind::Text, "auto|on|off")
    .default("auto"),
    option(
        Key::SelfCheckEvery,
        "self-check-every",
        Group::Node,
        "Time between two looks at a node that is a spare. It gets ranks only while its last look is not older than three \
         times this.",
    )
    .kind(Kind::Duration, "DURATION")
    .default("1m"),
    option(
        Key::SelfCheckWait,
        "self-check-wait",
        Group::Node,
        "How long a restart waits for the look at the node at most, counted from when its workers began to be stopped. A \
         fault that is found later ends the generation that has begun meanwhile.",
    )
    .kind(Kind::Duration, "DURATION")
    .default("2s"),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_key_finds_its_own_row() {
        for (row, option) in OPTIONS.iter().enumerate() {
            assert_eq!(option.key as usize, row, "{}", option.name);
            assert_eq!(spec(option.key).name, option.name);
        }
    }

    #[test]
    fn rows_are_written_alike() {
        let mut names = BTreeSet::new();
        for option in &OPTIONS {
            assert!(names.insert(option.name), "{} is there twice", option.name);
            assert!(
                option
                    .name
                    .chars()
                    .all(|c| c.is_ascii_lowercase() || c == '-'),
                "{}",
                option.name
            );
            assert!(option.doc.ends_with('.'), "{}", option.name);
            assert!(
                !option.doc.contains("  ") && !option.doc.contains('\n'),
                "{}",
                option.name
            );
        }
    }

    #[test]
    fn groups_are_not_mixed() {
        assert!(OPTIONS.is_sorted_by_key(|option| option.group));
    }
}
