// SPDX-License-Identifier: Apache-2.0
//! What the leader's agent hears of the others, beside the store: a stream from each of them.

use steadfast_core::LeaderEvent;

use super::answers::DIGEST_MS;
use super::{Checked, MS, World};
use crate::event::{Address, Event};

impl World {
    /// Looks at all streams at once: how far the training is, and who has fallen silent.
    pub(super) fn digests(&mut self, address: Address) -> Checked {
        let leads = self
            .session(address)
            .is_some_and(|session| session.leader.is_some());
        if !leads {
            return Ok(());
        }
        let own = &self.nodes[address.node];
        let hears = own.is_connected(self.now);
        let shown = own.clock.show(self.now);
        let mut newest = None;
        let mut silent = Vec::new();
        for (index, node) in self.nodes.iter().enumerate() {
            if index == address.node || !(node.served || node.left) {
                continue;
            }
            let agent = node.agent.as_ref();
            let speaks = agent.is_some_and(|agent| agent.paused_until <= self.now)
                && !node.is_paused(self.now)
                && node.is_connected(self.now);
            let session = agent
                .and_then(|agent| agent.session.as_ref())
                .filter(|_| speaks && hears);
            match session {
                Some(session) => {
                    let step = session.member.best_step();
                    newest = newest.max(step.map(|step| (session.member.generation(), step)));
                }
                None => silent.push(index),
            }
        }
        self.traffic.digests += (self.nodes.len() - silent.len()) as u64;
        let names: Vec<_> = self.nodes.iter().map(|node| &node.name).collect();
        let names_of = |indices: &[usize]| -> Vec<_> {
            indices.iter().map(|index| names[*index].clone()).collect()
        };
        let Some(session) = self.session(address) else {
            return Ok(());
        };
        let known = &session.silent;
        let fallen: Vec<_> = silent
            .iter()
            .copied()
            .filter(|index| !known.contains(index))
            .collect();
        let back: Vec<_> = known
            .iter()
            .copied()
            .filter(|index| !silent.contains(index))
            .collect();
        let (fallen_names, back_names) = (names_of(&fallen), names_of(&back));
        let changed = !fallen.is_empty() || !back.is_empty();
        if let Some(session) = self.session_mut(address)
            && let Some(leader) = &mut session.leader
        {
            if let Some((generation, step)) = newest {
                leader.note_step(generation, step, shown, false);
            }
            for name in &fallen_names {
                leader.note_silence(name, true);
            }
            for name in &back_names {
                leader.note_silence(name, false);
            }
            session.silent.extend(fallen);
            for index in back {
                session.silent.remove(&index);
            }
        }
        if changed {
            self.tell_leader(address, LeaderEvent::Tick)?;
            self.settle(address);
        }
        self.after(DIGEST_MS * MS, Event::Digests(address));
        Ok(())
    }
}
