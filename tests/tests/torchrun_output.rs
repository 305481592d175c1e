// SPDX-License-Identifier: Apache-2.0
//! What people and scripts that read torchrun's logs rely on.

use std::collections::BTreeSet;

use serde_json::Value;
use steadfast_tests::Launch;

#[test]
fn output_goes_where_redirects_and_tee_say() {
    // 0 only redirected, 1 to the console alone, 2 only standard error in a file, 11 teed.
    let options = [
        "--nproc-per-node",
        "12",
        "-r",
        "0:3,2:2,11:3",
        "-t",
        "11:3",
        "--log-line-prefix-template",
        "",
    ];
    let steps = [
        "@rank=0@out:o0",
        "@rank=0@err:e0",
        "@rank=1@out:o1",
        "@rank=1@err:e1",
        "@rank=2@out:o2",
        "@rank=2@err:e2",
        "@rank=11@out:o11",
        "@rank=11@err:e11",
    ];
    let mut job = Launch::torchrun(&options).worker(&steps).start();
    let outcome = job.wait();
    outcome.ended_with(0);
    let mut stdout: Vec<String> = outcome.stdout_text().lines().map(str::to_owned).collect();
    stdout.sort();
    assert_eq!(stdout, ["[default11]:o11", "o1", "o2"]);
    let words: Vec<&str> = outcome
        .stderr
        .lines()
        .filter(|line| line.len() < 20)
        .collect();
    let said: BTreeSet<&str> = words.into_iter().collect();
    assert_eq!(said, BTreeSet::from(["e1", "[default11]:e11"]));
    for (rank, stdout, stderr) in [
        (0, "o0\n", "e0\n"),
        (1, "", ""),
        (2, "", "e2\n"),
        (11, "o11\n", "e11\n"),
    ] {
        assert_eq!(
            (job.log(0, rank, "stdout"), job.log(0, rank, "stderr")),
            (stdout.to_owned(), stderr.to_owned()),
            "{rank}"
        );
    }
}

#[test]
fn the_files_of_every_attempt_are_kept_where_torchrun_puts_them() {
    let options = [
        "--nproc-per-node",
        "2",
        "--max-restarts",
        "1",
        "--rdzv-id",
        "run-7",
        "-r",
        "3",
    ];
    let steps = [
        "@restart=0@out:first",
        "@restart=1@out:second",
        "@restart=0@error-file:torch:broken",
        "@restart=0@exit:1",
    ];
    let mut job = Launch::torchrun(&options).worker(&steps).start();
    job.wait().ended_with(0);
    let run_dir = job.run_dir();
    let name = run_dir.file_name().unwrap().to_str().unwrap();
    let random = name
        .strip_prefix("run-7_")
        .unwrap_or_else(|| panic!("{name}"));
    assert_eq!(random.len(), 8, "{name}");
    for rank in 0..2 {
        // The one that is ended because the other one failed may not have come to print anything.
        let first = job.log(0, rank, "stdout");
        assert!(["", "first\n"].contains(&first.as_str()), "{first}");
        assert_eq!(job.log(1, rank, "stdout"), "second\n");
        assert!(
            !run_dir
                .join(format!("attempt_1/{rank}/error.json"))
                .exists()
        );
    }
    assert!((0..2).any(|rank| {
        let error = run_dir.join(format!("attempt_0/{rank}/error.json"));
        error.exists() && job.log(0, rank, "stdout") == "first\n"
    }));
}

#[test]
fn filters_choose_what_the_console_and_the_common_files_show() {
    let options = [
        "--nproc-per-node",
        "3",
        "-t",
        "3",
        "--local-ranks-filter",
        "0,2",
        "--duplicate-stdout-filters",
        "loss,acc",
    ];
    let steps = [
        "@rank=0@out:loss 0",
        "@rank=1@out:loss 1",
        "@rank=2@out:nothing 2",
    ];
    let mut job = Launch::torchrun(&options).worker(&steps).start();
    let outcome = job.wait();
    outcome.ended_with(0);
    let mut shown: Vec<String> = outcome.stdout_text().lines().map(str::to_owned).collect();
    shown.sort();
    assert_eq!(shown, ["[default0]:loss 0", "[default2]:nothing 2"]);
    let filtered =
        std::fs::read_to_string(job.run_dir().join("attempt_0/filtered_stdout.log")).unwrap();
    let mut lines: Vec<&str> = filtered.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["[default0]:loss 0", "[default1]:loss 1"]);
}

#[test]
fn error_files_are_read_and_the_first_one_is_passed_on() {
    for form in ["torch", "plain"] {
        let launch = Launch::torchrun(&["--nproc-per-node", "2"]);
        let passed_on = launch.directory().join("work/passed-on.json");
        let error = format!("error-file:{form}:ValueError about a bad batch");
        let steps = [&format!("@rank=1@{error}"), "@rank=1@exit:7", "hang"];
        let mut job = launch
            .worker(&steps)
            .env("TORCHELASTIC_ERROR_FILE", passed_on.to_str().unwrap())
            .start();
        job.wait()
            .ended_with(1)
            .said("ValueError about a bad batch")
            .said("rank      : 1 (local_rank: 1)");
        let text = std::fs::read_to_string(&passed_on).unwrap();
        let copy: Value = serde_json::from_str(&text).unwrap();
        // The older form has no place for the code inside the message.
        let holder = if form == "torch" {
            &copy["message"]
        } else {
            &copy
        };
        assert_eq!(holder["errorCode"], 7, "{form}: {text}");
        assert!(
            text.contains("ValueError about a bad batch"),
            "{form}: {text}"
        );
    }
}
