// SPDX-License-Identifier: Apache-2.0
//! What the kernel says of memory, processors, buses, disks, file servers and network ports.

use super::event::{SystemEvent, SystemKind};
use super::pci::PciAddress;
use super::scan::{Scan, between};

/// Reads one message of the kernel.
pub(super) fn parse(text: &str) -> Option<SystemEvent> {
    process(text)
        .or_else(|| hardware(text))
        .or_else(|| pcie(text))
        .or_else(|| disk(text))
        .or_else(|| file_system(text))
        .or_else(|| server(text))
        .or_else(|| port(text))
}

/// Killed for memory, stuck, or crashed.
fn process(text: &str) -> Option<SystemEvent> {
    if let Some((before, after)) = text.split_once("Killed process ") {
        let kind = if before.starts_with("Memory cgroup out of memory") {
            SystemKind::GroupOutOfMemory
        } else if before.is_empty() || before.starts_with("Out of memory") {
            SystemKind::OutOfMemory
        } else {
            return None;
        };
        let mut scan = Scan::new(after);
        let pid = scan.number()?;
        scan.eat(",");
        scan.eat(" (").then_some(())?;
        return Some(of_process(kind, pid, scan.until(")")?));
    }
    if let Some((_, after)) = text.split_once("task ")
        && let Some((task, _)) = after.split_once(" blocked for more than ")
        && (text.starts_with("task ") || text.starts_with("INFO: task "))
    {
        return named_process(SystemKind::HungTask, task);
    }
    if text.contains("soft lockup - CPU#") {
        let task = between(text, "! [", "]")?;
        return named_process(SystemKind::SoftLockup, task);
    }
    let (program, crash) = text.split_once("]: segfault at ")?;
    let library = crash.contains(" in libnccl") || crash.contains(" in librccl");
    let (name, pid) = program.rsplit_once('[')?;
    library
        .then(|| {
            Some(of_process(
                SystemKind::CommunicationCrash,
                pid.parse().ok()?,
                name,
            ))
        })
        .flatten()
}

/// `NAME:PID`; a name may hold colons.
fn named_process(kind: SystemKind, task: &str) -> Option<SystemEvent> {
    let (name, pid) = task.rsplit_once(':')?;
    Some(of_process(kind, pid.parse().ok()?, name))
}

fn of_process(kind: SystemKind, pid: u32, name: &str) -> SystemEvent {
    SystemEvent {
        pid: Some(pid),
        name: Some(name.to_owned()),
        ..SystemEvent::new(kind)
    }
}

fn of_device(kind: SystemKind, device: &str) -> SystemEvent {
    SystemEvent {
        device: (!device.is_empty()).then(|| device.to_owned()),
        ..SystemEvent::new(kind)
    }
}

/// Machine checks, and memory errors.
fn hardware(text: &str) -> Option<SystemEvent> {
    if let Some(after) = text.strip_prefix("EDAC ") {
        let mut scan = Scan::new(after);
        let controller = scan.until(": ")?;
        let _count: u64 = scan.number()?;
        let kind = if scan.eat(" CE ") {
            SystemKind::MemoryCorrected
        } else if scan.eat(" UE ") {
            SystemKind::MemoryUncorrected
        } else {
            return None;
        };
        return Some(of_device(kind, controller));
    }
    let (_, after) = text.split_once("[Hardware Error]: ")?;
    let kind = if let Some(severity) = after.strip_prefix("event severity: ") {
        match severity.trim_end() {
            "fatal" => SystemKind::MachineCheckFatal,
            "corrected" | "recoverable" => SystemKind::MachineCheck,
            _ => return None,
        }
    } else if after.contains("Machine Check Exception") {
        SystemKind::MachineCheckFatal
    } else if after.starts_with("Machine check events logged") {
        SystemKind::MachineCheck
    } else {
        return None;
    };
    Some(SystemEvent::new(kind))
}

/// `pcieport 0000:00:02.0: AER: Uncorrected (Fatal) error received: 0000:3b:00.0`, and the line of the device itself.
fn pcie(text: &str) -> Option<SystemEvent> {
    let severity = match between(text, ": AER: ", " received") {
        Some(words) => words
            .trim_start_matches("Multiple ")
            .trim_end_matches(" message")
            .trim_end_matches(" error"),
        None => between(text, ": PCIe Bus Error: severity=", ", type=")?,
    };
    let kind = match severity {
        "Corrected" | "Correctable" => SystemKind::PcieCorrected,
        "Uncorrected (Fatal)" | "Uncorrectable (Fatal)" => SystemKind::PcieFatal,
        "Uncorrected (Non-Fatal)" | "Uncorrectable (Non-Fatal)" => SystemKind::PcieUncorrected,
        _ => return None,
    };
    let source = text
        .split_once(" received")
        .map(|(_, after)| after.trim_start_matches([':', ' ']))
        .map(|after| after.strip_prefix("from ").unwrap_or(after))
        .and_then(|after| PciAddress::scan(&mut Scan::new(after)));
    Some(SystemEvent {
        pci: source.or_else(|| second_word_address(text)),
        ..SystemEvent::new(kind)
    })
}

/// The address in `DRIVER ADDRESS...`, as the kernel names a device.
fn second_word_address(text: &str) -> Option<PciAddress> {
    let (_, after) = text.split_once(' ')?;
    PciAddress::scan(&mut Scan::new(after))
}

fn disk(text: &str) -> Option<SystemEvent> {
    if let Some(after) = text.strip_prefix("nvme ") {
        let (device, message) = after.split_once(": ")?;
        let late = message.contains(" timeout, ") || message.starts_with("controller is down");
        let gone = message.starts_with("Removing after probe failure");
        return (late || gone).then(|| of_device(SystemKind::DiskTimeout, device));
    }
    let (before, after) = text
        .split_once("I/O error, dev ")
        .or_else(|| text.split_once("I/O error on dev "))
        .or_else(|| text.split_once("critical medium error, dev "))?;
    let expected = ["", "blk_update_request: ", "Buffer ", "print_req_error: "];
    expected
        .contains(&before)
        .then(|| of_device(SystemKind::DiskError, Scan::new(after).up_to(&[',', ' '])))
}

fn file_system(text: &str) -> Option<SystemEvent> {
    let named = |start: &str| text.strip_prefix(start)?.split_once(')');
    let damaged = named("EXT4-fs error (device ").or_else(|| named("BTRFS error (device "));
    if let Some((device, _)) = damaged {
        return Some(of_device(SystemKind::FileSystemError, device));
    }
    if let Some((device, message)) = named("EXT4-fs (") {
        return message
            .contains("Remounting filesystem read-only")
            .then(|| of_device(SystemKind::FileSystemReadOnly, device));
    }
    let (device, message) = named("XFS (")?;
    let words = [
        "Corruption",
        "has been shut down",
        "Shutting down filesystem",
        "metadata I/O error",
    ];
    words
        .iter()
        .any(|word| message.contains(word))
        .then(|| of_device(SystemKind::FileSystemError, device))
}

fn server(text: &str) -> Option<SystemEvent> {
    let nfs = text
        .strip_prefix("nfs: server ")
        .or_else(|| text.strip_prefix("NFS: server "));
    if let Some(after) = nfs {
        let (server, state) = after.split_once(' ')?;
        return match state.trim_end() {
            "OK" => Some(of_device(SystemKind::ServerBack, server)),
            state if state.starts_with("not responding") => {
                Some(of_device(SystemKind::ServerLost, server))
            }
            _ => None,
        };
    }
    let after = text.strip_prefix("Lustre")?;
    if let Some((_, server)) = after.split_once("Connection restored to ") {
        return Some(of_device(
            SystemKind::ServerBack,
            Scan::new(server).up_to(&[' ']),
        ));
    }
    if let Some(server) = between(after, "Connection to ", " ")
        && after.contains(" was lost")
    {
        return Some(of_device(SystemKind::ServerLost, server));
    }
    if let Some(node) = between(after, " to node ", " failed") {
        return Some(of_device(SystemKind::ServerLost, node));
    }
    let server = between(after, "This client was evicted by ", ";")?;
    Some(of_device(SystemKind::ServerLost, server))
}

/// Network ports: `mlx5_core 0000:3b:00.0 ib0: Link down`
fn port(text: &str) -> Option<SystemEvent> {
    let down = text.ends_with(": Link down") || text.contains(": NIC Link is Down");
    let up = text.ends_with(": Link up") || text.contains(": NIC Link is Up");
    let kind = if down {
        SystemKind::LinkDown
    } else if up {
        SystemKind::LinkUp
    } else if text.contains("Port module event") && is_fault(text) {
        SystemKind::PortModule
    } else if text.contains("insufficient power on the PCIe slot") {
        SystemKind::AdapterPower
    } else {
        return None;
    };
    let (before, _) = text.split_once(": ")?;
    let name = before.rsplit(' ').next().filter(|name| {
        matches!(kind, SystemKind::LinkDown | SystemKind::LinkUp)
            && PciAddress::parse(name).is_none()
    });
    Some(SystemEvent {
        device: name.map(str::to_owned),
        pci: second_word_address(text),
        ..SystemEvent::new(kind)
    })
}

fn is_fault(text: &str) -> bool {
    ["High Temperature", "Cable error", "Cable unplugged"]
        .iter()
        .any(|word| text.contains(word))
}
