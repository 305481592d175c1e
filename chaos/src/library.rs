// SPDX-License-Identifier: Apache-2.0
//! The scenarios that this program carries.

use std::path::{Path, PathBuf};

use crate::failure::Failure;
use crate::scenario::{Source, read_file, read_text};

include!(concat!(env!("OUT_DIR"), "/library.rs"));

/// Those of the library that are wanted.
pub(crate) fn chosen(quick: bool, filters: &[String]) -> Result<Vec<Source>, Failure> {
    let all: Vec<Source> = SCENARIOS
        .iter()
        .map(|(name, text)| read_text(name, &format!("{name}.toml"), text))
        .collect::<Result<_, _>>()?;
    let wanted = |source: &Source| {
        let fits = |filter: &String| {
            source.name.contains(filter.as_str()) || source.scenario.tags.contains(filter)
        };
        (!quick || source.scenario.quick) && (filters.is_empty() || filters.iter().any(fits))
    };
    let chosen: Vec<Source> = all.into_iter().filter(wanted).collect();
    if chosen.is_empty() {
        return Err(Failure::Unexpected(format!(
            "no scenario has {} in its name or among its tags",
            filters.join(" or ")
        )));
    }
    Ok(chosen)
}

/// The scenario in a file, or the one of the library with that name.
pub(crate) fn named(path: &PathBuf) -> Result<Source, Failure> {
    let name = path.to_string_lossy();
    let in_library = SCENARIOS.iter().find(|(known, _)| *known == name);
    match in_library {
        Some((name, text)) if !Path::new(path).exists() => {
            read_text(name, &format!("{name}.toml"), text)
        }
        _ => read_file(path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scenario_of_the_library_is_right_and_says_what_it_proves() {
        let all = chosen(false, &[]).unwrap();
        assert!(all.len() >= 60, "{}", all.len());
        for source in &all {
            assert!(
                source.scenario.description.ends_with('.'),
                "{}",
                source.name
            );
        }
        let quick = chosen(true, &[]).unwrap();
        assert!(
            quick.len() >= 10 && quick.len() < all.len() / 2,
            "{}",
            quick.len()
        );
    }
}
