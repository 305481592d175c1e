// SPDX-License-Identifier: Apache-2.0
//! The restart budget, counted from what really happened.

use std::collections::BTreeMap;

/// Counts restarts since the last new step.
#[derive(Debug)]
pub(super) struct Budget {
    max_restarts: u64,
    /// Highest step that each generation made.
    steps: BTreeMap<u64, u64>,
    best: Option<u64>,
    /// An agent has died: steps that it had seen and not yet written down are forgotten, so the job
    /// may take a step that is made again for a new one.
    forgetful: bool,
    used: u64,
    /// From the ledger.
    charged: u64,
    judged: u64,
}

impl Budget {
    pub(super) fn new(max_restarts: u64) -> Self {
        Self {
            max_restarts,
            steps: BTreeMap::new(),
            best: None,
            forgetful: false,
            used: 0,
            charged: 0,
            judged: 0,
        }
    }

    pub(super) fn step(&mut self, generation: u64, step: u64) {
        let best = self.steps.entry(generation).or_default();
        *best = (*best).max(step);
    }

    /// See [`Self::forgetful`].
    pub(super) fn forgets(&mut self) {
        self.forgetful = true;
    }

    /// The generation was succeeded by another one. What counts as progress here is all that the
    /// job can have taken for it, so the job may count more restarts than are counted here, never
    /// fewer.
    pub(super) fn restart(&mut self, generation: u64, asked: bool) -> Result<(), String> {
        let made = self.steps.get(&generation).copied();
        if made > self.best || (made.is_some() && self.forgetful) {
            self.best = self.best.max(made);
            self.used = 0;
        }
        if asked {
            return Ok(());
        }
        self.used += 1;
        if self.used > self.max_restarts {
            return Err(format!(
                "generation {generation} was restarted as number {} without a new step, {} are allowed",
                self.used, self.max_restarts
            ));
        }
        Ok(())
    }

    /// The ledger was written.
    pub(super) fn ledger(&mut self, charged: u64, used: u64, judged: u64) -> Result<(), String> {
        let grown = charged.checked_sub(self.charged);
        let allowed = u64::from(judged > self.judged);
        if grown.is_none_or(|grown| grown > allowed) || judged < self.judged {
            return Err(format!(
                "after generation {} {} restarts had been charged, after generation {judged} it is {charged}",
                self.judged, self.charged
            ));
        }
        if used > self.max_restarts {
            return Err(format!(
                "{used} restarts are used, {} are allowed",
                self.max_restarts
            ));
        }
        self.charged = charged;
        self.judged = judged;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_steps_refill_and_old_ones_do_not() {
        let mut budget = Budget::new(1);
        budget.step(1, 5);
        assert!(budget.restart(1, false).is_ok());
        budget.step(2, 5);
        assert!(budget.restart(2, true).is_ok());
        budget.step(3, 5);
        assert!(budget.restart(3, false).is_err());
        budget.step(4, 6);
        assert!(budget.restart(4, false).is_ok());
    }

    #[test]
    fn a_ledger_charges_once_for_each_generation() {
        let mut budget = Budget::new(3);
        assert!(budget.ledger(1, 1, 1).is_ok());
        assert!(budget.ledger(1, 1, 1).is_ok());
        assert!(budget.ledger(2, 2, 1).is_err());
        assert!(budget.ledger(3, 2, 2).is_err());
        assert!(budget.ledger(0, 0, 2).is_err());
        assert!(budget.ledger(2, 4, 2).is_err());
    }
}
