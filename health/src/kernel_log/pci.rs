// SPDX-License-Identifier: Apache-2.0
//! Addresses on the PCI bus.

use std::fmt;

use super::scan::Scan;

/// Where a device sits. The function is not kept: the driver leaves it out, and a GPU has one that matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PciAddress {
    /// Domain, 0 on most machines.
    pub domain: u32,
    /// Bus.
    pub bus: u8,
    /// Device.
    pub device: u8,
}

impl PciAddress {
    /// Reads `0000:5e:00`, `5e:00`, either with a function (`.0`), with capital letters too.
    pub fn parse(text: &str) -> Option<Self> {
        let mut scan = Scan::new(text);
        let address = Self::scan(&mut scan)?;
        scan.rest().is_empty().then_some(address)
    }

    /// Reads an address at the start of what is left, and its function.
    pub(super) fn scan(scan: &mut Scan<'_>) -> Option<Self> {
        let mut parts = Scan::new(scan.rest());
        let first = parts.hex(8)?;
        parts.eat(":").then_some(())?;
        let second = parts.hex(2)?;
        let address = if parts.eat(":") {
            Self::new(first, second, parts.hex(2)?)?
        } else {
            Self::new(0, first, second)?
        };
        if parts.eat(".") {
            parts.hex(1)?;
        }
        *scan = parts;
        Some(address)
    }

    fn new(domain: u32, bus: u32, device: u32) -> Option<Self> {
        Some(Self {
            domain,
            bus: u8::try_from(bus).ok()?,
            device: u8::try_from(device).ok()?,
        })
    }
}

/// As `dddd:bb:dd`, in small letters.
impl fmt::Display for PciAddress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            domain,
            bus,
            device,
        } = self;
        write!(formatter, "{domain:04x}:{bus:02x}:{device:02x}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_in_every_form_and_written_in_one() {
        for (text, expected) in [
            ("0000:5e:00", "0000:5e:00"),
            ("000D:AF:00.0", "000d:af:00"),
            ("18:00.0", "0000:18:00"),
            ("00000000:3B:1c.7", "0000:3b:1c"),
            ("10000:e1:00", "10000:e1:00"),
        ] {
            let address = PciAddress::parse(text).map(|address| address.to_string());
            assert_eq!(address.as_deref(), Some(expected), "{text}");
        }
        for text in [
            "",
            "5e",
            "0000:5e:",
            "5e:00.",
            "xx:00",
            "0000:5e:00:1",
            "123:00",
        ] {
            assert_eq!(PciAddress::parse(text), None, "{text}");
        }
    }
}
