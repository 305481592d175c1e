// SPDX-License-Identifier: Apache-2.0
//! Nodes that are unfit for a while, and the looks that agents take at them.

use steadfast_core::{MemberEvent, MemberState};
use steadfast_proto::v1::{FaultClass, Finding};

use super::{Checked, MS, World};
use crate::event::{Address, Event};
use crate::schedule::FaultKind;

/// Between two looks at a node whose supervisor runs nothing, in milliseconds.
pub(super) const EVERY_MS: u64 = 10_000;
/// How long a look takes at most, in milliseconds.
const LONGEST_MS: u64 = 400;

impl World {
    /// The node is unfit from now on, whether or not anybody looks.
    pub(super) fn becomes_unfit(&mut self, index: usize, kind: FaultKind, for_ms: u64) {
        self.landed(index, kind);
        let until = self.now + for_ms * MS;
        let node = &mut self.nodes[index];
        node.unfit_until = node.unfit_until.max(until);
    }

    /// An agent looks from time to time: at the very beginning, and while it runs nothing.
    pub(super) fn looks_around(&mut self, address: Address) -> Checked {
        if !self.is_alive(address) {
            return Ok(());
        }
        let state = self.session(address).map(|session| session.member.state());
        let runs = matches!(
            state,
            Some(MemberState::Starting(_) | MemberState::Running(_) | MemberState::Draining(_))
        );
        let first = !std::mem::replace(&mut self.nodes[address.node].looked_at, true);
        if first || !runs {
            self.looks_at_itself(address);
        }
        self.after(EVERY_MS * MS, Event::LooksAround(address));
        Ok(())
    }

    /// A look begins.
    pub(super) fn looks_at_itself(&mut self, address: Address) {
        let delay = self.delay(LONGEST_MS);
        self.after(delay, Event::LookEnds(address));
    }

    /// It shows how the node is.
    pub(super) fn look_ends(&mut self, address: Address) -> Checked {
        if !self.is_alive(address) {
            return Ok(());
        }
        let is_unfit = self.now < self.nodes[address.node].unfit_until;
        let mut faults = Vec::new();
        if is_unfit {
            self.count("(seen to be unfit)");
            faults.push(Finding {
                class: FaultClass::GpuHardware.into(),
                fingerprint: "look".to_owned(),
                summary: "a GPU is lost".to_owned(),
                wall_ms: i64::try_from(self.now / 1_000).unwrap_or(i64::MAX),
                ..Finding::default()
            });
        }
        // What this look shows, and what an earlier one has shown, can end what runs here now.
        let node = &mut self.nodes[address.node];
        let seen = std::mem::replace(&mut node.seen_unfit, is_unfit) || is_unfit;
        if seen {
            // The keeper may not have heard yet of the generation that the member works on.
            let known = self.nodes[address.node].keeper.generation;
            let session = self.session(address);
            let begun = session.map_or(known, |session| session.member.generation().0);
            self.checker.seen_unfit(known);
            self.checker.seen_unfit(begun);
        }
        self.heard(address, MemberEvent::Looked(faults))
    }
}
