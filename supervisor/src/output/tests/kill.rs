// SPDX-License-Identifier: Apache-2.0
//! The test as keeper, with itself as an agent that is killed again and again.

use super::*;

/// Tells the copy of this program that it is the agent: the keeper's pid and the numbers of its descriptors.
const PIPES: &str = "STEADFAST_TEST_PIPES";
const RUN_DIR: &str = "STEADFAST_TEST_RUN_DIR";

#[tokio::test]
async fn an_agent_that_is_killed_at_any_time_loses_nothing() {
    let job = Job::new(Mode::Torchrun, 1);
    let mut pipes = KeptPipes::new();
    let mut worker = pipes.python(
        "
import os, time
for i in range(3000):
    os.write(1, b''.join(b'%050d\\n' % n for n in range(i * 40, (i + 1) * 40)))
    time.sleep(0.0005)
",
    );
    let mut killed = 0;
    let mut pause = Duration::from_millis(1);
    loop {
        let mut agent = start_agent(&job, &pipes);
        let ready = agent.stderr.take().map(File::from_child).unwrap();
        wait_until_attached(ready);
        // Different moments, the same in each run of the test.
        pause = Duration::from_micros(u64::from(pause.subsec_micros()) * 7919 % 40_000);
        tokio::time::sleep(pause).await;
        if killed < 25 {
            agent.kill().unwrap();
            agent.wait().unwrap();
            killed += 1;
            continue;
        }
        finished(&mut worker).await;
        finished(&mut agent).await;
        assert!(agent.wait().unwrap().success());
        break;
    }
    let text = std::fs::read_to_string(job.log(stdout_of(0))).unwrap();
    for (number, line) in text.lines().enumerate() {
        assert_eq!(line, format!("{number:050}"));
    }
    assert_eq!(text.lines().count(), 3000 * 40);
}

fn start_agent(job: &Job, pipes: &KeptPipes) -> Child {
    let [worker, read, write] = [&pipes.worker_read, &pipes.spool_read, &pipes.spool_write]
        .map(std::os::fd::AsRawFd::as_raw_fd);
    command(std::env::current_exe().unwrap().to_str().unwrap())
        .args([
            "output::tests::kill::agent_process",
            "--exact",
            "--nocapture",
        ])
        .env(
            PIPES,
            format!("{} {worker} {read} {write}", std::process::id()),
        )
        .env(RUN_DIR, job.directory.path())
        // What a killed agent leaves behind goes with the directory of the test.
        .env("TMPDIR", job.directory.path())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

trait FromChild {
    fn from_child(stderr: std::process::ChildStderr) -> File;
}

impl FromChild for File {
    fn from_child(stderr: std::process::ChildStderr) -> File {
        File::from(OwnedFd::from(stderr))
    }
}

fn wait_until_attached(mut stderr: File) {
    let mut seen = Vec::new();
    let mut buffer = [0; 256];
    while !seen.windows(8).any(|window| window == b"attached") {
        let count = stderr.read(&mut buffer).unwrap();
        assert!(
            count > 0,
            "the agent ended: {}",
            String::from_utf8_lossy(&seen)
        );
        seen.extend_from_slice(&buffer[..count]);
    }
}

/// The agent: does nothing unless the test above started it.
#[tokio::test]
async fn agent_process() {
    let (Ok(numbers), Ok(run_dir)) = (std::env::var(PIPES), std::env::var(RUN_DIR)) else {
        return;
    };
    let numbers: Vec<u32> = numbers
        .split(' ')
        .map(|number| number.parse().unwrap())
        .collect();
    let open = |number: u32, write: bool| {
        let path = format!("/proc/{}/fd/{number}", numbers[0]);
        OwnedFd::from(
            File::options()
                .read(!write)
                .write(write)
                .open(path)
                .unwrap(),
        )
    };
    let mut job = Job::new(Mode::Torchrun, 1);
    job.settings.log.run_dir = run_dir.into();
    let mut running = job.start_unseen();
    let pipes = StreamPipes {
        worker: open(numbers[1], false),
        spool_read: open(numbers[2], false),
        spool_write: open(numbers[3], true),
    };
    running.outputs.attach(stdout_of(0), pipes).unwrap();
    eprintln!("attached");
    running.drain().await;
}
