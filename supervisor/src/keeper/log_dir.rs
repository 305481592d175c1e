// SPDX-License-Identifier: Apache-2.0
//! The directory for the logs of one run: a job that is started again under the same name gets one of its own.

use std::path::{Path, PathBuf};

use crate::settings::Settings;

/// More runs of one name than this share the last directory.
const MOST: u32 = 100_000;

/// Replaces the directory of the run, and the journal in it, by the first of `NAME`, `NAME.1`, `NAME.2` and so on that
/// does not exist yet.
pub(super) fn choose(settings: &mut Settings) {
    let wanted = settings.log.run_dir.clone();
    let chosen = first_free(&wanted, |path| path.symlink_metadata().is_ok());
    if let Ok(inside) = settings.journal.strip_prefix(&wanted) {
        settings.journal = chosen.join(inside);
    }
    settings.log.run_dir = chosen;
}

fn first_free(wanted: &Path, is_taken: impl Fn(&Path) -> bool) -> PathBuf {
    let numbered = |number: u32| {
        let mut name = wanted.as_os_str().to_owned();
        name.push(format!(".{number}"));
        PathBuf::from(name)
    };
    if !is_taken(wanted) {
        return wanted.to_owned();
    }
    // Doubling and halving: a name that was used a thousand times costs twenty looks.
    let mut free = 1;
    while free < MOST && is_taken(&numbered(free)) {
        free *= 2;
    }
    let (mut low, mut high) = (free / 2, free);
    while low + 1 < high {
        let middle = low.midpoint(high);
        if is_taken(&numbered(middle)) {
            low = middle;
        } else {
            high = middle;
        }
    }
    numbered(high)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_free_number_is_taken() {
        for taken in [0_u32, 1, 2, 3, 7, 8, 100] {
            let is_taken = |path: &Path| {
                let name = path.to_string_lossy();
                let number = name
                    .strip_prefix("/logs/job")
                    .unwrap()
                    .trim_start_matches('.');
                number.parse::<u32>().unwrap_or(0) <= taken
            };
            let expected = PathBuf::from(format!("/logs/job.{}", taken + 1));
            assert_eq!(first_free(Path::new("/logs/job"), is_taken), expected);
        }
        assert_eq!(
            first_free(Path::new("/logs/job"), |_| false),
            Path::new("/logs/job")
        );
    }
}
