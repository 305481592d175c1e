// SPDX-License-Identifier: Apache-2.0
//! What the keeper itself has seen of one output stream, without taking anything from it.
//!
//! An agent that is only slow may read the same pipe meanwhile. So each look makes sure that what it saw last is still
//! where it was; if not, it begins anew, and takes no line for whole that it has not seen from its start.

use std::os::fd::AsFd;

use regex::bytes::Regex;
use steadfast_health::StepTracker;
use steadfast_process::pipe::bytes_waiting;

use crate::clock;
use crate::output::{Assembler, End, Peeked, Peeker};

/// How much of what was seen last is remembered, to find the place again.
const LANDMARK_BYTES: usize = 64;
/// Of much output at once, only the last lines matter.
const RECENT_BYTES: usize = 64 * 1024;

/// How far a stream was looked at.
#[derive(Debug, Default)]
pub(super) struct Sight {
    /// Bytes at the head of the pipe that were seen.
    seen: usize,
    /// The last of them.
    landmark: Vec<u8>,
    /// When the last look began, on the monotonic clock.
    looked_at_ns: Option<u64>,
    assembler: Assembler,
    /// Whether the next piece is the rest of a line.
    inside_line: bool,
    steps: StepTracker,
}

/// A step that a look has found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sighting {
    pub(super) step: u64,
    /// When its line was not there yet, on the monotonic clock; 0 when that is not known.
    pub(super) at_ns: u64,
}

impl Sight {
    /// Looks at what has come since the last look. Returns the last step in it.
    pub(super) fn look(
        &mut self,
        pipe: impl AsFd,
        peeker: &mut Peeker,
        expression: Option<&Regex>,
    ) -> Option<Sighting> {
        // Read before the look: what the look does not find comes later than this.
        let now_ns = clock::monotonic_ns();
        let waiting = bytes_waiting(&pipe).ok()?;
        if self.looked_at_ns.is_some() && waiting == self.seen {
            self.looked_at_ns = Some(now_ns);
            return None;
        }
        let content = match peeker.peek(&pipe, 0) {
            Ok(Peeked::Bytes(content)) => content,
            Ok(Peeked::Nothing | Peeked::End) | Err(_) => &[],
        };
        let is_continued = content
            .get(..self.seen)
            .is_some_and(|seen| seen.ends_with(&self.landmark));
        if self.looked_at_ns.is_none() || !is_continued {
            self.begin_anew(expression);
        }
        let at_ns = self.looked_at_ns.unwrap_or(0);
        let step = self.read(&content[self.seen..]);
        self.seen = content.len();
        self.landmark.clear();
        self.landmark
            .extend_from_slice(&content[content.len().saturating_sub(LANDMARK_BYTES)..]);
        self.looked_at_ns = Some(now_ns);
        step.map(|step| Sighting { step, at_ns })
    }

    /// Somebody else may have read the stream: the next look says nothing about when its lines came.
    pub(super) fn forget(&mut self) {
        self.looked_at_ns = None;
    }

    /// This many bytes were taken from the head of the pipe.
    pub(super) fn taken(&mut self, bytes: usize) {
        self.seen = self.seen.saturating_sub(bytes);
        let too_many = self.landmark.len().saturating_sub(self.seen);
        self.landmark.drain(..too_many);
    }

    fn begin_anew(&mut self, expression: Option<&Regex>) {
        *self = Sight {
            inside_line: true,
            steps: StepTracker::new(expression.cloned()),
            ..Sight::default()
        };
    }

    fn read(&mut self, bytes: &[u8]) -> Option<u64> {
        let recent = &bytes[bytes.len().saturating_sub(RECENT_BYTES)..];
        if recent.len() < bytes.len() {
            self.assembler = Assembler::default();
            self.inside_line = true;
        }
        let Sight {
            assembler,
            inside_line,
            steps,
            ..
        } = self;
        let mut last = None;
        assembler.push(recent, |piece, end| {
            if !*inside_line {
                last = steps.observe(piece).or(last);
            }
            *inside_line = end == End::Open;
        });
        last
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{File, OpenOptions};
    use std::io::Write;
    use steadfast_process::pipe::{Pipe, move_waiting};

    struct Scene {
        pipe: Pipe,
        peeker: Peeker,
        sight: Sight,
    }

    impl Scene {
        /// A pipe that was looked at when it was empty.
        fn watched() -> Scene {
            let mut scene = Scene {
                pipe: Pipe::with_capacity(256 * 1024).unwrap(),
                peeker: Peeker::new().unwrap(),
                sight: Sight::default(),
            };
            assert_eq!(scene.look(), None);
            scene.print("the rest of a line\n");
            assert_eq!(scene.look(), None);
            scene
        }

        fn print(&self, text: &str) {
            let mut writer = File::from(self.pipe.write.try_clone().unwrap());
            writer.write_all(text.as_bytes()).unwrap();
        }

        fn take(&self, bytes: usize) {
            let nowhere = OpenOptions::new().write(true).open("/dev/null").unwrap();
            let moved = move_waiting(&self.pipe.read, nowhere.as_fd(), bytes).unwrap();
            assert_eq!(moved, bytes);
        }

        fn look(&mut self) -> Option<Sighting> {
            self.sight.look(&self.pipe.read, &mut self.peeker, None)
        }
    }

    #[test]
    fn a_step_is_dated_with_the_look_before_it_and_seen_once() {
        let mut scene = Scene::watched();
        let before = clock::monotonic_ns();
        assert_eq!(scene.look(), None);
        let between = clock::monotonic_ns();
        scene.print("step 1 loss 0.5\nstep 2 loss 0.5\nstep 3");
        let found = scene.look().unwrap();
        assert_eq!(found.step, 2, "the last line is not whole");
        assert!(found.at_ns >= before && found.at_ns <= between);
        assert_eq!(scene.look(), None);
        scene.print(" loss 0.5\n");
        assert_eq!(scene.look().map(|found| found.step), Some(3));
    }

    #[test]
    fn what_was_there_at_the_first_look_has_no_date_and_may_begin_in_the_middle_of_a_line() {
        let mut scene = Scene::watched();
        scene.sight = Sight::default();
        scene.print("step 7 loss 0.5\nstep 8 loss 0.5\n");
        let undated = |step| Some(Sighting { step, at_ns: 0 });
        assert_eq!(scene.look(), undated(8));
        let mut scene = Scene::watched();
        scene.sight.forget();
        scene.print("step 9 loss 0.5\n");
        assert_eq!(scene.look(), undated(9));
        let mut fresh = Scene::watched();
        fresh.sight = Sight::default();
        fresh.take("the rest of a line\n".len());
        fresh.print("12 loss 0.5, step 5\n");
        assert_eq!(fresh.look(), None, "perhaps the rest of `step 12`");
    }

    #[test]
    fn making_room_does_not_confuse_it() {
        let mut scene = Scene::watched();
        scene.print("step 1 loss 0.5\n");
        assert!(scene.look().is_some());
        let taken = "the rest of a line\nstep 1 l".len();
        scene.take(taken);
        scene.sight.taken(taken);
        scene.print("step 2 loss 0.5\n");
        assert!(
            scene
                .look()
                .is_some_and(|found| found.step == 2 && found.at_ns > 0)
        );
    }

    #[test]
    fn a_reader_that_took_something_without_a_word_is_noticed() {
        let mut scene = Scene::watched();
        scene.print("step 1 loss 0.5\n");
        assert!(scene.look().is_some());
        // Half a line is left, as many bytes in all as were seen before.
        scene.take(10);
        scene.print("step 2 loss 0.5\nstep 3");
        let found = scene.look().unwrap();
        assert_eq!((found.step, found.at_ns), (2, 0), "it begins anew");
    }

    #[test]
    fn of_a_flood_the_end_is_read() {
        let mut scene = Scene::watched();
        scene.print(&"step 1 and a long tail of text without an end, ".repeat(3000));
        scene.print("\nstep 5 loss 0.5\n");
        assert_eq!(scene.look().map(|found| found.step), Some(5));
    }

    #[test]
    fn the_users_expression_counts_alone() {
        let expression = Regex::new(r"update (\d+)").unwrap();
        let mut scene = Scene::watched();
        scene.sight = Sight::default();
        scene.print("\nstep 1 loss 0.5\nupdate 4\nstep 9 loss 1\n");
        let found = scene
            .sight
            .look(&scene.pipe.read, &mut scene.peeker, Some(&expression));
        assert_eq!(found.map(|found| found.step), Some(4));
    }
}
