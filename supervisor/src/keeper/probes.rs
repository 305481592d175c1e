// SPDX-License-Identifier: Apache-2.0
//! What agents start for themselves because it can hang: to be told from what workers leave behind.
//!
//! When an agent dies the kernel kills its probes, and makes the keeper their parent. One that sleeps in the kernel beyond
//! SIGKILL is nobody's to wait for.

use steadfast_process::tree::Process;

/// The probes of this agent and of earlier ones.
#[derive(Debug, Default)]
pub(super) struct Probes {
    known: Vec<Process>,
}

impl Probes {
    /// The agent has started one.
    pub(super) fn note(&mut self, pid: i32) {
        self.known.retain(lives);
        self.known.extend(Process::read(pid));
    }

    /// Those that still exist; a number that was given to another process since is none.
    pub(super) fn living(&self) -> impl Iterator<Item = i32> {
        self.known
            .iter()
            .filter(|probe| lives(probe))
            .map(|probe| probe.pid)
    }
}

fn lives(probe: &Process) -> bool {
    Process::read(probe.pid)
        .is_some_and(|now| now.start_ticks == probe.start_ticks && !now.is_dead())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_another_process_has_now_is_no_probe() {
        let own = i32::try_from(std::process::id()).unwrap();
        let mut probes = Probes::default();
        probes.note(own);
        assert_eq!(probes.living().collect::<Vec<_>>(), [own]);
        probes.known[0].start_ticks += 1;
        assert_eq!(probes.living().count(), 0);
        probes.note(i32::MAX);
        assert_eq!(probes.known, []);
    }
}
