// SPDX-License-Identifier: Apache-2.0
//! Measurements of the real program on this machine: how fast it recovers, and what it costs while
//! nothing happens.
//!
//! Every figure is taken from outside: workers write down the monotonic clock as the first thing
//! that they do, the kernel says when processes are gone and what they used. Each bench works in a
//! temporary directory that is removed, and ends what it has started, also when it fails.

pub(crate) mod checkpoints;
pub(crate) mod etcd;
pub(crate) mod hangs;
pub(crate) mod idle;
mod job;
pub(crate) mod launch;
pub(crate) mod lines;
pub(crate) mod members;
pub(crate) mod nodes;
pub(crate) mod output;
pub(crate) mod parser;
pub(crate) mod processes;
pub(crate) mod recovery;
mod report;
mod statistics;
pub(crate) mod waiting;
pub(crate) mod xid;
