// SPDX-License-Identifier: Apache-2.0

use std::path::Path;

use steadfast_proto::v1::{FaultClass, FaultRole, Finding};

use super::*;
use crate::gpus::{Gpu, GpuOwners, NodeGpus, Owner};
use crate::kernel_log::{KernelLog, parse_line};
use crate::xid::Policy;

const SECOND: u64 = 1_000_000_000;

fn sighting(at_ns: u64, line: &str) -> Sighting {
    Sighting {
        event: parse_line(line.as_bytes()).unwrap(),
        at_ns,
        reporter: Reporter::KernelLog,
    }
}

fn xid(at_ns: u64, bus: &str, rest: &str) -> Sighting {
    sighting(at_ns, &format!("NVRM: Xid (PCI:0000:{bus}:00): {rest}"))
}

fn pci(text: &str) -> PciAddress {
    PciAddress::parse(text).unwrap()
}

/// Two workers, on `18:00` and `2a:00`; a third GPU is another job's.
fn owners() -> GpuOwners {
    let gpu = |bus: &str| Gpu {
        pci: pci(&format!("{bus}:00")),
        uuid: None,
        model: String::new(),
        minor: None,
    };
    let node = NodeGpus::new(vec![gpu("18"), gpu("2a"), gpu("3b")]);
    node.owners(Some("0,1"), 2)
}

#[test]
fn a_lost_gpu_breaks_and_its_companions_add_nothing() {
    let mut incidents = Incidents::default();
    let lost = incidents
        .take(xid(
            5,
            "18",
            "79, pid=1, name=x, GPU has fallen off the bus.",
        ))
        .unwrap();
    assert!(lost.is_news);
    assert_eq!(lost.breaks_gpu(), Some(pci("18:00")));
    let finding = lost.finding(Owner::Worker(0));
    assert_eq!(finding.kind, "gpu.fault");
    assert_eq!(finding.class(), FaultClass::GpuHardware);
    assert_eq!((finding.local_rank, finding.monotonic_ns), (Some(0), 5));
    assert_eq!(finding.fingerprint, "xid:79");
    assert!(
        finding
            .summary
            .starts_with("lost its GPU: XID 79 at 0000:18:00"),
        "{}",
        finding.summary
    );
    for number in 0..5 {
        let companion = incidents
            .take(xid(6 + number, "18", "45, pid=1, name=x, Ch 3"))
            .unwrap();
        assert_eq!(companion.breaks_gpu(), None);
        assert_eq!(companion.is_news, number == 0, "{number}");
    }
    let closed = incidents.close_by(60 * SECOND);
    assert_eq!(closed.len(), 1);
    assert_eq!(
        closed[0].events,
        [
            ("XID 79 at 0000:18:00".to_owned(), 1),
            ("XID 45 at 0000:18:00".to_owned(), 5)
        ]
    );
    assert_eq!(closed[0].action, lost.found.action);
    assert_eq!(incidents.close_by(61 * SECOND), []);
}

#[test]
fn a_program_error_breaks_no_gpu_unless_the_policy_says_so() {
    let line = "13, pid=7, name=python, Graphics SM Warp Exception";
    let plain = Incidents::default().take(xid(1, "18", line)).unwrap();
    assert_eq!(plain.breaks_gpu(), None);
    let policy = Policy::parse(Path::new("p"), "[xid.13]\naction = 'exclude-node'").unwrap();
    let mut strict = Incidents::new(Judge::new(policy), None);
    let judged = strict.take(xid(1, "18", line)).unwrap();
    assert_eq!(judged.breaks_gpu(), Some(pci("18:00")));
}

#[test]
fn what_asks_for_more_later_is_news() {
    let mut incidents = Incidents::default();
    let contained = "94, pid=7, name=python, Contained: CE (0x9). RST: No, D-RST: No";
    assert!(
        incidents
            .take(xid(1, "18", contained))
            .unwrap()
            .breaks_gpu()
            .is_none()
    );
    let reset = "154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)";
    let judged = incidents.take(xid(2, "18", reset)).unwrap();
    assert!(judged.is_news && judged.breaks_gpu().is_some());
}

#[test]
fn a_fault_lasts_until_it_is_mended() {
    let mut log = KernelLog::new();
    let mut incidents = Incidents::default();
    let mut faults = |at_ns, line: &str| {
        let event = log.push(line.as_bytes()).unwrap();
        let reporter = Reporter::KernelLog;
        incidents.take(Sighting {
            event,
            at_ns,
            reporter,
        });
        incidents.faults().map(|(pci, _)| pci).collect::<Vec<_>>()
    };
    let both = [pci("18:00"), pci("2a:00")];
    faults(1, "NVRM: GPU at PCI:0000:18:00: GPU-aa");
    faults(
        2,
        "NVRM: Xid (PCI:0000:18:00): 95, pid=7, name=x, Uncontained",
    );
    assert_eq!(faults(3, "NVRM: Xid (PCI:0000:2a:00): 79, lost"), both);
    let failed = "GPU reset executed: GPU-aa, success: false";
    assert_eq!(faults(4, failed), both);
    let reset = "GPU reset executed: GPU-aa, success: true";
    assert_eq!(faults(5, reset), [pci("2a:00")]);
    let none = "NVRM: Xid (PCI:0000:2a:00): 154, GPU recovery action changed from 0x1 (Reset) to 0x0 (None)";
    assert_eq!(faults(6, none), []);
}

#[test]
fn one_event_of_two_sources_is_one_event() {
    let mut incidents = Incidents::default();
    let from = |reporter, at_ns| Sighting {
        reporter,
        ..xid(at_ns, "18", "48, DBE")
    };
    assert!(incidents.take(from(Reporter::Nvml, SECOND)).is_some());
    let other = from(Reporter::KernelLog, SECOND + SECOND / 2);
    assert!(incidents.take(other).is_none());
    let again = from(Reporter::KernelLog, SECOND + SECOND / 2 + 1);
    assert!(incidents.take(again).is_some(), "the kernel logged two");
    let late = from(Reporter::Nvml, 9 * SECOND);
    assert!(incidents.take(late).is_some());
}

#[test]
fn a_storm_is_remembered_in_bounds() {
    let mut incidents = Incidents::default();
    for number in 0..5_000_u64 {
        let code = 20_000 + number % 1000;
        incidents.take(xid(number, "18", &format!("{code}, x")));
    }
    assert!(incidents.seen().count() <= MAX_SEEN);
    assert!(incidents.reports.len() <= MAX_SEEN);
    let closed = incidents.close_by(60 * SECOND);
    assert_eq!(closed[0].events.len(), MAX_TITLES);
}

fn exit(signal: Option<i32>) -> Finding {
    Finding {
        class: FaultClass::Killed.into(),
        role: FaultRole::Consequence.into(),
        signal,
        monotonic_ns: 100 * SECOND,
        wall_ms: 1_000_000,
        summary: "ended".to_owned(),
        fingerprint: "old".to_owned(),
        ..Finding::default()
    }
}

fn blamed(finding: &mut Finding, rank: u32, sightings: Vec<Sighting>) -> bool {
    let mut incidents = Incidents::default();
    for sighting in sightings {
        incidents.take(sighting);
    }
    let worker = WorkerTrace {
        local_rank: rank,
        pids: &[7, 8],
        lived_ns: (10 * SECOND, 100 * SECOND),
    };
    blame(finding, worker, &owners(), incidents.seen())
}

#[test]
fn an_error_of_its_gpu_explains_a_workers_end() {
    let fault = "31, pid=7, name=python, Ch 00000003, MMU Fault";
    let mut finding = exit(None);
    let seen = vec![
        xid(98 * SECOND, "18", fault),
        xid(98 * SECOND + 1, "18", "43, pid=7, name=python, Ch 3"),
    ];
    assert!(blamed(&mut finding, 0, seen.clone()));
    assert_eq!(finding.class(), FaultClass::Program);
    assert_eq!(finding.role(), FaultRole::Cause);
    assert_eq!(finding.fingerprint, "xid:31");
    assert_eq!(
        (finding.monotonic_ns, finding.wall_ms),
        (98 * SECOND, 998_000)
    );
    assert!(
        finding.summary.starts_with("ended; XID 31 at 0000:18:00: "),
        "{}",
        finding.summary
    );
    assert_eq!(finding.evidence.len(), 2);
    let mut neighbour = exit(None);
    // Its process is named, though the GPU is another one's.
    assert!(blamed(&mut neighbour, 1, seen));
    let mut neighbour = exit(None);
    let strangers = vec![xid(98 * SECOND, "18", "31, pid=99, name=python, Ch 3")];
    assert!(!blamed(&mut neighbour, 1, strangers));
    assert_eq!(neighbour, exit(None));
}

#[test]
fn a_companion_alone_only_adds_words() {
    let mut finding = exit(None);
    let seen = vec![xid(99 * SECOND, "18", "45, pid=7, name=python, Ch 3")];
    assert!(blamed(&mut finding, 0, seen));
    assert_eq!(finding.role(), FaultRole::Consequence);
    assert_eq!(finding.fingerprint, "old");
}

#[test]
fn what_is_too_old_or_too_new_explains_nothing() {
    let fault = "31, pid=7, name=python, Ch 3";
    for at in [5 * SECOND, 103 * SECOND] {
        let mut finding = exit(None);
        assert!(!blamed(&mut finding, 0, vec![xid(at, "18", fault)]), "{at}");
    }
    // But a GPU that was lost before the worker began is still lost.
    let mut finding = exit(None);
    let lost = "79, pid=1, name=x, GPU has fallen off the bus.";
    assert!(blamed(&mut finding, 0, vec![xid(5 * SECOND, "18", lost)]));
    assert_eq!(finding.class(), FaultClass::GpuHardware);
}

#[test]
fn the_out_of_memory_killer_explains_a_kill() {
    let line = "Memory cgroup out of memory: Killed process 8 (python) total-vm:1kB";
    let seen = || vec![sighting(99 * SECOND, line)];
    let mut finding = exit(Some(9));
    assert!(blamed(&mut finding, 1, seen()));
    assert_eq!(finding.class(), FaultClass::HostMemory);
    assert_eq!(finding.fingerprint, "cgroup_oom_kill");
    let mut finding = exit(Some(11));
    assert!(!blamed(&mut finding, 1, seen()));
}
