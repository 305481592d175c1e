// SPDX-License-Identifier: Apache-2.0
//! What the node's sources report (kernel log, NVML), put together: one incident for a burst, one verdict for each event,
//! and what is wrong with each GPU until somebody mends it.
//!
//! Each event is judged when it comes, since a lost GPU must be acted on at once; an incident only collects what belongs
//! together, for people and to count.

mod blame;
mod fault;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

pub use self::blame::{WorkerTrace, blame};
use crate::kernel_log::{Detail, DriverKind, Event, PciAddress, Stamp, What};
use crate::xid::{Action, Assessment, Driver, Grouping, Judge, assess, rank_in_incident};

/// The most events that are remembered in order to explain the ends of workers.
const MAX_SEEN: usize = 512;
/// The most GPUs and switches that can be out of order at once.
const MAX_FAULTS: usize = 256;
/// The most different events of one incident that are told apart.
const MAX_TITLES: usize = 64;
/// The longest time between two reports of one event by different sources.
const SAME_EVENT: Duration = Duration::from_secs(1);

/// XIDs after which calls about a GPU hang: it is off the bus, or its firmware does not answer.
const UNRESPONSIVE: [u32; 4] = [79, 95, 119, 120];

/// Who reported an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reporter {
    /// The kernel log.
    KernelLog,
    /// The driver's library.
    Nvml,
}

/// An event, and when and by whom it was seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sighting {
    /// What happened.
    pub event: Event,
    /// When, on the monotonic clock; 0 when nobody can say.
    pub at_ns: u64,
    /// Who says so.
    pub reporter: Reporter,
}

/// An event that was judged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Judged {
    /// The event.
    pub event: Event,
    /// When, on the monotonic clock; 0 when nobody can say.
    pub at_ns: u64,
    /// What it means; the action is what the policy makes of it.
    pub found: Assessment,
    /// Its incident; absent for lines that are about no fault.
    pub incident: Option<u64>,
    /// Whether it says something that its incident did not say before: another event, or a heavier action.
    pub is_news: bool,
}

/// An incident that is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Closed {
    /// Its number, from 1.
    pub incident: u64,
    /// What happened, the cause first, each with how often.
    pub events: Vec<(String, u64)>,
    /// The heaviest action that any of it asked for.
    pub action: Action,
    /// From the first event to the last.
    pub lasted: Duration,
}

/// Judges events as they come.
#[derive(Debug, Default)]
pub struct Incidents {
    driver: Option<Driver>,
    judge: Judge,
    grouping: Grouping,
    open: BTreeMap<u64, Open>,
    seen: VecDeque<Judged>,
    reports: VecDeque<(Reporter, PciAddress, u32, u64)>,
    faults: BTreeMap<PciAddress, Judged>,
}

#[derive(Debug)]
struct Open {
    titles: Vec<(u8, String, u64)>,
    action: Action,
    first_ns: u64,
    last_ns: u64,
}

impl Incidents {
    /// Nothing was seen yet; `driver` decides what a renumbered code means.
    pub fn new(judge: Judge, driver: Option<Driver>) -> Self {
        Self {
            driver,
            judge,
            ..Self::default()
        }
    }

    /// The driver has become known.
    pub fn set_driver(&mut self, driver: Driver) {
        self.driver = Some(driver);
    }

    /// Takes in what a source reports. `None` when another source has reported the same event already.
    pub fn take(&mut self, sighting: Sighting) -> Option<Judged> {
        if self.is_reported(&sighting) {
            return None;
        }
        let Sighting {
            mut event, at_ns, ..
        } = sighting;
        let since = Duration::from_nanos(at_ns);
        // One clock for all sources, whatever their lines say.
        event.header.stamp = (at_ns != 0).then_some(Stamp::SinceBoot(since));
        let mut found = assess(&event, self.driver);
        found.action = self.judge.judge(since, &event, found.action);
        let incident = self.grouping.place(&event).incident;
        let mut judged = Judged {
            event,
            at_ns,
            found,
            incident,
            is_news: false,
        };
        judged.is_news = incident.is_some_and(|id| self.add(id, &judged));
        self.note_fault(&judged);
        if self.seen.len() >= MAX_SEEN {
            self.seen.pop_front();
        }
        if judged.is_news {
            self.seen.push_back(judged.clone());
        }
        Some(judged)
    }

    /// The incidents to which nothing more belongs at `now_ns`.
    pub fn close_by(&mut self, now_ns: u64) -> Vec<Closed> {
        // Placing an event closes incidents as well: what the grouping does not hold any more is over.
        self.grouping
            .close_by(Stamp::SinceBoot(Duration::from_nanos(now_ns)));
        let over: Vec<u64> = self
            .open
            .keys()
            .filter(|id| !self.grouping.is_open(**id))
            .copied()
            .collect();
        over.into_iter()
            .filter_map(|id| Some(self.open.remove(&id)?.close(id)))
            .collect()
    }

    /// What was seen lately, the oldest first; repetitions are left out.
    pub fn seen(&self) -> impl DoubleEndedIterator<Item = &Judged> {
        self.seen.iter()
    }

    /// The GPUs and switches that cannot be used as they are, each with the event that says so.
    pub fn faults(&self) -> impl Iterator<Item = (PciAddress, &Judged)> {
        self.faults.iter().map(|(pci, judged)| (*pci, judged))
    }

    /// The GPUs whose firmware does not answer: a call about one would hang.
    pub fn unresponsive(&self) -> BTreeSet<PciAddress> {
        let stuck = |judged: &Judged| match &judged.event.what {
            What::Xid(error) => UNRESPONSIVE.contains(&error.code),
            What::Driver(event) => event.kind == DriverKind::GspRateLimited,
            _ => false,
        };
        self.faults()
            .filter(|(_, fault)| stuck(fault))
            .map(|(pci, _)| pci)
            .collect()
    }

    /// Whether another source has said the same: an event of the same kind a moment ago or, for what the library is only
    /// asked from time to time, that this GPU cannot be used.
    fn is_reported(&mut self, sighting: &Sighting) -> bool {
        let asked = match &sighting.event.what {
            What::Xid(error) => matches!(error.detail, Some(Detail::Recovery { .. })),
            _ => true,
        };
        if sighting.reporter == Reporter::Nvml && asked {
            let action = assess(&sighting.event, self.driver).action;
            let pci = sighting.event.pci();
            let known = pci.and_then(|pci| self.faults.get(&pci));
            return known.is_some_and(|fault| action.leaves_node() && fault.found.action >= action);
        }
        let What::Xid(error) = &sighting.event.what else {
            return false;
        };
        let (reporter, at_ns) = (sighting.reporter, sighting.at_ns);
        let key = (error.pci, error.code);
        let same = self.reports.iter().position(|&(other, pci, code, at)| {
            let apart = Duration::from_nanos(at.abs_diff(at_ns));
            other != reporter && (pci, code) == key && apart <= SAME_EVENT
        });
        if let Some(index) = same {
            // Two reports make a pair: a third one is another event.
            self.reports.remove(index);
            return true;
        }
        if self.reports.len() >= MAX_SEEN {
            self.reports.pop_front();
        }
        self.reports.push_back((reporter, key.0, key.1, at_ns));
        false
    }

    /// Says whether the event says anything new about its incident.
    fn add(&mut self, incident: u64, judged: &Judged) -> bool {
        let open = self.open.entry(incident).or_insert_with(|| Open {
            titles: Vec::new(),
            action: Action::Ignore,
            first_ns: judged.at_ns,
            last_ns: judged.at_ns,
        });
        open.last_ns = open.last_ns.max(judged.at_ns);
        let heavier = judged.found.action > open.action;
        open.action = open.action.max(judged.found.action);
        let title = judged.event.title();
        if let Some((_, _, count)) = open.titles.iter_mut().find(|known| known.1 == title) {
            *count += 1;
            return heavier;
        }
        let room = open.titles.len() < MAX_TITLES;
        if room {
            let rank = rank_in_incident(&judged.event);
            open.titles.push((rank, title, 1));
        }
        room || heavier
    }

    fn note_fault(&mut self, judged: &Judged) {
        for pci in fault::mended(judged, &self.faults) {
            self.faults.remove(&pci);
        }
        let Some(pci) = judged.breaks_gpu() else {
            return;
        };
        let heavier = self
            .faults
            .get(&pci)
            .is_none_or(|known| known.found.action < judged.found.action);
        if heavier && (self.faults.len() < MAX_FAULTS || self.faults.contains_key(&pci)) {
            self.faults.insert(pci, judged.clone());
        }
    }
}

impl Open {
    fn close(mut self, incident: u64) -> Closed {
        self.titles.sort_by_key(|(rank, ..)| *rank);
        let events = self.titles.into_iter();
        Closed {
            incident,
            events: events.map(|(_, title, count)| (title, count)).collect(),
            action: self.action,
            lasted: Duration::from_nanos(self.last_ns.saturating_sub(self.first_ns)),
        }
    }
}

#[cfg(test)]
mod tests;
