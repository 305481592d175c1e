// SPDX-License-Identifier: Apache-2.0
//! How do two checkpoints differ, file by file?

use std::collections::BTreeSet;

use crate::catalogue::Known;
use crate::manifest::{Depth, ManifestError, hashes_of};

/// A file that is not the same in both.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Its path in the checkpoint.
    pub file: String,
    /// What is different.
    pub change: Change,
}

/// What is different. Sizes are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Only the first has it.
    OnlyInFirst(u64),
    /// Only the second has it.
    OnlyInSecond(u64),
    /// It is shorter or longer in the second.
    Size(u64, u64),
    /// It is as long, but not the same.
    Content(u64),
}

/// The files that differ, by name. Files of one size count as the same with [`Depth::Metadata`]; with [`Depth::Full`] they are
/// read.
///
/// # Errors
///
/// Where a file cannot be read.
pub fn differences(
    first: &Known,
    second: &Known,
    depth: Depth,
) -> Result<Vec<Difference>, ManifestError> {
    let (ours, theirs) = (&first.checked.listing.files, &second.checked.listing.files);
    let is_single = |known: &Known| known.found.path.is_file();
    // Two single files have names of their own, and are compared with each other.
    if is_single(first) && is_single(second) {
        return single(first, second, depth);
    }
    let mut alike = Vec::new();
    let mut found = Vec::new();
    let names: BTreeSet<&String> = ours.keys().chain(theirs.keys()).collect();
    for name in names {
        let change = match (ours.get(name), theirs.get(name)) {
            (Some(our), None) => Change::OnlyInFirst(our.size),
            (None, Some(their)) => Change::OnlyInSecond(their.size),
            (Some(our), Some(their)) if our.size != their.size => {
                Change::Size(our.size, their.size)
            }
            _ => {
                alike.push(name.as_str());
                continue;
            }
        };
        found.push(Difference {
            file: name.clone(),
            change,
        });
    }
    if depth == Depth::Full {
        let (of_ours, of_theirs) = (
            hashes_of(&first.found, &alike)?,
            hashes_of(&second.found, &alike)?,
        );
        for (name, hash) in of_ours {
            if of_theirs.get(&name) != Some(&hash) {
                let size = ours.get(&name).map_or(0, |fact| fact.size);
                found.push(Difference {
                    file: name,
                    change: Change::Content(size),
                });
            }
        }
        found.sort_by(|a, b| a.file.cmp(&b.file));
    }
    Ok(found)
}

fn single(first: &Known, second: &Known, depth: Depth) -> Result<Vec<Difference>, ManifestError> {
    let (our, their) = (
        first.checked.listing.bytes(),
        second.checked.listing.bytes(),
    );
    let hash = |known: &Known| {
        let hashes = hashes_of(&known.found, &[known.found.name.as_str()])?;
        Ok(hashes.into_values().next())
    };
    let change = if our != their {
        Some(Change::Size(our, their))
    } else if depth == Depth::Full && hash(first)? != hash(second)? {
        Some(Change::Content(our))
    } else {
        None
    };
    let file = &second.found.name;
    Ok(change
        .map(|change| Difference {
            file: file.clone(),
            change,
        })
        .into_iter()
        .collect())
}
