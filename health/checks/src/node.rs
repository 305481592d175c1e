// SPDX-License-Identifier: Apache-2.0
//! The node that is checked.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use steadfast_health::kernel_log::PciAddress;
use steadfast_health::nvml::GpuIdentity;

use crate::outside::Outside;

/// Where and how to look.
#[derive(Clone)]
pub struct Node {
    /// What stands for `/`: another directory only in tests.
    pub root: PathBuf,
    /// The node's name, for the report.
    pub name: String,
    /// Where checks remember what they have seen, for rates and changes; absent for no memory.
    pub state: Option<PathBuf>,
    /// NVIDIA's management library.
    pub nvml: Nvml,
    /// The GPUs that matter, by index, UUID or PCI address, such as those of the job whose prolog this is; absent for all.
    pub gpus: Option<Vec<String>>,
    /// What is remembered of the GPUs' earlier faults, by UUID.
    pub past_faults: BTreeMap<String, PastFaults>,
    /// What checks may not do themselves.
    pub outside: Arc<dyn Outside>,
}

/// What a GPU has done before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PastFaults {
    /// What its faults weigh by now, in hundredths of a fresh one.
    pub hundredths: u64,
    /// The last of them, in words.
    pub last: String,
}

/// NVIDIA's management library.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Nvml {
    /// The one that is installed.
    #[default]
    Installed,
    /// This one.
    At(PathBuf),
    /// It is not to be used.
    Off,
}

impl fmt::Debug for Node {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Node")
            .field("root", &self.root)
            .field("name", &self.name)
            .field("state", &self.state)
            .field("nvml", &self.nvml)
            .field("gpus", &self.gpus)
            .field("past_faults", &self.past_faults)
            .finish_non_exhaustive()
    }
}

impl Node {
    /// This machine, without a memory, with all of its GPUs.
    pub fn here(name: impl Into<String>, outside: Arc<dyn Outside>) -> Self {
        Self {
            root: PathBuf::from("/"),
            name: name.into(),
            state: None,
            nvml: Nvml::default(),
            gpus: None,
            past_faults: BTreeMap::new(),
            outside,
        }
    }

    /// A file of the node, named from its root without the leading slash.
    pub(crate) fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// Whether a GPU matters.
    pub(crate) fn cares_for(&self, gpu: &GpuIdentity) -> bool {
        let wanted = self.gpus.as_ref();
        wanted.is_none_or(|wanted| wanted.iter().any(|wanted| is_meant(gpu, wanted)))
    }
}

/// Whether an index, a UUID or a PCI address means this GPU.
pub(crate) fn is_meant(gpu: &GpuIdentity, wanted: &str) -> bool {
    let wanted = wanted.trim();
    let same_address = PciAddress::parse(wanted).is_some_and(|pci| pci.to_string() == gpu.pci);
    wanted == gpu.index.to_string() || wanted.eq_ignore_ascii_case(&gpu.uuid) || same_address
}
