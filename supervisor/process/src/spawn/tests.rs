// SPDX-License-Identifier: Apache-2.0
use std::fs::File;
use std::io::Read;
use std::time::{Duration, Instant};

use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid, waitpid};

use super::*;
use crate::pipe::Pipe;

struct Ended {
    status: WaitStatus,
    output: String,
    report: ReportState,
}

/// Runs a program to its end in the given surroundings and collects what it printed.
fn run(arguments: &[&str], change: impl FnOnce(&mut SpawnRequest<'_>)) -> Ended {
    let null = File::options()
        .read(true)
        .write(true)
        .open("/dev/null")
        .unwrap();
    let Pipe { read, write } = Pipe::with_capacity(65_536).unwrap();
    let arguments: Vec<OsString> = arguments.iter().map(OsString::from).collect();
    let environment = [
        ("GREETING".into(), "hello".into()),
        ("PATH".into(), "/usr/bin:/bin".into()),
    ];
    let mut request = SpawnRequest {
        program: Path::new(&arguments[0]),
        arguments: &arguments,
        environment: &environment,
        directory: None,
        stdio: [null.as_fd(), write.as_fd(), write.as_fd()],
        descriptor_three: None,
        own_session: true,
        parent_death_signal: Some(Signal::SIGKILL),
        core_limit: Some(0),
        cgroup: None,
    };
    change(&mut request);
    let spawned = spawn(&request).unwrap();
    drop(write);
    let mut output = String::new();
    File::from(read).read_to_string(&mut output).unwrap();
    let status = waitpid(spawned.pid, None).unwrap();
    let report = ExecFailure::read(spawned.report.as_fd()).unwrap();
    Ended {
        status,
        output,
        report,
    }
}

#[test]
fn the_child_has_its_own_session_environment_limits_and_no_stray_descriptors() {
    let script = "echo $GREETING; ulimit -c; ls /proc/self/fd | wc -l; ps -o sid= -p $$ | tr -d ' '; echo $$";
    let ended = run(&["/bin/sh", "-c", script], |_| {});
    let lines: Vec<&str> = ended.output.lines().collect();
    assert_eq!(lines[..2], ["hello", "0"]);
    // 0, 1, 2 and the directory that `ls` itself has open.
    assert_eq!(lines[2], "4");
    assert_eq!(lines[3], lines[4], "the child leads its session");
    assert_eq!(ended.report, ReportState::Executed);
}

#[test]
fn no_signal_is_blocked_in_the_child_and_sigpipe_is_not_ignored() {
    let script = "grep -E 'Sig(Blk|Ign)' /proc/self/status | cut -f2";
    let ended = run(&["/bin/sh", "-c", script], |_| {});
    let masks: Vec<u64> = ended
        .output
        .lines()
        .map(|line| u64::from_str_radix(line, 16).unwrap())
        .collect();
    let [blocked, ignored] = masks[..] else {
        panic!("{masks:?}")
    };
    assert_eq!(blocked, 0);
    assert_eq!(
        ignored & (1 << (Signal::SIGPIPE as i32 - 1)),
        0,
        "what Rust ignores, the child must not"
    );
}

#[test]
fn a_missing_program_is_reported_with_its_reason() {
    let ended = run(&["/nonexistent/program"], |_| {});
    let failure = ExecFailure {
        step: Step::Execute,
        errno: nix::errno::Errno::ENOENT,
    };
    assert_eq!(ended.report, ReportState::Failed(failure));
    assert!(matches!(ended.status, WaitStatus::Exited(_, 127)));
    assert_eq!(
        failure.to_string(),
        "could not execute the program: No such file or directory"
    );
}

#[test]
fn a_missing_directory_is_told_apart_from_a_missing_program() {
    let ended = run(&["/bin/true"], |request| {
        request.directory = Some(Path::new("/nonexistent"));
    });
    assert!(matches!(
        ended.report,
        ReportState::Failed(ExecFailure {
            step: Step::Directory,
            ..
        })
    ));
}

#[test]
fn a_child_is_in_its_cgroup_before_anything_of_it_runs() {
    let name = format!("steadfast-spawn-test-{}", std::process::id());
    let cgroup = match crate::cgroup::Cgroup::create_below_own(&name) {
        Ok(cgroup) => cgroup,
        Err(reason) => return eprintln!("SKIPPED: needs a writable cgroup v2: {reason}"),
    };
    let ended = run(&["/bin/cat", "/proc/self/cgroup"], |request| {
        let leaked: &'static File = Box::leak(Box::new(cgroup.directory().unwrap()));
        request.cgroup = Some(leaked.as_fd());
    });
    cgroup.remove().unwrap();
    let own = ended.output.lines().find(|line| line.starts_with("0::"));
    assert!(own.unwrap().ends_with(&name), "{}", ended.output);
}

#[test]
fn a_directory_that_is_no_cgroup_is_reported() {
    let directory = tempfile::tempdir().unwrap();
    let ended = run(&["/bin/true"], |request| {
        let leaked: &'static File = Box::leak(Box::new(File::open(directory.path()).unwrap()));
        request.cgroup = Some(leaked.as_fd());
    });
    assert!(matches!(
        ended.report,
        ReportState::Failed(ExecFailure {
            step: Step::Cgroup,
            ..
        })
    ));
}

#[test]
fn descriptor_three_reaches_the_child() {
    let file = crate::memory_file::with_content("three", b"from three").unwrap();
    let ended = run(&["/bin/sh", "-c", "cat <&3"], |request| {
        // The borrow ends with the call: a leaked copy keeps the test simple.
        let leaked: &'static File = Box::leak(Box::new(file.try_clone().unwrap()));
        request.descriptor_three = Some(leaked.as_fd());
    });
    assert_eq!(ended.output, "from three");
}

#[test]
fn a_child_of_a_thread_that_ended_does_not_survive_it() {
    let null = File::options()
        .read(true)
        .write(true)
        .open("/dev/null")
        .unwrap();
    let pid = std::thread::spawn(move || {
        let arguments = ["sleep".into(), "1000".into()];
        let request = SpawnRequest {
            program: Path::new("/bin/sleep"),
            arguments: &arguments,
            environment: &[],
            directory: None,
            stdio: [null.as_fd(); 3],
            descriptor_three: None,
            own_session: true,
            parent_death_signal: Some(Signal::SIGKILL),
            core_limit: None,
            cgroup: None,
        };
        let spawned = spawn(&request).unwrap();
        // A thread that ends before its child has asked for the signal is not noticed: hence `spawn`'s rule.
        let report = nix::poll::PollFd::new(spawned.report.as_fd(), nix::poll::PollFlags::POLLIN);
        nix::poll::poll(&mut [report], nix::poll::PollTimeout::NONE).unwrap();
        spawned.pid
    })
    .join()
    .unwrap();
    let deadline = Instant::now() + Duration::from_secs(30);
    while !is_waiting_to_be_reaped(pid) {
        assert!(
            Instant::now() < deadline,
            "the child outlived the thread that made it"
        );
        std::thread::yield_now();
    }
    waitpid(pid, None).unwrap();
}

/// Whether a child has ended but was not reaped yet.
fn is_waiting_to_be_reaped(pid: Pid) -> bool {
    let flags = WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT | WaitPidFlag::WEXITED;
    matches!(
        waitid(Id::Pid(pid), flags),
        Ok(WaitStatus::Exited(..) | WaitStatus::Signaled(..))
    )
}

#[test]
fn programs_are_found_along_the_path_and_refusals_say_why() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("data"), "no program").unwrap();
    let path = std::env::join_paths([directory.path(), Path::new("/bin")]).unwrap();
    assert_eq!(
        find_program(OsStr::new("sh"), &path).unwrap(),
        Path::new("/bin/sh")
    );
    let missing = find_program(OsStr::new("no-such-program"), &path).unwrap_err();
    assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    let plain = find_program(OsStr::new("data"), &path).unwrap_err();
    assert_eq!(plain.kind(), io::ErrorKind::PermissionDenied);
    assert!(find_program(OsStr::new("./data"), &path).is_err());
}
