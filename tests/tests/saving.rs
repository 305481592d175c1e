// SPDX-License-Identifier: Apache-2.0
//! Workers are asked for a checkpoint before they are stopped on purpose: then no step is lost.

#![expect(clippy::unwrap_used, reason = "this is test code")]

use std::fs;
use std::path::Path;

use nix::sys::signal::Signal;
use steadfast_tests::{
    Job, Launch, Life, Nodes, Outcome, Requirement, long_tests, name, number, python, send,
};

/// How the toy job lays out its checkpoints.
const TOY_RULE: &str = r"name = 'step-(?<step>\d+)\.toy'";

const NOTHING: [u64; 0] = [];

/// One of the example jobs with two workers on one node, which saves only when it is asked to.
struct Training {
    job: Job,
    name: &'static str,
}

impl Training {
    fn toy(options: &[&str], more: &[&str]) -> Option<Training> {
        Training::toy_with(options, more, &[])
    }

    fn toy_with(options: &[&str], more: &[&str], environment: &[(&str, &str)]) -> Option<Training> {
        Requirement::Python.met().then(|| {
            let rule = ["--checkpoint-layout", "rule.toml"];
            let options = [&rule[..], options].concat();
            start("train_toy.py", "toy", &options, more, environment)
        })
    }

    fn ddp(options: &[&str]) -> Option<Training> {
        Requirement::Torch
            .met()
            .then(|| start("train_ddp.py", "ddp", options, &[], &[]))
    }

    fn life(&self) -> Life {
        let mut life = Life::default();
        life.catch_up(&self.job.work().join("life.jsonl"));
        life
    }

    #[track_caller]
    fn reach(&self, step: u64) {
        self.job.eventually(&format!("step {step}"), |_| {
            (self.life().last_step() >= step).then_some(())
        });
    }

    /// Waits until the workers can be asked.
    #[track_caller]
    fn reach_checkpoint(&self) -> Outcome {
        self.reach(5);
        self.job.eventually("a checkpoint on request", |_| {
            let asked = self.ask("checkpoint", &["--wait"]);
            asked.status.success().then_some(asked)
        })
    }

    fn ask(&self, command: &str, more: &[&str]) -> Outcome {
        let job = ["--job", self.name];
        self.job.ask(command, &[&job[..], more].concat())
    }

    #[track_caller]
    fn has_lost_nothing(&self) {
        let life = self.life();
        let (last, saves) = (life.last_step(), life.saves());
        assert_eq!(saves.last(), Some(&last), "{}", self.job.describe());
        assert_eq!(life.made_again(), NOTHING, "{}", self.job.describe());
    }
}

fn start(
    script: &str,
    name: &'static str,
    options: &[&str],
    more: &[&str],
    environment: &[(&str, &str)],
) -> Training {
    let script = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../examples")
        .join(script);
    let fixed = ["--nproc-per-node", "2", "--checkpoint-dir", "saves"];
    let mut launch = Launch::run(&[&fixed[..], options].concat()).named(name);
    for (name, value) in environment {
        launch = launch.env(name, value);
    }
    let work = launch.directory().join("work");
    fs::write(work.join("rule.toml"), TOY_RULE).unwrap();
    let (saves, life) = (work.join("saves"), work.join("life.jsonl"));
    let command = [
        "--",
        python(),
        "-u",
        script.to_str().unwrap(),
        "--steps=100000",
        "--step-time=0.03",
        "--checkpoint-every=1000000",
        "--log-every=1000",
        "--checkpoint-dir",
        saves.to_str().unwrap(),
        "--json-log",
        life.to_str().unwrap(),
    ];
    let job = launch
        .env("STEADFAST_WORKING_DIR", work.to_str().unwrap())
        .command(&[&command[..], more].concat())
        .start();
    Training { job, name }
}

#[test]
fn a_stop_and_a_restart_lose_no_step() {
    let Some(mut toy) = Training::toy(&[], &[]) else {
        return;
    };
    let made = toy.reach_checkpoint();
    let printed = String::from_utf8_lossy(&made.stdout).into_owned();
    assert!(printed.contains("was made"), "{printed}");
    toy.ask("restart", &[]).ended_with(0);
    toy.job.eventually("another generation", |_| {
        (toy.life().newest_generation_with_steps()? > 1).then_some(())
    });
    // The new workers, too, must have been seen to ask whether they shall save.
    toy.reach_checkpoint();
    toy.ask("stop", &[]).ended_with(0);
    toy.job
        .wait()
        .ended_with(143)
        .said("was made: asked for by `steadfast stop`");
    toy.has_lost_nothing();
    assert_eq!(toy.job.journal_of("checkpoint.missed").len(), 0);
}

#[test]
fn a_preemption_with_five_seconds_loses_no_step_if_the_save_fits() {
    let Some(mut toy) = Training::toy(&["--stop-grace", "5s"], &[]) else {
        return;
    };
    toy.reach_checkpoint().ended_with(0);
    toy.job.signal(Signal::SIGTERM);
    toy.job.wait().ended_with(143);
    toy.has_lost_nothing();
}

#[test]
fn a_save_that_does_not_fit_is_not_waited_for_and_leaves_what_was_there() {
    let options = ["--stop-grace", "2s"];
    let Some(mut toy) = Training::toy(&options, &["--quick-saves", "1", "--save-time", "1000"])
    else {
        return;
    };
    toy.reach_checkpoint().ended_with(0);
    let whole = toy.life().saves();
    toy.job.signal(Signal::SIGTERM);
    toy.job
        .wait()
        .ended_with(143)
        .said("no checkpoint was made in time");
    assert_eq!(toy.life().saves(), whole);
}

#[test]
fn an_agent_that_dies_while_a_stop_waits_is_replaced_and_the_stop_comes() {
    let Some(mut toy) = Training::toy(
        &["--stop-grace", "8s"],
        &["--quick-saves", "1", "--save-time", "3"],
    ) else {
        return;
    };
    toy.reach_checkpoint().ended_with(0);
    toy.job.signal(Signal::SIGTERM);
    toy.job.eventually("the wish for a checkpoint", |job| {
        (job.journal_of("checkpoint.asked").len() > 1).then_some(())
    });
    toy.job.kill_agent();
    toy.job.wait().ended_with(143);
    toy.has_lost_nothing();
}

#[test]
fn torch_ddp_loses_no_step_when_it_is_stopped_or_restarted() {
    let Some(mut ddp) = Training::ddp(&[]) else {
        return;
    };
    ddp.reach_checkpoint().ended_with(0);
    ddp.ask("restart", &[]).ended_with(0);
    ddp.job.eventually("another generation", |_| {
        (ddp.life().newest_generation_with_steps()? > 1).then_some(())
    });
    ddp.reach_checkpoint();
    ddp.ask("stop", &[]).ended_with(0);
    ddp.job.wait().ended_with(143);
    ddp.has_lost_nothing();
}

#[test]
fn a_program_that_asks_is_told_to_save_when_the_last_checkpoint_is_too_long_ago() {
    let Some(mut toy) = Training::toy(&["--checkpoint-every", "1s", "--keep", "1"], &[]) else {
        return;
    };
    toy.reach(5);
    toy.job
        .eventually("three checkpoints that nobody asked for", |job| {
            (job.journal_of("checkpoint.committed").len() >= 3).then_some(())
        });
    toy.ask("stop", &[]).ended_with(0);
    toy.job.wait().ended_with(143);
    toy.has_lost_nothing();
    let committed = toy.job.journal_of("checkpoint.committed");
    let saves = toy.life().saves();
    for line in &committed {
        assert!(saves.contains(&line["step"].as_u64().unwrap()), "{line}");
    }
    // What is left is the last one, and at most what the stop left no time to delete.
    let newest = format!("step-{:08}.toy", saves.last().unwrap());
    assert!(toy.job.work().join("saves").join(newest).exists());
    assert!(!toy.job.journal_of("checkpoint.deleted").is_empty());
    assert!(!toy.job.journal_of("checkpoint.advice").is_empty());
}

#[test]
fn a_job_ends_before_its_time_limit_loses_no_step_and_is_to_be_run_again() {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime).tv_sec;
    let end = (now + 22).to_string();
    let options = ["--time-limit-lead", "12s", "--stop-grace", "1s"];
    let Some(mut toy) = Training::toy_with(&options, &[], &[("SLURM_JOB_END_TIME", &end)]) else {
        return;
    };
    toy.reach_checkpoint().ended_with(0);
    toy.job
        .wait()
        .ended_with(75)
        .said("the scheduler's time limit is")
        .said("was made: the scheduler's time limit");
    toy.has_lost_nothing();
}

#[test]
fn the_schedulers_signal_ends_a_job_that_is_to_be_run_again_without_a_lost_step() {
    let options = ["--time-limit-signal", "SIGUSR1"];
    let Some(mut toy) = Training::toy(&options, &[]) else {
        return;
    };
    toy.reach_checkpoint().ended_with(0);
    toy.job.signal(Signal::SIGUSR1);
    toy.job
        .wait()
        .ended_with(75)
        .said("the scheduler's signal says that time is nearly up: the job ends now")
        .said("was made: the scheduler's signal");
    assert!(toy.job.journal_of("signal.forwarded").is_empty());
    toy.has_lost_nothing();
}

#[test]
fn the_schedulers_signal_is_not_forgotten_while_there_is_no_agent() {
    let options = ["--time-limit-signal", "SIGUSR2"];
    let Some(mut toy) = Training::toy(&options, &[]) else {
        return;
    };
    toy.reach_checkpoint().ended_with(0);
    let agent = toy.job.agent().unwrap();
    assert!(send(agent, Signal::SIGSTOP));
    toy.job.signal(Signal::SIGUSR2);
    toy.job.kill_agent();
    toy.job.wait().ended_with(75);
    toy.has_lost_nothing();
}

/// A program that saves when there is a certain file, and goes on.
const SAVES_UPON_A_FILE: &str = r#"
    step=0
    while :; do
        step=$((step + 1)); echo "step $step"; sleep 0.05
        if [ -e save-now ] && [ "$saved" != 1 ]; then printf '\200\002}.' > saves/ckpt_$step.pt; saved=1; fi
    done
"#;

#[test]
fn a_program_can_be_asked_by_a_file() {
    let options = ["--checkpoint-dir", "saves", "--checkpoint-file", "save-now"];
    let launch = Launch::run(&options).named("file");
    let work = launch.directory().join("work");
    fs::create_dir(work.join("saves")).unwrap();
    let job = launch
        .env("STEADFAST_WORKING_DIR", work.to_str().unwrap())
        .command(&["--", "bash", "-c", SAVES_UPON_A_FILE])
        .start();
    job.eventually("a step", |job| job.status()?["step"].as_u64());
    let made = job.eventually("a checkpoint on request", |job| {
        let asked = job.ask("checkpoint", &["--job", "file", "--wait"]);
        asked.status.success().then_some(asked)
    });
    let printed = String::from_utf8_lossy(&made.stdout).into_owned();
    assert!(printed.contains("was made"), "{printed}");
    job.eventually("the file to be gone", |_| {
        (!work.join("save-now").exists()).then_some(())
    });
    assert_eq!(job.journal_of("checkpoint.committed").len(), 1);
}

/// A program that saves upon a signal, and ends then, as several frameworks do.
const SAVES_UPON_USR1: &str = r#"
    step=${STEADFAST_RESUME_STEP:-0}
    save() { step=$((step + 1)); printf '\200\002}.' > saves/ckpt_$step.pt; exit 0; }
    trap save USR1
    while :; do step=$((step + 1)); echo "step $step"; sleep 0.05; done
"#;

#[test]
fn a_program_that_saves_upon_a_signal_and_ends_has_not_finished() {
    let options = ["--checkpoint-dir", "saves", "--checkpoint-signal", "USR1"];
    let launch = Launch::run(&options).named("shell");
    let work = launch.directory().join("work");
    fs::create_dir(work.join("saves")).unwrap();
    let mut job = launch
        .env("STEADFAST_WORKING_DIR", work.to_str().unwrap())
        .command(&["--", "bash", "-c", SAVES_UPON_USR1])
        .start();
    let steps = |generation: u32| {
        move |job: &Job| {
            job.log(generation, 0, "stdout")
                .contains("step")
                .then_some(())
        }
    };
    job.eventually("a step", |job| job.status()?["step"].as_u64());
    job.ask("restart", &["--job", "shell"]).ended_with(0);
    job.eventually("the second generation", steps(1));
    job.ask("stop", &["--job", "shell"]).ended_with(0);
    let outcome = job.wait();
    outcome.said("generation 2 resumes from step");
    let committed = job.journal_of("checkpoint.committed");
    assert!(!committed.is_empty(), "{}", job.describe());
}

/// Two nodes that save only when they are asked to, in a directory that they share.
fn nodes(options: &[&str], count: u8) -> Option<Nodes> {
    let (mut nodes, options) = ready_nodes(options, count)?;
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    nodes.start_all(&options);
    nodes.reach(10);
    nodes.can_be_asked();
    Some(nodes)
}

/// The same before any is started, with the options to start them with.
fn ready_nodes(options: &[&str], count: u8) -> Option<(Nodes, Vec<String>)> {
    let nodes = Nodes::new(count, 1)?
        .saving_every(1_000_000)
        .with_steps(400);
    let mut all = saving_options(&nodes);
    all.extend(options.iter().map(|option| (*option).to_owned()));
    Some((nodes, all))
}

#[test]
fn a_job_that_grows_asks_for_a_checkpoint_before_and_loses_no_step() {
    let options = ["--nnodes", "1:2", "--shrink-after", "0s"];
    let Some((nodes, options)) = ready_nodes(&options, 2) else {
        return;
    };
    let mut nodes = nodes.with_steps(250);
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    nodes.start_all(&options);
    nodes.reach(10);
    let (stays, lost) = (number(&nodes.places()[0]), number(&nodes.places()[1]));
    nodes.job(lost).signal(Signal::SIGKILL);
    let second = nodes.generation_after(1);
    assert_eq!(nodes.places(), [name(stays)], "{}", nodes.describe());
    nodes.go_on(20);
    nodes.can_be_asked();
    let lost_with_the_node = nodes.life().made_again();
    nodes.start(lost, &options);
    nodes.generation_after(second);
    assert_eq!(nodes.places().len(), 2, "{}", nodes.describe());
    nodes.all_end_with(0, &[1, 2]);
    nodes.trained_rightly(2);
    let again = nodes.life().made_again();
    assert_eq!(again, lost_with_the_node, "{}", nodes.describe());
    let asked = nodes.job(stays).journal_of("checkpoint.asked");
    assert!(!asked.is_empty(), "{}", nodes.describe());
}

/// Makes a directory for the checkpoints of all nodes, and says where it is and what is in it.
fn saving_options(nodes: &Nodes) -> Vec<String> {
    let rule = nodes.shared("rule.toml");
    fs::write(&rule, TOY_RULE).unwrap();
    let directory = nodes.shared("checkpoints");
    fs::create_dir(&directory).unwrap();
    let paths = [
        ("--checkpoint-dir", directory),
        ("--checkpoint-layout", rule),
    ];
    let options = paths
        .iter()
        .flat_map(|(option, path)| [(*option).to_owned(), path.to_str().unwrap().to_owned()]);
    options.collect()
}

#[test]
fn a_node_that_is_preempted_hands_over_without_a_lost_step() {
    let options = ["--nnodes", "2", "--spares", "1", "--stop-grace", "10s"];
    let Some(mut nodes) = nodes(&options, 3) else {
        return;
    };
    nodes.reach(40);
    let (leaving, other, spare) = nodes.two_and_a_spare();
    nodes.job(leaving).signal(Signal::SIGTERM);
    nodes.all_end_with(143, &[leaving]);
    nodes.generation_after(1);
    assert_eq!(nodes.places(), [name(spare), name(other)]);
    nodes.all_end_with(0, &[other, spare]);
    nodes.trained_rightly(2);
    let again = nodes.life().made_again();
    assert_eq!(again, NOTHING, "{}", nodes.describe());
    let committed = nodes.job(other).journal_of("checkpoint.committed");
    assert_eq!(committed.len(), 1, "{}", nodes.describe());
    let key = format!("/steadfast/job/checkpoints/{}", committed[0]["step"]);
    let record = nodes.etcd.value(&key).unwrap();
    assert_eq!(
        (&record["generation"], &record["world_size"]),
        (&1.into(), &2.into())
    );
}

#[test]
fn a_node_that_is_told_too_late_at_which_step_to_save_costs_no_step() {
    let options = ["--nnodes", "2", "--lease", "20s"];
    let Some((mut nodes, options)) = ready_nodes(&options, 2) else {
        return;
    };
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    // The first one leads; rank 0, which saves, is on the other.
    nodes.start(2, &options);
    assert_eq!(nodes.leader(), 2);
    nodes.start(1, &options);
    nodes.reach(10);
    nodes.can_be_asked();
    assert_eq!(nodes.places(), [name(1), name(2)]);
    let agent = nodes.job(1).agent().unwrap();
    assert!(send(agent, Signal::SIGSTOP));
    nodes.job(2).ask("restart", &["--job", "job"]).ended_with(0);
    let asked = |nodes: &Nodes| -> Vec<u64> {
        let lines = nodes.job(2).journal_of("checkpoint.asked");
        lines
            .iter()
            .filter_map(|line| line["step"].as_u64())
            .collect()
    };
    let step = nodes.eventually("an order", |nodes| asked(nodes).first().copied());
    nodes.reach(step);
    assert!(send(agent, Signal::SIGCONT));
    nodes.generation_after(1);
    nodes.all_end_with(0, &[1, 2]);
    nodes.trained_rightly(2);
    assert_eq!(nodes.life().made_again(), NOTHING, "{}", nodes.describe());
    let steps = asked(&nodes);
    assert!(steps.len() > 1, "{steps:?}: {}", nodes.describe());
}

#[test]
fn a_restart_of_two_nodes_resumes_both_from_what_the_leader_chose() {
    let Some(mut nodes) = nodes(&["--nnodes", "2"], 2) else {
        return;
    };
    nodes.reach(40);
    nodes.job(2).ask("restart", &["--job", "job"]).ended_with(0);
    nodes.generation_after(1);
    nodes.all_end_with(0, &[1, 2]);
    nodes.trained_rightly(2);
    assert_eq!(nodes.life().made_again(), NOTHING, "{}", nodes.describe());
    let chosen: Vec<_> = [1, 2]
        .map(|node| nodes.job(node).journal_of("checkpoint.chosen"))
        .into_iter()
        .flatten()
        .map(|line| line["path"].clone())
        .collect();
    assert_eq!(chosen.len(), 2, "{}", nodes.describe());
    assert_eq!(chosen[0], chosen[1]);
}

#[test]
fn torch_ddp_on_two_nodes_loses_no_step_when_it_is_restarted_and_stopped() {
    if !(long_tests() && Requirement::Torch.met()) {
        return;
    }
    let Some(mut nodes) = Nodes::new(2, 1) else {
        return;
    };
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/train_ddp.py");
    let (directory, life) = (nodes.shared("checkpoints"), nodes.shared("life.jsonl"));
    fs::create_dir(&directory).unwrap();
    let directory = directory.to_str().unwrap();
    let command = [
        "--",
        python(),
        "-u",
        script.to_str().unwrap(),
        "--steps=100000",
        "--step-time=0.03",
        "--checkpoint-every=1000000",
        "--log-every=1000",
        "--checkpoint-dir",
        directory,
        "--json-log",
        life.to_str().unwrap(),
    ];
    for node in [1, 2] {
        let options = ["--nnodes", "2", "--checkpoint-dir", directory];
        let launch = nodes.launch(node, &options).command(&command);
        let job = launch.env("GLOO_SOCKET_IFNAME", "eth0").start();
        nodes.adopt(node, job);
    }
    let job = ["--job", "job"];
    let can_be_asked = |nodes: &Nodes| {
        nodes.eventually("a checkpoint on request", |nodes| {
            let asked = nodes
                .job(2)
                .ask("checkpoint", &[&job[..], &["--wait"]].concat());
            asked.status.success().then_some(())
        });
    };
    nodes.reach(5);
    can_be_asked(&nodes);
    nodes.job(2).ask("restart", &job).ended_with(0);
    nodes.generation_after(1);
    can_be_asked(&nodes);
    nodes.job(1).ask("stop", &job).ended_with(0);
    nodes.all_end_with(143, &[1, 2]);
    let life = nodes.life();
    assert_eq!(life.made_again(), NOTHING, "{}", nodes.describe());
    let last = life.last_step();
    assert_eq!(life.saves().last(), Some(&last), "{}", nodes.describe());
}

#[test]
fn what_two_nodes_save_by_themselves_is_committed_once_both_have_flushed_it() {
    let Some(mut nodes) = Nodes::new(2, 1) else {
        return;
    };
    nodes = nodes.saving_every(20).with_steps(400);
    let fixed = saving_options(&nodes);
    let fixed = fixed.iter().map(String::as_str);
    let options: Vec<&str> = fixed.chain(["--nnodes", "2", "--keep", "2"]).collect();
    nodes.start_all(&options);
    nodes.reach(10);
    let committed = |nodes: &Nodes, node: u8| nodes.job(node).journal_of("checkpoint.committed");
    nodes.job(1).eventually("commits on both nodes", |_| {
        let both = [1, 2]
            .iter()
            .all(|node| committed(&nodes, *node).len() >= 2);
        both.then_some(())
    });
    let step = committed(&nodes, 2).last().unwrap()["step"].clone();
    let key = format!("/steadfast/job/checkpoints/{step}");
    let record = nodes.etcd.value(&key).unwrap();
    assert_eq!(
        (&record["generation"], &record["world_size"]),
        (&1.into(), &2.into())
    );
    nodes.all_end_with(0, &[1, 2]);
    nodes.trained_rightly(2);
}
