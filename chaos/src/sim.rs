// SPDX-License-Identifier: Apache-2.0
//! A deterministic simulation of whole jobs: the product's decision core in a world in which everything goes wrong.

mod checker;
mod event;
mod node;
mod plant;
mod schedule;
mod store;
#[cfg(test)]
mod tests;
mod world;

pub(crate) use plant::Plant;
