// SPDX-License-Identifier: Apache-2.0
//! A deterministic simulation of whole jobs: the product's decision core in a world in which everything goes wrong.
//!
//! A schedule is drawn from a seed: the job's shape, how fast things go, and which faults happen when. The world runs it in
//! virtual time, thousands of nodes in one process, and a checker that shares nothing with the core looks at every step.
//! The same seed gives the same run; a schedule can be kept in a file, which outlives changes to how schedules are drawn.
//!
//! Owns: a simulated etcd ([`etcd`]), keepers, workers, clocks and links; a small runtime of the core after the product's
//! session; the rules and who checks them. It runs no process, opens no socket and reads no clock but to say how long it
//! took. What is simulated how, and what is not, is in `docs/simulator.md`.

#![expect(
    clippy::struct_excessive_bools,
    reason = "what a simulated thing is at the moment is many independent facts"
)]
#![expect(
    clippy::unnecessary_wraps,
    reason = "everything that happens has one signature, whether or not it can break a rule"
)]

mod agent;
mod campaign;
mod checker;
pub mod cli;
mod clock;
pub mod etcd;
mod event;
mod failure;
mod node;
mod queue;
mod random;
mod recovery;
mod schedule;
mod shrink;
#[cfg(test)]
mod tests;
mod world;

pub use failure::Failure;
pub use random::Random;
