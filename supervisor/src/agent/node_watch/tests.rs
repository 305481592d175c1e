// SPDX-License-Identifier: Apache-2.0

use std::io;

use serde_json::json;
use steadfast_health::incidents::Reporter;
use steadfast_health::kernel_log::parse_line;
use steadfast_process::exit::Exit;
use steadfast_proto::v1::FaultClass;

use super::*;

const START: u64 = 1_000_000_000;
const LOST: &str = "NVRM: Xid (PCI:0000:18:00): 79, pid=1, name=x, GPU has fallen off the bus.";

/// Two workers on `18:00` and `2a:00`, of three GPUs.
fn watch() -> NodeWatch {
    let gpu = |bus: &str| Gpu {
        pci: PciAddress::parse(&format!("{bus}:00")).unwrap(),
        uuid: None,
        model: String::new(),
        minor: None,
    };
    let gpus = NodeGpus::new(vec![gpu("18"), gpu("2a"), gpu("3b")]);
    let mut watch = NodeWatch {
        node: "n1".to_owned(),
        incidents: Incidents::default(),
        owners: gpus.owners(Some("0,1"), 2),
        gpus,
        job_started_ns: START,
        visible: None,
        workers: 2,
        processes: WorkerProcesses::with_numbers(true),
        log: LogState::Opening,
        gaps: 0,
        injected: 0,
        told: BTreeSet::new(),
        late: BTreeMap::new(),
    };
    for local_rank in 0..2 {
        watch.watch_worker(&WorkerView {
            generation: 1,
            rank: local_rank,
            local_rank,
            pid: i32::MAX - i32::try_from(local_rank).unwrap(),
            started_ns: START,
            exit: None,
            ended_ns: None,
            spawn_error: None,
        });
    }
    watch
}

fn sighting(at_ns: u64, line: &str) -> Sighting {
    Sighting {
        event: parse_line(line.as_bytes()).unwrap(),
        at_ns,
        reporter: Reporter::KernelLog,
    }
}

#[test]
fn a_lost_gpu_becomes_a_finding_about_its_worker() {
    let mut watch = watch();
    let follows = watch.take(sighting(START + 5, LOST), false, Some(1));
    let finding = follows.finding.unwrap();
    assert_eq!(finding.kind, steadfast_core::kinds::GPU_FAULT);
    assert_eq!((finding.generation, finding.local_rank), (1, Some(0)));
    assert_eq!(finding.node, "n1");
    let said = follows.say.unwrap();
    assert!(
        said.starts_with("XID 79 at 0000:18:00 (local rank 0), pid 1 (x): "),
        "{said}"
    );
    let (kind, fields) = follows.journal.unwrap();
    assert_eq!((kind, &fields["code"]), ("node.event", &json!(79)));
    assert_eq!(
        (&fields["owner"], &fields["local_rank"]),
        (&json!("job"), &json!(0))
    );
    assert!(watch.status()[1].starts_with("XID 79 at 0000:18:00"));
}

#[test]
fn another_jobs_gpu_is_none_of_ours() {
    let mut watch = watch();
    let line = LOST.replace("18:00", "3b:00");
    let follows = watch.take(sighting(START + 5, &line), false, Some(1));
    assert_eq!((follows.finding, follows.say), (None, None));
    assert!(follows.journal.is_some());
    assert_eq!(watch.status().len(), 1);
}

#[test]
fn what_was_wrong_before_is_told_once_and_kills_nothing() {
    let mut watch = watch();
    let follows = watch.take(sighting(START - 5, LOST), false, Some(1));
    assert!(follows.finding.is_none() && follows.say.is_none() && follows.journal.is_none());
    let told = watch.old_faults();
    assert_eq!(told.len(), 1);
    assert!(told[0].starts_with("note: before this job, the kernel log says XID 79"));
}

#[test]
fn a_fault_between_generations_meets_the_next_one_once() {
    let mut watch = watch();
    assert!(
        watch
            .take(sighting(START + 5, LOST), false, None)
            .finding
            .is_none()
    );
    let reset = "NVRM: Xid (PCI:0000:18:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot)";
    assert!(
        watch
            .take(sighting(START + 6, reset), false, None)
            .finding
            .is_none()
    );
    let late = watch.late_faults(2);
    assert_eq!(late.len(), 1);
    assert_eq!(
        (late[0].generation, late[0].fingerprint.as_str()),
        (2, "xid:79")
    );
    assert_eq!(watch.late_faults(3), []);
    // It is known now: more of the same is nothing for yet another generation.
    assert!(
        watch
            .take(sighting(START + 7, reset), false, None)
            .finding
            .is_none()
    );
    assert_eq!(watch.late_faults(4), []);
}

#[test]
fn a_gpu_that_was_mended_in_between_is_no_late_fault() {
    let mut watch = watch();
    watch.take(sighting(START + 5, LOST), false, None);
    let mended = "NVRM: Xid (PCI:0000:18:00): 154, GPU recovery action changed from 0x1 (Reset) to 0x0 (None)";
    watch.take(sighting(START + 6, mended), false, None);
    assert_eq!(watch.late_faults(2), []);
}

#[test]
fn a_new_agent_tells_the_core_again_but_not_the_user() {
    let follows = watch().take(sighting(START + 5, LOST), true, Some(1));
    assert!(follows.finding.is_some() && follows.say.is_none() && follows.journal.is_none());
}

#[test]
fn an_error_of_the_program_only_explains_its_end() {
    let mut watch = watch();
    let fault = "NVRM: Xid (PCI:0000:2a:00): 31, pid=9, name=python, Ch 3, MMU Fault";
    let follows = watch.take(sighting(START + 5, fault), false, Some(1));
    assert_eq!(follows.finding, None);
    let mut finding = Finding {
        summary: "exited with code 1".to_owned(),
        monotonic_ns: START + 9,
        ..Finding::default()
    };
    let record = ExitRecord {
        sequence: 1,
        generation: 1,
        rank: 1,
        local_rank: 1,
        pid: 5,
        exit: Exit::Code(1),
        spawn_error: None,
        while_stopping: false,
        at_ns: START + 9,
    };
    watch.explain(&mut finding, &record, START);
    assert_eq!(finding.class(), FaultClass::Program);
    assert!(
        finding
            .summary
            .starts_with("exited with code 1; XID 31 at 0000:2a:00: "),
        "{}",
        finding.summary
    );
}

#[test]
fn a_log_that_may_not_be_read_is_told_with_what_to_grant() {
    let mut watch = watch();
    let error = steadfast_health::kernel_log::FollowError::Open {
        path: "/dev/kmsg".into(),
        reason: io::Error::from_raw_os_error(1),
    };
    let text = watch.log_failed(Path::new("/dev/kmsg"), &error).unwrap();
    for words in ["Operation not permitted", "CAP_SYSLOG", "The job goes on"] {
        assert!(text.contains(words), "{words} in {text}");
    }
    assert!(watch.status()[0].contains("not watched"));
    watch.gpus = NodeGpus::default();
    // Without a GPU nothing is missed that anybody would ask for.
    assert_eq!(watch.log_failed(Path::new("/dev/kmsg"), &error), None);
}

#[test]
fn a_storm_is_told_once_and_closed_with_its_counts() {
    let mut watch = watch();
    let line = "NVRM: Xid (PCI:0000:18:00): 45, pid=1, name=x, Ch 00000001";
    let told: Vec<bool> = (0..100)
        .map(|number| watch.take(sighting(START + number, line), false, Some(1)))
        .map(|follows| follows.journal.is_some())
        .collect();
    assert_eq!(told.iter().filter(|told| **told).count(), 1);
    let closed = watch.close_incidents();
    assert_eq!(closed[0]["events"][0]["count"], 100, "{closed:?}");
}

#[test]
fn a_process_that_lives_and_is_no_workers_is_a_stranger() {
    let own = std::process::id();
    let mut processes = WorkerProcesses::with_numbers(true);
    assert!(processes.is_stranger(own));
    assert!(!processes.is_stranger(u32::MAX));
    assert!(!WorkerProcesses::with_numbers(false).is_stranger(own));
    processes.add_worker(&WorkerView {
        generation: 1,
        rank: 3,
        local_rank: 3,
        pid: i32::try_from(own).unwrap(),
        started_ns: START,
        exit: None,
        ended_ns: None,
        spawn_error: None,
    });
    assert!(!processes.is_stranger(own));
    assert_eq!(processes.worker_of(Some(own)), Some(3));
    assert_eq!(processes.of(1, 3), [own]);
    assert!(processes.of(2, 3).is_empty());
}
