// SPDX-License-Identifier: Apache-2.0
//! Restart or end: what the supervisor makes of failures, and which exit code it gives.

use std::path::Path;

use steadfast_tests::{Job, Launch, Requirement, fake_worker, python};

/// The attempts that were made.
fn attempts(job: &Job) -> usize {
    job.journal_of("generation.starting").len()
}

#[test]
fn a_job_whose_workers_all_succeed_ends_with_0() {
    let mut job = Launch::run(&["--nproc-per-node", "3"])
        .worker(&["steps:1:3:0"])
        .start();
    job.wait().ended_with(0);
    assert_eq!(job.records_of("end").len(), 3);
    assert_eq!(attempts(&job), 1);
}

#[test]
fn all_workers_are_started_again_when_one_fails() {
    let steps = [
        "@rank=1,restart=0@wait-file:fail",
        "@rank=1,restart=0@exit:3",
        "@restart=0@hang",
        "steps:1:3:0",
    ];
    let mut job = Launch::run(&["--nproc-per-node", "3"])
        .worker(&steps)
        .start();
    job.started(0, 3);
    job.touch("fail");
    job.wait().ended_with(0);
    assert_eq!(job.started(1, 3).len(), 3);
    assert!(job.records_of("overlap").is_empty(), "{}", job.describe());
}

#[test]
fn a_used_up_budget_ends_the_job_with_the_workers_own_code() {
    let mut job = Launch::run(&["--max-restarts", "1"])
        .worker(&["exit:7"])
        .start();
    job.wait()
        .ended_with(7)
        .said("The one restart that is allowed without a new training step was used up");
    assert_eq!(attempts(&job), 2);
}

#[test]
fn without_restarts_the_first_failure_ends_the_job() {
    let mut job = Launch::run(&["--max-restarts", "0"])
        .worker(&["exit:7"])
        .start();
    job.wait().ended_with(7);
    assert_eq!(attempts(&job), 1);
}

#[test]
fn a_worker_killed_by_a_signal_gives_128_and_the_signal() {
    for signal in [9, 11, 6] {
        let step = format!("raise:{signal}");
        let mut job = Launch::run(&["--max-restarts", "0"])
            .worker(&[&step])
            .start();
        job.wait()
            .ended_with(128 + signal)
            .said(&format!("Signal {signal} ("));
    }
}

#[test]
fn the_same_failure_three_times_without_progress_ends_the_job() {
    let mut job = Launch::run(&["--max-restarts", "10"])
        .worker(&["err:ValueError - always the same", "exit:5"])
        .start();
    job.wait()
        .ended_with(5)
        .said("The same failure happened 3 times without a new training step in between");
    assert_eq!(attempts(&job), 3);
}

#[test]
fn the_same_failure_with_progress_in_between_does_not_end_the_job() {
    let mut steps: Vec<String> = (0..5)
        .map(|attempt| format!("@restart={attempt}@steps:1:{}:0", 5 + attempt))
        .collect();
    steps.push("@restart<5@exit:5".to_owned());
    let steps: Vec<&str> = steps.iter().map(String::as_str).collect();
    // One restart is all there is, unless a new step refills the budget.
    let mut job = Launch::run(&["--max-restarts", "1"]).worker(&steps).start();
    job.wait().ended_with(0);
    assert_eq!(attempts(&job), 6);
}

#[test]
fn steps_that_were_made_before_are_no_progress() {
    let mut job = Launch::run(&["--max-restarts", "2"])
        .worker(&["steps:1:5:0", "exit:5"])
        .start();
    job.wait().ended_with(5);
    assert_eq!(attempts(&job), 3);
}

#[test]
fn an_import_error_ends_the_job_at_once() {
    if !Requirement::Python.met() {
        return;
    }
    let command = ["--", python(), "-c", "import a_module_that_is_not_there"];
    let mut job = Launch::run(&["--max-restarts", "10"])
        .command(&command)
        .start();
    job.wait()
        .ended_with(1)
        .said("a_module_that_is_not_there")
        .said("bound to happen again");
    assert_eq!(attempts(&job), 1);
}

#[test]
fn a_command_that_does_not_exist_is_refused_before_anything_is_started() {
    let mut job = Launch::run(&[])
        .command(&["--", "a-command-that-is-not-there"])
        .start();
    job.wait()
        .ended_with(78)
        .said("a-command-that-is-not-there");
    assert!(!job.directory().join("logs").exists() && !job.runtime_root().exists());
}

#[test]
fn a_file_that_is_not_executable_is_refused_before_anything_is_started() {
    let launch = Launch::run(&[]);
    let path = launch.directory().join("work/notes.txt");
    std::fs::write(&path, "").unwrap();
    let mut job = launch.command(&["--", path.to_str().unwrap()]).start();
    job.wait().ended_with(78).said("notes.txt");
}

#[test]
fn a_program_that_the_kernel_refuses_ends_the_job_and_is_named() {
    use std::os::unix::fs::PermissionsExt;
    let launch = Launch::run(&["--nproc-per-node", "2", "--max-restarts", "5"]);
    let path = launch.directory().join("work/program");
    std::fs::write(&path, "#!/an/interpreter/that/is/not/there\n").unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut job = launch.command(&["--", path.to_str().unwrap()]).start();
    let outcome = job.wait();
    assert_ne!(outcome.status.code(), Some(0), "{outcome}");
    outcome.said("could not execute the program");
    assert!(
        attempts(&job) <= 3,
        "it cannot get better: {}",
        job.describe()
    );
}

#[test]
fn a_program_that_is_gone_at_a_restart_ends_the_job_and_is_named() {
    let launch = Launch::run(&["--nproc-per-node", "2", "--max-restarts", "20"]);
    let program = launch.directory().join("work/program");
    std::fs::copy(fake_worker(), &program).unwrap();
    let command = [
        "--",
        program.to_str().unwrap(),
        "@rank=0@wait-file:fail",
        "@rank=0@exit:3",
        "hang",
    ];
    let mut job = launch.command(&command).start();
    job.started(0, 2);
    std::fs::remove_file(&program).unwrap();
    job.touch("fail");
    let outcome = job.wait();
    assert_ne!(outcome.status.code(), Some(0), "{outcome}");
    outcome.said("could not execute the program");
    assert!(
        attempts(&job) <= 4,
        "it cannot get better: {}",
        job.describe()
    );
}

#[test]
fn a_node_without_descriptors_to_spare_fails_cleanly() {
    let limit = ["sh", "-c", "ulimit -n 60; exec \"$@\"", "sh"];
    let options = [
        "--nproc-per-node",
        "24",
        "--max-restarts",
        "1",
        "--restart-grace",
        "1s",
    ];
    let mut job = Launch::run(&options)
        .inside(&limit)
        .worker(&["hang"])
        .start();
    let outcome = job.wait();
    assert_ne!(outcome.status.code(), Some(0), "{outcome}");
    outcome.said("Too many open files");
}

#[test]
fn a_failure_at_the_start_is_told_from_one_in_training() {
    let mut job = Launch::run(&["--max-restarts", "0"])
        .worker(&["exit:4"])
        .start();
    job.wait().ended_with(4).said("before training started");
    let mut job = Launch::run(&["--max-restarts", "0"])
        .worker(&["steps:1:12:0", "exit:4"])
        .start();
    job.wait()
        .ended_with(4)
        .said("in training, at step 12")
        .did_not_say("before training started");
}

#[test]
fn the_code_of_a_failing_program_can_be_changed() {
    let mut job = Launch::run(&["--max-restarts", "0", "--exit-code", "program=42"])
        .worker(&["exit:7"])
        .start();
    job.wait().ended_with(42);
}

#[test]
fn workers_that_finish_early_are_no_failure() {
    let steps = ["@rank=0@exit:0", "wait-file:go"];
    let mut job = Launch::run(&["--nproc-per-node", "2"])
        .worker(&steps)
        .start();
    let first = job.worker(0, 0);
    job.eventually("the end of rank 0", |_| {
        (!Path::new(&format!("/proc/{first}")).exists()).then_some(())
    });
    job.touch("go");
    job.wait().ended_with(0);
    assert_eq!(attempts(&job), 1);
}

#[test]
fn who_was_stopped_with_the_others_may_have_said_what_was_wrong() {
    // The one that waits for it in vain dies first, of what is only a consequence.
    let steps = [
        "steps:1:1:0",
        "@rank=1@err:CUDA error uncorrectable ECC error encountered",
        "@rank=1@hang",
        "wait-file:go",
        "err:DistNetworkError Failed to recv, got 0 bytes. Connection was likely closed.",
        "exit:1",
    ];
    let mut job = Launch::run(&[
        "--nproc-per-node",
        "2",
        "--max-restarts",
        "0",
        "--restart-grace",
        "100ms",
    ])
    .worker(&steps)
    .start();
    job.eventually("the words in the log", |job| {
        job.stderr().contains("uncorrectable").then_some(())
    });
    job.touch("go");
    job.wait()
        .ended_with(75)
        .said("rank 1 on node did not end by itself, but had said before")
        .said("To do: take the node out");
}

#[test]
fn a_full_disk_is_waited_for_and_not_taken_for_an_error_of_the_program() {
    let steps = [
        "steps:1:3:0",
        "@restart=3@exit:0",
        "err:OSError [Errno 28] No space left on device",
        "exit:1",
    ];
    let mut job = Launch::run(&["--max-restarts", "1", "--restart-grace", "100ms"])
        .worker(&steps)
        .start();
    job.wait()
        .ended_with(0)
        .said("the storage has failed 2 times")
        .said("the restart was put off for 15 s; it is not charged to the restart budget");
    assert_eq!(attempts(&job), 4);
}

#[test]
fn rules_of_ones_own_say_what_lines_mean() {
    let launch = Launch::run(&["--max-restarts", "0"]);
    let rules = "[[rule]]\nid = 'site.x'\nclass = 'storage'\nrole = 'cause'\nstrength = 95\n\
                 match = ['frobnicator jammed']\nmeaning = 'the frobnicator jammed'\nnext = 'oil it'\n";
    let path = launch.directory().join("own.toml");
    std::fs::write(&path, rules).unwrap();
    let mut job = launch
        .env("STEADFAST_FAULT_RULES", path.to_str().unwrap())
        .worker(&["err:the frobnicator jammed", "exit:1"])
        .start();
    job.wait().said("To do: oil it");
}
