// SPDX-License-Identifier: Apache-2.0
//! Errors that InfiniBand and RoCE ports count.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::infiniband::{DEVICES, port_numbers};
use super::{BUT_EPILOG, QUICK};
use crate::context::Context;
use crate::outcome::Outcome;
use crate::rates::{Counted, Growth, compare, in_words, per_hour};
use crate::spec::{Number, Spec, Threshold, Unit, number};

macro_rules! counter {
    ($name:literal, $most:literal, $doc:literal) => {
        number($name, Unit::PerHour, $most, $doc)
    };
}

static SYMBOL: Number = counter!(
    "symbol_error",
    120,
    "Symbols that were damaged on the wire."
);
static RECOVERY: Number = counter!(
    "link_error_recovery",
    300,
    "Times that the link repaired itself."
);
static INTEGRITY: Number = counter!(
    "local_link_integrity_errors",
    0,
    "Times that the wire was too bad for the link."
);
static OVERRUN: Number = counter!(
    "excessive_buffer_overrun_errors",
    0,
    "Times that the port's buffer overflowed."
);
static RECEIVE: Number = counter!("port_rcv_errors", 36_000, "Packets that came damaged.");
static DISCARD: Number = counter!(
    "port_xmit_discards",
    360_000,
    "Packets that could not be sent."
);
static RETRIES: Number = counter!(
    "req_transport_retries_exceeded",
    0,
    "Transfers that were given up after too many tries."
);
static TIMEOUT: Number = counter!(
    "local_ack_timeout_err",
    3600,
    "Transfers that were not acknowledged in time."
);
static SLOW_RESTART: Number = counter!(
    "roce_slow_restart",
    36_000,
    "Times that a sender had to begin slowly again."
);

/// Which counter, and the directory of the port in which it is.
static COUNTERS: [(&Number, &str); 9] = [
    (&SYMBOL, "counters"),
    (&RECOVERY, "counters"),
    (&INTEGRITY, "counters"),
    (&OVERRUN, "counters"),
    (&RECEIVE, "counters"),
    (&DISCARD, "counters"),
    (&RETRIES, "hw_counters"),
    (&TIMEOUT, "hw_counters"),
    (&SLOW_RESTART, "hw_counters"),
];

/// Times that the link went down.
const LINK_DOWNED: &str = "link_downed";

static MAX_FLAPS: Number = number(
    "max_flaps",
    Unit::Count,
    2,
    "Times that the link of a port may go down within `flap_window`. More fail the check; any since the last run is a warning.",
);

static FLAP_WINDOW: Number = number("flap_window", Unit::Time, 86_400_000, "See `max_flaps`.");

pub(crate) static SPEC: Spec = Spec {
    name: "infiniband-counters",
    doc: "Compares the error counters of InfiniBand and RoCE ports with those of the last run. Each number is how many there \
          may be in an hour; more are a warning.",
    profiles: BUT_EPILOG,
    deadline: QUICK,
    thresholds: &[
        Threshold::Number(&MAX_FLAPS),
        Threshold::Number(&FLAP_WINDOW),
        Threshold::Number(&SYMBOL),
        Threshold::Number(&RECOVERY),
        Threshold::Number(&INTEGRITY),
        Threshold::Number(&OVERRUN),
        Threshold::Number(&RECEIVE),
        Threshold::Number(&DISCARD),
        Threshold::Number(&RETRIES),
        Threshold::Number(&TIMEOUT),
        Threshold::Number(&SLOW_RESTART),
    ],
    needs_gpus: false,
    look,
};

const NEXT: &str =
    "look at cable, transceiver and switch port; clean or replace them (`mlxlink -d DEVICE -c`)";

/// What is remembered: counters, and when links went down.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Kept {
    counted: Option<Counted>,
    boot: String,
    /// The last count of links that went down, by port.
    downed: BTreeMap<String, u64>,
    /// When, in milliseconds since boot, and how often, by port.
    flaps: BTreeMap<String, Vec<(u64, u64)>>,
}

/// Flaps that are remembered of one port.
const MOST_FLAPS: usize = 100;

fn look(context: &Context<'_>) -> Outcome {
    let ports = port_numbers(context);
    if ports.is_empty() {
        return Outcome::unknown("there is no InfiniBand or RoCE adapter");
    }
    let mut counters = BTreeMap::new();
    let mut downed = BTreeMap::new();
    let mut outcome = Outcome::default();
    for (device, number) in &ports {
        let port = format!("{device}:{number}");
        let directory = format!("{DEVICES}/{device}/ports/{number}");
        for (counter, kind) in &COUNTERS {
            // Not every adapter has every counter.
            if let Ok(count) = context.read_number(format!("{directory}/{kind}/{}", counter.name)) {
                counters.insert(format!("{port}/{}", counter.name), count);
            }
        }
        let file = format!("{directory}/counters/{LINK_DOWNED}");
        if let Ok(count) = context.read_number(file) {
            downed.insert(port, count);
        }
    }
    if counters.is_empty() && downed.is_empty() {
        return Outcome::unknown("no port says what it counts");
    }
    outcome.fine = format!("{} ports, no error more than may be", ports.len());
    let kept: Kept = context.remembered().unwrap_or_default();
    let compared = compare(context, kept.counted.clone(), counters);
    let (growth, counted) = match compared {
        Ok(compared) => compared,
        Err(unread) => return unread.into(),
    };
    judge_rates(context, &growth, &mut outcome);
    match flaps(context, kept, downed, &mut outcome) {
        Ok(kept) => outcome.remember(&Kept {
            counted: Some(counted),
            ..kept
        }),
        Err(why) => outcome.unsure(why),
    }
    if let Growth::Unknown(why) = growth {
        outcome.unsure(why);
    }
    outcome
}

fn judge_rates(context: &Context<'_>, growth: &Growth, outcome: &mut Outcome) {
    let Growth::Since(elapsed, grown) = growth else {
        return;
    };
    for (key, count) in grown {
        let Some((port, name)) = key.split_once('/') else {
            continue;
        };
        let mut known = COUNTERS.iter().map(|(counter, _)| *counter);
        let Some(counter) = known.find(|counter| counter.name == name) else {
            continue;
        };
        if *count > 0 {
            outcome.evidence(format!("{port}: {name} {}", in_words(*count, *elapsed)));
        }
        let most = context.number(counter);
        if most.is_some_and(|most| per_hour(*count, *elapsed) > most) {
            let text = format!("port {port} counts {name}: {}", in_words(*count, *elapsed));
            outcome.warn(text, NEXT);
        }
    }
}

/// Judges how often links went down; gives what is to be remembered.
fn flaps(
    context: &Context<'_>,
    before: Kept,
    downed: BTreeMap<String, u64>,
    outcome: &mut Outcome,
) -> Result<Kept, String> {
    let boot = context.boot().map_err(|unread| unread.why)?;
    let since_boot = context.since_boot().map_err(|unread| unread.why)?;
    let now_ms = u64::try_from(since_boot.as_millis()).unwrap_or(u64::MAX);
    let mut kept = if before.boot == boot {
        before
    } else {
        Kept::default()
    };
    kept.boot = boot;
    let window = context.number(&FLAP_WINDOW).unwrap_or(u64::MAX);
    let most = context.number(&MAX_FLAPS);
    for (port, count) in downed {
        let earlier = kept.downed.insert(port.clone(), count);
        let new = earlier.map_or(0, |earlier| count.saturating_sub(earlier));
        let history = kept.flaps.entry(port.clone()).or_default();
        if new > 0 && history.len() < MOST_FLAPS {
            history.push((now_ms, new));
        }
        history.retain(|(at_ms, _)| now_ms.saturating_sub(*at_ms) <= window);
        let total: u64 = history.iter().map(|(_, times)| times).sum();
        if most.is_some_and(|most| total > most) {
            let window = crate::units::show_duration(Duration::from_millis(window));
            outcome.fail(
                format!("the link of port {port} went down {total} times within {window}"),
                NEXT,
            );
        } else if new > 0 {
            outcome.warn(
                format!("the link of port {port} went down {new} times since the last run"),
                NEXT,
            );
        }
    }
    Ok(kept)
}

#[cfg(test)]
mod tests {
    use crate::outcome::Status;
    use crate::testing::Made;

    fn count(made: Made, file: &str, count: u64) -> Made {
        let path = format!("sys/class/infiniband/mlx5_0/ports/1/{file}");
        made.file(&path, format!("{count}\n"))
    }

    fn at(made: Made, seconds: u64) -> Made {
        made.file("proc/uptime", format!("{seconds}.00 0\n"))
    }

    #[test]
    fn only_growth_counts_and_by_the_hour() {
        let made = count(Made::running(), "counters/symbol_error", 50_000);
        let made = count(made, "hw_counters/local_ack_timeout_err", 3);
        made.expect(
            "infiniband-counters",
            Status::Unknown,
            "this is the first look",
        );
        let made = count(at(made, 2800), "counters/symbol_error", 50_060);
        made.expect(
            "infiniband-counters",
            Status::Ok,
            "1 ports, no error more than may be",
        );
        let made = count(at(made, 4600), "counters/symbol_error", 50_121);
        made.expect(
            "infiniband-counters",
            Status::Warn,
            "port mlx5_0:1 counts symbol_error: 61 in 30m",
        );
        let made = made.settings("[check.infiniband-counters]\nsymbol_error = \"off\"");
        let made = count(at(made, 8200), "counters/symbol_error", 90_000);
        made.expect("infiniband-counters", Status::Ok, "");
    }

    #[test]
    fn flaps_add_up_within_their_window() {
        let made = count(Made::running(), "counters/link_downed", 7);
        made.check("infiniband-counters");
        let made = count(at(made, 2000), "counters/link_downed", 9);
        let said = "the link of port mlx5_0:1 went down 2 times since the last run";
        made.expect("infiniband-counters", Status::Warn, said);
        made.expect("infiniband-counters", Status::Ok, "");
        let made = count(at(made, 5000), "counters/link_downed", 10);
        let said = "the link of port mlx5_0:1 went down 3 times within 1d";
        made.expect("infiniband-counters", Status::Fail, said);
        let made = at(made, 200_000);
        made.expect("infiniband-counters", Status::Ok, "");
    }

    #[test]
    fn absent_and_garbage_are_unknown() {
        Made::running().expect(
            "infiniband-counters",
            Status::Unknown,
            "no InfiniBand or RoCE",
        );
        let made = Made::running().file(
            "sys/class/infiniband/mlx5_0/ports/1/counters/symbol_error",
            "N/A",
        );
        made.expect(
            "infiniband-counters",
            Status::Unknown,
            "no port says what it counts",
        );
        let made = count(Made::empty(), "counters/symbol_error", 1);
        made.expect("infiniband-counters", Status::Unknown, "cannot read");
    }
}
