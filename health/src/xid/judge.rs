// SPDX-License-Identifier: Apache-2.0
//! Applies a policy to events, over time.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::policy::{Policy, Rule};
use super::terms::{Action, Kind};
use crate::kernel_log::{Event, PciAddress, What};

/// The most GPUs and codes that are counted at once.
const MAX_COUNTED: usize = 4096;

/// Counts events, and says what the policy wants done about each.
#[derive(Debug, Default)]
pub struct Judge {
    policy: Policy,
    /// When the latest events came, the oldest first; at most as many as the rule counts.
    seen: BTreeMap<(Kind, u32, PciAddress), VecDeque<Duration>>,
}

impl Judge {
    /// With the rules of one policy, and nothing counted.
    pub fn new(policy: Policy) -> Self {
        Self {
            policy,
            seen: BTreeMap::new(),
        }
    }

    /// What is to be done about an event that came at `now`, on any clock that does not go back. `otherwise` is what
    /// holds where the policy says nothing.
    pub fn judge(&mut self, now: Duration, event: &Event, otherwise: Action) -> Action {
        let (kind, code, pci) = match &event.what {
            What::Xid(error) => (Kind::Xid, error.code, error.pci),
            What::Sxid(error) => (Kind::Sxid, error.code, error.pci),
            _ => return otherwise,
        };
        let Some(rule) = self.policy.rule(kind, code) else {
            return otherwise;
        };
        if rule.count <= 1 || self.count((kind, code, pci), now, rule) >= rule.count {
            rule.action
        } else {
            rule.before.unwrap_or(otherwise)
        }
    }

    /// How many events of the key lie within the window, this one included; counts no further than the rule does.
    fn count(&mut self, key: (Kind, u32, PciAddress), now: Duration, rule: Rule) -> u32 {
        if self.seen.len() >= MAX_COUNTED && !self.seen.contains_key(&key) {
            self.forget_old(now);
            if self.seen.len() >= MAX_COUNTED {
                self.seen.pop_first();
            }
        }
        let times = self.seen.entry(key).or_default();
        times.push_back(now);
        while times.len() > rule.count as usize
            || times
                .front()
                .is_some_and(|first| now.saturating_sub(*first) > rule.window)
        {
            times.pop_front();
        }
        u32::try_from(times.len()).unwrap_or(u32::MAX)
    }

    fn forget_old(&mut self, now: Duration) {
        let policy = &self.policy;
        self.seen.retain(|(kind, code, _), times| {
            let window = policy.rule(*kind, *code).map(|rule| rule.window);
            times
                .back()
                .zip(window)
                .is_some_and(|(last, window)| now.saturating_sub(*last) <= window)
        });
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::kernel_log::parse_line;

    fn judge(policy: &str) -> Judge {
        Judge::new(Policy::parse(Path::new("site.toml"), policy).unwrap())
    }

    fn xid(code: u32, bus: u8) -> Event {
        let line = format!("NVRM: Xid (PCI:0000:{bus:02x}:00): {code}, pid=1, name=a, x");
        parse_line(line.as_bytes()).unwrap()
    }

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_rule_without_count_holds_at_once() {
        let mut judge = judge("[xid.43]\naction = 'exclude-node'");
        let (known, other) = (xid(43, 1), xid(31, 1));
        assert_eq!(
            judge.judge(at(0), &known, Action::Ignore),
            Action::ExcludeNode
        );
        assert_eq!(judge.judge(at(0), &other, Action::Ignore), Action::Ignore);
    }

    #[test]
    fn a_count_is_per_gpu_and_within_the_window() {
        let mut judge = judge("[xid.92]\naction = 'exclude-node'\ncount = 3\nwindow = '10m'");
        let mut at = |seconds, bus| judge.judge(at(seconds), &xid(92, bus), Action::Report);
        assert_eq!(at(0, 1), Action::Report);
        assert_eq!(at(300, 1), Action::Report);
        assert_eq!(at(301, 2), Action::Report);
        assert_eq!(at(600, 1), Action::ExcludeNode);
        assert_eq!(at(900, 1), Action::ExcludeNode);
        assert_eq!(at(2000, 1), Action::Report);
    }

    #[test]
    fn until_then_the_other_action_holds() {
        let rule = "[xid.92]\naction = 'reset-gpu'\ncount = 2\nwindow = '1m'\nbefore = 'ignore'";
        let mut judge = judge(rule);
        assert_eq!(
            judge.judge(at(5), &xid(92, 1), Action::Report),
            Action::Ignore
        );
        // A clock that jumped back counts as the same instant.
        assert_eq!(
            judge.judge(at(4), &xid(92, 1), Action::Report),
            Action::ResetGpu
        );
    }

    #[test]
    fn what_is_counted_is_bounded() {
        let mut judge = judge("[xid.92]\naction = 'reset-gpu'\ncount = 2\nwindow = '1d'");
        for domain in 0..u32::try_from(MAX_COUNTED).unwrap() + 10 {
            let line = format!("NVRM: Xid (PCI:{domain:04x}:01:00): 92");
            let event = parse_line(line.as_bytes()).unwrap();
            judge.judge(at(1), &event, Action::Report);
        }
        assert!(judge.seen.len() <= MAX_COUNTED);
    }
}
