// SPDX-License-Identifier: Apache-2.0
//! Which events belong to one incident, and which of them is its cause.

use std::collections::VecDeque;
use std::time::Duration;

use crate::kernel_log::{Detail, DriverKind, Event, PciAddress, Stamp, SystemKind, What};

/// The longest pause within an incident.
const PAUSE: Duration = Duration::from_secs(5);

/// The most incidents that are open at once, and the most GPUs and processes that one remembers.
const MAX_OPEN: usize = 64;

/// Puts events together that are close in time and about the same GPU, the same process, or the fabric between GPUs.
/// Lines without a time are taken to follow at once.
#[derive(Debug, Default)]
pub struct Grouping {
    open: VecDeque<Open>,
    last_id: u64,
}

/// Where an event was put.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placed {
    /// Number of the incident, from 1; absent for lines that are about no fault.
    pub incident: Option<u64>,
    /// The incidents that can no longer grow.
    pub closed: Vec<u64>,
}

#[derive(Debug)]
struct Open {
    id: u64,
    last: Option<Stamp>,
    devices: Vec<Device>,
    pids: Vec<u32>,
    fabric: bool,
}

/// What an incident is about.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Device {
    Pci(PciAddress),
    Named(String),
}

impl Grouping {
    /// Nothing has been seen yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Puts the next event of the log into its incident.
    pub fn place(&mut self, event: &Event) -> Placed {
        let stamp = event.header.stamp;
        let mut closed = self.close(|open| !open.may_grow_at(stamp));
        if is_about_no_fault(event) {
            return Placed {
                incident: None,
                closed,
            };
        }
        let devices = devices(event);
        let (pid, fabric) = (event.pid(), is_about_fabric(event));
        let related = |open: &Open| {
            devices.iter().any(|device| open.devices.contains(device))
                || pid.is_some_and(|pid| open.pids.contains(&pid))
                || (fabric && open.fabric)
        };
        let index = if let Some(index) = self.open.iter().position(related) {
            index
        } else {
            if self.open.len() >= MAX_OPEN {
                closed.extend(self.open.pop_front().map(|open| open.id));
            }
            self.last_id += 1;
            self.open.push_back(Open::new(self.last_id));
            self.open.len() - 1
        };
        let incident = self.open.get_mut(index).map(|open| {
            open.take(stamp, devices, pid, fabric);
            open.id
        });
        Placed { incident, closed }
    }

    /// Ends the incidents that nothing was added to for so long before `now` that nothing more belongs to them.
    pub fn close_by(&mut self, now: Stamp) -> Vec<u64> {
        self.close(|open| !open.may_grow_at(Some(now)))
    }

    /// Whether an incident may still grow.
    pub fn is_open(&self, incident: u64) -> bool {
        self.open.iter().any(|open| open.id == incident)
    }

    /// Ends all incidents, as at the end of the log or after a silence.
    pub fn close_all(&mut self) -> Vec<u64> {
        self.close(|_| true)
    }

    fn close(&mut self, ended: impl Fn(&Open) -> bool) -> Vec<u64> {
        let mut closed = Vec::new();
        self.open.retain(|open| {
            let ended = ended(open);
            if ended {
                closed.push(open.id);
            }
            !ended
        });
        closed
    }
}

impl Open {
    const fn new(id: u64) -> Self {
        Self {
            id,
            last: None,
            devices: Vec::new(),
            pids: Vec::new(),
            fabric: false,
        }
    }

    fn may_grow_at(&self, stamp: Option<Stamp>) -> bool {
        match (self.last, stamp) {
            (Some(last), Some(stamp)) => last.distance(stamp).is_none_or(|pause| pause <= PAUSE),
            _ => true,
        }
    }

    fn take(&mut self, stamp: Option<Stamp>, devices: Vec<Device>, pid: Option<u32>, fabric: bool) {
        self.last = stamp.or(self.last);
        self.fabric |= fabric;
        for device in devices {
            if self.devices.len() < MAX_OPEN && !self.devices.contains(&device) {
                self.devices.push(device);
            }
        }
        if let Some(pid) = pid.filter(|pid| !self.pids.contains(pid))
            && self.pids.len() < MAX_OPEN
        {
            self.pids.push(pid);
        }
    }
}

/// How far an event is from the cause of its incident: 0 may be it; the higher, the more it is a consequence of others.
/// An event whose incident has nothing lower is itself the cause.
pub fn rank_in_incident(event: &Event) -> u8 {
    match &event.what {
        What::Xid(error) => match (error.code, &error.detail) {
            (154, _) => 4,
            (_, Some(Detail::CausedBy(_))) | (45, _) => 3,
            (43 | 174, _) => 2,
            (94 | 171 | 172, _) => 1,
            _ => 0,
        },
        // The driver says it with an XID as well, as a rule.
        What::Driver(event) => match event.kind {
            DriverKind::GpuIdentity => 5,
            _ => 1,
        },
        What::Malformed(_) => 3,
        What::Sxid(_) | What::System(_) => 0,
    }
}

fn is_about_no_fault(event: &Event) -> bool {
    match &event.what {
        What::Driver(event) => matches!(
            event.kind,
            DriverKind::GpuIdentity | DriverKind::GpuReset { success: true }
        ),
        What::System(event) => matches!(event.kind, SystemKind::ServerBack | SystemKind::LinkUp),
        _ => false,
    }
}

fn is_about_fabric(event: &Event) -> bool {
    match &event.what {
        What::Xid(error) => matches!(error.code, 74 | 136 | 144..=150 | 155),
        What::Sxid(_) => true,
        What::Driver(event) => event.kind == DriverKind::NvlinkDetectFailed,
        _ => false,
    }
}

fn devices(event: &Event) -> Vec<Device> {
    let named = match &event.what {
        What::System(event) => event.device.clone().map(Device::Named),
        _ => None,
    };
    event
        .pci()
        .map(Device::Pci)
        .into_iter()
        .chain(named)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel_log::KernelLog;

    fn incidents(lines: &[&str]) -> Vec<Option<u64>> {
        let (mut log, mut grouping) = (KernelLog::new(), Grouping::new());
        lines
            .iter()
            .filter_map(|line| log.push(line.as_bytes()))
            .map(|event| grouping.place(&event).incident)
            .collect()
    }

    fn xid(time: &str, gpu: &str, rest: &str) -> String {
        format!("[{time}] NVRM: Xid (PCI:0000:{gpu}:00): {rest}")
    }

    #[test]
    fn one_process_on_three_gpus_is_one_incident() {
        let lines = ["5e", "86", "af"].map(|gpu| xid("9.1", gpu, "31, pid=7, name=python, Ch 1"));
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        assert_eq!(incidents(&lines), [Some(1); 3]);
    }

    #[test]
    fn another_gpu_or_a_pause_is_another_incident() {
        let lines = [
            xid("100.0", "5e", "79, GPU has fallen off the bus."),
            xid("101.0", "86", "13, pid=4, name=b, Ch 2"),
            xid("105.9", "86", "43, pid=4, name=b, Ch 2"),
            xid("106.5", "5e", "79, GPU has fallen off the bus."),
        ];
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        assert_eq!(incidents(&lines), [Some(1), Some(2), Some(2), Some(3)]);
    }

    #[test]
    fn the_fabric_is_one_and_lines_about_no_fault_are_in_none() {
        let lines = [
            "[1.0] NVRM: GPU at PCI:0000:5e:00: GPU-00000000-0000-0000-0000-00000000005e",
            "[1.0] nvidia-nvswitch0: SXid (PCI:0000:c3:00.0): 24007, Fatal, Link 28 timeout (First)",
            "[1.1] nvidia-nvswitch0: SXid (PCI:0000:c3:00.0): 24007, Severity 1 Engine instance 28",
            "[1.2] NVRM: Xid (PCI:0000:5e:00): 74, NVLink: fatal error detected on link 14(0x0)",
        ];
        assert_eq!(incidents(&lines), [None, Some(1), Some(1)]);
    }

    #[test]
    fn open_incidents_are_bounded() {
        let mut grouping = Grouping::new();
        for bus in 0..=255_u8 {
            let line = format!("NVRM: Xid (PCI:0000:{bus:02x}:00): 79");
            let event = KernelLog::new().push(line.as_bytes()).unwrap();
            grouping.place(&event);
        }
        assert_eq!(grouping.close_all().len(), MAX_OPEN);
    }
}
