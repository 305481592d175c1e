// SPDX-License-Identifier: Apache-2.0
//! Counters that only grow, and how fast they have grown since the last run.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::context::{Context, Unread};
use crate::units::show_duration;

/// Runs that follow each other faster are compared with an earlier one, lest a single error look like a torrent.
const SHORTEST: Duration = Duration::from_mins(1);
const HOUR_MS: u128 = 3_600_000;

/// Counters at one time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Counted {
    boot: String,
    at_ms: u64,
    counters: BTreeMap<String, u64>,
}

/// How far counters have grown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Growth {
    /// There is nothing to compare with, for this reason.
    Unknown(String),
    /// By how much each has grown, and in which time.
    Since(Duration, BTreeMap<String, u64>),
}

/// Compares counters with what was counted before. Gives what is to be remembered.
pub(crate) fn compare(
    context: &Context<'_>,
    before: Option<Counted>,
    counters: BTreeMap<String, u64>,
) -> Result<(Growth, Counted), Unread> {
    let since_boot = context.since_boot()?;
    let now = Counted {
        boot: context.boot()?,
        at_ms: u64::try_from(since_boot.as_millis()).unwrap_or(u64::MAX),
        counters,
    };
    let compared = now.compare(before);
    Ok(match compared {
        (Growth::Unknown(_), kept) if !context.has_memory() => (
            Growth::Unknown("nothing is remembered from one run to the next (--state)".to_owned()),
            kept,
        ),
        other => other,
    })
}

impl Counted {
    fn compare(self, before: Option<Self>) -> (Growth, Self) {
        let Some(before) = before else {
            let why = "this is the first look: from the next one on, what has grown is seen";
            return (Growth::Unknown(why.to_owned()), self);
        };
        if before.boot != self.boot {
            let why = "this is the first look since the machine was started";
            return (Growth::Unknown(why.to_owned()), self);
        }
        let elapsed = Duration::from_millis(self.at_ms.saturating_sub(before.at_ms));
        // A counter that is smaller than before began anew: nobody can say how far it had come.
        let grown = self.counters.iter().filter_map(|(name, now)| {
            let before = before.counters.get(name)?;
            Some((name.clone(), now.saturating_sub(*before)))
        });
        let growth = Growth::Since(elapsed, grown.collect());
        if elapsed >= SHORTEST {
            return (growth, self);
        }
        // What is new is counted from now on.
        let mut kept = before;
        for (name, now) in self.counters {
            let before = kept.counters.entry(name).or_insert(now);
            *before = (*before).min(now);
        }
        (growth, kept)
    }
}

/// Things in an hour, for so many in a time.
pub(crate) fn per_hour(grown: u64, elapsed: Duration) -> u64 {
    let rate = u128::from(grown) * HOUR_MS / elapsed.max(SHORTEST).as_millis();
    u64::try_from(rate).unwrap_or(u64::MAX)
}

/// So many in a time, in words.
pub(crate) fn in_words(grown: u64, elapsed: Duration) -> String {
    format!("{grown} in {}", show_duration(elapsed))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(at_s: u64, value: u64) -> Counted {
        Counted {
            boot: "b".to_owned(),
            at_ms: at_s * 1000,
            counters: BTreeMap::from([("c".to_owned(), value)]),
        }
    }

    fn grown(growth: &Growth) -> u64 {
        match growth {
            Growth::Since(_, grown) => grown["c"],
            Growth::Unknown(why) => panic!("{why}"),
        }
    }

    #[test]
    fn growth_is_told_since_the_last_look() {
        let (growth, kept) = counted(1000, 17).compare(Some(counted(100, 5)));
        assert_eq!((grown(&growth), kept), (12, counted(1000, 17)));
    }

    #[test]
    fn looks_in_quick_succession_are_all_compared_with_the_same_one() {
        let (growth, kept) = counted(110, 7).compare(Some(counted(100, 5)));
        assert_eq!((grown(&growth), &kept), (2, &counted(100, 5)));
        let (growth, _) = counted(160, 7).compare(Some(kept));
        assert_eq!(grown(&growth), 2, "seen again until a minute is over");
        assert_eq!(per_hour(2, Duration::from_secs(1)), 120, "not 7200");
    }

    #[test]
    fn a_counter_that_began_anew_has_not_grown() {
        let (growth, kept) = counted(110, 1).compare(Some(counted(100, 5)));
        assert_eq!((grown(&growth), kept), (0, counted(100, 1)));
    }

    #[test]
    fn the_first_look_and_another_boot_tell_nothing() {
        assert!(matches!(counted(1, 1).compare(None).0, Growth::Unknown(_)));
        let mut other = counted(1, 1);
        other.boot = "a".to_owned();
        assert!(matches!(
            counted(9, 1).compare(Some(other)).0,
            Growth::Unknown(_)
        ));
    }

    #[test]
    fn rates_do_not_overflow() {
        assert_eq!(per_hour(u64::MAX, Duration::ZERO), u64::MAX);
        assert_eq!(per_hour(6, Duration::from_hours(2)), 3);
    }
}
