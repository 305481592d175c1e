// SPDX-License-Identifier: Apache-2.0
//! What `scontrol show node` says.

/// What every reason begins with that is given here. It tells our own drains from everybody else's.
pub(crate) const REASON_PREFIX: &str = "steadfast: ";

/// A node as the controller sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodeView {
    /// Such as `IDLE+DRAIN`.
    pub(crate) state: String,
    /// Why it is out of service, without who said so and when; empty when there is no reason.
    pub(crate) reason: String,
}

impl NodeView {
    /// Reads the answer; `None` when there is no state in it.
    pub(super) fn parse(answer: &str) -> Option<NodeView> {
        // Each of the two begins a line of its own; what other fields hold is anybody's choice.
        let line = |start: &str| {
            answer
                .lines()
                .find_map(|line| line.trim_start().strip_prefix(start))
        };
        let state = line("State=")?.split_ascii_whitespace().next()?;
        let reason = line("Reason=").unwrap_or_default();
        Some(NodeView {
            state: state.to_owned(),
            reason: without_author(reason).to_owned(),
        })
    }

    /// Whether it gets no more jobs until somebody resumes it.
    pub(crate) fn is_drained(&self) -> bool {
        self.has_flag("DRAIN") || self.has_flag("DRAINED") || self.has_flag("DRAINING")
    }

    /// Whether it is out of service for a reason that we gave.
    pub(crate) fn is_ours(&self) -> bool {
        self.is_drained() && self.reason.starts_with(REASON_PREFIX)
    }

    /// Whether the controller has given it up, or is doing something with it that a drain or a resume would disturb.
    pub(crate) fn is_away(&self) -> bool {
        [
            "DOWN",
            "FAIL",
            "FAILING",
            "REBOOT_ISSUED",
            "POWERED_DOWN",
            "POWERING_DOWN",
            "POWER_DOWN",
            "POWERING_UP",
            "FUTURE",
            "INVALID_REG",
            "UNKNOWN",
        ]
        .iter()
        .any(|flag| self.has_flag(flag))
    }

    fn has_flag(&self, flag: &str) -> bool {
        self.state
            .split('+')
            .map(|part| part.trim_end_matches(['*', '~', '#', '!', '%', '$', '@', '^', '-']))
            .any(|part| part == flag)
    }
}

/// `text [root@2026-11-30T20:22:18]`
fn without_author(reason: &str) -> &str {
    let reason = reason.trim_end();
    match reason.rsplit_once(" [") {
        Some((text, author)) if author.ends_with(']') && author.contains('@') => text,
        _ => reason,
    }
}
