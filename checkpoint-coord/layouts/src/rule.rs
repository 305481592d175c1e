// SPDX-License-Identifier: Apache-2.0
//! A layout in the user's own words, for programs that save in a way of their own:
//!
//! ```toml
//! name = 'state-(?<step>\d+)'           # whole names of the directory's entries; the group `step` (or the first) is the step
//! files = ["model.pt", "optimizer/*.pt"] # what has to be in it; `*` stands for anything but `/`
//! ranks = "rank_{rank}.pt"              # one for each rank: all from 0 to the highest one have to be there
//! marker = "DONE"                       # written last
//! same_size = true                      # can be loaded only by as many workers as saved it
//! ```

use regex::Regex;
use serde::{Deserialize, Serialize};

use crate::check::{Checked, Sizes, Tree};
use crate::layouts::contiguous;
use crate::problem::Problem;
use crate::step;

const RANK: &str = "{rank}";

/// A layout in the user's own words.
#[derive(Clone, Debug)]
pub struct Rule {
    words: Words,
    name: Regex,
    files: Vec<(String, Regex)>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Words {
    name: String,
    #[serde(default)]
    files: Vec<String>,
    ranks: Option<String>,
    marker: Option<String>,
    #[serde(default)]
    same_size: bool,
}

/// Why a rule is none.
#[derive(Debug, thiserror::Error)]
pub enum RuleError {
    /// It is not TOML, or has other keys than a rule has.
    #[error("is not a checkpoint rule: {0}")]
    Toml(String),
    /// `name` is no regular expression, or has no group for the step.
    #[error("`name`: {0}")]
    Name(String),
    /// `ranks` has no place for the rank.
    #[error("`ranks`: must have {RANK} in it")]
    Ranks,
}

impl Rule {
    /// Reads a rule.
    ///
    /// # Errors
    ///
    /// What is wrong with it.
    pub fn parse(text: &str) -> Result<Rule, RuleError> {
        let words: Words =
            toml::from_str(text).map_err(|error| RuleError::Toml(error.to_string()))?;
        let name = Regex::new(&format!("^(?:{})$", words.name))
            .map_err(|error| RuleError::Name(error.to_string()))?;
        if name.captures_len() < 2 {
            let text = r"has no group for the step, such as (?<step>\d+)";
            return Err(RuleError::Name(text.to_owned()));
        }
        if words
            .ranks
            .as_ref()
            .is_some_and(|ranks| !ranks.contains(RANK))
        {
            return Err(RuleError::Ranks);
        }
        let files = words
            .files
            .iter()
            .map(|glob| Ok((glob.clone(), expression(glob)?)))
            .collect::<Result<_, RuleError>>()?;
        Ok(Rule { words, name, files })
    }

    /// The step of an entry, if it is a checkpoint.
    pub(crate) fn step(&self, name: &str) -> Option<u64> {
        let captures = self.name.captures(name)?;
        let step = captures.name("step").or_else(|| captures.get(1))?;
        step.as_str().parse().ok()
    }

    pub(crate) fn check(&self, tree: &Tree<'_>, is_dir: bool, checked: &mut Checked) {
        if self.words.same_size {
            checked.sizes = Sizes::Same;
        }
        if !is_dir {
            return;
        }
        let because = "the rule asks for it";
        for (glob, expression) in &self.files {
            if !tree.files().any(|(name, _)| expression.is_match(name)) {
                checked
                    .problems
                    .push(Problem::missing(glob.as_str(), because));
            }
        }
        if let Some(marker) = &self.words.marker {
            tree.require(marker, "it is written last", &mut checked.problems);
        }
        if let Some((before, behind)) = self
            .words
            .ranks
            .as_deref()
            .and_then(|ranks| ranks.split_once(RANK))
        {
            let rank = |name: &str| step::after(name.strip_suffix(behind)?, before);
            let ranks: Vec<u64> = tree.files().filter_map(|(name, _)| rank(name)).collect();
            let name = |rank: u64| format!("{before}{rank}{behind}");
            if ranks.is_empty() {
                checked.problems.push(Problem::missing(name(0), because));
            }
            contiguous(&ranks, name, checked);
            let count = ranks.iter().max().map(|highest| highest.saturating_add(1));
            checked.world_size = count.and_then(|count| u32::try_from(count).ok());
        }
    }
}

fn expression(glob: &str) -> Result<Regex, RuleError> {
    let parts: Vec<String> = glob.split('*').map(regex::escape).collect();
    let text = format!("^{}$", parts.join("[^/]*"));
    Regex::new(&text).map_err(|error| RuleError::Toml(error.to_string()))
}
