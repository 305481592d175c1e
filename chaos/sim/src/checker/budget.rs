// SPDX-License-Identifier: Apache-2.0
//! The restart budget, counted from what was really written and done.

/// Counts restarts since the last new step.
#[derive(Debug)]
pub(super) struct Budget {
    max_restarts: u64,
    /// Highest step that was really made.
    made: Option<u64>,
    /// Highest step that the ledger knows of; steps that nobody saw in time do not count for it.
    best: Option<u64>,
    /// The same at the last restart.
    best_before: Option<u64>,
    used: u64,
    /// From the ledger.
    charged: u64,
    judged: u64,
}

/// What the ledger says.
#[derive(Debug, Clone, Copy)]
pub(super) struct LedgerSeen {
    pub(super) charged: u64,
    pub(super) used: u64,
    pub(super) judged: u64,
    pub(super) best: Option<u64>,
}

impl Budget {
    pub(super) fn new(max_restarts: u64) -> Self {
        Self {
            max_restarts,
            made: None,
            best: None,
            best_before: None,
            used: 0,
            charged: 0,
            judged: 0,
        }
    }

    pub(super) fn step(&mut self, step: u64) {
        self.made = self.made.max(Some(step));
    }

    /// The generation was succeeded by another one, and the ledger that was written with that is known. `free` if it
    /// costs nothing.
    pub(super) fn restart(&mut self, generation: u64, free: bool) -> Result<(), String> {
        if self.best > self.best_before {
            self.best_before = self.best;
            self.used = 0;
        }
        if free {
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
    pub(super) fn ledger(&mut self, seen: LedgerSeen) -> Result<(), String> {
        let LedgerSeen {
            charged,
            used,
            judged,
            best,
        } = seen;
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
        if best > self.made || best < self.best {
            return Err(format!(
                "the best step is said to be {best:?}, it was {:?}, and {:?} were made",
                self.best, self.made
            ));
        }
        self.best = best;
        self.charged = charged;
        self.judged = judged;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ledger(charged: u64, used: u64, judged: u64, best: Option<u64>) -> LedgerSeen {
        LedgerSeen {
            charged,
            used,
            judged,
            best,
        }
    }

    #[test]
    fn new_steps_refill_and_old_ones_do_not() {
        let mut budget = Budget::new(1);
        budget.step(5);
        budget.ledger(ledger(1, 1, 1, Some(5))).unwrap();
        assert!(budget.restart(1, false).is_ok());
        assert!(budget.restart(2, true).is_ok());
        assert!(budget.restart(3, false).is_err());
        budget.step(6);
        budget.ledger(ledger(1, 1, 4, Some(6))).unwrap();
        assert!(budget.restart(4, false).is_ok());
    }

    #[test]
    fn steps_are_not_made_up() {
        let mut budget = Budget::new(1);
        budget.step(5);
        assert!(budget.ledger(ledger(0, 0, 1, Some(6))).is_err());
        assert!(budget.ledger(ledger(0, 0, 1, Some(4))).is_ok());
        assert!(budget.ledger(ledger(0, 0, 2, None)).is_err());
    }

    #[test]
    fn a_ledger_charges_once_for_each_generation() {
        let mut budget = Budget::new(3);
        assert!(budget.ledger(ledger(1, 1, 1, None)).is_ok());
        assert!(budget.ledger(ledger(1, 1, 1, None)).is_ok());
        assert!(budget.ledger(ledger(2, 2, 1, None)).is_err());
        assert!(budget.ledger(ledger(3, 2, 2, None)).is_err());
        assert!(budget.ledger(ledger(0, 0, 2, None)).is_err());
        assert!(budget.ledger(ledger(2, 4, 2, None)).is_err());
    }
}
