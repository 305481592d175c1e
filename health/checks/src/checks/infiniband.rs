// SPDX-License-Identifier: Apache-2.0
//! Ports of InfiniBand and RoCE adapters.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{IN_JOBS_BUT_EPILOG, QUICK};
use crate::context::Context;
use crate::outcome::Outcome;
use crate::spec::{Number, Spec, Threshold, Unit, Words, optional, words};

pub(super) const DEVICES: &str = "sys/class/infiniband";
const ACTIVE: &str = "ACTIVE";
const LINK_UP: &str = "LinkUp";

static PORTS: Words = words(
    "ports",
    &[],
    "Ports that must be active, such as \"mlx5_0\" or \"mlx5_0:1\".",
);

static EXPECTED: Number = optional(
    "expected",
    Unit::Count,
    "Ports that must be active at least.",
);

static MIN_RATE: Number = optional(
    "min_rate",
    Unit::Gigabits,
    "Rate that each port of `ports` must have, or, without those, each that is active. Unless set, a port that is slower than \
     others of the same kind of adapter, or than it was, is a warning.",
);

pub(crate) static SPEC: Spec = Spec {
    name: "infiniband",
    doc: "Looks at the state and the rate of InfiniBand and RoCE ports. A port that was active since the machine was started, \
          and is not any more, fails the check; one that never was may have no cable.",
    profiles: IN_JOBS_BUT_EPILOG,
    deadline: QUICK,
    thresholds: &[
        Threshold::Words(&PORTS),
        Threshold::Number(&EXPECTED),
        Threshold::Number(&MIN_RATE),
    ],
    needs_gpus: false,
    look,
};

const DOWN: &str = "look at cable, transceiver and switch port (`ibstat`, `mlxlink -d DEVICE`)";
const NO_MANAGER: &str = "see whether the subnet manager runs and reaches the port (`sminfo`)";

/// A port.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Port {
    device: String,
    number: String,
    /// Such as `ACTIVE`, `INIT` or `DOWN`.
    state: String,
    /// Such as `LinkUp`, `Polling` or `Disabled`.
    physical: String,
    /// Gbit/s.
    rate: Option<u64>,
    /// What kind of adapter it belongs to.
    board: String,
}

/// What was best of each port since the machine was started.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Kept {
    boot: String,
    /// Gbit/s of ports that were active.
    best: BTreeMap<String, u64>,
}

impl Port {
    fn name(&self) -> String {
        format!("{}:{}", self.device, self.number)
    }

    fn is_active(&self) -> bool {
        self.state == ACTIVE
    }

    fn is_meant_by(&self, name: &str) -> bool {
        name == self.device || name == self.name()
    }
}

fn look(context: &Context<'_>) -> Outcome {
    let wanted = context.words(&PORTS);
    let expected = context.number(&EXPECTED);
    let (ports, unread) = ports(context);
    let mut outcome = Outcome::default();
    let all_read = unread.is_empty();
    for why in unread {
        outcome.unsure(why);
    }
    for name in &wanted {
        if !ports.iter().any(|port| port.is_meant_by(name)) {
            let next = "look for the adapter on the PCI bus (`lspci`), and for its driver in the kernel log";
            outcome.fail(format!("there is no port {name}"), next);
        }
    }
    if ports.is_empty()
        && all_read
        && wanted.is_empty()
        && expected.is_none_or(|expected| expected == 0)
    {
        return Outcome::unknown("there is no InfiniBand or RoCE adapter");
    }
    let active = ports.iter().filter(|port| port.is_active()).count() as u64;
    if let Some(expected) = expected
        && active < expected
    {
        outcome.fail(format!("{active} of {expected} ports are active"), DOWN);
    }
    let boot = context.boot().unwrap_or_default();
    let mut kept: Kept = context.remembered().unwrap_or_default();
    if kept.boot != boot {
        kept = Kept {
            boot,
            ..Kept::default()
        };
    }
    for port in &ports {
        let is_wanted = wanted.iter().any(|name| port.is_meant_by(name));
        judge_state(port, is_wanted, &kept, &mut outcome);
        judge_rate(
            context,
            port,
            &ports,
            is_wanted || wanted.is_empty(),
            &kept,
            &mut outcome,
        );
        outcome.evidence(describe(port));
    }
    for port in ports.iter().filter(|port| port.is_active()) {
        let best = kept.best.entry(port.name()).or_default();
        *best = (*best).max(port.rate.unwrap_or(0));
    }
    outcome.remember(&kept);
    outcome.fine = format!("{active} of {} ports are active", ports.len());
    outcome
}

fn describe(port: &Port) -> String {
    let rate = port
        .rate
        .map_or_else(String::new, |rate| format!(", {rate} Gbit/s"));
    format!("{}: {}, {}{rate}", port.name(), port.state, port.physical)
}

fn judge_state(port: &Port, is_wanted: bool, kept: &Kept, outcome: &mut Outcome) {
    if port.is_active() {
        return;
    }
    let (name, state, physical) = (port.name(), &port.state, &port.physical);
    let next = if physical == LINK_UP {
        NO_MANAGER
    } else {
        DOWN
    };
    if is_wanted {
        outcome.fail(format!("port {name} is {state} ({physical})"), next);
    } else if kept.best.contains_key(&name) {
        let text = format!("port {name} was active, and is {state} ({physical}) now");
        outcome.fail(text, next);
    } else if physical == LINK_UP {
        outcome.warn(format!("port {name} has a link, and is {state}"), next);
    }
}

fn judge_rate(
    context: &Context<'_>,
    port: &Port,
    all: &[Port],
    is_meant: bool,
    kept: &Kept,
    outcome: &mut Outcome,
) {
    let Some(rate) = port.rate.filter(|_| port.is_active()) else {
        return;
    };
    let name = port.name();
    if let Some(least) = context.number(&MIN_RATE) {
        if rate < least && is_meant {
            let text = format!("port {name} has {rate} Gbit/s, and should have {least}");
            outcome.fail(text, DOWN);
        }
        return;
    }
    let before = kept.best.get(&name).copied().unwrap_or(0);
    let alike = all
        .iter()
        .filter(|other| other.is_active() && other.board == port.board);
    let fastest = alike.filter_map(|other| other.rate).max().unwrap_or(0);
    if rate < before {
        outcome.warn(
            format!("port {name} has {rate} Gbit/s, and had {before}"),
            DOWN,
        );
    } else if rate < fastest {
        let text = format!("port {name} has {rate} Gbit/s, and others of its kind have {fastest}");
        outcome.warn(text, DOWN);
    }
}

/// Name of each adapter and number of each of its ports.
pub(super) fn port_numbers(context: &Context<'_>) -> Vec<(String, String)> {
    let devices = context.names(DEVICES).into_iter();
    devices
        .flat_map(|device| {
            let numbers = context.names(format!("{DEVICES}/{device}/ports"));
            numbers
                .into_iter()
                .map(move |number| (device.clone(), number))
        })
        .collect()
}

/// The ports, and why some could not be read.
fn ports(context: &Context<'_>) -> (Vec<Port>, Vec<String>) {
    let (mut ports, mut unread) = (Vec::new(), Vec::new());
    for (device, number) in port_numbers(context) {
        let directory = format!("{DEVICES}/{device}/ports/{number}");
        let state = match context.read(format!("{directory}/state")) {
            Ok(state) => after_colon(&state),
            Err(why) => {
                unread.push(why.why);
                continue;
            }
        };
        let physical = context.read(format!("{directory}/phys_state"));
        let rate = context
            .read(format!("{directory}/rate"))
            .unwrap_or_default();
        let board = context.read(format!("{DEVICES}/{device}/board_id"));
        ports.push(Port {
            state,
            physical: physical.map_or_else(
                |_| "state of the link unknown".to_owned(),
                |text| after_colon(&text),
            ),
            rate: gigabits(&rate),
            board: board.unwrap_or_default(),
            device,
            number,
        });
    }
    (ports, unread)
}

/// `ACTIVE` of `4: ACTIVE`.
fn after_colon(text: &str) -> String {
    let word = text.split_once(':').map_or(text, |(_, word)| word).trim();
    if word.is_empty() { "unknown" } else { word }.to_owned()
}

/// 400 of `400 Gb/sec (4X NDR)`; a fraction is dropped.
fn gigabits(text: &str) -> Option<u64> {
    let (number, rest) = text.split_once(' ')?;
    let whole = number.split_once('.').map_or(number, |(whole, _)| whole);
    rest.starts_with("Gb/sec").then(|| whole.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::gigabits;
    use crate::outcome::Status;
    use crate::testing::Made;

    fn port(made: Made, device: &str, state: &str, physical: &str, rate: &str) -> Made {
        let directory = format!("sys/class/infiniband/{device}");
        made.file(&format!("{directory}/board_id"), "MT_0838\n")
            .file(&format!("{directory}/ports/1/state"), state)
            .file(&format!("{directory}/ports/1/phys_state"), physical)
            .file(&format!("{directory}/ports/1/rate"), rate)
    }

    fn up(made: Made, device: &str, rate: &str) -> Made {
        port(made, device, "4: ACTIVE\n", "5: LinkUp\n", rate)
    }

    fn down(made: Made, device: &str) -> Made {
        port(
            made,
            device,
            "1: DOWN\n",
            "2: Polling\n",
            "10 Gb/sec (4X SDR)\n",
        )
    }

    const NDR: &str = "400 Gb/sec (4X NDR)\n";

    #[test]
    fn a_port_without_a_cable_is_no_fault_until_it_was_active() {
        let made = down(up(Made::running(), "mlx5_0", NDR), "mlx5_1");
        made.expect("infiniband", Status::Ok, "1 of 2 ports are active");
        let made = down(made, "mlx5_0");
        made.expect(
            "infiniband",
            Status::Fail,
            "port mlx5_0:1 was active, and is DOWN (Polling) now",
        );
        let made = made.file("proc/sys/kernel/random/boot_id", "boot-2\n");
        made.expect("infiniband", Status::Ok, "0 of 2");
    }

    #[test]
    fn ports_that_are_named_must_be_active() {
        let made = down(up(Made::running(), "mlx5_0", NDR), "mlx5_1");
        let made =
            made.settings("[check.infiniband]\nports = [\"mlx5_0:1\", \"mlx5_1\", \"mlx5_2\"]");
        let result = made.expect(
            "infiniband",
            Status::Fail,
            "port mlx5_1:1 is DOWN (Polling)",
        );
        assert!(
            result.summary.contains("there is no port mlx5_2"),
            "{result:#?}"
        );
        let made = made.settings("[check.infiniband]\nexpected = 2");
        made.expect("infiniband", Status::Fail, "1 of 2 ports are active");
    }

    #[test]
    fn a_port_without_a_subnet_manager_is_a_warning() {
        let made = port(Made::running(), "mlx5_0", "2: INIT\n", "5: LinkUp\n", NDR);
        made.expect(
            "infiniband",
            Status::Warn,
            "port mlx5_0:1 has a link, and is INIT",
        );
    }

    #[test]
    fn slow_ports_are_seen_beside_others_and_beside_themselves() {
        let made = up(
            up(Made::running(), "mlx5_0", NDR),
            "mlx5_1",
            "200 Gb/sec (4X HDR)\n",
        );
        made.expect(
            "infiniband",
            Status::Warn,
            "mlx5_1:1 has 200 Gbit/s, and others of its kind have 400",
        );
        let made = up(made, "mlx5_0", "200 Gb/sec (4X HDR)\n");
        made.expect(
            "infiniband",
            Status::Warn,
            "mlx5_0:1 has 200 Gbit/s, and had 400",
        );
        let made = made.settings("[check.infiniband]\nmin_rate = 400");
        made.expect(
            "infiniband",
            Status::Fail,
            "mlx5_1:1 has 200 Gbit/s, and should have 400",
        );
    }

    #[test]
    fn absent_and_garbage_fail_nobody() {
        Made::running().expect(
            "infiniband",
            Status::Unknown,
            "no InfiniBand or RoCE adapter",
        );
        let made = port(Made::running(), "mlx5_0", "", "\u{0}", "fast");
        made.expect("infiniband", Status::Ok, "0 of 1 ports are active");
        let made = Made::running().file("sys/class/infiniband/mlx5_0/ports/1/state/x", "");
        made.expect("infiniband", Status::Unknown, "cannot read");
        let made = Made::running().settings("[check.infiniband]\nexpected = 8");
        made.expect("infiniband", Status::Fail, "0 of 8 ports");
    }

    #[test]
    fn rates_are_read() {
        let rates = [
            "400 Gb/sec (4X NDR)",
            "2.5 Gb/sec (1X SDR)",
            "",
            "400",
            "x Gb/sec",
        ]
        .map(gigabits);
        assert_eq!(rates, [Some(400), Some(2), None, None, None]);
    }
}
