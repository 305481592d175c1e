// SPDX-License-Identifier: Apache-2.0
//! Workers resume from whole checkpoints; torn ones are out of their way before they start.

#![expect(clippy::unwrap_used, reason = "this is test code")]

use std::fs;

use nix::sys::signal::Signal;
use steadfast_tests::{Job, Launch, send};

/// Writes a whole `$1`: the smallest file that `torch.load` takes.
const SAVE: &str = r"save() { printf '\200\002}.' > $1; }";

/// A job of one worker that runs this shell script in every generation.
fn job(options: &[&str], script: &str) -> Job {
    let options = [&["--checkpoint-dir", "saves"], options].concat();
    let launch = Launch::run(&options);
    fs::create_dir(launch.directory().join("work/saves")).unwrap();
    let script = format!("cd \"$0\"; {SAVE}; {script}");
    let work = launch.directory().join("work");
    let options_and_place = ["--", "sh", "-c", &script, work.to_str().unwrap()];
    launch
        .env("STEADFAST_WORKING_DIR", work.to_str().unwrap())
        .command(&options_and_place)
        .start()
}

fn names(job: &Job) -> Vec<String> {
    let entries = fs::read_dir(job.work().join("saves")).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    // What Steadfast itself remembers.
    names.retain(|name| name != ".steadfast");
    names.sort();
    names
}

#[test]
fn workers_resume_from_the_newest_whole_checkpoint_and_find_no_torn_one() {
    let mut job = job(
        &[],
        r#"
        echo "from:$STEADFAST_RESUME_STEP:$STEADFAST_RESUME_PATH"
        ls saves
        [ $STEADFAST_GENERATION = 1 ] || exit 0
        save saves/ckpt_10.pt
        save saves/ckpt_20.pt
        : > saves/ckpt_30.pt
        exit 3
        "#,
    );
    job.wait()
        .ended_with(0)
        .said("checkpoint ckpt_30.pt is torn")
        .said("generation 2 resumes from step 20");
    assert_eq!(job.log(0, 0, "stdout"), "from::\n");
    let path = job.work().join("saves/ckpt_20.pt");
    let expected = format!("from:20:{}\nckpt_10.pt\nckpt_20.pt\n", path.display());
    assert_eq!(job.log(1, 0, "stdout"), expected);
    assert!(
        names(&job)[0].starts_with(".steadfast-torn-ckpt_30.pt-"),
        "{:?}",
        names(&job)
    );
    let chosen = job.journal_of("checkpoint.chosen");
    assert_eq!((chosen.len(), &chosen[0]["step"]), (1, &20.into()));
    assert_eq!(
        job.journal_of("checkpoint.moved_aside")[0]["name"],
        "ckpt_30.pt"
    );
}

#[test]
fn what_was_not_flushed_when_the_machine_went_down_is_not_resumed_from() {
    let mut job = job(
        &[],
        r#"
        if [ $STEADFAST_GENERATION = 1 ]; then
            save saves/ckpt_10.pt
            while ! [ -e flushed ]; do sleep 0.1; done
            save saves/ckpt_20.pt
            # As it would be found after a power cut.
            sed -i "s/\"boot\":\"[^\"]*/&-earlier/" saves/.steadfast/boot-node
            touch cut
            while ! [ -e finish ]; do sleep 0.1; done
        fi
        echo "from:$STEADFAST_RESUME_STEP"
        "#,
    );
    job.eventually("the agent", Job::status);
    job.eventually("the commit", |job| {
        job.journal_of("checkpoint.committed").into_iter().next()
    });
    // It must not come to flushing the second one.
    assert!(send(job.agent().unwrap(), Signal::SIGSTOP));
    job.touch("flushed");
    job.eventually("the power cut", |job| {
        job.work().join("cut").exists().then_some(())
    });
    // The agent is started anew, as on a machine that has come up; the worker is, too.
    let old = job.kill_agent().unwrap();
    job.other_agent(old);
    job.ask("restart", &["--job", "job"]).ended_with(0);
    job.wait()
        .ended_with(0)
        .said("checkpoint ckpt_20.pt is torn (the machine went down");
    assert_eq!(job.log(1, 0, "stdout"), "from:10\n");
}

#[test]
fn checkpoints_are_noticed_while_the_workers_run_and_remembered() {
    let mut job = job(
        &[],
        "save saves/ckpt_10.pt; while ! [ -e finish ]; do sleep 0.1; done",
    );
    job.eventually("the agent", Job::status);
    job.eventually("the checkpoint", |job| {
        job.journal_of("checkpoint.made").into_iter().next()
    });
    let manifest = job.work().join("saves/.steadfast/ckpt_10.pt.json");
    job.eventually("its manifest", |_| manifest.exists().then_some(()));
    job.touch("finish");
    job.wait().ended_with(0);
    let made = job.journal_of("checkpoint.made");
    assert_eq!((made.len(), &made[0]["step"]), (1, &10.into()));
}

/// A Megatron checkpoint of step 10, and a tracker that is ahead of it.
const AHEAD: &str = r"
    if [ $STEADFAST_GENERATION = 1 ]; then
        mkdir -p saves/iter_0000010/mp_rank_00
        save saves/iter_0000010/mp_rank_00/model_optim_rng.pt
        mkdir -p saves/iter_0000020/mp_rank_00
        printf 20 > saves/latest_checkpointed_iteration.txt
        exit 3
    fi
    cat saves/latest_checkpointed_iteration.txt
";

#[test]
fn a_tracker_that_is_ahead_is_corrected_only_on_request() {
    let mut told = job(&[], AHEAD);
    told.wait()
        .ended_with(0)
        .said("--fix-tracker corrects that");
    assert_eq!(told.log(1, 0, "stdout"), "20");
    let mut fixed = job(&["--fix-tracker"], AHEAD);
    fixed.wait().ended_with(0).said("it says `10` now");
    assert_eq!(fixed.log(1, 0, "stdout"), "10");
    let copy = names(&fixed)
        .into_iter()
        .find(|name| name.starts_with(".steadfast-was-latest"))
        .unwrap();
    let copy = fixed.work().join("saves").join(copy);
    assert_eq!(fs::read_to_string(copy).unwrap(), "20");
}

#[test]
fn old_checkpoints_go_once_a_newer_one_is_committed_and_torn_ones_and_linked_ones_stay() {
    let script = r"
        : > saves/ckpt_0.pt
        for step in 1 2 3 4 5; do save saves/ckpt_$step.pt; done
        ln -s ckpt_1.pt saves/best.pt
        while ! [ -e finish ]; do sleep 0.1; done
    ";
    let mut job = job(&["--keep", "2"], script);
    job.eventually("the agent", Job::status);
    let left = [
        "best.pt",
        "ckpt_0.pt",
        "ckpt_1.pt",
        "ckpt_4.pt",
        "ckpt_5.pt",
    ];
    job.eventually("old ones to go", |job| (names(job) == left).then_some(()));
    let status = job.eventually("the commit in the status", |job| {
        job.status().filter(|status| status["committed_step"] == 5)
    });
    assert_eq!(status["committed_step"], 5);
    job.touch("finish");
    job.wait().ended_with(0);
    let committed = job.journal_of("checkpoint.committed");
    assert_eq!(committed.last().unwrap()["step"], 5);
    let mut deleted: Vec<_> = job
        .journal_of("checkpoint.deleted")
        .iter()
        .map(|line| line["step"].as_u64().unwrap())
        .collect();
    deleted.sort_unstable();
    assert_eq!(deleted, [2, 3]);
    assert_eq!(names(&job), left);
}
