// SPDX-License-Identifier: Apache-2.0
//! The table of lines and what they mean. It is data: the TOML files of `rules/`, with a user's own rules before them.
//!
//! ```toml
//! [[rule]]
//! id = "site.license"
//! class = "configuration"
//! role = "cause"
//! match = ['license server .* refused']
//! meaning = "the license server refused the job"
//! ```
//!
//! The first rule that fits a line applies. What a rule says is its role more than its pattern: most lines that speak of
//! the network, of collectives or of processes that ended only tell what a fault elsewhere has brought about.

mod file;

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use regex::bytes::{Captures, Regex, RegexSet, RegexSetBuilder};

use crate::answer::{Action, Class};

/// Room for the compiled expressions of all rules.
const SIZE_LIMIT: usize = 256 << 20;

/// The built-in tables, in the order in which they apply.
const BUILT_IN: [(&str, &str); 11] = [
    ("10-ignored.toml", include_str!("../rules/10-ignored.toml")),
    ("15-lost.toml", include_str!("../rules/15-lost.toml")),
    ("20-gpu.toml", include_str!("../rules/20-gpu.toml")),
    ("30-host.toml", include_str!("../rules/30-host.toml")),
    ("40-storage.toml", include_str!("../rules/40-storage.toml")),
    (
        "50-scheduler.toml",
        include_str!("../rules/50-scheduler.toml"),
    ),
    ("55-numeric.toml", include_str!("../rules/55-numeric.toml")),
    ("60-program.toml", include_str!("../rules/60-program.toml")),
    ("80-network.toml", include_str!("../rules/80-network.toml")),
    (
        "90-consequence.toml",
        include_str!("../rules/90-consequence.toml"),
    ),
    ("95-numbers.toml", include_str!("../rules/95-numbers.toml")),
];

/// What lines mean.
#[derive(Debug)]
pub struct Rules {
    all: Vec<Rule>,
    /// All patterns of all rules.
    set: RegexSet,
    /// For each pattern its rule, and its expression where it has named groups.
    patterns: Vec<(usize, Option<Regex>)>,
}

/// What a line means.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Rule {
    pub(crate) id: String,
    pub(crate) class: Class,
    pub(crate) role: Role,
    /// From 0 to 100: how much it says by itself. Below [`Rule::THIN`] it explains something only where nothing else does.
    pub(crate) strength: u8,
    pub(crate) blames: Blame,
    pub(crate) confidence: Option<f64>,
    pub(crate) action: Action,
    /// What is done where only some of the ranks or nodes say it.
    pub(crate) action_if_some: Option<Action>,
    pub(crate) class_if_some: Option<Class>,
    /// Whether the kernel log or a repetition has to tell program and hardware apart.
    pub(crate) is_ambiguous: bool,
    /// The rules whose lines are made good by this one.
    pub(crate) recovers: Vec<String>,
    pub(crate) patterns: Vec<String>,
    pub(crate) meaning: String,
    pub(crate) next: String,
}

/// What part a line plays in a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// It may be the cause.
    Cause,
    /// It points at something, and is the cause only where there is no better one.
    Sign,
    /// It follows from a fault elsewhere.
    Consequence,
    /// A launcher tells of a process that has ended.
    Summary,
    /// It says that something works again.
    Recovered,
    /// The program has come to its end as it should.
    Finished,
    /// It says nothing.
    Ignore,
}

/// Whom a line accuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Blame {
    /// The rank that wrote it, and its node.
    Speaker,
    /// The node on which it was written.
    Node,
    /// The rank or node that it names.
    Named,
    /// The other end of a connection, which it names.
    Peer,
    /// Nobody.
    Nobody,
}

/// What is wrong with a file of rules.
#[derive(Debug, thiserror::Error)]
pub enum RuleError {
    /// The file cannot be read.
    #[error("cannot read the rules {}: {reason}", file.display())]
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
        /// Its name.
        field: String,
        /// What is wrong, and what would be right.
        reason: String,
    },
    /// All of them together are too large.
    #[error("the rules cannot be put together: {0}")]
    Together(regex::Error),
}

static DEFAULT: LazyLock<Rules> = LazyLock::new(built_in);

#[expect(
    clippy::expect_used,
    reason = "the tables are part of the program, and a test reads each"
)]
fn built_in() -> Rules {
    Rules::with(None).expect("the built-in rules are valid")
}

impl Rules {
    /// The built-in rules.
    pub fn built_in() -> &'static Self {
        &DEFAULT
    }

    /// The rules of a user's file, and behind them the built-in ones.
    pub fn read(file: &Path) -> Result<Self, RuleError> {
        let text = std::fs::read_to_string(file).map_err(|reason| RuleError::Read {
            file: file.to_owned(),
            reason,
        })?;
        Self::with(Some((file, &text)))
    }

    /// The rules in `own`, the text of a file whose name is only for messages, and behind them the built-in ones.
    pub fn with(own: Option<(&Path, &str)>) -> Result<Self, RuleError> {
        let mut rules = Vec::new();
        if let Some((file, text)) = own {
            rules.extend(file::parse(file, text)?);
        }
        for (name, text) in BUILT_IN {
            rules.extend(file::parse(Path::new(name), text)?);
        }
        let mut patterns = Vec::new();
        for (index, rule) in rules.iter().enumerate() {
            for pattern in &rule.patterns {
                let with_groups = pattern.contains("(?P<");
                let expression = with_groups.then(|| file::expression(pattern)).transpose();
                patterns.push((index, expression.map_err(RuleError::Together)?));
            }
        }
        let all = rules.iter().flat_map(|rule| &rule.patterns);
        let set = RegexSetBuilder::new(all)
            .unicode(false)
            .size_limit(SIZE_LIMIT)
            .dfa_size_limit(SIZE_LIMIT)
            .build()
            .map_err(RuleError::Together)?;
        Ok(Self {
            all: rules,
            set,
            patterns,
        })
    }

    /// What a line says, in words, if it may by itself be the cause of a failure: neither a hint nor what follows from another
    /// fault.
    pub fn meaning_of_cause(&self, line: &str) -> Option<&str> {
        let plain = crate::line::without_colour(line);
        let (rule, _) = self.find(&plain)?;
        (rule.role == Role::Cause && rule.strength >= Rule::THIN).then_some(rule.meaning.as_str())
    }

    /// The rule that applies to a line, and the groups of its expression.
    pub(crate) fn find<'a>(&self, line: &'a str) -> Option<(&Rule, Option<Captures<'a>>)> {
        let matches = self.set.matches(line.as_bytes());
        let (index, expression) = self.patterns.get(matches.iter().next()?)?;
        let groups = expression
            .as_ref()
            .and_then(|expression| expression.captures(line.as_bytes()));
        Some((self.all.get(*index)?, groups))
    }
}

impl Rule {
    /// Below this strength there is little that a line says by itself.
    pub(crate) const THIN: u8 = 60;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_s_rules_come_first() {
        let own = "[[rule]]\nid = 'site.x'\nclass = 'storage'\nrole = 'cause'\nmatch = ['frobnicator (?P<node>\\S+) jammed', \
                   'CUDA out of memory']\nmeaning = 'the frobnicator jammed'\n";
        let rules = Rules::with(Some((Path::new("own.toml"), own))).unwrap();
        let (rule, groups) = rules.find("x frobnicator n7 jammed").unwrap();
        assert_eq!(
            (rule.id.as_str(), rule.action),
            ("site.x", Action::RestartInPlace)
        );
        assert_eq!(&groups.unwrap()["node"], b"n7");
        assert_eq!(
            rules.find("CUDA out of memory. Tried").unwrap().0.id,
            "site.x"
        );
        let built_in = Rules::built_in();
        assert_eq!(
            built_in
                .find("CUDA out of memory. Tried to allocate 1 GiB")
                .unwrap()
                .0
                .id,
            "gpu.memory"
        );
        assert!(built_in.find("epoch 3 batch 15733").is_none());
    }

    #[test]
    fn what_is_wrong_is_said_with_file_line_and_field() {
        let start = "[[rule]]\nid = 'x'\nmeaning = 'm'\nrole = 'cause'\nclass = 'storage'\n";
        for (text, expected) in [
            (
                "x = 1",
                "own.toml:1: `x`: unknown; the only table is `[[rule]]`",
            ),
            (
                "[[rule]]\nrole = 'cause'",
                "own.toml:1: `rule`: has no `id`",
            ),
            (
                &format!("{start}match = ['(']"),
                "own.toml:6: `x.match`: `(` is no expression",
            ),
            (
                &format!("{start}match = []"),
                "own.toml:1: `x`: has no `match`",
            ),
            (
                &format!("{start}match = 3"),
                "own.toml:6: `x.match`: takes a list of expressions",
            ),
            (
                &format!("{start}match = ['']"),
                "own.toml:6: `x.match`: an expression that fits every line",
            ),
            (
                &format!("{start}rloe = 3"),
                "own.toml:6: `x.rloe`: unknown; the fields are",
            ),
            (
                &format!("{start}match = ['a']\nstrength = 101"),
                "own.toml:7: `x.strength`: takes a number from 0 to 100",
            ),
            (
                &format!("{start}match = ['a']\nconfidence = 2.0"),
                "own.toml:7: `x.confidence`: takes a number from 0 to 1",
            ),
            (
                &format!("{start}match = ['a']\naction = 'reboot'"),
                "own.toml:7: `x.action`: `reboot` is none of report_only",
            ),
            (
                "[[rule]]\nid = 'x'\nmeaning = 'm'\nrole = 'cause'\nmatch = ['a']",
                "own.toml:1: `x`: has no `class`",
            ),
            ("[[rule]\n", "own.toml:1: not valid TOML: "),
        ] {
            let error = Rules::with(Some((Path::new("own.toml"), text))).unwrap_err();
            let error = error.to_string();
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
