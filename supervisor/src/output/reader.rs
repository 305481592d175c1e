// SPDX-License-Identifier: Apache-2.0
//! Cuts a stream into lines and looks at each: for steps, for reports, for copies.

use std::sync::{Arc, Mutex};

use regex::bytes::Regex;
use steadfast_health::{StepTracker, loss_in};

use super::filtered::FilteredLines;
use super::lines::{Assembler, End};
use super::lock;
use super::tail::Tail;

/// How much of a line is looked at.
const LOOK_BYTES: usize = 4096;
/// How much of what comes in at once is looked at for steps and remembered: as much as a tail holds.
const RECENT_BYTES: usize = 32 * 1024;

/// Cuts the stream into lines and looks at each.
#[derive(Debug)]
pub(super) struct Reader {
    assembler: Assembler,
    /// The start of the line that is being put together from several pieces.
    head: Vec<u8>,
    steps: StepTracker,
    step: Option<u64>,
    loss: Option<f64>,
    tail: Arc<Mutex<Tail>>,
    filtered: Option<FilteredLines>,
}

impl Reader {
    pub(super) fn new(
        tail: Arc<Mutex<Tail>>,
        filtered: Option<FilteredLines>,
        progress_regex: Option<Regex>,
    ) -> Self {
        Self {
            assembler: Assembler::default(),
            head: Vec::new(),
            steps: StepTracker::new(progress_regex),
            step: None,
            loss: None,
            tail,
            filtered,
        }
    }

    /// Bytes of a line that has no end yet.
    pub(super) fn held(&self) -> usize {
        self.assembler.held()
    }

    /// The last step that was seen.
    pub(super) fn step(&self) -> Option<u64> {
        self.step
    }

    /// The loss that was seen since the last call: the first that is no finite number, else the last.
    pub(super) fn take_loss(&mut self) -> Option<f64> {
        self.loss.take()
    }

    /// Takes in `bytes` and passes each piece that is complete to `show`.
    pub(super) fn read(&mut self, bytes: &[u8], mut show: impl FnMut(&[u8], End)) {
        let Self {
            assembler,
            head,
            steps,
            step,
            loss,
            tail,
            filtered,
        } = self;
        let mut tail = lock(tail);
        // Of much output at once, only the last lines and the last step matter.
        let mut left = bytes.len() + assembler.held();
        assembler.push(bytes, |piece, end| {
            show(piece, end);
            left = left.saturating_sub(piece.len() + 1);
            let is_recent = left < RECENT_BYTES;
            if is_recent {
                tail.push(piece, end);
            }
            if end == End::Open {
                head.extend_from_slice(
                    &piece[..piece.len().min(LOOK_BYTES.saturating_sub(head.len()))],
                );
                return;
            }
            let line = if head.is_empty() {
                piece
            } else {
                head.extend_from_slice(piece);
                head.as_slice()
            };
            if is_recent {
                *step = steps.observe(&line[..line.len().min(LOOK_BYTES)]).or(*step);
                if loss.is_none_or(f64::is_finite) {
                    *loss = loss_in(line).or(*loss);
                }
            }
            if let Some(filtered) = filtered.as_ref().filter(|_| end == End::Line) {
                filtered.offer(line);
            }
            head.clear();
        });
    }

    /// Passes on what is held.
    pub(super) fn flush(&mut self, mut show: impl FnMut(&[u8], End)) {
        let Self {
            assembler,
            head,
            tail,
            ..
        } = self;
        let mut tail = lock(tail);
        assembler.flush(|piece, end| {
            show(piece, end);
            tail.push(piece, end);
            if end == End::Open {
                head.extend_from_slice(
                    &piece[..piece.len().min(LOOK_BYTES.saturating_sub(head.len()))],
                );
            }
        });
    }
}
