// SPDX-License-Identifier: Apache-2.0
//! What is to be checked, on which node, and why.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::node::Node;
use crate::profile::Profile;
use crate::settings::{Command, Common, Settings, nearest};
use crate::spec::Spec;
use crate::table::CHECKS;

/// Unless configured, how long a command of the site may take.
const COMMAND_DEADLINE: Duration = Duration::from_secs(10);
/// Unless configured, when commands of the site are run.
const COMMAND_PROFILES: [Profile; 2] = [Profile::Health, Profile::Full];

/// What is to be checked.
#[derive(Debug)]
pub struct Plan {
    pub(crate) profile: Profile,
    pub(crate) settings: Settings,
    pub(crate) node: Node,
    only: BTreeSet<String>,
    skip: BTreeSet<String>,
}

/// There is no check of that name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no check `{name}`; {}", match .nearest {
    Some(nearest) => format!("did you mean `{nearest}`?"),
    None => "`steadfast check --list` names them".to_owned(),
})]
pub struct UnknownCheck {
    /// The name that was given.
    pub name: String,
    /// What was probably meant.
    pub nearest: Option<String>,
}

/// One check that is made.
#[derive(Clone, Debug)]
pub(crate) enum Item {
    BuiltIn(&'static Spec),
    Command(Command),
}

impl Plan {
    /// All checks of a profile.
    pub const fn new(profile: Profile, settings: Settings, node: Node) -> Self {
        Self {
            profile,
            settings,
            node,
            only: BTreeSet::new(),
            skip: BTreeSet::new(),
        }
    }

    /// Only these, whatever the profile says; all of the profile when there are none.
    ///
    /// # Errors
    ///
    /// When there is no such check.
    pub fn only(mut self, names: &[String]) -> Result<Self, UnknownCheck> {
        self.only = self.known(names)?;
        Ok(self)
    }

    /// Not these.
    ///
    /// # Errors
    ///
    /// When there is no such check.
    pub fn skip(mut self, names: &[String]) -> Result<Self, UnknownCheck> {
        self.skip = self.known(names)?;
        Ok(self)
    }

    fn known(&self, names: &[String]) -> Result<BTreeSet<String>, UnknownCheck> {
        let built_in = CHECKS.iter().map(|spec| spec.name);
        let commands = self.settings.commands.iter();
        let known: Vec<&str> = built_in
            .chain(commands.map(|command| command.name.as_str()))
            .collect();
        for name in names {
            if !known.contains(&name.as_str()) {
                return Err(UnknownCheck {
                    name: name.clone(),
                    nearest: nearest(name, &known).map(str::to_owned),
                });
            }
        }
        Ok(names.iter().cloned().collect())
    }

    /// What is to be made, in order.
    pub(crate) fn items(&self) -> Vec<Item> {
        let built_in = CHECKS.iter().copied().map(Item::BuiltIn);
        let commands = self.settings.commands.iter().cloned().map(Item::Command);
        built_in
            .chain(commands)
            .filter(|item| self.wants(item))
            .collect()
    }

    fn wants(&self, item: &Item) -> bool {
        let common = self.common(item);
        let named = self.only.contains(item.name());
        let configured = common.profiles.as_deref();
        let profiles = configured.unwrap_or_else(|| item.profiles());
        let meant = if self.only.is_empty() {
            profiles.contains(&self.profile) && common.enabled != Some(false)
        } else {
            named
        };
        meant && !self.skip.contains(item.name())
    }

    pub(crate) fn common(&self, item: &Item) -> Common {
        match item {
            Item::BuiltIn(spec) => self.settings.common(spec.name),
            Item::Command(command) => command.common.clone(),
        }
    }
}

impl Item {
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::BuiltIn(spec) => spec.name,
            Self::Command(command) => &command.name,
        }
    }

    fn profiles(&self) -> &[Profile] {
        match self {
            Self::BuiltIn(spec) => spec.profiles,
            Self::Command(_) => &COMMAND_PROFILES,
        }
    }

    pub(crate) fn deadline(&self) -> Duration {
        match self {
            Self::BuiltIn(spec) => spec.deadline,
            Self::Command(_) => COMMAND_DEADLINE,
        }
    }

    pub(crate) const fn needs_gpus(&self) -> bool {
        match self {
            Self::BuiltIn(spec) => spec.needs_gpus,
            Self::Command(_) => false,
        }
    }
}
