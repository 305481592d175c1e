// SPDX-License-Identifier: Apache-2.0
use super::*;
use crate::output::layout::attempt_dir;

#[tokio::test]
async fn lines_go_to_the_file_as_they_are_and_to_the_console_with_a_prefix() {
    let job = Job::new(Mode::Torchrun, 2);
    let mut running = job.start();
    let mut pipes = [KeptPipes::new(), KeptPipes::new()];
    for (rank, pipes) in (0..).zip(&mut pipes) {
        running.attach(stdout_of(rank), pipes);
        pipes.write("one\r\n\x00\u{ff}two\nthree");
        pipes.close();
    }
    running.drain().await;
    for rank in 0..2 {
        let log = std::fs::read_to_string(job.log(stdout_of(rank))).unwrap();
        assert_eq!(log, "one\r\n\x00\u{ff}two\nthree");
    }
    let shown = running.shown();
    let mut lines: Vec<&str> = shown.lines().collect();
    lines.sort_unstable();
    let expected = [
        "[default0]:\0\u{ff}two",
        "[default0]:one",
        "[default0]:three",
        "[default1]:\0\u{ff}two",
        "[default1]:one",
        "[default1]:three",
    ];
    assert_eq!(lines, expected);
}

#[tokio::test]
async fn run_mode_needs_no_prefix_for_one_worker() {
    for (workers, expected) in [(1, "hello\n"), (2, "[0] hello\n")] {
        let job = Job::new(Mode::Run, workers);
        let mut running = job.start();
        let mut pipes = KeptPipes::new();
        running.attach(stdout_of(0), &pipes);
        pipes.write("hello\n");
        pipes.close();
        running.drain().await;
        assert_eq!(running.shown(), expected);
    }
}

#[tokio::test]
async fn without_files_one_worker_goes_straight_through() {
    let mut job = Job::new(Mode::Torchrun, 1);
    job.settings.log.tee = PerRank::all(Std::None);
    let mut running = job.start();
    let mut pipes = KeptPipes::new();
    running.attach(stdout_of(0), &pipes);
    pipes.write("10%\r20%\r\nno end");
    pipes.close();
    running.drain().await;
    assert!(!job.log(stdout_of(0)).exists());
    assert_eq!(running.outputs.tail(1, 0).stdout, ["20%", "no end"]);
    assert_eq!(running.shown(), "10%\r20%\r\nno end");
}

#[tokio::test]
async fn what_is_redirected_or_filtered_is_not_shown() {
    let mut job = Job::new(Mode::Torchrun, 2);
    job.settings.log.tee = PerRank::all(Std::Out);
    job.settings.log.redirects = PerRank::all(Std::Err);
    job.settings.log.local_ranks_filter = Some([1].into());
    let mut running = job.start();
    for rank in 0..2 {
        for kind in [StreamKind::Stdout, StreamKind::Stderr] {
            let mut pipes = KeptPipes::new();
            let stream = Stream {
                kind,
                ..stdout_of(rank)
            };
            running.attach(stream, &pipes);
            pipes.write(&format!("{rank}\n"));
            pipes.close();
        }
    }
    running.drain().await;
    for rank in 0..2 {
        for kind in [StreamKind::Stdout, StreamKind::Stderr] {
            let log = std::fs::read_to_string(job.log(Stream {
                kind,
                ..stdout_of(rank)
            }))
            .unwrap();
            assert_eq!(log, format!("{rank}\n"));
        }
    }
    let stderr = running.stderr.take().unwrap();
    assert_eq!(running.shown(), "[default1]:1\n");
    assert_eq!(read_all(stderr), "");
}

#[tokio::test]
async fn a_line_without_an_end_is_shown_after_a_while() {
    let job = Job::new(Mode::Torchrun, 1);
    let mut running = job.start();
    let mut pipes = KeptPipes::new();
    running.attach(stdout_of(0), &pipes);
    pipes.write("Password");
    let shown = running.stdout.as_ref().unwrap().try_clone().unwrap();
    let waiting = || rustix::io::ioctl_fionread(&shown).unwrap() > 0;
    until("the open line", waiting).await;
    assert_eq!(running.outputs.tail(1, 0).stdout, ["Password"]);
    running.outputs.say("a message");
    pipes.write(" accepted\n");
    pipes.close();
    running.drain().await;
    assert_eq!(running.outputs.tail(1, 0).stdout, ["Password accepted"]);
    assert_eq!(
        std::fs::read_to_string(job.log(stdout_of(0))).unwrap(),
        "Password accepted\n"
    );
    assert_eq!(running.shown(), "[default0]:Password accepted\n");
}

#[tokio::test]
async fn steps_are_told_and_lines_are_remembered() {
    let job = Job::new(Mode::Run, 1);
    let mut running = job.start_unseen();
    let mut pipes = KeptPipes::new();
    running.attach(stdout_of(0), &pipes);
    pipes.write("loading\nstep 1 loss 3.0\n");
    running
        .event(|event| {
            *event
                == OutputEvent::Step {
                    generation: 1,
                    local_rank: 0,
                    step: 1,
                }
        })
        .await;
    pipes.write("ste");
    until("the half step to be seen", || {
        running
            .outputs
            .tail(1, 0)
            .stdout
            .last()
            .is_some_and(|line| line == "ste")
    })
    .await;
    pipes.write("p 12 loss 2.0\n");
    running
        .event(|event| {
            *event
                == OutputEvent::Step {
                    generation: 1,
                    local_rank: 0,
                    step: 12,
                }
        })
        .await;
    let is_its_loss = |event: &OutputEvent| matches!(event, OutputEvent::Loss { step: Some(12), loss, .. } if loss.total_cmp(&2.0).is_eq());
    running.event(is_its_loss).await;
    for line in 0..1000 {
        pipes.write(&format!("line {line}\n"));
    }
    pipes.close();
    running.drain().await;
    let tail = running.outputs.tail(1, 0).stdout;
    assert_eq!((tail.len(), tail[99].as_str()), (100, "line 999"));
    assert!(running.events().is_empty());
    running.outputs.forget(1);
    assert_eq!(running.outputs.tail(1, 0), LastLines::default());
}

#[tokio::test]
async fn chosen_lines_are_copied() {
    let mut job = Job::new(Mode::Torchrun, 2);
    job.settings.log.duplicate_stdout_filters = vec!["loss".to_owned(), "grad".to_owned()];
    let mut running = job.start_unseen();
    for rank in 0..2 {
        let mut pipes = KeptPipes::new();
        running.attach(stdout_of(rank), &pipes);
        pipes.write("a loss\nnothing\ngrad\n");
        pipes.close();
    }
    running.drain().await;
    let path = attempt_dir(job.directory.path(), 0).join("filtered_stdout.log");
    let lines = || {
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort_unstable();
        lines
    };
    let expected = [
        "[default0]:a loss",
        "[default0]:grad",
        "[default1]:a loss",
        "[default1]:grad",
    ];
    until("the copies", || lines() == expected).await;
}

#[tokio::test]
async fn a_process_left_behind_does_not_hold_up_the_end() {
    let job = Job::new(Mode::Run, 1);
    let mut running = job.start_unseen();
    let mut pipes = KeptPipes::new();
    running.attach(stdout_of(0), &pipes);
    pipes.write("before\n");
    let log = job.log(stdout_of(0));
    until("the line", || {
        std::fs::read_to_string(&log).is_ok_and(|text| text == "before\n")
    })
    .await;
    let drained = running.outputs.drained(1, Instant::now()).await;
    assert_eq!(drained.unfinished, [stdout_of(0)]);
    pipes.close();
    running.drain().await;
}

#[tokio::test]
async fn both_console_streams_in_one_file_keep_lines_whole() {
    let job = Job::new(Mode::Torchrun, 2);
    let shared = job.directory.path().join("console");
    let open = || {
        OwnedFd::from(
            File::options()
                .append(true)
                .create(true)
                .open(&shared)
                .unwrap(),
        )
    };
    let mut running = job.start_with(ConsoleTargets {
        stdout: open(),
        stderr: open(),
    });
    let mut children = Vec::new();
    for rank in 0..2 {
        for kind in [StreamKind::Stdout, StreamKind::Stderr] {
            let mut pipes = KeptPipes::new();
            running.attach(
                Stream {
                    kind,
                    ..stdout_of(rank)
                },
                &pipes,
            );
            let program = "
import os
for i in range(400):
    os.write(1, b'abc'); os.write(1, b'defghi' * 20); os.write(1, b'\\n')
";
            children.push(pipes.python(program));
        }
    }
    for child in &mut children {
        finished(child).await;
    }
    running.drain().await;
    drop(running);
    let text = std::fs::read_to_string(&shared).unwrap();
    let line = format!("abc{}", "defghi".repeat(20));
    assert_eq!(text.lines().count(), 1600);
    for rank in 0..2 {
        let whole = format!("[default{rank}]:{line}");
        assert_eq!(text.lines().filter(|line| *line == whole).count(), 800);
    }
}

#[tokio::test]
async fn what_an_earlier_agent_left_in_the_spool_is_looked_at_and_written_first() {
    let job = Job::new(Mode::Torchrun, 1);
    let mut running = job.start();
    let mut pipes = KeptPipes::new();
    rustix::io::write(&pipes.spool_write, b"step 7 loss 1.0\nstep 8 lo").unwrap();
    pipes.write("ss 0.5\n");
    running.attach(stdout_of(0), &pipes);
    pipes.close();
    running.drain().await;
    let text = "step 7 loss 1.0\nstep 8 loss 0.5\n";
    assert_eq!(
        std::fs::read_to_string(job.log(stdout_of(0))).unwrap(),
        text
    );
    assert_eq!(
        running.outputs.tail(1, 0).stdout,
        ["step 7 loss 1.0", "step 8 loss 0.5"]
    );
    let step = OutputEvent::Step {
        generation: 1,
        local_rank: 0,
        step: 8,
    };
    assert!(running.events().contains(&step));
    assert_eq!(
        running.shown(),
        "[default0]:step 7 loss 1.0\n[default0]:step 8 loss 0.5\n"
    );
}
