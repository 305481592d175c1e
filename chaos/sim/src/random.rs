// SPDX-License-Identifier: Apache-2.0
//! Numbers that look random and are the same for the same seed, on every machine and in every
//! version.

/// A small generator (`SplitMix64`). Not for anything secret.
#[derive(Debug, Clone)]
pub struct Random {
    state: u64,
}

impl Random {
    /// The generator that begins with this seed.
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// The next number, of all 64 bits.
    pub fn draw(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// From 0 to `limit` - 1; 0 when `limit` is 0. The bias is below `limit` / 2^64.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.draw().checked_rem(limit).unwrap_or(0)
    }

    /// From `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high.saturating_sub(low).saturating_add(1))
    }

    /// Like [`Self::between`], for small numbers.
    pub fn small(&mut self, low: u32, high: u32) -> u32 {
        u32::try_from(self.between(low.into(), high.into())).unwrap_or(low)
    }

    /// True in `percent` of 100 cases.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// One of the choices, which must not be empty.
    pub fn pick<T: Copy>(&mut self, first: T, others: &[T]) -> T {
        let index = self.below(others.len() as u64 + 1);
        usize::try_from(index)
            .ok()
            .and_then(|index| index.checked_sub(1))
            .and_then(|index| others.get(index).copied())
            .unwrap_or(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sequence_never_changes() {
        let mut random = Random::new(1);
        assert_eq!(random.draw(), 0x910a_2dec_8902_5cc1);
        assert_eq!(random.draw(), 0xbeeb_8da1_658e_ec67);
    }

    #[test]
    fn ranges_are_kept_and_both_ends_come_up() {
        let mut random = Random::new(7);
        let drawn: Vec<_> = (0..200).map(|_| random.between(3, 5)).collect();
        assert!(drawn.iter().all(|n| (3..=5).contains(n)));
        assert!(drawn.contains(&3) && drawn.contains(&5));
        assert_eq!(random.below(0), 0);
        assert!((0..100).any(|_| random.pick(1, &[2]) == 2));
    }
}
