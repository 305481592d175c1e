// SPDX-License-Identifier: Apache-2.0
//! File systems whose calls fail, do half of what they are asked for, or take long.

use std::sync::Arc;
use std::time::Duration;

use super::Active;
use crate::failure::Failure;
use crate::scenario::Injection;
use crate::world::World;
use crate::world::sick_disk::{Ailment, Sickness};

/// A file system that does something wrong.
#[derive(Debug)]
pub(super) struct Ill {
    sickness: Arc<Sickness>,
    before: u64,
    what: String,
}

/// Makes it ill. The fault has landed with the first call that meets it.
pub(super) fn inject(injection: &Injection, world: &World) -> Result<Ill, Failure> {
    let no_place = || Failure::Unexpected(format!("{} has no place", injection.name()));
    let sickness = Arc::clone(world.sickness(injection.place().ok_or_else(no_place)?)?);
    let (ailment, what) = match injection {
        Injection::DiskError { call, .. } => {
            let what = format!("failed with EIO ({})", format!("{call:?}").to_lowercase());
            (Ailment::Fails(*call), what)
        }
        Injection::SlowDisk { milliseconds, .. } => {
            let more = Duration::from_millis((*milliseconds).into());
            (Ailment::Slow(more), format!("took {milliseconds} ms more"))
        }
        _ => (Ailment::ShortWrites, "wrote only the first half".to_owned()),
    };
    let before = sickness.hits();
    sickness.set(Some(ailment));
    Ok(Ill {
        sickness,
        before,
        what,
    })
}

impl Active for Ill {
    fn evidence(&mut self, _world: &mut World) -> Result<Option<String>, Failure> {
        let hits = self.sickness.hits() - self.before;
        Ok((hits > 0).then(|| format!("{hits} calls {}", self.what)))
    }

    fn heal(&mut self, _world: &mut World) -> Result<Option<String>, Failure> {
        self.sickness.set(None);
        let hits = self.sickness.hits() - self.before;
        Ok(Some(format!(
            "it is well again; {hits} calls {}",
            self.what
        )))
    }
}
