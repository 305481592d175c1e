// SPDX-License-Identifier: Apache-2.0
//! What is wrong with a GPU, from what was read of it now and at the start.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::reading::{NvlinkReading, Reading};
use crate::xid::{Action, RecoveryAction};

// Bits of `nvmlClocksThrottleReason*` in `nvml.h` that are a defect: idle clocks and power limits are not.
const HW_SLOWDOWN: u64 = 0x08;
const SW_THERMAL: u64 = 0x20;
const HW_THERMAL: u64 = 0x40;
const POWER_BRAKE: u64 = 0x80;

/// Something that is wrong with a GPU.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Condition {
    /// The driver says that it needs this; the driver's number.
    Recovery(u32),
    /// A row of its memory could not be replaced.
    RemapFailed,
    /// A row of its memory is replaced with the next reset.
    RemapPending,
    /// So many memory errors could not be corrected since the job began.
    UncorrectedErrors(u64),
    /// These links are down that were up, or were down at the start while others were up.
    LinksDown(Vec<u32>),
    /// This link has counted errors since the job began.
    LinkErrors(u32),
    /// It is slowed down for heat.
    ThermalSlowdown,
    /// It is slowed down for lack of power, or by the board.
    PowerSlowdown,
    /// It uses fewer lanes than it has.
    NarrowPcie {
        /// Lanes in use.
        width: u32,
        /// Lanes that there are.
        max_width: u32,
    },
    /// It has not joined its fabric: collectives over NVLink will fail.
    FabricNotReady,
}

impl Condition {
    /// What it asks for.
    pub fn action(&self) -> Action {
        match self {
            Self::Recovery(number) => RecoveryAction::from_number(*number).action(),
            Self::RemapFailed => Action::ExcludeNode,
            Self::RemapPending | Self::UncorrectedErrors(_) | Self::PowerSlowdown => Action::Report,
            Self::LinksDown(_) | Self::LinkErrors(_) | Self::NarrowPcie { .. } => Action::CheckLink,
            Self::ThermalSlowdown => Action::CheckCooling,
            Self::FabricNotReady => Action::ResetFabric,
        }
    }

    /// Whether it comes and goes with the load, so that it counts only when it stays.
    pub fn is_passing(&self) -> bool {
        matches!(
            self,
            Self::ThermalSlowdown | Self::PowerSlowdown | Self::NarrowPcie { .. }
        )
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Recovery(number) => {
                let recovery = RecoveryAction::from_number(*number);
                write!(
                    formatter,
                    "{} (recovery action {number})",
                    recovery.meaning()
                )
            }
            Self::RemapFailed => {
                formatter.write_str("A bad row of its memory could not be replaced")
            }
            Self::RemapPending => {
                formatter.write_str("A bad row of its memory is replaced only with the next reset")
            }
            Self::UncorrectedErrors(count) => write!(
                formatter,
                "{count} memory errors could not be corrected since the job began"
            ),
            Self::LinksDown(links) => {
                let links: Vec<String> = links.iter().map(u32::to_string).collect();
                write!(formatter, "NVLink {} is down", links.join(", "))
            }
            Self::LinkErrors(link) => {
                write!(formatter, "NVLink {link} counts errors since the job began")
            }
            Self::ThermalSlowdown => formatter.write_str("It is slowed down for heat"),
            Self::PowerSlowdown => {
                formatter.write_str("It is slowed down by its board or for lack of power")
            }
            Self::NarrowPcie { width, max_width } => {
                write!(formatter, "It uses {width} of {max_width} PCIe lanes")
            }
            Self::FabricNotReady => formatter
                .write_str("It has not joined its NVLink fabric (is the fabric manager running?)"),
        }
    }
}

/// What is wrong `now`, in a GPU that was like `at_start` when the job began.
pub fn conditions(now: &Reading, at_start: &Reading) -> Vec<Condition> {
    let mut found = Vec::new();
    if let Some(number) = now.recovery
        && number != 0
    {
        found.push(Condition::Recovery(number));
    }
    if let Some(remapped) = now.remapped {
        found.extend(remapped.failed.then_some(Condition::RemapFailed));
        found.extend(remapped.pending.then_some(Condition::RemapPending));
    }
    if let (Some(count), Some(before)) = (now.uncorrected, at_start.uncorrected)
        && count > before
    {
        found.push(Condition::UncorrectedErrors(count - before));
    }
    links(&mut found, &now.nvlinks, &at_start.nvlinks);
    let throttle = now.throttle.unwrap_or_default();
    if throttle & (SW_THERMAL | HW_THERMAL) != 0 {
        found.push(Condition::ThermalSlowdown);
    } else if throttle & (HW_SLOWDOWN | POWER_BRAKE) != 0 {
        found.push(Condition::PowerSlowdown);
    }
    if let Some(pcie) = now.pcie
        && pcie.width < pcie.max_width
    {
        found.push(Condition::NarrowPcie {
            width: pcie.width,
            max_width: pcie.max_width,
        });
    }
    if let Some(fabric) = now.fabric
        && (fabric.state != 3 || fabric.status != 0)
    {
        found.push(Condition::FabricNotReady);
    }
    found
}

/// A GPU whose links are all down uses none: many a board is built so.
fn links(found: &mut Vec<Condition>, now: &[NvlinkReading], at_start: &[NvlinkReading]) {
    let in_use = now.iter().chain(at_start).any(|link| link.active);
    let down: Vec<u32> = now
        .iter()
        .filter(|link| in_use && !link.active)
        .map(|link| link.link)
        .collect();
    if !down.is_empty() {
        found.push(Condition::LinksDown(down));
    }
    for link in now {
        let before = at_start
            .iter()
            .find(|before| before.link == link.link)
            .and_then(|before| before.errors);
        if link.errors > before && before.is_some() {
            found.push(Condition::LinkErrors(link.link));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::reading::{Fabric, PcieReading, Remapped};
    use super::*;

    fn link(link: u32, active: bool, errors: u64) -> NvlinkReading {
        NvlinkReading {
            link,
            active,
            errors: Some(errors),
        }
    }

    fn healthy() -> Reading {
        Reading {
            recovery: Some(0),
            remapped: Some(Remapped::default()),
            uncorrected: Some(7),
            throttle: Some(0x5),
            nvlinks: vec![link(0, true, 3), link(1, true, 0)],
            pcie: Some(PcieReading {
                width: 16,
                max_width: 16,
            }),
            fabric: Some(Fabric {
                state: 3,
                status: 0,
            }),
            ..Reading::default()
        }
    }

    #[test]
    fn what_is_unknown_is_not_wrong() {
        assert_eq!(conditions(&Reading::default(), &healthy()), []);
        assert_eq!(conditions(&healthy(), &Reading::default()), []);
        assert_eq!(conditions(&healthy(), &healthy()), []);
    }

    #[test]
    fn each_fault_has_its_condition() {
        let broken = Reading {
            recovery: Some(2),
            remapped: Some(Remapped {
                pending: true,
                failed: true,
                ..Remapped::default()
            }),
            uncorrected: Some(9),
            throttle: Some(0x40),
            nvlinks: vec![link(0, true, 4), link(1, false, 0)],
            pcie: Some(PcieReading {
                width: 8,
                max_width: 16,
            }),
            fabric: Some(Fabric {
                state: 2,
                status: 0,
            }),
            ..Reading::default()
        };
        let found = conditions(&broken, &healthy());
        assert_eq!(
            found,
            [
                Condition::Recovery(2),
                Condition::RemapFailed,
                Condition::RemapPending,
                Condition::UncorrectedErrors(2),
                Condition::LinksDown(vec![1]),
                Condition::LinkErrors(0),
                Condition::ThermalSlowdown,
                Condition::NarrowPcie {
                    width: 8,
                    max_width: 16
                },
                Condition::FabricNotReady,
            ]
        );
        assert_eq!(found[0].action(), Action::RebootNode);
        let words: Vec<String> = found.iter().map(ToString::to_string).collect();
        assert_eq!(words[4], "NVLink 1 is down");
        assert_eq!(words[7], "It uses 8 of 16 PCIe lanes");
    }

    #[test]
    fn links_that_nobody_uses_are_not_down() {
        let unused = Reading {
            nvlinks: vec![link(0, false, 0), link(1, false, 0)],
            ..Reading::default()
        };
        assert_eq!(conditions(&unused, &unused), []);
        assert_eq!(
            conditions(&unused, &healthy()),
            [Condition::LinksDown(vec![0, 1])]
        );
    }

    #[test]
    fn a_counter_that_began_anew_counts_nothing() {
        let reset = Reading {
            uncorrected: Some(0),
            ..healthy()
        };
        assert_eq!(conditions(&reset, &healthy()), []);
    }
}
