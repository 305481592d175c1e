// SPDX-License-Identifier: Apache-2.0
//! Numbers that look random and are the same in every run.

use std::time::Duration;

/// A generator with a seed (`SplitMix64`).
#[derive(Debug)]
pub struct Random {
    state: u64,
}

impl Random {
    /// Starts from `seed`, or from `STEADFAST_TEST_SEED` where that is set.
    pub fn new(seed: u64) -> Random {
        let wanted = std::env::var("STEADFAST_TEST_SEED")
            .ok()
            .and_then(|text| text.parse().ok());
        Random {
            state: wanted.unwrap_or(seed),
        }
    }

    /// A number from 0 to `bound` - 1; `bound` must not be 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }

    /// One of these.
    ///
    /// # Panics
    ///
    /// When there are none.
    pub fn one_of<Choice: Copy>(&mut self, choices: &[Choice]) -> Choice {
        choices[usize::try_from(self.below(choices.len() as u64)).unwrap()]
    }

    /// A duration of less than `bound`, in whole microseconds.
    pub fn duration_below(&mut self, bound: Duration) -> Duration {
        Duration::from_micros(self.below(u64::try_from(bound.as_micros()).unwrap()))
    }
}
