// SPDX-License-Identifier: Apache-2.0
//! What is still to come, in the order of time; what is due at the same time keeps its order.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Added to the number of what has no precedence over what is due at the same time.
const USUAL: u64 = 1 << 63;

/// A queue of events. Times are virtual microseconds.
#[derive(Debug)]
pub(crate) struct Queue<T> {
    heap: BinaryHeap<Reverse<(u64, u64, u32)>>,
    /// The events themselves stay where they are; the heap moves small numbers only.
    slots: Vec<Option<T>>,
    free: Vec<u32>,
    sequence: u64,
}

impl<T> Queue<T> {
    pub(crate) fn new() -> Self {
        Self {
            heap: BinaryHeap::new(),
            slots: Vec::new(),
            free: Vec::new(),
            sequence: 0,
        }
    }

    pub(crate) fn push(&mut self, at: u64, event: T) {
        self.insert(at, USUAL, event);
    }

    /// Before everything else that is due at that time, but after what was pushed in this way before.
    pub(crate) fn push_first(&mut self, at: u64, event: T) {
        self.insert(at, 0, event);
    }

    fn insert(&mut self, at: u64, precedence: u64, event: T) {
        self.sequence += 1;
        let slot = if let Some(slot) = self.free.pop() {
            slot
        } else {
            self.slots.push(None);
            u32::try_from(self.slots.len() - 1).unwrap_or(u32::MAX)
        };
        self.slots[slot as usize] = Some(event);
        self.heap
            .push(Reverse((at, precedence + self.sequence, slot)));
    }

    /// The next event and its time.
    pub(crate) fn pop(&mut self) -> Option<(u64, T)> {
        let Reverse((at, _, slot)) = self.heap.pop()?;
        self.free.push(slot);
        let event = self.slots[slot as usize].take()?;
        Some((at, event))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_by_time_and_then_in_the_order_of_their_making() {
        let mut queue = Queue::new();
        for (at, name) in [(5, "c"), (1, "a"), (5, "d"), (2, "b")] {
            queue.push(at, name);
        }
        assert_eq!(queue.pop(), Some((1, "a")));
        queue.push(5, "e");
        queue.push_first(5, "x");
        queue.push_first(5, "y");
        let rest: Vec<_> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(
            rest,
            [(2, "b"), (5, "x"), (5, "y"), (5, "c"), (5, "d"), (5, "e")]
        );
    }
}
