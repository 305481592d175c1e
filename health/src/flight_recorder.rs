// SPDX-License-Identifier: Apache-2.0
//! Dumps of PyTorch's flight recorder: which collective operations each rank has begun and finished, and what that says
//! about a hang.
//!
//! The dumps are pickles (or JSON, from the debug server), written by processes that may be dying. They are read by a
//! decoder that knows plain data only: nothing in a dump can make it run, allocate without bounds or recurse.

mod compare;
mod dump;
mod pickle;
mod value;

pub use self::compare::{Problem, ProblemKind, compare};
pub use self::dump::{Dump, DumpError, Entry, Group, LastOperations};
pub use self::pickle::PickleError;

#[cfg(test)]
mod tests;
