// SPDX-License-Identifier: Apache-2.0
//! The GPUs of the node, which of them belong to the job, and which worker uses which.
//!
//! The kernel log names a GPU by its PCI address, a user by index or UUID (`CUDA_VISIBLE_DEVICES`), a worker has a local
//! rank. The driver's own list in `/proc` connects them without asking the driver anything, so it works when that hangs.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::kernel_log::PciAddress;
use crate::xid::Driver;

/// One GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// Where it sits.
    pub pci: PciAddress,
    /// `GPU-...`, where it is known.
    pub uuid: Option<String>,
    /// Such as `NVIDIA H100 80GB HBM3`; empty when it is not known.
    pub model: String,
    /// The number of its device file, `/dev/nvidia<minor>`, where it is known.
    pub minor: Option<u32>,
}

/// The GPUs that the driver knows on this node, and the driver itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeGpus {
    /// In the order of their addresses, which is how CUDA counts equal GPUs.
    gpus: Vec<Gpu>,
    /// The driver, if its version can be told.
    pub driver: Option<Driver>,
}

/// Whose a GPU is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// The worker's with this local rank.
    Worker(u32),
    /// The job's, but no single worker can be named.
    Job,
    /// Nobody can tell. It is taken to be the job's.
    Unknown,
    /// Another job's.
    Other,
}

/// Which GPUs the workers of this node use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuOwners {
    owners: BTreeMap<PciAddress, Owner>,
    /// Whether GPUs that are not listed are known to be another job's.
    complete: bool,
}

impl NodeGpus {
    /// Reads what the driver shows below `/proc`; `root` is what stands for `/`. Without a driver the list is empty.
    pub fn read(root: &Path) -> Self {
        let driver_root = root.join("proc/driver/nvidia");
        let entries = fs::read_dir(driver_root.join("gpus")).into_iter().flatten();
        let gpus = entries.flatten().filter_map(|entry| {
            let pci = PciAddress::parse(entry.file_name().to_str()?)?;
            let text = fs::read_to_string(entry.path().join("information")).unwrap_or_default();
            Some(Gpu {
                pci,
                uuid: field(&text, "GPU UUID")
                    .filter(|uuid| uuid.starts_with("GPU-") && !uuid.contains('?'))
                    .map(str::to_owned),
                model: field(&text, "Model").unwrap_or_default().to_owned(),
                minor: field(&text, "Device Minor").and_then(|text| text.parse().ok()),
            })
        });
        let version = fs::read_to_string(driver_root.join("version")).unwrap_or_default();
        Self {
            driver: driver(&version),
            ..Self::new(gpus.collect())
        }
    }

    /// From a list in any order.
    pub fn new(mut gpus: Vec<Gpu>) -> Self {
        gpus.sort_by_key(|gpu| gpu.pci);
        gpus.dedup_by_key(|gpu| gpu.pci);
        Self { gpus, driver: None }
    }

    /// Whether the driver shows no GPU at all.
    pub fn is_empty(&self) -> bool {
        self.gpus.is_empty()
    }

    /// All of them, in the order of their addresses.
    pub fn all(&self) -> &[Gpu] {
        &self.gpus
    }

    /// The GPU with this identity.
    pub fn by_uuid(&self, uuid: &str) -> Option<&Gpu> {
        let known = |gpu: &&Gpu| gpu.uuid.as_deref() == Some(uuid);
        self.gpus.iter().find(known)
    }

    /// The GPU at this address.
    pub fn by_pci(&self, pci: PciAddress) -> Option<&Gpu> {
        self.gpus.iter().find(|gpu| gpu.pci == pci)
    }

    /// Which worker uses which GPU. `visible` is `CUDA_VISIBLE_DEVICES` as the job has it, `workers` how many there are.
    ///
    /// Worker `i` is taken to use the `i`-th visible GPU, as everyone does; a single worker uses all of them.
    pub fn owners(&self, visible: Option<&str>, workers: u32) -> GpuOwners {
        let Some(visible) = self.visible(visible) else {
            return GpuOwners::default();
        };
        let owner = |index: usize| match u32::try_from(index) {
            _ if workers == 1 => Owner::Worker(0),
            Ok(index) if index < workers => Owner::Worker(index),
            _ => Owner::Job,
        };
        let owners = visible.iter().enumerate();
        GpuOwners {
            owners: owners.map(|(index, pci)| (*pci, owner(index))).collect(),
            complete: true,
        }
    }

    /// The visible GPUs in their order; absent when that cannot be told.
    fn visible(&self, list: Option<&str>) -> Option<Vec<PciAddress>> {
        if self.gpus.is_empty() {
            return None;
        }
        let Some(list) = list else {
            return Some(self.gpus.iter().map(|gpu| gpu.pci).collect());
        };
        let mut visible = Vec::new();
        for entry in list.split(',').map(str::trim) {
            if entry.starts_with("MIG-") {
                // A part of a GPU; only the driver knows of which.
                return None;
            }
            let gpu = match entry.parse::<usize>() {
                Ok(index) => self.gpus.get(index),
                Err(_) if entry.starts_with("GPU-") => self.by_prefix(entry),
                Err(_) => None,
            };
            // CUDA stops reading where an entry means nothing.
            let Some(gpu) = gpu else { break };
            visible.push(gpu.pci);
        }
        Some(visible)
    }

    /// CUDA takes a UUID that is cut short, as long as only one GPU fits.
    fn by_prefix(&self, prefix: &str) -> Option<&Gpu> {
        let fits = |gpu: &&Gpu| {
            gpu.uuid
                .as_ref()
                .is_some_and(|uuid| uuid.starts_with(prefix))
        };
        let mut fitting = self.gpus.iter().filter(fits);
        fitting.next().filter(|_| fitting.next().is_none())
    }
}

impl GpuOwners {
    /// Whose the GPU at this address is.
    pub fn of(&self, pci: PciAddress) -> Owner {
        let otherwise = if self.complete {
            Owner::Other
        } else {
            Owner::Unknown
        };
        self.owners.get(&pci).copied().unwrap_or(otherwise)
    }

    /// Whether the job has any GPU, as far as that is known.
    pub fn any(&self) -> bool {
        !self.complete || !self.owners.is_empty()
    }
}

/// `Name:   value`
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let (found, value) = line.split_once(':')?;
        (found.trim() == name).then(|| value.trim())
    })
}

/// `NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.15  Release Build  (...)`
fn driver(version: &str) -> Option<Driver> {
    let line = version.lines().next()?.strip_prefix("NVRM version:")?;
    line.split_ascii_whitespace()
        .find(|word| word.contains('.') && word.starts_with(|first: char| first.is_ascii_digit()))
        .and_then(|word| Driver::parse(word).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pci(text: &str) -> PciAddress {
        PciAddress::parse(text).unwrap()
    }

    fn node(buses: &[&str]) -> NodeGpus {
        let gpu = |bus: &&str| Gpu {
            pci: pci(&format!("0000:{bus}:00")),
            uuid: Some(format!("GPU-{bus}00-aa")),
            model: String::new(),
            minor: None,
        };
        NodeGpus::new(buses.iter().map(gpu).collect())
    }

    #[test]
    fn the_drivers_list_is_read() {
        let root = tempfile::tempdir().unwrap();
        let driver = root.path().join("proc/driver/nvidia");
        for (address, uuid) in [
            ("0000:86:00.0", "GPU-86"),
            ("0000:18:00.0", "GPU-????????-????"),
        ] {
            let directory = driver.join("gpus").join(address);
            fs::create_dir_all(&directory).unwrap();
            let text = format!(
                "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 137\nGPU UUID: \t {uuid}\nBus Location: \t {address}\nDevice Minor: \t 3\n"
            );
            fs::write(directory.join("information"), text).unwrap();
        }
        let version = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.15  Release Build  (x)\n\
                       GCC version:  gcc version 12.2.0\n";
        fs::write(driver.join("version"), version).unwrap();
        let node = NodeGpus::read(root.path());
        assert_eq!(node.driver.map(Driver::branch), Some(550));
        assert_eq!(node.all().len(), 2);
        assert_eq!(node.all()[0].pci, pci("18:00"));
        assert_eq!(
            node.all()[0].uuid,
            None,
            "a GPU that is gone shows no identity"
        );
        assert_eq!(node.by_uuid("GPU-86").unwrap().pci, pci("86:00"));
        assert_eq!(node.by_uuid("GPU-86").unwrap().minor, Some(3));
        assert_eq!(
            node.by_pci(pci("86:00")).unwrap().model,
            "NVIDIA H100 80GB HBM3"
        );
        assert!(NodeGpus::read(&root.path().join("elsewhere")).is_empty());
    }

    #[test]
    fn workers_use_the_visible_gpus_in_their_order() {
        let node = node(&["18", "2a", "3b", "86"]);
        let all = node.owners(None, 4);
        assert_eq!(all.of(pci("3b:00")), Owner::Worker(2));
        let some = node.owners(Some("3,1"), 2);
        assert_eq!(some.of(pci("86:00")), Owner::Worker(0));
        assert_eq!(some.of(pci("2a:00")), Owner::Worker(1));
        assert_eq!(some.of(pci("18:00")), Owner::Other);
        let named = node.owners(Some("GPU-3b00, GPU-18"), 1);
        assert_eq!(named.of(pci("3b:00")), Owner::Worker(0));
        assert_eq!(named.of(pci("18:00")), Owner::Worker(0));
        let more_than_workers = node.owners(None, 2);
        assert_eq!(more_than_workers.of(pci("86:00")), Owner::Job);
        let cut = node.owners(Some("0,7,1"), 2);
        assert_eq!(cut.of(pci("2a:00")), Owner::Other);
    }

    #[test]
    fn what_cannot_be_told_is_taken_to_be_the_jobs() {
        assert_eq!(
            NodeGpus::default().owners(None, 2).of(pci("18:00")),
            Owner::Unknown
        );
        let node = node(&["18"]);
        let mig = node.owners(Some("MIG-aa"), 1);
        assert_eq!(mig.of(pci("18:00")), Owner::Unknown);
        assert!(mig.any());
        let none = node.owners(Some(""), 1);
        assert_eq!(none.of(pci("18:00")), Owner::Other);
        assert!(!none.any());
    }
}
