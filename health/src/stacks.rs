// SPDX-License-Identifier: Apache-2.0
//! Stacks as Python's faulthandler writes them, and what a thread with such a stack is doing.

mod place;

use serde::{Deserialize, Serialize};

pub use self::place::Place;

/// More is not read.
const MOST_BYTES: usize = 4 * 1024 * 1024;
const MOST_THREADS: usize = 512;
/// faulthandler itself stops after a hundred frames.
const MOST_FRAMES: usize = 200;

/// The stack of one thread.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreadStack {
    /// The head line's words: `Thread 0x...` and perhaps a name.
    pub thread: String,
    /// Innermost first.
    pub frames: Vec<StackFrame>,
}

/// One call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StackFrame {
    /// Path of the source file.
    pub file: String,
    /// Line in it, if Python knows it.
    pub line: Option<u32>,
    /// The function.
    pub function: String,
}

/// Reads the stacks of the threads of one dump, the main thread last, as faulthandler writes them. Lines that are
/// something else are passed over.
pub fn parse_stacks(text: &str) -> Vec<ThreadStack> {
    let mut threads: Vec<ThreadStack> = Vec::new();
    let text = text.get(..MOST_BYTES).unwrap_or(text);
    for line in text.lines() {
        if let Some(thread) = head(line) {
            if threads.len() == MOST_THREADS {
                break;
            }
            threads.push(ThreadStack {
                thread,
                frames: Vec::new(),
            });
        } else if let Some(thread) = threads.last_mut()
            && let Some(frame) = frame(line)
            && thread.frames.len() < MOST_FRAMES
        {
            thread.frames.push(frame);
        }
    }
    threads
}

/// The stack of the main thread: the oldest, which comes last.
pub fn main_thread(threads: &[ThreadStack]) -> Option<&ThreadStack> {
    threads
        .iter()
        .rev()
        .find(|thread| !thread.frames.is_empty())
}

impl ThreadStack {
    /// The functions, innermost first, without what differs between ranks that do the same: line numbers.
    pub fn functions(&self) -> Vec<String> {
        self.frames
            .iter()
            .map(|frame| format!("{} ({})", frame.function, short(&frame.file)))
            .collect()
    }

    /// What the thread is doing, as far as its stack tells.
    pub fn place(&self) -> Place {
        place::of(self)
    }
}

/// The last two parts of a path.
fn short(file: &str) -> &str {
    let mut slashes = file.rmatch_indices('/').map(|(at, _)| at);
    slashes.next();
    slashes.next().map_or(file, |at| &file[at + 1..])
}

/// `Thread 0x00007f... [name] (most recent call first):`, or `Current thread ...`.
fn head(line: &str) -> Option<String> {
    let words = line.strip_suffix(" (most recent call first):")?;
    let is_head = words.starts_with("Thread 0x") || words.starts_with("Current thread 0x");
    is_head.then(|| words.to_owned())
}

/// `  File "path", line N in function`.
fn frame(line: &str) -> Option<StackFrame> {
    let rest = line.strip_prefix("  File \"")?;
    let (file, rest) = rest.rsplit_once("\", line ")?;
    let (line, function) = rest.split_once(" in ")?;
    Some(StackFrame {
        file: file.to_owned(),
        line: line.parse().ok(),
        function: function.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const DUMP: &str = "Thread 0x00007f1111111700 [pt_data_pin] (most recent call first):\n  \
        File \"/usr/lib/python3.11/threading.py\", line 324 in wait\n\nCurrent thread 0x00007f2222222740 (most recent call first):\n  \
        File \"/a b/\", line 3/toy.py\", line 120 in receive\n  File \"/work/toy.py\", line ??? in <module>\nnoise\n";

    #[test]
    fn threads_and_frames_are_told_apart_and_the_main_thread_is_the_last() {
        let threads = parse_stacks(DUMP);
        assert_eq!(threads.len(), 2);
        assert_eq!(threads[0].thread, "Thread 0x00007f1111111700 [pt_data_pin]");
        assert_eq!(threads[0].functions(), ["wait (python3.11/threading.py)"]);
        let main = main_thread(&threads).unwrap();
        assert_eq!(main.frames[0].file, "/a b/\", line 3/toy.py");
        assert_eq!(
            (main.frames[0].line, main.frames[1].line),
            (Some(120), None)
        );
        assert_eq!(main.frames[1].function, "<module>");
        assert_eq!(main_thread(&[]), None);
    }

    proptest! {
        #[test]
        fn whatever_is_in_the_file_it_is_read(text in "(Thread 0x|  File \"|\", line 3| in f| \\(most recent call first\\):|\n|é|.){0,60}") {
            for thread in parse_stacks(&text) {
                thread.functions();
                thread.place();
            }
        }
    }
}
