// SPDX-License-Identifier: Apache-2.0
//! Ethernet interfaces.

use std::collections::BTreeMap;

use super::{BUT_EPILOG, QUICK};
use crate::context::Context;
use crate::outcome::Outcome;
use crate::rates::{Growth, compare, in_words, per_hour};
use crate::spec::{Number, Spec, Threshold, Unit, Words, number, optional, words};

const INTERFACES: &str = "sys/class/net";
/// `ARPHRD_ETHER`.
const ETHERNET: &str = "1";
/// `IFF_UP`.
const UP: u64 = 1;

static WANTED: Words = words(
    "interfaces",
    &[],
    "Interfaces that must have a link. Others are a warning when they are turned on and have none.",
);

static MIN_SPEED: Number = optional(
    "min_speed",
    Unit::Gigabits,
    "Speed that each of `interfaces` must have, or, without those, each that has a link.",
);

static MAX_CHANGES: Number = number(
    "max_changes",
    Unit::PerHour,
    6,
    "Times that the link of an interface may come or go since the last run. More are a warning.",
);

pub(crate) static SPEC: Spec = Spec {
    name: "ethernet",
    doc: "Looks at the links of network interfaces that are hardware, and of those that are named.",
    profiles: BUT_EPILOG,
    deadline: QUICK,
    thresholds: &[
        Threshold::Words(&WANTED),
        Threshold::Number(&MIN_SPEED),
        Threshold::Number(&MAX_CHANGES),
    ],
    needs_gpus: false,
    look,
};

const NEXT: &str = "look at cable, transceiver and switch port (`ethtool NAME`)";

fn look(context: &Context<'_>) -> Outcome {
    let wanted = context.words(&WANTED);
    let all = context.names(INTERFACES);
    let mut outcome = Outcome::default();
    for name in wanted.iter().filter(|name| !all.contains(name)) {
        outcome.fail(
            format!("there is no interface {name}"),
            "see whether its driver is loaded",
        );
    }
    let is_hardware = |name: &String| {
        let kind = context.read(format!("{INTERFACES}/{name}/type"));
        kind.is_ok_and(|kind| kind == ETHERNET)
            && context.exists(format!("{INTERFACES}/{name}/device"))
    };
    let looked_at: Vec<&String> = all
        .iter()
        .filter(|name| wanted.contains(name) || is_hardware(name))
        .collect();
    if looked_at.is_empty() && wanted.is_empty() {
        return Outcome::unknown("there is no Ethernet hardware");
    }
    let mut changes = BTreeMap::new();
    let mut linked = 0;
    for name in &looked_at {
        linked += usize::from(judge(context, name, &wanted, &mut outcome));
        if let Ok(count) = context.read_number(format!("{INTERFACES}/{name}/carrier_changes")) {
            changes.insert((*name).clone(), count);
        }
    }
    judge_changes(context, changes, &mut outcome);
    outcome.fine = format!("{linked} of {} interfaces have a link", looked_at.len());
    outcome
}

/// Judges an interface; says whether it has a link.
fn judge(context: &Context<'_>, name: &String, wanted: &[String], outcome: &mut Outcome) -> bool {
    let directory = format!("{INTERFACES}/{name}");
    let is_wanted = wanted.contains(name);
    let flags = context
        .read(format!("{directory}/flags"))
        .unwrap_or_default();
    let flags = u64::from_str_radix(flags.trim_start_matches("0x"), 16).unwrap_or(0);
    // The kernel refuses to say it of an interface that is turned off.
    let has_link = context.read_number(format!("{directory}/carrier")) == Ok(1);
    let speed = context.read(format!("{directory}/speed")).ok();
    // -1 stands for unknown.
    let megabits: Option<u64> = speed.and_then(|speed| speed.parse().ok());
    outcome.evidence(format!(
        "{name}: {}{}",
        if has_link { "link" } else { "no link" },
        megabits.map_or_else(String::new, |megabits| format!(", {megabits} Mbit/s"))
    ));
    if !has_link {
        let text = format!("interface {name} has no link");
        if is_wanted {
            outcome.fail(text, NEXT);
        } else if flags & UP != 0 {
            outcome.warn(text, NEXT);
        }
        return false;
    }
    if let (Some(least), Some(megabits)) = (context.number(&MIN_SPEED), megabits)
        && (is_wanted || wanted.is_empty())
        && megabits < least.saturating_mul(1000)
    {
        let text =
            format!("interface {name} has {megabits} Mbit/s, and should have {least} Gbit/s");
        outcome.fail(text, NEXT);
    }
    true
}

fn judge_changes(context: &Context<'_>, changes: BTreeMap<String, u64>, outcome: &mut Outcome) {
    if changes.is_empty() {
        return;
    }
    let (growth, kept) = match compare(context, context.remembered(), changes) {
        Ok(compared) => compared,
        Err(unread) => return outcome.evidence(unread.why),
    };
    outcome.remember(&kept);
    match growth {
        Growth::Unknown(why) => outcome.evidence(format!("changes of links: {why}")),
        Growth::Since(elapsed, grown) => {
            let most = context.number(&MAX_CHANGES);
            for (name, count) in grown {
                if most.is_some_and(|most| per_hour(count, elapsed) > most) {
                    let text = format!(
                        "the link of interface {name} came and went: {}",
                        in_words(count, elapsed)
                    );
                    outcome.warn(text, NEXT);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::outcome::Status;
    use crate::testing::Made;

    fn interface(made: Made, name: &str, files: &[(&str, &str)]) -> Made {
        let directory = format!("sys/class/net/{name}");
        let made = made
            .file(&format!("{directory}/type"), "1\n")
            .file(&format!("{directory}/flags"), "0x1003\n");
        files.iter().fold(made, |made, (file, content)| {
            made.file(&format!("{directory}/{file}"), content)
        })
    }

    const HARDWARE: (&str, &str) = ("device/vendor", "0x15b3");
    const LINK: (&str, &str) = ("carrier", "1\n");
    const NO_LINK: (&str, &str) = ("carrier", "0\n");

    #[test]
    fn hardware_that_is_on_should_have_a_link_and_what_is_named_must() {
        let made = interface(Made::running(), "eth0", &[HARDWARE, LINK]);
        let made = interface(made, "eth1", &[HARDWARE, NO_LINK]);
        let made = interface(made, "veth7", &[NO_LINK]);
        made.expect("ethernet", Status::Warn, "interface eth1 has no link");
        let made = interface(made, "eth1", &[("flags", "0x1002\n")]);
        made.expect("ethernet", Status::Ok, "1 of 2 interfaces have a link");
        let made = made.settings("[check.ethernet]\ninterfaces = [\"eth1\", \"bond0\"]");
        let result = made.expect("ethernet", Status::Fail, "interface eth1 has no link");
        assert!(
            result.summary.contains("there is no interface bond0"),
            "{result:#?}"
        );
    }

    #[test]
    fn speed_is_judged_where_it_is_configured_and_known() {
        let made = interface(
            Made::running(),
            "eth0",
            &[HARDWARE, LINK, ("speed", "10000\n")],
        );
        let made = made.settings("[check.ethernet]\nmin_speed = 25");
        made.expect(
            "ethernet",
            Status::Fail,
            "has 10000 Mbit/s, and should have 25 Gbit/s",
        );
        let made = interface(made, "eth0", &[("speed", "-1\n")]);
        made.expect("ethernet", Status::Ok, "");
    }

    #[test]
    fn a_link_that_comes_and_goes_is_a_warning() {
        let made = interface(
            Made::running(),
            "eth0",
            &[HARDWARE, LINK, ("carrier_changes", "2\n")],
        );
        made.expect("ethernet", Status::Ok, "");
        let made =
            interface(made, "eth0", &[("carrier_changes", "9\n")]).file("proc/uptime", "4600.0 0");
        made.expect(
            "ethernet",
            Status::Warn,
            "the link of interface eth0 came and went: 7 in 1h",
        );
    }

    #[test]
    fn absent_and_garbage_fail_nobody() {
        Made::running().expect("ethernet", Status::Unknown, "no Ethernet hardware");
        let made = interface(
            Made::empty(),
            "eth0",
            &[
                HARDWARE,
                ("carrier", "x"),
                ("flags", "zz"),
                ("carrier_changes", ""),
            ],
        );
        made.expect("ethernet", Status::Ok, "0 of 1");
    }
}
