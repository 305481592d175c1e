// SPDX-License-Identifier: Apache-2.0
//! Who gets to see what.
//!
//! - Root sees everything.
//! - Everybody sees what is about the whole node: switches, disks, file servers, memory, network ports.
//! - An event of a GPU is seen by the users whose job has the GPU, as the prolog has recorded it. A user without such a
//!   record sees the GPUs whose device files are open to them, but for those that are recorded as another user's. Where
//!   nobody can tell which GPU an address is, it is seen only while no other user has a job on the node.
//! - What names a process is seen by the user whose process it is; an event of a GPU goes with the GPU.
//!
//! Device files are open to everybody on most nodes, and a device cgroup cannot be seen from here: without the prolog's
//! records, users on a shared node see the errors of each other's GPUs. Those hold no data of a user but the number and name of
//! a process.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use steadfast_health::gpus::NodeGpus;
use steadfast_health::kernel_log::{Event, PciAddress, What};
use steadfast_health::nvml::Report;

use crate::slurm::hooks::JobRecord;

/// What one client gets to see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Viewer {
    uid: u32,
    gpus: Sight,
}

/// Which GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Sight {
    /// Every one.
    All,
    /// These.
    These(BTreeSet<PciAddress>),
    /// None that is somebody's.
    None,
}

/// What is known of the node when a client comes.
#[derive(Debug)]
pub(super) struct Node<'a> {
    /// Its GPUs.
    pub(super) gpus: &'a NodeGpus,
    /// Its jobs, as far as their prologs have recorded them.
    pub(super) jobs: &'a [JobRecord],
    /// The device files of GPUs that the client may open, by number; `None` where there are none at all.
    pub(super) open_devices: Option<BTreeSet<u32>>,
}

impl Viewer {
    pub(super) fn new(uid: u32, node: &Node<'_>) -> Viewer {
        Viewer {
            uid,
            gpus: Sight::new(uid, node),
        }
    }

    /// Whether this client gets to see an event. `process_uid` is whose the process is that it names, where that is known.
    pub(super) fn sees(&self, event: &Event, process_uid: Option<u32>) -> bool {
        if self.uid == 0 {
            return true;
        }
        match &event.what {
            What::Xid(_) | What::Driver(_) => match event.pci() {
                Some(pci) => self.gpus.holds(pci),
                // Which GPU it is about is not said: a reset, for instance, that ends a fault.
                None => true,
            },
            What::Sxid(_) => true,
            What::System(_) => event.pid().is_none() || process_uid == Some(self.uid),
            What::Malformed(_) => false,
        }
    }

    /// Whether this client gets to see what the driver's library says. Which GPUs there are is no secret: the library tells
    /// everybody.
    pub(super) fn sees_report(&self, report: &Report) -> bool {
        match report {
            Report::Opened { .. } | Report::Absent { .. } => true,
            Report::Xid { gpu, .. }
            | Report::Lost { gpu, .. }
            | Report::Conditions { gpu, .. }
            | Report::NoEvents { gpu, .. } => {
                PciAddress::parse(gpu).is_some_and(|pci| self.gpus.holds(pci))
            }
            Report::Holders { .. } => false,
        }
    }

    /// In words.
    pub(super) fn describe(&self) -> String {
        match &self.gpus {
            Sight::All => "all GPUs, and what is about the whole node".to_owned(),
            Sight::None => "what is about the whole node".to_owned(),
            Sight::These(gpus) => {
                let names: Vec<String> = gpus.iter().map(ToString::to_string).collect();
                format!(
                    "the GPUs {}, and what is about the whole node",
                    names.join(", ")
                )
            }
        }
    }
}

impl Sight {
    fn new(uid: u32, node: &Node<'_>) -> Sight {
        if uid == 0 {
            return Sight::All;
        }
        let (own, others): (Vec<&JobRecord>, Vec<&JobRecord>) =
            node.jobs.iter().partition(|record| record.uid == Some(uid));
        let numbers = |records: &[&JobRecord]| -> BTreeSet<u32> {
            let lists = records.iter().filter_map(|record| record.gpus.as_ref());
            lists.flatten().copied().collect()
        };
        let is_told = !own.is_empty() && own.iter().all(|record| record.gpus.is_some());
        let wanted = if is_told {
            Some(numbers(&own))
        } else {
            let taken = numbers(&others);
            let open = node.open_devices.as_ref();
            open.map(|open| open.difference(&taken).copied().collect())
        };
        let Some(wanted) = wanted.filter(|_| node.places_all()) else {
            return if others.is_empty() {
                Sight::All
            } else {
                Sight::None
            };
        };
        let placed = node
            .gpus
            .all()
            .iter()
            .filter(|gpu| gpu.minor.is_some_and(|minor| wanted.contains(&minor)));
        Sight::These(placed.map(|gpu| gpu.pci).collect())
    }

    fn holds(&self, pci: PciAddress) -> bool {
        match self {
            Sight::All => true,
            Sight::These(gpus) => gpus.contains(&pci),
            Sight::None => false,
        }
    }
}

impl Node<'_> {
    /// Whether the number of each GPU's device file is known.
    fn places_all(&self) -> bool {
        !self.gpus.is_empty() && self.gpus.all().iter().all(|gpu| gpu.minor.is_some())
    }
}

/// The device files of GPUs below `root` that a process of this user may read and write, as their modes say.
pub(super) fn open_devices(root: &Path, uid: u32, groups: &[u32]) -> Option<BTreeSet<u32>> {
    let mut any = false;
    let mut open = BTreeSet::new();
    for entry in fs::read_dir(root.join("dev")).ok()?.flatten() {
        let name = entry.file_name();
        let minor = name.to_str().and_then(|name| name.strip_prefix("nvidia"));
        let Some(minor) = minor.and_then(|digits| digits.parse::<u32>().ok()) else {
            continue;
        };
        any = true;
        let Ok(found) = entry.metadata() else {
            continue;
        };
        let bits = if found.uid() == uid {
            found.mode() >> 6
        } else if groups.contains(&found.gid()) {
            found.mode() >> 3
        } else {
            found.mode()
        };
        if bits & 0o6 == 0o6 {
            open.insert(minor);
        }
    }
    any.then_some(open)
}

/// The groups of a process, its own first.
pub(super) fn groups_of(pid: i32, gid: u32) -> Vec<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let more = status
        .lines()
        .find_map(|line| line.strip_prefix("Groups:"))
        .unwrap_or_default();
    let more = more
        .split_ascii_whitespace()
        .filter_map(|number| number.parse().ok());
    [gid].into_iter().chain(more).collect()
}

/// Whose the process is that an event names: as the kernel says it with a kill, or as long as it lives.
pub(super) fn process_uid(event: &Event) -> Option<u32> {
    let said = event.message.split("UID:").nth(1).map(|rest| {
        let end = rest.find(|c: char| !c.is_ascii_digit());
        rest.get(..end.unwrap_or(rest.len())).unwrap_or_default()
    });
    if let Some(uid) = said.and_then(|digits| digits.parse().ok()) {
        return Some(uid);
    }
    let process = fs::metadata(format!("/proc/{}", event.pid()?)).ok()?;
    Some(process.uid())
}

#[cfg(test)]
mod tests {
    use super::*;
    use steadfast_health::gpus::Gpu;
    use steadfast_health::kernel_log::parse_line;

    fn gpus(minors: &[Option<u32>]) -> NodeGpus {
        let buses = 0x18..;
        let all = buses.zip(minors).map(|(bus, minor)| Gpu {
            pci: PciAddress::parse(&format!("0000:{bus:02x}:00")).unwrap(),
            uuid: None,
            model: String::new(),
            minor: *minor,
        });
        NodeGpus::new(all.collect())
    }

    fn job(uid: u32, gpus: Option<&[u32]>) -> JobRecord {
        JobRecord::for_test(uid, gpus.map(<[u32]>::to_vec))
    }

    fn event(line: &str) -> Event {
        parse_line(line.as_bytes()).unwrap()
    }

    /// The GPUs that the viewer sees errors of, of two.
    fn seen(viewer: &Viewer) -> Vec<u32> {
        let xid = |bus: u32| {
            event(&format!(
                "NVRM: Xid (PCI:0000:{bus:x}:00): 79, pid=1, name=x, gone"
            ))
        };
        let all = (0..2).filter(|number| viewer.sees(&xid(0x18 + number), None));
        all.collect()
    }

    fn viewer(
        uid: u32,
        minors: &[Option<u32>],
        jobs: &[JobRecord],
        open: Option<&[u32]>,
    ) -> Viewer {
        let node = Node {
            gpus: &gpus(minors),
            jobs,
            open_devices: open.map(|open| open.iter().copied().collect()),
        };
        Viewer::new(uid, &node)
    }

    const TWO: [Option<u32>; 2] = [Some(0), Some(1)];

    #[test]
    fn a_user_sees_the_gpus_of_their_own_jobs() {
        let jobs = [job(1000, Some(&[1])), job(1001, Some(&[0]))];
        assert_eq!(seen(&viewer(1000, &TWO, &jobs, Some(&[0, 1]))), [1]);
        assert_eq!(seen(&viewer(1001, &TWO, &jobs, None)), [0]);
        assert_eq!(seen(&viewer(0, &TWO, &jobs, None)), [0, 1]);
        let stranger = viewer(1002, &TWO, &jobs, Some(&[0, 1]));
        assert!(seen(&stranger).is_empty(), "both are others'");
    }

    #[test]
    fn without_a_record_the_device_files_decide() {
        assert_eq!(seen(&viewer(1000, &TWO, &[], Some(&[0]))), [0]);
        assert_eq!(seen(&viewer(1000, &TWO, &[], Some(&[0, 1]))), [0, 1]);
        let jobs = [job(1001, Some(&[0]))];
        assert_eq!(seen(&viewer(1000, &TWO, &jobs, Some(&[0, 1]))), [1]);
    }

    #[test]
    fn gpus_that_nobody_can_place_are_seen_by_a_user_who_is_alone() {
        let own = job(1000, Some(&[1]));
        let unplaced = [Some(0), None];
        assert_eq!(
            seen(&viewer(1000, &unplaced, std::slice::from_ref(&own), None)),
            [0, 1]
        );
        let jobs = [own, job(1001, None)];
        assert!(seen(&viewer(1000, &unplaced, &jobs, None)).is_empty());
    }

    #[test]
    fn the_node_is_everybodys_and_a_process_is_its_users() {
        let user = viewer(1000, &TWO, &[job(1001, Some(&[0, 1]))], None);
        let sees = |line: &str| {
            let event = event(line);
            user.sees(&event, process_uid(&event))
        };
        assert!(sees(
            "nvidia-nvswitch0: SXid (PCI:0000:c3:00.0): 12033, Fatal, Link 1 x"
        ));
        assert!(sees("nfs: server filer not responding, still trying"));
        let kill = |uid: u32| {
            format!(
                "Out of memory: Killed process 2147483000 (python) total-vm:1kB, anon-rss:1kB, file-rss:0kB, shmem-rss:0kB, UID:{uid} pgtables:1kB oom_score_adj:0"
            )
        };
        assert!(sees(&kill(1000)));
        assert!(!sees(&kill(1001)));
        assert!(!sees(&kill(0)));
    }

    #[test]
    fn modes_of_device_files_count_as_the_kernel_counts_them() {
        use std::os::unix::fs::PermissionsExt;
        let root = tempfile::tempdir().unwrap();
        assert_eq!(open_devices(root.path(), 1000, &[]), None);
        let dev = root.path().join("dev");
        fs::create_dir(&dev).unwrap();
        assert_eq!(open_devices(root.path(), 1000, &[]), None);
        for (name, mode) in [
            ("nvidia0", 0o666),
            ("nvidia1", 0o660),
            ("nvidia2", 0o600),
            ("nvidiactl", 0o666),
        ] {
            fs::write(dev.join(name), "").unwrap();
            fs::set_permissions(dev.join(name), fs::Permissions::from_mode(mode)).unwrap();
        }
        let owner = fs::metadata(dev.join("nvidia0")).unwrap();
        let other = owner.uid() + 1;
        let open = |uid, groups: &[u32]| open_devices(root.path(), uid, groups).unwrap();
        assert_eq!(open(other, &[]), BTreeSet::from([0]));
        assert_eq!(open(other, &[owner.gid()]), BTreeSet::from([0, 1]));
        assert_eq!(open(owner.uid(), &[]), BTreeSet::from([0, 1, 2]));
    }
}
