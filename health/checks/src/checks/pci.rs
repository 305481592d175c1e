// SPDX-License-Identifier: Apache-2.0
//! The GPUs that sit on the PCI bus, as the kernel lists them without asking the driver anything.

use std::io::Read as _;

use crate::context::Context;

const DEVICES: &str = "sys/bus/pci/devices";
const NVIDIA: &str = "0x10de";
/// The classes of display and of compute devices.
const GPU_CLASSES: [&str; 2] = ["0x0300", "0x0302"];
/// A driver that hands devices to virtual machines: such a GPU is nobody's here.
const HANDED_ON: &str = "vfio-pci";

/// One GPU on the bus.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PciGpu {
    /// With its function, such as `0000:18:00.0`.
    pub(super) address: String,
    /// Whether it does not even say who it is any more.
    pub(super) is_off_the_bus: bool,
}

/// All of NVIDIA's GPUs that this machine may use.
pub(super) fn gpus(context: &Context<'_>) -> Vec<PciGpu> {
    let is_gpu = |address: &String| {
        let device = format!("{DEVICES}/{address}");
        let vendor = context.read(format!("{device}/vendor"));
        let class = context.read(format!("{device}/class")).unwrap_or_default();
        vendor.is_ok_and(|vendor| vendor == NVIDIA)
            && GPU_CLASSES.iter().any(|gpu| class.starts_with(gpu))
            && !is_handed_on(context, &device)
    };
    let addresses = context.names(DEVICES).into_iter().filter(is_gpu);
    addresses
        .map(|address| PciGpu {
            is_off_the_bus: is_off_the_bus(context, &address),
            address,
        })
        .collect()
}

fn is_handed_on(context: &Context<'_>, device: &str) -> bool {
    let driver = std::fs::read_link(context.path(format!("{device}/driver")));
    driver.is_ok_and(|driver| driver.ends_with(HANDED_ON))
}

/// A device that is gone reads as ones only.
fn is_off_the_bus(context: &Context<'_>, address: &str) -> bool {
    let mut identity = [0; 4];
    std::fs::File::open(context.path(format!("{DEVICES}/{address}/config")))
        .and_then(|mut config| config.read_exact(&mut identity))
        .is_ok_and(|()| identity == [0xff; 4])
}

#[cfg(test)]
pub(super) mod tests {
    use crate::testing::Made;

    /// Puts a GPU on the bus of a made node.
    pub(in crate::checks) fn on_the_bus(made: Made, address: &str, identity: [u8; 4]) -> Made {
        let device = format!("sys/bus/pci/devices/{address}");
        made.file(&format!("{device}/vendor"), "0x10de\n")
            .file(&format!("{device}/class"), "0x030200\n")
            .file(&format!("{device}/config"), identity)
    }
}
