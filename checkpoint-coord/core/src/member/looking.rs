// SPDX-License-Identifier: Apache-2.0
//! What a member makes of looks at its own node.
//!
//! What was wrong already when the job began does not count against the nodes that it began on: whoever started it there
//! wanted it to run like that. Only what is new does.

use std::collections::BTreeSet;
use std::time::Duration;

use steadfast_proto::v1::Finding;

use crate::{Fitness, Instant};

use super::{Member, Work, milliseconds};

/// The most faults of a node that are told.
const MOST_FAULTS: usize = 8;

/// The looks at this node.
#[derive(Debug, Default)]
pub(super) struct Looks {
    /// Time between two while nothing runs here; absent where nobody looks.
    every: Option<Duration>,
    /// How many have ended.
    ended: u64,
    /// What the last one has shown that counts.
    found: Vec<Finding>,
    /// What was wrong when the job began, in words.
    accepted: BTreeSet<String>,
    /// The job began before anybody had looked.
    blind: bool,
}

impl Looks {
    /// Nobody has looked yet; `every` is how often somebody will, if anybody does.
    pub(super) fn new(every: Option<Duration>) -> Self {
        Self {
            every,
            ..Self::default()
        }
    }

    /// For the member's record.
    pub(super) fn fitness(&self) -> Option<Fitness> {
        let faults = self.found.iter().map(|fault| fault.summary.clone());
        self.every.map(|every| Fitness {
            look: self.ended,
            every_ms: milliseconds(every),
            faults: faults.collect(),
        })
    }

    /// Goes on after those of an earlier agent. What that one had accepted is not known any more.
    pub(super) fn go_on(&mut self, before: &Fitness, has_ranks: bool) {
        if self.every.is_none() {
            return;
        }
        let as_finding = |text: &String| Finding {
            summary: text.clone(),
            ..Finding::default()
        };
        self.ended = before.look;
        self.found = before.faults.iter().map(as_finding).collect();
        self.blind = has_ranks;
    }

    /// The job begins here. Returns nothing that counts: the node is as it is.
    fn accept(&mut self) {
        self.blind = self.every.is_some() && self.ended == 0;
        let found = std::mem::take(&mut self.found);
        self.accepted
            .extend(found.into_iter().map(|fault| fault.summary));
    }

    /// A look has ended. Returns what it shows that counts.
    fn take(&mut self, mut faults: Vec<Finding>) -> &[Finding] {
        if self.every.is_none() {
            return &[];
        }
        self.ended = self.ended.saturating_add(1);
        if std::mem::take(&mut self.blind) {
            let known = faults.iter().map(|fault| fault.summary.clone());
            self.accepted.extend(known);
        }
        faults.retain(|fault| !self.accepted.contains(&fault.summary));
        faults.truncate(MOST_FAULTS);
        self.found = faults;
        &self.found
    }
}

impl Member {
    /// Somebody has looked at this node, and has found this to be wrong.
    pub(super) fn take_in_look(&mut self, now: Instant, faults: Vec<Finding>) {
        let counts = self.looks.take(faults);
        if let Some(work) = &mut self.work {
            for fault in counts {
                work.note_unfit(now, fault.clone());
            }
        }
    }

    /// A generation begins here. The leader cannot have known of a fault that it would have minded.
    pub(super) fn begin_as_it_is(&mut self, now: Instant, work: &mut Work) {
        if work.generation.restart_count() == 0 {
            self.looks.accept();
        }
        for fault in &self.looks.found {
            work.note_unfit(now, fault.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(text: &str) -> Finding {
        Finding {
            summary: text.to_owned(),
            ..Finding::default()
        }
    }

    fn looks() -> Looks {
        Looks::new(Some(Duration::from_mins(1)))
    }

    fn shown(looks: &Looks) -> Vec<String> {
        looks.fitness().unwrap().faults
    }

    #[test]
    fn what_a_spare_shows_counts_until_a_look_does_not_show_it_any_more() {
        let mut looks = looks();
        assert_eq!(looks.take(vec![fault("link 1 is down")]).len(), 1);
        assert_eq!(shown(&looks), ["link 1 is down"]);
        assert!(looks.take(Vec::new()).is_empty());
        assert!(shown(&looks).is_empty());
        assert_eq!(looks.fitness().unwrap().look, 2);
    }

    #[test]
    fn what_was_so_when_the_job_began_does_not_count_whether_or_not_somebody_had_looked() {
        for looked in [true, false] {
            let mut looks = looks();
            if looked {
                looks.take(vec![fault("link 1 is down")]);
            }
            looks.accept();
            assert!(shown(&looks).is_empty());
            assert!(looks.take(vec![fault("link 1 is down")]).is_empty());
            let both = vec![fault("link 1 is down"), fault("GPU 3 is lost")];
            assert_eq!(looks.take(both), [fault("GPU 3 is lost")]);
            assert_eq!(shown(&looks), ["GPU 3 is lost"]);
        }
    }

    #[test]
    fn a_new_agent_accepts_what_it_finds_under_workers_that_run() {
        let before = Fitness {
            look: 7,
            ..Fitness::default()
        };
        let mut under_workers = looks();
        under_workers.go_on(&before, true);
        assert!(under_workers.take(vec![fault("x")]).is_empty());
        assert_eq!(under_workers.fitness().unwrap().look, 8);
        let mut idle = looks();
        idle.go_on(&before, false);
        assert_eq!(idle.take(vec![fault("x")]).len(), 1);
    }

    #[test]
    fn where_nobody_looks_nothing_is_said() {
        let mut looks = Looks::new(None);
        looks.accept();
        assert!(looks.take(vec![fault("x")]).is_empty());
        assert_eq!(looks.fitness(), None);
    }

    #[test]
    fn what_is_told_is_bounded() {
        let mut looks = looks();
        let many = (0..100).map(|number| fault(&format!("GPU {number}")));
        assert_eq!(looks.take(many.collect()).len(), MOST_FAULTS);
        assert_eq!(shown(&looks).len(), MOST_FAULTS);
    }
}
