// SPDX-License-Identifier: Apache-2.0
//! What `steadfast slurm` does when slurmd starts it, with a controller that keeps a record of what it is asked.

#![expect(clippy::unwrap_used, reason = "this is test code")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use nix::sys::signal::Signal;
use rustix::time::{ClockId, clock_gettime};
use steadfast_tests::{eventually, is_alive, send, steadfast};
use tempfile::TempDir;

const LOST: &str =
    "NVRM: Xid (PCI:0000:18:00): 79, pid=1, name=python, GPU has fallen off the bus.\n";
const MENDED: &str = "NVRM: Xid (PCI:0000:18:00): 154, GPU recovery action changed from 0x2 (Node Reboot Required) to 0x0 (None)\n";
const FAULT: &str =
    "NVRM: Xid (PCI:0000:18:00): 31, pid=7, name=python, Ch 00000003, MMU Fault: ENGINE GRAPHICS\n";

/// A controller that knows one node and one job, in files.
const SCONTROL: &str = r#"#!/bin/sh
cd "$(dirname "$0")" || exit 9
printf '%s\n' "$*" >> calls
[ -e hang ] && exec sleep 600
[ -e refuse ] && { echo "slurm_update error: Access/permission denied" >&2; exit 1; }
case "$1 $2" in
"show node") cat node ;;
"show job") cat job ;;
"requeue "*) printf '   JobState=PENDING Reason=BeginTime Dependency=(null)\n   Requeue=1 Restarts=1\n' > job ;;
"update JobId="*) printf '   JobState=PENDING Reason=Resources Dependency=(null)\n   Requeue=1 Restarts=1\n' > job ;;
"update NodeName="*)
    reason=
    for word in "$@"; do
        case "$word" in
        State=DRAIN) state=IDLE+DRAIN ;;
        State=RESUME) state=IDLE ;;
        Reason=*) reason="${word#Reason=}" ;;
        esac
    done
    printf 'NodeName=n1 Arch=x86_64\n   State=%s ThreadsPerCore=1\n' "$state" > node
    [ -z "$reason" ] || printf '   Reason=%s [root@2026-11-30T20:22:18]\n' "$reason" >> node ;;
esac
"#;

/// A node as slurmd's programs see it.
struct Node {
    directory: TempDir,
    job: String,
    children: Vec<Child>,
}

/// How a hook ended.
struct Ended {
    code: i32,
    stdout: String,
    stderr: String,
}

impl Node {
    /// `settings` is what the site's file says beside where everything is.
    fn new(settings: &str) -> Node {
        let directory = tempfile::Builder::new().prefix("slurm-").tempdir().unwrap();
        let node = Node {
            // No other test looks for the processes of this job.
            job: format!("9{}", std::process::id()),
            directory,
            children: Vec::new(),
        };
        fs::write(node.path("scontrol"), SCONTROL).unwrap();
        fs::set_permissions(node.path("scontrol"), fs::Permissions::from_mode(0o755)).unwrap();
        node.is("IDLE", "");
        fs::write(node.path("kern.log"), "").unwrap();
        node.configure(settings);
        node
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn configure(&self, settings: &str) {
        let root = self.directory.path().display();
        let places = format!(
            "state-dir = \"{root}/state\"\nlog-file = \"{root}/hooks.log\"\nkernel-log = \"{root}/kern.log\"\n\
             checks = \"{root}/checks.toml\"\n"
        );
        self.check_commands("");
        fs::write(self.path("slurm.toml"), format!("{places}{settings}")).unwrap();
    }

    /// Turns off all checks that look at this machine, and adds commands.
    #[expect(clippy::disallowed_methods, reason = "tests create processes")]
    fn check_commands(&self, commands: &str) {
        let list = Command::new(steadfast())
            .args(["check", "--list", "--json"])
            .output()
            .unwrap();
        let list: serde_json::Value = serde_json::from_slice(&list.stdout).unwrap();
        let checks = list["checks"].as_array().or(list.as_array()).unwrap();
        let mut text = String::new();
        for check in checks {
            let name = check["name"].as_str().unwrap();
            text.extend([format!("[check.{name}]\nenabled = false\n")]);
        }
        fs::write(self.path("checks.toml"), text + commands).unwrap();
    }

    /// What the controller believes.
    fn is(&self, state: &str, reason: &str) {
        let reason = if reason.is_empty() {
            String::new()
        } else {
            format!("   Reason={reason} [root@2026-11-30T20:22:18]\n")
        };
        let text = format!("NodeName=n1 Arch=x86_64\n   State={state} ThreadsPerCore=1\n{reason}");
        fs::write(self.path("node"), text).unwrap();
    }

    fn job_is(&self, state: &str, reason: &str, restarts: u32) {
        let text = format!(
            "   JobState={state} Reason={reason} Dependency=(null)\n   Requeue=1 Restarts={restarts}\n"
        );
        fs::write(self.path("job"), text).unwrap();
    }

    fn kernel_says(&self, line: &str) {
        let now = clock_gettime(ClockId::Monotonic);
        let (seconds, micros) = (now.tv_sec, now.tv_nsec / 1000);
        let mut log = fs::read_to_string(self.path("kern.log")).unwrap();
        log.extend([format!("[{seconds:>5}.{micros:06}] {line}")]);
        fs::write(self.path("kern.log"), log).unwrap();
    }

    /// What the controller was asked since this was last called.
    fn calls(&self) -> Vec<String> {
        let calls = fs::read_to_string(self.path("calls")).unwrap_or_default();
        fs::write(self.path("calls"), "").unwrap();
        calls.lines().map(str::to_owned).collect()
    }

    fn log(&self) -> String {
        fs::read_to_string(self.path("hooks.log")).unwrap_or_default()
    }

    #[expect(clippy::disallowed_methods, reason = "tests create processes")]
    fn run(&self, words: &[&str], environment: &[(&str, &str)]) -> Ended {
        let config = self.path("slurm.toml");
        let path = format!("{}:/usr/bin:/bin", self.directory.path().display());
        let output = Command::new(steadfast())
            .arg("slurm")
            .args(words)
            .args(["--config", config.to_str().unwrap()])
            .env_clear()
            .env("PATH", path)
            .envs(environment.iter().copied())
            .stdin(Stdio::null())
            .output()
            .unwrap();
        Ended {
            code: output.status.code().unwrap(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// As slurmd starts it.
    fn hook(&self, hook: &str) -> Ended {
        let uid = nix::unistd::geteuid().to_string();
        let context = format!("{hook}_slurmd");
        let mut environment = vec![("SLURMD_NODENAME", "n1")];
        if hook != "health" {
            environment.extend([
                ("SLURM_JOB_ID", self.job.as_str()),
                ("SLURM_JOB_UID", uid.as_str()),
                ("SLURM_NODELIST", "n[1-2]"),
                ("SLURM_SCRIPT_CONTEXT", context.as_str()),
            ]);
        }
        self.run(&[hook], &environment)
    }

    /// A process that ignores polite signals, as a step of a job would have left it.
    #[expect(clippy::disallowed_methods, reason = "tests create processes")]
    fn leave(&mut self, job: &str, node: &str) -> i32 {
        let child = Command::new("/bin/sh")
            .args(["-c", "trap '' TERM HUP; while :; do sleep 1; done"])
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("SLURM_JOB_ID", job)
            .env("SLURMD_NODENAME", node)
            .spawn()
            .unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        self.children.push(child);
        pid
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        for child in &mut self.children {
            drop(child.kill());
            drop(child.wait());
        }
    }
}

impl Ended {
    #[track_caller]
    fn with(&self, code: i32) -> &Ended {
        assert_eq!(self.code, code, "{}{}", self.stdout, self.stderr);
        self
    }

    #[track_caller]
    fn saying(&self, text: &str) -> &Ended {
        assert!(
            self.stderr.contains(text),
            "no `{text}` in: {}",
            self.stderr
        );
        self
    }
}

#[test]
fn a_prolog_on_a_well_node_asks_nobody_and_leaves_a_record() {
    let node = Node::new("");
    node.kernel_says(FAULT);
    node.hook("prolog").with(0);
    assert_eq!(node.calls(), [""; 0]);
    let record = node.path(&format!("state/jobs/n1/{}.json", node.job));
    assert!(record.exists());
    node.hook("epilog").with(0);
    assert!(!record.exists());
    assert_eq!(node.calls(), [""; 0]);
}

#[test]
fn a_prolog_refuses_a_sick_node_until_somebody_resumes_it() {
    let node = Node::new("");
    node.kernel_says(LOST);
    node.hook("prolog")
        .with(76)
        .saying("the job does not start on this node: XID 79 at 0000:18:00");
    // Another job that was given to the node at the same time.
    node.hook("prolog").with(76);
    assert_eq!(node.calls(), [""; 0], "Slurm drains it");
    let memory = node.path("state/nodes/n1.json");
    let text = fs::read_to_string(&memory).unwrap();
    let mut value: serde_json::Value = serde_json::from_str(&text).unwrap();
    value["changed_ns"] = 0.into();
    fs::write(&memory, value.to_string()).unwrap();
    // Much later the node gets a job again.
    node.hook("prolog").with(0);
    node.kernel_says(LOST);
    node.hook("prolog").with(76);
}

#[test]
fn a_prolog_gives_its_reason_where_it_may() {
    let node = Node::new("[prolog]\ndrain = true\n");
    node.kernel_says(LOST);
    node.hook("prolog").with(76);
    let calls = node.calls();
    assert_eq!(calls[0], "show node n1");
    assert!(
        calls[1].starts_with("update NodeName=n1 State=DRAIN Reason=steadfast: XID 79 at"),
        "{calls:?}"
    );
    node.hook("prolog").with(76);
    assert_eq!(
        node.calls(),
        ["show node n1"],
        "it is drained for this already"
    );
    // An administrator knows better.
    node.is("IDLE", "");
    node.hook("prolog").with(0);
    node.hook("health")
        .with(0)
        .saying("somebody has resumed the node");
    assert!(!node.calls().iter().any(|call| call.starts_with("update")));
}

#[test]
fn health_drains_once_and_resumes_what_it_drained() {
    let node = Node::new("");
    node.hook("health").with(0);
    node.hook("health").with(0);
    assert_eq!(
        node.calls(),
        ["show node n1"],
        "a well node is asked about once"
    );
    node.kernel_says(LOST);
    node.hook("health").with(0);
    node.hook("health").with(0);
    let calls = node.calls();
    let updates = calls.iter().filter(|call| call.starts_with("update"));
    assert_eq!(updates.count(), 1, "{calls:?}");
    node.kernel_says(MENDED);
    node.hook("health").with(0).saying("the node is well again");
    assert_eq!(
        node.calls(),
        ["show node n1", "update NodeName=n1 State=RESUME"]
    );
    node.hook("health").with(0);
    assert_eq!(node.calls(), [""; 0]);
}

#[test]
fn what_others_have_drained_is_left_alone() {
    let node = Node::new("");
    node.is("IDLE+DRAIN", "disk swap");
    node.hook("health").with(0);
    node.kernel_says(LOST);
    node.hook("health")
        .with(0)
        .saying("somebody else has drained the node (disk swap)");
    node.kernel_says(MENDED);
    node.hook("health").with(0);
    let calls = node.calls();
    assert!(
        calls.iter().all(|call| call.starts_with("show")),
        "{calls:?}"
    );
}

#[test]
fn a_kernel_log_that_is_gone_neither_drains_nor_resumes() {
    let node = Node::new("");
    node.kernel_says(LOST);
    node.hook("health").with(0);
    fs::remove_file(node.path("kern.log")).unwrap();
    node.hook("prolog")
        .with(0)
        .saying("the kernel log is not known: cannot open");
    node.calls();
    node.hook("health")
        .with(0)
        .saying("nobody can tell whether it is well again");
    assert_eq!(node.calls(), ["show node n1"]);
}

#[test]
fn a_check_that_fails_keeps_jobs_away_until_it_does_not() {
    let node = Node::new("");
    let script = node.path("our-own");
    let says = |code: u8, text: &str| {
        // In one step: a check may be running.
        let new = node.path("our-own.new");
        fs::write(&new, format!("#!/bin/sh\necho '{text}'\nexit {code}\n")).unwrap();
        fs::set_permissions(&new, fs::Permissions::from_mode(0o755)).unwrap();
        fs::rename(new, &script).unwrap();
    };
    says(0, "fine");
    node.check_commands(&format!(
        "[command.our-own]\nrun = [\"{}\"]\nprofiles = [\"prolog\", \"health\"]\n",
        script.display()
    ));
    node.hook("prolog").with(0);
    says(2, "the scratch disk is gone");
    node.hook("health").with(0);
    let calls = node.calls();
    assert!(
        calls[1].contains("Reason=steadfast: our-own: the scratch disk is gone"),
        "{calls:?}"
    );
    // A job that was given to the node just before.
    node.hook("prolog")
        .with(76)
        .saying("our-own: the scratch disk is gone");
    // One that breaks proves nothing, in neither direction.
    says(3, "no idea");
    node.hook("prolog").with(0);
    node.hook("health").with(0).saying("nobody can tell");
    says(0, "fine");
    node.hook("health").with(0).saying("the node is well again");
    // Their configuration is wrong: said, and no more.
    fs::write(node.path("checks.toml"), "[check.nonsense]\n").unwrap();
    node.hook("prolog")
        .with(0)
        .saying("the checks were not made");
}

#[test]
fn a_prolog_starts_the_node_service_and_waits_for_nobody() {
    let node = Node::new("");
    let socket = node.path("health.sock");
    let settings = "[prolog]\nstart-service = true\nservice-socket = ";
    node.configure(&format!("{settings}\"{}\"\n", socket.display()));
    // Reading the hook's output to its end, as slurmd does, is not held up by the service.
    let ended = node.hook("prolog");
    ended.with(0).saying("the node service is started (pid ");
    eventually("the service", || {
        UnixStream::connect(&socket).map_err(|error| error.to_string())
    });
    let again = node.hook("prolog");
    again.with(0);
    assert!(!again.stderr.contains("is started"), "{}", again.stderr);
    // It is none of the job's, and none of slurmd's hooks.
    node.hook("epilog").with(0);
    UnixStream::connect(&socket).unwrap();
    let pid = ended.stderr.rsplit("(pid ").next().unwrap();
    let pid: i32 = pid.trim().trim_end_matches(')').parse().unwrap();
    send(pid, Signal::SIGTERM);
    eventually("its end", || {
        if is_alive(pid) {
            Err(pid.to_string())
        } else {
            Ok(())
        }
    });
}

#[test]
fn a_wrong_configuration_drains_nobody_and_is_said() {
    let node = Node::new("");
    node.kernel_says(LOST);
    node.configure("[prolog]\ndrian = true\n");
    for hook in ["prolog", "epilog", "health"] {
        node.hook(hook)
            .with(0)
            .saying("slurm.toml:6: unknown field `drian`");
    }
    assert_eq!(node.calls(), [""; 0]);
    assert_eq!(node.log().lines().count(), 3, "{}", node.log());
}

#[test]
fn outside_of_slurm_nothing_is_done() {
    let node = Node::new("");
    node.run(&["prolog"], &[])
        .with(0)
        .saying("is started by slurmd");
    node.run(&["epilog"], &[("SLURMD_NODENAME", "n1")])
        .with(0)
        .saying("no job");
}

#[test]
fn a_controller_that_hangs_holds_up_nobody() {
    let node = Node::new("call-timeout = \"1s\"\n");
    node.kernel_says(LOST);
    fs::write(node.path("hang"), "").unwrap();
    node.hook("health")
        .with(0)
        .saying("did not answer within 1.0 s and was killed");
    // Slurm itself has to do it then: the fault is proven.
    node.hook("epilog")
        .with(76)
        .saying("Slurm itself drains the node");
}

#[test]
fn a_hook_ends_at_its_deadline() {
    let node = Node::new("call-timeout = \"10m\"\n[health]\ndeadline = \"1s\"\n");
    node.kernel_says(LOST);
    fs::write(node.path("hang"), "").unwrap();
    node.hook("health")
        .with(0)
        .saying("it was not done within 1 s");
}

#[test]
fn an_epilog_kills_what_its_own_job_has_left() {
    let mut node = Node::new("");
    let (job, other) = (node.job.clone(), format!("8{}", node.job));
    let left = node.leave(&job, "n1");
    let of_other_job = node.leave(&other, "n1");
    let of_other_node = node.leave(&job, "n2");
    node.hook("prolog").with(0);
    let ended = node.hook("epilog");
    ended
        .with(0)
        .saying("were left by the job, and were killed");
    eventually("the end of what was left", || {
        if is_alive(left) {
            Err("it lives".to_owned())
        } else {
            Ok(())
        }
    });
    assert!(
        is_alive(of_other_job) && is_alive(of_other_node),
        "{}",
        ended.stderr
    );
    node.hook("epilog").with(0);
    assert!(
        node.log().contains(&format!("n1 epilog job {job}: ")),
        "{}",
        node.log()
    );
}

#[test]
fn an_epilog_may_be_told_to_kill_nothing() {
    let mut node = Node::new("[epilog]\nkill = false\n");
    let job = node.job.clone();
    let left = node.leave(&job, "n1");
    node.hook("epilog").with(0).saying("are left alone");
    assert!(is_alive(left));
}

#[test]
fn an_epilog_tells_what_happened_during_its_job_and_drains() {
    let node = Node::new("");
    node.kernel_says(FAULT);
    node.hook("prolog").with(0);
    node.kernel_says(LOST);
    let ended = node.hook("epilog");
    ended.with(0).saying("during the job: XID 79 at 0000:18:00");
    assert!(
        !ended.stderr.contains("XID 31"),
        "that was before: {}",
        ended.stderr
    );
    let calls = node.calls();
    assert!(calls[1].contains("Reason=steadfast: XID 79"), "{calls:?}");
    fs::write(node.path("refuse"), "").unwrap();
    node.is("IDLE", "");
    node.hook("epilog")
        .with(76)
        .saying("Access/permission denied");
}

#[test]
fn a_task_gets_variables_that_it_does_not_set() {
    let node = Node::new("[task-prolog.export]\nNCCL_DEBUG = \"WARN\"\n");
    let set = [("SLURMD_NODENAME", "n1"), ("TORCH_FR_BUFFER_SIZE", "9")];
    let ended = node.run(&["task-prolog"], &set);
    ended.with(0);
    assert_eq!(
        ended.stdout,
        "export NCCL_DEBUG=WARN\nexport TORCH_NCCL_TRACE_BUFFER_SIZE=2000\nexport TORCH_NCCL_DUMP_ON_TIMEOUT=1\n"
    );
}

#[test]
fn a_requeued_job_is_started_once_it_is_pending() {
    let node = Node::new("");
    node.job_is("RUNNING", "None", 0);
    node.run(&["requeue", "--job", "71"], &[])
        .with(0)
        .saying("job 71 goes back into the queue")
        .saying("job 71: it starts as soon as there is room");
    assert_eq!(
        node.calls(),
        [
            "show job 71",
            "requeue 71",
            "show job 71",
            "update JobId=71 StartTime=now",
            "show job 71"
        ]
    );
    node.job_is("PENDING", "JobHeldUser", 1);
    node.run(&["requeue", "--hasten-only", "--job", "71"], &[])
        .with(0)
        .saying("somebody has to release it");
    node.job_is("PENDING", "BeginTime", 4);
    node.run(
        &["requeue", "--hasten-only", "--at-most", "3", "--job", "71"],
        &[],
    )
    .with(0)
    .saying("so often");
    fs::write(node.path("refuse"), "").unwrap();
    node.run(&["requeue", "--job", "71"], &[])
        .with(1)
        .saying("denied");
    node.run(&["requeue"], &[]).with(78).saying("which job?");
    node.run(&["requeue", "--job", "71; reboot"], &[]).with(78);
}

#[test]
fn the_scripts_pass_on_nothing_but_a_proven_fault() {
    let node = Node::new("");
    let directory = node.path("hooks");
    let place = directory.to_str().unwrap();
    let shown = node.run(&["install", "--dry-run", "--dir", place], &[]);
    shown.with(0);
    assert!(!directory.exists());
    assert!(
        shown.stdout.contains(&format!("\nProlog={place}/prolog\n")),
        "{}",
        shown.stdout
    );
    node.run(&["install", "--dir", place], &[]).with(0);
    assert_eq!(script(&node, "prolog"), 0);
    node.kernel_says(LOST);
    assert_eq!(script(&node, "prolog"), 1);
    assert_eq!(script(&node, "health"), 0);
    let text = fs::read_to_string(directory.join("prolog")).unwrap();
    let missing = text.replace(steadfast().to_str().unwrap(), "/nowhere/steadfast");
    fs::write(directory.join("prolog"), missing).unwrap();
    assert_eq!(script(&node, "prolog"), 0, "no program, no drain");
    let broken = text.replace(" slurm prolog", " slurm nonsense");
    fs::write(directory.join("prolog"), broken).unwrap();
    assert_eq!(script(&node, "prolog"), 0, "no such hook, no drain");
}

/// Runs a script as slurmd does: without arguments, with a bare environment.
#[expect(clippy::disallowed_methods, reason = "tests create processes")]
fn script(node: &Node, hook: &str) -> i32 {
    Command::new(node.path("hooks").join(hook))
        .env_clear()
        .env(
            "PATH",
            format!("{}:/usr/bin:/bin", node.directory.path().display()),
        )
        .env("SLURMD_NODENAME", "n1")
        .env("SLURM_JOB_ID", &node.job)
        .env("SLURM_SCRIPT_CONTEXT", "prolog_slurmd")
        .output()
        .unwrap()
        .status
        .code()
        .unwrap()
}
