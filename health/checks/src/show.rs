// SPDX-License-Identifier: Apache-2.0
//! A report, and the table of checks, in the forms that people and programs read.

mod json;
mod list;
mod nagios;
mod prometheus;
mod reference;
mod text;

pub use json::report as json;
pub use list::{json as list_json, text as list};
pub use nagios::{exit_code as nagios_exit_code, line as nagios};
pub use prometheus::report as prometheus;
pub use reference::page as reference;
pub use text::report as text;

#[cfg(test)]
mod tests;
