// SPDX-License-Identifier: Apache-2.0
//! From what was written (flags, environment, files) to what holds (`Settings`).
//!
//! [`table`] defines every option once. [`values`] lays the sources over each other and remembers where each value
//! comes from; [`validate`] turns the values and the command into [`crate::settings::Settings`], or into one
//! [`error::ConfigError`]. Nothing here starts a process or writes a file; the machine is seen through [`host::Host`].

pub(crate) mod duration;
pub(crate) mod error;
pub(crate) mod host;
pub(crate) mod option;
pub(crate) mod program;
pub(crate) mod show;
pub(crate) mod table;
pub(crate) mod validate;
pub(crate) mod values;

mod address;
mod coordination;
mod devices;
mod directories;
mod file;
mod inner;
mod nodes;
pub(crate) mod parse;
mod place;
mod scheduler;
mod self_check;
mod suggest;
mod variables;

#[cfg(test)]
mod reference;
#[cfg(test)]
mod tests;

pub(crate) use self::error::{ConfigError, TorchrunError};
pub(crate) use self::host::Host;
pub(crate) use self::inner::disarm_one_loop;
pub(crate) use self::nodes::{are_several, meets_others};
pub(crate) use self::parse::as_name;
pub(crate) use self::scheduler::apply as apply_scheduler;
pub(crate) use self::suggest::nearest;
