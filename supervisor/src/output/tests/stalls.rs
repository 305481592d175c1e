// SPDX-License-Identifier: Apache-2.0
use std::os::unix::fs::symlink;

use super::*;

/// Writes 8 MiB in numbered lines of 32 bytes.
const CHATTY: &str = "
import os
for i in range(1024):
    os.write(1, b''.join(b'%030d\\n' % n for n in range(i * 264, (i + 1) * 264)))
";

fn chatty() -> Vec<u8> {
    (0..1024 * 264)
        .flat_map(|number| format!("{number:030}\n").into_bytes())
        .collect()
}

#[tokio::test]
async fn a_stalled_console_holds_up_neither_the_worker_nor_the_file() {
    let job = Job::new(Mode::Torchrun, 1);
    let mut running = job.start();
    let mut pipes = KeptPipes::new();
    running.attach(stdout_of(0), &pipes);
    let mut worker = pipes.python(CHATTY);
    finished(&mut worker).await;
    running
        .event(|event| matches!(event, OutputEvent::Dropped { .. }))
        .await;
    let log = job.log(stdout_of(0));
    until("the file", || {
        std::fs::metadata(&log).is_ok_and(|file| file.len() == 31 * 1024 * 264)
    })
    .await;
    assert!(std::fs::read(&log).unwrap() == chatty(), "the file differs");
    assert!(
        running.outputs.dropped()[0].contains("missing on the console from local rank 0's stdout")
    );
    // Whoever reads again is told.
    let reader = running.stdout.take().unwrap();
    let reader = std::thread::spawn(move || read_all(reader));
    let second = KeptPipes::new();
    running.attach(
        Stream {
            local_rank: 1,
            ..stdout_of(1)
        },
        &second,
    );
    second.write("back\n");
    let drained = running
        .outputs
        .drained(1, Instant::now() + Duration::from_millis(1))
        .await;
    assert!(!drained.unfinished.is_empty());
    drop(second);
    running.drain().await;
    drop(running);
    let shown = reader.join().unwrap();
    assert!(
        shown.starts_with("[default0]:000000000000000000000000000000\n"),
        "{}",
        &shown[..100]
    );
    assert!(shown.contains("[default1]:back\n"));
}

#[tokio::test]
async fn a_console_whose_reader_is_gone_does_not_matter() {
    let job = Job::new(Mode::Torchrun, 1);
    let mut running = job.start();
    drop((running.stdout.take(), running.stderr.take()));
    let mut pipes = KeptPipes::new();
    running.attach(stdout_of(0), &pipes);
    let mut worker = pipes.python(CHATTY);
    finished(&mut worker).await;
    running.drain().await;
    assert!(
        std::fs::read(job.log(stdout_of(0))).unwrap() == chatty(),
        "the file differs"
    );
    assert!(
        running.outputs.dropped()[0].contains("Broken pipe"),
        "{:?}",
        running.outputs.dropped()
    );
}

#[tokio::test]
async fn a_full_disk_costs_output_but_no_time_and_is_used_again_when_it_has_room() {
    let job = Job::new(Mode::Torchrun, 1);
    let log = job.log(stdout_of(0));
    std::fs::create_dir_all(log.parent().unwrap()).unwrap();
    symlink("/dev/full", &log).unwrap();
    let mut running = job.start_unseen();
    let mut pipes = KeptPipes::new();
    let kept = pipes.worker_write.as_ref().unwrap().try_clone().unwrap();
    running.attach(stdout_of(0), &pipes);
    let mut worker = pipes.python(CHATTY);
    finished(&mut worker).await;
    let error = running
        .event(|event| matches!(event, OutputEvent::LogError { .. }))
        .await;
    assert_eq!(
        error,
        OutputEvent::LogError {
            path: log.clone(),
            error: "No space left on device (os error 28)".to_owned()
        }
    );
    running
        .event(|event| matches!(event, OutputEvent::Dropped { .. }))
        .await;
    let dropped = running.outputs.dropped();
    assert!(
        dropped[0].contains("No space left on device"),
        "{dropped:?}"
    );
    // Room again.
    let real = job.directory.path().join("real.log");
    std::fs::remove_file(&log).unwrap();
    symlink(&real, &log).unwrap();
    rustix::io::write(&kept, b"after\n").unwrap();
    drop(kept);
    running.drain().await;
    let text = std::fs::read_to_string(&real).unwrap();
    assert!(
        text.starts_with("000000000000000000000000000000\n"),
        "what waited in the spool comes first"
    );
    assert!(
        text.contains("of output are missing here\n"),
        "the gap is marked"
    );
    assert!(text.ends_with("\nafter\n"));
    assert!(
        running
            .events()
            .iter()
            .all(|event| !matches!(event, OutputEvent::LogError { .. })),
        "told once"
    );
}

#[tokio::test]
async fn a_log_that_hangs_holds_up_neither_the_worker_nor_the_console() {
    let job = Job::new(Mode::Torchrun, 1);
    let log = job.log(stdout_of(0));
    std::fs::create_dir_all(log.parent().unwrap()).unwrap();
    assert!(command("mkfifo").arg(&log).status().unwrap().success());
    let mut running = job.start();
    let console = running.stdout.take().unwrap();
    let console = std::thread::spawn(move || read_all(console));
    let mut pipes = KeptPipes::new();
    running.attach(stdout_of(0), &pipes);
    let mut worker = pipes.python(CHATTY);
    finished(&mut worker).await;
    running
        .event(|event| matches!(event, OutputEvent::Dropped { .. }))
        .await;
    let drained = running
        .outputs
        .drained(1, Instant::now() + Duration::from_millis(10))
        .await;
    assert_eq!(drained.unfinished, [stdout_of(0)]);
    let dropped = running.outputs.dropped();
    assert!(
        dropped
            .iter()
            .any(|words| words.contains("the disk does not respond")),
        "{dropped:?}"
    );
    assert!(
        dropped
            .iter()
            .any(|words| words.contains("not yet written")),
        "{dropped:?}"
    );
    // The thread that hangs is let go.
    let reader = std::thread::spawn(move || std::fs::read(log).unwrap());
    running.drain().await;
    drop(running);
    assert!(
        reader
            .join()
            .unwrap()
            .starts_with(b"000000000000000000000000000000\n")
    );
    let shown = console.join().unwrap();
    assert_eq!(
        shown.lines().count(),
        1024 * 264,
        "the console missed nothing"
    );
}

#[tokio::test]
async fn a_line_of_200_megabytes_is_kept_whole() {
    let job = Job::new(Mode::Torchrun, 1);
    let mut running = job.start_unseen();
    let mut pipes = KeptPipes::new();
    running.attach(stdout_of(0), &pipes);
    let mut worker = pipes.python(
        "
import os
for i in range(200):
    left = memoryview(bytes([97 + i % 26]) * 1000000)
    while left: left = left[os.write(1, left):]
os.write(1, b'\\n')
",
    );
    finished(&mut worker).await;
    running.drain().await;
    let bytes = std::fs::read(job.log(stdout_of(0))).unwrap();
    assert_eq!(bytes.len(), 200_000_001);
    for (index, block) in bytes.chunks_exact(1_000_000).enumerate() {
        let letter = b'a' + u8::try_from(index % 26).unwrap();
        assert!(
            block.iter().all(|byte| *byte == letter),
            "block {index} differs"
        );
    }
    assert_eq!(running.outputs.dropped(), Vec::<String>::new());
    assert_eq!(running.outputs.tail(1, 0).stdout[0].len(), 2048);
}

#[tokio::test]
async fn a_log_that_hangs_does_not_hold_up_the_others() {
    let job = Job::new(Mode::Torchrun, 3);
    let hanging: Vec<PathBuf> = (0..2).map(|rank| job.log(stdout_of(rank))).collect();
    for log in &hanging {
        std::fs::create_dir_all(log.parent().unwrap()).unwrap();
        assert!(command("mkfifo").arg(log).status().unwrap().success());
    }
    let mut running = job.start_unseen();
    let mut all = Vec::new();
    for rank in 0..3 {
        let pipes = KeptPipes::new();
        running.attach(stdout_of(rank), &pipes);
        pipes.write("line\n");
        all.push(pipes);
    }
    let whole = job.log(stdout_of(2));
    until("the third log", || {
        std::fs::read_to_string(&whole).is_ok_and(|text| text == "line\n")
    })
    .await;
    for mut pipes in all {
        pipes.close();
    }
    // The threads that hang are let go.
    let readers: Vec<_> = hanging
        .into_iter()
        .map(|path| std::thread::spawn(move || std::fs::read(path).unwrap()))
        .collect();
    running.drain().await;
    drop(running);
    for reader in readers {
        assert_eq!(reader.join().unwrap(), b"line\n");
    }
}
