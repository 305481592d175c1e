// SPDX-License-Identifier: Apache-2.0
//! Which machine this is, however often it is started.
//!
//! A node that registers again after its machine was started anew proves that nothing of before runs there any more, but only
//! if it is the same machine: names and images are given to others. So the identity is one that two machines cannot share: the
//! installation's (`machine-id(5)`) together with the addresses that are burnt into network hardware. A container with a
//! network of its own sees no hardware and has no identity.

use std::fs;
use std::path::Path;

/// A digest that is the same after each start of this machine, and on no other one; `None` where that cannot be said. `root`
/// is where the file system begins.
pub(super) fn identity(root: &Path) -> Option<String> {
    let installation = fs::read_to_string(root.join("etc/machine-id")).ok()?;
    let installation = installation.trim();
    if installation.is_empty() || installation == "uninitialized" {
        return None;
    }
    let mut addresses: Vec<String> = fs::read_dir(root.join("sys/class/net"))
        .ok()?
        .filter_map(|entry| permanent_address(&entry.ok()?.path()))
        .collect();
    if addresses.is_empty() {
        return None;
    }
    addresses.sort_unstable();
    let mut hasher = blake3::Hasher::new();
    hasher.update(installation.as_bytes());
    for address in &addresses {
        hasher.update(b"\n");
        hasher.update(address.as_bytes());
    }
    Some(hasher.finalize().to_hex().to_string())
}

/// The address of a network interface, if it belongs to hardware and nobody has chosen it.
fn permanent_address(interface: &Path) -> Option<String> {
    let read = |name: &str| fs::read_to_string(interface.join(name)).ok();
    let is_hardware = interface.join("device").exists();
    // NET_ADDR_PERM of the kernel.
    let is_permanent = read("addr_assign_type")?.trim() == "0";
    let address = read("address")?.trim().to_owned();
    (is_hardware && is_permanent && !address.is_empty()).then_some(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Machine(tempfile::TempDir);

    impl Machine {
        fn new(installation: &str) -> Self {
            let directory = tempfile::tempdir().unwrap();
            fs::create_dir_all(directory.path().join("etc")).unwrap();
            fs::create_dir_all(directory.path().join("sys/class/net")).unwrap();
            fs::write(directory.path().join("etc/machine-id"), installation).unwrap();
            Self(directory)
        }

        fn with(self, name: &str, address: &str, assign_type: &str, hardware: bool) -> Self {
            let interface = self.0.path().join("sys/class/net").join(name);
            fs::create_dir(&interface).unwrap();
            fs::write(interface.join("address"), format!("{address}\n")).unwrap();
            fs::write(
                interface.join("addr_assign_type"),
                format!("{assign_type}\n"),
            )
            .unwrap();
            if hardware {
                fs::create_dir(interface.join("device")).unwrap();
            }
            self
        }

        fn identity(&self) -> Option<String> {
            identity(self.0.path())
        }
    }

    const ID: &str = "0123456789abcdef0123456789abcdef\n";

    #[test]
    fn a_machine_is_known_by_its_installation_and_its_network_hardware() {
        let one = Machine::new(ID).with("eth0", "02:00:00:00:00:01", "0", true);
        assert!(one.identity().is_some());
        assert_eq!(one.identity(), one.identity());
        let with_others = Machine::new(ID)
            .with("eth0", "02:00:00:00:00:01", "0", true)
            .with("veth7", "9a:00:00:00:00:09", "1", false)
            .with("bond0", "02:00:00:00:00:01", "2", false);
        assert_eq!(
            one.identity(),
            with_others.identity(),
            "chosen at each start"
        );
        let same_image = Machine::new(ID).with("eth0", "02:00:00:00:00:02", "0", true);
        assert_ne!(one.identity(), same_image.identity());
        let installed_anew = Machine::new("f").with("eth0", "02:00:00:00:00:01", "0", true);
        assert_ne!(one.identity(), installed_anew.identity());
    }

    #[test]
    fn what_another_machine_could_say_too_is_no_identity() {
        let hardware = |machine: Machine| machine.with("eth0", "02:00:00:00:00:01", "0", true);
        assert_eq!(hardware(Machine::new("")).identity(), None);
        assert_eq!(hardware(Machine::new("uninitialized\n")).identity(), None);
        assert_eq!(Machine::new(ID).identity(), None, "no hardware");
        let container = Machine::new(ID)
            .with("eth0", "02:42:ac:11:00:02", "3", false)
            .with("lo", "00:00:00:00:00:00", "0", false);
        assert_eq!(container.identity(), None);
        let random = Machine::new(ID).with("eth0", "02:00:00:00:00:01", "1", true);
        assert_eq!(random.identity(), None);
        assert_eq!(identity(Path::new("/nonexistent")), None);
    }
}
