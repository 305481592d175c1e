// SPDX-License-Identifier: Apache-2.0
//! What a user wants done about a code instead of what the catalogue asks for, from a TOML file.
//!
//! ```toml
//! [xid.43]
//! action = "report"
//!
//! [xid.92]               # three in ten minutes on one GPU
//! action = "exclude-node"
//! count = 3
//! window = "10m"
//! before = "ignore"      # the first two; the catalogue's action if left out
//! ```

mod file;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use super::terms::{Action, Kind};

/// The rules of one file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    pub(super) rules: BTreeMap<(Kind, u32), Rule>,
}

/// What is to be done about one code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// What is to be done once `count` events came within `window`.
    pub action: Action,
    /// How many events it takes, 1 to 10,000, on one GPU or switch.
    pub count: u32,
    /// Within what time; of no meaning for one event.
    pub window: Duration,
    /// What is to be done until then; absent means what the catalogue says.
    pub before: Option<Action>,
}

/// What is wrong with a policy file.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    /// The file cannot be read.
    #[error("cannot read the XID policy {}: {reason}", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// Why.
        reason: std::io::Error,
    },
    /// The file is not TOML.
    #[error("{}:{line}: not valid TOML: {reason}", file.display())]
    Syntax {
        /// The file.
        file: PathBuf,
        /// From 1.
        line: usize,
        /// What the parser says.
        reason: String,
    },
    /// A field that says something that it cannot say.
    #[error("{}:{line}: `{field}`: {reason}", file.display())]
    Field {
        /// The file.
        file: PathBuf,
        /// From 1.
        line: usize,
        /// Its full name, such as `xid.92.window`.
        field: String,
        /// What is wrong, and what would be right.
        reason: String,
    },
}

impl Policy {
    /// Reads a file.
    pub fn read(file: &std::path::Path) -> Result<Self, PolicyError> {
        let text = std::fs::read_to_string(file).map_err(|reason| PolicyError::Read {
            file: file.to_owned(),
            reason,
        })?;
        Self::parse(file, &text)
    }

    /// Reads the text of `file`, whose name is only for messages.
    pub fn parse(file: &std::path::Path, text: &str) -> Result<Self, PolicyError> {
        file::parse(file, text)
    }

    /// The rule for a code, if there is one.
    pub fn rule(&self, kind: Kind, code: u32) -> Option<Rule> {
        self.rules.get(&(kind, code)).copied()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn parse(text: &str) -> Result<Policy, String> {
        Policy::parse(Path::new("site.toml"), text).map_err(|error| error.to_string())
    }

    #[test]
    fn rules_are_read_with_and_without_count() {
        let policy = parse(
            "[xid.43]\naction = 'ignore'\n[sxid.12028]\naction = \"report\"\n\
             [xid.92]\naction = 'exclude-node'\ncount = 3\nwindow = '1h30m'\nbefore = 'ignore'\n",
        )
        .unwrap();
        let simple = Rule {
            action: Action::Ignore,
            count: 1,
            window: Duration::ZERO,
            before: None,
        };
        assert_eq!(policy.rule(Kind::Xid, 43), Some(simple));
        assert_eq!(
            policy.rule(Kind::Sxid, 12_028).unwrap().action,
            Action::Report
        );
        assert_eq!(policy.rule(Kind::Sxid, 43), None);
        let counted = Rule {
            action: Action::ExcludeNode,
            count: 3,
            window: Duration::from_mins(90),
            before: Some(Action::Ignore),
        };
        assert_eq!(policy.rule(Kind::Xid, 92), Some(counted));
        assert_eq!(parse("").unwrap(), Policy::default());
    }

    #[test]
    fn what_is_wrong_is_said_with_file_line_and_field() {
        for (text, expected) in [
            (
                "[xid.43]\nacton = 'ignore'",
                "site.toml:2: `xid.43.acton`: unknown; did you mean `action`?",
            ),
            (
                "[xid.43]\nspeed = 1",
                "site.toml:2: `xid.43.speed`: unknown; the fields are action, count, window, before",
            ),
            ("[xid.43]", "site.toml:1: `xid.43`: has no `action`"),
            (
                "[xid]\n43 = 'ignore'",
                "site.toml:2: `xid.43`: is no table; write `[xid.43]` and `action = \"...\"` below it",
            ),
            (
                "xids = 1",
                "site.toml:1: `xids`: unknown; the tables are `[xid.CODE]` and `[sxid.CODE]`",
            ),
            (
                "xid = 3",
                "site.toml:1: `xid`: is no table; write `[xid.43]` and `action = \"...\"` below it",
            ),
            (
                "[xid.abc]\naction = 'ignore'",
                "site.toml:1: `xid.abc`: `abc` is not a code: it takes a number from 0 to 4294967295",
            ),
            (
                "[xid.1]\naction = 'reboot'",
                "site.toml:2: `xid.1.action`: `reboot` is no action; did you mean `reboot-node`?",
            ),
            (
                "[xid.1]\naction = 4",
                "site.toml:2: `xid.1.action`: takes a text",
            ),
            (
                "[xid.1]\naction = 'ignore'\ncount = 0",
                "site.toml:3: `xid.1.count`: takes a number from 1 to 10000",
            ),
            (
                "[xid.1]\naction = 'ignore'\ncount = '2'",
                "site.toml:3: `xid.1.count`: takes a number from 1 to 10000",
            ),
            (
                "[xid.1]\naction = 'ignore'\ncount = 2",
                "site.toml:3: `xid.1.count`: a count above 1 needs a `window`, such as `window = \"10m\"`",
            ),
            (
                "[xid.1]\naction = 'ignore'\nwindow = '5x'",
                "site.toml:3: `xid.1.window`: `5x` is not a duration such as 90s, 10m or 1h30m",
            ),
            (
                "[xid.1]\naction = 'ignore'\nwindow = '10m'",
                "site.toml:3: `xid.1.window`: a window needs a `count` of 2 or more",
            ),
            (
                "[xid.1]\naction = 'ignore'\nbefore = 'ignore'",
                "site.toml:3: `xid.1.before`: needs a `count` of 2 or more",
            ),
        ] {
            assert_eq!(parse(text).unwrap_err(), expected, "{text}");
        }
        let error = parse("[xid.1\n").unwrap_err();
        assert!(
            error.starts_with("site.toml:1: not valid TOML: "),
            "{error}"
        );
        let error = Policy::read(Path::new("/nonexistent/site.toml")).unwrap_err();
        let start = "cannot read the XID policy /nonexistent/site.toml: ";
        assert!(error.to_string().starts_with(start), "{error}");
    }

    proptest::proptest! {
        #![proptest_config(proptest::prelude::ProptestConfig {
            failure_persistence: None,
            ..Default::default()
        })]

        #[test]
        fn any_text_is_read_or_refused(
            head in "\\[(xid|sxid|x)\\.[0-9a-z]{0,12}\\]",
            key in "(action|count|window|before|[a-zé]{0,8})",
            value in "('[a-z0-9é-]{0,20}'|[0-9_]{1,12}|\\[\\]|\\PC{0,12})",
        ) {
            drop(parse(&format!("{head}\n{key} = {value}\n")));
        }
    }
}
