// SPDX-License-Identifier: Apache-2.0

mod check;
mod nodes;
mod slurm;

use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;

use super::{Action, Control, Failure, Invocation, parse};
use crate::config::Host;
use crate::settings::{InnerLauncher, Mode, Settings, Std};
use crate::slurm::hostlist::command::Form;

/// A machine with a few programs, for one test.
struct Machine {
    root: tempfile::TempDir,
    host: Host,
}

impl Machine {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let bin = root.path().join("bin");
        std::fs::create_dir(&bin).unwrap();
        std::fs::write(bin.join("notes.txt"), "").unwrap();
        let host = Host::for_test(root.path());
        Self { root, host }
            .with_program("python")
            .with_program("torchrun")
    }

    fn with_program(self, name: &str) -> Self {
        let path = self.root.path().join("bin").join(name);
        std::fs::write(&path, "").unwrap();
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
        self
    }

    fn with(mut self, name: &str, value: &str) -> Self {
        self.host = self.host.with(name, value);
        self
    }

    fn parse(&self, line: &[&str]) -> Result<Invocation, Failure> {
        let words: Vec<OsString> = std::iter::once("steadfast")
            .chain(line.iter().copied())
            .map(OsString::from)
            .collect();
        parse(&self.host, &words)
    }

    fn job(&self, line: &[&str]) -> Settings {
        match self.parse(line) {
            Ok(Invocation::Run(settings)) => *settings,
            other => panic!("{other:?}"),
        }
    }

    /// What the user sees, with the directories of the test and of the build cut down.
    fn error(&self, line: &[&str]) -> String {
        let text = match self.parse(line) {
            Err(Failure::Config(error)) => error.render(),
            Err(Failure::Usage(error)) => error.render().to_string(),
            other => panic!("{other:?}"),
        };
        text.replace(&self.root.path().display().to_string(), "ROOT")
    }

    fn print(&self, line: &[&str]) -> String {
        match self.parse(line) {
            Ok(Invocation::Print(text)) => text,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_command_alone_is_enough() {
    let machine = Machine::new();
    let settings = machine.job(&["run", "--", "python", "src/train.py", "--lr", "3"]);
    let root = machine.root.path();
    assert_eq!(settings.mode, Mode::Run);
    assert_eq!(settings.command.program, root.join("bin/python"));
    assert_eq!(
        settings.command.argv,
        ["python", "src/train.py", "--lr", "3"]
    );
    assert_eq!((settings.workers, settings.max_restarts), (1, 3));
    assert_eq!(
        (settings.restart_grace, settings.stop_grace),
        (Duration::from_secs(5), Duration::from_secs(30))
    );
    assert_eq!(
        (settings.log.redirects.get(0), settings.log.tee.get(7)),
        (Std::Both, Std::Both)
    );
    assert!(settings.job.starts_with("train-"), "{}", settings.job);
    assert_eq!(settings.run_id, settings.job);
    assert_eq!(settings.node, "host7");
    assert_eq!(
        settings.log.run_dir,
        root.join("home/.local/state/steadfast").join(&settings.job)
    );
    assert_eq!(settings.journal, settings.log.run_dir.join("journal.jsonl"));
    assert_eq!(settings.runtime_root, Path::new("/tmp/steadfast-1000"));
    assert_eq!(settings.signals, [15, 2, 1, 3]);
    assert_eq!(settings.notes, [""; 0]);
}

#[test]
fn settings_survive_the_way_to_the_agent() {
    let machine = Machine::new();
    let settings = machine.job(&[
        "run",
        "--tee",
        "0:1,12:3",
        "--stop-grace=1m30s",
        "--",
        "python",
        "x.py",
    ]);
    let json = serde_json::to_string(&settings).unwrap();
    assert_eq!(serde_json::from_str::<Settings>(&json).unwrap(), settings);
}

#[test]
fn the_command_starts_at_its_first_word_with_or_without_dashes() {
    let machine = Machine::new();
    let settings = machine.job(&[
        "run",
        "--max-restarts",
        "1",
        "python",
        "x.py",
        "--max-restarts",
        "9",
    ]);
    assert_eq!(settings.max_restarts, 1);
    assert_eq!(
        settings.command.argv,
        ["python", "x.py", "--max-restarts", "9"]
    );
    assert_eq!(
        machine.job(&["run", "python", "--help"]).command.argv,
        ["python", "--help"]
    );
    let settings = machine.job(&[
        "run",
        "--console=false",
        "--virtual-local-rank",
        "--",
        "python",
    ]);
    assert!(settings.virtual_local_rank && !settings.log.console);
}

#[test]
fn a_flag_goes_before_the_environment() {
    let machine = Machine::new()
        .with("STEADFAST_MAX_RESTARTS", "5")
        .with("STEADFAST_ROLE", "");
    assert_eq!(machine.job(&["run", "--", "python"]).max_restarts, 5);
    assert_eq!(
        machine
            .job(&["run", "--max-restarts=6", "--", "python"])
            .max_restarts,
        6
    );
    assert_eq!(machine.job(&["run", "--", "python"]).role, "default");
}

#[test]
fn an_implicit_restart_grace_gives_way_to_a_short_stop_grace() {
    let machine = Machine::new();
    assert_eq!(
        machine
            .job(&["run", "--stop-grace", "2", "--", "python"])
            .restart_grace,
        Duration::from_secs(2)
    );
}

#[test]
fn only_one_restart_loop_is_armed() {
    let machine = Machine::new();
    let settings = machine.job(&["run", "--", "torchrun", "--max-restarts=2", "x.py"]);
    assert_eq!(
        (settings.max_restarts, settings.inner_launcher),
        (0, Some(InnerLauncher::Torchrun))
    );
    insta::assert_snapshot!(settings.notes.join("\n"), @"torchrun restarts its workers itself, 2 times at most (`--max-restarts 2`): steadfast will not restart the job; leave that option out to have steadfast do it");
    let settings = machine.job(&["run", "--max-restarts=4", "--", "torchrun", "x.py"]);
    assert_eq!(
        (settings.max_restarts, settings.inner_launcher),
        (4, Some(InnerLauncher::Torchrun))
    );
    insta::assert_snapshot!(machine.error(&["run", "--max-restarts=4", "--", "torchrun", "--max-restarts=2", "x.py"]), @"
    error: `--max-restarts 4` and `--max-restarts 2` of torchrun are both set: only one of the two may restart the workers

    hint: leave the restarts to steadfast: take the option out of the torchrun command line
    ");
}

#[test]
fn several_launchers_are_told() {
    let settings = Machine::new().job(&["run", "--nproc-per-node", "2", "--", "torchrun", "x.py"]);
    insta::assert_snapshot!(settings.notes.join("\n"), @"torchrun starts workers itself, and `--nproc-per-node 2` starts it more than once: give the number to torchrun alone, or use `steadfast torchrun`");
}

#[test]
fn wrong_values_are_named_with_their_place() {
    let machine = Machine::new();
    let error = |flag: &str, value: &str| {
        machine.error(&["run", &format!("{flag}={value}"), "--", "python"])
    };
    let errors: Vec<String> = [
        ("--nproc-per-node", "0"),
        ("--nproc-per-node", "gpu"),
        ("--nnodes", "0"),
        ("--nnodes", "3:2"),
        ("--stop-grace", "10x"),
        ("--tee", "7"),
        ("--progress-regex", "step ("),
        ("--job", "a/b"),
        ("--core-size", "lots"),
        ("--exit-code", "infra=900"),
        ("--master-port", "70000"),
        ("--max-restarts", "-1"),
        ("--signals-to-handle", "SIGKILL"),
        ("--agent-heartbeat", "0"),
        ("--agent-watchdog", "1s"),
        ("--restart-grace", "1m"),
        ("--working-dir", "/nowhere"),
        ("--log-dir", "/proc/version/x"),
    ]
    .into_iter()
    .map(|(flag, value)| error(flag, value))
    .collect();
    insta::assert_snapshot!(errors.concat(), @"
    error: `--nproc-per-node 0`: must be a whole number of at least 1, or `auto`, `gpu` or `cpu`
    error: `--nproc-per-node gpu`: no GPU is visible on this machine
    error: `--nnodes 0`: must be N or MIN:MAX, with numbers of at least 1
    error: `--nnodes 3:2`: the smallest number of nodes, 3, is above the largest, 2
    error: `--stop-grace 10x`: unknown unit `x` (use ms, s, m, h or d)
    error: `--tee 7`: `7` is not 0 (none), 1 (stdout), 2 (stderr) or 3 (both)
    error: `--progress-regex step (`: not a regular expression: unclosed group
    error: `--job a/b`: a name is made of letters, digits, `.`, `-` and `_`, and does not start with `.`
    error: `--core-size lots`: must be a size such as `0`, `512M` or `16G`, or `unlimited`, or `inherit`
    error: `--exit-code infra=900`: `900` is not an exit code from 1 to 255
    error: `--master-port 70000`: must be a port from 1 to 65535
    error: `--max-restarts -1`: must be a whole number of at least 0
    error: `--signals-to-handle SIGKILL`: SIGKILL cannot be handled
    error: `--agent-heartbeat 0`: must be at least 10ms
    error: `--agent-heartbeat 1s` (the default) and `--agent-watchdog 1s` cannot both hold: the watchdog must be at least twice the heartbeat, or it kills a healthy agent
    error: `--restart-grace 1m` and `--stop-grace 30s` (the default) cannot both hold: a stop that comes during a restart would take longer than it may
    error: `--working-dir /nowhere`: /nowhere: there is no such directory
    error: `--log-dir /proc/version/x`: /proc/version/x: /proc/version is not a directory
    ");
}

#[test]
fn a_value_from_the_environment_is_named_as_such() {
    let machine = Machine::new().with("STEADFAST_STOP_GRACE", "soon");
    insta::assert_snapshot!(machine.error(&["run", "--", "python"]), @"error: `STEADFAST_STOP_GRACE=soon`: not a duration such as `30s`, `1m30s` or `500ms`");
}

#[test]
fn a_command_that_cannot_be_run_is_refused() {
    let machine = Machine::new();
    insta::assert_snapshot!(machine.error(&["run"]), @"
    error: no command to run was given

    hint: steadfast run [OPTIONS] -- python train.py
    ");
    insta::assert_snapshot!(machine.error(&["run", "--", "pyhton", "x.py"]), @"
    error: command `pyhton` was not found in PATH (ROOT/bin)

    hint: give its path, or add its directory to PATH before starting steadfast
    ");
    insta::assert_snapshot!(machine.error(&["run", "--", "notes.txt"]), @"error: command `notes.txt` cannot be run: ROOT/bin/notes.txt: it is not executable (chmod +x makes it so)");
    insta::assert_snapshot!(machine.error(&["run", "--", "./train.sh"]), @"error: command `./train.sh` cannot be run: there is no such file");
    insta::assert_snapshot!(machine.error(&["run", "--", "./bin"]), @"error: command `./bin` cannot be run: it is a directory");
}

#[test]
fn usage_errors_suggest() {
    let machine = Machine::new();
    insta::assert_snapshot!(machine.error(&["run", "--max-restart", "3", "--", "python"]), @"
    error: unexpected argument '--max-restart' found

      tip: a similar argument exists: '--max-restarts'
      tip: to pass '--max-restart' as a value, use '-- --max-restart'

    Usage: steadfast run [OPTIONS] -- COMMAND [ARGUMENTS]...

    For more information, try '--help'.
    ");
    insta::assert_snapshot!(machine.error(&["rum"]), @"
    error: unrecognized subcommand 'rum'

      tip: a similar subcommand exists: 'run'

    Usage: steadfast <COMMAND>

    For more information, try '--help'.
    ");
}

#[test]
fn every_failure_but_help_ends_with_78() {
    let machine = Machine::new();
    for line in [
        &["run", "--what"][..],
        &["config", "--tee=9"],
        &["run"],
        &["torchrun", "--what", "x.py"],
        &["status", "--x"],
    ] {
        assert_eq!(machine.parse(line).unwrap_err().report(), 78, "{line:?}");
    }
    for line in [
        &["--help"][..],
        &["run", "--help"],
        &["torchrun", "--help"],
        &["--version"],
    ] {
        assert_eq!(machine.parse(line).unwrap_err().report(), 0, "{line:?}");
    }
}

#[test]
fn control_commands_name_the_job_and_the_directory() {
    let machine = Machine::new().with("STEADFAST_RUNTIME_DIR", "/run/x");
    let Ok(Invocation::Control(control)) = machine.parse(&["stop", "--job", "llama", "--json"])
    else {
        panic!()
    };
    let expected = Control {
        action: Action::Stop,
        job: Some("llama".to_owned()),
        json: true,
        runtime_root: "/run/x".into(),
    };
    assert_eq!(control, expected);
    assert!(matches!(
        machine.parse(&["__agent", "--x"]),
        Ok(Invocation::Agent)
    ));
}

#[test]
fn host_lists_are_taken_as_they_are() {
    let machine = Machine::new();
    let request = |line: &[&str]| match machine.parse(line) {
        Ok(Invocation::HostList(request)) => request,
        other => panic!("{other:?}"),
    };
    let lines = request(&["hostlist", "n[1-2]", "-"]);
    assert_eq!(lines.lists, ["n[1-2]", "-"]);
    assert_eq!(lines.form, Form::Lines);
    assert_eq!(request(&["hostlist", "--json", ""]).form, Form::Json);
    assert_eq!(
        request(&["hostlist", "n2", "n1", "--compress"]).form,
        Form::HostList
    );
    let error = machine.error(&["hostlist", "--json", "--compress", "n1"]);
    assert!(error.contains("cannot be used with"), "{error}");
    assert!(
        machine.error(&["hostlist"]).contains("<LIST>..."),
        "a list is needed"
    );
}

#[test]
fn codes_are_told_apart_by_their_name_or_number() {
    use crate::xid_command::Subject;
    use steadfast_health::xid::Kind;

    let machine = Machine::new();
    let request = |line: &[&str]| match machine.parse(line) {
        Ok(Invocation::Xid(request)) => request,
        other => panic!("{other:?}"),
    };
    for (code, expected) in [
        ("79", Subject::Code(Kind::Xid, 79)),
        ("XID:79", Subject::Code(Kind::Xid, 79)),
        ("24007", Subject::Code(Kind::Sxid, 24_007)),
        ("SXid 24007", Subject::Code(Kind::Sxid, 24_007)),
        ("99999", Subject::Code(Kind::Xid, 99_999)),
        ("-", Subject::Log),
    ] {
        assert_eq!(request(&["xid", code]).subject, expected, "{code}");
    }
    assert_eq!(request(&["xid", "--list"]).subject, Subject::All);
    let log = request(&["xid", "-", "--json", "--policy", "p", "--driver", "R570"]);
    assert!(log.json && log.policy.is_some() && log.driver.is_some());
    for (line, expected) in [
        (&["xid"][..], "--list"),
        (&["xid", "+7"], "a code is a number"),
        (&["xid", "79", "--list"], "cannot be used with"),
        (&["xid", "79", "--policy", "p"], "give it with `-`"),
        (
            &["xid", "79", "--driver", "x"],
            "`x` is not a driver version",
        ),
    ] {
        let error = machine.error(line);
        assert!(error.contains(expected), "{line:?}: {error}");
    }
}

#[test]
fn pages_are_made_for_every_command() {
    let machine = Machine::new();
    for shell in ["bash", "zsh", "fish"] {
        assert!(
            machine
                .print(&["completions", shell])
                .contains("max-restarts"),
            "{shell}"
        );
    }
    assert!(machine.print(&["man"]).contains(".TH steadfast"));
    let written = machine.print(&["man", "--dir", "."]);
    assert!(
        written.contains("steadfast-run.1") && !written.contains("__agent"),
        "{written}"
    );
    assert!(machine.root.path().join("steadfast-torchrun.1").exists());
}

#[test]
fn help_teaches() {
    let machine = Machine::new();
    insta::assert_snapshot!(machine.error(&["--help"]), @"
    Keeps a training job running: watches its workers and restarts them when one fails

    Usage: steadfast <COMMAND>

    Commands:
      run          Run a command, and restart it when it fails
      torchrun     Take torchrun's command line, and run it with steadfast's supervision
      status       Show how a running job is
      stop         Stop a running job in good order
      restart      Stop the workers of a running job and start them again
      drain        Take this node out of a running job, which goes on without it if it can
      checkpoint   Ask a running job for a checkpoint, or tell whole checkpoints from torn ones
      config       Show the options in force and where they come from
      check        Check whether this node is fit for jobs: GPUs, links, mounts, disks, memory, kernel
      hostlist     Expand a Slurm host list, or make one
      plan         Say how often to save, how many spares to keep, and what part of the time is trained
      xid          Explain errors of NVIDIA GPUs (XID) and switches (SXID), or find them in a kernel log
      diagnose     Say what was at fault, from logs, kernel logs and what else was kept
      health       Watch kernel log and GPUs once for the whole node, for jobs that may not
      slurm        Be what slurm.conf points at: prolog, epilog, health check; requeue a job at once
      completions  Print a completion script
      man          Print the manual page, or write all of them to a directory
      help         Print this message or the help of the given subcommand(s)

    Options:
      -h, --help     Print help
      -V, --version  Print version

    Examples:
      steadfast run -- python train.py                     one worker, restarted up to 3 times
      steadfast run --nproc-per-node gpu -- python ddp.py  one worker for each GPU
      steadfast torchrun --nproc-per-node 8 train.py       instead of torchrun, with its flags
      steadfast status                                     how the job is

    `steadfast help COMMAND` explains a command.
    ");
    let run = machine.error(&["run", "-h"]);
    let head: Vec<&str> = run.lines().take(16).collect();
    insta::assert_snapshot!(head.join("\n"), @"
    Run a command, and restart it when it fails

    Usage: steadfast run [OPTIONS] -- COMMAND [ARGUMENTS]...

    Arguments:
      [COMMAND]...  The command and its arguments

    Options:
      -h, --help  Print help (see more with '--help')

    What runs:
          --job <NAME>
              Name of the job: at most 64 letters, digits, dots, dashes and underscores
          --node-name <NAME>
              Name of this node in messages, in the journal and in STEADFAST_NODE
          --nproc-per-node <N|auto|gpu|cpu>
    ");
    for option in &crate::config::table::OPTIONS {
        assert!(
            run.contains(&format!("--{}", option.name)),
            "{}",
            option.name
        );
    }
    let torchrun = machine.error(&["torchrun", "--help"]);
    for flag in &crate::torchrun::flags::FLAGS {
        assert!(
            torchrun.contains(&format!("--{}", flag.name)),
            "{}",
            flag.name
        );
    }
}
