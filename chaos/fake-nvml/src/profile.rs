// SPDX-License-Identifier: Apache-2.0
//! What the models of GPUs have. From NVIDIA's data sheets, and as `nvidia-smi` shows them.

use serde::Deserialize;

/// A model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Profile {
    /// A100, 80 GB, SXM.
    A100,
    /// H100, 80 GB, SXM.
    #[default]
    H100,
    /// H200, 141 GB, SXM.
    H200,
    /// B200, 180 GB, SXM.
    B200,
}

/// Facts about a model.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts {
    pub(crate) name: &'static str,
    pub(crate) memory_mib: u64,
    pub(crate) nvlinks: u32,
    pub(crate) pcie_generation: u32,
    pub(crate) power_limit_mw: u32,
    /// Whether it registers with a fabric manager and says how that went.
    pub(crate) fabric: bool,
}

impl Profile {
    pub(crate) const fn facts(self) -> Facts {
        match self {
            Self::A100 => Facts {
                name: "NVIDIA A100-SXM4-80GB",
                memory_mib: 81_920,
                nvlinks: 12,
                pcie_generation: 4,
                power_limit_mw: 400_000,
                fabric: false,
            },
            Self::H100 => Facts {
                name: "NVIDIA H100 80GB HBM3",
                memory_mib: 81_559,
                nvlinks: 18,
                pcie_generation: 5,
                power_limit_mw: 700_000,
                fabric: true,
            },
            Self::H200 => Facts {
                name: "NVIDIA H200",
                memory_mib: 143_771,
                nvlinks: 18,
                pcie_generation: 5,
                power_limit_mw: 700_000,
                fabric: true,
            },
            Self::B200 => Facts {
                name: "NVIDIA B200",
                memory_mib: 183_359,
                nvlinks: 18,
                pcie_generation: 5,
                power_limit_mw: 1_000_000,
                fabric: true,
            },
        }
    }
}
