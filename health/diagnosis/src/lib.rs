// SPDX-License-Identifier: Apache-2.0
//! Who and what is at fault, from what was kept of a failure: the output of ranks and launchers, kernel logs, the ranks'
//! states, step times, and what the supervisor knew ([`Evidence`]). [`diagnose`] reads all of it and gives one [`Answer`].
//!
//! Owns the knowledge of what failures look like in text: a table of [`Rules`] (data, under `rules/`), the prefixes that
//! launchers and frameworks put before lines (`line/`), and how the parts are put together (`logs/`, `kernel/`, `hang/`).
//! It has no tasks, no clock and no files: text in, answer out.
//!
//! Invariants:
//! - DG-1: what only follows from another fault is never named as the cause while there is a cause.
//! - DG-2: the names of hosts, the order of files, colours, line ends and harmless lines in between change no answer.
//! - DG-3: whatever the text is, reading it ends in an answer. Where it does not reach, the answer says `unknown`, and a
//!   culprit is left out: to blame an innocent is worse.

mod answer;
mod clock;
mod context;
mod evidence;
mod gpu_state;
mod hang;
mod history;
mod kernel;
mod line;
mod listing;
mod logs;
mod pattern;
mod rules;
mod sighting;
mod verdict;

pub use answer::{Action, Answer, Class, Culprit, Signal};
pub use evidence::{Evidence, EvidenceFile};
pub use rules::{RuleError, Rules};
pub use verdict::diagnose;
