// SPDX-License-Identifier: Apache-2.0
//! Whether a node is drained, resumed or left alone. Pure: what is known comes in, what to do comes out.
//!
//! Rules:
//! - SL-1: a reason that somebody else gave is never replaced, and a node that somebody else drained is never resumed.
//! - SL-2: a node is drained for what is proven, never for what could not be looked at.
//! - SL-3: a node is resumed when all that it was drained for is proven to be over.
//! - SL-4: whoever resumes a node that is still sick knows better: it is drained again only for something else, or after that
//!   was over in between.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::slurm::controller::NodeView;

/// What is wrong with the node, by a key that stays the same as long as it is the same thing that is wrong.
pub(crate) type Problems = BTreeMap<String, Problem>;

/// Something that is wrong with the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Problem {
    /// In one sentence.
    pub(crate) text: String,
    /// When it was last reported, in any unit that grows; 0 for what simply is so now.
    pub(crate) newest: u64,
}

/// What was found out about the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Found {
    /// What is proven to be wrong.
    pub(crate) problems: Problems,
    /// What could not be looked at: the beginnings of the keys of what may be wrong there, each with the reason.
    pub(crate) unknown: BTreeMap<String, String>,
    /// The same for what there is no reason to miss: what this node does not have cannot be looked at.
    pub(crate) absent: BTreeMap<String, String>,
}

/// What is kept from one run of a hook to the next.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Memory {
    /// What the node is drained for, if we did it, and when that was last reported.
    pub(crate) drained_for: BTreeMap<String, u64>,
    /// What somebody has resumed the node in spite of, and up to which report.
    pub(crate) settled: BTreeMap<String, u64>,
}

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// Drain it, or give a drain of ours its new reason.
    Drain {
        /// The reason, without prefix.
        reason: String,
    },
    /// Take it into service again.
    Resume,
    /// Nothing, because of this.
    Leave(Leave),
}

/// Why nothing is done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Leave {
    /// It is in service, and well.
    Well,
    /// It is drained for this already.
    Drained,
    /// Somebody else has taken it out of service; the reason.
    Others(String),
    /// The controller has given it up, or is doing something with it; its state.
    Away(String),
    /// It is not proven that what it was drained for is over; what could not be looked at.
    Unproven(String),
    /// It is sick, and somebody has resumed it in spite of that.
    Settled(String),
}

impl Memory {
    /// Decides, and says what is to be remembered once that is carried out.
    pub(crate) fn decide(&self, node: &NodeView, found: &Found) -> (Decision, Memory) {
        let mut next = self.clone();
        if !node.is_drained() {
            // Somebody has resumed it.
            next.settled.append(&mut next.drained_for);
        }
        next.settled
            .retain(|key, _| found.problems.contains_key(key) || found.is_unknown(key));
        let open = next.open(found);
        let decision = decide(node, found, &open, &next);
        match &decision {
            Decision::Drain { .. } | Decision::Leave(Leave::Drained) => {
                let newest = open.into_iter().map(|(key, problem)| (key, problem.newest));
                next.drained_for = newest.collect();
            }
            Decision::Resume => next.drained_for.clear(),
            // When they resume it, they do so in spite of what was known here.
            Decision::Leave(Leave::Others(_)) => next
                .drained_for
                .retain(|key, _| found.problems.contains_key(key) || found.is_unknown(key)),
            Decision::Leave(_) => {}
        }
        (decision, next)
    }

    /// The problems that nobody has overruled on a node that was given a job: if it was drained for them, then somebody has
    /// resumed it since.
    pub(crate) fn open_in_service(&self, found: &Found) -> Problems {
        let mut next = self.clone();
        next.settled.append(&mut next.drained_for);
        next.open(found)
    }

    /// The problems that nobody has overruled, as far as that is known without asking how the node is.
    fn open(&self, found: &Found) -> Problems {
        let mut open = found.problems.clone();
        open.retain(|key, problem| {
            self.settled
                .get(key)
                .is_none_or(|settled| problem.newest > *settled)
        });
        open
    }
}

impl Found {
    /// Whether nobody could look at what this problem is about.
    fn is_unknown(&self, key: &str) -> bool {
        let mut starts = self.unknown.keys().chain(self.absent.keys());
        starts.any(|start| key.starts_with(start.as_str()))
    }
}

fn decide(node: &NodeView, found: &Found, open: &Problems, memory: &Memory) -> Decision {
    if node.is_away() {
        return Decision::Leave(Leave::Away(node.state.clone()));
    }
    if node.is_drained() && !node.is_ours() {
        return Decision::Leave(Leave::Others(node.reason.clone()));
    }
    if !open.is_empty() {
        let known = node.is_ours() && open.keys().eq(memory.drained_for.keys());
        return if known {
            Decision::Leave(Leave::Drained)
        } else {
            Decision::Drain {
                reason: reason(open),
            }
        };
    }
    if node.is_ours() {
        let about_it = |start: &str| {
            let mut keys = memory.drained_for.keys();
            keys.any(|key| key.starts_with(start))
        };
        // What a drain of ours was for that was forgotten may have been anything that should be seen.
        let forgotten = memory.drained_for.is_empty();
        let missed = found.unknown.iter();
        let missed = missed.filter(|(start, _)| forgotten || about_it(start));
        let absent = found.absent.iter().filter(|(start, _)| about_it(start));
        let unproven = missed.chain(absent).next();
        return match unproven {
            Some((_, why)) => Decision::Leave(Leave::Unproven(why.clone())),
            None => Decision::Resume,
        };
    }
    match found.problems.values().next() {
        Some(problem) => Decision::Leave(Leave::Settled(problem.text.clone())),
        None => Decision::Leave(Leave::Well),
    }
}

/// One sentence for all problems: the first, and how many more there are.
pub(crate) fn reason(problems: &Problems) -> String {
    let mut texts = problems.values().map(|problem| problem.text.as_str());
    let first = texts.next().unwrap_or_default().to_owned();
    match texts.count() {
        0 => first,
        more => format!("{first} (and {more} more)"),
    }
}

impl std::fmt::Display for Leave {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Well => formatter.write_str("the node is well"),
            Self::Drained => formatter.write_str("the node is drained for this already"),
            Self::Others(reason) => write!(
                formatter,
                "somebody else has drained the node ({reason}): that is theirs to end"
            ),
            Self::Away(state) => write!(formatter, "the node is {state}: nothing is changed"),
            Self::Unproven(why) => write!(
                formatter,
                "the node stays drained, since nobody can tell whether it is well again: {why}"
            ),
            Self::Settled(text) => write!(
                formatter,
                "somebody has resumed the node in spite of this, so it stays in service: {text}"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(state: &str, reason: &str) -> NodeView {
        NodeView {
            state: state.to_owned(),
            reason: reason.to_owned(),
        }
    }

    fn well() -> NodeView {
        node("IDLE", "")
    }

    fn ours() -> NodeView {
        node("IDLE+DRAIN", "steadfast: XID 79")
    }

    fn sick(keys: &[&str]) -> Found {
        let problems = keys.iter().map(|key| {
            let text = format!("text of {key}");
            ((*key).to_owned(), Problem { text, newest: 7 })
        });
        Found {
            problems: problems.collect(),
            ..Found::default()
        }
    }

    fn blind(start: &str) -> Found {
        Found {
            unknown: BTreeMap::from([(start.to_owned(), "no permission".to_owned())]),
            ..Found::default()
        }
    }

    fn drained_for(keys: &[&str]) -> Memory {
        Memory {
            drained_for: keys.iter().map(|key| ((*key).to_owned(), 7)).collect(),
            settled: BTreeMap::new(),
        }
    }

    #[test]
    fn a_sick_node_is_drained_once_and_resumed_when_it_is_well() {
        let found = sick(&["xid:1"]);
        let (decision, memory) = Memory::default().decide(&well(), &found);
        let reason = "text of xid:1".to_owned();
        assert_eq!(decision, Decision::Drain { reason });
        let (decision, memory) = memory.decide(&ours(), &found);
        assert_eq!(decision, Decision::Leave(Leave::Drained));
        let (decision, memory) = memory.decide(&ours(), &Found::default());
        assert_eq!(decision, Decision::Resume);
        assert_eq!(memory, Memory::default());
        let (decision, _) = memory.decide(&well(), &Found::default());
        assert_eq!(decision, Decision::Leave(Leave::Well));
    }

    #[test]
    fn what_others_have_drained_is_theirs() {
        let others = node("IDLE+DRAIN", "disk swap");
        for found in [sick(&["xid:1"]), Found::default()] {
            let (decision, memory) = drained_for(&["xid:1"]).decide(&others, &found);
            assert_eq!(
                decision,
                Decision::Leave(Leave::Others("disk swap".to_owned()))
            );
            assert_eq!(memory.drained_for.len(), found.problems.len());
            let (decision, _) = memory.decide(&well(), &found);
            assert!(
                matches!(decision, Decision::Leave(_)),
                "they knew: {decision:?}"
            );
        }
        let (decision, _) =
            Memory::default().decide(&node("DOWN*", "Not responding"), &sick(&["a"]));
        assert_eq!(decision, Decision::Leave(Leave::Away("DOWN*".to_owned())));
    }

    #[test]
    fn the_reason_follows_what_is_wrong() {
        let (decision, memory) =
            drained_for(&["xid:1"]).decide(&ours(), &sick(&["xid:1", "xid:2"]));
        let reason = "text of xid:1 (and 1 more)".to_owned();
        assert_eq!(decision, Decision::Drain { reason });
        let (decision, _) = memory.decide(&ours(), &sick(&["xid:2"]));
        assert!(matches!(decision, Decision::Drain { .. }));
    }

    #[test]
    fn what_cannot_be_looked_at_neither_drains_nor_resumes() {
        let (decision, memory) = Memory::default().decide(&well(), &blind("xid:"));
        assert_eq!(decision, Decision::Leave(Leave::Well));
        assert_eq!(memory, Memory::default());
        let memory = drained_for(&["xid:1"]);
        let (decision, kept) = memory.decide(&ours(), &blind("xid:"));
        assert_eq!(
            decision,
            Decision::Leave(Leave::Unproven("no permission".to_owned()))
        );
        assert_eq!(kept, memory);
        let (decision, _) = memory.decide(&ours(), &blind("check:"));
        assert_eq!(decision, Decision::Resume);
        let (decision, _) = Memory::default().decide(&ours(), &blind("check:"));
        assert!(matches!(decision, Decision::Leave(Leave::Unproven(_))));
        let absent = Found {
            absent: blind("check:gpu:").unknown,
            ..Found::default()
        };
        let (decision, _) = Memory::default().decide(&ours(), &absent);
        assert_eq!(
            decision,
            Decision::Resume,
            "a node without GPUs misses none"
        );
        let (decision, _) = drained_for(&["check:gpu:"]).decide(&ours(), &absent);
        assert!(matches!(decision, Decision::Leave(Leave::Unproven(_))));
    }

    #[test]
    fn whoever_resumes_a_sick_node_is_obeyed() {
        let found = sick(&["xid:1"]);
        let memory = drained_for(&["xid:1"]);
        let (decision, memory) = memory.decide(&well(), &found);
        assert!(matches!(decision, Decision::Leave(Leave::Settled(_))));
        assert!(memory.open(&found).is_empty());
        let (decision, memory) = memory.decide(&well(), &blind("xid:"));
        assert_eq!(decision, Decision::Leave(Leave::Well));
        let (decision, more) = memory.decide(&well(), &sick(&["xid:1", "xid:2"]));
        let reason = "text of xid:2".to_owned();
        assert_eq!(decision, Decision::Drain { reason });
        assert!(more.settled.contains_key("xid:1"));
        let mut again = found.clone();
        again.problems.get_mut("xid:1").unwrap().newest = 8;
        let (decision, _) = memory.decide(&well(), &again);
        assert!(
            matches!(decision, Decision::Drain { .. }),
            "reported once more"
        );
        // It was over in between: the next time counts.
        let (_, memory) = memory.decide(&well(), &Found::default());
        let (decision, _) = memory.decide(&well(), &found);
        assert!(matches!(decision, Decision::Drain { .. }));
    }

    #[test]
    fn a_drain_that_was_forgotten_is_still_ours() {
        let (decision, _) = Memory::default().decide(&ours(), &Found::default());
        assert_eq!(decision, Decision::Resume);
    }
}
