// SPDX-License-Identifier: Apache-2.0
//! Steadfast's hooks in a real Slurm cluster. Minutes, so only with `STEADFAST_LONG_TESTS=1`.

#![expect(clippy::print_stderr, reason = "this is test code")]

use std::fs;
use std::path::Path;

use steadfast_tests::{
    Requirement, SlurmCluster, SlurmSite, eventually, long_tests, python, steadfast,
};

const LOST: &str =
    "NVRM: Xid (PCI:0000:18:00): 79, pid=1, name=python, GPU has fallen off the bus.";
const MENDED: &str = "NVRM: Xid (PCI:0000:18:00): 154, GPU recovery action changed from 0x2 (Node Reboot Required) to 0x0 (None)";

/// Nodes of each cluster.
const NODES: u16 = 8;

/// A cluster, if this machine can have one and time for it is given.
fn cluster(site: SlurmSite<'_>) -> Option<SlurmCluster> {
    if !long_tests() {
        eprintln!("SKIPPED: a real Slurm cluster is started only with STEADFAST_LONG_TESTS=1");
        return None;
    }
    Requirement::Slurm
        .met()
        .then(|| SlurmCluster::start(NODES, site))
}

/// No health checks between: the prolog is to see the fault first.
const NO_HEALTH: &str = "HealthCheckInterval=0";

#[test]
fn slurm_a_sick_node_fails_its_prolog_is_drained_and_the_job_requeued() {
    let site = SlurmSite {
        settings: "[prolog]\ndrain = true\n",
        slurm_conf: NO_HEALTH,
        ..SlurmSite::default()
    };
    let Some(cluster) = cluster(site) else {
        return;
    };
    cluster.kernel_says("n1", LOST);
    let job = cluster.submit(&["-w", "n1"], "echo ran");
    cluster.node_shows("n1", &["DRAIN", "Reason=steadfast: XID 79 at 0000:18:00"]);
    // As Slurm documents it: the job is back in the queue, and held.
    cluster.job_shows(
        &job,
        &[
            "JobState=PENDING",
            "launch_failed_requeued_held",
            "Restarts=1",
        ],
    );
    cluster.kernel_says("n1", MENDED);
    let health = cluster.path("hooks/health");
    let status = cluster
        .command(&[health.to_str().unwrap()])
        .env("SLURMD_NODENAME", "n1")
        .status()
        .unwrap();
    assert!(status.success());
    cluster.node_shows("n1", &["State=IDLE "]);
    cluster.ask(&["scontrol", "release", &job]);
    cluster.ask(&[
        "scontrol",
        "update",
        &format!("JobId={job}"),
        "StartTime=now",
    ]);
    cluster.job_shows(&job, &["JobState=COMPLETED"]);
    assert!(cluster.read(&format!("job.{job}.out")).contains("ran"));
}

#[test]
fn slurm_without_a_call_the_drain_is_slurms_own_and_stays() {
    let site = SlurmSite {
        settings: "",
        slurm_conf: NO_HEALTH,
        ..SlurmSite::default()
    };
    let Some(cluster) = cluster(site) else {
        return;
    };
    cluster.kernel_says("n1", LOST);
    let job = cluster.submit(&["-w", "n1"], "echo ran");
    cluster.node_shows("n1", &["DRAIN", "Reason=Prolog error"]);
    cluster.kernel_says("n1", MENDED);
    let health = cluster.path("hooks/health");
    let output = cluster
        .command(&[health.to_str().unwrap()])
        .env("SLURMD_NODENAME", "n1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        said.contains("somebody else has drained the node (Prolog error)"),
        "{said}"
    );
    assert!(
        cluster.node("n1").contains("DRAIN"),
        "{}",
        cluster.job(&job)
    );
}

#[test]
fn slurm_health_drains_on_an_xid_and_resumes_when_it_is_mended() {
    let Some(cluster) = cluster(SlurmSite::default()) else {
        return;
    };
    cluster.kernel_says("n2", LOST);
    cluster.node_shows("n2", &["DRAIN", "Reason=steadfast: XID 79"]);
    assert!(!cluster.node("n1").contains("DRAIN"));
    cluster.kernel_says("n2", MENDED);
    cluster.node_shows("n2", &["State=IDLE "]);
    // What a person has drained stays so.
    cluster.ask(&[
        "scontrol",
        "update",
        "NodeName=n1",
        "State=DRAIN",
        "Reason=disk swap",
    ]);
    cluster.kernel_says("n1", LOST);
    cluster.kernel_says("n2", LOST);
    cluster.node_shows("n2", &["DRAIN", "Reason=steadfast: XID 79"]);
    cluster.kernel_says("n1", MENDED);
    cluster.kernel_says("n2", MENDED);
    cluster.node_shows("n2", &["State=IDLE "]);
    assert!(
        cluster.node("n1").contains("Reason=disk swap"),
        "{}",
        cluster.node("n1")
    );
}

#[test]
fn slurm_an_epilog_finds_what_a_job_has_left() {
    // Out of reach of slurmd, which looks for descendants.
    an_epilog_finds_what_is_left(SlurmSite::default(), "", "");
}

#[test]
fn slurm_an_epilog_finds_what_has_left_its_cgroup_and_spares_another_jobs_with_a_forged_number() {
    let site = SlurmSite {
        cgroups: true,
        ..SlurmSite::default()
    };
    if !Path::new("/sys/fs/cgroup/freezer").is_dir() {
        eprintln!("SKIPPED: this machine has no freezer of version 1 of cgroups");
        return;
    }
    let escapes = "echo $$ > /sys/fs/cgroup/freezer/cgroup.procs; ";
    let forges = "SLURM_JOB_ID=$((SLURM_JOB_ID + 1)) SLURM_JOBID=$((SLURM_JOBID + 1))";
    an_epilog_finds_what_is_left(site, escapes, forges);
}

/// A job on the first node leaves a process behind, which first does what `escapes` says; another job goes on there, with
/// these variables in its process's environment.
fn an_epilog_finds_what_is_left(site: SlurmSite<'_>, escapes: &str, forges: &str) {
    let Some(cluster) = cluster(site) else {
        return;
    };
    let other = format!("echo $$ > other; exec env {forges} sleep 600");
    let other = cluster.submit(&["-w", "n1"], &other);
    cluster.job_shows(&other, &["JobState=RUNNING"]);
    let left = format!(
        "setsid bash -c '{escapes}echo $$ > left; trap \"\" TERM; while :; do sleep 1; done' > left.out 2>&1 < /dev/null &\n\
         while ! [ -s left ]; do sleep 0.1; done"
    );
    let job = cluster.submit(&["-w", "n1"], &left);
    cluster.job_shows(&job, &["JobState=COMPLETED"]);
    let pid = cluster.read("left").trim().to_owned();
    let said = format!("n1 epilog job {job}: ");
    cluster.file_shows("hooks.log", &[&said, "were killed", &pid]);
    let is_there = |pid: &str| {
        fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|text| !text.contains(") Z "))
    };
    eventually("the end of what was left", || {
        if is_there(&pid) {
            Err(pid.clone())
        } else {
            Ok(())
        }
    });
    let other_pid = cluster.read("other").trim().to_owned();
    assert!(
        is_there(&other_pid),
        "the other job goes on: {}",
        cluster.read("hooks.log")
    );
    assert!(!cluster.node("n1").contains("DRAIN"));
}

#[test]
fn slurm_a_requeue_does_not_wait_for_the_credential() {
    let site = SlurmSite {
        settings: "[epilog]\nhasten-requeue = true\n",
        ..SlurmSite::default()
    };
    let Some(cluster) = cluster(site) else {
        return;
    };
    // Without help it would start after two minutes, which is longer than any of these waits.
    let again = "echo \"restart ${SLURM_RESTART_COUNT:-0}\"; [ \"${SLURM_RESTART_COUNT:-0}\" -ge 1 ] && exit 0\n";
    let by_code = cluster.submit(&[], &format!("{again}exit 75"));
    cluster.job_shows(&by_code, &["JobState=COMPLETED", "Restarts=1"]);
    cluster.file_shows(&format!("job.{by_code}.out"), &["restart 0", "restart 1"]);
    let steadfast = steadfast().display();
    let by_itself = cluster.submit(
        &[],
        &format!("{again}{steadfast} slurm requeue --config slurm.toml; sleep 100"),
    );
    cluster.job_shows(&by_itself, &["JobState=COMPLETED", "Restarts=1"]);
    let running = cluster.submit(&[], &format!("{again}sleep 100"));
    cluster.job_shows(&running, &["JobState=RUNNING"]);
    let said = cluster.ask(&[
        steadfast.to_string().as_str(),
        "slurm",
        "requeue",
        "--config",
        "slurm.toml",
        "--job",
        &running,
    ]);
    assert!(said.contains("goes back into the queue"), "{said}");
    cluster.job_shows(&running, &["JobState=COMPLETED", "Restarts=1"]);
}

#[test]
fn slurm_four_nodes_lose_one_and_the_training_ends() {
    let Some(mut cluster) = cluster(SlurmSite::default()) else {
        return;
    };
    if !Requirement::Etcd.met() || !Requirement::Python.met() {
        return;
    }
    let etcd = cluster.start_etcd();
    let toy = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/train_toy.py");
    let steadfast = steadfast().display();
    // All nodes have the address of this machine. A group of three is enough to go on.
    let script = format!(
        "srun --no-kill -N4 -n4 {steadfast} run --coord {etcd} --nnodes 3:4 --shrink-after 1s --address 127.0.0.1 \
         --runtime-dir run --log-dir logs --nproc-per-node 1 --kernel-log off --nvml off -- \
         {} {toy} --steps 120 --step-time 0.05 --checkpoint-dir saved --json-log life.jsonl\n\
         echo \"srun ended with $?\"",
        python(),
    );
    let job = cluster.submit(
        &["-N4", "-w", "n[1-4]", "--ntasks-per-node=1", "--no-kill"],
        &script,
    );
    cluster.file_shows("life.jsonl", &["\"step\": 20"]);
    cluster.power_off("n4");
    let output = format!("job.{job}.out");
    cluster.file_shows(&output, &["step 120", "srun ended with"]);
    let life = cluster.read("life.jsonl");
    let last = life
        .lines()
        .rev()
        .find(|line| line.contains("\"n3\""))
        .unwrap_or_default();
    assert!(!last.is_empty(), "{life}");
    cluster.node_shows("n4", &["DOWN"]);
}
