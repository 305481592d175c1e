// SPDX-License-Identifier: Apache-2.0
//! One incident as text: its cause first, then what followed from it.

use std::fmt::Write as _;

use steadfast_health::kernel_log::{Event, Stamp};
use steadfast_health::xid::{Action, Assessment, Cause, Severity, rank_in_incident};

/// The most different events of one incident that are told apart.
const MAX_EVENTS: usize = 64;

/// The events of one incident; those that differ in nothing but time are counted.
#[derive(Debug, Default)]
pub(super) struct Incident {
    events: Vec<Counted>,
    /// How many came after `events` was full.
    untold: u64,
    /// When the first was logged.
    start: Option<Stamp>,
    /// The heaviest action of any.
    action: Option<Action>,
}

#[derive(Debug)]
struct Counted {
    event: Event,
    found: Assessment,
    title: String,
    count: u64,
}

impl Incident {
    pub(super) fn add(&mut self, event: Event, found: Assessment) {
        self.action = self.action.max(Some(found.action));
        self.start = self.start.or(event.header.stamp);
        let title = event.title();
        let same = self
            .events
            .iter_mut()
            .find(|known| known.title == title && known.found == found);
        if let Some(known) = same {
            known.count += 1;
            // Of a storm, only some lines name the process.
            if known.event.pid().is_none() && event.pid().is_some() {
                known.event = event;
            }
        } else if self.events.len() < MAX_EVENTS {
            self.events.push(Counted {
                event,
                found,
                title,
                count: 1,
            });
        } else {
            self.untold += 1;
        }
    }

    /// For a person. An incident asks for the heaviest of what its events ask for: what follows from a fault may ask for
    /// more than the fault (XID 154 after 31), never for less.
    pub(super) fn render(mut self, id: u64) -> String {
        // The order of the log stays among equals.
        self.events.sort_by_key(|counted| {
            let rank = rank_in_incident(&counted.event);
            (rank, std::cmp::Reverse(counted.found.severity))
        });
        let action = self.action.unwrap_or(Action::Report);
        let mut text = format!("incident {id}{}: {action}\n", time(self.start));
        let least = self
            .events
            .first()
            .map_or(0, |counted| rank_in_incident(&counted.event));
        let mut in_consequences = false;
        let mut events = self.events.iter().peekable();
        while let Some(counted) = events.next() {
            if rank_in_incident(&counted.event) > least && !in_consequences {
                in_consequences = true;
                text.push_str("  what followed:\n");
            }
            let indent = if in_consequences { "    " } else { "  " };
            counted.name(&mut text, indent);
            // What several GPUs have in common is said once.
            if events.peek().is_none_or(|next| next.found != counted.found) {
                counted.explain(&mut text, indent);
            }
        }
        if self.untold > 0 {
            line(&mut text, format_args!("  and {} more", self.untold));
        }
        line(&mut text, format_args!("  {}\n", action.advice()));
        text
    }
}

impl Counted {
    fn name(&self, text: &mut String, indent: &str) {
        let times = if self.count > 1 {
            format!(", {} times", self.count)
        } else {
            String::new()
        };
        let process = self
            .event
            .process()
            .map_or_else(String::new, |process| format!(", {process}"));
        let injected = if self.event.header.injected() {
            ", not from the kernel"
        } else {
            ""
        };
        let title = &self.title;
        line(
            text,
            format_args!("{indent}{title}{process}{times}{injected}"),
        );
    }

    fn explain(&self, text: &mut String, indent: &str) {
        let Assessment {
            severity,
            cause,
            meaning,
            ..
        } = self.found;
        let severity = match severity {
            Severity::Unknown => "severity unknown",
            known => known.name(),
        };
        let cause = match cause {
            Cause::Unknown => "cause unknown",
            known => known.name(),
        };
        line(
            text,
            format_args!("{indent}  {severity}, {cause}: {meaning}"),
        );
    }
}

/// When it was logged, as far as the log says it.
fn time(stamp: Option<Stamp>) -> String {
    match stamp {
        None => String::new(),
        Some(Stamp::SinceBoot(time)) => format!(" ({:.3} s after the start)", time.as_secs_f64()),
        Some(Stamp::Wall(time)) => {
            let seconds = i64::try_from(time.as_secs()).ok();
            let Some(time) = seconds.and_then(|seconds| jiff::Timestamp::from_second(seconds).ok())
            else {
                return String::new();
            };
            let time = jiff::tz::TimeZone::UTC.to_datetime(time);
            let form = if time.year() == Stamp::NO_YEAR {
                " (%b %e %H:%M:%S)"
            } else {
                " (%Y-%m-%d %H:%M:%S)"
            };
            time.strftime(form).to_string()
        }
    }
}

fn line(text: &mut String, arguments: std::fmt::Arguments<'_>) {
    // Writing to a string does not fail.
    let _written = writeln!(text, "{arguments}");
}
