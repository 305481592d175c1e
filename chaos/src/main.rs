// SPDX-License-Identifier: Apache-2.0
//! Placeholder.
mod random;
mod sim;
fn main() {}
