// SPDX-License-Identifier: Apache-2.0
//! Which checkpoints in a directory are whole, which are torn, and why?
//!
//! Owns the knowledge of how training frameworks lay out their checkpoints ([`Layout`], one file each under `layouts/`, and
//! [`Rule`] for all others) and what their files look like inside (`content/`). [`find`] names the checkpoints of a
//! directory, [`check`] looks at one, a [`Catalogue`] does both again and again without reading anything twice,
//! [`Manifest`] remembers what was checked, [`aside`] and [`tracker`] see to it that frameworks do not pick up a torn one.
//!
//! It has no tasks and no clock; it reads files on the caller's thread, and a file system may take as long as it likes:
//! the caller brings a thread that may hang.
//!
//! Invariants:
//! - CK-1: whatever a file contains, looking at it ends in an answer; memory is bounded by limits of each format.
//! - CK-2: nothing of a checkpoint is ever written to; it is renamed at most. Deleted is only what its caller has asked for
//!   by [`retention`]: whole ones that are older than a committed one.
//! - CK-3: a checkpoint counts as whole only when everything that its layout can say about itself holds.
//!
//! It does not know the job: not which checkpoint is resumed from, nor when.

pub mod aside;
mod catalogue;
mod check;
mod content;
mod difference;
mod durable;
mod find;
mod hash;
mod identity;
mod layout;
mod layouts;
mod listing;
mod manifest;
mod power;
mod problem;
pub mod retention;
mod rule;
mod step;
pub mod tracker;

pub use catalogue::{Catalogue, Known};
pub use check::{Checked, Sizes, check};
pub use difference::{Change, Difference, differences};
pub use durable::flush;
pub use find::{FindError, Found, Selection, find};
pub use identity::directory_id;
pub use layout::{Layout, UnknownLayout};
pub use listing::{FileFact, Listing};
pub use manifest::{Comparison, Depth, Manifest, ManifestError};
pub use power::Boot;
pub use problem::Problem;
pub use retention::Retention;
pub use rule::{Rule, RuleError};
